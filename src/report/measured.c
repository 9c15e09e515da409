// Finds the median step of a traced run, its bubble and waits, and the same schedule simulated with its times.
#include "report/internal.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void *take(size_t count, size_t size) {
    void *items = calloc(count ? count : 1, size);
    CHECK(items, "no memory for %zu items of a measured step", count);
    return items;
}

static double length_us(Span span) { return span.end_us - span.start_us; }

// The items of a list ordered by time that begin within `within`. Every item starts with its Span.
static size_t first_within(const void *items, size_t count, size_t size, double start_us) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const Span *span = (const void *)((const char *)items + middle * size);
        if (span->start_us < start_us)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// ---- which steps are there as a whole -----------------------------------------------------------

// The index of each compute in a rank's program.
typedef struct {
    const Schedule *schedule;
    const Program *program;
    int *index; // [ops * chunks * microbatches], -1: no such instruction
    int num_computes;
} ProgramIndex;

static size_t key(const Schedule *s, int op, int chunk, int microbatch) {
    return ((size_t)op * (size_t)s->num_chunks + (size_t)chunk) * (size_t)s->num_microbatches +
           (size_t)microbatch;
}

static ProgramIndex index_program(const Schedule *s, int pp) {
    size_t count = key(s, NUM_SCHEDULE_OPS, 0, 0);
    ProgramIndex index = {s, &s->programs[pp], take(count, sizeof *index.index), 0};
    for (size_t i = 0; i < count; i++) index.index[i] = -1;
    for (int i = 0; i < s->programs[pp].count; i++) {
        Instr in = s->programs[pp].instrs[i];
        if (!is_compute(in)) continue;
        index.index[key(s, in.op, in.chunk, in.microbatch)] = i;
        index.num_computes++;
    }
    return index;
}

static bool takes_turns(const Program *program, int at) {
    return program->instrs[at].pairs || (at > 0 && program->instrs[at - 1].pairs);
}

// The two computes of a pair have one span for each of their turns, which have been added to the first ones. Puts them
// one after the other, as a simulation has them.
static void part_pairs(const Program *program, Span *spans) {
    for (int i = 0; i + 1 < program->count; i++) {
        if (!program->instrs[i].pairs) continue;
        double start_us = fmin(spans[i].start_us, spans[i + 1].start_us);
        double between_us = start_us + length_us(spans[i]);
        spans[i + 1] = (Span){between_us, between_us + length_us(spans[i + 1])};
        spans[i] = (Span){start_us, between_us};
    }
}

// Writes when each compute ran [program count]. Returns false unless each of them ran in `step`, and only once if it
// takes no turns.
static bool match_step(const ProgramIndex *index, const TracedRank *rank, Span step, Span *spans) {
    int found = 0;
    for (int i = 0; i < index->program->count; i++) spans[i] = (Span){-1, -1};
    size_t i = first_within(rank->computes, rank->num_computes, sizeof *rank->computes, step.start_us);
    for (; i < rank->num_computes && rank->computes[i].span.end_us <= step.end_us; i++) {
        const TracedCompute *c = &rank->computes[i];
        int at = index->index[key(index->schedule, c->op, c->chunk, c->microbatch)];
        bool again = at >= 0 && spans[at].start_us >= 0;
        if (at < 0 || (again && !takes_turns(index->program, at))) return false;
        if (again)
            spans[at].end_us += length_us(c->span);
        else
            spans[at] = c->span, found++;
    }
    part_pairs(index->program, spans);
    return found == index->num_computes;
}

static const TracedStep *find_step(const TracedRank *rank, int64_t iteration) {
    for (size_t i = 0; i < rank->num_steps; i++)
        if (rank->steps[i].iteration == iteration) return &rank->steps[i];
    return NULL;
}

// Clears `whole` for the steps of rank 0 of which this rank does not have everything.
static void keep_whole_steps(const TracedRun *run, int r, bool *whole) {
    const Program *program = &run->schedule.programs[grid_place(run->grid, r).at[AXIS_PP]];
    const TracedRank *first = &run->ranks[0], *rank = &run->ranks[r];
    ProgramIndex index = index_program(&run->schedule, grid_place(run->grid, r).at[AXIS_PP]);
    Span *spans = take((size_t)program->count, sizeof *spans);
    for (size_t i = 0; i < first->num_steps; i++) {
        const TracedStep *step = whole[i] ? find_step(rank, first->steps[i].iteration) : NULL;
        whole[i] = step && match_step(&index, rank, step->span, spans);
    }
    free(spans);
    free(index.index);
}

// ---- the median step ----------------------------------------------------------------------------

typedef struct {
    int64_t iteration;
    double us; // from the first rank's start to the last rank's end
} StepLength;

static StepLength measure_length(const TracedRun *run, int64_t iteration) {
    Span all = {INFINITY, 0};
    for (int r = 0; r < run->num_ranks; r++) {
        const TracedStep *step = find_step(&run->ranks[r], iteration);
        all.start_us = fmin(all.start_us, step->span.start_us);
        all.end_us = fmax(all.end_us, step->span.end_us);
    }
    return (StepLength){iteration, length_us(all)};
}

static int shorter(const void *a, const void *b) {
    const StepLength *x = a, *y = b;
    return (x->us > y->us) - (x->us < y->us);
}

static Status no_whole_step(const TracedRun *run) {
    int worst = 0;
    for (int r = 1; r < run->num_ranks; r++)
        if (run->ranks[r].lost > run->ranks[worst].lost) worst = r;
    int64_t lost = run->ranks[worst].lost;
    if (!lost) return fail(ERR_DATA, "no step is complete: the run ended before one of the full batch");
    return fail(ERR_DATA,
                "no step is complete: --trace-events was too small, rank %d lost its first %" PRId64
                " events",
                worst, lost);
}

static Status choose_step(const TracedRun *run, MeasuredStep *step) {
    enum { COLD_STEPS = 2 };
    size_t num_steps = run->ranks[0].num_steps, kept = 0;
    bool *whole = take(num_steps, sizeof *whole);
    StepLength *lengths = take(num_steps, sizeof *lengths);
    for (size_t i = 0; i < num_steps; i++) whole[i] = true;
    for (int r = 0; r < run->num_ranks; r++) keep_whole_steps(run, r, whole);
    for (size_t i = 0; i < num_steps; i++)
        if (whole[i]) lengths[kept++] = measure_length(run, run->ranks[0].steps[i].iteration);
    size_t cold = kept > COLD_STEPS ? COLD_STEPS : kept > 0 ? kept - 1 : 0;
    qsort(lengths + cold, kept - cold, sizeof *lengths, shorter);
    step->num_steps = (int)(kept - cold);
    if (kept) {
        step->iteration = lengths[cold + (kept - cold - 1) / 2].iteration;
        step->step_us = lengths[cold + (kept - cold - 1) / 2].us;
    }
    free(lengths);
    free(whole);
    return kept ? OK : no_whole_step(run);
}

// ---- what it was like ---------------------------------------------------------------------------

static void add_waits(const TracedRank *rank, Span step, double waits_us[NUM_WAITS]) {
    size_t i = first_within(rank->waits, rank->num_waits, sizeof *rank->waits, step.start_us);
    for (; i < rank->num_waits && rank->waits[i].span.start_us < step.end_us; i++)
        waits_us[rank->waits[i].kind] += length_us(rank->waits[i].span);
}

// From the rank's first compute to its last.
static Span busy_span(const Program *program, const Span *spans) {
    Span busy = {INFINITY, 0};
    for (int i = 0; i < program->count; i++) {
        if (!is_compute(program->instrs[i])) continue;
        busy.start_us = fmin(busy.start_us, spans[i].start_us);
        busy.end_us = fmax(busy.end_us, spans[i].end_us);
    }
    return busy;
}

// Adds the times of a rank's computes to the stages that it holds.   forward, backward, weight [stages]
static void add_stage_times(const Schedule *s, int pp, const Span *spans, double *forward, double *backward,
                            double *weight) {
    for (int i = 0; i < s->programs[pp].count; i++) {
        Instr in = s->programs[pp].instrs[i];
        if (!is_compute(in)) continue;
        int stage = schedule_stage(s, pp, in.chunk);
        double us = length_us(spans[i]) / s->num_microbatches;
        *(in.op == OP_FORWARD ? &forward[stage] : &backward[stage]) += us;
        if (in.op == OP_BACKWARD_WEIGHT) weight[stage] += us;
    }
}

// `spans`: of the ranks of one pipeline. The two simulations are of its schedule.
static void simulate(MeasuredStep *step, Span *const *spans) {
    const Schedule *s = &step->schedule;
    size_t stages = (size_t)s->num_ranks * (size_t)s->num_chunks;
    double *times = take(3 * stages, sizeof *times);
    for (int pp = 0; pp < s->num_ranks; pp++)
        add_stage_times(s, pp, spans[pp], times, times + stages, times + 2 * stages);
    ScheduleCosts costs = schedule_costs_of_stages(times, (int)stages);
    schedule_simulate(s, costs, &step->simulated);
    schedule_simulate(s, costs, &step->measured);
    free(times);
}

// Replaces the simulated times with the measured ones.
static void replace_spans(MeasuredStep *step, Span *const *spans, Span busy) {
    Simulation *sim = &step->measured;
    double computed = 0;
    sim->total_us = length_us(busy);
    for (int pp = 0; pp < step->schedule.num_ranks; pp++) {
        const Program *program = &step->schedule.programs[pp];
        sim->busy_us[pp] = 0;
        for (int i = 0; i < program->count; i++) {
            bool compute = is_compute(program->instrs[i]);
            sim->spans[pp][i] = (Span){0, 0};
            if (compute)
                sim->spans[pp][i] =
                    (Span){spans[pp][i].start_us - busy.start_us, spans[pp][i].end_us - busy.start_us};
            sim->busy_us[pp] += length_us(sim->spans[pp][i]);
        }
        computed += sim->busy_us[pp];
    }
    sim->bubble = computed > 0 ? sim->total_us * step->schedule.num_ranks / computed - 1 : 0;
}

// Sets the times of the ranks of one pipeline, whose first rank is `first`, and returns its bubble. The pipeline of
// rank 0 is drawn.
static double measure_pipeline(MeasuredStep *step, const TracedRun *run, int first) {
    const Schedule *s = &step->schedule;
    Span **spans = take((size_t)s->num_ranks, sizeof *spans), busy = {INFINITY, 0};
    double computed = 0;
    Place place = grid_place(step->grid, first);
    for (int pp = 0; pp < s->num_ranks; pp++) {
        const Program *program = &s->programs[pp];
        place.at[AXIS_PP] = pp;
        int r = grid_rank(step->grid, place);
        Span whole = find_step(&run->ranks[r], step->iteration)->span;
        ProgramIndex index = index_program(s, pp);
        spans[pp] = take((size_t)program->count, sizeof **spans);
        match_step(&index, &run->ranks[r], whole, spans[pp]);
        free(index.index);
        add_waits(&run->ranks[r], whole, step->ranks[r].waits_us);
        for (int i = 0; i < program->count; i++) step->ranks[r].compute_us += length_us(spans[pp][i]);
        computed += step->ranks[r].compute_us;
        Span own = busy_span(program, spans[pp]);
        busy = (Span){fmin(busy.start_us, own.start_us), fmax(busy.end_us, own.end_us)};
    }
    if (first == 0) {
        simulate(step, spans);
        replace_spans(step, spans, busy);
    }
    for (int pp = 0; pp < s->num_ranks; pp++) free(spans[pp]);
    free(spans);
    return computed > 0 ? length_us(busy) * s->num_ranks / computed - 1 : 0;
}

static int num_pipelines(const MeasuredStep *step) {
    return grid_size(step->grid) / grid_count(step->grid, ROLE_PIPELINE);
}

static void measure(MeasuredStep *step, const TracedRun *run) {
    int pipelines = num_pipelines(step);
    for (int r = 0; r < grid_size(step->grid); r++)
        if (grid_place(step->grid, r).at[AXIS_PP] == 0)
            step->bubble += measure_pipeline(step, run, r) / pipelines;
}

Status measured_step_read(MeasuredStep *step, const char *path) {
    TracedRun run;
    *step = (MeasuredStep){0};
    Status status = traced_run_read(&run, path);
    if (status == OK) {
        status = choose_step(&run, step);
        if (status != OK) fail(status, "%s: %s", path, fail_message());
    }
    if (status == OK) {
        step->grid = run.grid;
        memcpy(step->kind, run.kind, sizeof step->kind);
        step->schedule = run.schedule;
        run.schedule = (Schedule){0};
        step->ranks = take((size_t)run.num_ranks, sizeof *step->ranks);
        measure(step, &run);
    }
    traced_run_close(&run);
    return status;
}

void measured_step_destroy(MeasuredStep *step) {
    if (!step->ranks) return;
    simulation_destroy(&step->measured, &step->schedule);
    simulation_destroy(&step->simulated, &step->schedule);
    schedule_destroy(&step->schedule);
    free(step->ranks);
    *step = (MeasuredStep){0};
}

// ---- in words and pictures ----------------------------------------------------------------------

// The mean over all ranks that hold the same stages.
static double stage_compute_us(const MeasuredStep *step, int pp) {
    double sum = 0;
    for (int r = 0; r < grid_size(step->grid); r++)
        if (grid_place(step->grid, r).at[AXIS_PP] == pp) sum += step->ranks[r].compute_us;
    return sum / num_pipelines(step);
}

static void print_balance(const MeasuredStep *step, Text *out) {
    double sum = 0, most = 0;
    int busiest = 0;
    for (int pp = 0; pp < grid_along(step->grid, AXIS_PP); pp++) {
        double us = stage_compute_us(step, pp);
        sum += us;
        if (us > most) most = us, busiest = pp;
    }
    if (grid_along(step->grid, AXIS_PP) > 1)
        text_add(out, "imbalance: pipeline rank %d computes %.2f times as long as the mean\n", busiest,
                 sum > 0 ? most * grid_along(step->grid, AXIS_PP) / sum : 1);
}

static double mean_compute_us(const MeasuredStep *step) {
    double sum = 0;
    int ranks = grid_size(step->grid);
    for (int r = 0; r < ranks; r++) sum += step->ranks[r].compute_us;
    return sum / ranks;
}

// Percent of the step. Waits for groups across pipeline ranks are left out: these are mostly waits for the pipeline
// to drain, which the bubble already counts.
static double exposed(const MeasuredStep *step, int r) {
    const double *us = step->ranks[r].waits_us;
    return step->step_us > 0 ? 100 * (us[WAIT_TP] + us[WAIT_CP] + us[WAIT_EP] + us[WAIT_DP]) / step->step_us
                             : 0;
}

static const char *const wait_names[NUM_WAITS] = {
    [WAIT_STAGES] = "stages", [WAIT_TP] = "tp", [WAIT_CP] = "cp",
    [WAIT_EP] = "ep",         [WAIT_DP] = "dp", [WAIT_OTHERS] = "others",
};

// The named axes are in every table, as in every message; cp and ep where a rank has waited for them.
static bool has_column(const MeasuredStep *step, WaitKind kind) {
    if (kind != WAIT_CP && kind != WAIT_EP) return true;
    for (int r = 0; r < grid_size(step->grid); r++)
        if (step->ranks[r].waits_us[kind] > 0) return true;
    return false;
}

static bool has_coordinate(const MeasuredStep *step, Axis axis) {
    const AxisInfo *info = &topology_axes[axis];
    return info->named || (info->views & VIEW_DENSE && grid_along(step->grid, axis) > 1);
}

// Adds "tp 2, cp 2, dp 1, pp 2". The size of etp is that of tp unless a run says otherwise.
static void add_sizes(Grid grid, Text *out) {
    const char *comma = "";
    for (Axis axis = 0; axis < NUM_AXES; axis++) {
        int usual = axis == AXIS_ETP ? grid_along(grid, AXIS_TP) : 1;
        if (axis == AXIS_EDP || (!topology_axes[axis].named && grid_along(grid, axis) == usual)) continue;
        text_add(out, "%s%s %d", comma, topology_axes[axis].name, grid_along(grid, axis));
        comma = ", ";
    }
}

// Adds "tp, cp and dp": the kinds of waits that count as exposed communication.
static void add_exposed_kinds(const MeasuredStep *step, Text *out) {
    for (WaitKind kind = WAIT_TP; kind < WAIT_DP; kind++)
        if (has_column(step, kind)) text_add(out, "%s%s", kind > WAIT_TP ? ", " : "", wait_names[kind]);
    text_add(out, " and %s", wait_names[WAIT_DP]);
}

static void print_rank(const MeasuredStep *step, int r, Text *out) {
    const RankTimes *times = &step->ranks[r];
    Place place = grid_place(step->grid, r);
    double mean = mean_compute_us(step);
    text_add(out, "%4d", r);
    for (Axis axis = 0; axis < NUM_AXES; axis++)
        if (has_coordinate(step, axis)) text_add(out, " %4d", place.at[axis]);
    text_add(out, " %12.3f", times->compute_us / 1e3);
    for (WaitKind kind = 0; kind < NUM_WAITS; kind++)
        if (has_column(step, kind)) text_add(out, " %9.3f", times->waits_us[kind] / 1e3);
    text_add(out, " %10.2f %7.1f %%\n", mean > 0 ? times->compute_us / mean : 1, exposed(step, r));
}

static void print_ranks(const MeasuredStep *step, Text *out) {
    text_add(out,
             "\nms of step %" PRId64
             " in forwards and backwards (waits within them included), and waiting for whom; computing over "
             "the mean of all ranks; waits for ",
             step->iteration);
    add_exposed_kinds(step, out);
    text_add(out, " over the step:\nrank");
    for (Axis axis = 0; axis < NUM_AXES; axis++)
        if (has_coordinate(step, axis)) text_add(out, " %4s", topology_axes[axis].name);
    text_add(out, " %12s", "computing");
    for (WaitKind kind = 0; kind < NUM_WAITS; kind++)
        if (has_column(step, kind)) text_add(out, " %9s", wait_names[kind]);
    text_add(out, "  imbalance   exposed\n");
    for (int r = 0; r < grid_size(step->grid); r++) print_rank(step, r, out);
}

static void print_exposed(const MeasuredStep *step, Text *out) {
    double sum = 0, others_us = 0;
    int ranks = grid_size(step->grid);
    for (int r = 0; r < ranks; r++)
        sum += exposed(step, r), others_us += step->ranks[r].waits_us[WAIT_OTHERS];
    text_add(out, "exposed communication: %.1f %% of the step in waits for ", sum / ranks);
    add_exposed_kinds(step, out);
    text_add(out, ", mean over ranks; %.1f %% more in waits for other groups%s\n",
             step->step_us > 0 ? 100 * others_us / ranks / step->step_us : 0,
             grid_along(step->grid, AXIS_PP) > 1 ? ", mostly for the pipeline's end" : "");
}

void measured_step_print(const MeasuredStep *step, Text *out) {
    text_add(out, "step %" PRId64 ": %.3f ms, the median of %d; %s on ", step->iteration, step->step_us / 1e3,
             step->num_steps, step->kind);
    add_sizes(step->grid, out);
    text_add(out, "\n");
    if (grid_along(step->grid, AXIS_PP) > 1)
        text_add(out,
                 "pipeline bubble over the ideal time: %.1f %% measured, %.1f %% simulated with each stage's "
                 "measured times\n",
                 100 * step->bubble, 100 * step->simulated.bubble);
    print_balance(step, out);
    print_exposed(step, out);
    print_ranks(step, out);
}

enum { NUM_PANELS = 2 };

static void fill_panels(const MeasuredStep *step, Panel panels[NUM_PANELS]) {
    panels[0] = (Panel){"simulated with the measured times of each stage", &step->simulated};
    panels[1] = (Panel){"measured", &step->measured};
}

void measured_step_timeline(const MeasuredStep *step, int columns, bool colour, Text *out) {
    Panel panels[NUM_PANELS];
    fill_panels(step, panels);
    timeline_panels(&step->schedule, panels, NUM_PANELS, columns, colour, out);
}

void measured_step_svg(const MeasuredStep *step, const char *title, Text *out) {
    Panel panels[NUM_PANELS];
    fill_panels(step, panels);
    svg_panels(&step->schedule, panels, NUM_PANELS, title, out);
}
