// The schedules of the paper emit forwards and backwards in one and the same order, in groups of p
// microbatches: a group runs through chunk 0, then chunk 1, and so on, and backward through the chunks in
// reverse. They differ only in how many forwards a rank runs ahead before it starts to alternate.
#include "layout/parts.h"
#include <stdio.h>
#include <string.h>

static Instr nth(const Schedule *shape, ScheduleOp op, int i) {
    int p = shape->num_ranks, v = shape->num_chunks, turn = i % (p * v) / p;
    int chunk = op == OP_FORWARD ? turn : v - 1 - turn;
    return (Instr){
        .op = (uint8_t)op, .chunk = (uint8_t)chunk, .peer = -1, .microbatch = i / (p * v) * p + i % p};
}

static void alternate(const Schedule *shape, int warmup, Program *out) {
    int total = shape->num_microbatches * shape->num_chunks;
    for (int f = 0, b = 0; b < total;) {
        if (f < total) program_add(out, nth(shape, OP_FORWARD, f++));
        if (f > warmup || f == total) program_add(out, nth(shape, OP_BACKWARD, b++));
    }
}

static void gpipe(const Schedule *shape, int rank, Program *out) {
    (void)rank;
    alternate(shape, shape->num_microbatches, out);
}

static void one_forward_one_backward(const Schedule *shape, int rank, Program *out) {
    alternate(shape, shape->num_ranks - rank - 1, out);
}

// Twice the distance to the last rank, so that the first gradient arrives just in time, after all chunks but
// one.
static void interleaved(const Schedule *shape, int rank, Program *out) {
    int p = shape->num_ranks, v = shape->num_chunks;
    alternate(shape, 2 * (p - rank - 1) + (v - 1) * p, out);
}

static const char *refuse_chunks(int ranks, int chunks, int microbatches, char *why, size_t size) {
    (void)ranks, (void)microbatches;
    if (chunks == 1) return NULL;
    snprintf(why, size, "takes 1 chunk per pipeline rank, not %d; interleaved takes several", chunks);
    return why;
}

static const char *refuse_interleaved(int ranks, int chunks, int microbatches, char *why, size_t size) {
    int below = microbatches / ranks * ranks;
    if (chunks < 2)
        snprintf(why, size, "needs 2 or more chunks per pipeline rank, not %d; 1f1b takes one", chunks);
    else if (ranks < 2)
        snprintf(why, size, "needs 2 or more pipeline ranks, not %d; 1f1b takes one", ranks);
    else if (microbatches < ranks)
        snprintf(why, size,
                 "needs a multiple of the %d pipeline ranks as microbatches, not %d; %d would work", ranks,
                 microbatches, ranks);
    else if (microbatches > below)
        snprintf(why, size,
                 "needs a multiple of the %d pipeline ranks as microbatches, not %d; %d or %d would work",
                 ranks, microbatches, below, below + ranks);
    else
        return NULL;
    return why;
}

static double bubble(int ranks, int chunks, int microbatches) {
    return (double)(ranks - 1) / ((double)chunks * microbatches);
}

const ScheduleKind schedule_kinds[] = {
    {"gpipe", "all forwards, then all backwards", "Huang 2019", refuse_chunks, gpipe, bubble},
    {"1f1b", "one forward, one backward: as fast as gpipe, at most p activations", "Narayanan 2019",
     refuse_chunks, one_forward_one_backward, bubble},
    {"interleaved", "1f1b over several chunks per rank: a bubble v times smaller", "Narayanan 2021",
     refuse_interleaved, interleaved, bubble},
};
const int num_schedule_kinds = sizeof schedule_kinds / sizeof schedule_kinds[0];

const ScheduleKind *schedule_kind(const char *name) {
    for (int i = 0; i < num_schedule_kinds; i++)
        if (!strcmp(schedule_kinds[i].name, name)) return &schedule_kinds[i];
    return NULL;
}
