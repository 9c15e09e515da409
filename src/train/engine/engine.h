// The structure behind Engine, shared by the files that open it, run trials on it, and read and write its state.
#pragma once
#include "nn/runtime.h"
#include "train/internal.h"

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
    Optimizer optimizer;
    Tensor tokens, labels, mask, losses; // [m, T]
    Microbatch *microbatches;
    float *host_losses;
    bool first, last;  // this rank holds the first, the last stage
    bool grads_zeroed; // by the first step: before it they take no memory beside initial values on the host
    const StepListener *listener; // of a recorded step; NULL in training
    Stage stage;                  // the model's
    Instr at;                     // the compute that runs; op NUM_SCHEDULE_OPS: none
};

// Opens this rank's share of a run without initial values. `memory` all zero: measures. The caller closes the engine
// when this fails.
Status engine_open_share(Engine *engine, const EngineSpec *spec, Comm *world, const EngineMemory *memory);
Stage engine_stage(Engine *engine); // engine_trial.c
