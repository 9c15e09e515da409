// Pieces of train_run: where batches come from, which numbers a step gets, what the reader sees, what is
// traced.
#pragma once
#include "layout/schedule.h"
#include "layout/topology.h"
#include "train/train.h"
#include <pthread.h>

// ---- batches.c: one rank's view of the data -----------------------------------------------------

typedef struct {
    GptDataset *train; // NULL on ranks that read nothing,
    GptDataset *valid; //   this one also when there is nothing to evaluate
    int vocabulary, eod;
    bool tokens, labels, masked; // what this rank reads
    int micro_batch, sequence, dp, dp_rank;
    int32_t *token_buffer, *label_buffer;
    float *mask_buffer;
} Batches;

// The tokenizer of the run: of --vocab-file with --merge-file, --tokenizer-model, or the one beside the
// (first) data set. NULL when it has none: --vocab-size alone says what it needs to know.
Status batches_tokenizer(const Options *options, Tokenizer **tokenizer);
// The vocabulary of the run: --vocab-size, or the tokenizer's; and the token that ends a document, or -1.
Status batches_vocabulary(const Options *options, int *vocabulary, int *eod);
// That the data sets are there, which comes first, and their vocabulary and end token. ERR_CONFIG where ranks find
// other data sets, of other sizes or hashes, or another tokenizer.   Collective over the world.
Status batches_look(Batches *batches, const Options *options, Comm *world);
// Opens what this rank reads; a rank that holds neither end of the model reads nothing. After batches_look.
Status batches_open(Batches *batches, const Options *options, const Topology *topology);
// A line for the reader when a blend without weights has fewer samples than the run reads.
void batches_warn(const Batches *batches, const Options *options);
void batches_close(Batches *batches);
// That the training data reach for so many samples. They were laid out for --train-iters whole batches from
// the start on: a run that has read larger ones before its checkpoint needs more.
Status batches_suffice(const Batches *batches, int64_t samples);
// The samples of so many microbatches, at most those of a full batch, from sample `consumed` of the split on.
// Validation begins anew where its samples end: a run may have evaluated more often before its checkpoint.
// Valid until the next call.
Status batches_load(Batches *batches, const GptDataset *set, int64_t consumed, int num_microbatches,
                    Batch *batch);

// ---- state.c, and what it asks of engine.c ---------------------------------------------------------

Optimizer *engine_optimizer(Engine *engine);

// ---- control.c: the numbers of each step, and when it cannot go on ---------------------------------

typedef struct {
    const Options *options;
    LearningRate rate;
    WeightDecay decay;
    BatchRampup rampup;
    LossScaler scaler;
    int64_t iteration, consumed; // steps done and samples read
    int64_t stepped;             // of these samples, those of steps that changed the parameters
    int64_t end;                 // the iteration that is the run's last
    int skipped_in_a_row;        // steps up to now that did not
    double usual_loss;           // running mean
    int64_t num_losses;          // in it
} StepControl;

StepControl control_open(const Options *options);
// What a checkpoint keeps of it, and back.
void control_save(const StepControl *control, RunState *state);
void control_restore(StepControl *control, const RunState *state);
int control_batch(const StepControl *control); // samples of the next step
int64_t control_consumed_at_end(const StepControl *control);
StepOptions control_options(const StepControl *control);
void control_advance(StepControl *control, int batch, const StepResult *result);
// ERR_NUMERIC when the step just done ends the run. In fp32 and bf16 and with a fixed loss scale a loss
// that is not finite does, without a loss scale a gradient too, unless --no-check-for-nan-in-loss-and-grad;
// a dynamic scale answers by itself. --max-skipped-steps in a row always do.
Status control_check(const StepControl *control, const StepResult *result);
// The usual loss when this one is --loss-spike-factor times as large, else 0. Counts it as usual for later
// ones.
double control_spike(StepControl *control, double loss);

// ---- patience.c: how long a rank waits for the others ----------------------------------------------

typedef struct {
    bool fixed;       // --distributed-timeout-minutes says it
    double slow_s;    // between steps
    double lock_s;    // that rank 0 may wait for another run's lock
    double longest_s; // for one sample, of the steps so far
    int64_t steps;
} Patience;

typedef struct {
    double seconds;
    const char *reason; // for the message of a hang; NULL: it is the option's
} WaitLimit;

// The slowest disk reads and writes a checkpoint of so many bytes within the limit between steps.
Patience patience_open(const Options *options, double checkpoint_bytes);
WaitLimit patience_for_lock(const Patience *patience); // while rank 0 takes the lock on the --save folder
WaitLimit patience_between_steps(const Patience *patience);
WaitLimit patience_in_step(const Patience *patience, int samples);
void patience_learn(Patience *patience, double step_s, int samples);

// ---- report.c: log lines, progress, metrics -----------------------------------------------------

// What one logged step was like.
typedef struct {
    int64_t iteration, consumed, end;   // end: the run's last iteration
    int batch;                          // samples of it
    double loss, grad_norm;             // loss: mean of the steps since the last line that were not skipped
    double lr, loss_scale;              // of the next step
    double samples_per_step, elapsed_s; // means since the last line
    int skipped,
        nan; // steps since the last line that changed nothing; of them, those whose loss was not finite
} StepReport;

typedef struct {
    const Options *options;
    ModelShape shape;
    int table_rows; // of the padded vocabulary
    FILE *metrics;
    Outlet metrics_outlet;
    bool warned_of_metrics;       // that rows are lost
    bool live;                    // a progress line stays in place on the terminal
    bool line_open;               // it is there now
    double first_loss, last_loss; // of steps that changed something; NaN: none yet
    double last_validation;       // NaN: none yet
} Reporter;

// Steps since the last log line.
typedef struct {
    double loss_sum, elapsed_s; // losses of steps that were not skipped
    int64_t samples;
    int iterations, skipped, nan;
    StepReport last;
} Interval;

void interval_add(Interval *interval, const StepReport *step);
StepReport interval_mean(const Interval *interval);
double mib(size_t bytes);          // as MiB
double unsigned_nan(double value); // printed as "nan", never as "-nan"

// `stopped`: a signal that ends the wait for the reader of --metrics, where that is a pipe.
Status reporter_open(Reporter *reporter, const Options *options, const EngineSpec *spec,
                     const atomic_int *stopped);
Status reporter_close(Reporter *reporter); // ERR_IO when metrics could not be written
void reporter_start(Reporter *reporter, const EngineSpec *spec, const EngineMemory *memory);
void reporter_progress(Reporter *reporter, const StepReport *step);
void reporter_line(Reporter *reporter, const StepReport *step);    // Megatron-LM's log line
void reporter_metrics(Reporter *reporter, const StepReport *step); // one JSON object
void reporter_saving(Reporter *reporter, int64_t iteration);
void reporter_saved(Reporter *reporter, int64_t iteration, double bytes, double seconds);
void reporter_not_saved(Reporter *reporter, int64_t iteration, const char *why);
void reporter_loaded(Reporter *reporter, const char *from, const RunState *state);
void reporter_changed(Reporter *reporter, const char *changes); // of the options since the checkpoint
// A warning about reading a checkpoint.
void reporter_not_loaded(Reporter *reporter, const char *why);
// What evaluations of so many batches in all will take, as a share of the run.
void reporter_evaluation_cost(Reporter *reporter, int64_t batches, double seconds, double share);
// That the run has taken all its steps before its first.
void reporter_nothing_to_train(Reporter *reporter, int64_t iteration, int64_t end);
void reporter_spike(Reporter *reporter, const StepReport *step, double usual_loss);
void reporter_lost_events(Reporter *reporter, uint64_t lost); // that the trace could not keep
void reporter_validation(Reporter *reporter, int64_t iteration, int64_t consumed, double loss, bool last);
// How the run went: losses, rate, and the pipeline's bubble by formula, by replay with measured times, and as
// waited.
typedef struct {
    int64_t iterations, skipped, samples; // skipped: those of the iterations that changed nothing
    double seconds;                       // of training steps
    double formula, replay;               // bubble over the ideal time; formula NaN: there is none
    double waited;                        // share of the pipeline's wall time, mean over ranks
    int busy_threads, cores;              // threads of all ranks on this machine, processors of it
    double resident_bytes;                // peak of all ranks, the program and its libraries included
    double bytes_before;                  // of it what they had before the model
    double predicted_bytes;               // what `trireme memory` says of all ranks
} RunSummary;
void reporter_summary(Reporter *reporter, const RunSummary *summary);

// ---- replicas.c: whether copies on several ranks are still the same -----------------------------

// Compares checksums of what several ranks hold in the same bits: weights over dp, and without the distributed
// optimizer moments and master weights; over tp all of that of parameters that are not cut; the tied embedding of
// first and last stage. Where replicas differ all ranks fail with ERR_REPLICAS: the message names a tensor and the
// ranks, and which of them are the majority. `iteration`: of the last step, for that message. Waits for gathers of
// weights under way.   Collective over the world.
Status replicas_compare(Engine *engine, Comm *world, int64_t iteration);

// ---- resident.c ------------------------------------------------------------------------------------

// What this process has in memory now, or had at its `peak`; 0 on all but one of the ranks that are threads of it.
double resident_bytes(const Comm *world, bool peak);

// ---- memory.c: what --dry-run and `trireme memory` print -------------------------------------------

// Every pipeline rank's memory, what a layer keeps beside the published formulas, the blocks of the arenas.
Status memory_add(const EngineSpec *spec, Text *out);

// ---- saving.c: checkpoints that are written --------------------------------------------------------

typedef enum { SAVER_IDLE, SAVER_WRITING, SAVER_COMMITTING } SaverPhase;

typedef struct {
    const Options *options;
    Comm *world;
    Reporter *reporter; // NULL on ranks that print nothing
    int rank, num_ranks;
    int lock;               // on the folder, of rank 0; -1: none
    VerifiedSteps verified; // of rank 0
    Tokenizer *tokenizer;   // of rank 0; NULL: the run has none
    Text config;            // of rank 0
    Text *records;          // of rank 0 [ranks]
    // The save under way.
    SaverPhase phase;
    EngineState state;
    CheckpointNames names;
    CheckpointInfo info;
    Text record;
    double start_s, all_bytes; // of all ranks' tensors
    bool is_last;              // of the run: its failure is the run's
    pthread_t thread;
    bool running; // there is a thread
    atomic_bool done;
    Status result;
    char message[1024];
    int failures; // in a row
    int64_t last; // iteration of the newest that is committed or was loaded; -1: none
} Saver;

// Without --save there is nothing to do here and in all that follows.   Collective over the world, all of it.
// Fails where the first save would: another run is saving to the folder, its path is too
// long. `stopped`: a signal that ends the wait for the other run.
Status saver_open(Saver *saver, const Options *options, const atomic_int *stopped, Comm *world,
                  Reporter *reporter);
// ERR_CREATE where the disk is too small for what the steps after `from` up to `end` will save.
Status saver_check_room(const Saver *saver, const ModelShape *shape, int64_t from, int64_t end);
// With --async-save the memory of the copy, before the first step: later saves take none.
Status saver_take_memory(Saver *saver, Engine *engine);
void saver_close(Saver *saver);
// Saves the run as it is, after what is still being saved. With --async-save it returns when a copy is taken,
// but for the last of the run. A failure is told and forgiven once; not twice in a row, and not the last.
Status saver_start(Saver *saver, Engine *engine, const RunState *state, bool is_last);
bool saver_is_busy(const Saver *saver); // on this rank alone
// Takes the save under way to its next part. When no rank is busy it does not wait.
Status saver_advance(Saver *saver);
Status saver_finish(Saver *saver); // to its end

// ---- loaded.c: what --load names -------------------------------------------------------------------

enum { ITSELF = -1, NONE_LEFT = -2 }; // in place of a step: what --load names is the model; there is none
// The steps to try, newest first; the caller frees. None when this run may begin with random weights: it saves where
// it loads, and nothing is there yet. ERR_NO_INPUT says what --load names instead.
Status load_candidates(const Options *options, int64_t **steps, int *count);
bool saves_where_it_loads(const Options *options);
// ERR_CONFIG where resolved options differ between ranks. The lists that are compared at the start lack where a value
// is from, and --load replaces a default but not the same value when it was given.   Collective over the world.
Status compare_resolved(const Options *options, Comm *world);
// ERR_CONFIG names every option by which a model (at `path`) differs from the one that is asked for.
Status same_model(const char *path, const ModelShape *model, const ModelShape *asked);

// ---- restoring.c: the run that a checkpoint left ---------------------------------------------------

// --load: the weights, and unless it is to be finetuned moments and state of the run. A damaged checkpoint is
// told, and the next older one is read. `state` is all zeros when there is nothing to go on from. `*loaded`
// is where it came from, for the reader; NULL: from nothing.   Collective over the world.
Status restore(Engine *engine, const Options *options, Comm *world, Reporter *reporter, RunState *state);

// ---- trace_file.c: what --trace writes -----------------------------------------------------------

typedef struct {
    const char *path; // NULL: nothing is traced
    FILE *file;       // of rank 0, while it is written: the temporary one
    Text temporary;   // its name
    Comm *world;
    double origin_s; // time 0 on this rank's clock: the same moment on every rank
} TraceFile;

// Makes sure that FILE can be written, and leaves nothing behind.   Collective over the world; fails on all
// ranks before any work is done.
Status trace_file_open(TraceFile *trace, const Options *options, Comm *world);
// From here on this rank's events are kept.   Collective over the world.
Status trace_file_start(TraceFile *trace, const Options *options);
// Writes the events of all ranks and renames the file. `lost`: how many events the rank that lost most had
// no room for.  Collective over the world.
Status trace_file_write(TraceFile *trace, const EngineSpec *spec, const Schedule *schedule, uint64_t *lost);
void trace_file_close(TraceFile *trace); // removes a file that was not finished
