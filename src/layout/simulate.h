// How long a schedule takes: what its instructions cost, and a walk with these costs. For plans, which ask
// thousands of times, a replay of the compute order alone gives the same numbers.
#pragma once
#include "layout/schedule.h"

// What instructions take when they are simulated, or ordered by time.
typedef struct {
    double forward_us, backward_us; // of one microbatch through all chunks of one rank
    // [stages], of one microbatch through each stage; when given they replace the two above. NULL: all stages
    // cost the same.
    const double *stage_forward_us, *stage_backward_us;
    double weight_fraction; // of backward_us that BACKWARD_WEIGHT takes, the rest is BACKWARD_INPUT
    double hop_us;          // from a SEND to its arrival
    // [stages - 1], of a message either way between stage s and the next; NULL: hop_us. Nothing is sent, and
    // nothing counted, where both are on one rank.
    const double *edge_hop_us;
    // [stages - 1], of programs that block in their messages, as Megatron-LM's of 2021 do: how long one keeps
    // its sender and its receiver from computing. What lies between two computes of a rank, sends and
    // receives, is one call that begins when the first of them ends. NULL: computes go on meanwhile.
    const double *edge_hold_us;
    // [stages], of REDUCE_GRADS: it begins when the list comes to it and the rank's reduction before is over,
    // and goes on beside what follows. NULL: 0.
    const double *stage_reduce_us;
} ScheduleCosts;

typedef struct {
    double start_us, end_us;
} Span;

typedef struct {
    double total_us;      // makespan
    double computed_us;   // the same without the reductions that go on at the end
    double ends_us;       // when computes end, all added up: larger when any was delayed
    double bubble;        // computed / (mean busy time of the ranks) - 1: the paper's, over the ideal time
    int *peak_stash;      // [num_ranks] chunk activations held at once
    double *busy_us;      // [num_ranks] computing
    double *message_us;   // [num_ranks] held up by messages; the rest of computed_us a rank waits for others
    double *gradients_us; // [stages] when the last gradient of a stage is there to be reduced
    // [num_ranks][program count]: when each instruction runs; a SEND ends when it arrives. NULL after
    // schedule_replay.
    Span **spans;
} Simulation;

// Costs from what was measured of each stage. `times` [3 * stages], in us of one microbatch, is borrowed:
// forwards, then backwards, then of these the weight halves that ran on their own.
ScheduleCosts schedule_costs_of_stages(const double *times, int stages);
// Walks a verified schedule with costs.
void schedule_simulate(const Schedule *schedule, ScheduleCosts costs, Simulation *out);
// The same numbers, but for the spans, from the computes alone of what schedule_order or schedule_create made:
// as if a rank had as many buffers as it sends messages.
void schedule_replay(const Schedule *schedule, ScheduleCosts costs, Simulation *out);
// The schedule may be NULL where there are no spans.
void simulation_destroy(Simulation *simulation, const Schedule *schedule);
