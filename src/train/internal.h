// The parts of train_run: data, numbers of each step, waits, reports, comparison of replicas, checkpoints, trace.
#pragma once
#include "base/screen.h"
#include "layout/schedule.h"
#include "layout/topology.h"
#include "train/memory_store.h"
#include "train/metrics.h"
#include "train/references.h"
#include "train/save_plan.h"
#include "train/stragglers.h"
#include "train/train.h"
#include <pthread.h>

// ---- batches.c: the data of one rank -----------------------------------------------------

typedef struct {
    GptDataset *train; // NULL on ranks that read nothing
    GptDataset *valid; // NULL there, too, and when there is nothing to evaluate
    int vocabulary, eod;
    bool tokens, labels, masked;  // this rank reads tokens, labels and masks
    bool conversations;           // the data have a loss mask of their own
    const References *references; // of pairs whose loss reads a reference model; borrowed, else NULL
    bool first_keys, positions;   // every rank finds documents, and for these
    int micro_batch, sequence, num_microbatches; // num_microbatches: of the largest batch
    Leaves leaves;
    // A row for each microbatch, with --audit-interval as many again.
    int32_t *token_buffer, *label_buffer, *first_key_buffer, *position_buffer;
    float *mask_buffer;
    double (*reference_buffer)[NUM_ANSWERS];
} Batches;

// Opens the tokenizer of the run: --vocab-file with --merge-file, --tokenizer-model, or the one beside the first
// dataset. NULL when the run has none, since --vocab-size is enough.
Status batches_tokenizer(const Options *options, Tokenizer **tokenizer);
// The token by which the first data set of conversations ends an answer; NO_TOKEN: it says none, or there is no --sft.
Status batches_turn_end(const Options *options, int *end);
bool batches_names_tokenizer(const Options *options); // an option names it
// Finds the vocabulary of the run, --vocab-size or the tokenizer's, and the token that ends a document, or -1.
Status batches_vocabulary(const Options *options, int *vocabulary, int *eod);
// Checks that the datasets exist, and finds their vocabulary and end token. Fails with ERR_CONFIG where ranks find
// datasets of different sizes or hashes, or different tokenizers.   Collective over the world.
Status batches_look(Batches *batches, const Options *options, Comm *world);
// Opens what this rank reads; a rank that holds neither end of the model reads
// nothing, unless documents are to be found. After batches_look.
Status batches_open(Batches *batches, const Options *options, const Topology *topology);
// Prints a line when a blend without weights has fewer samples than the run reads.
void batches_warn(const Batches *batches, const Options *options);
void batches_close(Batches *batches);
int64_t batches_validation_samples(const Options *options); // that the evaluations of a whole run read
// Checks that the training data have so many samples. Their order was computed for --train-iters whole batches from the
// start; a run that has read larger batches before its checkpoint needs more.
Status batches_suffice(const Batches *batches, int64_t samples);
// Reads the samples of so many microbatches, at most those of a full batch, from sample `consumed` of the split on.
// Validation starts again after its last sample, since a run may have evaluated more often before its checkpoint. The
// batch is valid until the next call.
Status batches_load(Batches *batches, const GptDataset *set, int64_t consumed, int num_microbatches,
                    Batch *batch);
// Reads what an audit computes (engine_audit) of the training batch at `consumed`. The batch of batches_load stays
// valid.
Status batches_load_audited(Batches *batches, int64_t consumed, AuditPart part, int data_rank, Batch *batch);

// ---- engine.c, for state.c ---------------------------------------------------------

Optimizer *engine_optimizer(Engine *engine);

// ---- control.c: the numbers of each step, and when the run cannot continue ---------------------------------

typedef struct {
    const Options *options;
    LearningRate rate;
    WeightDecay decay;
    BatchRampup rampup;
    LossScaler scaler;
    int64_t iteration, consumed; // steps done and samples read
    int64_t stepped;             // samples of steps that changed the parameters
    int64_t end;                 // the last iteration of the run
    int skipped_in_a_row;        // the last steps that did not change them
    double usual_loss;           // running mean
    int64_t num_losses;          // in that mean
    Ranges skipped;              // samples that are left out; `consumed` does not count them
    int64_t rewinds;             // how often the run has gone back
} StepControl;

StepControl control_open(const Options *options); // leaves out the samples of --skip-samples
// The part of the control that a checkpoint holds.
void control_save(const StepControl *control, RunState *state);
void control_restore(StepControl *control, const RunState *state);
// Leaves out the samples of `state` and those of the control together. Fails with ERR_CONFIG when the run has trained
// on one of the control's before `state`. Call it before control_restore.
Status control_join_skipped(StepControl *control, const RunState *state);
// The number of the sample behind the last one that was read; 0: none was.
int64_t control_next_sample(const Ranges *skipped, int64_t consumed);
int control_batch(const StepControl *control); // samples of the next step
int64_t control_consumed_at_end(const StepControl *control);
StepOptions control_options(const StepControl *control);
void control_advance(StepControl *control, int batch, const StepResult *result);
// Fails with ERR_NUMERIC when the last step must end the run. A loss that is not finite does so in fp32 and bf16 and
// with a fixed loss scale, and without a loss scale a gradient does, too, unless --no-check-for-nan-in-loss-and-grad is
// given; a dynamic scale adapts instead. --max-skipped-steps skipped steps in a row always end the run.
Status control_check(const StepControl *control, const StepResult *result);
// Returns the usual loss when this one is --loss-spike-factor times as large, else 0. Adds it to the usual loss.
// Without --check-for-spiky-loss and --rewind-on-spike returns 0.
double control_spike(StepControl *control, double loss);

// ---- patience.c: how long a rank waits for the others ----------------------------------------------

typedef struct {
    bool fixed;       // --distributed-timeout-minutes is given
    double slow_s;    // between steps
    double lock_s;    // that rank 0 may wait for another run's lock
    double longest_s; // for one sample, of the steps so far
    int64_t steps;
} Patience;

typedef struct {
    double seconds;
    const char *reason; // for the message of a hang; NULL: the option
} WaitLimit;

// Within the limit between steps even a slow disk can read and write a checkpoint of so many bytes.
Patience patience_open(const Options *options, double checkpoint_bytes);
WaitLimit patience_for_lock(const Patience *patience); // while rank 0 takes the lock on the --save folder
WaitLimit patience_between_steps(const Patience *patience);
WaitLimit patience_in_step(const Patience *patience, int samples);
void patience_learn(Patience *patience, double step_s, int samples);

// ---- report.c: log lines, progress, metrics -----------------------------------------------------

// The values of one logged step.
typedef struct {
    int64_t iteration, consumed, end;   // end: the last iteration of the run
    int batch;                          // samples of the step
    double loss, grad_norm;             // loss: mean since the last line over steps that were not skipped
    double lr, loss_scale;              // of the next step
    double samples_per_step, elapsed_s; // means since the last line
    const ExpertLoads *loads;           // of the step's experts; NULL: there are none
    bool preferences;                   // `pairs` are means over the step's pairs
    PairMeans pairs;
    bool summed; // `sum` is the checksum of the parameters after the step
    uint64_t sum;
    int skipped,
        nan; // steps since the last line that changed nothing; of them, those whose loss was not finite
} StepReport;

typedef enum { LOG_MEGATRON, LOG_SHORT, LOG_NONE, NUM_LOG_STYLES } LogStyle;

// The losses of a run as at most so many means, each of as many steps.
enum { CURVE_POINTS = 32 };
typedef struct {
    double sum[CURVE_POINTS];
    int64_t count[CURVE_POINTS];
    int64_t steps, steps_per_point;
} LossCurve;
void loss_curve_add(LossCurve *curve, double loss); // NaN is left out

typedef struct {
    const Options *options;
    ModelShape shape;
    int table_rows; // of the padded vocabulary
    Metrics metrics;
    Screen screen; // the block that is kept up to date on a terminal
    Text block;    //   its lines
    LossCurve curve;
    LogStyle style;
    bool brief;                   // TrainJob.brief, or --quiet
    size_t memory_bytes;          // of rank 0
    double steps_s;               // time of all steps of this run
    int64_t steps;                //   and how many
    double first_loss, last_loss; // of steps that changed the parameters; NaN: none yet
    double last_validation;       // NaN: none yet
    SlowRank slow;                // found last; rank -1: none
    char slow_host[64];           //   where it runs
    int told_slow;                // 1 + the rank that was printed as slow; 0: none
    double told_slow_s;           //   and when
} Reporter;

// The steps since the last log line.
typedef struct {
    double loss_sum, elapsed_s; // losses of steps that were not skipped
    PairMeans pairs_sum;        // the same of their pairs
    int64_t samples;
    int iterations, skipped, nan;
    StepReport last;
} Interval;

void interval_add(Interval *interval, const StepReport *step);
StepReport interval_mean(const Interval *interval);
double mib(size_t bytes);          // bytes in MiB
double unsigned_nan(double value); // printed as "nan", never as "-nan"

Status reporter_open(Reporter *reporter, const TrainJob *job, const EngineSpec *spec);
// As metrics_close: numbers that could not be written fail the run unless it has failed already, with `status`.
Status reporter_close(Reporter *reporter, Status status);
// `transport` is comm_device_transport's.
void reporter_start(Reporter *reporter, const EngineSpec *spec, const EngineMemory *memory,
                    const char *transport);
// step_lines.c. The block is drawn at most ten times a second. What prints other lines clears it; the next step shows
// it again.
void reporter_open_lines(Reporter *reporter, const TrainJob *job);
void reporter_close_lines(Reporter *reporter);
void reporter_progress(Reporter *reporter, const StepReport *step);
void reporter_clear_progress(Reporter *reporter);
void reporter_show(Reporter *reporter);
void reporter_line(Reporter *reporter, const StepReport *step); // the log line, in the style of the run
double reporter_tokens_per_s(const Reporter *reporter, const StepReport *step);
double reporter_tflops_per_rank(const Reporter *reporter, const StepReport *step);
void describe_pairs(const PairMeans *pairs, char text[192]);
void reporter_metrics(Reporter *reporter, const StepReport *step);     // its numbers, for other programs
void reporter_save_interval(Reporter *reporter, const SavePlan *plan); // it has changed
void reporter_parameters(Reporter *reporter, int64_t iteration, uint64_t sum); // of no step's record
// The rank that was found slow in the steps up to this one; `slow->rank` -1: none is any more.
void reporter_slow_rank(Reporter *reporter, int64_t iteration, const SlowRank *slow, const char *host);
void reporter_slow_event(Reporter *reporter, int64_t iteration, const SlowRank *slow, const char *host);
void reporter_saving(Reporter *reporter, int64_t iteration);
void reporter_saved(Reporter *reporter, int64_t iteration, double bytes, double seconds);
void reporter_not_saved(Reporter *reporter, int64_t iteration, const char *why);
// Prints once where checkpoints in memory are and what they take.
void reporter_saved_in_memory(Reporter *reporter, int64_t iteration, const char *folder, double bytes);
void reporter_not_saved_in_memory(Reporter *reporter, int64_t iteration, const char *why, bool gives_up);
void reporter_no_memory(Reporter *reporter, const char *why); // for any checkpoint
void reporter_loaded(Reporter *reporter, const char *from, const RunState *state);
void reporter_changed(Reporter *reporter, const char *changes); // of the options since the checkpoint
// Prints a warning about a checkpoint that was not loaded.
void reporter_not_loaded(Reporter *reporter, const char *why);
// Prints the time of all evaluations, of so many batches, and their share of the run.
void reporter_evaluation_cost(Reporter *reporter, int64_t batches, double seconds, double share);
// Prints that the loaded run has already taken all its steps: so many, and has read so many samples.
void reporter_nothing_to_train(Reporter *reporter, int64_t iteration, int64_t consumed, int64_t end);
// Prints from where the log-probabilities of pairs by the reference model are; `file` NULL: they are in memory alone.
void reporter_references(Reporter *reporter, int64_t pairs, const char *model, double seconds,
                         const char *file);
void reporter_references_progress(Reporter *reporter, int64_t done, int64_t pairs, double seconds);
void reporter_spike(Reporter *reporter, const StepReport *step, double usual_loss);
// Prints which samples are left out; `again`: so many that the run reads the first ones again at its end.
void reporter_skipped(Reporter *reporter, const Ranges *skipped, bool again);
// Prints that the run has gone back to `state` because of `spike`, and leaves out `skipped`.
void reporter_rewound(Reporter *reporter, const char *spike, const RunState *state, int64_t rewinds,
                      Range skipped);
void reporter_lost_events(Reporter *reporter, uint64_t lost); // events that the trace had no room for
void pair_means_add(PairMeans *sum, const PairMeans *more, double factor); // sum += factor * more
// `pairs` is NULL but for an evaluation of pairs.
void reporter_validation(Reporter *reporter, int64_t iteration, int64_t consumed, double loss,
                         const PairMeans *pairs, bool last);
// The summary of a run: losses, rate, and the bubble of the pipeline by its formula, by a replay with measured times,
// and as measured waits.
typedef struct {
    int64_t iterations, skipped, samples; // skipped: iterations that changed nothing
    double seconds;                       // of training steps
    double formula, replay;               // bubble over the ideal time; formula NaN: there is none
    double waited;                        // share of waits in the time of the pipeline, mean over ranks
    int busy_threads, cores;              // threads of all ranks on this machine, processors of it
    double resident_bytes;                // peak of all ranks with the program and its libraries
    double bytes_before;                  // the part of it from before the model
    double predicted_bytes;               // of all ranks, as `trireme memory` prints
} RunSummary;
void reporter_summary(Reporter *reporter, const RunSummary *summary); // run_summary.c

// ---- tensor_hash.c -------------------------------------------------------------------

enum { TENSOR_PIECE_BYTES = 1 << 20 };
// Adds the bits of a tensor to a checksum. `piece` [TENSOR_PIECE_BYTES] receives them, a part at a time; the host waits
// for the device's stream.
uint64_t tensor_hash(Device *device, Stream *stream, Tensor x, void *piece, uint64_t hash);

// ---- replicas.c: compares copies on several ranks -----------------------------

// Compares checksums of tensors that several ranks must hold with the same bits: weights over dp, and without the
// distributed optimizer also moments and master weights; the same over tp for parameters that are not cut; and the tied
// embedding of the first and last stage. Where replicas differ all ranks fail with ERR_REPLICAS: the message names a
// tensor, the ranks, and which of them are the majority, and `iteration`, the last step. Waits for gathers of weights
// that are under way.   Collective over the world.
Status replicas_compare(Engine *engine, Comm *world, int64_t iteration);

// ---- parameters_sum.c: the parameters of the whole model as one number ----------------------------

// Returns the sum, modulo 2^64, over all elements of the model's fp32 weights, without padding, of the element's bits
// times a pseudo-random odd number that follows from the tensor's name and the element's index. It is the same on every
// grid whose weights have the same bits, and one flipped bit always changes it.   Collective over the world.
uint64_t parameters_sum(Engine *engine, Comm *world);

// ---- resident.c ------------------------------------------------------------------------------------

// The resident memory of this process, now or at its `peak`. Of the ranks that are threads of one process only one gets
// it, the others 0.
double resident_bytes(const Comm *world, bool peak);

// ---- memory.c: the report of --dry-run and `trireme memory` -------------------------------------------

// Appends the memory of each pipeline rank, the activations of a layer beside the published formulas, and the blocks of
// the arenas.
Status memory_add(const EngineSpec *spec, Text *out);

// ---- belongings.c: what belongs to the model of --load beside its weights ------------------------------

typedef struct {
    ModelTokens tokens;
    Companions companions;
    Tokenizer *tokenizer; // NULL: there is none
} Belongings;

// Reads what belongs to a model. The tokenizer stays NULL where it cannot be opened.
Status belongings_read(Belongings *belongings, const ModelSource *source);
void belongings_free(Belongings *belongings);
// Chooses the tokenizer of the run's checkpoints: the model's where the data's has the same tokens and no option names
// it, with the data's chat template where they have one of their own. Its files are the more complete ones.
// A run on conversations adds the token that ends an answer to those that end a text.
Status belongings_choose(Belongings *belongings, const Options *options, Tokenizer **tokenizer);

// ---- saving.c: writes checkpoints --------------------------------------------------------

// The phases of a save. With several machines a save in memory has two more: room is made for the files of others, then
// they are sent.
typedef enum { SAVER_IDLE, SAVER_WRITING, SAVER_PREPARING, SAVER_SENDING, SAVER_COMMITTING } SaverPhase;

typedef struct {
    const Options *options;
    Comm *world;
    Reporter *reporter; // NULL on ranks that print nothing
    int rank, num_ranks;
    int lock;                     // of rank 0, on the folder; -1: none
    StepList verified, committed; // of rank 0; committed: by this start
    Tokenizer *tokenizer;         // of rank 0; NULL: the run has no tokenizer
    Belongings belongings;        // of rank 0: of the model that was read
    Text config;                  // of rank 0
    Text *records;                // of rank 0 [ranks]
    MemoryStore memory;
    int failures[NUM_SAVE_TARGETS]; // in a row
    // The save under way.
    SaverPhase phase;
    SaveTarget target;
    EngineState state;
    CheckpointNames names;
    CheckpointInfo info;
    Text record;
    double start_s, all_bytes; // of all ranks' tensors
    bool is_last;              // the last save of the run: its failure fails the run
    pthread_t thread;
    bool running; // there is a thread
    atomic_bool done;
    Status result;
    char message[1024];
    int64_t last;   // iteration of the newest on disk that this run has committed or gone on from; -1: none
    int64_t past;   // Restored.past
    BaseModel base; // Restored.base
} Saver;

// Without --save this and the following functions do nothing. All are collective over the world.
// Fails where the first save would: when another run holds the lock on the folder, or its path is too long. `stopped`
// ends the wait for the other run.
Status saver_open(Saver *saver, const Options *options, const atomic_int *stopped, Comm *world,
                  Reporter *reporter);
// Takes what belongs to the model that was read; checkpoints get it, too.
Status saver_take_belongings(Saver *saver, Belongings *belongings);
// Fails with ERR_CONFIG where the base of the adapters is one of the checkpoints in --save.
Status saver_check_base(const Saver *saver);
// Fails with ERR_CREATE where the disk is too small for the saves of the steps after `from` up to `end`.
Status saver_check_room(const Saver *saver, const ModelShape *shape, int64_t from, int64_t end);
// With --async-save or --memory-save-interval allocates the memory of the copy before the first step; later saves
// allocate nothing. Fails where the memory of a machine has no room for its checkpoints. A run that goes on, maybe on
// fewer machines than before, then saves to disk alone and says so.
Status saver_take_memory(Saver *saver, Engine *engine, bool goes_on);
void saver_close(Saver *saver);
// Whether the step is to be saved: it is not saved yet. In memory a save is left out while another one is under way,
// and after several failures. The same on all ranks.
bool saver_is_needed(const Saver *saver, SaveTarget target, int64_t iteration);
// Saves the run in its present state, after a save that is under way. With --async-save it returns when the state is
// copied, except for the last save of the run. A first failure is only reported; a second one in a row, or one of the
// last save, fails the run.
Status saver_start(Saver *saver, Engine *engine, const RunState *state, bool is_last);
// The same in the memory of the machines, always beside the steps, while no other save is under way. A failure is only
// reported; after two in a row the run saves to disk alone.
Status saver_start_in_memory(Saver *saver, Engine *engine, const RunState *state);
// Whether a checkpoint in --save is one of this run, not of one that has gone another way. On rank 0.
bool saver_owns(const Saver *saver, int64_t step);
bool saver_is_busy(Saver *saver); // for this rank alone
// Starts the next part of the save under way. It does not wait when no rank is busy.
Status saver_advance(Saver *saver);
Status saver_finish(Saver *saver); // completes the save under way

// ---- loaded.c: the model of --load -------------------------------------------------------------------

enum { ITSELF = -1, NONE_LEFT = -2 }; // in place of a step: --load names the model itself; there is none
// Lists the steps to try, newest first; the caller frees them. There are none when this run may start with random
// weights: it saves where it loads, and the folder has no checkpoint yet. Fails with ERR_NO_INPUT, which says what
// is at the path of --load instead.
Status load_candidates(const Options *options, int64_t **steps, int *count);
// Fails with ERR_CONFIG where resolved options differ between ranks. The comparison at the start does not know where a
// value is from, but --load replaces a default and not the same value when the user gave it.   Collective over the
// world.
Status compare_resolved(const Options *options, Comm *world);
// Fails with ERR_CONFIG, which names every option by which the model at `path` differs from the one of the options.
Status same_model(const char *path, const ModelShape *model, const ModelShape *asked);

// ---- restoring.c: reads a run from a checkpoint ---------------------------------------------------

typedef struct {
    RunState state; // all zeros when the run starts from the beginning
    int64_t step;   // of the checkpoint that was read, or ITSELF; NONE_LEFT: there was none
    bool from_memory;
    int64_t past;    // the checkpoints in --save up to this step lead to where the run goes on; -1: none does
    int64_t on_disk; // the newest of them that can be opened; -1: none
    Belongings belongings; // of rank 0, where the run saves; the caller frees them
    BaseModel base;        // of a run with adapters; the path belongs to whoever has this
} Restored;

// Reads the weights of --load and, unless the run finetunes, the moments and the state of the run. Where --load is the
// folder that the run saves to, the newest checkpoint there and in `memory` is read. A damaged one is reported and the
// next older one is read. Without any the parameters get their initial values. Of `memory` only the checkpoint that was
// read stays.   Collective over the world.
Status run_restore(Engine *engine, const Options *options, Comm *world, Reporter *reporter,
                   MemoryStore *memory, Restored *restored);

// Reads the weights of another model into the engine, without moments: of a checkpoint's folder, the newest, or of
// another program's files. `base` receives the hash of what stays beside adapters; 0: the engine has none. Fails with
// ERR_CONFIG where it has another shape.   Collective over the world.
Status run_read_weights(Engine *engine, const Options *options, const char *path, Comm *world,
                        uint64_t *base);

// Reads the newest checkpoint in the folder of --save that the run owns (saver_owns), of at most step `newest`, with
// moments and state. A damaged one is reported and the next older one is read. Fails with ERR_NO_INPUT where there is
// none.   Collective over the world.
Status run_restore_before(Engine *engine, const Saver *saver, int64_t newest, RunState *state);

// ---- trace_file.c: writes the file of --trace -----------------------------------------------------------

typedef struct {
    const char *path; // NULL: nothing is traced
    FILE *file;       // of rank 0: the temporary file, while it is written
    Text temporary;   // its name
    Comm *world;
    double origin_s; // time 0 on this rank's clock: the same moment on every rank
} TraceFile;

// Checks that the file can be written, and leaves no file behind.   Collective over the world; fails on all ranks
// before any work is done.
Status trace_file_open(TraceFile *trace, const Options *options, Comm *world);
// From here on the events of this rank are recorded.   Collective over the world.
Status trace_file_start(TraceFile *trace, const Options *options);
// Writes the events of all ranks and renames the file. `lost` receives the number of events that were lost on the rank
// that lost most.   Collective over the world.
Status trace_file_write(TraceFile *trace, const EngineSpec *spec, const Schedule *schedule, uint64_t *lost);
void trace_file_close(TraceFile *trace); // removes a file that was not finished
