// The buffers that an executor holds while it runs a schedule.
#pragma once
#include "layout/schedule.h"

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
