// The contract between the model and the pipeline that runs it: the context that a layer works in, a
// microbatch, the slot that keeps it between its forward and its backward, and the stage.
// Letters: B microbatch, S sequence, H hidden, V padded vocabulary, t tp size, c cp size, T = S*B/c tokens of a rank;
// T' = T, or T/t with sequence parallelism.
#pragma once
#include "comm/groups.h"
#include "device/ops.h"
#include "layout/leaves.h"
#include "layout/sequence.h"
#include "layout/topology.h"
#include "nn/preference.h"
#include "nn/shape.h"

// ---- context: all that a layer may use ----------------------------------------------------------

// Callbacks of the model about units of parameters (nn/params.h); each is optional. The values of a unit may be
// incomplete or elsewhere until it is acquired, and again once it is released.
typedef struct {
    // The model is about to use the unit's values, and after them those of `next`; -1: it does not know of which unit.
    void (*acquire)(void *self, int unit, int next);
    void (*release)(void *self, int unit); // the model does not use them until it acquires the unit again
    // A microbatch of training is about to add to the gradients of the unit, which may have no memory before.
    void (*begin)(void *self, int unit);
    // It has added all that it does. `final`: so have all microbatches, and the gradients are final, except for the
    // sums over other ranks. A split backward ends with its weight half.
    // The head is finished by its forwards, and once more at the end.
    void (*finish)(void *self, int unit, bool final);
    void *self;
} UnitWatch;

// Optional callback that sees every tensor that this rank is about to give to other ranks over tp or cp.
typedef struct {
    void (*see)(void *self, Tensor x);
    void *self;
} SharedWatch;

// A function with its argument; none where `run` is NULL.
typedef struct {
    void (*run)(void *self);
    void *self;
} ContextCall;

typedef struct {
    Device *device;
    Stream *stream;
    Groups groups;
    Arena *scratch; // empty between two instructions of the pipeline
    ModelMode mode;
    bool adapters_off; // the model computes as if it had no adapters: for forwards alone
    // Of the microbatch of the current instruction: where its gradients belong, its first sample, and how many it has.
    LeafPlace place;
    int64_t first_sample, samples;
    struct AmaxHistory *amax;  // of delayed scales; NULL where there are none
    struct ExpertLoads *loads; // what experts have to do in a step; NULL: nobody counts
    bool again;                // the forward under way is one that was computed before
    UnitWatch watch;
    SharedWatch shared;
    // In a pair of the schedule (Instr.pairs): lets the other half of it go on, and returns when that waits.
    ContextCall turn;
    ContextCall put_off; // work of this microbatch for which nobody waits, done while rows travel
} Context;

// The group of the ranks that share a role with this one, how many they are, and this rank's number among them.
Comm *context_group(const Context *context, Role role);
int context_ranks(const Context *context, Role role);
int context_rank(const Context *context, Role role);
// Puts work off until rows travel, at the latest until context_catch_up. It does earlier work first.
void context_put_off(Context *context, ContextCall work);
void context_catch_up(Context *context);
// Called while rows travel to experts on other ranks, or back, before this rank waits for them. It catches up, and lets
// the other half of a pair go on.
void context_meanwhile(Context *context);
// Call what watches units, where there is a callback.
void unit_acquire(const Context *context, int unit, int next);
void unit_release(const Context *context, int unit);
void unit_begin(const Context *context, int unit);
void unit_finish(const Context *context, int unit, bool final);
// The collectives over tp of a tensor of this rank: they show it to the callback first.
void tp_all_gather(const Context *context, Tensor share, Tensor all);
void tp_all_reduce(const Context *context, Tensor x, ReduceOp op);

// Shows the callback a tensor that this rank is about to give to others over cp.
void cp_show(const Context *context, Tensor x);

// With sequence parallelism a tensor of `rows` rows is cut by rows over tp. Returns the number of rows of this
// rank's share, and the first of them. Without sequence parallelism every rank holds all rows.
int64_t context_rows(const Context *context, int64_t rows);
int64_t context_first_row(const Context *context, int64_t rows);

// The conjugate operators of tensor parallelism between [T', C] and [T, C].   Collective over tp.
// Returns all rows [T, C] of a tensor of which every tp rank holds a share [T', C]: gathered into scratch
// memory, or the tensor itself when it is not cut.
Tensor tp_gather(Context *context, Tensor share);
// Returns the tensor [T, C] into which a rank writes its partial sum of `result` [T', C]: scratch memory, or
// `result` itself when it is not cut.
Tensor tp_reduce_begin(Context *context, Tensor result);
// Sums the partial sums of all tp ranks into `result`: a reduce-scatter, or an all-reduce when it is not cut.
void tp_reduce_end(Context *context, Tensor partial, Tensor result);

// Opens the channels in which ranks that share sequences send each other keys and values, where they do; before the
// first microbatch. Fails alike on all ranks of a ring that is not proved (layout/ring.h).   Collective over cp.
Status context_connect(const Context *context);

// One microbatch: its data, and how the model is to run on it.
typedef struct {
    Tensor tokens, labels; // I32 [1, T]; absent on stages that need none
    // I32 [1, T] or absent: the first key that each query sees (AttentionForward), 0 where absent, of the whole
    // microbatch, [1, S*B], where ranks exchange heads (CONTEXT_ALL_TO_ALL); and the position of each token in its
    // document, where absent that in its sequence.
    Tensor first_key, positions;
    Tensor mask;   // F32 [1, T]: 1 for labels that count, else 0; absent: all count
    Tensor loss;   // F32 [1, T], written by the last stage
    Tensor margin; // F32 [1, T] or absent; receives the label's logit less the largest logit
    // Of a microbatch of pairs, or NULL: the loss is one of preferences. The head writes the outcomes of the pairs in
    // place of losses of tokens; `mask` is absent.
    const PairBatch *pairs;
    float loss_scale;   // factor of the gradient of each token that counts, or of each pair
    float router_scale; // factor of the gradient of what routers add to the loss, besides their coefficients
    int64_t first_sample; // number of its first sample in the whole run
    int64_t samples;      // B
    LeafPlace place;      // where its gradients belong (Params.leaves)
    int64_t sequence;     // the positions of each sample that this rank holds, S/c
    bool training;        // false: no dropout, no gradients
    int64_t position;     // of the first token in its sequence; 0 in training
    bool cached;          // attention caches keys and values, and reads those of all earlier positions
    // How sequences are cut over cp, and the orders of their rows (sequence_orders), I32 [1, S*B]; NULL and absent
    // where they are not cut.
    const SequenceCut *cut;
    Tensor from_ranks, to_ranks;
    Tensor to_heads, from_heads; // I32 [1, S*B], where ranks exchange heads: the orders of sequence_shares
} Microbatch;

// Says which microbatch the layers work on next.
void context_use_microbatch(Context *context, const Microbatch *microbatch);
// Returns the dropout mask of attention on this microbatch, which keeps everything when not training.
Dropout microbatch_dropout(const Microbatch *microbatch, RngKey key, float probability);

// Rows of a tensor of this rank that are neighbours in the one of the whole microbatch too: `count` from `row` on.
// Their dropout mask, which keeps everything when not training, says from which row on there.
typedef struct {
    int64_t row, count;
    Dropout dropout;
} DropoutRows;
// Writes part `i` of the rows of one site's tensor and returns true, or false where there is none; without context
// parallelism there is one with all rows. `cut`: the tensor has context_rows rows, else T.
bool microbatch_rows(const Context *context, const Microbatch *microbatch, RngKey key, float probability,
                     bool cut, int i, DropoutRows *rows);

// The half of a backward that is run: gradients of inputs, gradients of weights, or both at once.
typedef enum { INPUT_HALF = 1, WEIGHT_HALF = 2, BOTH_HALVES = 3 } Halves;

// ---- stage: all that a pipeline knows of a model ------------------------------------------------

// The memory of one microbatch of a chunk from its forward to the end of its backward. The tensors are [rows, hidden]
// in the run's element type: messages between stages, or copies of them.
typedef struct {
    Tensor input;  // the pipeline fills it before the forward, except on the first stage
    Tensor output; // the forward writes it; on the last stage it writes the gradient of the output here
    Tensor output_gradient; // the pipeline fills it before the backward, which overwrites it
    Tensor input_gradient;  // the backward writes it; absent on the first stage
    Arena stash;            // all else that the chunk keeps
    Arena *recomputed; // what an input half computes again for its weight half; NULL when they run at once
    void *layers;      // the model's own record of what the two arenas hold
} Slot;

// The functions that a pipeline calls to run a rank's chunks.
typedef struct {
    void *self;
    int num_chunks;
    int64_t rows, hidden; // of a message; with sequence parallelism `rows` are this rank's share
    DType dtype;
    size_t slot_layers_bytes; // size of Slot.layers
    int most_turns;           // that a forward and a backward give each other at most (Context.turn)
    void (*forward)(void *self, int chunk, Slot *slot, const Microbatch *microbatch);
    // Runs INPUT_HALF, and WEIGHT_HALF later, or BOTH_HALVES. The weight half reads only the input and the stash.
    // `final`: the chunk's gradients are complete after this call.
    void (*backward)(void *self, int chunk, Slot *slot, const Microbatch *microbatch, Halves halves,
                     bool final);
} Stage;
