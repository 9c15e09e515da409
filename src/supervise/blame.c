// Walks the graph of ranks that wait for each other, and names the one that holds up the others.
#include "supervise/supervise.h"
#include <math.h>
#include <stdlib.h>

#define LEAST_CIRCLE_S 30.0

static bool is_waiting(const RankView *v) { return v->joined && *v->beat.wait && v->beat.num_waits > 0; }

static bool is_overdue(const RankView *v, const HangRule *rule) {
    if (!v->joined || v->beat.phase == BEAT_DONE) return false;
    return v->gone || v->quiet_s > view_limit(v, rule);
}

// Counts the ranks that wait for `rank`, directly or through others. `seen` has room for `count` marks, `stack` for
// ranks.
static int count_waiters(const RankView *views, int count, int rank, bool *seen, int *stack) {
    int found = 0, depth = 0;
    for (int i = 0; i < count; i++) seen[i] = i == rank;
    for (stack[depth++] = rank; depth;) {
        int at = stack[--depth];
        for (int i = 0; i < count; i++) {
            if (seen[i] || !is_waiting(&views[i])) continue;
            for (int w = 0; w < views[i].beat.num_waits && !seen[i]; w++)
                if (views[i].beat.waits[w] == at) seen[i] = true, found++, stack[depth++] = i;
        }
    }
    return found;
}

static Blame worst(const RankView *views, int count, const HangRule *rule, bool *seen, int *stack) {
    Blame blame = {.rank = -1, .next = -1};
    for (int i = 0; i < count; i++) {
        const RankView *v = &views[i];
        if (!is_overdue(v, rule)) continue;
        int waiters = count_waiters(views, count, i, seen, stack);
        bool more = blame.rank < 0 || v->gone > views[blame.rank].gone ||
                    (v->gone == views[blame.rank].gone &&
                     (waiters > blame.waiters || (waiters == blame.waiters && v->quiet_s > blame.quiet_s)));
        if (more) blame = (Blame){i, -1, waiters, v->quiet_s, v->gone ? 0 : view_limit(v, rule)};
    }
    return blame;
}

static double circle_limit(const HangRule *rule) {
    return rule->load * fmax(LEAST_CIRCLE_S, rule->setup_s / 20);
}

// The first rank that `rank` waits for and that waits in turn, both for long; -1: none.
static int next_in_circle(const RankView *views, int count, int rank, double limit_s) {
    for (int w = 0; w < views[rank].beat.num_waits; w++) {
        int other = views[rank].beat.waits[w];
        if (other < count && other != rank && is_waiting(&views[other]) && views[other].same_s > limit_s)
            return other;
    }
    return -1;
}

static Blame circle(const RankView *views, int count, const HangRule *rule) {
    double limit_s = circle_limit(rule);
    for (int i = 0; i < count; i++) {
        if (!is_waiting(&views[i]) || views[i].same_s <= limit_s) continue;
        int at = i;
        for (int steps = 0; at >= 0 && steps <= count; steps++) {
            at = next_in_circle(views, count, at, limit_s);
            if (at == i)
                return (Blame){i, next_in_circle(views, count, i, limit_s), steps, views[i].same_s, limit_s};
        }
    }
    return (Blame){.rank = -1, .next = -1};
}

Blame blame_find(const RankView *views, int count, const HangRule *rule) {
    bool *seen = calloc((size_t)count + 1, sizeof *seen);
    int *stack = calloc((size_t)count + 1, sizeof *stack);
    CHECK(seen && stack, "no memory for %d ranks", count);
    Blame blame = worst(views, count, rule, seen, stack);
    free(seen);
    free(stack);
    return blame.rank >= 0 ? blame : circle(views, count, rule);
}
