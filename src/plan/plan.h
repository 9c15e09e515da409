// Planning: which grid, how fast, how much memory, how long, before anything is rented.
//
// A prediction is made in four steps:
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
#include "layout/kinds.h"
#include "layout/topology.h"
#include "machine/machine.h"
#include "machine/work_item.h"
#include "train/train.h"

// ---- what is asked ------------------------------------------------------------------------------

typedef enum { ATTENTION_FUSED, ATTENTION_UNFUSED } AttentionKind; // unfused: the S x S scores are in memory

// One way to run a model on n = t p d c devices.
typedef struct {
    Grid grid;             // t, c, d, p: its axes tp, cp, dp, pp; the others are 1
    int chunks;            // v
    int microbatch, batch; // b; B, samples of a step over all ranks
    const char *schedule;  // name of a ScheduleKind
    Recompute recompute;   // NOTHING, SELECTIVE or UNIFORM (every layer)
    AttentionKind attention;
    DType dtype;
    bool sequence_parallel; // needs t > 1
    int zero_stage;         // 0; 1: the distributed optimizer; 2, 3: gradients, parameters are cut too
    // What the stack does, unless a row or a user says otherwise.
    bool scatter_gather, overlap_gradients, overlap_tensor;
} ParallelConfig;

int parallel_config_microbatches(const ParallelConfig *config); // m
int parallel_config_devices(const ParallelConfig *config);
// The kind of its schedule. CHECK when there is none of that name.
const ScheduleKind *parallel_config_kind(const ParallelConfig *config);
ScheduleSpec parallel_config_schedule(const ParallelConfig *config);
// NULL when the candidate is possible for the model on the machine, else the rule it breaks with values that
// would work, in `why`.
const char *parallel_config_refuse(const ModelShape *model, const Machine *machine,
                                   const ParallelConfig *config, char *why, size_t size);

// ---- 1. work ------------------------------------------------------------------------------------

typedef struct {
    WorkItem *items;
    int count, capacity;
} WorkList;

// Parts of a model: what a stage does is the sum of its parts.
typedef enum { PART_EMBEDDING, PART_LAYER, PART_HEAD, NUM_PARTS } ModelPart;

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

// Runs the trainer's step of a pipeline of three stages, embedding, one layer and head, on the null device
// and records it: of the candidate t, b, recomputation, attention, element type and sequence parallelism.
// The vocabulary is padded to a multiple of VOCABULARY_DIVISOR * t.   ERR_OS, ERR_CONFIG where the model cannot be cut so.
Status work_record(Work *work, const ModelShape *model, const ParallelConfig *config);
void work_free(Work *work);
double work_flops(const WorkList *list); // of all of it

// ---- 2. price -----------------------------------------------------------------------------------

// Where the ranks of a run are: t fastest, then c, d, p, node by node.
typedef struct {
    const Machine *machine;
    Constants constants;
    const Stack *stack;
} CostModel;

// Ranks of a candidate that work at once on one node: on a CPU they share its memory.
int cost_model_busy_ranks(const CostModel *costs, const ParallelConfig *config);

// Seconds of one operation of a candidate, alone.
double price_operation(const CostModel *costs, const ParallelConfig *config, const WorkItem *item);
// How many operations the host launches for it.
double operation_launches(const CostModel *costs, const WorkItem *item);
// Seconds of a collective of `bytes` among the ranks of a role. Only ROLE_TENSOR and ROLE_REPLICAS have a price;
// another role is a bug: a price of 0 for it would make wrong plans.
double price_collective(const CostModel *costs, const ParallelConfig *config, CommOp op, Role role,
                        double bytes);
// Seconds of a message of `bytes` between a stage and the next.
double price_message(const CostModel *costs, const ParallelConfig *config, int stage, double bytes);
// Whether the last rank of a stage and the first of the next are on different nodes.
bool edge_leaves_node(const CostModel *costs, const ParallelConfig *config, int stage);
// Seconds in which `bytes` of keys and values go around the c ranks of a sequence, as far as nothing hides
// it.
double price_context(const CostModel *costs, const ParallelConfig *config, double bytes);

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
Status memory_need(const CostModel *costs, const ModelShape *model, const ParallelConfig *config,
                   MemoryNeed *need);
// The same, but where the stack is trireme what its arenas will take, to the byte, with one thread a rank: its
// own step is run on the null device for every pipeline rank. For other stacks, and for what trireme does not do
// (context parallelism, zero stages above 1, unequal stages), the closed form.   ERR_CONFIG, ERR_OS.
Status memory_exact(const CostModel *costs, const ModelShape *model, const ParallelConfig *config,
                    MemoryNeed *need);

// What one pipeline rank needs, in closed form.
Status memory_of_rank(const CostModel *costs, const ModelShape *model, const ParallelConfig *config, int rank,
                      MemoryNeed *need);

typedef struct {
    ParallelConfig config;
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
Status predict(PlanCache *cache, const CostModel *costs, const ModelShape *model,
               const ParallelConfig *config, Prediction *out);
// A lower bound of its step_s, without replay; and its memory, unless that is NULL. 10^5 a second.
Status predict_bound(PlanCache *cache, const CostModel *costs, const ModelShape *model,
                     const ParallelConfig *config, double *step_s, MemoryNeed *memory);
// The schedule as it would run, for drawing. The caller destroys both.
Status predict_timeline(PlanCache *cache, const CostModel *costs, const ModelShape *model,
                        const ParallelConfig *config, Schedule *schedule, Simulation *simulation);

// ---- 4. search ----------------------------------------------------------------------------------

// What the user has decided. Zero, NULL or -1 is open.
typedef struct {
    int devices, batch;
    Grid grid; // 0: the size is open
    int chunks, microbatch;
    int sequence_parallel, zero_stage, fused_attention; // -1: open
    const char *schedule;
    int recompute; // a Recompute; -1: open
    DType dtype;
} SearchSpace;

// What the stack does where a question leaves it open: attention, overlaps, messages in shares.
ParallelConfig parallel_config_of_stack(const Stack *stack, const SearchSpace *space);

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

enum { MAX_ALTERNATIVES = 64 };

typedef struct {
    Prediction *best; // in rising order of step_s
    int count;
    bool perhaps; // nothing fits for sure: these are within the margin of the memory
    int64_t tried, rejected[NUM_REJECTS], replayed;
    char examples[NUM_REJECTS][200]; // one of each class, with its numbers
    char nearest[400]; // when nothing fits: what misses by least, by how much, and what would make it fit
    Alternative alternatives[MAX_ALTERNATIVES];
    int num_alternatives;
} PlanResult;

// ERR_CONFIG, with what would work, when no candidate keeps the rules or fits.
Status plan_search(PlanCache *cache, const CostModel *costs, const ModelShape *model,
                   const SearchSpace *space, int most, PlanResult *out);
void plan_result_free(PlanResult *result);
