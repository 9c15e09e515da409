// Simulates a schedule: the costs of its instructions, and a walk with these costs that gives its time. Plans simulate
// thousands of schedules; for them a replay of the compute order alone gives the same numbers.
#pragma once
#include "layout/schedule.h"

// The layers of a stage whose rows travel to experts on other ranks and back, and the us of one such layer. They are
// parts of the stage's forward_us and backward_us.
typedef struct {
    double
        before_us; // in a forward: attention and router, and what follows the rows' return; in a backward likewise
    double rows_us;     // the experts' products
    double exchange_us; // the rows travel to their experts, and as long back
    // Of a backward: the weight gradients in before_us and in rows_us, for which no other rank waits.
    double before_weight_us, rows_weight_us;
} LayerExchange;

typedef struct {
    int layers;
    LayerExchange forward, backward;
} StageExchange;

// The time that instructions take when they are simulated, or ordered by time.
typedef struct {
    double forward_us, backward_us; // one microbatch through all chunks of one rank
    // [stages], one microbatch through each stage; they replace the two above. NULL: all stages cost the same.
    const double *stage_forward_us, *stage_backward_us;
    // The share of backward_us that BACKWARD_WEIGHT takes; BACKWARD_INPUT takes the rest.
    double weight_fraction;
    double hop_us; // from a SEND to the arrival of its message
    // [stages - 1], a message between stage s and the next, either way. NULL: hop_us. Between two stages on one rank
    // there is no message, and no time is counted.
    const double *edge_hop_us;
    // [stages - 1], for programs that block in their messages, as Megatron-LM did in 2021: how long a message keeps
    // its sender and its receiver from computing. All sends and receives between two computes of a rank are one call,
    // which begins when the first compute ends. NULL: computes go on meanwhile.
    const double *edge_hold_us;
    // [stages], a REDUCE_GRADS: it begins when the program reaches it and the rank's earlier reductions are done, and
    // overlaps the instructions after it. NULL: 0.
    const double *stage_reduce_us;
    const StageExchange *stage_exchanges; // [stages], what pairs can hide. NULL: nothing
} ScheduleCosts;

typedef struct {
    double start_us, end_us;
} Span;

typedef struct {
    double total_us;    // makespan
    double computed_us; // the end of the last compute: total_us without the reductions at the end
    double apart_us;    // the longest time that any rank takes from its first compute to its last one
    double ends_us;     // the sum of the times at which computes end: it grows when any compute is delayed
    double bubble;   // computed_us / (mean busy_us of the ranks) - 1: the paper's bubble over the ideal time
    int *peak_stash; // [num_ranks] the most chunk activations that a rank holds at once
    double *busy_us; // [num_ranks] the time in computes
    double *message_us;   // [num_ranks] the time lost to messages; a rank waits for others in the rest
    double *gradients_us; // [stages] when the last gradient of a stage is ready to be reduced
    // [num_ranks][program count] when each instruction runs; a SEND ends when its message arrives. NULL after
    // schedule_replay.
    Span **spans;
} Simulation;

// Returns costs from measured times of stages. `times` [3 * stages] is borrowed: the us of one microbatch in forwards,
// then in backwards, then the part of those that separate weight halves took.
ScheduleCosts schedule_costs_of_stages(const double *times, int stages);
// Simulates a verified schedule: walks it with costs.
void schedule_simulate(const Schedule *schedule, ScheduleCosts costs, Simulation *out);
// Gives the same numbers without the spans, from the computes alone of a schedule that schedule_order or
// schedule_create has made. No rank ever waits for a buffer.
void schedule_replay(const Schedule *schedule, ScheduleCosts costs, Simulation *out);
// Frees the arrays. The schedule may be NULL after schedule_replay.
void simulation_destroy(Simulation *simulation, const Schedule *schedule);
