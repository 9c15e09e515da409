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
    Costs costs;
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
    *replay = (Replay){.schedule = schedule, .costs = costs_open(schedule, costs), .out = out};
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
    costs_close(&replay->costs);
}

// ---- one compute --------------------------------------------------------------------------------------

static void end_gradient(Replay *replay, Player *self, int stage) {
    if (++replay->gradients[stage] < replay->schedule->num_microbatches) return;
    replay->out->gradients_us[stage] = self->clock.now_us;
    clock_reduce(&self->clock, replay->costs.stages[stage].reduce_us);
}

static bool passes_on(Instr in) { return in.op != OP_BACKWARD_WEIGHT; }

// When the input of a compute arrives; below 0: it is not known yet.
static double ready(const Replay *replay, int rank, Instr in) {
    int stage = schedule_stage(replay->schedule, rank, in.chunk);
    return passes_on(in) ? *arrival(replay, schedule_ops[in.op].direction, stage, in.microbatch) : 0;
}

static void compute(Replay *replay, int rank, int at, double ready_us) {
    const Program *program = &replay->schedule->programs[rank];
    Instr in = program->instrs[at];
    const StageCosts *costs = &replay->costs.stages[schedule_stage(replay->schedule, rank, in.chunk)];
    Edge edge = passes_on(in) ? costs->edges[!schedule_ops[in.op].direction] : (Edge){0};
    double us = costs_compute_us(&replay->costs, replay->schedule, rank, program, at);
    clock_compute(&replay->players[rank].clock, ready_us, edge, us);
}

static void send(Replay *replay, int rank, Instr in) {
    Direction direction = schedule_ops[in.op].direction;
    int stage = schedule_stage(replay->schedule, rank, in.chunk);
    if (passes_on(in))
        *arrival(replay, direction, stage + (direction == FORWARDS ? 1 : -1), in.microbatch) =
            clock_send(&replay->players[rank].clock, replay->costs.stages[stage].edges[direction]);
}

static void end(Replay *replay, int rank, Instr in) {
    Player *self = &replay->players[rank];
    self->stash += schedule_ops[in.op].stash;
    if (self->stash > replay->out->peak_stash[rank]) replay->out->peak_stash[rank] = self->stash;
    if (schedule_ops[in.op].stash < 0)
        end_gradient(replay, self, schedule_stage(replay->schedule, rank, in.chunk));
}

// Runs the compute at this index, and the one that runs together with it. Returns how many instructions these are; 0:
// an input has not arrived yet.
static int play(Replay *replay, int rank, int at) {
    const Program *program = &replay->schedule->programs[rank];
    int count = 1 + program->instrs[at].pairs;
    double ready_us = 0;
    for (int i = at; i < at + count; i++) {
        double own_us = ready(replay, rank, program->instrs[i]);
        if (own_us < 0) return 0;
        if (own_us > ready_us) ready_us = own_us;
    }
    for (int i = at; i < at + count; i++) compute(replay, rank, i, ready_us);
    for (int i = at; i < at + count; i++) send(replay, rank, program->instrs[i]);
    for (int i = at; i < at + count; i++) end(replay, rank, program->instrs[i]);
    return count;
}

// ---- all of them --------------------------------------------------------------------------------------

// Runs a rank until it waits. Returns whether it has run anything.
static bool play_until_it_waits(Replay *replay, int rank) {
    const Program *program = &replay->schedule->programs[rank];
    int *at = &replay->players[rank].at, before = *at;
    while (*at < program->count) {
        bool computes = schedule_ops[program->instrs[*at].op].kind == COMPUTE;
        int count = computes ? play(replay, rank, *at) : 1;
        if (!count) break;
        *at += count;
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
