// The kind "auto": never worse than a fixed kind of one chunk per rank that holds as little, within its limit,
// near what no order can beat when it may hold twice as much. TRIREME_TEST_REPORT=1 prints how much it gains.
#include "harness.h"
#include "layout/kinds.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = 16 };

static int num_cases(void) { return harness_short() ? 50 : 500; }

typedef struct {
    ScheduleSpec spec;
    double forward_us[MAX_RANKS], backward_us[MAX_RANKS];
} Case;

static uint64_t next(uint64_t *state) {
    return *state = *state * 6364136223846793005u + 1442695040888963407u;
}

static int between(uint64_t *state, int least, int most) {
    return least + (int)(next(state) >> 33) % (most - least + 1);
}

// Times of one forward about 1, of the halves of a backward from a third to twice that, a third of the cases
// with stages that differ; limits from one microbatch to more than are of use.
static void draw(uint64_t *state, Case *drawn) {
    int p = between(state, 1, 8), m = between(state, 1, 32);
    double input_us = between(state, 3, 20) / 10.0, weight_us = between(state, 3, 20) / 10.0;
    *drawn = (Case){.spec = {.kind = "auto", .ranks = p, .chunks = 1, .microbatches = m}};
    drawn->spec.stash_limit = between(state, 0, 2) ? between(state, 0, 2 * p + 2) : 0;
    drawn->spec.costs = (ScheduleCosts){.forward_us = 1,
                                        .backward_us = input_us + weight_us,
                                        .weight_fraction = weight_us / (input_us + weight_us),
                                        .hop_us = between(state, 0, 4) / 10.0};
    for (int r = 0; r < p; r++) {
        drawn->forward_us[r] = between(state, 8, 15) / 10.0;
        drawn->backward_us[r] = drawn->forward_us[r] * drawn->spec.costs.backward_us;
    }
    if (between(state, 0, 2)) return;
    drawn->spec.costs.stage_forward_us = drawn->forward_us;
    drawn->spec.costs.stage_backward_us = drawn->backward_us;
}

static int limit_of(const ScheduleSpec *spec) {
    int as_1f1b = spec->ranks < spec->microbatches ? spec->ranks : spec->microbatches;
    return spec->stash_limit ? spec->stash_limit : as_1f1b;
}

// How long a kind takes with the spec's costs, and the most that any rank holds.
static double time_us(ScheduleSpec spec, const char *kind, int *peak) {
    Schedule schedule;
    Simulation simulation;
    spec.kind = kind;
    EXPECT_OK(schedule_create(&schedule, &spec));
    schedule_simulate(&schedule, spec.costs, &simulation);
    double us = simulation.total_us;
    *peak = 0;
    for (int r = 0; r < spec.ranks; r++)
        if (simulation.peak_stash[r] > *peak) *peak = simulation.peak_stash[r];
    simulation_destroy(&simulation, &schedule);
    schedule_destroy(&schedule);
    return us;
}

// Of the fixed kinds within the limit; INFINITY when there is none.
static double best_fixed_us(const ScheduleSpec *spec) {
    double best_us = INFINITY;
    for (int i = 0; i < num_schedule_kinds; i++) {
        int peak;
        if (schedule_kinds[i]->max_chunks > 1 || schedule_kinds[i]->settings & SETTING_TIMES) continue;
        double us = time_us(*spec, schedule_kinds[i]->name, &peak);
        if (peak <= limit_of(spec)) best_us = fmin(best_us, us);
    }
    return best_us;
}

static void never_worse_than_a_fixed_kind(void) {
    uint64_t state = 1;
    int compared = 0, shorter = 0;
    double gain = 0;
    for (int i = 0; i < num_cases(); i++) {
        Case drawn;
        int peak;
        draw(&state, &drawn);
        double us = time_us(drawn.spec, "auto", &peak), fixed_us = best_fixed_us(&drawn.spec);
        EXPECT(us <= fixed_us * (1 + 1e-9), "case %d, p %d m %d limit %d: %g, fixed %g", i, drawn.spec.ranks,
               drawn.spec.microbatches, drawn.spec.stash_limit, us, fixed_us);
        EXPECT(peak <= limit_of(&drawn.spec), "case %d: holds %d", i, peak);
        if (!(fixed_us < INFINITY)) continue;
        compared++;
        shorter += us < fixed_us * (1 - 1e-6);
        gain += 1 - us / fixed_us;
    }
    EXPECT(compared > num_cases() / 2 && shorter > compared / 5, "%d of %d are shorter", shorter, compared);
    if (getenv("TRIREME_TEST_REPORT"))
        printf("auto: %d of %d cases shorter than the best fixed kind, by %.2f %% in the mean of all\n",
               shorter, compared, 100 * gain / compared);
}

// What auto is not compared with, since it places the model otherwise: a V in halves of a stage, which docs and
// `trireme schedule` say may be shorter in the same memory.
static void a_v_may_be_shorter(void) {
    uint64_t state = 1;
    int compared = 0, shorter = 0;
    for (int i = 0; i < num_cases(); i++) {
        Case drawn;
        int peak;
        draw(&state, &drawn);
        if (drawn.spec.costs.stage_forward_us) continue;
        ScheduleSpec folded = drawn.spec;
        folded.chunks = 2;
        double us = time_us(drawn.spec, "auto", &peak), v_us = time_us(folded, "zb-v", &peak);
        if (peak > 2 * limit_of(&drawn.spec)) continue;
        compared++;
        shorter += v_us < us * (1 - 1e-9);
    }
    EXPECT(shorter > compared / 4 && shorter < compared, "%d of %d are shorter", shorter, compared);
    if (getenv("TRIREME_TEST_REPORT"))
        printf("zb-v: %d of %d cases shorter than auto in the same memory\n", shorter, compared);
}

// The last rank begins after p-1 forwards and has all its work before it: with room for 2p microbatches that
// is reached, with room for p what the paper's ZB-1p reaches.    Source: Qi et al. 2023, table 5, its times.
static void twice_the_memory_leaves_no_bubble_but_the_start(void) {
    static const struct {
        int p, m;
        double input, weight, hop;
    } rows[] = {{8, 24, 0.9765, 0.5041, 0.0324},   {8, 32, 0.9769, 0.5040, 0.0338},
                {8, 64, 0.9758, 0.5026, 0.0411},   {8, 24, 0.9908, 0.6705, 0.0177},
                {8, 32, 0.9875, 0.6553, 0.0194},   {8, 64, 0.9895, 0.6477, 0.0179},
                {16, 48, 0.9913, 0.7167, 0.0332},  {16, 64, 0.9953, 0.7165, 0.0335},
                {16, 128, 0.9985, 0.7160, 0.0334}, {32, 96, 0.9797, 0.7405, 0.0392},
                {32, 128, 0.9804, 0.7401, 0.0392}, {32, 256, 0.9852, 0.7400, 0.0442}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int peak, p = rows[i].p, m = rows[i].m;
        if (harness_short() && p * m > 8 * 32) continue;
        double backward = rows[i].input + rows[i].weight;
        ScheduleSpec spec = {.ranks = p, .chunks = 1, .microbatches = m};
        spec.costs = (ScheduleCosts){.forward_us = 1,
                                     .backward_us = backward,
                                     .weight_fraction = rows[i].weight / backward,
                                     .hop_us = rows[i].hop};
        double least_us = (p - 1) * (1 + rows[i].hop) + m * (1 + backward);
        double of_p = time_us(spec, "auto", &peak), h1 = time_us(spec, "zb-h1", &peak);
        spec.stash_limit = 2 * p;
        double of_2p = time_us(spec, "auto", &peak);
        EXPECT(of_2p < least_us * (1 + 1e-3) && of_2p > least_us * (1 - 1e-9), "row %zu: %g, at least %g", i,
               of_2p, least_us);
        EXPECT(of_p <= h1 * (1 + 1e-9), "row %zu: %g, zb-h1 %g", i, of_p, h1);
    }
}

// One microbatch at a time is the slowest that there is: down the pipeline, up again, and a W
// before the next.
static void more_memory_helps(void) {
    int peak;
    ScheduleSpec spec = {.ranks = 4, .chunks = 1, .microbatches = 12, .stash_limit = 1};
    spec.costs = (ScheduleCosts){.forward_us = 1, .backward_us = 2, .weight_fraction = 0.5};
    double before_us = time_us(spec, "auto", &peak);
    EXPECT(before_us == 12 * (4 + 4 + 1), "one at a time: %g", before_us);
    for (spec.stash_limit = 2; spec.stash_limit <= 8; spec.stash_limit++) {
        double us = time_us(spec, "auto", &peak);
        EXPECT(us <= before_us, "limit %d: %g after %g", spec.stash_limit, us, before_us);
        before_us = us;
    }
    EXPECT(before_us == 3 * 12 + 3, "limit 8: %g", before_us);
}

// Without times, as when training starts, all three operations take the same.
static void no_times_are_equal_times(void) {
    int peak;
    ScheduleSpec spec = {.ranks = 4, .chunks = 1, .microbatches = 8, .stash_limit = 3}, equal = spec;
    equal.costs = (ScheduleCosts){.forward_us = 1, .backward_us = 2, .weight_fraction = 0.5};
    Text texts[2] = {{0}, {0}};
    for (int i = 0; i < 2; i++) {
        Schedule schedule;
        ScheduleSpec *from = i ? &equal : &spec;
        from->kind = "auto";
        EXPECT_OK(schedule_create(&schedule, from));
        schedule_print(&schedule, &texts[i]);
        schedule_destroy(&schedule);
    }
    EXPECT(!strcmp(text_string(&texts[0]), text_string(&texts[1])), "%s", text_string(&texts[0]));
    equal.stash_limit = 0;
    EXPECT(time_us(equal, "auto", &peak) == 27, "not as short as zb-h1");
    for (int i = 0; i < 2; i++) text_free(&texts[i]);
}

static void shapes_are_refused_with_reasons(void) {
    static const struct {
        int p, v, m, limit;
        const char *message;
    } cases[] = {
        {4, 2, 8, 0, "schedule auto takes 1 chunk per pipeline rank, not 2; interleaved takes several"},
        {4, 1, 8, -1, "schedule auto takes a stash limit of 1 or more, or 0 for as many as 1f1b, not -1"},
        {4096, 1, 1000, 0,
         "schedule auto takes up to 1048576 microbatches on all ranks together, not 1000 x 4096; zb-h1 "
         "takes more"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Schedule s;
        ScheduleSpec spec = {.kind = "auto", .ranks = cases[i].p, .chunks = cases[i].v};
        spec.microbatches = cases[i].m;
        spec.stash_limit = cases[i].limit;
        Status status = schedule_create(&s, &spec);
        EXPECT(status == ERR_CONFIG && !strcmp(fail_message(), cases[i].message), "case %zu: %s", i,
               fail_message());
        schedule_destroy(&s);
    }
}

int main(int argc, char **argv) {
    static const Test tests[] = {
        {"never worse than a fixed kind", never_worse_than_a_fixed_kind},
        {"a V may be shorter", a_v_may_be_shorter},
        {"twice the memory leaves no bubble but the start", twice_the_memory_leaves_no_bubble_but_the_start},
        {"more memory helps", more_memory_helps},
        {"no times are equal times", no_times_are_equal_times},
        {"shapes are refused with reasons", shapes_are_refused_with_reasons},
        {0},
    };
    return harness_run(tests, argc, argv);
}
