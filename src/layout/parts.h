// The steps in which a schedule is made. Internal to layout/.
//
// schedule_shape gives it sizes, the usual stage map and empty programs; a generator or the parser adds computes;
// schedule_lower adds the messages; schedule_prove (walk.h) checks the parts, walks the whole and finds how many
// buffers messages need.
#pragma once
#include "layout/schedule.h"

// Returns zeroed memory that the caller frees. Out of memory is a CHECK: sizes were compared with the caps before.
void *layout_alloc(size_t count, size_t size);

// Makes a schedule with empty programs, stage s on chunk s / p of rank s % p. schedule_destroy frees it.
void schedule_shape(Schedule *schedule, int ranks, int chunks, int microbatches);
void program_add(Program *program, Instr instr);
// Adds a compute to the end of a program.
void program_compute(Program *out, ScheduleOp op, int chunk, int microbatch);
// Replaces programs of computes by complete ones, every SEND, RECV and REDUCE in its place. A receive is posted
// `receive_ahead` computes before its own, or at the start of the program; a send right after its compute, or the
// pair that this is in. Receives keep the order of their computes, so that every channel keeps its own.
void schedule_lower(Schedule *schedule, int receive_ahead);
