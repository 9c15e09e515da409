// One run of train_run on one rank: what the files that open it, take its steps and sum it up share.
#pragma once
#include "train/internal.h"

typedef struct {
    const TrainJob *job;
    const Options *options;
    Comm *world;
    int *spec_room; // what the spec borrows
    EngineSpec spec;
    Batches batches;
    Engine *engine;
    StepControl control;
    Patience patience;
    TraceFile trace;
    Reporter *reporter; // NULL on ranks that print nothing
    RunFile *file;      // NULL on ranks that keep no state of the run
    Saver saver;
    int64_t consumed_valid, eval_iters;
    int64_t evaluated;         // iteration of the last evaluation
    int64_t compared;          // iteration after which replicas were compared last; -1: never
    int64_t first;             // iteration that this run began with
    int64_t microbatches;      // that went through this rank's chunks
    int64_t samples;           // that this run trained on
    int64_t skipped;           // steps that changed nothing
    double train_s;            // spent in training steps
    int signal;                // that asked for the end; 0: none did
    double bytes_before;       // resident in this process before the model
    bool warned_of_evaluation; // what it will cost
} TrainingRun;

// ---- run_open.c ---------------------------------------------------------------------------------

// Opens everything but the engine: data, control, reporter, saver.   Collective over the world.
Status run_open(TrainingRun *run);
// --dry-run: prints what the run would take, without memory and steps.   Collective over the world.
Status run_dry(TrainingRun *run);
void run_set_limit(TrainingRun *run, WaitLimit limit); // of waits for other ranks, from now on

// ---- run_summary.c ------------------------------------------------------------------------------

void run_sum_up(TrainingRun *run); // prints the summary of the run.   Collective over the world
