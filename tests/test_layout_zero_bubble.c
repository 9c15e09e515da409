// Schedules with split backwards against what their paper prints: the orders of its figures, memory and spans
// of every size, and the bubble rates of its table 5 for measured times.
// Source: Qi et al. 2023, arXiv 2401.10241.
#include "harness.h"
#include "layout/kinds.h"
#include <math.h>
#include <string.h>

static void create(Schedule *schedule, const char *kind, int p, int m) {
    ScheduleSpec spec = {.kind = kind, .ranks = p, .chunks = strcmp(kind, "zb-v") ? 1 : 2, .microbatches = m};
    EXPECT_OK(schedule_create(schedule, &spec));
}

// ---- the figures ----------------------------------------------------------------------------------------

// The computes of one rank: "F0 I0 W0", the second chunk primed.
static void print_computes(const Schedule *s, int rank, Text *out) {
    for (int i = 0; i < s->programs[rank].count; i++) {
        Instr in = s->programs[rank].instrs[i];
        if (schedule_ops[in.op].kind != COMPUTE) continue;
        text_add(out, "%s%s%d%s", out->size ? " " : "", schedule_ops[in.op].text, in.microbatch,
                 in.chunk ? "'" : "");
    }
}

static void expect_listing(const char *kind, const char *const lines[4]) {
    Schedule s;
    create(&s, kind, 4, 8);
    for (int r = 0; r < 4; r++) {
        Text text = {0};
        print_computes(&s, r, &text);
        EXPECT(!strcmp(text_string(&text), lines[r]), "%s rank %d:\n%s\n%s", kind, r, text_string(&text),
               lines[r]);
        text_free(&text);
    }
    schedule_destroy(&s);
}

static void listing_of_h1(void) {
    static const char *const lines[] = {
        "F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7",
        "F0 F1 F2 I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 F6 I4 W3 F7 I5 W4 I6 W5 I7 W6 W7",
        "F0 F1 I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 F6 I5 W3 F7 I6 W4 I7 W5 W6 W7",
        "F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7"};
    expect_listing("zb-h1", lines);
}

static void listing_of_h2(void) {
    static const char *const lines[] = {
        "F0 F1 F2 F3 F4 F5 F6 I0 W0 F7 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5 I6 W6 I7 W7",
        "F0 F1 F2 F3 F4 I0 F5 I1 F6 I2 W0 F7 I3 W1 I4 W2 I5 W3 I6 W4 I7 W5 W6 W7",
        "F0 F1 F2 I0 F3 I1 F4 I2 F5 I3 F6 I4 W0 F7 I5 W1 I6 W2 I7 W3 W4 W5 W6 W7",
        "F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 F5 I5 F6 I6 W0 F7 I7 W1 W2 W3 W4 W5 W6 W7"};
    expect_listing("zb-h2", lines);
}

static void listing_of_v(void) {
    static const char *const lines[] = {
        "F0 F1 F2 F3 F4 F5 F6 F0' I0' W0' F1' I1' W1' F2' I2' W2' F3' I3' W3' F7 I0 W0 F4' I4' W4' I1 W1 "
        "F5' I5' W5' I2 W2 F6' I6' W6' I3 W3 F7' I7' W7' I4 W4 I5 W5 I6 W6 I7 W7",
        "F0 F1 F2 F3 F4 F0' F5 F1' I0' W0' F2' I1' W1' F3' I2' W2' F6 I0 W0 F4' I3' W3' F7 I1 W1 F5' I4' "
        "W4' I2 W2 F6' I5' W5' I3 W3 F7' I6' W6' I4 I7' I5 W4 I6 W5 I7 W6 W7' W7",
        "F0 F1 F2 F0' F3 F1' F4 F2' I0' W0' F3' I1' W1' F5 I0 W0 F4' I2' W2' F6 I1 W1 F5' I3' W3' F7 I2 W2 "
        "F6' I4' W4' I3 W3 F7' I5' W5' I4 I6' I5 I7' I6 W4 I7 W5 W6' W7' W6 W7",
        "F0 F0' F1 F1' F2 F2' F3 F3' I0' W0' F4 I0 W0 F4' I1' W1' F5 I1 W1 F5' I2' W2' F6 I2 W2 F6' I3' W3' "
        "F7 I3 W3 F7' I4' W4' I4 I5' I5 I6' I6 I7' I7 W4 W5' W6' W7' W5 W6 W7"};
    expect_listing("zb-v", lines);
}

// Down the ranks and up again, so that rank 0 has both ends of the model and the last rank
// hands over to itself.
static void stages_lie_as_a_v(void) {
    Schedule s;
    create(&s, "zb-v", 3, 5);
    for (int r = 0; r < 3; r++) {
        EXPECT(schedule_stage(&s, r, 0) == r && schedule_stage(&s, r, 1) == 5 - r, "rank %d", r);
        EXPECT(s.stage_place[r] == 2 * r && s.stage_place[5 - r] == 2 * r + 1, "rank %d", r);
    }
    EXPECT(schedule_partner(&s, 2, 0, OP_SEND_FORWARD) == -1, "the bottom of the V sends");
    schedule_destroy(&s);
}

// ---- spans ----------------------------------------------------------------------------------------------

static Span busy_span(const Schedule *s, const Simulation *simulation, int rank) {
    Span all = {INFINITY, 0};
    for (int i = 0; i < s->programs[rank].count; i++) {
        if (schedule_ops[s->programs[rank].instrs[i].op].kind != COMPUTE) continue;
        all.start_us = fmin(all.start_us, simulation->spans[rank][i].start_us);
        all.end_us = fmax(all.end_us, simulation->spans[rank][i].end_us);
    }
    return all;
}

// With equal times: no gap between the first and the last compute of a rank, each rank a compute after the
// one before. The few sending buffers with which the whole takes no longer may let a single rank end later:
// here there are plenty.
static void ranks_are_never_idle_once_begun(void) {
    for (int i = 0; i < 2 * 8 * 24; i++) {
        const char *kind = i % 2 ? "zb-v" : "zb-h2";
        int p = 1 + i / 2 % 8, m = 1 + i / 16;
        double late = i % 2 ? 0.5 : 1;
        if (m < 2 * p - 1) continue;
        Schedule s;
        Simulation simulation;
        create(&s, kind, p, m);
        s.num_sending = p;
        schedule_simulate(&s, (ScheduleCosts){.forward_us = 1, .backward_us = 2, .weight_fraction = 0.5},
                          &simulation);
        for (int r = 0; r < p; r++) {
            Span span = busy_span(&s, &simulation, r);
            EXPECT(span.start_us == r * late && span.end_us == r * late + 3 * m,
                   "%s p %d m %d rank %d: %g to %g", kind, p, m, r, span.start_us, span.end_us);
        }
        simulation_destroy(&simulation, &s);
        schedule_destroy(&s);
    }
}

// ---- the table --------------------------------------------------------------------------------------------

// The longest span of any rank over its part that is no work; as the table has it, relative to the span.
static double bubble_rate(const char *kind, int p, int m, double input, double weight, double hop) {
    Schedule s;
    Simulation simulation;
    create(&s, kind, p, m);
    schedule_simulate(&s,
                      (ScheduleCosts){.forward_us = 1,
                                      .backward_us = input + weight,
                                      .weight_fraction = weight / (input + weight),
                                      .hop_us = hop},
                      &simulation);
    double longest = 0;
    for (int r = 0; r < p; r++) {
        Span span = busy_span(&s, &simulation, r);
        longest = fmax(longest, span.end_us - span.start_us);
    }
    simulation_destroy(&simulation, &s);
    schedule_destroy(&s);
    return 1 - m * (1 + input + weight) / longest;
}

static void bubble_rates_of_measured_times(void) {
    static const struct {
        int p, m;
        double input, weight, hop, rates[3];
    } rows[] = {
        {8, 24, 0.9765, 0.5041, 0.0324, {0.2431, 0.1585, 0.1083}},
        {8, 32, 0.9769, 0.5040, 0.0338, {0.1985, 0.1242, 0.0837}},
        {8, 64, 0.9758, 0.5026, 0.0411, {0.1240, 0.0674, 0.0444}},
        {8, 24, 0.9908, 0.6705, 0.0177, {0.2347, 0.1323, 0.0698}},
        {8, 32, 0.9875, 0.6553, 0.0194, {0.1898, 0.1045, 0.0559}},
        {8, 64, 0.9895, 0.6477, 0.0179, {0.1091, 0.0554, 0.0294}},
        {16, 48, 0.9913, 0.7167, 0.0332, {0.2552, 0.1397, 0.0672}},
        {16, 64, 0.9953, 0.7165, 0.0335, {0.2082, 0.1088, 0.0516}},
        {16, 128, 0.9985, 0.7160, 0.0334, {0.1251, 0.0576, 0.0266}},
        {32, 96, 0.9797, 0.7405, 0.0392, {0.2646, 0.1421, 0.0641}},
        {32, 128, 0.9804, 0.7401, 0.0392, {0.2168, 0.1106, 0.0490}},
        {32, 256, 0.9852, 0.7400, 0.0442, {0.1352, 0.0594, 0.0257}},
    };
    static const char *const kinds[] = {"1f1b", "zb-h1", "zb-h2"};
    for (size_t i = 0; i < 3 * sizeof rows / sizeof *rows; i++) {
        size_t row = i / 3;
        double rate = bubble_rate(kinds[i % 3], rows[row].p, rows[row].m, rows[row].input, rows[row].weight,
                                  rows[row].hop);
        EXPECT(fabs(rate - rows[row].rates[i % 3]) <= 1.0001e-4, "row %zu, %s: %.5f, not %.4f", row,
               kinds[i % 3], rate, rows[row].rates[i % 3]);
    }
}

int main(int argc, char **argv) {
    static const Test tests[] = {
        {"listing of zb-h1", listing_of_h1},
        {"listing of zb-h2", listing_of_h2},
        {"listing of zb-v", listing_of_v},
        {"stages lie as a V", stages_lie_as_a_v},
        {"ranks are never idle once begun", ranks_are_never_idle_once_begun},
        {"bubble rates of measured times", bubble_rates_of_measured_times},
        {0},
    };
    return harness_run(tests, argc, argv);
}
