// What turns a model into a parallel training step: the interpreter that runs a pipeline schedule, the
// reduction of gradients over data parallelism and over the tied embedding, and the optimizer with its global
// norm.
#pragma once
#include "nn/nn.h"

// ---- gradient reduction -----------------------------------------------------------------------------------

// Sums gradients over dp in buckets, posted chunk by chunk as soon as the chunk's last backward is done; then
// sums the two copies of the tied embedding over the first and last stage. The mean is in the loss scale, not
// here.
typedef struct {
    Context *context;
    const Params *params;
    int64_t bucket_elements;
    Request *posted;
    int num_posted, capacity;
} GradReducer;

Status grad_reducer_create(GradReducer *reducer, Context *context, const Params *params,
                           int64_t bucket_elements);
void grad_reducer_destroy(GradReducer *reducer);
// Posts the buckets of one chunk.   Collective over dp, in the same order of chunks on every rank of a dp
// group.
void grad_reducer_start(GradReducer *reducer, int chunk);
// Waits for all of them, then sums tied gradients.   Collective over dp, and over the first and last stage.
void grad_reducer_finish(GradReducer *reducer);

// ---- pipeline -----------------------------------------------------------------------------------

// The interpreter: runs this rank's program of a verified schedule on a Stage, one instruction after another.
// A rank holds exactly as many slots as its peak stash; messages are posts on channels, so a verified program
// cannot hang. It takes what the schedule kinds make: whole backwards, and neighbouring stages on different
// ranks.
typedef struct Pipeline Pipeline;

// Where the time of one rank went, summed since pipeline_create.
typedef struct {
    double forward_s, backward_s; // inside the stage: processor time of a rank of one thread, else wall time
} ChunkTimes;

typedef struct {
    double total_s; // wall time from first to last instruction of training steps
    double wait_s;  // of it, waiting for other stages
    const ChunkTimes *chunks;
} PipelineTimes;

// slot_bytes: capacity of one slot, 0 to measure it (then nothing may touch the memory: a null device).
// Gradients that are sent take their memory from `arena`.
Status pipeline_create(Pipeline **pipeline, Context *context, const Schedule *schedule, Stage stage,
                       Arena *arena, size_t slot_bytes);
void pipeline_destroy(Pipeline *pipeline);
size_t pipeline_slot_peak(const Pipeline *pipeline); // bytes the fullest slot has needed
int pipeline_slot_count(const Pipeline *pipeline);
// One training step over all microbatches: forwards, backwards, reductions started.   Collective over the
// whole model and dp.
void pipeline_train(Pipeline *pipeline, const Microbatch *microbatches, GradReducer *reducer);
// Forwards only, in the schedule's order.   Collective over the model's ranks.
void pipeline_evaluate(Pipeline *pipeline, const Microbatch *microbatches);
PipelineTimes pipeline_times(const Pipeline *pipeline); // borrowed until the next run

// ---- optimizer ----------------------------------------------------------------------------------

typedef struct {
    double beta1, beta2, epsilon;
    double clip; // global norm above which gradients are scaled down; 0: never
} AdamOptions;

typedef struct {
    Context *context;
    const Params *params;
    AdamOptions options;
    Tensor sums;   // F64 [1, parameters]: sum of squares of each
    double *host;  // the same, on the host
    int64_t steps; // done so far
} Optimizer;

Status optimizer_create(Optimizer *optimizer, Context *context, const Params *params, Arena *arena,
                        AdamOptions options);
void optimizer_destroy(Optimizer *optimizer);
// The L2 norm of all gradients of the model, every parameter counted once: shares cut over tp are added,
// replicas and the tied copy are left out. The sum runs over parameters in the model's order, so no p, v or
// schedule changes its bits. Collective over the model's ranks.
double optimizer_grad_norm(Optimizer *optimizer);
// AdamW with clipping by the given norm. Weight decay on matrices only.
void optimizer_step(Optimizer *optimizer, double grad_norm, double lr, double weight_decay);
