// Defines the kind auto: the shortest schedule of one chunk per rank that is known for given times and a given number
// of stashes. It tries all other kinds of one chunk, so that it is never longer than one of them within the limit, and
// the greedy orders of all choices; on a tie the first is taken. Kinds of several chunks place the model otherwise and
// are no candidates, though zb-v is often shorter in the same memory.
// Source: Qi et al. 2023, arXiv 2401.10241, section 3: ZB-1p and ZB-2p are its limits p and 2p.
#include "layout/buffers.h"
#include "layout/greedy.h"
#include "layout/walk.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// A greedy order needs time and memory for each microbatch on each rank.
enum { MAX_FORWARDS = 1 << 20 };

static int limit_of(const ScheduleSpec *spec) {
    int as_1f1b = spec->ranks < spec->microbatches ? spec->ranks : spec->microbatches;
    return spec->stash_limit ? spec->stash_limit : as_1f1b;
}

static const char *refuse_auto(const ScheduleSpec *spec, char *why, size_t size) {
    int64_t forwards = (int64_t)spec->ranks * spec->microbatches;
    if (spec->stash_limit < 0)
        snprintf(why, size, "takes a stash limit of 1 or more, or 0 for as many as 1f1b, not %d",
                 spec->stash_limit);
    else if (forwards > MAX_FORWARDS)
        snprintf(why, size,
                 "takes up to %d microbatches on all ranks together, not %d x %d; zb-h1 takes more",
                 MAX_FORWARDS, spec->microbatches, spec->ranks);
    else
        return NULL;
    return why;
}

// Without given times all three operations take the same time.
static ScheduleCosts costs_of(const ScheduleSpec *spec) {
    ScheduleCosts costs = spec->costs;
    if (costs.stage_forward_us || costs.forward_us > 0 || costs.backward_us > 0) return costs;
    return (ScheduleCosts){.forward_us = 1, .backward_us = 2, .weight_fraction = 0.5, .hop_us = costs.hop_us};
}

// ---- candidates -----------------------------------------------------------------------------------------

// The best order so far: that of a kind, or where kind is NULL, that of a choice.
typedef struct {
    const ScheduleKind *kind;
    GreedyChoice choice;
    double us;
} Best;

// Returns the time of a candidate, walked with all its messages; INFINITY when a rank holds too much.
static double candidate_us(const ScheduleSpec *spec, Schedule *candidate) {
    Simulation simulation = {0};
    for (int r = 0; r < spec->ranks; r++)
        if (schedule_peak_stash(candidate, r) > limit_of(spec)) return INFINITY;
    schedule_lower(candidate, spec->receive_ahead);
    Status status = schedule_prove(candidate);
    if (status == OK) status = schedule_walk(candidate, costs_of(spec), true, &simulation);
    CHECK(status == OK, "auto of %d ranks, %d microbatches: %s", spec->ranks, spec->microbatches,
          fail_message());
    return simulation.total_us;
}

static bool shorter(double us, double than_us) { return us < than_us * (1 - 1e-9); }

static void try_kind(const ScheduleSpec *spec, const ScheduleKind *kind, Best *best) {
    Schedule candidate;
    schedule_shape(&candidate, spec->ranks, 1, spec->microbatches);
    kind->generate(spec, &candidate);
    double us = candidate_us(spec, &candidate);
    if (shorter(us, best->us)) *best = (Best){.kind = kind, .us = us};
    schedule_destroy(&candidate);
}

// Tries a greedy order. It is walked only if it is the shortest without messages, which can only add time.
static void try_choice(const ScheduleSpec *spec, const GreedyTask *task, GreedyChoice choice, Best *best) {
    Schedule candidate;
    schedule_shape(&candidate, spec->ranks, 1, spec->microbatches);
    if (shorter(greedy_order(task, choice, candidate.programs), best->us)) {
        double us = candidate_us(spec, &candidate);
        if (shorter(us, best->us)) *best = (Best){.choice = choice, .us = us};
    }
    schedule_destroy(&candidate);
}

// ---- all of them ------------------------------------------------------------------------------------------

static GreedyTask task_open(const ScheduleSpec *spec) {
    ScheduleCosts costs = costs_of(spec);
    size_t ranks = (size_t)spec->ranks;
    GreedyTask task = {.ranks = spec->ranks,
                       .microbatches = spec->microbatches,
                       .stash_limit = limit_of(spec),
                       .hop_us = costs.hop_us};
    task.forward_us = layout_alloc(ranks, sizeof *task.forward_us);
    task.input_us = layout_alloc(ranks, sizeof *task.input_us);
    task.weight_us = layout_alloc(ranks, sizeof *task.weight_us);
    for (int r = 0; r < spec->ranks; r++) {
        double backward_us = costs.stage_forward_us ? costs.stage_backward_us[r] : costs.backward_us;
        task.forward_us[r] = costs.stage_forward_us ? costs.stage_forward_us[r] : costs.forward_us;
        task.weight_us[r] = backward_us * costs.weight_fraction;
        task.input_us[r] = backward_us - task.weight_us[r];
    }
    return task;
}

static void task_close(GreedyTask *task) {
    free(task->weight_us);
    free(task->input_us);
    free(task->forward_us);
}

static GreedyChoice nth_choice(const GreedyTask *task, int i) {
    const int slacks[] = {0, 1, task->microbatches};
    return (GreedyChoice){
        .wait_for_input = i & 1, .fill_whole = i & 2, .lead = i & 4, .slack = slacks[i / 8]};
}

// A kind that orders by times is no candidate: it would try this one in turn.
static bool is_candidate(const ScheduleKind *kind, const ScheduleSpec *spec) {
    char why[256];
    return !kind->stage && !(kind->settings & SETTING_TIMES) &&
           !schedule_kind_refuse(kind, spec, why, sizeof why);
}

// Tries the kinds in the order of the table, beginning with the default kind.
static void try_kinds(const ScheduleSpec *spec, Best *best) {
    int first = 0;
    while (schedule_kinds[first] != schedule_kind_default(1)) first++;
    for (int i = 0; i < num_schedule_kinds; i++) {
        const ScheduleKind *kind = schedule_kinds[(first + i) % num_schedule_kinds];
        if (is_candidate(kind, spec)) try_kind(spec, kind, best);
    }
}

static void generate_auto(const ScheduleSpec *spec, Schedule *schedule) {
    enum { NUM_CHOICES = 2 * 2 * 2 * 3 };
    GreedyTask task = task_open(spec);
    Best best = {.us = INFINITY};
    try_kinds(spec, &best);
    for (int i = 0; i < NUM_CHOICES; i++) try_choice(spec, &task, nth_choice(&task, i), &best);
    if (best.kind)
        best.kind->generate(spec, schedule);
    else
        greedy_order(&task, best.choice, schedule->programs);
    task_close(&task);
}

// ---- facts ------------------------------------------------------------------------------------------------

static double no_formula(const ScheduleSpec *spec) {
    (void)spec;
    return NAN;
}

static int stash_auto(const ScheduleSpec *spec, int rank) {
    (void)rank;
    return limit_of(spec);
}

const ScheduleKind kind_auto = {
    .name = "auto",
    .summary = "the shortest known of one chunk per rank, for given times and a given number of stashes",
    .source = "Qi 2023",
    .min_chunks = 1,
    .max_chunks = 1,
    .settings = SETTING_TIMES | SETTING_STASH_LIMIT,
    .splits_backward = true,
    .refuse = refuse_auto,
    .generate = generate_auto,
    .bubble = no_formula,
    .stash = stash_auto};
