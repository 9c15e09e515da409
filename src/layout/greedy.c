// Ranks are looked at in the order of time, so all that has happened until then is known, and of each
// neighbour also the operation that it is at. Nothing can hang: the oldest microbatch without I is always
// wanted somewhere down the line, by a rank that is free to take it or has a W to make room with.
// Source: Qi et al. 2023, arXiv 2401.10241, section 3.1, whose rules the choices are.
#include "layout/greedy.h"
#include <math.h>
#include <stdlib.h>

typedef struct {
    double clock_us, end_us; // where it is looked at next; when its last operation ends
    int forwards, inputs, weights;
    int between; // how many microbatches it may have between F and I
    bool queued;
} Worker;

typedef struct {
    const GreedyTask *task;
    GreedyChoice choice;
    Program *programs;
    Worker *workers;
    double *forward_end_us, *input_end_us; // [rank * microbatches + microbatch]
    int *queue, num_queued;                // a heap of ranks by their clocks
} Greedy;

// When something arrives: at `us` if that is known, else INFINITY; never before `earliest_us`.
typedef struct {
    double us, earliest_us;
} Arrival;

static const Arrival NEVER = {INFINITY, INFINITY};

// ---- the queue ------------------------------------------------------------------------------------------

static bool before(const Greedy *g, int a, int b) {
    double a_us = g->workers[a].clock_us, b_us = g->workers[b].clock_us;
    return a_us < b_us || (!(b_us < a_us) && a < b);
}

static void queue_add(Greedy *g, int rank, double clock_us) {
    int at = g->num_queued++;
    g->workers[rank].clock_us = clock_us;
    g->workers[rank].queued = true;
    for (; at && before(g, rank, g->queue[(at - 1) / 2]); at = (at - 1) / 2)
        g->queue[at] = g->queue[(at - 1) / 2];
    g->queue[at] = rank;
}

static int queue_take(Greedy *g) {
    int first = g->queue[0], last = g->queue[--g->num_queued], at = 0;
    for (int child = 1; child < g->num_queued; child = 2 * at + 1) {
        if (child + 1 < g->num_queued && before(g, g->queue[child + 1], g->queue[child])) child++;
        if (!before(g, g->queue[child], last)) break;
        g->queue[at] = g->queue[child];
        at = child;
    }
    g->queue[at] = last;
    g->workers[first].queued = false;
    return first;
}

// Lets a neighbour that had nothing to wait for choose again, now that something is under way to it.
static void wake(Greedy *g, int rank, double now_us) {
    if (rank < 0 || rank >= g->task->ranks || g->workers[rank].queued) return;
    queue_add(g, rank, fmax(now_us, g->workers[rank].clock_us));
}

// ---- what a rank sees -------------------------------------------------------------------------------------

static size_t cell(const Greedy *g, int rank, int microbatch) {
    return (size_t)rank * (size_t)g->task->microbatches + (size_t)microbatch;
}

// When the output of a neighbour's operation arrives. A neighbour that has not begun it needs at least `takes_us`.
static Arrival from_neighbour(const Greedy *g, bool begun, double end_us, double takes_us, double now_us) {
    double us = begun ? end_us + g->task->hop_us : INFINITY;
    return (Arrival){us, begun ? us : now_us + takes_us + g->task->hop_us};
}

static Arrival next_forward(const Greedy *g, int rank, double now_us) {
    const GreedyTask *task = g->task;
    const Worker *self = &g->workers[rank], *above = self - 1;
    int microbatch = self->forwards;
    bool room = self->forwards - self->weights < task->stash_limit;
    if (microbatch == task->microbatches || !room || self->forwards - self->inputs >= self->between)
        return NEVER;
    if (rank == 0) return (Arrival){0, 0};
    return from_neighbour(g, above->forwards > microbatch, g->forward_end_us[cell(g, rank - 1, microbatch)],
                          task->forward_us[rank - 1], now_us);
}

static Arrival next_input(const Greedy *g, int rank, double now_us) {
    const GreedyTask *task = g->task;
    const Worker *self = &g->workers[rank], *below = self + 1;
    int microbatch = self->inputs;
    if (microbatch == self->forwards) return NEVER;
    if (rank == task->ranks - 1) return (Arrival){now_us, now_us};
    return from_neighbour(g, below->inputs > microbatch, g->input_end_us[cell(g, rank + 1, microbatch)],
                          task->input_us[rank + 1], now_us);
}

// ---- what it does -----------------------------------------------------------------------------------------

typedef enum { NOTHING, DO_FORWARD, DO_INPUT, DO_WEIGHT } Decision;

static Decision decide(const Greedy *g, int rank, double now_us, Arrival forward, Arrival input) {
    const Worker *self = &g->workers[rank];
    const GreedyTask *task = g->task;
    bool can_forward = forward.us <= now_us, can_input = input.us <= now_us;
    bool next_is_dry = rank < task->ranks - 1 && self->forwards <= self[1].forwards;
    if (can_input && can_forward && g->choice.lead && next_is_dry) return DO_FORWARD;
    if (can_input) return DO_INPUT;
    bool input_is_near = input.us < now_us + task->forward_us[rank];
    if (can_forward && !(g->choice.wait_for_input && input_is_near)) return DO_FORWARD;
    if (self->weights == self->inputs) return NOTHING;
    double gap_us = fmin(forward.earliest_us, input.earliest_us) - now_us;
    return g->choice.fill_whole && gap_us < task->weight_us[rank] ? NOTHING : DO_WEIGHT;
}

static void run(Greedy *g, int rank, double now_us, Decision decision) {
    static const ScheduleOp ops[] = {
        [DO_FORWARD] = OP_FORWARD, [DO_INPUT] = OP_BACKWARD_INPUT, [DO_WEIGHT] = OP_BACKWARD_WEIGHT};
    Worker *self = &g->workers[rank];
    const GreedyTask *task = g->task;
    bool forward = decision == DO_FORWARD, input = decision == DO_INPUT;
    int *done = forward ? &self->forwards : input ? &self->inputs : &self->weights;
    const double *us = forward ? task->forward_us : input ? task->input_us : task->weight_us;
    int microbatch = (*done)++;
    self->end_us = now_us + us[rank];
    if (forward) g->forward_end_us[cell(g, rank, microbatch)] = self->end_us;
    if (input) g->input_end_us[cell(g, rank, microbatch)] = self->end_us;
    if (g->programs) program_compute(&g->programs[rank], ops[decision], 0, microbatch);
    queue_add(g, rank, self->end_us);
    wake(g, rank + (forward ? 1 : -1), now_us);
}

static void look(Greedy *g, int rank) {
    const Worker *self = &g->workers[rank];
    double now_us = self->clock_us;
    if (self->weights == g->task->microbatches) return;
    Arrival forward = next_forward(g, rank, now_us), input = next_input(g, rank, now_us);
    Decision decision = decide(g, rank, now_us, forward, input);
    if (decision != NOTHING) {
        run(g, rank, now_us, decision);
        return;
    }
    double arrives_us = forward.us <= now_us ? input.us : fmin(forward.us, input.us);
    if (arrives_us < INFINITY) queue_add(g, rank, arrives_us);
}

// ---- all of it --------------------------------------------------------------------------------------------

static void open_workers(Greedy *g) {
    int last = g->task->ranks - 1;
    for (int r = 0; r <= last; r++) {
        int64_t line = last ? ((int64_t)(g->task->stash_limit - 1) * (last - r) + last - 1) / last : 0;
        g->workers[r].between = (int)line + 1 + g->choice.slack;
        queue_add(g, r, 0);
    }
}

double greedy_order(const GreedyTask *task, GreedyChoice choice, Program *programs) {
    size_t ranks = (size_t)task->ranks, cells = ranks * (size_t)task->microbatches;
    Greedy g = {.task = task, .choice = choice, .programs = programs};
    g.workers = layout_alloc(ranks, sizeof *g.workers);
    g.forward_end_us = layout_alloc(cells, sizeof *g.forward_end_us);
    g.input_end_us = layout_alloc(cells, sizeof *g.input_end_us);
    g.queue = layout_alloc(ranks, sizeof *g.queue);
    open_workers(&g);
    while (g.num_queued) look(&g, queue_take(&g));
    double end_us = 0;
    for (int r = 0; r < task->ranks; r++) {
        CHECK(g.workers[r].weights == task->microbatches, "rank %d stops after %d of %d microbatches", r,
              g.workers[r].weights, task->microbatches);
        end_us = fmax(end_us, g.workers[r].end_us);
    }
    free(g.queue);
    free(g.input_end_us);
    free(g.forward_end_us);
    free(g.workers);
    return end_us;
}
