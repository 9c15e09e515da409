// Attention as graphs of cuDNN, in the layout of qkv and out, and the workspace of their plans. No GPU is needed for
// them.
//
// A row of qkv is a position of a sample, s * B + b, and its columns are, for each group, the group's query heads, its
// key and its value. Element (s, b, g, part, d) lies at (s * B * G + b * G + g) * P + part * D + d with P = (N/G + 2) *
// D: so b and g are one axis of stride P, and cuDNN takes qkv as it is, as B * G samples of N/G query heads that share
// one key head. All else is strides.
//
// Source of the graphs: Dao 2023 (FlashAttention-2), as the operations that cuDNN recognises and fuses: in memory there
// is no S x S matrix but, for a backward pass whose sums have an order, one of 16 bits.
#pragma once
#include "device/cuda/cudnn.h"
#include "device/device.h"

typedef struct {
    int64_t samples;  // B * G/t
    int64_t heads;    // N/G: that share a key
    int64_t sequence; // S
    int64_t size;     // D
    DType dtype;      // BF16 or F16
    bool backward;
    bool any_order; // of a backward pass: dq is added by atomic operations, which have no order
} SdpaKey;

// The tensors of a graph, by their ids.
typedef enum {
    SDPA_QUERIES = 1,
    SDPA_KEYS,
    SDPA_VALUES,
    SDPA_OUT,
    SDPA_STATS,
    SDPA_SCALE,  // a number: D^-1/2
    SDPA_MASKED, // a number: the score of a key after the query
    // Of a backward pass.
    SDPA_DOUT,
    SDPA_ONE,  // a number
    SDPA_SUMS, // of dout * out over D, fp32 [samples, heads, S]
    SDPA_DQUERIES,
    SDPA_DKEYS,
    SDPA_DVALUES,
    SDPA_HEADS_DKEYS,    // of each query head, only if several share a key; fp32, in any order E
    SDPA_HEADS_DVALUES,  //
    SDPA_ADDED_DQUERIES, // fp32; only in any order
    SDPA_TENSORS
} SdpaTensor;

// The parts of the workspace of a call: their offsets, in bytes. What a call does not need is empty.
typedef struct {
    size_t sums, dkeys, dvalues, dqueries;
    size_t dqkv;         // of a call whose dqkv is qkv: cuDNN reads qkv until it is done
    size_t engine;       // cuDNN's own
    size_t engine_bytes; // the most that cuDNN may want
    size_t all;          // bytes
} SdpaRoom;

// Writes the call in words.
void sdpa_describe(const SdpaKey *key, char *text, size_t bytes);
SdpaRoom sdpa_room(const SdpaKey *key, bool in_place);
// Adds the operations of a key to an empty graph.
void sdpa_build(CudnnGraph *graph, const SdpaKey *key);
