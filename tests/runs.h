// Small training runs for tests: a spec, synthetic batches that are a function of the sample number alone,
// and what came out
// in a form that does not depend on the grid. Included by the tests of train/.
#pragma once
#include "train/train.h"

enum { RUN_STEPS_MOST = 64 };

typedef struct {
    EngineSpec spec;
    int steps;
    double lr;
    const char *transport; // "threads" or "mpi"
    bool check_comm;
    bool same_batch;   // every step reads the first samples again
    double loss_scale; // of the gradients; 0: 1
    // Called by every rank after engine_open and after the last step; NULL: not.
    void (*opened)(Engine *engine, void *self);
    void (*finished)(Engine *engine, void *self);
    void *self;
} RunPlan;

typedef struct {
    float loss[RUN_STEPS_MOST];
    double norm[RUN_STEPS_MOST];
    float evaluation; // after the last step
    // Over all elements of all parameters: independent of how they are cut and of the order they are visited
    // in.
    double checksum[4];
    int ranks;
} RunResult;

// A GPT of `layers` layers small enough for thousands of steps; dropout on.
EngineSpec run_spec(Grid grid, const char *schedule, int num_chunks, int layers, int global_batch);
// Turns its model into a Llama: RMS norms, rotary positions, SwiGLU, grouped queries, no biases, untied.
void run_make_llama(EngineSpec *spec);
// Token `position` of sample `sample`.
int32_t run_token(int64_t sample, int64_t position, int vocabulary);
// The arrays of one step of this rank; freed with run_batch_free.
Batch run_batch(const EngineSpec *spec, const Context *context, int64_t consumed);
void run_batch_free(Batch *batch);
// Runs the plan on all its ranks; rank 0's result.
Status run_plan(const RunPlan *plan, RunResult *result);
