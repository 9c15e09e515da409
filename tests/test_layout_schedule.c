// Generated schedules: laws for every p <= 8, m <= 24, v <= 4, then the listings and numbers that the papers print.
#include "harness.h"
#include "layout/layout.h"
#include <math.h>
#include <string.h>

static int min(int a, int b) { return a < b ? a : b; }

typedef void Law(const Schedule *schedule, const char *kind);

static void for_each_schedule(Law *law) {
    int tried = 0;
    for (int i = 0; i < 3 * 8 * 24 * 4; i++) {
        static const char *const kinds[] = {"gpipe", "1f1b", "interleaved"};
        const char *kind = kinds[i % 3];
        int p = 1 + i / 3 % 8, m = 1 + i / 24 % 24, v = 1 + i / 576;
        bool interleaved = i % 3 == 2;
        if (interleaved ? p < 2 || v < 2 || m % p : v > 1) continue;
        Schedule schedule;
        EXPECT_OK(schedule_create(&schedule, kind, p, v, m));
        law(&schedule, kind);
        schedule_destroy(&schedule);
        tried++;
    }
    EXPECT(tried == 2 * 8 * 24 + 3 * (12 + 8 + 6 + 4 + 4 + 3 + 3), "%d schedules", tried);
}

// With a forward of v and a backward of 2v every compute takes a whole number, so the times are exact.
static void bubble_law(const Schedule *s, const char *kind) {
    int p = s->num_ranks, v = s->num_chunks, m = s->num_microbatches;
    Simulation exact, real;
    schedule_simulate(s, (ScheduleCosts){.forward_us = v, .backward_us = 2.0 * v}, &exact);
    schedule_simulate(s, (ScheduleCosts){.forward_us = 0.7, .backward_us = 1.4}, &real);
    double expected = (double)(p - 1) / (v * m);
    EXPECT(exact.total_us == 3.0 * m * v + 3.0 * (p - 1), "%s p %d m %d v %d: %g", kind, p, m, v,
           exact.total_us);
    EXPECT(fabs(exact.bubble - expected) < 1e-12, "%s p %d m %d v %d: %.17g", kind, p, m, v, exact.bubble);
    EXPECT(fabs(real.bubble - expected) < 1e-12, "%s p %d m %d v %d: %.17g", kind, p, m, v, real.bubble);
    EXPECT(schedule_kind(kind)->bubble(p, v, m) == expected, "%s p %d m %d v %d", kind, p, m, v);
    for (int r = 0; r < p; r++) EXPECT(exact.busy_us[r] == 3.0 * m * v, "%s rank %d", kind, r);
    simulation_destroy(&real, s);
    simulation_destroy(&exact, s);
}

static void bubble_equals_the_formula(void) { for_each_schedule(bubble_law); }

static void stash_law(const Schedule *s, const char *kind) {
    int p = s->num_ranks, v = s->num_chunks, m = s->num_microbatches;
    for (int r = 0; r < p; r++) {
        int peak = !strcmp(kind, "gpipe")  ? m
                   : !strcmp(kind, "1f1b") ? min(m, p - r)
                                           : min(m * v, 2 * (p - r - 1) + (v - 1) * p + 1);
        EXPECT(schedule_peak_stash(s, r) == peak, "%s p %d m %d v %d rank %d: %d", kind, p, m, v, r,
               schedule_peak_stash(s, r));
    }
}

static void peak_stash_equals_the_formula(void) { for_each_schedule(stash_law); }

// Gradients add up in the order of microbatches on every grid, so that their sum has the same bits; and R comes last.
static void order_law(const Schedule *s, const char *kind) {
    for (int r = 0; r < s->num_ranks; r++) {
        int next_forward[4] = {0}, next_backward[4] = {0}, computes = 0;
        for (int i = 0; i < s->programs[r].count; i++) {
            Instr in = s->programs[r].instrs[i];
            if (in.op == OP_FORWARD)
                EXPECT(in.microbatch == next_forward[in.chunk]++, "%s rank %d instr %d", kind, r, i);
            if (in.op == OP_BACKWARD)
                EXPECT(in.microbatch == next_backward[in.chunk]++, "%s rank %d instr %d", kind, r, i);
            computes += schedule_ops[in.op].kind == COMPUTE;
            if (in.op != OP_REDUCE_GRADS) continue;
            EXPECT(next_backward[in.chunk] == s->num_microbatches, "%s rank %d instr %d", kind, r, i);
        }
        EXPECT(computes == 2 * s->num_microbatches * s->num_chunks, "%s rank %d: %d computes", kind, r,
               computes);
    }
}

static void microbatches_go_in_order(void) { for_each_schedule(order_law); }

// No compute starts before the one before it ends, nor before its message arrives; each takes its cost.
static void times_law(const Schedule *s, const char *kind) {
    Simulation sim;
    schedule_simulate(s, (ScheduleCosts){.forward_us = 3, .backward_us = 5, .hop_us = 0.25}, &sim);
    for (int r = 0; r < s->num_ranks; r++) {
        double last_end = 0, busy = 0;
        for (int i = 0; i < s->programs[r].count; i++) {
            Span span = sim.spans[r][i];
            OpKind op_kind = schedule_ops[s->programs[r].instrs[i].op].kind;
            EXPECT(span.start_us >= last_end && span.end_us >= span.start_us, "%s rank %d instr %d", kind, r,
                   i);
            if (op_kind == SEND)
                EXPECT(span.end_us == span.start_us + 0.25, "%s rank %d instr %d", kind, r, i);
            if (op_kind == COMPUTE) last_end = span.end_us, busy += span.end_us - span.start_us;
        }
        EXPECT(last_end <= sim.total_us, "%s rank %d", kind, r);
        EXPECT(fabs(busy - 8 * s->num_microbatches) < 1e-9, "%s rank %d: %g", kind, r, busy);
    }
    simulation_destroy(&sim, s);
}

static void times_are_consistent(void) { for_each_schedule(times_law); }

// Along one microbatch: p forwards, p backwards, 2(p-1) hops.
static void hops_add_up(void) {
    Schedule s;
    Simulation sim;
    EXPECT_OK(schedule_create(&s, "1f1b", 5, 1, 1));
    schedule_simulate(&s, (ScheduleCosts){.forward_us = 1, .backward_us = 2, .hop_us = 0.5}, &sim);
    EXPECT(sim.total_us == 5 * 3 + 8 * 0.5, "%g", sim.total_us);
    simulation_destroy(&sim, &s);
    schedule_destroy(&s);
}

// Two stages that cost differently: the slower one sets the pace.
static void stages_may_cost_differently(void) {
    static const double forward_us[] = {1, 3}, backward_us[] = {2, 5};
    Schedule s;
    Simulation sim;
    EXPECT_OK(schedule_create(&s, "1f1b", 2, 1, 4));
    schedule_simulate(&s, (ScheduleCosts){.stage_forward_us = forward_us, .stage_backward_us = backward_us},
                      &sim);
    EXPECT(sim.total_us == 1 + 4 * (3 + 5) + 2, "%g", sim.total_us);
    EXPECT(sim.busy_us[0] == 12 && sim.busy_us[1] == 32, "%g %g", sim.busy_us[0], sim.busy_us[1]);
    EXPECT(fabs(sim.bubble - (35.0 / 22 - 1)) < 1e-12, "%g", sim.bubble);
    simulation_destroy(&sim, &s);
    schedule_destroy(&s);
}

// ---- what the papers print ----------------------------------------------------------------------------

// The computes of one rank: "F0 F1 B0", the chunk as that many primes.
static void print_computes(const Schedule *s, int rank, Text *out) {
    for (int i = 0; i < s->programs[rank].count; i++) {
        Instr in = s->programs[rank].instrs[i];
        if (schedule_ops[in.op].kind != COMPUTE) continue;
        text_add(out, "%s%s%d%.*s", out->size ? " " : "", schedule_ops[in.op].text, in.microbatch, in.chunk,
                 "'''");
    }
}

// The chunk of each compute counted from 1, backwards negative: Megatron-LM's notation.
static void print_chunks(const Schedule *s, int rank, Text *out) {
    for (int i = 0; i < s->programs[rank].count; i++) {
        Instr in = s->programs[rank].instrs[i];
        if (schedule_ops[in.op].kind != COMPUTE) continue;
        text_add(out, "%s%d", out->size ? " " : "", in.op == OP_FORWARD ? in.chunk + 1 : -in.chunk - 1);
    }
}

static void expect_listing(const char *kind, int p, int v, int m,
                           void (*print)(const Schedule *, int, Text *), const char *const *lines) {
    Schedule s;
    EXPECT_OK(schedule_create(&s, kind, p, v, m));
    for (int r = 0; r < p; r++) {
        Text text = {0};
        print(&s, r, &text);
        EXPECT(!strcmp(text_string(&text), lines[r]), "%s rank %d:\n%s\n%s", kind, r, text_string(&text),
               lines[r]);
        text_free(&text);
    }
    schedule_destroy(&s);
}

static void listings_of_1f1b(void) {
    static const char *const m8[] = {
        "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7", "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
        "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7", "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"};
    static const char *const m6[] = {
        "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5", "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5",
        "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5", "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5"};
    expect_listing("1f1b", 4, 1, 8, print_computes, m8);
    expect_listing("1f1b", 4, 1, 6, print_computes, m6);
}

static void listing_of_gpipe(void) {
    static const char *const lines[] = {"F0 F1 F2 B0 B1 B2", "F0 F1 F2 B0 B1 B2"};
    expect_listing("gpipe", 2, 1, 3, print_computes, lines);
}

// Narayanan et al. 2021, figure 4.
static void listing_of_interleaved(void) {
    static const char *const lines[] = {
        "F0 F1 F2 F3 F0' F1' F2' F3' F4 F5 F6 B0' F7 B1' F4' B2' F5' B3' F6' B0 F7' B1 B2 B3 B4' B5' B6' B7' B4 B5 B6 B7",
        "F0 F1 F2 F3 F0' F1' F2' F3' F4 B0' F5 B1' F6 B2' F7 B3' F4' B0 F5' B1 F6' B2 F7' B3 B4' B5' B6' B7' B4 B5 B6 B7",
        "F0 F1 F2 F3 F0' F1' F2' B0' F3' B1' F4 B2' F5 B3' F6 B0 F7 B1 F4' B2 F5' B3 F6' B4' F7' B5' B6' B7' B4 B5 B6 B7",
        "F0 F1 F2 F3 F0' B0' F1' B1' F2' B2' F3' B3' F4 B0 F5 B1 F6 B2 F7 B3 F4' B4' F5' B5' F6' B6' F7' B7' B4 B5 B6 B7"};
    expect_listing("interleaved", 4, 2, 8, print_computes, lines);
}

// Source: Megatron-LM's schedule tables for microbatch groups of p.
static void chunks_of_interleaved(void) {
    static const char *const p2[] = {"1 1 2 2 1 -2 1 -2 2 -1 2 -1 -2 -2 -1 -1",
                                     "1 1 2 -2 2 -2 1 -1 1 -1 2 -2 2 -2 -1 -1"};
    static const char *const p4[] = {
        "1 1 1 1 2 2 2 2 1 1 1 -2 1 -2 2 -2 2 -2 2 -1 2 -1 -1 -1 -2 -2 -2 -2 -1 -1 -1 -1",
        "1 1 1 1 2 2 2 2 1 -2 1 -2 1 -2 1 -2 2 -1 2 -1 2 -1 2 -1 -2 -2 -2 -2 -1 -1 -1 -1",
        "1 1 1 1 2 2 2 -2 2 -2 1 -2 1 -2 1 -1 1 -1 2 -1 2 -1 2 -2 2 -2 -2 -2 -1 -1 -1 -1",
        "1 1 1 1 2 -2 2 -2 2 -2 2 -2 1 -1 1 -1 1 -1 1 -1 2 -2 2 -2 2 -2 2 -2 -1 -1 -1 -1"};
    expect_listing("interleaved", 2, 2, 4, print_chunks, p2);
    expect_listing("interleaved", 4, 2, 8, print_chunks, p4);
}

static void makespans_and_peaks(void) {
    static const struct {
        const char *kind;
        int p, v, m;
        double total_us;
        int peaks[8];
    } cases[] = {
        {"gpipe", 4, 1, 8, 33, {8, 8, 8, 8}},
        {"1f1b", 4, 1, 8, 33, {4, 3, 2, 1}},
        {"interleaved", 4, 2, 8, 28.5, {11, 9, 7, 5}},
        {"interleaved", 4, 2, 4, 16.5, {8, 8, 7, 5}},
        {"interleaved", 8, 3, 16, 55, {31, 29, 27, 25, 23, 21, 19, 17}},
        {"interleaved", 4, 4, 16, 50.25, {19, 17, 15, 13}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Schedule s;
        Simulation sim;
        EXPECT_OK(schedule_create(&s, cases[i].kind, cases[i].p, cases[i].v, cases[i].m));
        schedule_simulate(&s, (ScheduleCosts){.forward_us = 1, .backward_us = 2}, &sim);
        EXPECT(fabs(sim.total_us - cases[i].total_us) < 1e-12 * sim.total_us, "case %zu: %.17g", i,
               sim.total_us);
        EXPECT(!memcmp(sim.peak_stash, cases[i].peaks, (size_t)cases[i].p * sizeof(int)),
               "case %zu: %d %d ...", i, sim.peak_stash[0], sim.peak_stash[1]);
        simulation_destroy(&sim, &s);
        schedule_destroy(&s);
    }
}

static void shapes_are_refused_with_reasons(void) {
    static const struct {
        const char *kind;
        int p, v, m;
        const char *message;
    } cases[] = {
        {"1f2b", 4, 1, 8, "schedule 1f2b is not one of gpipe, 1f1b, interleaved"},
        {"1f1b", 4, 2, 8, "schedule 1f1b takes 1 chunk per pipeline rank, not 2; interleaved takes several"},
        {"interleaved", 4, 1, 8,
         "schedule interleaved needs 2 or more chunks per pipeline rank, not 1; 1f1b takes one"},
        {"interleaved", 1, 2, 8,
         "schedule interleaved needs 2 or more pipeline ranks, not 1; 1f1b takes one"},
        {"interleaved", 4, 2, 3,
         "schedule interleaved needs a multiple of the 4 pipeline ranks as microbatches, not 3; 4 would work"},
        {"interleaved", 4, 2, 6,
         "schedule interleaved needs a multiple of the 4 pipeline ranks as microbatches, not 6; 4 or 8 would work"},
        {"gpipe", 0, 1, 8, "schedule: 0 pipeline ranks, 1 to 4096 are possible"},
        {"interleaved", 4, 65, 8, "schedule: 65 chunks per rank, 1 to 64 are possible"},
        {"gpipe", 4, 1, 0, "schedule: 0 microbatches, 1 to 1000000 are possible"},
        {"gpipe", 4096, 1, 1000000,
         "schedule: 4096 ranks x 1 chunks x 1000000 microbatches, at most 16777216 in all are possible"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Schedule s;
        Status status = schedule_create(&s, cases[i].kind, cases[i].p, cases[i].v, cases[i].m);
        EXPECT(status == ERR_CONFIG && !strcmp(fail_message(), cases[i].message), "case %zu: %s", i,
               fail_message());
        schedule_destroy(&s);
    }
}

int main(int argc, char **argv) {
    static const Test tests[] = {
        {"bubble equals the formula", bubble_equals_the_formula},
        {"peak stash equals the formula", peak_stash_equals_the_formula},
        {"microbatches go in order", microbatches_go_in_order},
        {"times are consistent", times_are_consistent},
        {"hops add up", hops_add_up},
        {"stages may cost differently", stages_may_cost_differently},
        {"listings of 1f1b", listings_of_1f1b},
        {"listing of gpipe", listing_of_gpipe},
        {"listing of interleaved", listing_of_interleaved},
        {"chunks of interleaved", chunks_of_interleaved},
        {"makespans and peaks", makespans_and_peaks},
        {"shapes are refused with reasons", shapes_are_refused_with_reasons},
        {0},
    };
    return harness_run(tests, argc, argv);
}
