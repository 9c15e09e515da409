// Defines the kinds of the paper: gpipe, 1f1b, interleaved; and paired, which is like the last. They emit forwards and
// backwards in one and the same order, in groups of microbatches: a group runs forward through chunk 0, then chunk 1,
// and so on, and backward through the chunks in reverse. They differ only in how many forwards a rank runs ahead before
// it alternates.
#include "layout/generators.h"
#include <stdio.h>

static int group_of(const ScheduleSpec *spec) { return spec->group ? spec->group : spec->ranks; }

// Adds the i-th compute of a kind of operation. The last group may have fewer microbatches than the others.
static void add_nth(const ScheduleSpec *spec, ScheduleOp op, int i, Program *out) {
    int v = spec->chunks, group = group_of(spec), first = i / (group * v) * group;
    int left = spec->microbatches - first, size = left < group ? left : group;
    int turn = (i - first * v) / size, chunk = op == OP_FORWARD ? turn : v - 1 - turn;
    program_compute(out, op, chunk, first + (i - first * v) % size);
}

static void alternate(const ScheduleSpec *spec, int warmup, Program *out) {
    int total = spec->microbatches * spec->chunks;
    for (int f = 0, b = 0; b < total;) {
        if (f < total) add_nth(spec, OP_FORWARD, f++, out);
        if (f > warmup || f == total) add_nth(spec, OP_BACKWARD, b++, out);
    }
}

static void generate_gpipe(const ScheduleSpec *spec, Schedule *schedule) {
    for (int r = 0; r < spec->ranks; r++) alternate(spec, spec->microbatches, &schedule->programs[r]);
}

static void generate_1f1b(const ScheduleSpec *spec, Schedule *schedule) {
    for (int r = 0; r < spec->ranks; r++) alternate(spec, spec->ranks - r - 1, &schedule->programs[r]);
}

// A rank runs ahead by twice its distance to the last rank, so that the first gradient arrives just in time, and by a
// group for each chunk but one.
static int interleaved_warmup(const ScheduleSpec *spec, int rank) {
    return 2 * (spec->ranks - rank - 1) + (spec->chunks - 1) * group_of(spec);
}

static void generate_interleaved(const ScheduleSpec *spec, Schedule *schedule) {
    for (int r = 0; r < spec->ranks; r++)
        alternate(spec, interleaved_warmup(spec, r), &schedule->programs[r]);
}

// One forward further ahead: then no forward is of the microbatch whose backward follows it, and the two run together.
static int paired_warmup(const ScheduleSpec *spec, int rank) { return interleaved_warmup(spec, rank) + 1; }

// Pairs each forward after the warm-up with the backward that follows it. Where there are too few microbatches for the
// warm-up, the last forward is none of these: others wait for what it sends.
static void pair_up(int warmup, Program *out) {
    for (int i = 0, forwards = 0; i < out->count; i++)
        if (out->instrs[i].op == OP_FORWARD) out->instrs[i].pairs = forwards++ >= warmup;
}

static void generate_paired(const ScheduleSpec *spec, Schedule *schedule) {
    for (int r = 0; r < spec->ranks; r++) {
        alternate(spec, paired_warmup(spec, r), &schedule->programs[r]);
        pair_up(paired_warmup(spec, r), &schedule->programs[r]);
    }
}

// ---- facts ------------------------------------------------------------------------------------------------

// A group that is not full must have a microbatch for every rank, so that all ranks can compute at the same time.
static const char *refuse_groups(const ScheduleSpec *spec, char *why, size_t size) {
    int p = spec->ranks, m = spec->microbatches, group = group_of(spec), rest = m % group;
    if (group < p || group > m) {
        snprintf(why, size, "takes groups of %d (the pipeline ranks) to %d (all) microbatches, not %d", p, m,
                 group);
        return why;
    }
    if (rest == 0 || rest >= p) return NULL;
    int larger = (m + m / group - 1) / (m / group);
    while (m % larger && m % larger < p) larger++;
    snprintf(
        why, size,
        "takes %d microbatches in groups of %d, and the last group has %d, fewer than the %d pipeline ranks: "
        "groups of %d, or %d microbatches, would work",
        m, group, rest, p, larger, m - rest);
    return why;
}

static const char *refuse_interleaved(const ScheduleSpec *spec, char *why, size_t size) {
    if (spec->microbatches >= spec->ranks) return refuse_groups(spec, why, size);
    snprintf(why, size, "needs as many microbatches as pipeline ranks, %d, or more, not %d", spec->ranks,
             spec->microbatches);
    return why;
}

double bubble_unsplit(const ScheduleSpec *spec) {
    return (double)(spec->ranks - 1) / ((double)spec->chunks * spec->microbatches);
}

static int stash_1f1b(const ScheduleSpec *spec, int rank) { return spec->ranks - rank; }

// Source: Korthikanti 2022, section 4.2.3: the first rank holds the activations of L (1 + (p-1)/(pv)) layers.
static int stash_interleaved(const ScheduleSpec *spec, int rank) {
    return interleaved_warmup(spec, rank) + 1;
}

static int stash_paired(const ScheduleSpec *spec, int rank) { return paired_warmup(spec, rank) + 1; }

// A chunk is reduced after its own last p microbatches, while the other chunks compute.
static double window_interleaved(const ScheduleSpec *spec) {
    return (spec->ranks * (spec->chunks - 1.0) + 1) / spec->chunks;
}

const ScheduleKind kind_gpipe = {.name = "gpipe",
                                 .summary = "all forwards, then all backwards",
                                 .source = "Huang 2019",
                                 .min_chunks = 1,
                                 .max_chunks = 1,
                                 .pools_grow = true,
                                 .generate = generate_gpipe,
                                 .bubble = bubble_unsplit};

const ScheduleKind kind_one_forward_one_backward = {
    .name = "1f1b",
    .summary = "one forward, one backward: as fast as gpipe, at most p activations",
    .source = "Narayanan 2019",
    .is_default = true,
    .min_chunks = 1,
    .max_chunks = 1,
    .pools_grow = true,
    .generate = generate_1f1b,
    .bubble = bubble_unsplit,
    .stash = stash_1f1b};

const ScheduleKind kind_interleaved = {.name = "interleaved",
                                       .summary =
                                           "1f1b over several chunks per rank: a bubble v times smaller",
                                       .source = "Narayanan 2021",
                                       .is_default = true,
                                       .min_chunks = 2,
                                       .max_chunks = SCHEDULE_MAX_CHUNKS,
                                       .min_ranks = 2,
                                       .settings = SETTING_GROUP,
                                       .refuse = refuse_interleaved,
                                       .generate = generate_interleaved,
                                       .bubble = bubble_unsplit,
                                       .stash = stash_interleaved,
                                       .window = window_interleaved};

const ScheduleKind kind_paired = {
    .name = "paired",
    .summary =
        "interleaved, each forward together with a backward: rows for experts travel while the other computes",
    .source = "DeepSeek-AI 2024",
    .min_chunks = 1,
    .max_chunks = SCHEDULE_MAX_CHUNKS,
    .settings = SETTING_GROUP,
    .pairs = true,
    .refuse = refuse_interleaved,
    .generate = generate_paired,
    .bubble = bubble_unsplit,
    .stash = stash_paired,
    .window = window_interleaved};
