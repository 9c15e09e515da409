// What the files of this folder share among themselves; nobody else includes it.
//
// A schedule is made in steps: schedule_shape gives it sizes, the default stage map and empty programs; a
// generator or the parser fills in computes; schedule_lower adds the messages; schedule_prove checks the
// parts, walks the whole and says how many buffers messages need.
#pragma once
#include "layout/buffers.h"
#include "layout/simulate.h"

// Zeroed memory that the caller frees. Out of memory is a CHECK: sizes were compared with the caps before.
void *layout_take(size_t count, size_t size);

// A schedule with empty programs, stage s on chunk s / p of rank s % p. schedule_destroy frees it.
void schedule_shape(Schedule *schedule, int ranks, int chunks, int microbatches);
void program_add(Program *program, Instr instr);
// Replaces compute-only programs by complete ones, every SEND, RECV and REDUCE in its place. A receive is
// posted `receive_ahead` computes before its own, or at the program's start; a send right after its compute.
// Receives keep the order of their computes, so that every channel keeps its own.
void schedule_lower(Schedule *schedule, int receive_ahead);
// schedule_verify of a schedule whose num_sending is yet to be found: the smallest of 1, 2, 4, ... with which
// the walk ends and, with computes of 1 (FORWARD and each half of a backward), delays none of them
// against any number.
Status schedule_prove(Schedule *schedule);
// schedule_pool of all kinds.
void schedule_pools(const Schedule *schedule, int rank, int sizes[NUM_HOLDS]);

// Runs every program to its end with costs, in the model of schedule_verify, or says in one line why that is
// impossible (ERR_DATA). Expects computes that are complete and in order. Not `training`: an evaluation,
// which runs the forwards alone. `out` may be NULL; its total is set, its arrays where they are given.
Status schedule_walk(const Schedule *schedule, ScheduleCosts costs, bool training, Simulation *out);
