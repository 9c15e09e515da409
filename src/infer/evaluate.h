// What the evaluations of `trireme evaluate` share. Internal to infer/.
#pragma once
#include "base/file.h"
#include "corpus/progress.h"
#include "infer/task.h"

enum { MAX_REQUEST_BYTES = 1 << 30 };

typedef struct {
    const ModelJob *job;
    Comm *world;
    bool leads;         // rank 0
    int batch, longest; // rows; tokens of one in a call
    int capacity;       // tokens of a row in all calls together; 0: each is by itself
    int32_t *tokens;    // [longest, B] of a call
    Infer *infer;
    // Rank 0 scores one of these.
    Requests requests;
    Tasks tasks;
    TaskFilters *filters;
    FileWriter answers;          // --output; opened first, so that a wrong path fails before the work
    IndexedDataset *data, *mask; // mask: with --sft or --dpo
    SplitRange range;
    Perplexity *scored; // with --dpo, of each answer of the range
    // With --task, on a terminal: continuations and prompts.
    ProgressLine progress;
    int64_t done, total;
} EvaluateRun;

// The number of tokens that the model sees at once.   ERR_CONFIG
Status evaluate_sequence(const ModelJob *job, int *length);
// Opens --data-path on rank 0.   Collective over the world.
Status evaluate_open_data(EvaluateRun *run);
// Opens the model for the `longest` and `capacity` of rank 0.   Collective over the world.
Status evaluate_open(EvaluateRun *run);
// Runs `work` on rank 0, while the other ranks compute its batches. Returns the same status on all ranks.
Status evaluate_together(EvaluateRun *run, Status (*work)(EvaluateRun *, const ScoreModel *));
// The model that generates, for `work` on rank 0.
TokenModel evaluate_token_model(EvaluateRun *run);
Status evaluate_finish_file(FileWriter *file, const Text *text);

// Runs --dpo: the model scores all answers, then the reference model does.   Collective over the world.
Status evaluate_pairs(EvaluateRun *run);
// Runs --task.   Collective over the world.
Status evaluate_tasks(EvaluateRun *run);
