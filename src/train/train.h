// Training: an Engine is one rank's share of a run (model, pipeline, optimizer, memory); train_run is the
// loop around it: data, learning rate, evaluation, log lines, metrics, the end.
#pragma once
#include "config/config.h"
#include "data/data.h"
#include "model/model.h"
#include "parallel/parallel.h"
#include <stdatomic.h>

// ---- engine -------------------------------------------------------------------------------------

typedef struct {
    Grid grid;
    ModelShape shape;
    const char *schedule;          // kind
    int first_layers, last_layers; // of the first and last pipeline rank; 0: as many as the others
    int num_chunks, num_microbatches;
    AdamOptions adam;
    int64_t bucket_elements;
    const char *device; // kind
    int threads;        // per rank
    bool masked;        // batches carry a loss mask
} EngineSpec;

// What one rank takes, in bytes. Found by running the trainer's own step on the null device; the arenas then
// take exactly that.
typedef struct {
    size_t run;       // parameters, gradients, moments, batches
    size_t slot;      // one microbatch in flight
    int num_slots;    // how many are in flight at most
    size_t scratch;   // within one instruction
    size_t workspace; // of the device's operations
    size_t total;
    double flops; // of one training step, as the operations count them
} EngineMemory;

typedef struct Engine Engine;

// `map` (may be NULL) receives the blocks of the run arena, a line each.
Status engine_measure(const EngineSpec *spec, int rank, EngineMemory *memory, Text *map);
// Measures, then takes the memory and initialises the model.   Collective over the world, which is
// grid_size(spec->grid).
Status engine_open(Engine **engine, const EngineSpec *spec, Comm *world);
void engine_close(Engine *engine);

// The samples of one step as this rank sees them. An array that a rank does not read may be NULL there.
typedef struct {
    int64_t consumed;      // samples of the run before this step
    const int32_t *tokens; // [m, S*B], row s*B + b; first stage
    const int32_t *labels; // [m, S*B]; last stage
    const float *mask;     // [m, S*B] of 0 and 1, or NULL; last stage
} Batch;

typedef struct {
    float loss;       // mean over the step's tokens, on every rank
    double grad_norm; // before clipping
    bool finite;      // both are; otherwise the parameters were left as they were
} StepResult;

// One step: gradients of all microbatches, reductions, clipping, AdamW.   Collective over the world.
StepResult engine_train(Engine *engine, Batch batch, double lr, double weight_decay);
float engine_evaluate(Engine *engine, Batch batch); // the loss without dropout.   Collective over the world
// What engine_train does before its optimizer step. For tests that look at gradients.
StepResult engine_gradients(Engine *engine, Batch batch);

const EngineMemory *engine_memory(const Engine *engine); // as predicted and taken
EngineMemory engine_memory_used(const Engine *engine);   // what has really been in use, so far
const Params *engine_params(const Engine *engine);
const Schedule *engine_schedule(const Engine *engine);
Context *engine_context(Engine *engine);
Gpt *engine_model(Engine *engine);
PipelineTimes engine_times(const Engine *engine);

// ---- learning rate ------------------------------------------------------------------------------

typedef struct {
    const char *style; // "constant", "linear", "cosine"
    double max, min, init;
    double warmup_samples, decay_samples;
} LearningRate;

// The rate after `samples` samples. Source: Megatron-LM, OptimizerParamScheduler.
double learning_rate(const LearningRate *schedule, double samples);

// ---- the run ------------------------------------------------------------------------------------

typedef struct {
    const Options *options;    // resolved
    const atomic_int *stopped; // a signal asked for a clean end; NULL: none can
    int threads;               // per rank
} TrainJob;

// Checks, prints, trains, evaluates, sums up. A RankMain: `arg` is the TrainJob.   Collective over the world.
// OK, INTERRUPTED after a clean end on a signal, or an error that is the same on all ranks.
Status train_run(Comm *world, void *arg);
