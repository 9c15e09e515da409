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
    int num_sending;   // buffers of each pool that is sent from (buffers.h)
} Schedule;

void schedule_destroy(Schedule *schedule);
int schedule_stage(const Schedule *schedule, int rank, int chunk);
int schedule_home_rank(const Schedule *schedule, int stage); // the pipeline rank that holds it
// The topology as `rank` sees it, with the ends of the model where the schedule places them.
Topology schedule_topology(const Schedule *schedule, Grid grid, int rank);
// The rank at the other end of the SEND or RECV `op` of a chunk; -1 when there is no such message: at the
// ends of the model, and where the neighbouring stage is on the same rank, which hands over locally.
int schedule_partner(const Schedule *schedule, int rank, int chunk, ScheduleOp op);

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
