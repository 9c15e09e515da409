// Planning: which grid, how fast, how much memory, how long, before anything is rented.
//
// A prediction is made in four steps, each of which prints itself:
//   1. work     the trainer's own step, run on the null device and the null network, says which operations
//               of which shape, and which messages of how many bytes in which group, every part of a model
//               (embedding, a layer, head) asks for. Nothing about the model is written down a second time.
//   2. price    an operation's time on a machine: matrix products by tiles, waves and K; all else by bytes;
//               collectives by measured curves and by where the ranks of a group are.
//   3. replay   the pipeline schedule that training would interpret is walked with these times: bubble,
//               waits, what overlaps. Data-parallel replicas are identical, so 3072 GPUs cost p ranks.
//   4. memory   parameters, gradients, optimizer, activations in flight, ends of the model, reserve.
// A search makes candidates, refuses those that break a rule or do not fit, bounds the others by a closed
// form, and replays the best. Constants come from files (machine.h) and carry the error that they had on
// rows they were not fitted on; that error is the interval of every prediction.
#pragma once
#include "plan/machine.h"
#include "train/train.h"

// ---- what is asked ------------------------------------------------------------------------------

typedef enum { ATTENTION_FUSED, ATTENTION_UNFUSED } AttentionKind; // unfused: the S x S scores are in memory

// One way to run a model on n = t p d c devices.
typedef struct {
    Grid grid;
    int context;           // c: ranks that share a sequence; 1: whole sequences
    int chunks;            // v
    int microbatch, batch; // b; B, samples of a step over all ranks
    const char *schedule;  // a kind of schedule_kinds
    Recompute recompute;   // NOTHING, SELECTIVE or UNIFORM (every layer)
    AttentionKind attention;
    DType dtype;
    bool sequence_parallel; // needs t > 1
    int zero_stage;         // 0; 1: the distributed optimizer; 2, 3: gradients, parameters are cut too
    // What the stack does, unless a row or a user says otherwise.
    bool scatter_gather, overlap_gradients, overlap_tensor;
} Candidate;

int candidate_microbatches(const Candidate *candidate); // m
int candidate_devices(const Candidate *candidate);
// NULL when the candidate is possible for the model on the machine, else the rule it breaks with values that
// would work, in `why`.
const char *candidate_refuse(const ModelShape *model, const Machine *machine, const Candidate *candidate,
                             char *why, size_t size);

// ---- 1. work ------------------------------------------------------------------------------------

typedef enum { WORK_OP, WORK_COLLECTIVE } WorkKind;

// One operation of the device, or one collective, as the trainer's step asks for it. Groups of one rank are
// left out.
typedef struct {
    uint8_t kind;       // WorkKind
    uint8_t op;         // DeviceOp or CommOp
    uint8_t axis;       // of a collective: the Axis of its group; NUM_AXES: another group
    uint8_t dtype;      // of a matrix product: of its operands; else of the largest tensor
    bool dropout;       // some of what it writes is dropped at random
    bool probabilities; // of attention: its S x S matrix is in memory
    bool transpose_a, transpose_b, accumulate; // of a matrix product, which is added to what is there
    // Of a matrix product [m, k] x [k, n], batch 1; of attention S, D, S and B*N/t; of other operations rows
    // and columns of the first tensor written, then zeros.
    int64_t m, n, k, batch;
    // Of its tensors, each once; of a lookup the whole table. Of a collective of the tensor as a whole, also
    // where a rank has a share: a ring moves 2(n-1)/n of it in an all-reduce, (n-1)/n in a reduce-scatter or
    // all-gather.
    double bytes;
    double flops; // as the device counts them: OpCount
} WorkItem;

typedef struct {
    WorkItem *items;
    int count, capacity;
} WorkList;

// Parts of a model: what a stage does is the sum of its parts.
typedef enum { PART_EMBEDDING, PART_LAYER, PART_HEAD, NUM_PARTS } Part;

// What one microbatch asks of each part on one rank. The trainer's head computes its gradients within the
// forward; here they are part of the backward, as in other programs: all that follows on LOSS_FINISH.
typedef struct {
    WorkList forward[NUM_PARTS];
    WorkList backward[NUM_PARTS]; // input and weight halves, and what is computed again
    // Of a tp rank's share: parameters of an embedding, a layer, a head (without a tied table), and how many
    // tensors they are.
    int64_t parameters[NUM_PARTS];
    int tensors[NUM_PARTS];
    double stage_message_bytes; // b s h of the element type, before any scattering
} Work;

// What an operation is as an item. `unfused`: attention is of a program that has its S x S matrix in memory,
// also where ours has not.
WorkItem work_item(DeviceOp op, const void *args, OpCount one, bool unfused);
// Runs the trainer's step of a pipeline of three stages, embedding, one layer and head, on the null device
// and records it: of the candidate t, b, recomputation, attention, element type and sequence parallelism.
// `model->microbatch` and `padded_vocabulary` are ignored: the first is the candidate's, the second a
// multiple of 128 t.   ERR_OS, ERR_CONFIG where the model cannot be cut so.
Status work_record(Work *work, const ModelShape *model, const Candidate *candidate);
void work_free(Work *work);
double work_flops(const WorkList *list); // of all of it
void work_print(const Work *work, Text *out);

// ---- 2. price -----------------------------------------------------------------------------------

// Where the ranks of a run are: t fastest, then c, d, p, node by node.
typedef struct {
    const Machine *machine;
    Constants constants;
    const Stack *stack;
} Site;

// Ranks of a candidate that work at once on one node: on a CPU they share its memory.
int site_busy_ranks(const Site *site, const Candidate *candidate);

// Seconds of one operation of a candidate, alone.
double price_operation(const Site *site, const Candidate *candidate, const WorkItem *item);
// How many operations the host launches for it.
double operation_launches(const Site *site, const WorkItem *item);
// Seconds of a collective of `bytes` over an axis of the grid.
double price_collective(const Site *site, const Candidate *candidate, CommOp op, Axis axis, double bytes);
// Seconds of a message of `bytes` between a stage and the next.
double price_message(const Site *site, const Candidate *candidate, int stage, double bytes);
// Whether the last rank of a stage and the first of the next are on different nodes.
bool edge_leaves_node(const Site *site, const Candidate *candidate, int stage);
// Seconds in which `bytes` of keys and values go around the c ranks of a sequence, as far as nothing hides
// it.
double price_context(const Site *site, const Candidate *candidate, double bytes);

// ---- 3. replay ----------------------------------------------------------------------------------

// Where a step's time goes, in seconds of the rank that takes longest; they add up to step_s.
typedef struct {
    double compute;   // forwards and backwards of the busiest rank, without their collectives
    double recompute; // of it: what is computed again
    double tensor;    // collectives over t that nothing hides
    double stages;    // messages between stages that nothing hides
    double bubble;    // waiting for other stages
    double data;      // reductions and gathers over d that nothing hides
    double optimizer;
    double other; // what the host adds, stragglers
} Breakdown;

// Bytes of a rank; they add up to `total`.
typedef struct {
    double parameters, gradients, optimizer; // as far as the zero stage does not cut them
    double activations;                      // of all microbatches in flight
    double ends;    // what embedding and head add: dropout masks, logits and their gradient
    double buffers; // messages, gathered inputs, the layer that is computed again
    double reserve; // driver, libraries, communicators
    double total, capacity;
    int rank;      // pipeline rank that is the fullest
    double margin; // error of the total, as a share: within it of the capacity, nobody knows
} MemoryNeed;

typedef enum { FITS, FITS_PERHAPS, FITS_NOT } Verdict;
Verdict memory_verdict(const MemoryNeed *need);
// Of the fullest pipeline rank, in closed form: a microsecond or two.   ERR_CONFIG for more than 4096 stages.
// Sources: Korthikanti 2022, sections 4 and 5, for activations; Rajbhandari 2020 for the state.
Status memory_need(const Site *site, const ModelShape *model, const Candidate *candidate, MemoryNeed *need);
// The same, but on a CPU what the arenas of trireme will take, to the byte, with one thread a rank: its own
// step is run on the null device for every pipeline rank. On other machines, and for what trireme does not do
// (context parallelism, zero stages above 1, unequal stages), the closed form.   ERR_CONFIG, ERR_OS.
Status memory_exact(const Site *site, const ModelShape *model, const Candidate *candidate, MemoryNeed *need);

// What one pipeline rank needs, in closed form.
Status memory_of_rank(const Site *site, const ModelShape *model, const Candidate *candidate, int rank,
                      MemoryNeed *need);

typedef struct {
    Candidate candidate;
    double step_s, low_s, high_s; // the interval is the stack's error on rows it was not fitted on
    bool extrapolates;            // outside of the hull of those rows
    Breakdown parts;
    double bubble;                      // over the ideal time, as replayed
    double model_flops, hardware_flops; // of one step, all ranks; the second counts what is computed again
    double tflops, mfu, hfu;            // of a device: hardware TFLOP/s; of the peak
    MemoryNeed memory;
    // Bytes of a message between stages; what crosses the middle of the machine, bytes/s, while such messages
    // are under way (both directions, all replicas), and while gradients are reduced (half of all that is
    // sent).
    double edge_bytes, edge_bandwidth, data_bandwidth;
} Prediction;

// Of recorded work and priced parts: a plan asks for the same ones again. Machines and stacks are told apart
// by their addresses and must not change while the cache is open; constants may.
typedef struct PlanCache PlanCache;
Status plan_cache_open(PlanCache **cache);
void plan_cache_close(PlanCache *cache);

// Everything of one candidate, which must not be refused.
Status predict(PlanCache *cache, const Site *site, const ModelShape *model, const Candidate *candidate,
               Prediction *out);
// A lower bound of its step_s, without replay; and its memory, unless that is NULL. 10^5 a second.
Status predict_bound(PlanCache *cache, const Site *site, const ModelShape *model, const Candidate *candidate,
                     double *step_s, MemoryNeed *memory);
// The schedule as it would run, for drawing. The caller destroys both.
Status predict_timeline(PlanCache *cache, const Site *site, const ModelShape *model,
                        const Candidate *candidate, Schedule *schedule, Simulation *simulation);

// ---- 4. search ----------------------------------------------------------------------------------

// What the user has decided. Zero, NULL or -1 is open.
typedef struct {
    int devices, batch;
    int tp, pp, dp, context, chunks, microbatch;
    int sequence_parallel, zero_stage, fused_attention; // -1: open
    const char *schedule;
    int recompute; // a Recompute; -1: open
    DType dtype;
} Question;

// What the stack does where a question leaves it open: attention, overlaps, messages in shares.
Candidate candidate_of_stack(const Stack *stack, const Question *question);

typedef enum {
    REJECT_RULE,   // a size does not divide, or exceeds another
    REJECT_MEMORY, // does not fit
    REJECT_BOUND,  // cannot be faster than what was found already
    NUM_REJECTS
} Reject;

// The fastest candidate that differs from the winner in one choice.
typedef struct {
    char choice[48]; // "t = 4"
    Prediction prediction;
} Alternative;

enum { MOST_ALTERNATIVES = 64 };

typedef struct {
    Prediction *best; // in rising order of step_s
    int count;
    bool perhaps; // nothing fits for sure: these are within the margin of the memory
    int64_t tried, rejected[NUM_REJECTS], replayed;
    char examples[NUM_REJECTS][200]; // one of each class, with its numbers
    char nearest[400]; // when nothing fits: what misses by least, by how much, and what would make it fit
    Alternative alternatives[MOST_ALTERNATIVES];
    int num_alternatives;
} PlanResult;

// ERR_CONFIG, with what would work, when no candidate keeps the rules or fits.
Status plan_search(PlanCache *cache, const Site *site, const ModelShape *model, const Question *question,
                   int most, PlanResult *out);
void plan_result_free(PlanResult *result);
// Where `other` loses against `winner`: the parts of a step that make the difference, the largest first.
void plan_compare(const Prediction *winner, const Prediction *other, Text *out);
// How often the search agrees with the paper's three takeaways, over published models and cluster sizes, and
// where it does not and why.   ERR_CONFIG on a CPU.   Source: Narayanan 2021, section 3.
Status plan_takeaways(PlanCache *cache, const Site *site, Text *out);

// ---- measured rows --------------------------------------------------------------------------------

// A measured run: what was run, and how long a step took (0: it did not fit). Where the source leaves
// something open, a `told` is false and the candidate has what its stack would do, or what a rule says.
typedef struct {
    char id[48], set[40], stack[64], model_name[48];
    char gpu[MOST_NAME], kernel[32]; // kernel: of attention and norms; "": not told
    char machine[MOST_NAME];         // the shipped one that fits best; "": there is none with this GPU
    double node_gbs;                 // all NICs of a node, one direction; 0: not told
    int devices_per_node;
    ModelShape model;
    Candidate candidate;
    double step_s;
    double memory_gb; // 10^9 bytes of a device; 0: not told
    int line;
    bool guessed; // microbatch, chunks, recomputation or sequence parallelism are open: filled by the rule
    bool suspect; // its source doubts it
    bool told_zero_stage, told_scatter_gather, told_overlap_gradients, told_overlap_tensor;
} PlanRow;

typedef struct {
    PlanRow *items;
    int count, capacity;
    int refused; // rows of the file in fp8, which is not predicted; they are left out
} PlanRows;

// A CSV file whose first line names its columns, in any order; more may be there, and optional ones may be
// missing.
//   required  layers hidden heads vocab seq tp pp dp global_batch step_s; ffn_hidden where mlp is swiglu
//   optional  id set stack gpu gpus_per_node inter_node_gbps (of a node) model kv_heads ffn_hidden
//             mlp (gelu, relu2, swiglu) tied_embedding gpus vp cp micro_batch schedule recompute
//             sequence_parallel zero_stage precision attention attention_kernel p2p_scatter_gather
//             tp_comm_overlap dp_comm_overlap metric (oom: did not fit, step_s is empty) mem_gb note
// Models: swiglu is a Llama, gelu a GPT with dropout of 0.1, relu2 a Nemotron (counted as gelu, with rotary
// positions and neither biases nor dropout).
// The rule for what is open: microbatch 1, but 4 or 2 without a pipeline, where that divides; two layers in a
// chunk where that divides, else one, and a single chunk where the microbatches do not divide by p; attention
// is fused; no recomputation, but of every layer where attention is not fused; sequence parallelism where
// tensor-parallel messages overlap, which needs it.
// ERR_DATA with line and column for what is missing, no number, or contradicts itself, and for a file without
// rows; one whose rows are all in fp8 has none left.
Status plan_rows_read(PlanRows *rows, const char *path);
// One row more, from what `trireme train --metrics FILE` wrote: the median of its step times without the
// first tenth of them. The file does not say what was run: model and candidate do, and steps of another batch
// are left out.   ERR_DATA when fewer than three steps remain.
Status plan_rows_add_metrics(PlanRows *rows, const char *path, const ModelShape *model,
                             const Candidate *candidate, const char *machine);
Status plan_rows_add(PlanRows *rows, const PlanRow *row); // ERR_OS
void plan_rows_free(PlanRows *rows);

// Floating-point operations of a row's step, all ranks: of the model, and what is computed again.
double plan_row_flops(const PlanRow *row);

// Of predictions against measurements, in percent of what was measured.
typedef struct {
    int count;                       // rows that were measured and predicted
    double mape, median, p90, worst; // of the absolute errors; mape is their mean
    double bias;                     // mean of the errors: above 0 predicts too long
    double naive;                    // mape of one rate for all: FLOP/s of a device, median of the others
    double skill;                    // 1 - mape / naive; of a share, not percent
} ErrorSummary;

// predicted_s [rows->count], 0 where nothing is predicted. Percentiles are interpolated between rows.
ErrorSummary error_summary(const PlanRows *rows, const double *predicted_s);

// How predictions came about, for the line below their table.
typedef struct {
    const char *protocol; // "leave one out"; NULL: as told elsewhere
    int num_free;         // constants fitted
} AccuracyTerms;

// A table of the rows with their errors, then accuracy_line.
void accuracy_print(const PlanRows *rows, const double *predicted_s, AccuracyTerms terms, Text *out);
// One line: n, free constants, protocol, errors, naive, skill.
void accuracy_line(const ErrorSummary *summary, AccuracyTerms terms, Text *out);

// Verdicts against measured rows: those that ran fit, those of metric oom do not; rows with memory_gb say how
// much they took. Rows whose microbatch, chunks or recomputation had to be guessed are left out.
typedef struct {
    int outcomes, right;             // verdicts with margin 0
    int false_fits, false_alarms;    // said to fit and did not; said not to fit and did
    int sure, sure_right;            // with the stack's margin, "perhaps" left out
    int measured, within;            // within 10 % of memory_gb
    double mape, median, p90, worst; // of those, percent
} MemoryScore;

// By the stack's constants.
Status memory_score(const Stack *stack, const PlanRows *rows, MemoryScore *score);
// Each of the folds by the activation_factor and reserve_gb that suit the others best, from the usual ones.
// `fitted` [2]: those two, of all rows.   ERR_DATA without rows that say something of memory.
Status memory_cross_validate(const Stack *stack, const PlanRows *rows, int folds, MemoryScore *score,
                             double fitted[2]);
void memory_score_print(const MemoryScore *score, Text *out);

// ---- calibration ----------------------------------------------------------------------------------

// Fits the free constants of a stack to rows, by least squares of log(predicted / measured). Large errors
// count by their size only (Huber 1964), and a pull towards the priors keeps what the rows do not tell where
// it was. An error is only ever reported of rows that a fit has not seen: each fold is predicted by a fit of
// the others, which starts from the priors.

// Seconds of a row's step with these constants; 0: the row is refused and takes no part in the fit.
typedef Status PredictRow(void *self, const Constants *constants, const PlanRow *row, double *step_s);

// What is held out together. Rows of one configuration (model, layout, batch) are near copies and never part.
typedef enum { LEAVE_ONE_OUT, LEAVE_MODEL_OUT, K_FOLDS } Protocol;

typedef struct {
    PredictRow *predict;
    void *self;
    Constants priors;    // of free constants above 0
    const bool *is_free; // [num_constants]
    Protocol protocol;
    int folds;    // of K_FOLDS
    double huber; // log error from which rows count by its size only; 0: 0.12
    double ridge; // log error of one row that weighs as much as a constant off by a factor e; 0: 0.05
} Calibration;

typedef struct {
    Constants constants;       // fitted to all rows
    Constants lowest, highest; // of the folds' fits: what the rows do not tell is wide
    double *held_out;          // [rows] by the fit that has not seen the row; 0: takes no part
    double *fitted;            // [rows] by the fit to all: for looking at, never an accuracy
    ErrorSummary summary;      // of held_out
    ErrorSummary in_sample;    // of fitted
    int num_free, num_folds;
    int refused; // timed rows that predict refused
} CalibrationResult;

// Deterministic.   ERR_DATA with fewer than two folds, ERR_CONFIG for a free constant without a prior, and
// what predict returns.
Status calibrate(const Calibration *calibration, const PlanRows *rows, CalibrationResult *out);
void calibration_free(CalibrationResult *result);
// The fold of each row that takes part, from 0, and how many there are; -1 for the others.
// predicted_s [rows]: 0 where a row is refused.
int calibration_folds(Protocol protocol, int folds, const PlanRows *rows, const double *predicted_s,
                      int *fold);
// "leave one out", "leave one model out", "5-fold"
void protocol_name(Protocol protocol, int folds, char name[32]);
// What a stack file says of it. `rows` and `date` are left to the caller.
Accuracy calibration_accuracy(const Calibration *calibration, const PlanRows *rows,
                              const CalibrationResult *result);
// The free constants before and after, which of them are at a bound, and accuracy_line.
void calibration_print(const Calibration *calibration, const CalibrationResult *result, Text *out);
