// The structure behind Engine, shared by the files that open it, run trials on it, and read and write its state.
#pragma once
#include "device/prepare.h"
#include "nn/amax.h"
#include "nn/expert_loads.h"
#include "nn/runtime.h"
#include "train/internal.h"

typedef struct Audit Audit;

struct Engine {
    EngineSpec spec;
    EngineMemory memory;
    Runtime runtime;
    Leaves leaves;
    Schedule schedule;   // of the largest batch
    Schedule smaller[2]; // of the last two smaller batches; `newer` is the index of the last
    int newer;
    Params params;
    Gpt *gpt;
    Pipeline *pipeline;
    Buckets buckets;
    GradReducer reducer;
    Window window;          // where values are cut into shards
    GradWindow grad_window; // where gradients are
    Optimizer optimizer;
    AmaxHistory amax;
    ExpertLoads loads;
    double router_share; // of the step: what losses of routers are multiplied by beside others
    Tensor tokens, labels, mask, losses; // [m, T]: of this rank's share of each sequence
    Tensor first_keys, positions;        // [m, T]
    // With context parallelism: how each sequence is cut, the orders of its rows, and room for values of a batch. NULL
    // and absent without.
    SequenceCut *cuts;
    Tensor from_ranks, to_ranks, to_heads, from_heads;
    int32_t *sequence_room;
    float *loss_room;
    double step_tokens; // with spec.per_token: the tokens of the step that count, over all data ranks
    Microbatch *microbatches;
    float *host_losses;
    // Of batches of pairs: of each microbatch, of each pair; [3, T]; the means of the last batch.
    PairBatch *pairs;
    PairOutcome *outcomes;
    float *pair_room;
    PairMeans pair_means;
    bool first, last;  // this rank holds the first, the last stage
    bool grads_zeroed; // by the first step: before it they take no memory beside initial values on the host
    const StepListener *listener; // of a recorded step; NULL in training
    Stage stage;                  // the model's
    Instr at;                     // the compute that runs; op NUM_SCHEDULE_OPS: none
    Audit *audit;                 // NULL: no step is ever audited
};

// Refuses grids on which the model's experts cannot be computed.   ERR_CONFIG says what would work.
Status engine_check_experts(const EngineSpec *spec);
// Opens this rank's share of a run without initial values. `memory` all zero: measures. The caller closes the engine
// when this fails.
Status engine_open_share(Engine *engine, const EngineSpec *spec, Comm *world, const EngineMemory *memory);
Stage engine_stage(Engine *engine); // engine_trial.c
// As engine_measure; also notes the kinds of calls that an evaluation and a step make (`calls` may be NULL).
Status engine_try(const EngineSpec *spec, int rank, EngineMemory *memory, Text *map, DeviceCalls *calls);

// ---- sharing.c ----------------------------------------------------------------------------------

// Returns what replicas cut: nothing where every parameter has one replica in an instance.
Sharding engine_sharding(const EngineSpec *spec);
// Returns whether a rank keeps its shards of gradients alone (Params.cut_grads).
bool engine_cuts_gradients(const EngineSpec *spec);
// Returns whether each rank is on the machine of all its replicas: the same on all ranks.   Collective over `world`.
bool engine_replicas_share_machines(Grid grid, Comm *world);

// ---- engine.c -----------------------------------------------------------------------------------

// Where a microbatch belongs in a step.
typedef struct {
    const Leaves *leaves; // of the rank whose share of the step it is in
    LeafPlace place;
    int microbatches; // in that share
    double loss_scale;
    bool training;
} InStep;
// Uploads a batch and uses the schedule of its microbatches; then fills in microbatch k of it.
void engine_upload(Engine *engine, const Batch *batch);
void engine_set_microbatch(Engine *engine, const Batch *batch, int k, const InStep *at);

// ---- sequences.c: what of a batch this rank's share is, where sequences are cut over cp ---------------------

int64_t engine_step_tokens(const Engine *engine);  // of a microbatch, S*B
int64_t engine_local_tokens(const Engine *engine); // those of this rank
int64_t engine_first_keys(const Engine *engine);   // those whose first keys this rank needs
Status sequences_create(Engine *engine);
void sequences_destroy(Engine *engine);
void sequences_take(Engine *engine, Arena *arena);
void sequences_upload_orders(Engine *engine);
// Cuts the sequences of a batch of documents by what their queries see; then says how microbatch k is cut.
void sequences_cut(Engine *engine, const Batch *batch);
void sequences_set(const Engine *engine, int k, Microbatch *microbatch);
// Uploads this rank's part of values of the tokens of m microbatches, [m, S*B]; `to` may be absent. NULL for positions:
// those in the sequences.
void sequences_upload(Engine *engine, Tensor to, int m, const void *from);
// Fills host_losses [m, S*B] with those of all ranks.   Collective over cp.
void sequences_download_losses(Engine *engine, int m);

// ---- step_loss.c ------------------------------------------------------------------------------------

// What the sum of a microbatch's losses is divided by in the pipeline.
double engine_counted_tokens(const Engine *engine, const Batch *batch, int microbatch);
// Sets the means of pairs, too, and `step_tokens`.   Collective over the world.
double engine_mean_loss(Engine *engine, const Batch *batch);
// What the gradients of a step must be divided by.
double engine_gradient_scale(const Engine *engine, const Batch *batch, double loss_scale);
double engine_router_share(const Engine *engine, const Batch *batch); // Collective over dp and pp.

// ---- audit.c ------------------------------------------------------------------------------------

// The microbatches that an audit computes: the fewest that the kind of schedule takes.
int audit_microbatches(const EngineSpec *spec);
Status audit_create(Engine *engine); // for an engine whose spec has audits
void audit_destroy(Engine *engine);
Stage audit_stage(Engine *engine); // the model's stage; notes what audited computes give to other ranks
// Around the backwards of a step. Without an audit of this step they do nothing.
void audit_begin_step(Engine *engine);
void audit_end_step(Engine *engine);
// Returns, on every rank, whether any rank's result differs from the one that another rank has computed.   Collective
// over the world in a step that is audited.
bool audit_differs(Engine *engine);
