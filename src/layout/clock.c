// Keeps the time of one pipeline rank: computes, messages and reductions.
#include "layout/clock.h"
#include "layout/pairs.h"
#include "layout/parts.h"
#include <stdlib.h>

static double later(double a_us, double b_us) { return a_us > b_us ? a_us : b_us; }

// ---- costs --------------------------------------------------------------------------------------------

static Edge edge_of(const Schedule *schedule, const ScheduleCosts *costs, int edge) {
    bool inside = edge >= 0 && edge < schedule->num_ranks * schedule->num_chunks - 1;
    if (!inside || schedule_stage_rank(schedule, edge) == schedule_stage_rank(schedule, edge + 1))
        return (Edge){0};
    return (Edge){costs->edge_hop_us ? costs->edge_hop_us[edge] : costs->hop_us,
                  costs->edge_hold_us ? costs->edge_hold_us[edge] : 0};
}

static StageCosts costs_of_stage(const Schedule *schedule, const ScheduleCosts *costs, int stage) {
    int chunks = schedule->num_chunks;
    double forward = costs->stage_forward_us ? costs->stage_forward_us[stage] : costs->forward_us / chunks;
    double backward = costs->stage_forward_us ? costs->stage_backward_us[stage] : costs->backward_us / chunks;
    return (StageCosts){
        .compute_us = {[OP_FORWARD] = forward,
                       [OP_BACKWARD] = backward,
                       [OP_BACKWARD_INPUT] = backward * (1 - costs->weight_fraction),
                       [OP_BACKWARD_WEIGHT] = backward * costs->weight_fraction},
        .reduce_us = costs->stage_reduce_us ? costs->stage_reduce_us[stage] : 0,
        .edges = {
            [FORWARDS] = edge_of(schedule, costs, stage), [BACKWARDS] = edge_of(schedule, costs, stage - 1)}};
}

static double *shares_of_pairs(const Schedule *s, const ScheduleCosts *costs, const StageCosts *stages) {
    int v = s->num_chunks;
    if (!costs->stage_exchanges) return NULL;
    double *together = layout_alloc((size_t)s->num_ranks * (size_t)v * (size_t)v, sizeof *together);
    for (int i = 0; i < s->num_ranks * v * v; i++) {
        int rank = i / (v * v), forward = schedule_stage(s, rank, i / v % v),
            backward = schedule_stage(s, rank, i % v);
        double forward_us = stages[forward].compute_us[OP_FORWARD],
               backward_us = stages[backward].compute_us[OP_BACKWARD], apart_us = forward_us + backward_us;
        together[i] = 1;
        if (apart_us > 0)
            together[i] = pair_us(&costs->stage_exchanges[forward], forward_us,
                                  &costs->stage_exchanges[backward], backward_us) /
                          apart_us;
    }
    return together;
}

Costs costs_open(const Schedule *schedule, ScheduleCosts costs) {
    int stages = schedule->num_ranks * schedule->num_chunks;
    Costs out = {.stages = layout_alloc((size_t)stages, sizeof *out.stages)};
    for (int stage = 0; stage < stages; stage++) out.stages[stage] = costs_of_stage(schedule, &costs, stage);
    out.together = shares_of_pairs(schedule, &costs, out.stages);
    return out;
}

void costs_close(Costs *costs) {
    free(costs->together);
    free(costs->stages);
}

double costs_compute_us(const Costs *costs, const Schedule *schedule, int rank, const Program *program,
                        int at) {
    Instr in = program->instrs[at];
    int v = schedule->num_chunks, first = at;
    double us = costs->stages[schedule_stage(schedule, rank, in.chunk)].compute_us[in.op];
    if (!costs->together) return us;
    if (in.op == OP_BACKWARD) first--;
    if (first < 0 || !program->instrs[first].pairs) return us;
    const Instr *pair = &program->instrs[first];
    return us * costs->together[(rank * v + pair[0].chunk) * v + pair[1].chunk];
}

ScheduleCosts schedule_costs_of_stages(const double *times, int stages) {
    double backward = 0, weight = 0;
    for (int s = 0; s < stages; s++) backward += times[stages + s], weight += times[2 * stages + s];
    return (ScheduleCosts){.stage_forward_us = times,
                           .stage_backward_us = times + stages,
                           .weight_fraction = backward > 0 ? weight / backward : 0};
}

// ---- clocks -------------------------------------------------------------------------------------------

double clock_send(Clock *clock, Edge edge) {
    clock->held_us = later(clock->held_us, clock->now_us + edge.hold_us);
    return clock->now_us + edge.hop_us;
}

double clock_compute(Clock *clock, double ready_us, Edge edge, double us) {
    double free_us = later(clock->held_us, clock->now_us + edge.hold_us);
    double start_us = later(ready_us, free_us);
    clock->message_us += free_us - clock->now_us;
    if (!clock->began) clock->began = true, clock->first_us = start_us;
    clock->now_us = clock->held_us = start_us + us;
    clock->busy_us += us;
    clock->ends_us += clock->now_us;
    return start_us;
}

double clock_reduce(Clock *clock, double us) {
    double start_us = later(clock->reduced_us, clock->now_us);
    clock->reduced_us = start_us + us;
    return start_us;
}

// ---- results ------------------------------------------------------------------------------------------

void simulation_open(Simulation *simulation, const Schedule *schedule) {
    size_t ranks = (size_t)schedule->num_ranks, stages = ranks * (size_t)schedule->num_chunks;
    *simulation = (Simulation){.peak_stash = layout_alloc(ranks, sizeof *simulation->peak_stash),
                               .busy_us = layout_alloc(ranks, sizeof *simulation->busy_us),
                               .message_us = layout_alloc(ranks, sizeof *simulation->message_us),
                               .gradients_us = layout_alloc(stages, sizeof *simulation->gradients_us)};
}

void simulation_add(Simulation *simulation, int rank, const Clock *clock) {
    double free_us = later(clock->now_us, clock->held_us);
    if (simulation->busy_us) simulation->busy_us[rank] = clock->busy_us;
    if (simulation->message_us) simulation->message_us[rank] = clock->message_us + free_us - clock->now_us;
    simulation->ends_us += clock->ends_us;
    simulation->computed_us = later(simulation->computed_us, free_us);
    simulation->apart_us = later(simulation->apart_us, free_us - clock->first_us);
    simulation->total_us = later(simulation->total_us, later(free_us, clock->reduced_us));
}

void simulation_sum_up(Simulation *simulation, int ranks) {
    double busy_us = 0;
    for (int r = 0; r < ranks; r++) busy_us += simulation->busy_us[r];
    simulation->bubble = busy_us > 0 ? simulation->computed_us * ranks / busy_us - 1 : 0;
}

void simulation_destroy(Simulation *simulation, const Schedule *schedule) {
    for (int r = 0; simulation->spans && r < schedule->num_ranks; r++) free(simulation->spans[r]);
    free(simulation->spans);
    free(simulation->gradients_us);
    free(simulation->message_us);
    free(simulation->busy_us);
    free(simulation->peak_stash);
    *simulation = (Simulation){0};
}
