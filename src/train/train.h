// Training. An Engine is one rank's share of a run: model, pipeline, optimizer, memory. train_run is the loop around
// it: data, learning rate, evaluation, log lines, metrics, checkpoints.
#pragma once
#include "base/outlet.h"
#include "checkpoint/checkpoint.h"
#include "config/config.h"
#include "dataset/dataset.h"
#include "layout/buffers.h"
#include "layout/kinds.h"
#include "layout/layers.h"
#include "layout/leaves.h"
#include "layout/topology.h"
#include "model/model.h"
#include "nn/expert_loads.h"
#include "parallel/parallel.h"
#include <stdatomic.h>
#include <time.h>

// ---- engine -------------------------------------------------------------------------------------

typedef struct {
    Grid grid;
    ModelShape shape;
    ModelMode mode;
    LayerSplit split;
    const char *schedule; // kind
    int num_chunks;
    int num_microbatches; // of the largest batch of the run
    const int *smaller;   // the same of its smaller batches; borrowed
    int num_smaller;
    int microbatch_group, receive_ahead; // see ScheduleSpec
    ScheduleCosts schedule_costs;        // what a kind with SETTING_TIMES orders by
    int stash_limit;
    bool scatter_gather; // cut messages between stages over tp
    Sharding sharding;   // over the replicas of parameters
    bool
        reduce_every; // with shards of gradients: sum those of every microbatch over the replicas, then these sums
    bool share_values; // with shards of values: replicas of one machine share one copy, where they can
    int virtual_data;  // leaves of a step (layout/leaves.h); 0: one a data-parallel rank
    bool overlap_gradients, overlap_weights; // reduce during backwards, gather during forwards
    AdamOptions adam;
    MuonOptions muon; // of hidden matrices; iterations 0: AdamW steps all parameters
    double ema_decay; // of the moving average of the weights; 0: there is none
    double offload;   // share of the optimizer's state in the host's memory; 0: none
    int64_t bucket_elements;
    const char *device;     // kind
    int threads;            // per rank
    int ranks_per_gpu;      // see RuntimeSpec
    const char *algorithms; // see RuntimeSpec; borrowed
    bool masked;            // batches have a loss mask
    bool first_keys;        // batches say which key each query sees first
    bool positions;         // batches have positions of tokens
    bool per_token;         // the loss is the mean over the step's tokens, not of the microbatches' means
    bool audits;            // some steps are audited
    float bias_rate;        // of the biases of experts (ModelShape.router_bias)
    // Of batches of pairs, which have first keys and no loss mask on the device; loss NULL: batches are no pairs.
    PreferenceRule preference;
} EngineSpec;

// The memory of one rank in bytes. It is measured by running the trainer's own step on the null device; the arenas
// then allocate exactly that.
typedef struct {
    size_t run;      // parameters, gradients, moments, batches, messages
    size_t stash;    // of the activations of one microbatch in flight
    int num_stashes; // the most microbatches in flight
    // The recomputed activations of one microbatch, between the halves of a split backward.
    size_t recomputed;
    int num_recomputed;          // the most of these
    int pools[NUM_BUFFER_KINDS]; // buffers that smaller batches of the run need, where that may be more
    size_t scratch;              // within one instruction
    size_t beside;               // the same of a forward that runs together with a backward; 0: none does
    size_t workspace;            // of the device's operations
    size_t shared;               // by this rank and its replicas: values of which there is one copy
    int sharers;                 // how many ranks share that
    size_t total;                // with an equal part of what is shared
    size_t host;                 // beside it, in the host's memory: optimizer state that is offloaded
    double flops;                // of one training step, counted by the operations
} EngineMemory;

typedef struct Engine Engine;

// The spec with what a run here decides: whether replicas share values, as ranks of one process do; and what
// --attention-backend auto leaves to the GPU of a rank with this number among those of its machine
// decided, so that the memory measured is that of a run here. Where there is no GPU it stays open, and the workspace
// has room for either. engine_open does so itself.
EngineSpec engine_spec_here(const EngineSpec *spec, int rank_here);
// Measures the memory of one rank. `map` (may be NULL) receives the blocks of the arenas, one line each.
Status engine_measure(const EngineSpec *spec, int rank, EngineMemory *memory, Text *map);

// Callbacks for the operations and messages of a step. `at` is the compute of the schedule that makes them; NULL
// outside of computes: messages between stages, reductions of gradients, the optimizer. Arguments are valid during the
// call.
typedef struct {
    void *self;
    void (*opened)(void *self, const Params *params); // before the step
    void (*operation)(void *self, const Instr *at, DeviceOp op, const void *args, OpCount one);
    void (*call)(void *self, const Instr *at, const Comm *group, CommOp op, DType dtype, size_t bytes);
} StepListener;
// Runs a step as one rank, as engine_measure does, and reports each operation of the device and each call of a group in
// the order in which the rank makes them. Every microbatch adds to the gradients; in training the first one of a step
// writes them.
Status engine_record(const EngineSpec *spec, int rank, const StepListener *listener);

// Measures, allocates the memory and has the device prepare for the operations of a step (device/prepare.h). The
// parameters have no values yet: engine_read or engine_init gives them.   Collective over the world, which has
// grid_size(spec->grid) ranks.
Status engine_open_empty(Engine **engine, const EngineSpec *spec, Comm *world);
// Gives the parameters their initial random values.   Collective over the world.   ERR_OS without host memory
Status engine_init(Engine *engine);
// Both.
Status engine_open(Engine **engine, const EngineSpec *spec, Comm *world);
void engine_close(Engine *engine);

// The samples of one step for this rank. Arrays that the rank does not read may be NULL.
typedef struct {
    int num_microbatches;  // m of this step; at most the engine's
    int64_t consumed;      // samples of the run before this step
    const int32_t *tokens; // [m, S*B], row s*B + b; for the first stage
    const int32_t *labels; // [m, S*B]; for the last stage
    const float *mask;     // [m, S*B] of 0 and 1, or NULL; for the last stage
    // [m*B] of pairs: log-probabilities of both answers by the reference model, or NULL; for the last stage
    const double (*references)[NUM_ANSWERS];
    // [m, S*B] where the spec has them, for every stage: Microbatch.first_key and .positions
    const int32_t *first_keys, *positions;
} Batch;

typedef struct {
    double lr, weight_decay;
    double loss_scale; // of the gradients inside the step; 1 except in fp16
} StepOptions;

typedef struct {
    float loss;       // mean over the step's tokens, on every rank; not scaled
    double grad_norm; // before clipping, not scaled; infinite when any gradient was infinite
    bool finite;      // loss and norm are finite; otherwise the step changed no parameter
    bool differs;     // its audit found a difference, on every rank; the step changed no parameter
} StepResult;

// Means over the pairs of a step or an evaluation.
typedef struct {
    double reward[NUM_ANSWERS], log_probability[NUM_ANSWERS];
    double accuracy; // the share of pairs whose chosen answer has the larger reward
} PairMeans;

// One step: gradients of all microbatches, reductions, clipping, AdamW.   Collective over the world.
StepResult engine_train(Engine *engine, Batch batch, StepOptions options);
float engine_evaluate(Engine *engine, Batch batch); // the loss without dropout.   Collective over the world
// Of the last step, on every rank; NULL where the model has no experts.
const ExpertLoads *engine_expert_loads(const Engine *engine);
// Of the last step or evaluation, on every rank; NULL where batches are no pairs.
const PairMeans *engine_pair_means(const Engine *engine);
// The outcomes of this rank's pairs of that batch [m*B]; NULL on ranks without the last stage.
const PairOutcome *engine_pair_outcomes(const Engine *engine);
// The part of engine_train before the optimizer's step. For tests of gradients.
StepResult engine_gradients(Engine *engine, Batch batch, double loss_scale);

// The parameters and moments that this rank saves, as rectangles of global tensors. Those of all ranks together are
// every tensor exactly once. With `copied` they are a copy on the host, which training does not change; otherwise the
// rank's own thread downloads them when it reads them, and they are valid until the next step.
typedef struct {
    Slice *items;
    int count;
    int64_t bytes; // of their elements
    float *memory; // of the copy, kept from one time to the next
    int64_t capacity;
    struct OnDevice *sources; // [count], of what is downloaded
    float *amax;              // of delayed scaling, on rank 0 alone
} EngineState;

// The bytes of a checkpoint, fp32 all of them: weights and, where there are any, moments and averages.   ERR_OS without
// memory.
typedef struct {
    bool moments, muon, ema; // of the optimizer; those of Muon, in place of AdamW's; an average
} StateKinds;
Status state_bytes(const ModelShape *shape, const StateKinds *kinds, int64_t *bytes);
// The same for what the optimizer of this run keeps.
Status spec_state_bytes(const EngineSpec *spec, bool moments, int64_t *bytes);
// Lists the state of this rank, averages too; with `moments`, those of the optimizer. With `copied`, copies it to the
// host.   ERR_OS without memory.
Status engine_state(Engine *engine, bool moments, bool copied, EngineState *state);
void engine_state_free(EngineState *state);
// Reads all weights, and with `moments` those of the optimizer from a source that is a checkpoint. `optimizer_steps` is
// the number of steps that it has done. With `ema` averages go on where the source has any, else they begin at the
// weights. Adapters get their initial values where the source has none. May fail on this rank alone.
Status engine_read(Engine *engine, ModelSource *source, bool moments, bool ema, int64_t optimizer_steps);
// Returns whether the history of delayed scaling in a source, if both have one, is of the products that this run makes
// in few bits. If not, engine_read empties that of the run: its scales are 1 again.
bool engine_knows_amax(const Engine *engine, ModelSource *source);
int64_t engine_optimizer_steps(const Engine *engine);

const EngineMemory *engine_memory(const Engine *engine); // predicted and allocated
EngineMemory engine_memory_used(const Engine *engine);   // the most that has been in use so far
// After all gathers: every rank has whole values, or with shards of values what it keeps of them (Param.kept).
const Params *engine_params(Engine *engine);
// Values are about to be set other than by a step.   Collective over the replicas.
void engine_values_change(Engine *engine);
const EngineSpec *engine_spec_of(const Engine *engine);
const Schedule *engine_schedule(const Engine *engine);
Context *engine_context(Engine *engine);
Gpt *engine_model(Engine *engine);
PipelineTimes engine_times(Engine *engine); // as pipeline_times: waits for the device to end the last step

// ---- audits: steps of which another rank computes a part again -----------------------------------------

// What is audited of a step: of each data-parallel rank's share the first `count` microbatches of leaf `leaf`.
typedef struct {
    int microbatches;       // of a rank's share of the step
    int leaf, first, count; // first: the number of the first one in the share
    int computed; // microbatches that the audit computes: the schedule may need more than it compares
} AuditPart;
// The part that the `number`-th audit of a run audits, in a step of so many microbatches. Leaves take turns.
AuditPart engine_audit_part(const Engine *engine, int num_microbatches, int64_t number);
// Data-parallel rank r computes the part of rank r + 1, and keeps checksums of its losses and gradients. The next
// engine_train does the same for the rank's own part, and compares. `batch`: `part.computed` microbatches, of which
// microbatch i is microbatch part.first + i % part.count of that rank; `loss_scale`: that of the step. Overwrites the
// gradients. Needs EngineSpec.audits.   Collective over the world.
int engine_audited_rank(const Engine *engine); // the rank r + 1
void engine_audit(Engine *engine, AuditPart part, Batch batch, double loss_scale);
// Reads such a batch, of one data-parallel rank. It is valid until the next call. May fail on some ranks alone.
typedef Status ReadAudited(void *self, AuditPart part, int data_rank, Batch *batch);
// After a step whose audit found a difference: every data-parallel rank computes the part in which it is once more.
// Fails with ERR_REPLICAS on all ranks, with a message that names the ranks, the tensor, the microbatches and the step,
// and which rank was wrong where that can be known; else with the failure of `read`. Overwrites the gradients.
// Collective over the world.
Status engine_blame(Engine *engine, int64_t iteration, ReadAudited *read, void *self);

// ---- numbers that change during a run ------------------------------------------------------------

// All except the loss scale are functions of a number of samples: unless said otherwise, of the samples whose steps
// changed the parameters, so that a skipped step does not change them. Source: Megatron-LM, OptimizerParamScheduler.

typedef struct {
    const char *style; // "constant", "linear", "cosine", "inverse-square-root", "WSD"
    double max, min, init;
    double warmup_samples, decay_samples;
    const char *wsd_style; // "linear", "cosine", "exponential", "minus_sqrt": how WSD ends
    double wsd_samples;    // of its last part
} LearningRate;
double learning_rate(const LearningRate *schedule, double samples);

typedef struct {
    const char *style; // "constant" (start equals end), "linear", "cosine"
    double start, end, samples;
} WeightDecay;
double weight_decay(const WeightDecay *schedule, double samples);

// The global batch grows from `start` in steps of `increment` while the first `samples` samples are consumed; increment
// 0: it is always `full`. It is rounded down to a multiple of `multiple` (microbatch times data ranks).
typedef struct {
    int start, increment, full, multiple;
    int64_t samples;
} BatchRampup;
int batch_rampup(const BatchRampup *rampup, int64_t consumed);

// The loss scale of fp16. Source: Megatron-LM, ConstantGradScaler and DynamicGradScaler; Micikevicius 2018.
typedef struct {
    double scale, minimum;
    int window, hysteresis; // steps without overflow before it doubles; overflows before it halves
    bool dynamic;
    int growth, left; // steps since the last overflow; overflows until it halves
} LossScaler;
LossScaler loss_scaler(double initial, double minimum, int window, int hysteresis, bool dynamic);
void loss_scaler_update(LossScaler *scaler, bool overflow);

// ---- the run ------------------------------------------------------------------------------------

// --threads, or the processors of this machine divided by its ranks, and at most those that this process may use (a
// launcher may have bound it).
int threads_per_rank(const Options *options, int ranks_here);
// options_resolve with the model of --load, if there is one: options of the model that are not given are taken from it,
// with a note. Fails with ERR_CONFIG, which names every option that contradicts the model; dropout may differ, with a
// note. Reads the manifest alone, so every process may call it with the same result. ERR_NO_INPUT when --load names no
// model.
Status train_resolve(Options *options, int world_size);
// The model that resolved options describe.
ModelShape options_model(const Options *options, int vocabulary);
// The loss of --dpo; its `loss` is NULL without that.
PreferenceRule options_preference(const Options *options);
// The engine that resolved options describe. `room` [engine_spec_room] receives the lists that the spec borrows: the
// layers of each stage, where they are not divided evenly, and the smaller batches of the run.   ERR_CONFIG when
// --pipeline-model-parallel-layout does not fit the model.
int engine_spec_room(const Options *options);
ContextWay options_context_way(const Options *options); // of --cp-comm-type
// Muon as the options describe it; iterations 0 with another optimizer.
MuonOptions muon_options(const Options *options);
Status engine_spec(const Options *options, int threads, int vocabulary, int *room, EngineSpec *spec);
// The same for a run with its data: their vocabulary is read. The caller frees `room`, which is NULL after a failure.
Status engine_spec_of_run(const Options *options, int threads, EngineSpec *spec, int **room);
// The specification of the engine's schedule for steps of so many microbatches.
ScheduleSpec engine_schedule_spec(const EngineSpec *spec, int num_microbatches);

// The time limit of waits before the first steps are known: --distributed-timeout-minutes, or ten minutes.
double launch_timeout_s(const Options *options);

// The state of a run in the file run.json of its --save folder, or in --run-file. Without both, or with NULL, the
// functions do nothing. Each call replaces the file by one rename. Only process 0 calls them.
typedef enum { RUN_RUNNING, RUN_DONE, RUN_INTERRUPTED, RUN_FAILED } RunEnd;
typedef struct {
    const Options *options; // resolved, except for a run that fails before that
    time_t started;
    RunEnd state;
    int status, signal;            // signal: the one that asked to stop; 0: none
    int64_t iteration, end, saved; // saved: iteration of the newest checkpoint in the folder; -1: none
    int64_t memory_bytes;          // that rank 0 has taken; 0: not known yet
    const char *reason;
    int lock; // on the --save folder; -1: none
    bool open, ended, warned;
} RunFile;
// Call it when the run holds the lock on its folder. A folder that it has lost is not written to.
Status run_file_start(RunFile *file, int64_t end, int lock);
// Notes that a checkpoint was committed. Without a new one it does nothing.
void run_file_saved(RunFile *file, int64_t iteration, int64_t saved);
// Notes how the run ended, with the message of a status that is not OK. Before run_file_start only --run-file is
// written, unless another run on this host writes it, since the folder may be another run's.
void run_file_end(RunFile *file, RunEnd end, Status status);

// ---- a run whose steps a caller asks for ---------------------------------------------------------------

typedef struct TrainingRun TrainingRun; // one rank's part of it
typedef struct {
    int64_t iteration, end, consumed; // steps that are done, of the whole run; samples that were read
    double loss, grad_norm, seconds;  // of the last step
    double learning_rate;             // of the next one
    bool skipped, over;               // the last step changed nothing; all steps are done
} RunStep;
RunStep run_last_step(const TrainingRun *run);
Comm *run_world(const TrainingRun *run);
const ModelShape *run_shape(const TrainingRun *run);
// Evaluates on --eval-iters batches.   Collective over the world.   INTERRUPTED; ERR_CONFIG with --eval-iters 0
Status run_evaluate(TrainingRun *run, double *loss);
Status run_save(
    TrainingRun *run); // a checkpoint in --save, unless this step's is there.   Collective over the world
// Each rank writes the part of a weight's rectangle that it keeps, in fp32, to out [rows, cols] of the rectangle, which
// the ranks share.   Collective over the world.
Status run_read_weight(TrainingRun *run, const char *name, Rect rect, float *out);
// Gives a weight other values, fp32 [rows, cols] of the whole tensor, the same on all ranks. Moments stay; an average
// begins anew there.   Collective over the world.
Status run_write_weight(TrainingRun *run, const char *name, const float *values);

typedef struct {
    const Options *options;    // resolved
    const atomic_int *stopped; // optional: the number of a signal that asked to stop, 0 before
    RunFile *file;             // of process 0; NULL: the state of the run is not written
    const Outlet *output;      // standard output; NULL: the run does not notice when its reader leaves
    bool brief;                // prints short lines for people
    bool quiet;                // prints nothing but warnings, and writes no metrics
    int threads;               // per rank
    int ranks_here;            // of them on this machine
    double start_s;            // clock_s() when the program began
    // Optional: is called on every rank before each step, and after the last one until it ends the run. It may use the
    // functions above.   Collective over the world: it does the same on all ranks.
    Status (*between)(void *self, TrainingRun *run, bool *ends);
    void *self;
} TrainJob;

// Whether --save and --load name the same folder: the run goes on from its own checkpoints.
bool saves_where_it_loads(const Options *options);

// Trains: checks, steps, evaluations, checkpoints, summary. A RankMain: `arg` is the TrainJob.   Collective over the
// world.   Returns OK, INTERRUPTED after a signal and a clean end, or an error that is the same on all ranks.
Status train_run(Comm *world, void *arg);

// Prints the memory of a run with these options on this machine, for each rank and each block, beside the published
// formulas.
Status memory_report(const Options *options, Text *out);
