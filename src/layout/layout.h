// A whole run's parallelism as plain integers: who is where (Grid), who holds which slice (Shard), who does
// what when (Schedule). No device and no messages here: everything in this header can be printed, compared
// and proved on a laptop.
//
// A pipeline schedule is a list of small instructions per pipeline rank. Generators emit compute order only;
// one lowering pass places every send and receive; one walk proves the list complete, ordered and unable to
// hang, and with costs instead of ones it is the simulator. The executor, the drawing and the log line of a
// hang read the same list. For plans, which ask for thousands of times, a replay of the compute order alone
// gives the simulator's numbers.
#pragma once
#include "base/error.h"
#include "base/text.h"
#include <stdbool.h>
#include <stdint.h>

// ---- Grid: rank = tp + t * (dp + d * pp) ------------------------------------------------------------

typedef enum { AXIS_TP, AXIS_DP, AXIS_PP, NUM_AXES } Axis;

typedef struct {
    int tp, dp, pp; // sizes
} Grid;

typedef struct {
    int tp, dp, pp; // coordinates of one rank
} Place;

int grid_size(Grid grid);
Place grid_place(Grid grid, int rank);
int grid_rank(Grid grid, Place place);
// The ranks that share all coordinates with `rank` but those on the axes of `axis_mask` (1 << AXIS_TP | ...),
// in rank order. Writes them to `ranks` (room for grid_size) and returns how many. Source: Megatron-LM's rank
// groups.
int grid_group(Grid grid, int rank, unsigned axis_mask, int *ranks);

// ---- Shard: how a tensor is cut over tp ----------------------------------------------------------------

// Dimension `dim` is cut into t equal slices, slice i on tp rank i; dim -1: every rank holds the whole
// tensor. A tensor of several equal `blocks` along dim (0 is one: gate and up of a gated MLP are two) is cut
// block by block: a rank holds its slice of each, one after the other.
typedef struct {
    int dim, blocks;
} Shard;

// How many layers the pipeline ranks hold: `first` and `last` those two, 0 as many as the others, which share
// the rest evenly. Few on the last rank make room for the head and the loss. Every rank's layers are cut
// evenly into its chunks.
typedef struct {
    int layers, first, last;
    const int *counts; // of each stage in the model's order (0 is possible), or NULL: by the rule above
} LayerSplit;

// The layers [first, first + count) of model stage `stage`, for p ranks of v chunks; stage s is chunk s / p
// of rank s % p.
void layer_range(LayerSplit split, int pp_size, int num_chunks, int stage, int *first, int *count);
// Layers per stage such that the most loaded stage has as little as possible, when what the first stage does
// besides its layers costs as much as `embedding` layers and what the last does as `head` layers. Equal loads
// are preferred on earlier stages.   counts [stages]
void layer_balance(int layers, int stages, double embedding, double head, int *counts);
// Reads Megatron-LM's layout text, "Et*3|(tt|)*2,t|L": stages separated by '|', E embedding, t a layer, L
// head and loss, "*n" repeats the letter or the (group) before it, ',' only separates. counts [stages].
// ERR_CONFIG names the place and the rule: as many stages and layers as given, E only at the very start, L
// only at the very end.
Status layer_parse(const char *text, int layers, int stages, int *counts);

// ---- Schedule -----------------------------------------------------------------------------------------

// Caps on what schedule_create and schedule_parse accept; the last is on ranks * chunks * microbatches.
enum {
    SCHEDULE_MAX_RANKS = 4096,
    SCHEDULE_MAX_CHUNKS = 64,
    SCHEDULE_MAX_MICROBATCHES = 1000000,
    SCHEDULE_MAX_FORWARDS = 1 << 24,
    SCHEDULE_MAX_BYTES = 64 << 20 // of text
};

typedef enum { COMPUTE, SEND, RECV, REDUCE } OpKind;

// FORWARDS: activations, to the next stage.   BACKWARDS: gradients, to the one before.
typedef enum { FORWARDS, BACKWARDS } Direction;

//  op, text, kind, direction, change in stashed activations of its chunk
#define SCHEDULE_OPS(X)                                                                                      \
    X(RECV_FORWARD, "rf", RECV, FORWARDS, 0)        /* post the receive of a stage input */                  \
    X(FORWARD, "F", COMPUTE, FORWARDS, +1)          /* run the chunk, stash for backward */                  \
    X(SEND_FORWARD, "sf", SEND, FORWARDS, 0)        /* post the send of the stage output */                  \
    X(RECV_BACKWARD, "rb", RECV, BACKWARDS, 0)      /* post the receive of the output gradient */            \
    X(BACKWARD, "B", COMPUTE, BACKWARDS, -1)        /* input and weight gradients */                         \
    X(BACKWARD_INPUT, "I", COMPUTE, BACKWARDS, 0)   /* input gradient only; keep the stash */                \
    X(BACKWARD_WEIGHT, "W", COMPUTE, BACKWARDS, -1) /* weight gradient; drop the stash */                    \
    X(SEND_BACKWARD, "sb", SEND, BACKWARDS, 0)      /* post the send of the input gradient */                \
    X(REDUCE_GRADS, "R", REDUCE, BACKWARDS, 0)      /* data-parallel reduction of one chunk */

#define X(name, text, kind, direction, stash) OP_##name,
typedef enum { SCHEDULE_OPS(X) NUM_SCHEDULE_OPS } ScheduleOp;
#undef X

typedef struct {
    const char *text;
    OpKind kind;
    Direction direction;
    int stash;
} ScheduleOpInfo;

extern const ScheduleOpInfo schedule_ops[NUM_SCHEDULE_OPS];

typedef struct {
    uint8_t op, chunk;
    int16_t peer;       // pipeline rank at the other end of a SEND or RECV, else -1
    int32_t microbatch; // -1 where it has no meaning
} Instr;

typedef struct {
    Instr *instrs;
    int count, capacity;
} Program;

// Never written after it is made: any number of threads may read it at once.
typedef struct {
    int num_ranks, num_chunks, num_microbatches;
    int *stage;        // [num_ranks * num_chunks]: which stage chunk c of rank r holds, at r * num_chunks + c
    int *home;         // [num_ranks * num_chunks]: the inverse, r * num_chunks + c of each stage
    Program *programs; // one per pipeline rank
    int receive_ahead; // how many computes before their own the lowering has posted receives
    int num_sending;   // buffers of each pool that is sent from (see Hold)
} Schedule;

// What instructions take when they are simulated, or ordered by time.
typedef struct {
    double forward_us, backward_us; // of one microbatch through all chunks of one rank
    // [stages], of one microbatch through each stage; when given they replace the two above. NULL: all stages
    // cost the same.
    const double *stage_forward_us, *stage_backward_us;
    double weight_fraction; // of backward_us that BACKWARD_WEIGHT takes, the rest is BACKWARD_INPUT
    double hop_us;          // from a SEND to its arrival
    // [stages - 1], of a message either way between stage s and the next; NULL: hop_us. Nothing is sent, and
    // nothing counted, where both are on one rank.
    const double *edge_hop_us;
    // [stages - 1], of programs that block in their messages, as Megatron-LM's of 2021 do: how long one keeps
    // its sender and its receiver from computing. What lies between two computes of a rank, sends and
    // receives, is one call that begins when the first of them ends. NULL: computes go on meanwhile.
    const double *edge_hold_us;
    // [stages], of REDUCE_GRADS: it begins when the list comes to it and the rank's reduction before is over,
    // and goes on beside what follows. NULL: 0.
    const double *stage_reduce_us;
} ScheduleCosts;

// What schedule_create makes a schedule from.
typedef struct {
    const char *kind; // name of a row of schedule_kinds
    int ranks, chunks, microbatches;
    int group; // interleaved: how many microbatches a chunk takes before the next one's turn; 0: ranks
    int receive_ahead; // how many computes before its own a RECV is posted: 0 right before it
    // Of the kind "auto" alone: what it orders by, and how many stashes a rank may hold (0: as many as 1f1b).
    ScheduleCosts costs;
    int stash_limit;
} ScheduleSpec;

// Row order is the order in which `--help` and messages list them.
typedef struct {
    const char *name;     // "gpipe", "1f1b", "interleaved"
    const char *summary;  // one line for people
    const char *source;   // author and year
    bool splits_backward; // into BACKWARD_INPUT and BACKWARD_WEIGHT
    bool pools_grow;      // with the microbatches: a smaller batch fits into a larger one's pools
    // NULL when the shape is allowed, else the rule it breaks and values that would work, written into `why`.
    const char *(*refuse)(const ScheduleSpec *spec, char *why, size_t size);
    // Compute order only, of every rank. `schedule` has its sizes, empty programs, and stage s on chunk s / p
    // of rank s % p; a kind with another placement writes its own into schedule->stage.
    void (*generate)(const ScheduleSpec *spec, Schedule *schedule);
    // Over the ideal time, when messages cost nothing, backward takes twice as long as forward and its halves
    // are equal; NAN where there is no formula.
    double (*bubble)(const ScheduleSpec *spec);
} ScheduleKind;

extern const ScheduleKind schedule_kinds[];
extern const int num_schedule_kinds;
const ScheduleKind *schedule_kind(const char *name); // NULL when unknown

// Compute order only, neither messages nor proof: all that schedule_replay needs. ERR_CONFIG with the broken
// rule when the kind refuses the shape.
Status schedule_order(Schedule *schedule, const ScheduleSpec *spec);
// Generates, lowers and verifies. A SEND is posted right after its compute. ERR_CONFIG with the broken rule
// when the kind refuses the shape.
Status schedule_create(Schedule *schedule, const ScheduleSpec *spec);
void schedule_destroy(Schedule *schedule);
int schedule_stage(const Schedule *schedule, int rank, int chunk);
int schedule_home_rank(const Schedule *schedule, int stage); // the pipeline rank that holds it
// The rank at the other end of the SEND or RECV `op` of a chunk; -1 when there is no such message: at the
// ends of the model, and where the neighbouring stage is on the same rank, which hands over locally.
int schedule_partner(const Schedule *schedule, int rank, int chunk, ScheduleOp op);

// What an executor holds of each microbatch of each chunk, from when to when. All but STASH and
// RECOMPUTED are one message large.
//   INPUT            RECV_FORWARD fills it, or FORWARD where nothing is
//                    received (embedding, or a copy of the output that the
//                    stage before left on the same rank).                until BACKWARD or BACKWARD_WEIGHT
//   STASH            FORWARD: what its layers keep.                      until BACKWARD or BACKWARD_WEIGHT
//   RECOMPUTED       BACKWARD_INPUT: what it computed again and the
//                    weight half needs.                                  until BACKWARD_WEIGHT
//   OUTPUT           FORWARD, but on the last stage.                     until SEND_FORWARD is over, or the
//                                                                        next one's FORWARD on the same rank
//   OUTPUT_GRADIENT  RECV_BACKWARD fills it, or the next stage's
//                    backward on the same rank, or FORWARD on the last.  until BACKWARD or BACKWARD_INPUT
//   INPUT_GRADIENT   BACKWARD or BACKWARD_INPUT, where it is sent.       until SEND_BACKWARD is over
// Each kind is a pool: the buffer that has been free longest is taken first, once what was sent from it has
// left.
typedef enum {
    HOLD_INPUT,
    HOLD_STASH,
    HOLD_RECOMPUTED,
    HOLD_OUTPUT,
    HOLD_OUTPUT_GRADIENT,
    HOLD_INPUT_GRADIENT,
    NUM_HOLDS
} Hold;

// Takes a buffer for a microbatch of `chunk`, or gives it back.
typedef struct {
    Hold hold;
    int chunk;
    bool take;
} HoldChange;

typedef struct {
    HoldChange items[8];
    int count;
} HoldChanges;

// The table above as a function: what an instruction takes before it does anything, and gives back
// afterwards, all for its own microbatch. An evaluation (not training) runs the forwards alone and keeps
// nothing of them.
HoldChanges schedule_holds(const Schedule *schedule, int rank, Instr in, bool training);
// The chunk of the same rank that holds the stage before (step -1) or after (+1) that of `chunk`; -1: none
// does.
int schedule_local_chunk(const Schedule *schedule, int rank, int chunk, int step);
// How large the pools of `rank` are: what the program needs at once. The two that are sent from have
// num_sending - 1 buffers more, so many that the walk of schedule_verify delays no compute for the lack of
// one; those that are received into have room for all that may come receive_ahead.
int schedule_pool(const Schedule *schedule, int rank, Hold hold);
// The most microbatches of any chunk that `rank` holds at once: its stash pool.
int schedule_peak_stash(const Schedule *schedule, int rank);
// The instruction as text, "rf3.1" (the chunk only when there are several); at most 16 bytes.
void instr_print(const Schedule *schedule, Instr instr, char text[16]);
// One line per rank: "0: F0 sf0 F1 ... R". schedule_parse reads it back and verifies it: ranks, chunks and
// microbatches are those that occur; '#' starts a comment; a list without any send or receive is lowered
// first (R included). Stage s is chunk s / p of rank s % p unless a line such as "stages: 0.0 1.0 1.1 0.1"
// names the rank.chunk of every stage in turn. ERR_DATA names line and word, or instruction.
void schedule_print(const Schedule *schedule, Text *out);
Status schedule_parse(Schedule *schedule, const char *text);
// Complete (every microbatch of every chunk once forward, then once backward, each chunk reduced after its
// last), in order, every message met, nothing can hang. ERR_DATA with one line otherwise. What is walked is
// the executor over a rendezvous transport, the strictest there is:
//   - a channel is (from, to, direction), first in, first out. SENDs and RECVs are posts; a send is over only
//     once its receive is posted, a compute waits for the receive that it consumes.
//   - a rank has schedule_pool buffers of each kind; an instruction that takes one waits until what was last
//     sent from it has left.
// An evaluation, which runs the forwards alone and keeps nothing of them, is walked too.
Status schedule_verify(const Schedule *schedule);

typedef struct {
    double start_us, end_us;
} Span;

typedef struct {
    double total_us;      // makespan
    double computed_us;   // the same without the reductions that go on at the end
    double ends_us;       // when computes end, all added up: larger when any was delayed
    double bubble;        // computed / (mean busy time of the ranks) - 1: the paper's, over the ideal time
    int *peak_stash;      // [num_ranks] chunk activations held at once
    double *busy_us;      // [num_ranks] computing
    double *message_us;   // [num_ranks] held up by messages; the rest of computed_us a rank waits for others
    double *gradients_us; // [stages] when the last gradient of a stage is there to be reduced
    // [num_ranks][program count]: when each instruction runs; a SEND ends when it arrives. NULL after
    // schedule_replay.
    Span **spans;
} Simulation;

// Costs from what was measured of each stage. `times` [3 * stages], in us of one microbatch, is borrowed:
// forwards, then backwards, then of these the weight halves that ran on their own.
ScheduleCosts schedule_costs_of_stages(const double *times, int stages);
// Walks a verified schedule with costs.
void schedule_simulate(const Schedule *schedule, ScheduleCosts costs, Simulation *out);
// The same numbers, but for the spans, from the computes alone of what schedule_order or schedule_create made:
// as if a rank had as many buffers as it sends messages.
void schedule_replay(const Schedule *schedule, ScheduleCosts costs, Simulation *out);
// The schedule may be NULL where there are no spans.
void simulation_destroy(Simulation *simulation, const Schedule *schedule);
