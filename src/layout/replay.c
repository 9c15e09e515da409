// The times of a schedule from its compute order alone: an input arrives a hop after the compute that makes
// it, so neither messages nor buffers need be followed one by one, which is what the walk spends its time on.
// Ranks take turns, each going as far as the inputs that are known let it, until all are done.
#include "layout/clock.h"
#include "layout/parts.h"
#include <stdlib.h>

static const double NOT_YET = -1;

typedef struct {
    int at, stash; // next instruction; activations held
    Clock clock;
} Player;

// The arrivals of the inputs of stage s are in row s + 1: the first and the last row are for outputs at the ends of the
// model. The model's own inputs are there from the start.
typedef struct {
    const Schedule *schedule;
    StageCosts *costs;
    Player *players;
    int *gradients;        // [stages]: microbatches whose weight gradients are done
    double *arrives_us[2]; // by direction, [stages + 2][microbatches]
    Simulation *out;
} Replay;

static double *arrival(const Replay *replay, Direction direction, int stage, int microbatch) {
    int64_t row = stage + 1;
    return &replay->arrives_us[direction][row * replay->schedule->num_microbatches + microbatch];
}

static void open_arrivals(Replay *replay, Direction direction, int first_stage) {
    const Schedule *s = replay->schedule;
    size_t stages = (size_t)s->num_ranks * (size_t)s->num_chunks,
           cells = (stages + 2) * (size_t)s->num_microbatches;
    replay->arrives_us[direction] = layout_alloc(cells, sizeof(double));
    for (size_t i = 0; i < cells; i++) replay->arrives_us[direction][i] = NOT_YET;
    for (int i = 0; i < s->num_microbatches; i++) *arrival(replay, direction, first_stage, i) = 0;
}

static void replay_open(Replay *replay, const Schedule *schedule, ScheduleCosts costs, Simulation *out) {
    size_t ranks = (size_t)schedule->num_ranks, stages = ranks * (size_t)schedule->num_chunks;
    *replay = (Replay){.schedule = schedule, .costs = stage_costs(schedule, costs), .out = out};
    replay->players = layout_alloc(ranks, sizeof *replay->players);
    replay->gradients = layout_alloc(stages, sizeof *replay->gradients);
    open_arrivals(replay, FORWARDS, 0);
    open_arrivals(replay, BACKWARDS, (int)stages - 1);
}

static void replay_close(Replay *replay) {
    free(replay->arrives_us[BACKWARDS]);
    free(replay->arrives_us[FORWARDS]);
    free(replay->gradients);
    free(replay->players);
    free(replay->costs);
}

// ---- one compute --------------------------------------------------------------------------------------

static void end_gradient(Replay *replay, Player *self, int stage) {
    if (++replay->gradients[stage] < replay->schedule->num_microbatches) return;
    replay->out->gradients_us[stage] = self->clock.now_us;
    clock_reduce(&self->clock, replay->costs[stage].reduce_us);
}

// Runs one compute. Returns false when its input has not arrived yet.
static bool play(Replay *replay, int rank, Instr in) {
    Player *self = &replay->players[rank];
    ScheduleOpInfo info = schedule_ops[in.op];
    int stage = schedule_stage(replay->schedule, rank, in.chunk);
    const StageCosts *costs = &replay->costs[stage];
    bool passes_on = in.op != OP_BACKWARD_WEIGHT;
    double ready_us = passes_on ? *arrival(replay, info.direction, stage, in.microbatch) : 0;
    if (ready_us < 0) return false;
    Edge edge = passes_on ? costs->edges[!info.direction] : (Edge){0};
    clock_compute(&self->clock, ready_us, edge, costs->compute_us[in.op]);
    int next = stage + (info.direction == FORWARDS ? 1 : -1);
    if (passes_on)
        *arrival(replay, info.direction, next, in.microbatch) =
            clock_send(&self->clock, costs->edges[info.direction]);
    self->stash += info.stash;
    if (self->stash > replay->out->peak_stash[rank]) replay->out->peak_stash[rank] = self->stash;
    if (info.stash < 0) end_gradient(replay, self, stage);
    return true;
}

// ---- all of them --------------------------------------------------------------------------------------

// Runs a rank until it waits. Returns whether it has run anything.
static bool play_until_it_waits(Replay *replay, int rank) {
    const Program *program = &replay->schedule->programs[rank];
    int *at = &replay->players[rank].at, before = *at;
    while (*at < program->count) {
        Instr in = program->instrs[*at];
        if (schedule_ops[in.op].kind == COMPUTE && !play(replay, rank, in)) break;
        ++*at;
    }
    return *at > before;
}

// Goes down the ranks for the forwards and up again for the gradients, until nothing can run.
static void play_all(Replay *replay) {
    int last = replay->schedule->num_ranks - 1;
    for (bool further = true; further;) {
        further = false;
        for (int r = 0; r <= last; r++) further |= play_until_it_waits(replay, r);
        for (int r = last; r >= 0; r--) further |= play_until_it_waits(replay, r);
    }
}

void schedule_replay(const Schedule *schedule, ScheduleCosts costs, Simulation *out) {
    Replay replay;
    simulation_open(out, schedule);
    replay_open(&replay, schedule, costs, out);
    play_all(&replay);
    for (int r = 0; r < schedule->num_ranks; r++) {
        const Player *player = &replay.players[r];
        CHECK(player->at == schedule->programs[r].count, "rank %d waits for ever at instr %d", r, player->at);
        simulation_add(out, r, &player->clock);
    }
    simulation_sum_up(out, schedule->num_ranks);
    replay_close(&replay);
}
