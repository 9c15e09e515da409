// The schedules of the paper emit forwards and backwards in one and the same order, in groups of
// microbatches: a group runs through chunk 0, then chunk 1, and so on, and backward through the chunks in
// reverse. They differ only in how many forwards a rank runs ahead before it starts to alternate.
#include "layout/generators.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static int group_of(const ScheduleSpec *spec) { return spec->group ? spec->group : spec->ranks; }

void program_compute(Program *out, ScheduleOp op, int chunk, int microbatch) {
    program_add(
        out,
        (Instr){.op = (uint8_t)op, .chunk = (uint8_t)chunk, .peer = -1, .microbatch = (int32_t)microbatch});
}

// The last group takes what is left, which may be less than the others.
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

static void gpipe(const ScheduleSpec *spec, Schedule *schedule) {
    for (int r = 0; r < spec->ranks; r++) alternate(spec, spec->microbatches, &schedule->programs[r]);
}

static void one_forward_one_backward(const ScheduleSpec *spec, Schedule *schedule) {
    for (int r = 0; r < spec->ranks; r++) alternate(spec, spec->ranks - r - 1, &schedule->programs[r]);
}

// Twice the distance to the last rank, so that the first gradient arrives just in time, after all chunks but
// one.
static void interleaved(const ScheduleSpec *spec, Schedule *schedule) {
    int ahead = (spec->chunks - 1) * group_of(spec);
    for (int r = 0; r < spec->ranks; r++)
        alternate(spec, 2 * (spec->ranks - r - 1) + ahead, &schedule->programs[r]);
}

// ---- what they refuse -----------------------------------------------------------------------------------

static const char *refuse_chunks(const ScheduleSpec *spec, char *why, size_t size) {
    if (spec->chunks == 1) return NULL;
    snprintf(why, size, "takes 1 chunk per pipeline rank, not %d; interleaved takes several", spec->chunks);
    return why;
}

static const char *refuse_v(const ScheduleSpec *spec, char *why, size_t size) {
    if (spec->chunks == 2) return NULL;
    snprintf(why, size, "takes 2 chunks per pipeline rank, not %d; %s", spec->chunks,
             spec->chunks == 1 ? "zb-h1 takes one" : "interleaved takes several");
    return why;
}

// Groups that are not full: every rank must have one of its microbatches to work on while the
// others have theirs.
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
    if (spec->chunks < 2)
        snprintf(why, size, "needs 2 or more chunks per pipeline rank, not %d; 1f1b takes one", spec->chunks);
    else if (spec->ranks < 2)
        snprintf(why, size, "needs 2 or more pipeline ranks, not %d; 1f1b takes one", spec->ranks);
    else if (spec->microbatches < spec->ranks)
        snprintf(why, size, "needs as many microbatches as pipeline ranks, %d, or more, not %d", spec->ranks,
                 spec->microbatches);
    else
        return refuse_groups(spec, why, size);
    return why;
}

// ---- their bubbles ----------------------------------------------------------------------------------------

static double bubble(const ScheduleSpec *spec) {
    return (double)(spec->ranks - 1) / ((double)spec->chunks * spec->microbatches);
}

// With equal times a third of 1f1b's; with too few microbatches to fill the pipeline there is no formula.
static double bubble_h1(const ScheduleSpec *spec) {
    return spec->microbatches < spec->ranks ? NAN : bubble(spec) / 3;
}

static double bubble_twice(const ScheduleSpec *spec) {
    return spec->microbatches < 2 * spec->ranks - 1 ? NAN : bubble(spec) / 3;
}

static double no_formula(const ScheduleSpec *spec) {
    (void)spec;
    return NAN;
}

// ---- the table --------------------------------------------------------------------------------------------

const ScheduleKind schedule_kinds[] = {
    {"gpipe", "all forwards, then all backwards", "Huang 2019", false, true, refuse_chunks, gpipe, bubble},
    {"1f1b", "one forward, one backward: as fast as gpipe, at most p activations", "Narayanan 2019", false,
     true, refuse_chunks, one_forward_one_backward, bubble},
    {"interleaved", "1f1b over several chunks per rank: a bubble v times smaller", "Narayanan 2021", false,
     false, refuse_interleaved, interleaved, bubble},
    {"zb-h1", "1f1b with weight gradients put off to fill gaps: a third of its bubble, its memory", "Qi 2023",
     true, true, refuse_chunks, generate_zb_h1, bubble_h1},
    {"zb-h2", "zb-h1 with up to 2p-1 activations: no gap within a rank", "Qi 2023", true, true, refuse_chunks,
     generate_zb_h2, bubble_twice},
    {"zb-v", "zb-h2's gaps in 1f1b's memory: 2 chunks per rank, laid as a V", "Qi 2023", true, true, refuse_v,
     generate_zb_v, bubble_twice},
    {"auto", "the shortest known of one chunk per rank, for given times and a given number of stashes",
     "Qi 2023", true, false, refuse_auto, generate_auto, no_formula},
};
const int num_schedule_kinds = sizeof schedule_kinds / sizeof schedule_kinds[0];

const ScheduleKind *schedule_kind(const char *name) {
    for (int i = 0; i < num_schedule_kinds; i++)
        if (!strcmp(schedule_kinds[i].name, name)) return &schedule_kinds[i];
    return NULL;
}
