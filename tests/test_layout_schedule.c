// Generated schedules: laws for every p <= 8, m <= 24, v <= 4, then the listings and numbers that
// the papers print.
#include "harness.h"
#include "layout/buffers.h"
#include "layout/kinds.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static ScheduleSpec spec_of(const char *kind, int p, int v, int m) {
    return (ScheduleSpec){.kind = kind, .ranks = p, .chunks = v, .microbatches = m};
}

static void create(Schedule *schedule, ScheduleSpec spec) { EXPECT_OK(schedule_create(schedule, &spec)); }

// With a forward of v and a backward of 2v every compute takes a whole number, so the times are exact.
static void bubble_law(const Schedule *s, const char *kind) {
    int p = s->num_ranks, v = s->num_chunks, m = s->num_microbatches;
    Simulation exact, real;
    schedule_simulate(s, (ScheduleCosts){.forward_us = v, .backward_us = 2.0 * v, .weight_fraction = 0.5},
                      &exact);
    schedule_simulate(s, (ScheduleCosts){.forward_us = 0.7, .backward_us = 1.4, .weight_fraction = 0.5},
                      &real);
    ScheduleSpec spec = spec_of(kind, p, v, m);
    double expected = schedule_kind(kind)->bubble(&spec);
    if (!isnan(expected)) {
        EXPECT(exact.total_us == 3.0 * m * v + round(3 * m * v * expected), "%s p %d m %d v %d: %g", kind, p,
               m, v, exact.total_us);
        EXPECT(fabs(exact.bubble - expected) < 1e-12, "%s p %d m %d v %d: %.17g", kind, p, m, v,
               exact.bubble);
        EXPECT(fabs(real.bubble - expected) < 1e-12, "%s p %d m %d v %d: %.17g", kind, p, m, v, real.bubble);
    }
    for (int r = 0; r < p; r++) EXPECT(exact.busy_us[r] == 3.0 * m * v, "%s rank %d", kind, r);
    simulation_destroy(&real, s);
    simulation_destroy(&exact, s);
}

// (p-1)/(v m) for the schedules of the paper, a third of it for the split ones, while microbatches
// fill the pipeline.
static void formulas_are_those_of_the_papers(void) {
    static const struct {
        const char *kind;
        int p, v, m;
        double bubble;
    } cases[] = {
        {"gpipe", 4, 1, 8, 3.0 / 8},  {"1f1b", 4, 1, 2, 3.0 / 2},  {"interleaved", 4, 3, 8, 3.0 / 24},
        {"zb-h1", 4, 1, 4, 3.0 / 12}, {"zb-h1", 4, 1, 3, NAN},     {"zb-h2", 4, 1, 7, 3.0 / 21},
        {"zb-h2", 4, 1, 6, NAN},      {"zb-v", 4, 2, 7, 1.5 / 21}, {"zb-v", 4, 2, 6, NAN},
        {"auto", 4, 1, 8, NAN}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ScheduleSpec spec = spec_of(cases[i].kind, cases[i].p, cases[i].v, cases[i].m);
        double bubble = schedule_kind(spec.kind)->bubble(&spec);
        EXPECT(isnan(cases[i].bubble) ? isnan(bubble) : fabs(bubble - cases[i].bubble) < 1e-15,
               "case %zu: %g", i, bubble);
    }
}

// The closed form is exact, but for a kind that is only told how much it may hold.
static void stash_law(const Schedule *s, const ScheduleSpec *spec) {
    const ScheduleKind *kind = schedule_kind(spec->kind);
    bool exact = !(kind->settings & SETTING_STASH_LIMIT);
    for (int r = 0; r < s->num_ranks; r++) {
        int held = schedule_peak_stash(s, r), most = schedule_kind_stash(kind, spec, r);
        EXPECT(exact ? held == most : held <= most, "%s p %d m %d v %d group %d rank %d: %d, not %d",
               kind->name, s->num_ranks, s->num_microbatches, s->num_chunks, spec->group, r, held, most);
    }
}

// Gradients add up in the order of microbatches on every grid, so that their sum has the same bits;
// and R comes last.
static void order_law(const Schedule *s, const char *kind) {
    for (int r = 0; r < s->num_ranks; r++) {
        int next[NUM_SCHEDULE_OPS][4] = {{0}}, computes = 0;
        bool split = false;
        for (int i = 0; i < s->programs[r].count; i++) {
            Instr in = s->programs[r].instrs[i];
            bool compute = schedule_ops[in.op].kind == COMPUTE;
            computes += compute;
            split |= in.op == OP_BACKWARD_WEIGHT;
            if (compute) EXPECT(in.microbatch == next[in.op][in.chunk]++, "%s rank %d instr %d", kind, r, i);
            if (in.op != OP_REDUCE_GRADS) continue;
            int ended = next[split ? OP_BACKWARD_WEIGHT : OP_BACKWARD][in.chunk];
            EXPECT(ended == s->num_microbatches, "%s rank %d instr %d", kind, r, i);
        }
        EXPECT(computes == (split ? 3 : 2) * s->num_microbatches * s->num_chunks, "%s rank %d: %d computes",
               kind, r, computes);
        EXPECT(!split || schedule_kind(kind)->splits_backward, "%s splits backwards", kind);
    }
}

// No compute starts before the one before it ends, nor before its message arrives; each takes its cost.
static void times_law(const Schedule *s, const char *kind) {
    Simulation sim;
    ScheduleCosts costs = {.forward_us = 3, .backward_us = 5, .weight_fraction = 0.25, .hop_us = 0.25};
    schedule_simulate(s, costs, &sim);
    for (int r = 0; r < s->num_ranks; r++) {
        double last_end = 0, busy = 0;
        for (int i = 0; i < s->programs[r].count; i++) {
            Span span = sim.spans[r][i];
            OpKind op_kind = schedule_ops[s->programs[r].instrs[i].op].kind;
            EXPECT(span.end_us >= span.start_us, "%s rank %d instr %d", kind, r, i);
            if (op_kind == SEND)
                EXPECT(span.end_us == span.start_us + 0.25, "%s rank %d instr %d", kind, r, i);
            if (op_kind != COMPUTE) continue;
            EXPECT(span.start_us >= last_end, "%s rank %d instr %d", kind, r, i);
            last_end = span.end_us, busy += span.end_us - span.start_us;
        }
        EXPECT(last_end <= sim.total_us, "%s rank %d", kind, r);
        EXPECT(fabs(busy - 8 * s->num_microbatches) < 1e-9, "%s rank %d: %g", kind, r, busy);
    }
    simulation_destroy(&sim, s);
}

static void keeps_the_laws(ScheduleSpec spec) {
    Schedule schedule;
    create(&schedule, spec);
    bubble_law(&schedule, spec.kind);
    stash_law(&schedule, &spec);
    order_law(&schedule, spec.kind);
    times_law(&schedule, spec.kind);
    schedule_destroy(&schedule);
}

// The short form has few microbatches, and 20 of them: fewer and more than each kind needs.
static bool is_left_out(int p, int m) { return harness_short() && (p == 4 || p > 5 || (m > 5 && m != 20)); }

// All that a kind accepts; the sizes of the groups, where it has them, are p, p + 1 and m.
static int for_each_of_kind(const ScheduleKind *kind, int receive_ahead) {
    int tried = 0, num_groups = kind->settings & SETTING_GROUP ? 3 : 1;
    for (int i = 0; i < 8 * 24 * 4 * num_groups; i++) {
        int p = 1 + i % 8, m = 1 + i / 8 % 24, v = 1 + i / 192 % 4;
        const int groups[] = {0, p + 1, m};
        ScheduleSpec spec = spec_of(kind->name, p, v, m);
        spec.group = groups[i / 768];
        spec.receive_ahead = receive_ahead;
        char why[256];
        if (schedule_kind_refuse(kind, &spec, why, sizeof why)) continue;
        tried++;
        if (!is_left_out(p, m)) keeps_the_laws(spec);
    }
    return tried;
}

// schedule_create verifies; what receives ahead of their computes change is in the walk alone.
static void every_schedule_keeps_the_laws(void) {
    for (int i = 0; i < 2 * num_schedule_kinds; i++) {
        const ScheduleKind *kind = schedule_kinds[i / 2];
        int tried = for_each_of_kind(kind, i % 2);
        EXPECT(tried >= 8 * 24, "%s: %d schedules", kind->name, tried);
    }
}

// Along one microbatch: p forwards, p backwards, 2(p-1) hops.
static void hops_add_up(void) {
    Schedule s;
    Simulation sim;
    create(&s, spec_of("1f1b", 5, 1, 1));
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
    create(&s, spec_of("1f1b", 2, 1, 4));
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

static void expect_listing(ScheduleSpec spec, void (*print)(const Schedule *, int, Text *),
                           const char *const *lines) {
    Schedule s;
    create(&s, spec);
    for (int r = 0; r < spec.ranks; r++) {
        Text text = {0};
        print(&s, r, &text);
        EXPECT(!strcmp(text_string(&text), lines[r]), "%s rank %d:\n%s\n%s", spec.kind, r, text_string(&text),
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
    expect_listing(spec_of("1f1b", 4, 1, 8), print_computes, m8);
    expect_listing(spec_of("1f1b", 4, 1, 6), print_computes, m6);
}

static void listing_of_gpipe(void) {
    static const char *const lines[] = {"F0 F1 F2 B0 B1 B2", "F0 F1 F2 B0 B1 B2"};
    expect_listing(spec_of("gpipe", 2, 1, 3), print_computes, lines);
}

// Narayanan et al. 2021, figure 4.
static void listing_of_interleaved(void) {
    static const char *const lines[] = {
        "F0 F1 F2 F3 F0' F1' F2' F3' F4 F5 F6 B0' F7 B1' F4' B2' F5' B3' F6' B0 F7' B1 B2 B3 B4' B5' B6' "
        "B7' B4 B5 B6 B7",
        "F0 F1 F2 F3 F0' F1' F2' F3' F4 B0' F5 B1' F6 B2' F7 B3' F4' B0 F5' B1 F6' B2 F7' B3 B4' B5' B6' "
        "B7' B4 B5 B6 B7",
        "F0 F1 F2 F3 F0' F1' F2' B0' F3' B1' F4 B2' F5 B3' F6 B0 F7 B1 F4' B2 F5' B3 F6' B4' F7' B5' B6' "
        "B7' B4 B5 B6 B7",
        "F0 F1 F2 F3 F0' B0' F1' B1' F2' B2' F3' B3' F4 B0 F5 B1 F6 B2 F7 B3 F4' B4' F5' B5' F6' B6' F7' "
        "B7' B4 B5 B6 B7"};
    expect_listing(spec_of("interleaved", 4, 2, 8), print_computes, lines);
}

// Source: Megatron-LM's schedule tables, for microbatch groups of p and of 3.
static void chunks_of_interleaved(void) {
    static const char *const p2[] = {"1 1 2 2 1 -2 1 -2 2 -1 2 -1 -2 -2 -1 -1",
                                     "1 1 2 -2 2 -2 1 -1 1 -1 2 -2 2 -2 -1 -1"};
    static const char *const p4[] = {
        "1 1 1 1 2 2 2 2 1 1 1 -2 1 -2 2 -2 2 -2 2 -1 2 -1 -1 -1 -2 -2 -2 -2 -1 -1 -1 -1",
        "1 1 1 1 2 2 2 2 1 -2 1 -2 1 -2 1 -2 2 -1 2 -1 2 -1 2 -1 -2 -2 -2 -2 -1 -1 -1 -1",
        "1 1 1 1 2 2 2 -2 2 -2 1 -2 1 -2 1 -1 1 -1 2 -1 2 -1 2 -2 2 -2 -2 -2 -1 -1 -1 -1",
        "1 1 1 1 2 -2 2 -2 2 -2 2 -2 1 -1 1 -1 1 -1 1 -1 2 -2 2 -2 2 -2 2 -2 -1 -1 -1 -1"};
    static const char *const group3[] = {"1 1 1 2 2 2 -2 1 -2 1 -2 2 -1 2 -1 -1 -2 -2 -1 -1",
                                         "1 1 1 2 -2 2 -2 2 -2 1 -1 1 -1 2 -1 2 -2 -2 -1 -1"};
    ScheduleSpec grouped = spec_of("interleaved", 2, 2, 5);
    grouped.group = 3;
    expect_listing(grouped, print_chunks, group3);
    expect_listing(spec_of("interleaved", 2, 2, 4), print_chunks, p2);
    expect_listing(spec_of("interleaved", 4, 2, 8), print_chunks, p4);
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
        {"zb-h1", 4, 1, 8, 27, {4, 4, 4, 4}},
        {"zb-h2", 4, 1, 8, 27, {7, 7, 7, 7}},
        {"zb-v", 4, 2, 8, 25.5, {8, 8, 8, 8}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Schedule s;
        Simulation sim;
        create(&s, spec_of(cases[i].kind, cases[i].p, cases[i].v, cases[i].m));
        schedule_simulate(&s, (ScheduleCosts){.forward_us = 1, .backward_us = 2, .weight_fraction = 0.5},
                          &sim);
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
        int p, v, m, group;
        const char *message;
    } cases[] = {
        {"1f2b", 4, 1, 8, 0, "schedule 1f2b is not one of gpipe, "},
        {"1f1b", 4, 2, 8, 0,
         "schedule 1f1b takes 1 chunk per pipeline rank, not 2; interleaved takes several"},
        {"zb-h2", 4, 2, 8, 0,
         "schedule zb-h2 takes 1 chunk per pipeline rank, not 2; interleaved takes several"},
        {"zb-v", 4, 3, 8, 0,
         "schedule zb-v takes 2 chunks per pipeline rank, not 3; interleaved takes several"},
        {"zb-v", 4, 1, 8, 0, "schedule zb-v takes 2 chunks per pipeline rank, not 1; 1f1b takes one"},
        {"interleaved", 4, 1, 8, 0,
         "schedule interleaved needs 2 or more chunks per pipeline rank, not 1; 1f1b takes one"},
        {"interleaved", 1, 2, 8, 0,
         "schedule interleaved needs 2 or more pipeline ranks, not 1; 1f1b takes one"},
        {"interleaved", 4, 2, 3, 0,
         "schedule interleaved needs as many microbatches as pipeline ranks, 4, or more, not 3"},
        {"interleaved", 4, 2, 6, 0,
         "schedule interleaved takes 6 microbatches in groups of 4, and the last group has 2, fewer than "
         "the 4 pipeline ranks: groups of 6, or 4 microbatches, would work"},
        {"interleaved", 4, 2, 8, 3,
         "schedule interleaved takes groups of 4 (the pipeline ranks) to 8 (all) microbatches, not 3"},
        {"interleaved", 4, 2, 8, 9,
         "schedule interleaved takes groups of 4 (the pipeline ranks) to 8 (all) microbatches, not 9"},
        {"gpipe", 0, 1, 8, 0, "schedule: 0 pipeline ranks, 1 to 4096 are possible"},
        {"interleaved", 4, 65, 8, 0, "schedule: 65 chunks per rank, 1 to 64 are possible"},
        {"gpipe", 4, 1, 0, 0, "schedule: 0 microbatches, 1 to 1000000 are possible"},
        {"gpipe", 4096, 1, 1000000, 0,
         "schedule: 4096 ranks x 1 chunks x 1000000 microbatches, at most 16777216 in all are possible"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Schedule s;
        ScheduleSpec spec = spec_of(cases[i].kind, cases[i].p, cases[i].v, cases[i].m);
        spec.group = cases[i].group;
        Status status = schedule_create(&s, &spec);
        bool same = !strncmp(fail_message(), cases[i].message, strlen(cases[i].message));
        EXPECT(status == ERR_CONFIG && same, "case %zu: %s", i, fail_message());
        schedule_destroy(&s);
    }
}

// The groups and microbatches that a refusal names do work.
static void refusals_name_what_works(void) {
    const ScheduleKind *kind = schedule_kind("interleaved");
    for (int i = 0; i < 7 * 40 * 40; i += harness_short() ? 11 : 1) {
        ScheduleSpec spec = spec_of("interleaved", 2 + i % 7, 2, 1 + i / 7 % 40);
        spec.group = 1 + i / 280;
        char why[256];
        int group, microbatches;
        if (!schedule_kind_refuse(kind, &spec, why, sizeof why)) continue;
        const char *advice = strstr(why, ": groups of ");
        if (!advice) continue;
        EXPECT(sscanf(advice, ": groups of %d, or %d", &group, &microbatches) == 2, "%s", why);
        ScheduleSpec other = spec, fewer = spec;
        other.group = group;
        fewer.microbatches = microbatches;
        EXPECT(!schedule_kind_refuse(kind, &other, why, sizeof why) &&
                   !schedule_kind_refuse(kind, &fewer, why, sizeof why),
               "p %d m %d g %d", spec.ranks, spec.microbatches, spec.group);
    }
}

int main(int argc, char **argv) {
    static const Test tests[] = {
        {"every schedule keeps the laws", every_schedule_keeps_the_laws},
        {"formulas are those of the papers", formulas_are_those_of_the_papers},
        {"hops add up", hops_add_up},
        {"stages may cost differently", stages_may_cost_differently},
        {"listings of 1f1b", listings_of_1f1b},
        {"listing of gpipe", listing_of_gpipe},
        {"listing of interleaved", listing_of_interleaved},
        {"chunks of interleaved", chunks_of_interleaved},
        {"makespans and peaks", makespans_and_peaks},
        {"shapes are refused with reasons", shapes_are_refused_with_reasons},
        {"refusals name what works", refusals_name_what_works},
        {0},
    };
    return harness_run(tests, argc, argv);
}
