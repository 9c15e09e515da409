// A backward split in two: I, the input gradient that the previous stage waits for, and W, the weight
// gradient that nobody does. W then fills the gaps that 1f1b leaves.
// Source: Qi et al. 2023, arXiv 2401.10241: H1 and H2 after figure 3, V after section 6 of version 1.
#include "layout/generators.h"

static int least(int a, int b) { return a < b ? a : b; }

// `warmup` forwards, then an I and a forward in turn; up to `put_off` weight gradients wait for the end.
static void split_backwards(const ScheduleSpec *spec, int warmup, int put_off, Program *out) {
    int m = spec->microbatches, f = 0, w = 0;
    while (f < least(warmup, m)) program_compute(out, OP_FORWARD, 0, f++);
    for (int i = 0; i < m; i++) {
        program_compute(out, OP_BACKWARD_INPUT, 0, i);
        if (i - w >= put_off) program_compute(out, OP_BACKWARD_WEIGHT, 0, w++);
        if (f < m) program_compute(out, OP_FORWARD, 0, f++);
    }
    while (w < m) program_compute(out, OP_BACKWARD_WEIGHT, 0, w++);
}

void generate_zb_h1(const ScheduleSpec *spec, Schedule *schedule) {
    for (int r = 0; r < spec->ranks; r++) split_backwards(spec, spec->ranks - r, r, &schedule->programs[r]);
}

void generate_zb_h2(const ScheduleSpec *spec, Schedule *schedule) {
    for (int r = 0; r < spec->ranks; r++)
        split_backwards(spec, 2 * (spec->ranks - r) - 1, 2 * r, &schedule->programs[r]);
}

// ---- V ------------------------------------------------------------------------------------------------

// How many of the 2p-1 or more microbatches that the order is made for have gone through each operation of
// each of the two chunks. Those that are not there are counted and left out.
typedef struct {
    Program *out;
    int there, planned;
    int done[NUM_SCHEDULE_OPS][2];
} Turns;

static bool left(const Turns *turns, ScheduleOp op, int chunk) {
    return turns->done[op][chunk] < turns->planned;
}

static void take(Turns *turns, ScheduleOp op, int chunk) {
    int microbatch = turns->done[op][chunk]++;
    if (microbatch < turns->there) program_compute(turns->out, op, chunk, microbatch);
}

static void take_backward(Turns *turns, int chunk) {
    take(turns, OP_BACKWARD_INPUT, chunk);
    take(turns, OP_BACKWARD_WEIGHT, chunk);
}

static void fill_v(Turns *turns, int ranks, int rank) {
    for (int i = 0; i < 2 * (ranks - rank) - 1; i++) take(turns, OP_FORWARD, 0);
    for (int i = 0; i < rank; i++) {
        take(turns, OP_FORWARD, 1);
        take(turns, OP_FORWARD, 0);
    }
    for (int i = 0; i < ranks - rank; i++) {
        take(turns, OP_FORWARD, 1);
        take_backward(turns, 1);
    }
}

static void steady_v(Turns *turns) {
    while (left(turns, OP_FORWARD, 0) || left(turns, OP_FORWARD, 1)) {
        if (left(turns, OP_FORWARD, 0)) take(turns, OP_FORWARD, 0);
        take_backward(turns, 0);
        if (!left(turns, OP_FORWARD, 1)) continue;
        take(turns, OP_FORWARD, 1);
        take_backward(turns, 1);
    }
}

// Inputs first, for others wait for them; weights fill the gaps.
static void drain_v(Turns *turns, int ranks, int rank) {
    for (int i = 0; i < rank; i++) {
        take(turns, OP_BACKWARD_INPUT, 0);
        take(turns, OP_BACKWARD_INPUT, 1);
    }
    for (int i = 0; i < ranks - rank; i++) take_backward(turns, 0);
    for (int chunk = 1; chunk >= 0; chunk--)
        while (left(turns, OP_BACKWARD_WEIGHT, chunk)) take(turns, OP_BACKWARD_WEIGHT, chunk);
}

void generate_zb_v(const ScheduleSpec *spec, Schedule *schedule) {
    int p = spec->ranks, fewest = 2 * p - 1;
    for (int r = 0; r < p; r++) {
        Turns turns = {.out = &schedule->programs[r],
                       .there = spec->microbatches,
                       .planned = spec->microbatches > fewest ? spec->microbatches : fewest};
        schedule->stage[2 * r] = r;
        schedule->stage[2 * r + 1] = 2 * p - 1 - r;
        fill_v(&turns, p, r);
        steady_v(&turns);
        drain_v(&turns, p, r);
    }
}
