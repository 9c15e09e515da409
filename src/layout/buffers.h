// The buffers that an executor needs while it runs a schedule, and when it allocates and frees each of them.
//
// There is a pool of buffers of each kind. An executor holds, for a microbatch of a chunk:
//   kind             from                                                 until
//   INPUT            RECV_FORWARD; FORWARD, where nothing is received     BACKWARD or BACKWARD_WEIGHT
//                    (the embedding, or a copy of the output of the
//                    stage before, on the same rank)
//   STASH            FORWARD: what its layers save for the backward       BACKWARD or BACKWARD_WEIGHT
//   RECOMPUTED       BACKWARD_INPUT: the activations that it computed     BACKWARD_WEIGHT
//                    again and the weight half needs
//   OUTPUT           FORWARD, but on the last stage                       SEND_FORWARD is done, or FORWARD of the
//                                                                         next stage on the same rank
//   OUTPUT_GRADIENT  RECV_BACKWARD; the backward of the next stage on     BACKWARD or BACKWARD_INPUT
//                    the same rank; FORWARD on the last stage
//   INPUT_GRADIENT   BACKWARD or BACKWARD_INPUT, where it is sent         SEND_BACKWARD is done
// All but STASH and RECOMPUTED have the size of a message. The buffer that has been free longest is allocated
// first, once the message that was last sent from it has left.
#pragma once
#include "layout/schedule.h"

//  kind, name in messages
#define BUFFER_KINDS(X)                                                                                      \
    X(INPUT, "stage input")                                                                                  \
    X(STASH, "stash")                                                                                        \
    X(RECOMPUTED, "recomputed activations")                                                                  \
    X(OUTPUT, "stage output")                                                                                \
    X(OUTPUT_GRADIENT, "output gradient")                                                                    \
    X(INPUT_GRADIENT, "input gradient")

#define X(kind, name) BUFFER_##kind,
typedef enum { BUFFER_KINDS(X) NUM_BUFFER_KINDS } BufferKind;
#undef X

extern const char *const buffer_names[NUM_BUFFER_KINDS];

// A buffer for a microbatch of `chunk` is allocated, or freed.
typedef struct {
    BufferKind kind;
    int chunk;
    bool alloc;
} BufferChange;

typedef struct {
    BufferChange items[8];
    int count;
} BufferChanges;

// The table above as a function: the buffers that an instruction allocates before it does anything, and those that it
// frees afterwards, all for its own microbatch. Not `training`: an evaluation, which runs the forwards alone and saves
// nothing for a backward.
BufferChanges schedule_buffer_changes(const Schedule *schedule, int rank, Instr in, bool training);
// Returns the chunk of the same rank that holds the stage before (step -1) or after (+1) that of `chunk`; -1: none
// does.
int schedule_local_chunk(const Schedule *schedule, int rank, int chunk, int step);
// Returns how many buffers of a kind `rank` needs: those that its program holds at once. The two kinds that are sent
// from have num_sending - 1 buffers more, so many that the walk of schedule_verify never delays a compute for want of
// a buffer; those that are received into have room for all receives that are posted ahead.
int schedule_pool(const Schedule *schedule, int rank, BufferKind kind);
// The same for all kinds at once.
void schedule_pools(const Schedule *schedule, int rank, int sizes[NUM_BUFFER_KINDS]);
// Returns the most microbatches of any chunk that `rank` holds at once: the size of its stash pool.
int schedule_peak_stash(const Schedule *schedule, int rank);
