// A pipeline schedule says who does what when: a list of small instructions per pipeline rank. It is plain
// integers, without a device and without messages, so that it can be printed, compared and proved on a laptop.
//
// Generators (kinds.h) emit compute order only; one lowering pass places every send and receive; one walk proves
// the list complete, ordered and unable to hang, and with costs instead of ones it is the simulator (simulate.h).
// The executor, the drawing and the log line of a hang read the same list. buffers.h says what an executor holds
// while it runs one.
#pragma once
#include "base/error.h"
#include "base/text.h"
#include "layout/topology.h"
#include <stdbool.h>
#include <stdint.h>

// Limits of schedule_create and schedule_parse. SCHEDULE_MAX_FORWARDS limits ranks * chunks * microbatches.
enum {
    SCHEDULE_MAX_RANKS = 4096,
    SCHEDULE_MAX_CHUNKS = 64,
    SCHEDULE_MAX_MICROBATCHES = 1000000,
    SCHEDULE_MAX_FORWARDS = 1 << 24,
    SCHEDULE_MAX_BYTES = 64 << 20 // of a schedule as text
};

typedef enum { COMPUTE, SEND, RECV, REDUCE } OpKind;

// FORWARDS: activations go to the next stage.   BACKWARDS: gradients go to the stage before.
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
    // A FORWARD that runs together with the BACKWARD right after it, which is of another microbatch or chunk: what one
    // of them sends to experts on other ranks travels while the other computes. Both inputs are there before either
    // begins, and what they send is sent after both.
    bool pairs;
} Instr;

typedef struct {
    Instr *instrs;
    int count, capacity;
} Program;

// A schedule is not changed after it has been made, so any number of threads may read it at once.
typedef struct {
    int num_ranks, num_chunks, num_microbatches;
    int *stage; // [num_ranks * num_chunks]: the stage that chunk c of rank r holds, at r * num_chunks + c
    int *stage_place;  // [num_ranks * num_chunks]: the inverse: r * num_chunks + c for each stage
    Program *programs; // one per pipeline rank
    int receive_ahead; // how many computes before its own compute a receive is posted
    int num_sending;   // how many buffers of a kind may have messages under way, or be in use (buffers.h)
} Schedule;

void schedule_destroy(Schedule *schedule);
int schedule_stage(const Schedule *schedule, int rank, int chunk);
int schedule_stage_rank(const Schedule *schedule, int stage); // the pipeline rank that holds it
// Returns the topology as `rank` sees it, with the ends of the model where the schedule places them.
Topology schedule_topology(const Schedule *schedule, Grid grid, int rank);
// Returns the rank at the other end of the SEND or RECV `op` of a chunk; -1 when there is no such message: at the ends
// of the model, and where the same rank holds the neighbouring stage and copies locally.
int schedule_partner(const Schedule *schedule, int rank, int chunk, ScheduleOp op);

// Writes the instruction as text, such as "rf3.1": the chunk only when there are several, and "F3+" where it
// runs together with the next. At most 16 bytes.
void instr_print(const Schedule *schedule, Instr instr, char text[16]);
// Writes one line per rank: "0: F0 sf0 F1 ... R". schedule_parse reads such lines and verifies the schedule. Its
// ranks, chunks and microbatches are those that occur; '#' starts a comment; a list without any send or receive is
// lowered first, which adds R too. Stage s is chunk s / p of rank s % p unless a line such as
// "stages: 0.0 1.0 1.1 0.1" gives the rank.chunk of every stage in turn. ERR_DATA names the line and the word, or the
// instruction.
void schedule_print(const Schedule *schedule, Text *out);
Status schedule_parse(Schedule *schedule, const char *text);
// Proves that the schedule is complete (every microbatch goes through every chunk once forward, then once backward,
// and every chunk is reduced after its last gradient), in order, that every message has a sender and a receiver, and
// that it cannot hang. ERR_DATA with one line otherwise. The walk is a model of the executor over a rendezvous
// transport, the strictest kind of transport:
//   - A channel is (from, to, direction), first in, first out. SENDs and RECVs are posts. A send completes only once
//     its receive is posted; a compute waits for the receive of its input.
//   - A rank has schedule_pool buffers of each kind. An instruction that allocates a buffer waits until the message
//     that was last sent from it has left.
//   - The two computes of a pair are one after the other in the list, with nothing of the list between them: whether a
//     rank waits before the first or before the second, no other rank can tell. What computes post themselves to the
//     ranks of their stage, and the turns of a pair, have a walk of their own (rounds.h).
// It also walks an evaluation, which runs the forwards alone and frees their buffers at once.
Status schedule_verify(const Schedule *schedule);
