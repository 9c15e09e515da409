// Defines the kinds zb-h1, zb-h2 and zb-v. They split a backward in two: I, the input gradient that the previous stage
// waits for, and W, the weight gradient that no stage waits for. W then fills the gaps that 1f1b leaves.
// Source: Qi et al. 2023, arXiv 2401.10241: H1 and H2 after figure 3, V after section 6 of version 1.
#include "layout/generators.h"
#include <math.h>

static int least(int a, int b) { return a < b ? a : b; }

// Adds `warmup` forwards, then an I and a forward in turn. Up to `put_off` weight gradients are put off to the end.
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

static void generate_h1(const ScheduleSpec *spec, Schedule *schedule) {
    for (int r = 0; r < spec->ranks; r++) split_backwards(spec, spec->ranks - r, r, &schedule->programs[r]);
}

static void generate_h2(const ScheduleSpec *spec, Schedule *schedule) {
    for (int r = 0; r < spec->ranks; r++)
        split_backwards(spec, 2 * (spec->ranks - r) - 1, 2 * r, &schedule->programs[r]);
}

// ---- V ------------------------------------------------------------------------------------------------

// Counts the microbatches that have gone through each operation of each of the two chunks. The order is made for 2p-1
// microbatches or more; those that the schedule does not have are counted and left out.
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

// Input gradients come first, because other ranks wait for them. Weight gradients fill the gaps.
static void drain_v(Turns *turns, int ranks, int rank) {
    for (int i = 0; i < rank; i++) {
        take(turns, OP_BACKWARD_INPUT, 0);
        take(turns, OP_BACKWARD_INPUT, 1);
    }
    for (int i = 0; i < ranks - rank; i++) take_backward(turns, 0);
    for (int chunk = 1; chunk >= 0; chunk--)
        while (left(turns, OP_BACKWARD_WEIGHT, chunk)) take(turns, OP_BACKWARD_WEIGHT, chunk);
}

static void generate_v(const ScheduleSpec *spec, Schedule *schedule) {
    int p = spec->ranks, fewest = 2 * p - 1;
    for (int r = 0; r < p; r++) {
        Turns turns = {.out = &schedule->programs[r],
                       .there = spec->microbatches,
                       .planned = spec->microbatches > fewest ? spec->microbatches : fewest};
        fill_v(&turns, p, r);
        steady_v(&turns);
        drain_v(&turns, p, r);
    }
}

// The first chunks go down the ranks, the second ones up again.
static int stage_v(const ScheduleSpec *spec, int rank, int chunk) {
    return chunk ? 2 * spec->ranks - 1 - rank : rank;
}

// ---- facts ------------------------------------------------------------------------------------------------

// With equal times it is a third of 1f1b's. With too few microbatches to fill the pipeline there is no formula.
static double bubble_h1(const ScheduleSpec *spec) {
    return spec->microbatches < spec->ranks ? NAN : bubble_unsplit(spec) / 3;
}

static double bubble_twice(const ScheduleSpec *spec) {
    return spec->microbatches < 2 * spec->ranks - 1 ? NAN : bubble_unsplit(spec) / 3;
}

// A stash is held until the weight gradient, which is put off by as many microbatches as 1f1b has fewer.
static int stash_h1(const ScheduleSpec *spec, int rank) {
    (void)rank;
    return spec->ranks;
}

static int stash_h2(const ScheduleSpec *spec, int rank) {
    (void)rank;
    return 2 * spec->ranks - 1;
}

// With few microbatches a rank never holds 2p.
static int stash_v(const ScheduleSpec *spec, int rank) {
    return least(2 * spec->ranks, spec->microbatches + rank + 1);
}

const ScheduleKind kind_zb_h1 = {
    .name = "zb-h1",
    .summary = "1f1b with weight gradients put off to fill gaps: a third of its bubble, its memory",
    .source = "Qi 2023",
    .min_chunks = 1,
    .max_chunks = 1,
    .splits_backward = true,
    .pools_grow = true,
    .generate = generate_h1,
    .bubble = bubble_h1,
    .stash = stash_h1};

const ScheduleKind kind_zb_h2 = {.name = "zb-h2",
                                 .summary = "zb-h1 with up to 2p-1 activations: no gap within a rank",
                                 .source = "Qi 2023",
                                 .min_chunks = 1,
                                 .max_chunks = 1,
                                 .splits_backward = true,
                                 .pools_grow = true,
                                 .generate = generate_h2,
                                 .bubble = bubble_twice,
                                 .stash = stash_h2};

const ScheduleKind kind_zb_v = {.name = "zb-v",
                                .summary = "zb-h2's gaps in 1f1b's memory: 2 chunks per rank, laid as a V",
                                .source = "Qi 2023",
                                .min_chunks = 2,
                                .max_chunks = 2,
                                .splits_backward = true,
                                .pools_grow = true,
                                .stage = stage_v,
                                .generate = generate_v,
                                .bubble = bubble_twice,
                                .stash = stash_v};
