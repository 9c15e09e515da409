// Planning: predicts for a model and a machine which grid is fastest, the time of a step, and the memory it needs.
//
// A prediction has four steps:
//   1. work     The trainer's own step runs on the null device and the null network. It tells which operations of
//               which shapes, and which collectives of how many bytes in which groups, each part of the model
//               (embedding, layer, head) executes. So the planner has no description of the model of its own.
//   2. price    The time of each operation and collective on the machine: matrix products by tiles, waves and K,
//               other operations by bytes, collectives by measured curves and by the places of their ranks.
//   3. replay   The pipeline schedule that training would execute is replayed with these times. This gives bubble,
//               waits and overlaps. All data-parallel replicas do the same, so p ranks are enough for 3072 GPUs.
//   4. memory   Parameters, gradients, optimizer state, activations in flight, the ends of the model, the reserve.
// A search lists configurations, refuses those that break a rule or do not fit, bounds the times of the others in
// closed form, and replays the best. The constants come from files (machine.h). Each stack file states the error on
// rows that its constants were not fitted to; that error is the interval of every prediction.
#pragma once
#include "layout/kinds.h"
#include "layout/topology.h"
#include "machine/machine.h"
#include "machine/work_item.h"
#include "train/train.h"

// ---- configurations -----------------------------------------------------------------------------

typedef enum { ATTENTION_FUSED, ATTENTION_UNFUSED } AttentionKind; // unfused: stores the S x S scores

// The pipeline ranks that hold slow nodes.
typedef struct {
    int first, count; // ranks
    int layers;       // of each of their stages; 0: as many as other stages have
} SlowPlace;

// One way to run a model on n = t c d p devices.
typedef struct {
    Grid grid;             // t, c, d, p: its axes tp, cp, dp, pp; with experts ep and etp, too; instances
    int chunks;            // v
    int microbatch, batch; // b; B, samples of a step over all ranks
    const char *schedule;  // name of a ScheduleKind
    int stash_limit;       // of the kind auto: microbatches that a rank holds; 0: as many as 1f1b
    Recompute recompute;   // NOTHING, SELECTIVE or UNIFORM (every layer)
    AttentionKind attention;
    DType dtype;
    FactorFormat factors;   // of the products of linear layers; but for FACTORS_WHOLE the type is BF16
    bool sequence_parallel; // needs t > 1
    int zero_stage;         // 0; 1: distributed optimizer; 2: gradients are cut, too; 3: and parameters
    bool
        reduce_every; // trireme, from zero stage 2 on: sums the gradients of each microbatch, as other programs do
    // Set from the stack, unless a row or the user says otherwise.
    ContextWay context_way; // how the ranks of a sequence compute attention
    bool scatter_gather, overlap_gradients, overlap_tensor;
    // The kind of GPU device on which trireme's own step is recorded and measured; NULL: operations as all programs
    // have them, and memory as on a CPU. Borrowed from the stack.
    const char *device;
    MuonOptions muon; // trireme's Muon steps the hidden matrices; iterations 0: AdamW steps all parameters
    double offload;   // the share of AdamW's state that the hosts keep and step; 0: all is on the devices
    // Layers behind the last one, each with a head of its own, that predict further tokens (multi-token prediction).
    // Measured runs alone have them.
    int further_heads;
    // Each pair of a token and an expert travels by itself, also where the stack sends tokens once: in measured runs.
    bool sends_pairs;
    bool groups_experts; // one kernel multiplies the rows of all experts of a rank; trireme has one for each
    SlowPlace slow;      // where the cost model has slow nodes
} ParallelConfig;

int parallel_config_microbatches(const ParallelConfig *config); // m
int parallel_config_devices(const ParallelConfig *config);
// Returns how many devices the configuration uses in a node of the machine: all of a node's, or all of a smaller run.
int parallel_config_devices_in_node(const Machine *machine, const ParallelConfig *config);
// Returns the kind of device for which trireme's own step is recorded; NULL where the configuration has none, or where
// this machine lacks the module that knows what such a device needs.
const char *parallel_config_device(const ParallelConfig *config);
// Returns the TFLOP/s that a device reaches at most in the products of the layers, dense.
double parallel_config_peak(const Machine *machine, const ParallelConfig *config);
// Returns the kind of its schedule. An unknown name is a bug.
const ScheduleKind *parallel_config_kind(const ParallelConfig *config);
ScheduleSpec parallel_config_schedule(const ParallelConfig *config);
// Returns NULL when the configuration is possible for the model on the machine. Otherwise writes the rule that it
// breaks, and values that would work, to `why` and returns `why`.
const char *parallel_config_refuse(const ModelShape *model, const Machine *machine,
                                   const ParallelConfig *config, char *why, size_t size);

// ---- 1. work ------------------------------------------------------------------------------------

typedef struct {
    WorkItem *items;
    int count, capacity;
} WorkList;

// The parts of a model. A stage is the sum of its parts. Where some layers have experts and others an MLP, PART_LAYER
// is one with experts and PART_DENSE one without; else all are PART_LAYER.
typedef enum { PART_EMBEDDING, PART_LAYER, PART_HEAD, PART_DENSE, NUM_PARTS } ModelPart;
// Returns how many of the layers [first, first + count) are PART_DENSE.
int model_dense_layers(const ModelShape *model, int first, int count);

// The work of one microbatch on one rank, by part. The trainer's head computes its gradients in the forward; here
// everything after LOSS_FINISH counts as backward, as in other programs.
typedef struct {
    WorkList forward[NUM_PARTS];
    WorkList backward[NUM_PARTS]; // input half, weight half and recomputation
    // Parameters of a tp rank, and how many tensors they are. The head's are without a tied table.
    int64_t parameters[NUM_PARTS];
    int64_t expert_parameters; // of `parameters`, those of a layer's experts on this rank
    int tensors[NUM_PARTS];
    double stage_message_bytes; // b s h elements, before any scattering
    // Of a step of Muon on a layer: the products that make its matrices orthogonal, and the gathers over tp before;
    // the matrices' number, and their parameters on a tp rank.
    WorkList muon;
    int matrices;
    int64_t matrix_parameters;
} Work;

// Records the trainer's step of a pipeline with three stages (embedding, one layer, head) on the null device, with t,
// c and its way, ep, etp, b, recomputation, attention, element type, sequence parallelism and device of the
// configuration. The vocabulary is padded to a multiple of VOCABULARY_DIVISOR * t. Every expert gets as many tokens.
// With `groups_experts` the operations of a rank's experts that follow each other are one item, whose batch they are,
// and no more rows travel than there are. With products of factors, those of experts and latents then have factors,
// too, which the trainer's have not: their items are added.
//   ERR_OS without memory; ERR_CONFIG where the model cannot be cut so.
Status work_record(Work *work, const ModelShape *model, const ParallelConfig *config);
void work_free(Work *work);
double work_flops(const WorkList *list); // of all items

// ---- 2. price -----------------------------------------------------------------------------------

// Nodes that are slower than the others: neighbours in the order of the hosts, such as one node, or those of a rack.
typedef struct {
    int nodes;      // 0: all nodes are alike
    double compute; // time of what they compute over that of other nodes, at least 1
    double nic;     // likewise of messages over their NICs
    double uplink;  // likewise of messages between them and other nodes
} SlowNodes;

// Everything that prices depend on. Ranks are placed node by node in rank order: neighbours differ in t, then c, d, p.
typedef struct {
    const Machine *machine;
    Constants constants;
    const Stack *stack;
    SlowNodes slow;
} CostModel;

// Returns whether operations cost what was measured in trireme's steps on this machine (machine/rates.h).
bool cost_model_has_rates(const CostModel *costs);
// Returns how many ranks of a configuration compute on one node at once: on a CPU they share its memory. On GPUs 1.
int cost_model_busy_ranks(const CostModel *costs, const ParallelConfig *config);

// Returns the seconds of one operation, without its launch.
double price_operation(const CostModel *costs, const ParallelConfig *config, const WorkItem *item);
// Returns how many kernels the host launches for an operation.
double operation_launches(const CostModel *costs, const WorkItem *item);
// Returns the seconds of a collective among the ranks of a role, of `bytes` of a rank's whole tensor. Roles whose ranks
// share tensors, sequences or experts have a price, and replicas; another role is a bug, since a price of 0 for it
// would make wrong plans.
double price_collective(const CostModel *costs, const ParallelConfig *config, CommOp op, Role role,
                        double bytes);
// Returns over how many neighbouring devices the members of a group of the role lie.
double price_reach(const ParallelConfig *config, Role role);
// Returns the seconds in which a rank sends `bytes` of tokens to their experts, or back: all pairs of a token and an
// expert, its own included.
double price_dispatch(const CostModel *costs, const ModelShape *model, const ParallelConfig *config,
                      double bytes);
// Returns whether messages from this stage to the next cross nodes.
bool edge_leaves_node(const CostModel *costs, const ParallelConfig *config, int stage);
// Returns the seconds of a message of `bytes` from a stage to the next, within a node or across nodes.
double price_message(const CostModel *costs, const ParallelConfig *config, bool leaves_node, double bytes);
// Returns the seconds in which a device's host steps so many parameters of AdamW: gradients come over the host link and
// new values go back, while the host's share of its memory is read and written. The longer of the two counts.
double price_offload(const CostModel *costs, const ParallelConfig *config, double parameters);
// Returns the exposed seconds in which each of the c ranks of a sequence sends the next one `bytes` of keys and values.
double price_context(const CostModel *costs, const ParallelConfig *config, double bytes);

// ---- 3. replay ----------------------------------------------------------------------------------

// The parts of a step's time, in seconds of the rank that computes longest. All but `recompute` add up to step_s.
typedef struct {
    double compute;   // forwards and backwards, without their collectives
    double recompute; // the part of `compute` that is recomputation
    double tensor;    // exposed collectives over tp
    double experts;   // exposed messages that take tokens to their experts and back
    double stages;    // exposed messages between stages
    double bubble;    // waiting for other stages
    double data;      // exposed reductions and gathers over the replicas
    double optimizer;
    double other; // the host's own time
} Breakdown;

// Bytes of one rank: those before `total` add up to it.
typedef struct {
    double parameters, gradients, optimizer; // without what the zero stage leaves on other ranks
    double activations;                      // of all microbatches in flight
    double ends;    // of embedding and head: dropout masks, logits and their gradient
    double buffers; // messages, gathered inputs, the layer that is recomputed
    double reserve; // driver, libraries, communicators
    double total, capacity;
    int rank;       // pipeline rank
    double margin;  // relative error of the total; a total so near to the capacity may fit or not
    double host;    // optimizer state in a host's memory; of trireme the most of any rank
    double guessed; // of `buffers`: workspace on a device whose module this machine lacks; 0: there is none
} MemoryNeed;

typedef enum { FITS, FITS_PERHAPS, FITS_NOT } Verdict;
Verdict memory_verdict(const MemoryNeed *need);
// Computes the memory of the fullest pipeline rank, in closed form; takes a microsecond or two.   ERR_CONFIG for
// more than 4096 stages.
// Sources: Korthikanti 2022, sections 4 and 5, for activations; Rajbhandari 2020 for the state.
Status memory_need(const CostModel *costs, const ModelShape *model, const ParallelConfig *config,
                   MemoryNeed *need);
// The same. If the stack is trireme, the total is what its arenas will take, to the byte, with one thread per rank:
// it is measured in the trainer's own step on the null device, on every pipeline rank. For other stacks, and for what
// trireme cannot do (zero stages above 1, unequal stages), uses the closed form.   ERR_CONFIG,
// ERR_OS.
Status memory_exact(const CostModel *costs, const ModelShape *model, const ParallelConfig *config,
                    MemoryNeed *need);

// Computes the memory of one pipeline rank, in closed form.   ERR_CONFIG
Status memory_of_rank(const CostModel *costs, const ModelShape *model, const ParallelConfig *config, int rank,
                      MemoryNeed *need);

typedef struct {
    ParallelConfig config;
    double step_s, low_s, high_s; // low to high: the stack's error on rows that it was not fitted to
    bool extrapolates;            // outside of the ranges of those rows
    Breakdown parts;
    double bubble;                      // as a fraction of the ideal time, as replayed
    double model_flops, hardware_flops; // of one step, all ranks; the second includes recomputation
    double tflops, mfu, hfu;            // hardware TFLOP/s of a device; fractions of its peak
    MemoryNeed memory;
    // Bytes of a message between stages; bytes/s across the middle of the machine while such messages are sent (both
    // directions, all replicas), and while gradients are reduced (half of everything sent).
    double edge_bytes, edge_bandwidth, data_bandwidth;
    // With slow nodes config.slow is where they cost least. After predict_slow_nodes: the step on an even fleet, and
    // with them at the worst place.
    double even_s, worst_s;
    SlowPlace worst;
} Prediction;

// A cache of recorded work and of the times of parts, which the configurations of a search have in common. It
// identifies machines and stacks by their addresses: they must not change while the cache is open; constants may.
typedef struct PlanCache PlanCache;
Status plan_cache_open(PlanCache **cache);
void plan_cache_close(PlanCache *cache);

// Predicts a configuration that parallel_config_refuse accepts, with slow nodes where they cost least.
//   ERR_OS, ERR_CONFIG.
Status predict(PlanCache *cache, const CostModel *costs, const ModelShape *model,
               const ParallelConfig *config, Prediction *out);
// Replays the slow nodes at each place, and makes it the prediction at the best one. Adds what the step would be at the
// worst place, and on an even fleet.   ERR_OS, ERR_CONFIG
Status predict_slow_nodes(PlanCache *cache, const CostModel *costs, const ModelShape *model,
                          Prediction *prediction);
// Predicts the configuration with fewer layers on its slow nodes, and more on the others, as many as make the fastest
// step that fits. `is_found`: there is a faster one than `even`, whose configuration has none fewer.
//   ERR_OS, ERR_CONFIG
Status predict_fewer_layers(PlanCache *cache, const CostModel *costs, const ModelShape *model,
                            const Prediction *even, Prediction *out, bool *is_found);
// Computes a lower bound of step_s without a replay, and the memory unless `memory` is NULL. Takes about 10 us.
Status predict_bound(PlanCache *cache, const CostModel *costs, const ModelShape *model,
                     const ParallelConfig *config, double *step_s, MemoryNeed *memory);
// Simulates the whole schedule with the predicted times, for drawing. The caller destroys both.
Status predict_timeline(PlanCache *cache, const CostModel *costs, const ModelShape *model,
                        const ParallelConfig *config, Schedule *schedule, Simulation *simulation);

// ---- 4. search ----------------------------------------------------------------------------------

// The choices that the user has made; the search tries all values of the others. 0, NULL and -1: not chosen.
typedef struct {
    int devices, batch;
    Grid grid; // a size of 0 is not chosen; instances are as given
    int chunks, microbatch;
    int sequence_parallel, zero_stage, fused_attention; // -1: not chosen
    const char *schedule;
    int recompute;   // a Recompute; -1: not chosen
    int context_way; // a ContextWay; -1: that of the stack
    DType dtype;
    FactorFormat factors;
    MuonOptions muon;  // see ParallelConfig
    double offload;    // likewise
    bool reduce_every; // likewise
} SearchSpace;

ContextWay stack_context_way(const Stack *stack, AttentionKind attention); // a ring keeps no S x S matrix
// Returns a configuration of one device with attention, overlaps and messages as the stack does them, unless the
// user has chosen otherwise.
ParallelConfig parallel_config_of_stack(const Stack *stack, const SearchSpace *space);
// The configuration of a run of `trireme train` with these options, which options_resolve has completed.
//   ERR_CONFIG for what is not predicted.
Status parallel_config_of_run(const Options *options, ParallelConfig *out);

typedef enum {
    REJECT_RULE,   // it breaks a rule: a size does not divide, or exceeds another
    REJECT_MEMORY, // it does not fit
    REJECT_BOUND,  // it cannot be faster than those found before
    NUM_REJECTS
} Reject;

// The fastest configuration that differs from the winner in one choice.
typedef struct {
    char choice[48]; // "t = 4"
    Prediction prediction;
} Alternative;

enum { MAX_ALTERNATIVES = 64, MAX_EXAMPLE = 200 };

typedef struct {
    Prediction *best; // in ascending order of step_s
    int count;
    bool perhaps; // nothing fits for sure; those in `best` may fit
    int64_t tried, rejected[NUM_REJECTS], replayed;
    char examples[NUM_REJECTS][MAX_EXAMPLE]; // one of each class, with its numbers
    char nearest[400]; // when nothing fits: the configuration that misses by least, and by how much
    Alternative alternatives[MAX_ALTERNATIVES];
    int num_alternatives;
} PlanResult;

// Finds the `most` fastest configurations that fit. ERR_CONFIG when none keeps the rules and fits; the message says
// what would.
Status plan_search(PlanCache *cache, const CostModel *costs, const ModelShape *model,
                   const SearchSpace *space, int most, PlanResult *out);
void plan_result_free(PlanResult *result);
// Finds the fastest configuration alone, the first of plan_search.   ERR_CONFIG as there
Status plan_search_best(PlanCache *cache, const CostModel *costs, const ModelShape *model,
                        const SearchSpace *space, Prediction *best);
