// What the files of this folder share among themselves; nobody else includes it.
//
// A schedule is made in steps: schedule_shape gives it sizes, the default stage map and empty programs; a
// generator or the
// parser fills in computes; schedule_lower adds the messages; schedule_verify checks the parts and then
// walks the whole.
#pragma once
#include "layout/layout.h"

// Zeroed memory that the caller frees. Out of memory is a CHECK: sizes were compared with the caps before.
void *layout_take(size_t count, size_t size);

// A schedule with empty programs, stage s on chunk s / p of rank s % p. schedule_destroy frees it.
void schedule_shape(Schedule *schedule, int ranks, int chunks, int microbatches);
void program_add(Program *program, Instr instr);
// Replaces compute-only programs by complete ones, every SEND, RECV and REDUCE in its place, and verifies
// them. A receive
// is posted right before its compute, a send right after it.
Status schedule_lower(Schedule *schedule);
// +1 when the instruction takes a slot: RECV_FORWARD, or FORWARD where nothing is received; -1 when it frees
// one.
int schedule_slots_taken(const Schedule *schedule, int rank, Instr in);

// Runs every program to its end with costs, in the model of schedule_verify, or says in one line why that is
// impossible
// (ERR_DATA). Expects computes that are complete and in order. `out` may be NULL.
Status schedule_walk(const Schedule *schedule, ScheduleCosts costs, Simulation *out);
// The same for an evaluation, which runs the forwards alone and frees each slot right after.
Status schedule_walk_forwards(const Schedule *schedule);
