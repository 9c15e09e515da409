// Training: an Engine is one rank's share of a run (model, pipeline, optimizer, memory); train_run is the
// loop around it: data, learning rate, evaluation, log lines, metrics, the end.
#pragma once
#include "base/outlet.h"
#include "checkpoint/checkpoint.h"
#include "config/config.h"
#include "dataset/dataset.h"
#include "layout/buffers.h"
#include "layout/kinds.h"
#include "layout/layers.h"
#include "layout/topology.h"
#include "model/model.h"
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
    const int *smaller;   // of its smaller ones; borrowed
    int num_smaller;
    int microbatch_group, receive_ahead; // see ScheduleSpec
    ScheduleCosts schedule_costs;        // of the kind "auto"
    int stash_limit;
    bool scatter_gather;                     // of messages between stages, over tp
    bool shard_optimizer;                    // over dp
    bool overlap_gradients, overlap_weights; // reductions with backwards, gathers with forwards
    AdamOptions adam;
    int64_t bucket_elements;
    const char *device; // kind
    int threads;        // per rank
    bool masked;        // batches carry a loss mask
} EngineSpec;

// What one rank takes, in bytes. Found by running the trainer's own step on the null device; the arenas then
// take exactly that.
typedef struct {
    size_t run;           // parameters, gradients, moments, batches, messages
    size_t stash;         // what the layers keep of one microbatch in flight
    int num_stashes;      // how many are in flight at most
    size_t recomputed;    // what one keeps of recomputed layers between the halves of a split backward
    int num_recomputed;   // how many do at most
    int pools[NUM_HOLDS]; // what smaller batches of the run need, where that may be more (see Hold)
    size_t scratch;       // within one instruction
    size_t workspace;     // of the device's operations
    size_t total;
    double flops; // of one training step, as the operations count them
} EngineMemory;

typedef struct Engine Engine;

// `map` (may be NULL) receives the blocks of the arenas, a line each.
Status engine_measure(const EngineSpec *spec, int rank, EngineMemory *memory, Text *map);

// Who is told what a step asks for. `at`: the compute of the pipeline's program that asks; NULL outside of
// them, where messages between stages, reductions of gradients and the optimizer are. What is handed over is
// valid during the call.
typedef struct {
    void *self;
    void (*opened)(void *self, const Params *params); // before the step
    void (*operation)(void *self, const Instr *at, DeviceOp op, const void *args, OpCount one);
    void (*call)(void *self, const Instr *at, const Comm *group, CommOp op, DType dtype, size_t bytes);
} StepListener;
// Runs a step as one rank like engine_measure, and tells each operation of the device and each call of a
// group, in the order in which the rank makes them. Each microbatch adds to gradients, as all but the first of a
// step do, which writes them.
Status engine_record(const EngineSpec *spec, int rank, const StepListener *listener);

// Measures, then takes the memory and initialises the model.   Collective over the world, which is
// grid_size(spec->grid).
Status engine_open(Engine **engine, const EngineSpec *spec, Comm *world);
void engine_close(Engine *engine);

// The samples of one step as this rank sees them. An array that a rank does not read may be NULL there.
typedef struct {
    int num_microbatches;  // m of this step; at most the engine's
    int64_t consumed;      // samples of the run before this step
    const int32_t *tokens; // [m, S*B], row s*B + b; first stage
    const int32_t *labels; // [m, S*B]; last stage
    const float *mask;     // [m, S*B] of 0 and 1, or NULL; last stage
} Batch;

typedef struct {
    double lr, weight_decay;
    double loss_scale; // of the gradients inside the step; 1 but in fp16
} StepOptions;

typedef struct {
    float loss;       // mean over the step's tokens, on every rank; not scaled
    double grad_norm; // before clipping, not scaled; infinite when any gradient was
    bool finite;      // both are; otherwise the parameters were left as they were
} StepResult;

// One step: gradients of all microbatches, reductions, clipping, AdamW.   Collective over the world.
StepResult engine_train(Engine *engine, Batch batch, StepOptions options);
float engine_evaluate(Engine *engine, Batch batch); // the loss without dropout.   Collective over the world
// What engine_train does before its optimizer step. For tests that look at gradients.
StepResult engine_gradients(Engine *engine, Batch batch, double loss_scale);

// The parameters and moments that this rank answers for, as rectangles of global tensors: together those of
// all ranks are every tensor once. `copied`: of a copy, which training does not touch; else valid until the
// next step.
typedef struct {
    Slice *items;
    int count;
    int64_t bytes; // of their elements
    float *memory; // of the copy, kept from one time to the next
    int64_t capacity;
} EngineState;

// `moments`: AdamW's too.   ERR_OS without memory.
Status engine_state(Engine *engine, bool moments, bool copied, EngineState *state);
void engine_state_free(EngineState *state);
// Reads all weights; with `moments` also AdamW's state from a source that is a checkpoint. `optimizer_steps`:
// how many it has done. Fails on this rank alone.
Status engine_read(Engine *engine, ModelSource *source, bool moments, int64_t optimizer_steps);
int64_t engine_optimizer_steps(const Engine *engine);

const EngineMemory *engine_memory(const Engine *engine); // as predicted and taken
EngineMemory engine_memory_used(const Engine *engine);   // what has really been in use, so far
const Params *engine_params(Engine *engine);             // values are whole on every rank
const EngineSpec *engine_spec_of(const Engine *engine);
const Schedule *engine_schedule(const Engine *engine);
Context *engine_context(Engine *engine);
Gpt *engine_model(Engine *engine);
PipelineTimes engine_times(const Engine *engine);

// ---- numbers that change during a run ------------------------------------------------------------

// All but the loss scale are functions of a count of samples; where nothing else is said, of those whose
// steps changed the parameters: a skipped step leaves them where they were. Source: Megatron-LM,
// OptimizerParamScheduler.

typedef struct {
    const char *style; // "constant", "linear", "cosine", "inverse-square-root", "WSD"
    double max, min, init;
    double warmup_samples, decay_samples;
    const char *wsd_style; // "linear", "cosine", "exponential", "minus_sqrt": how WSD ends
    double wsd_samples;    // its last part
} LearningRate;
double learning_rate(const LearningRate *schedule, double samples);

typedef struct {
    const char *style; // "constant" (start and end are one), "linear", "cosine"
    double start, end, samples;
} WeightDecay;
double weight_decay(const WeightDecay *schedule, double samples);

// The global batch grows from `start` by `increment` over `samples` consumed ones; increment 0: it is `full`
// throughout. On the way it is rounded down to a multiple of `multiple` (microbatch times data ranks).
typedef struct {
    int start, increment, full, multiple;
    int64_t samples;
} BatchRampup;
int batch_rampup(const BatchRampup *rampup, int64_t consumed);

// fp16's loss scale. Source: Megatron-LM, ConstantGradScaler and DynamicGradScaler; Micikevicius 2018.
typedef struct {
    double scale, minimum;
    int window, hysteresis; // clean steps before it doubles; overflows before it halves
    bool dynamic;
    int growth, left; // clean steps so far; overflows until it halves
} LossScaler;
LossScaler loss_scaler(double initial, double minimum, int window, int hysteresis, bool dynamic);
void loss_scaler_update(LossScaler *scaler, bool overflow);

// ---- the run ------------------------------------------------------------------------------------

// --threads, or this machine's processors shared out over its ranks, within what this process may use (a
// launcher may have bound it).
int threads_per_rank(const Options *options, int ranks_here);
// options_resolve, with the model of --load, if any: what the options do not say of the model is taken from it and
// noted, and ERR_CONFIG names every option that says otherwise. Dropout may differ, which is noted. Reads the
// manifest alone, so every process may call it and finds the same. ERR_NO_INPUT when --load names no model.
Status train_resolve(Options *options, int world_size);
// What the model is that resolved options ask for.
ModelShape options_model(const Options *options, int vocabulary);
// What resolved options ask of an engine. `room` [engine_spec_room] receives the lists that the spec borrows:
// the layers of each stage, where they are not cut evenly, and the run's smaller batches.   ERR_CONFIG when
// --pipeline-model-parallel-layout is not one of this model.
int engine_spec_room(const Options *options);
Status engine_spec(const Options *options, int threads, int vocabulary, int *room, EngineSpec *spec);
// What the engine's schedule is made from, for steps of so many microbatches.
ScheduleSpec engine_schedule_spec(const EngineSpec *spec, int num_microbatches);

// The time limit of waits that holds until a run knows its steps: --distributed-timeout-minutes, or ten.
double launch_timeout_s(const Options *options);

// The state of a run in the file run.json of its --save folder, or in --run-file. Without both there is none,
// and nothing happens, nor with NULL. Each call replaces the file in one rename; only process 0 makes them.
typedef enum { RUN_RUNNING, RUN_DONE, RUN_INTERRUPTED, RUN_FAILED } RunEnd;
typedef struct {
    const Options *options; // resolved, but for a run that fails before
    time_t started;
    RunEnd state;
    int status, signal;            // signal: that asked for the end; 0: none did
    int64_t iteration, end, saved; // saved: iteration of the newest checkpoint in the folder; -1: none
    const char *reason;
    int lock; // that the run holds on the --save folder; -1: none
    bool open, ended, warned;
} RunFile;
// Once the run holds the lock on its folder; a folder that is no longer its own is left alone.
Status run_file_start(RunFile *file, int64_t end, int lock);
// A checkpoint was committed. Without a new one nothing happens.
void run_file_saved(RunFile *file, int64_t iteration, int64_t saved);
// How it ended, with the message of a status that is not OK. Before run_file_start only --run-file is
// written, unless another run on this host writes it: the folder may be another run's.
void run_file_end(RunFile *file, RunEnd end, Status status);

typedef struct {
    const Options *options;    // resolved
    const atomic_int *stopped; // the number of a signal that asked for a clean end; NULL: none can
    RunFile *file;             // of process 0; NULL: the state of the run is not kept
    const Outlet *output;      // standard output; NULL: its reader is not watched
    int threads;               // per rank
    int ranks_here;            // of them on this machine
    double start_s;            // clock_s() when the program began
} TrainJob;

// Checks, prints, trains, evaluates, sums up. A RankMain: `arg` is the TrainJob.   Collective over the world.
// OK, INTERRUPTED after a clean end on a signal, or an error that is the same on all ranks.
Status train_run(Comm *world, void *arg);

// What a run with these options would take on this machine, rank by rank and block by block, beside the
// published formulas.
Status memory_report(const Options *options, Text *out);
