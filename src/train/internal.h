// Pieces of train_run: where batches come from, and what the reader sees.
#pragma once
#include "train/train.h"

// ---- batches.c: one rank's view of the data -----------------------------------------------------

typedef struct {
    IndexedDataset *data;
    GptDataset *train,
        *valid; // NULL on ranks that read nothing; valid also when there is nothing to evaluate
    int vocabulary, eod;
    bool tokens, labels, masked; // what this rank reads
    int micro_batch, sequence, num_microbatches, dp, dp_rank;
    int32_t *token_buffer, *label_buffer;
    float *mask_buffer;
} Batches;

// The vocabulary of the run: --vocab-size, or the tokenizer's (--vocab-file with --merge-file,
// --tokenizer-model, or the one beside the data set).
Status batches_vocabulary(const Options *options, int *vocabulary, int *eod);
Status batches_open(Batches *batches, const Options *options, Place place);
void batches_close(Batches *batches);
// The step's samples, starting at sample `consumed` of the split. Valid until the next call.
Status batches_load(Batches *batches, const GptDataset *set, int64_t consumed, Batch *batch);

// ---- report.c: log lines, progress, metrics -----------------------------------------------------

// What one logged step was like.
typedef struct {
    int64_t iteration, consumed;
    double loss, grad_norm, lr, elapsed_s; // loss and elapsed: means since the last line
    int skipped, nan; // steps since the last line that changed nothing; whose loss was not finite
} StepReport;

typedef struct {
    const Options *options;
    ModelShape shape;
    FILE *metrics;
    bool live;                                     // a progress line stays in place on the terminal
    bool line_open;                                // it is there now
    double first_loss, last_loss, last_validation; // NaN: none yet
} Reporter;

Status reporter_open(Reporter *reporter, const Options *options, const ModelShape *shape);
Status reporter_close(Reporter *reporter); // ERR_IO when metrics could not be written
void reporter_start(Reporter *reporter, const EngineSpec *spec, const EngineMemory *memory);
void reporter_progress(Reporter *reporter, const StepReport *step);
void reporter_line(Reporter *reporter, const StepReport *step);    // Megatron-LM's log line
void reporter_metrics(Reporter *reporter, const StepReport *step); // one JSON object
void reporter_validation(Reporter *reporter, int64_t iteration, int64_t consumed, double loss, bool last);
// How the run went: losses, rate, and the pipeline's bubble by formula, by replay with measured times, and as
// waited.
typedef struct {
    int64_t iterations;
    double seconds;          // of training steps
    double formula, replay;  // bubble over the ideal time
    double waited;           // share of the pipeline's wall time, mean over ranks
    int busy_threads, cores; // threads of all ranks on this machine, processors of it
} RunSummary;
void reporter_summary(Reporter *reporter, const RunSummary *summary);
