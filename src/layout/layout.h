// A whole run's parallelism as plain integers: who is where (Grid), who holds which slice (Shard), who does
// what when (Schedule). No device and no messages here: everything in this header can be printed, compared
// and proved on a laptop.
//
// A pipeline schedule is a list of small instructions per pipeline rank. Generators emit compute order only;
// one lowering pass places every send and receive; one walk proves the list complete, ordered and unable to
// hang, and with costs instead of ones it is the simulator. The executor, the drawing and the log line of a
// hang read the same list.
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
// The ranks that hold the two ends of the model: first and last stage of rank's pipeline (one rank when pp is
// 1).
int grid_embedding_group(Grid grid, int rank, int ranks[2]);

// ---- Shard: how a tensor is cut over tp ----------------------------------------------------------------

// Dimension `dim` is cut into t equal slices, slice i on tp rank i; dim -1: every rank holds the whole
// tensor.
typedef struct {
    int dim;
} Shard;

// How many layers the pipeline ranks hold: `first` and `last` those two, 0 as many as the others, which share
// the rest evenly. Few on the last rank make room for the head and the loss. Every rank's layers are cut
// evenly into its chunks.
typedef struct {
    int layers, first, last;
} LayerSplit;

// The layers [first, first + count) of model stage `stage`, for p ranks of v chunks; stage s is chunk s / p
// of rank s % p.
void layer_range(LayerSplit split, int pp_size, int num_chunks, int stage, int *first, int *count);

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
} Schedule;

// Row order is the order in which `--help` and messages list them.
typedef struct {
    const char *name;    // "gpipe", "1f1b", "interleaved"
    const char *summary; // one line for people
    const char *source;  // author and year
    // NULL when the shape is allowed, else the rule it breaks and values that would work, written into `why`.
    const char *(*refuse)(int ranks, int chunks, int microbatches, char *why, size_t size);
    void (*generate)(const Schedule *shape, int rank, Program *out); // compute order only
    // Over the ideal time, when messages cost nothing.
    double (*bubble)(int ranks, int chunks, int microbatches);
} ScheduleKind;

extern const ScheduleKind schedule_kinds[];
extern const int num_schedule_kinds;
const ScheduleKind *schedule_kind(const char *name); // NULL when unknown

// Generates, lowers and verifies. A RECV is posted right before its compute, a SEND right after it.
// ERR_CONFIG with the broken rule when the kind refuses the shape.
Status schedule_create(Schedule *schedule, const char *kind, int ranks, int chunks, int microbatches);
void schedule_destroy(Schedule *schedule);
int schedule_stage(const Schedule *schedule, int rank, int chunk);
// The rank at the other end of the SEND or RECV `op` of a chunk; -1 when there is no such message: at the
// ends of the model, and where the neighbouring stage is on the same rank, which hands over locally.
int schedule_partner(const Schedule *schedule, int rank, int chunk, ScheduleOp op);
// The most microbatches of any chunk that `rank` holds at once: how many stash slots its executor needs.
int schedule_peak_stash(const Schedule *schedule, int rank);
// How many input gradients may be on their way from `rank` at once: the buffers its backwards write into, in
// turn. As many as there are ranks, so that no backward waits for one that leaves where nobody takes it yet,
// a pipeline's length away.
int schedule_gradient_buffers(const Schedule *schedule, int rank);
bool schedule_makes_message(const Schedule *schedule, int rank,
                            Instr in); // a backward that needs such a buffer
// The instruction as text, "rf3.1" (the chunk only when there are several); at most 16 bytes.
void instr_print(const Schedule *schedule, Instr instr, char text[16]);
// One line per rank: "0: F0 sf0 F1 ... R". schedule_parse reads it back and verifies it: ranks, chunks and
// microbatches are those that occur; '#' starts a comment; a list without any send or receive is lowered
// first (R included). Stage s is chunk s / p of rank s % p unless a line such as "stages: 0.0 1.0 1.1 0.1"
// names the rank.chunk of every stage in turn. ERR_DATA names line and word, or instruction.
void schedule_print(const Schedule *schedule, Text *out);
Status schedule_parse(Schedule *schedule, const char *text);
// Complete (every microbatch of every chunk once forward, then once backward, each chunk reduced after its
// last), in order, every message met, nothing can hang, every slot free at the end. ERR_DATA with one line
// otherwise. What is walked is the executor over a rendezvous transport, the strictest there is:
//   - a channel is (from, to, direction), first in, first out. SENDs and RECVs are posts; a send is over only
//     once its receive is posted, a compute waits for the receive that it consumes.
//   - a rank has schedule_peak_stash slots. Inputs and output gradients arrive in the slot itself, outputs
//     leave from it. RECV_FORWARD, or FORWARD where nothing is received, takes the slot that has been free
//     longest, once the output sent from it has left, for which RECV_BACKWARD waits too; BACKWARD or
//     BACKWARD_WEIGHT frees the slot.
//   - input gradients leave from buffers of their own, schedule_gradient_buffers of them, taken in turn.
// An evaluation, which runs the forwards alone and frees each slot right after, is walked too.
Status schedule_verify(const Schedule *schedule);

typedef struct {
    double forward_us, backward_us; // of one microbatch through all chunks of one rank
    // [stages], of one microbatch through each stage; when given they replace the two above. NULL: all stages
    // cost the same.
    const double *stage_forward_us, *stage_backward_us;
    double weight_fraction; // of backward_us that BACKWARD_WEIGHT takes, the rest is BACKWARD_INPUT
    double hop_us;          // from the end of a SEND's compute to its arrival
} ScheduleCosts;

typedef struct {
    double start_us, end_us;
} Span;

typedef struct {
    double total_us; // makespan
    double bubble;   // total / (mean busy time of the ranks) - 1: the paper's bubble over the ideal time
    int *peak_stash; // [num_ranks] chunk activations held at once
    double *busy_us; // [num_ranks]
    Span **spans;    // [num_ranks][program count]: when each instruction runs; a SEND ends when it arrives
} Simulation;

// Walks a verified schedule with costs.
void schedule_simulate(const Schedule *schedule, ScheduleCosts costs, Simulation *out);
void simulation_destroy(Simulation *simulation, const Schedule *schedule);
