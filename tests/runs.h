// Small training runs for tests: a spec, synthetic batches that are a function of the sample number alone,
// and what came out in a form that does not depend on the grid. Included by the tests of train/.
#pragma once
#include "train/train.h"

enum { MAX_RUN_STEPS = 64 };

typedef struct {
    EngineSpec spec;
    int steps;
    int64_t consumed; // samples of the run before its first step
    double lr;
    const char *transport; // "threads" or "mpi"
    bool check_comm;
    bool spins;             // ranks that wait, where each has a core of its own; else they give up theirs
    bool same_batch;        // every step reads the first samples again
    bool evaluates_between; // after every step, not only after the last
    // [steps], at most the spec's; NULL: always those. run_plan announces them to the engine.
    const int *microbatches;
    LossScaler scaler; // of the gradients; scale 0: 1 throughout
    // Called by every rank after engine_open and after the last step; NULL: not.
    void (*opened)(Engine *engine, void *self);
    void (*finished)(Engine *engine, void *self);
    void *self;
} RunPlan;

typedef struct {
    int steps, ranks;
    float loss[MAX_RUN_STEPS];
    float evaluation[MAX_RUN_STEPS]; // of a full batch, after the step; 0: there was none
    double norm[MAX_RUN_STEPS], scale[MAX_RUN_STEPS];
    PairMeans pairs[MAX_RUN_STEPS]; // of runs with pairs
    // Over all elements of all parameters, however they are cut and in whatever order they are visited.
    double checksum[4];
} RunResult;

// An initialiser of a Grid: c ranks for each sequence, d for samples.
#define CUT_GRID(c, d)                                                                                       \
    {                                                                                                        \
        .size = { [AXIS_CP] = (c), [AXIS_DP] = (d) }                                                         \
    }

// A GPT of `layers` layers small enough for thousands of steps; dropout on.
EngineSpec run_spec(Grid grid, const char *schedule, int num_chunks, int layers, int global_batch);
// Makes its batches pairs, with a loss of preferences.
void run_prefer(EngineSpec *spec, const char *loss);
// Turns its model into a Llama: RMS norms, rotary positions, SwiGLU, grouped queries, no biases, untied.
void run_make_llama(EngineSpec *spec);
// Gives its attention a window in two of three layers, sinks, a scale and a cap of scores.
void run_limit_attention(EngineSpec *spec);
// The models that the laws hold for; the others are Llamas with the features of other families: norms before and after
// by 1 + weight, norms of heads, caps, windows of some layers, two bases of rotations, layers without; parallel blocks,
// LayerNorm, squared ReLU, multipliers; norms after alone, norms of all heads together; latent attention; experts and shared ones; experts with biases,
// gates that are cut off, sinks, alternating windows.
typedef enum {
    RUN_GPT,
    RUN_LLAMA,
    RUN_SANDWICH,
    RUN_PARALLEL,
    RUN_POST,
    RUN_LATENT,
    RUN_EXPERTS,
    RUN_BIASED_EXPERTS,
    NUM_RUN_MODELS
} RunModel;
extern const char *const run_model_names[NUM_RUN_MODELS];
void run_make_model(EngineSpec *spec, RunModel model);
// Has Muon step its hidden matrices.
void run_use_muon(EngineSpec *spec);
// Token `position` of sample `sample`.
int32_t run_token(int64_t sample, int64_t position, int vocabulary);
// The arrays of one step of this rank; freed with run_batch_free.
Batch run_batch(const EngineSpec *spec, const Context *context, int64_t consumed, int num_microbatches);
void run_batch_free(Batch *batch);
// Runs the plan on all its ranks; rank 0's result. That replicas and tied copies end alike is expected on
// every rank.
Status run_plan(const RunPlan *plan, RunResult *result);
// Several, one after the other in one launch: of the same number of ranks, transport and checks.
Status run_plans(const RunPlan *plans, int count, RunResult *results);
// The same; false, and a failure of the test, when it does not run or begins with another loss than that of
// guessing (a run of nothing but NaN would agree with itself).
bool run_or_complain(const RunPlan *plan, const char *name, RunResult *result);
// Losses, norms, scales, checksums, and the evaluations that both made.
void run_expect_same_bits(const RunResult *a, const RunResult *b, const char *name);
// What a rank has used is what was predicted. For RunPlan.finished.
void run_expect_predicted_memory(Engine *engine, void *self);
// Prints what run_expect_same_bits compares, a line per step and one of the parameters.
void run_print_bits(const RunResult *result, const char *name);
