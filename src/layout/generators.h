// The generators behind the rows of schedule_kinds, one declaration per kind that has a file of its own.
#pragma once
#include "layout/kinds.h"
#include "layout/parts.h"

// Adds a compute to the end of a program.
void program_compute(Program *out, ScheduleOp op, int chunk, int microbatch);

// Split backwards over one chunk per rank: as much memory as 1f1b, or twice as much.
void generate_zb_h1(const ScheduleSpec *spec, Schedule *schedule);
void generate_zb_h2(const ScheduleSpec *spec, Schedule *schedule);
// Split backwards over two chunks per rank, the model laid as a V: down the ranks and up again.
void generate_zb_v(const ScheduleSpec *spec, Schedule *schedule);
// The shortest order of one chunk per rank known for spec->costs and spec->stash_limit.
const char *refuse_auto(const ScheduleSpec *spec, char *why, size_t size);
void generate_auto(const ScheduleSpec *spec, Schedule *schedule);
