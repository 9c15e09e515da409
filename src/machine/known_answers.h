// Small computations whose results are known, one for each family of kernels of the cpu device: to find a core that
// computes something else. The answers of some are exact, whatever the instruction set: products and sums of whole
// numbers, checksums, random words. Those of the others are what most cores and most runs give, near the reference
// device's.
#pragma once
#include "device/device.h"

//  name, for messages; exact: the answer does not depend on instruction set and library
#define ANSWER_FAMILIES(X)                                                                                   \
    X(products_f32, "products in f32", true)                                                                 \
    X(products_bf16, "products in bf16", true)                                                               \
    X(attention, "attention", false)                                                                         \
    X(norms, "norms", false)                                                                                 \
    X(activations, "activations", false)                                                                     \
    X(loss, "softmax and loss", false)                                                                       \
    X(optimizer, "optimizer", false)                                                                         \
    X(sums, "sums", true)                                                                                    \
    X(checksums, "checksums", true)                                                                          \
    X(random_words, "random words", true)

typedef enum {
#define X(name, text, exact) ANSWER_##name,
    ANSWER_FAMILIES(X)
#undef X
        NUM_ANSWERS
} AnswerFamily;

const char *answer_name(AnswerFamily family);
bool answer_is_exact(AnswerFamily family);

enum { ANSWER_BYTES = 128 << 10, ANSWER_PARTS = 8 };

// The results of one family, one behind the other.
typedef struct {
    size_t bytes;
    int num_parts;
    DType types[ANSWER_PARTS];
    int64_t counts[ANSWER_PARTS];
    _Alignas(64) unsigned char data[ANSWER_BYTES];
} KnownAnswer;

// A device with one thread and room for all families.
typedef struct {
    Device *device;
    Arena arena;
    float *numbers; // on the host
} AnswerBench;
// `kind`: cpu or reference. ERR_OS without memory, or as device_open.
Status answer_bench_open(AnswerBench *bench, const char *kind);
void answer_bench_close(AnswerBench *bench); // takes what was only zeroed
// Computes a family with the calling thread. A second call gives the same bits.
void answer_compute(AnswerBench *bench, AnswerFamily family, KnownAnswer *answer);
// The exact answer, by plain loops or from a table. Only of a family that is exact.
void answer_exact(AnswerFamily family, KnownAnswer *answer);
// Whether an answer is as near to the reference device's as roundings allow.
bool answer_is_near(const KnownAnswer *answer, const KnownAnswer *reference);
