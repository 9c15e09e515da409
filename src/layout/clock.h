// A pipeline rank's own time: what computes, messages and reductions do to it. The walk, which proves whole
// lists of instructions, and the replay, which follows compute orders alone, share this definition, and so
// their numbers.
#pragma once
#include "layout/simulate.h"

// What a message between two neighbouring stages takes; nothing where they are on the same rank.
typedef struct {
    double hop_us, hold_us;
} Edge;

typedef struct {
    double compute_us[NUM_SCHEDULE_OPS]; // of the operations that compute
    double reduce_us;
    Edge edges[2]; // by the direction of what leaves: to the stage after, to the one before
} StageCosts;

// Of every stage in the model's order; the caller frees it.
StageCosts *stage_costs(const Schedule *schedule, ScheduleCosts costs);

typedef struct {
    double now_us;     // when the last compute ended
    double held_us;    // until when messages hold the rank up, if that is later
    double reduced_us; // when its last reduction ends
    double busy_us, message_us, ends_us;
} Clock;

// A message leaves; returns when it arrives.
double clock_send(Clock *clock, Edge edge);
// A compute of `us` that cannot start before `ready_us`, and whose input comes over `edge` (zero: it has none
// that is sent); returns when it starts.
double clock_compute(Clock *clock, double ready_us, Edge edge, double us);
// A reduction that goes on beside what follows, after those before it; returns when it starts.
double clock_reduce(Clock *clock, double us);

// Arrays for the schedule, without spans.
void simulation_open(Simulation *simulation, const Schedule *schedule);
// Adds a rank at the end of its program; arrays that are NULL are left out.
void simulation_add(Simulation *simulation, int rank, const Clock *clock);
// Once all ranks are added.
void simulation_sum_up(Simulation *simulation, int ranks);
