// The clock of a pipeline rank: how computes, messages and reductions advance its time. The walk, which proves whole
// lists of instructions, and the replay, which follows compute orders alone, both use it, so that their numbers agree.
#pragma once
#include "layout/simulate.h"

// The time of a message between two neighbouring stages; 0 where the same rank holds both.
typedef struct {
    double hop_us, hold_us;
} Edge;

typedef struct {
    double compute_us[NUM_SCHEDULE_OPS]; // the operations that compute; 0 for the others
    double reduce_us;
    Edge edges[2]; // by direction: messages to the next stage, and to the stage before
} StageCosts;

typedef struct {
    StageCosts *stages; // in the model's order
    // [ranks][chunks][chunks]: the share of their times apart that a forward of the first chunk takes together with a
    // backward of the second. NULL: nothing is hidden.
    double *together;
} Costs;

Costs costs_open(const Schedule *schedule, ScheduleCosts costs);
void costs_close(Costs *costs);
// Returns the time of a compute; of a pair's, its share of the time that they take together.
double costs_compute_us(const Costs *costs, const Schedule *schedule, int rank, const Program *program,
                        int at);

typedef struct {
    double now_us;     // when the last compute ended
    double held_us;    // until when messages block the rank, if that is later
    double reduced_us; // when its last reduction ends
    bool began;
    double first_us; // when the first compute began
    double busy_us, message_us, ends_us;
} Clock;

// Sends a message. Returns the time at which it arrives.
double clock_send(Clock *clock, Edge edge);
// Runs a compute of `us` that cannot start before `ready_us` and whose input comes over `edge` (all 0: its input is not
// sent). Returns the time at which it starts.
double clock_compute(Clock *clock, double ready_us, Edge edge, double us);
// Starts a reduction after the earlier ones; it overlaps what follows. Returns the time at which it starts.
double clock_reduce(Clock *clock, double us);

// Allocates the arrays for a schedule, without spans.
void simulation_open(Simulation *simulation, const Schedule *schedule);
// Adds the times of a rank that has come to the end of its program. Leaves out arrays that are NULL.
void simulation_add(Simulation *simulation, int rank, const Clock *clock);
// Sets the totals, once all ranks are added.
void simulation_sum_up(Simulation *simulation, int ranks);
