// The replay of compute orders: it is the walk, it is the papers' formulas, and what messages and reductions
// add has formulas of its own.
#include "base/rng.h"
#include "harness.h"
#include "layout/kinds.h"
#include <limits.h>
#include <math.h>
#include <string.h>

enum { MAX_STAGES = 64 };

static int min(int a, int b) { return a < b ? a : b; }

static Simulation replay_of(const char *kind, int p, int v, int m, ScheduleCosts costs) {
    ScheduleSpec spec = {.kind = kind, .ranks = p, .chunks = v, .microbatches = m};
    Schedule order;
    Simulation out;
    EXPECT_OK(schedule_order(&order, &spec));
    schedule_replay(&order, costs, &out);
    schedule_destroy(&order);
    return out;
}

static double total_us(const char *kind, int p, int v, int m, ScheduleCosts costs) {
    Simulation out = replay_of(kind, p, v, m, costs);
    double us = out.total_us;
    simulation_destroy(&out, NULL);
    return us;
}

// ---- the replay is the walk -----------------------------------------------------------------------------

// Uneven in everything. `times` is what the costs borrow.
typedef struct {
    double forward[MAX_STAGES], backward[MAX_STAGES], hop[MAX_STAGES], hold[MAX_STAGES], reduce[MAX_STAGES];
} Times;

static ScheduleCosts uneven(Times *times, uint64_t seed) {
    double *all = times->forward;
    RngKey key = rng_key(seed, "uneven costs", 0);
    for (uint32_t i = 0; i < sizeof *times / sizeof *all; i++)
        all[i] = 0.25 + rng_word(key, i, 0) / 4294967296.0;
    return (ScheduleCosts){.stage_forward_us = times->forward,
                           .stage_backward_us = times->backward,
                           .weight_fraction = 0.375,
                           .edge_hop_us = times->hop,
                           .edge_hold_us = seed % 2 ? times->hold : NULL,
                           .stage_reduce_us = seed % 3 ? times->reduce : NULL};
}

static bool same(const double *a, const double *b, int count) {
    return !memcmp(a, b, (size_t)count * sizeof *a);
}

static void expect_the_walk(const Schedule *order, const Schedule *whole, ScheduleCosts costs,
                            const char *what) {
    int p = whole->num_ranks, stages = p * whole->num_chunks;
    Simulation replayed, walked;
    schedule_replay(order, costs, &replayed);
    schedule_simulate(whole, costs, &walked);
    EXPECT(same(&replayed.total_us, &walked.total_us, 1) &&
               same(&replayed.computed_us, &walked.computed_us, 1) &&
               same(&replayed.bubble, &walked.bubble, 1) && same(&replayed.ends_us, &walked.ends_us, 1),
           "%s p %d v %d m %d: %.17g, walked %.17g", what, p, whole->num_chunks, whole->num_microbatches,
           replayed.total_us, walked.total_us);
    EXPECT(replayed.apart_us == walked.apart_us && replayed.apart_us <= replayed.computed_us,
           "the longest rank");
    EXPECT(same(replayed.busy_us, walked.busy_us, p) && same(replayed.message_us, walked.message_us, p) &&
               same(replayed.gradients_us, walked.gradients_us, stages) &&
               !memcmp(replayed.peak_stash, walked.peak_stash, (size_t)p * sizeof(int)),
           "%s p %d v %d m %d: not as walked, rank by rank", what, p, whole->num_chunks,
           whole->num_microbatches);
    simulation_destroy(&walked, whole);
    simulation_destroy(&replayed, order);
}

static void compare(const ScheduleSpec *spec, uint64_t seed) {
    ScheduleCosts even = {
        .forward_us = spec->chunks, .backward_us = 2 * spec->chunks, .weight_fraction = 0.5};
    Schedule order, whole;
    Times times;
    EXPECT_OK(schedule_order(&order, spec));
    EXPECT_OK(schedule_create(&whole, spec));
    expect_the_walk(&order, &whole, even, spec->kind);
    whole.num_sending = INT_MAX;
    expect_the_walk(&order, &whole, uneven(&times, seed), spec->kind);
    expect_the_walk(&whole, &whole, uneven(&times, seed + 1), spec->kind);
    schedule_destroy(&whole);
    schedule_destroy(&order);
}

// With even times the buffers that the trainer has delay nothing; with others none must be missing.
static void it_is_the_walk(void) {
    for (int i = 0; i < num_schedule_kinds * 7 * 3 * 12; i++) {
        const ScheduleKind *kind = schedule_kinds[i % num_schedule_kinds];
        int j = i / num_schedule_kinds, p = 1 + j % 7, v = 1 + j / 7 % 3, m = 1 + j / 21;
        ScheduleSpec spec = {
            .kind = kind->name, .ranks = p, .chunks = v, .microbatches = m, .receive_ahead = i % 3};
        char why[256];
        if (!schedule_kind_refuse(kind, &spec, why, sizeof why)) compare(&spec, (uint64_t)i);
    }
}

static void zeros_are_nothing(void) {
    static const double zeros[MAX_STAGES];
    ScheduleCosts plain = {.forward_us = 3, .backward_us = 5, .weight_fraction = 0.25, .hop_us = 0.5},
                  zero = plain, edges = plain;
    double hops[MAX_STAGES];
    for (int i = 0; i < MAX_STAGES; i++) hops[i] = 0.5;
    zero.edge_hold_us = zero.stage_reduce_us = zeros;
    edges.edge_hop_us = hops;
    for (int v = 1; v <= 3; v++) {
        const char *kind = v == 1 ? "1f1b" : "interleaved";
        double us = total_us(kind, 4, v, 8, plain);
        EXPECT(total_us(kind, 4, v, 8, zero) == us && total_us(kind, 4, v, 8, edges) == us, "v %d", v);
    }
    plain.hop_us = 0;
    edges.edge_hop_us = zeros;
    EXPECT(total_us("zb-v", 4, 2, 8, edges) == total_us("zb-v", 4, 2, 8, plain), "hops of zero");
}

// ---- published numbers ------------------------------------------------------------------------------------

static void formulas_of_the_papers(void) {
    static const struct {
        const char *kind;
        int v, m_per_p, first; // for m >= m_per_p * p - first, and the bubble times v
        double bubble;
    } rows[] = {{"gpipe", 1, 0, 0, 3}, {"1f1b", 1, 0, 0, 3},  {"interleaved", 2, 1, 0, 3},
                {"zb-h1", 1, 1, 0, 1}, {"zb-h2", 1, 2, 1, 1}, {"zb-v", 2, 2, 1, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int p = 2; p <= 8; p++)
            for (int m = p; m <= 4 * p; m += p) {
                if (m < rows[i].m_per_p * p - rows[i].first) continue;
                int v = rows[i].v;
                ScheduleCosts costs = {.forward_us = v, .backward_us = 2 * v, .weight_fraction = 0.5};
                double us = total_us(rows[i].kind, p, v, m, costs);
                EXPECT(us == 3.0 * m * v + rows[i].bubble * (p - 1), "%s p %d m %d: %g", rows[i].kind, p, m,
                       us);
            }
}

static void stashes_of_the_papers(void) {
    static const struct {
        const char *kind;
        int v, peak[4];
    } rows[] = {{"gpipe", 1, {8, 8, 8, 8}}, {"1f1b", 1, {4, 3, 2, 1}},  {"interleaved", 2, {11, 9, 7, 5}},
                {"zb-h1", 1, {4, 4, 4, 4}}, {"zb-h2", 1, {7, 7, 7, 7}}, {"zb-v", 2, {8, 8, 8, 8}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Simulation out = replay_of(rows[i].kind, 4, rows[i].v, 8, (ScheduleCosts){.forward_us = 1});
        EXPECT(!memcmp(out.peak_stash, rows[i].peak, sizeof rows[i].peak), "%s: %d %d %d %d", rows[i].kind,
               out.peak_stash[0], out.peak_stash[1], out.peak_stash[2], out.peak_stash[3]);
        simulation_destroy(&out, NULL);
    }
}

static double sum(const double *values, int count) {
    double total = 0;
    for (int i = 0; i < count; i++) total += values[i];
    return total;
}

static double largest(const double *values, int count) {
    double most = 0;
    for (int i = 0; i < count; i++) most = fmax(most, values[i]);
    return most;
}

// A pipeline of uneven stages is filled once and then goes at the pace of the slowest, and every edge is
// crossed once each way by the last microbatch.
static void uneven_stages_of_gpipe(void) {
    for (int i = 0; i < 100; i++) {
        Times times;
        int p = 1 + i % 8, m = 1 + i / 8;
        ScheduleCosts costs = uneven(&times, 6 * (uint64_t)i);
        double us = total_us("gpipe", p, 1, m, costs),
               expected = sum(times.forward, p) + sum(times.backward, p) + 2 * sum(times.hop, p - 1) +
                          (m - 1) * (largest(times.forward, p) + largest(times.backward, p));
        EXPECT(fabs(us - expected) < 1e-9, "p %d m %d: %g, not %g", p, m, us, expected);
    }
}

// ---- messages -----------------------------------------------------------------------------------------------

// Of 1f1b with even stages f and b, all multiples of 1/8: exact.
typedef struct {
    double f, b, message;
} Even;

static ScheduleCosts costs_of(Even even, double edges[MAX_STAGES], bool blocks) {
    for (int i = 0; i < MAX_STAGES; i++) edges[i] = even.message;
    return (ScheduleCosts){.forward_us = even.f,
                           .backward_us = even.b,
                           .edge_hop_us = edges,
                           .edge_hold_us = blocks ? edges : NULL};
}

static Even nth_even(int i) { return (Even){1 + i % 3, 2 + i / 3 % 3, (1 + i / 9 % 4) / 8.0}; }

// The first microbatch goes there and back, 2(p-1) hops. Rank 0 starts as many as it may hold, p, and the
// next one when the first is back: each such round of p microbatches adds 2(p-1) hops again, and what is left
// of a round 2 for each but its first.
static void hops_of_1f1b(void) {
    for (int i = 0; i < 36 * 8 * 24; i++) {
        Even even = nth_even(i);
        double edges[MAX_STAGES], work_us = even.f + even.b;
        int p = 1 + i / 36 % 8, m = 1 + i / (36 * 8);
        int rounds = (m - 1) / p, rest = (m - 1) % p, hops = 2 * (p - 1) * (rounds + 1);
        if (rest) hops += 2 * (rest - 1);
        double us = total_us("1f1b", p, 1, m, costs_of(even, edges, false));
        EXPECT(us == (m + p - 1) * work_us + hops * even.message, "p %d m %d f %g b %g hop %g: %g", p, m,
               even.f, even.b, even.message, us);
    }
}

// Interleaved runs p - 1 chunks further ahead than it must, which hides hops that are short: the model is gone
// through once each way, and that is all, however many microbatches.
static void hops_of_interleaved(void) {
    for (int i = 0; i < 5 * 3 * 4; i++) {
        double edges[MAX_STAGES];
        int p = 2 + i % 5, v = 2 + i / 5 % 3, m = p * (1 + i / 15);
        Even even = {v, 2 * v, 0.125};
        double us = total_us("interleaved", p, v, m, costs_of(even, edges, false));
        EXPECT(us == 3 * (m * v + p - 1) + 2 * (v * p - 1) * even.message, "p %d v %d m %d: %g", p, v, m, us);
    }
}

// A message of T keeps both ends from computing for T. A rank in the middle has a call after each forward and
// each backward; the first one's backwards and the last one's forwards are followed by none. So a microbatch
// costs f + b + 2T, with two ranks f + b + T, but for what the first has already paid on its way.
static void blocking_messages_of_1f1b(void) {
    for (int i = 0; i < 36 * 8 * 24; i++) {
        Even even = nth_even(i);
        double edges[MAX_STAGES], work_us = even.f + even.b;
        int p = 1 + i / 36 % 8, m = 1 + i / (36 * 8);
        int calls = p == 1 ? 0 : 2 * (p - 1) + (p == 2 ? m - 1 : m == 1 ? 0 : 2 * m - 3);
        double us = total_us("1f1b", p, 1, m, costs_of(even, edges, true));
        EXPECT(us == (m + p - 1) * work_us + calls * even.message, "p %d m %d f %g b %g T %g: %g", p, m,
               even.f, even.b, even.message, us);
    }
}

// Every gap between two computes in which something is sent or received is a call.
static void time_in_messages(void) {
    for (int p = 1; p <= 6; p++)
        for (int m = 1; m <= 12; m++) {
            double edges[MAX_STAGES];
            Simulation out = replay_of("1f1b", p, 1, m, costs_of((Even){1, 2, 0.25}, edges, true));
            for (int r = 0; r < p; r++) {
                int calls = p == 1 ? 0 : r == 0 ? m + min(m, p) - 1 : r == p - 1 ? m + 1 : 2 * m + 1;
                EXPECT(out.busy_us[r] == 3 * m && out.message_us[r] == 0.25 * calls, "p %d m %d rank %d: %g",
                       p, m, r, out.message_us[r]);
                EXPECT(out.busy_us[r] + out.message_us[r] <= out.computed_us, "p %d m %d rank %d", p, m, r);
            }
            simulation_destroy(&out, NULL);
        }
}

// An edge within a node is faster: each counts by itself.
static void every_edge_has_its_own_hop(void) {
    double edges[] = {1, 0, 4, 0, 0.5, 0, 0}, none[7] = {0};
    ScheduleCosts costs = {.forward_us = 1, .backward_us = 2, .edge_hop_us = edges};
    double us = total_us("gpipe", 4, 1, 5, costs);
    EXPECT(us == 3 * 5 + 3 * 3 + 2 * 5, "%g", us);
    // In a V stages 3 and 4 are on the last rank: nothing is sent.
    double v[] = {0, 0, 0, 100, 0, 0, 0};
    costs = (ScheduleCosts){
        .forward_us = 2, .backward_us = 4, .weight_fraction = 0.5, .edge_hop_us = v, .edge_hold_us = v};
    us = total_us("zb-v", 4, 2, 8, costs);
    costs.edge_hop_us = costs.edge_hold_us = none;
    EXPECT(us == total_us("zb-v", 4, 2, 8, costs), "%g", us);
}

// ---- reductions ---------------------------------------------------------------------------------------------

// The stage of the rank whose gradients are there first of those after `after_us`.
static int next_stage(const Schedule *order, const Simulation *out, int rank, double after_us) {
    int next = -1;
    for (int c = 0; c < order->num_chunks; c++) {
        int stage = schedule_stage(order, rank, c);
        bool earlier = next < 0 || out->gradients_us[stage] < out->gradients_us[next];
        if (out->gradients_us[stage] > after_us && earlier) next = stage;
    }
    return next;
}

// The rank's chunks one after the other, in the order in which their gradients are there.
static double reduced_us(const Schedule *order, const Simulation *out, int rank, const double *reduce_us) {
    double end_us = 0, after_us = 0;
    for (int c = 0; c < order->num_chunks; c++) {
        int stage = next_stage(order, out, rank, after_us);
        after_us = out->gradients_us[stage];
        end_us = fmax(end_us, after_us) + reduce_us[stage];
    }
    return end_us;
}

static void expect_reductions(const Schedule *order, const char *kind, uint64_t seed) {
    Times times;
    Simulation out, without;
    ScheduleCosts costs = uneven(&times, 6 * seed);
    schedule_replay(order, costs, &without);
    costs.stage_reduce_us = times.reduce;
    for (int stage = 0; stage < MAX_STAGES; stage++) times.reduce[stage] *= 8;
    schedule_replay(order, costs, &out);
    double end_us = out.computed_us;
    for (int r = 0; r < order->num_ranks; r++)
        end_us = fmax(end_us, reduced_us(order, &out, r, times.reduce));
    EXPECT(out.total_us == end_us && out.computed_us == without.total_us && out.total_us > without.total_us,
           "%s p %d v %d m %d: %g, not %g", kind, order->num_ranks, order->num_chunks,
           order->num_microbatches, out.total_us, end_us);
    simulation_destroy(&without, NULL);
    simulation_destroy(&out, NULL);
}

static void reductions_go_on_beside(void) {
    for (int i = 0; i < num_schedule_kinds * 5 * 3 * 2; i++) {
        const ScheduleKind *kind = schedule_kinds[i % num_schedule_kinds];
        int j = i / num_schedule_kinds, p = 1 + j % 5, v = 1 + j / 5 % 3, m = 10 * (1 + j / 15);
        ScheduleSpec spec = {.kind = kind->name, .ranks = p, .chunks = v, .microbatches = m, .group = m};
        char why[256];
        Schedule order;
        if (schedule_kind_refuse(kind, &spec, why, sizeof why)) continue;
        EXPECT_OK(schedule_order(&order, &spec));
        expect_reductions(&order, kind->name, (uint64_t)i);
        schedule_destroy(&order);
    }
}

// Rank r of 1f1b is done r backwards before rank 0: a reduction that is no longer is hidden, rank 0's never.
static void reductions_that_are_hidden(void) {
    double reduce_us[] = {0, 2, 4, 6};
    ScheduleCosts costs = {.forward_us = 1, .backward_us = 2, .stage_reduce_us = reduce_us};
    Simulation out = replay_of("1f1b", 4, 1, 8, costs);
    EXPECT(out.total_us == 33 && out.computed_us == 33, "%g", out.total_us);
    for (int r = 0; r < 4; r++)
        EXPECT(out.gradients_us[r] == 33 - 2 * r, "rank %d: %g", r, out.gradients_us[r]);
    simulation_destroy(&out, NULL);
    reduce_us[0] = 0.5, reduce_us[3] = 7;
    out = replay_of("1f1b", 4, 1, 8, costs);
    EXPECT(out.total_us == 34 && out.computed_us == 33 && out.bubble == 33.0 / 24 - 1, "%g", out.total_us);
    simulation_destroy(&out, NULL);
}

// ---- refusals -----------------------------------------------------------------------------------------------

static void an_order_is_refused_as_a_schedule_is(void) {
    ScheduleSpec specs[] = {{.kind = "2f2b", .ranks = 2, .chunks = 1, .microbatches = 2},
                            {.kind = "1f1b", .ranks = 2, .chunks = 2, .microbatches = 2},
                            {.kind = "1f1b", .ranks = 0, .chunks = 1, .microbatches = 2}};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        Schedule order;
        EXPECT(schedule_order(&order, &specs[i]) == ERR_CONFIG && !order.programs, "spec %zu", i);
    }
}

int main(int argc, char **argv) {
    static const Test tests[] = {
        {"it is the walk", it_is_the_walk},
        {"zeros are nothing", zeros_are_nothing},
        {"formulas of the papers", formulas_of_the_papers},
        {"stashes of the papers", stashes_of_the_papers},
        {"uneven stages of gpipe", uneven_stages_of_gpipe},
        {"hops of 1f1b", hops_of_1f1b},
        {"hops of interleaved", hops_of_interleaved},
        {"blocking messages of 1f1b", blocking_messages_of_1f1b},
        {"time in messages", time_in_messages},
        {"every edge has its own hop", every_edge_has_its_own_hop},
        {"reductions go on beside", reductions_go_on_beside},
        {"reductions that are hidden", reductions_that_are_hidden},
        {"an order is refused as a schedule is", an_order_is_refused_as_a_schedule_is},
        {0},
    };
    return harness_run(tests, argc, argv);
}
