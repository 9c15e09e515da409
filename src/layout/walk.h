// The walk of a schedule, which proves that it cannot hang and, with costs, simulates it. Internal to layout/.
#pragma once
#include "layout/simulate.h"

// Runs every program to its end with costs, in the model of schedule_verify, or says in one line why that is
// impossible (ERR_DATA). The computes must be complete and in order. Not `training`: an evaluation, which runs the
// forwards alone. `out` may be NULL; its total is set, and those of its arrays that are given.
Status schedule_walk(const Schedule *schedule, ScheduleCosts costs, bool training, Simulation *out);
// Does what schedule_verify does, and finds num_sending: the smallest of 1, 2, 4, ... with which the walk ends and,
// with computes of 1 (FORWARD and each half of a backward), is as fast as with any number of buffers.
Status schedule_prove(Schedule *schedule);
