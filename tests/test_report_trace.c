// The file of --trace, from the ranks that write it to the report that reads it.
#include "base/file.h"
#include "base/trace.h"
#include "formats/formats.h"
#include "harness.h"
#include "report/report.h"
#include "train/internal.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NUM_STEPS = 6, NUM_MICROBATCHES = 4, EVENTS = 4096 };

static void make_schedule(Schedule *schedule, const char *kind) {
    EXPECT_OK(schedule_create(
        schedule, &(ScheduleSpec){.kind = kind, .ranks = 2, .chunks = 1, .microbatches = NUM_MICROBATCHES}));
}

// ---- the trace of a run that never ran -----------------------------------------------------------

typedef struct {
    const char *path;
    int trace_events;
    int before;        // events before the first step
    const char *kind;  // of its schedule
    Grid grid;         // of four ranks, two of them pipeline ranks
    const char *group; // for whom the last stage waits
    Status status;     // of rank 0
    uint64_t lost;
} RecordedRun;

static TraceEvent event(const char *name, TraceRow row, double start_s, double end_s) {
    return (TraceEvent){start_s, end_s, name, NULL, 0, -1, -1, -1, row};
}

// Step k takes as long as the simulation with forwards of 1 + k % 3 ms, and 5 ms more.
static double scale_of(int step) { return 1e-6 * (1 + step % 3); }

static double step_begin_s(double origin, int step) { return origin + 0.1 * step; }

static void record_compute(Instr in, double start_s, double end_s) {
    TraceEvent e = event(schedule_ops[in.op].text, TRACE_PIPELINE, start_s, end_s);
    e.chunk = in.chunk, e.microbatch = in.microbatch;
    trace_add(e);
}

// Two turns of each, the backward's first.
static void record_pair(const Instr *in, double start_s, double forward_s, double backward_s) {
    enum { TURNS = 2 };
    for (int turn = 0; turn < TURNS; turn++) {
        double between_s = start_s + backward_s / TURNS;
        record_compute(in[1], start_s, between_s);
        start_s = between_s + forward_s / TURNS;
        record_compute(in[0], between_s, start_s);
    }
}

static void record_step(const Schedule *schedule, const Simulation *sim, int pp, const char *group,
                        double begin, int step) {
    for (int i = 0; i < schedule->programs[pp].count; i++) {
        const Instr *in = &schedule->programs[pp].instrs[i];
        Span span = sim->spans[pp][i];
        double start_s = begin + scale_of(step) * span.start_us, end_s = begin + scale_of(step) * span.end_us;
        if (schedule_ops[in->op].kind != COMPUTE) continue;
        if (in->pairs)
            record_pair(in, start_s, end_s - start_s,
                        begin + scale_of(step) * sim->spans[pp][++i].end_us - end_s);
        else
            record_compute(*in, start_s, end_s);
    }
    // Two messages under way at once, waits as they end, and what lies within the step.
    TraceEvent first = event("send", TRACE_COMM, begin, begin + 3e-3);
    TraceEvent second = event("recv", TRACE_COMM, begin + 1e-3, begin + 4e-3);
    TraceEvent wait = event("wait", TRACE_COMM, begin + 2e-3, begin + 3e-3);
    first.group = second.group = wait.group = "pp";
    first.bytes = second.bytes = 4096;
    first.peer = second.peer = 1 - pp;
    trace_add(first), trace_add(wait), trace_add(second);
    wait = event("wait", TRACE_COMM, begin + 3e-3, begin + 3.5e-3);
    wait.group = pp ? group : "embedding";
    trace_add(wait);
    trace_add(event("optimizer", TRACE_STEP, begin + scale_of(step) * sim->total_us,
                    begin + scale_of(step) * sim->total_us + 4e-3));
    TraceEvent whole = event("step", TRACE_STEP, begin, begin + scale_of(step) * sim->total_us + 5e-3);
    whole.microbatch = step + 1;
    trace_add(whole);
}

static Status record(Comm *world, void *arg) {
    RecordedRun *run = arg;
    EngineSpec spec = {.grid = run->grid, .schedule = run->kind};
    Options options = {.trace = run->path, .trace_events = run->trace_events};
    TraceFile file;
    Schedule schedule;
    Simulation sim;
    uint64_t lost = 0;
    make_schedule(&schedule, run->kind);
    schedule_simulate(&schedule, (ScheduleCosts){.forward_us = 1e3, .backward_us = 2e3}, &sim);
    Status status = trace_file_open(&file, &options, world);
    if (status == OK) status = trace_file_start(&file, &options);
    for (int i = 0; status == OK && i < run->before; i++)
        trace_add(event("before", TRACE_STEP, file.origin_s, file.origin_s));
    for (int step = 0; status == OK && step < NUM_STEPS; step++)
        record_step(&schedule, &sim, grid_place(spec.grid, comm_rank(world)).at[AXIS_PP], run->group,
                    step_begin_s(file.origin_s, step), step);
    if (status == OK) status = trace_file_write(&file, &spec, &schedule, &lost);
    // Ranks of one machine have one clock, and find that out.
    double earliest_and_latest[2] = {-file.origin_s, file.origin_s};
    if (status == OK) comm_all_reduce_host(world, earliest_and_latest, 2, REDUCE_MAX);
    EXPECT(earliest_and_latest[0] + earliest_and_latest[1] == 0, "origins differ by %g s",
           earliest_and_latest[0] + earliest_and_latest[1]);
    trace_file_close(&file);
    if (comm_rank(world) == 0) run->status = status, run->lost = lost;
    simulation_destroy(&sim, &schedule);
    schedule_destroy(&schedule);
    return status;
}

static RecordedRun launch_run(RecordedRun run) {
    comm_launch((CommOptions){.transport = "threads", .ranks = 4, .timeout_s = 20, .deterministic = true},
                record, &run);
    return run;
}

static RecordedRun record_run_of(const char *kind, const char *path, int trace_events, int before) {
    return launch_run((RecordedRun){.path = path,
                                    .trace_events = trace_events,
                                    .before = before,
                                    .kind = kind,
                                    .grid = GRID(2, 1, 2),
                                    .group = "tp"});
}

static RecordedRun record_run(const char *path, int trace_events, int before) {
    return record_run_of("1f1b", path, trace_events, before);
}

// ---- what any viewer expects --------------------------------------------------------------------

static const char *text_of(const Json *object, const char *name) {
    const char *text = json_string(json_member(object, name));
    return text ? text : "";
}

static int64_t number_of(const Json *object, const char *name) {
    int64_t number = -1;
    json_int(json_member(object, name), &number);
    return number;
}

// In nanoseconds, exactly.
static int64_t time_of(const Json *event, const char *name) {
    double us = NAN;
    json_double(json_member(event, name), &us);
    return (int64_t)llround(1e3 * us);
}

typedef struct {
    int64_t pid, tid, start, end;
} TraceSlice;

static int compare_slices(const void *a, const void *b) {
    const TraceSlice *x = a, *y = b;
    if (x->pid != y->pid) return x->pid < y->pid ? -1 : 1;
    if (x->tid != y->tid) return x->tid < y->tid ? -1 : 1;
    if (x->start != y->start) return x->start < y->start ? -1 : 1;
    return (x->end < y->end) - (x->end > y->end);
}

// Slices of one thread lie within each other or apart.
static void expect_nested(TraceSlice *slices, size_t count) {
    int64_t open[16];
    int depth = 0;
    qsort(slices, count, sizeof *slices, compare_slices);
    for (size_t i = 0; i < count; i++) {
        TraceSlice s = slices[i];
        if (i == 0 || slices[i - 1].pid != s.pid || slices[i - 1].tid != s.tid) depth = 0;
        while (depth && open[depth - 1] <= s.start) depth--;
        EXPECT(depth < 16 && (!depth || open[depth - 1] >= s.end), "rank %lld, thread %lld: %lld to %lld ns",
               (long long)s.pid, (long long)s.tid, (long long)s.start, (long long)s.end);
        if (depth < 16) open[depth++] = s.end;
    }
}

static void is_a_chrome_trace(void) {
    const char *path = harness_path("chrome.json");
    RecordedRun run = record_run(path, EVENTS, 0);
    EXPECT(run.status == OK && !run.lost, "%s", fail_message());
    EXPECT(access(harness_path("chrome.json.tmp"), F_OK) != 0, "the temporary file is left");
    char *text;
    size_t size;
    Json *root;
    EXPECT_OK(file_read(harness_path("chrome.json"), 64 << 20, &text, &size));
    EXPECT_OK(json_parse(&root, text, size, "chrome.json"));
    const Json *events = json_member(root, "traceEvents");
    EXPECT(events && events->type == JSON_ARRAY, "no traceEvents");
    size_t count = events ? events->count : 0, num_slices = 0;
    TraceSlice *slices = calloc(count + 1, sizeof *slices);
    int names = 0, messages = 0, waits = 0;
    for (size_t i = 0; i < count; i++) {
        const Json *e = &events->items[i];
        names += !strcmp(text_of(json_member(e, "args"), "name"), "rank 3 tp1 dp0 pp1");
        messages += !strcmp(text_of(e, "name"), "send") &&
                    !strcmp(text_of(json_member(e, "args"), "group"), "pp") &&
                    number_of(json_member(e, "args"), "bytes") == 4096;
        waits += !strcmp(text_of(e, "cat"), "waits");
        if (strcmp(text_of(e, "ph"), "X")) continue;
        int64_t start = time_of(e, "ts");
        slices[num_slices++] =
            (TraceSlice){number_of(e, "pid"), number_of(e, "tid"), start, start + time_of(e, "dur")};
    }
    // 8 computes, 2 messages, 2 waits, the optimizer and the step itself.
    EXPECT(num_slices == 4 * NUM_STEPS * 14, "%zu slices", num_slices);
    EXPECT(names == 1 && messages == 4 * NUM_STEPS && waits == 4 * NUM_STEPS * 2,
           "%d names, %d messages, %d waits", names, messages, waits);
    expect_nested(slices, num_slices);
    free(slices);
    json_free(root);
    free(text);
}

// ---- what the report makes of it ----------------------------------------------------------------

// Steps 1 and 2 are left out; of 3, 2, 1, 3 ms the lower median are those of step 5 (k = 4: 2 ms).
static void the_median_step(void) {
    MeasuredStep step;
    record_run(harness_path("run.json"), EVENTS, 0);
    EXPECT_OK(measured_step_read(&step, harness_path("run.json")));
    EXPECT(step.iteration == 5 && step.num_steps == 4, "step %lld of %d", (long long)step.iteration,
           step.num_steps);
    EXPECT(fabs(step.bubble - 0.25) < 1e-6 && fabs(step.simulated.bubble - 0.25) < 1e-6 &&
               fabs(step.measured.bubble - 0.25) < 1e-6,
           "bubbles %g, %g, %g, not 1/4", step.bubble, step.simulated.bubble, step.measured.bubble);
    Text text = {0};
    measured_step_print(&step, &text);
    EXPECT(
        !strcmp(
            text_string(&text),
            "step 5: 35.000 ms, the median of 4; 1f1b on tp 2, dp 1, pp 2\n"
            "pipeline bubble over the ideal time: 25.0 % measured, 25.0 % simulated with each stage's "
            "measured times\n"
            "imbalance: pipeline rank 0 computes 1.00 times as long as the mean\n"
            "exposed communication: 0.7 % of the step in waits for tp and dp, mean over ranks; 0.7 % more "
            "in waits for other groups, mostly for the pipeline's end\n"
            "\n"
            "ms of step 5 in forwards and backwards (waits within them included), and waiting for whom; computing "
            "over the mean of all ranks; waits for tp and dp over the step:\n"
            "rank   tp   dp   pp    computing    stages        tp        dp    others  imbalance   exposed\n"
            "   0    0    0    0       24.000     1.000     0.000     0.000     0.500       1.00     0.0 %\n"
            "   1    1    0    0       24.000     1.000     0.000     0.000     0.500       1.00     0.0 %\n"
            "   2    0    0    1       24.000     1.000     0.500     0.000     0.000       1.00     1.4 %\n"
            "   3    1    0    1       24.000     1.000     0.500     0.000     0.000       1.00     1.4 %\n"),
        "%s", text_string(&text));
    text_free(&text);
    measured_step_timeline(&step, 80, false, &text);
    EXPECT(!strcmp(text_string(&text), "simulated with the measured times of each stage, bubble 25.0 %:\n"
                                       "rank 0 0>1>    0<<<2>1<<<3>2<<<  3<<<\n"
                                       "rank 1   0>0<<<1>1<<<2>2<<<3>3<<<\n"
                                       "measured, bubble 25.0 %:\n"
                                       "rank 0 0>1>    0<<<2>1<<<3>2<<<  3<<<\n"
                                       "rank 1   0>0<<<1>1<<<2>2<<<3>3<<<\n"
                                       "       0                     30000 us\n"
                                       "       0> forward   0< backward  of microbatch 0\n"),
           "%s", text_string(&text));
    text_free(&text);
    measured_step_svg(&step, "a run", &text);
    EXPECT(strstr(text_string(&text), ">measured: 30000 µs, bubble 25 %") &&
               !strcmp(text.data + text.size - 7, "</svg>\n"),
           "%s", text_string(&text));
    text_free(&text);
    measured_step_destroy(&step);
}

// `text` is in what the report prints of a run on `grid` whose last stage waits for `group`.
static void expect_printed(Grid grid, const char *group, const char *text) {
    MeasuredStep step;
    Text out = {0};
    RecordedRun run = launch_run((RecordedRun){.path = harness_path("axes.json"),
                                               .trace_events = EVENTS,
                                               .kind = "1f1b",
                                               .grid = grid,
                                               .group = group});
    EXPECT(run.status == OK, "%s", fail_message());
    EXPECT_OK(measured_step_read(&step, harness_path("axes.json")));
    measured_step_print(&step, &out);
    EXPECT(strstr(text_string(&out), text), "%s of %s", text_string(&out), group);
    text_free(&out);
    measured_step_destroy(&step);
}

// Axes that most runs lack are printed for those that have them, and the waits for their groups.
static void context_and_experts(void) {
    Grid context = {.size = {[AXIS_CP] = 2, [AXIS_PP] = 2}};
    expect_printed(
        context, "cp",
        "step 5: 35.000 ms, the median of 4; 1f1b on tp 1, cp 2, dp 1, pp 2\n"
        "pipeline bubble over the ideal time: 25.0 % measured, 25.0 % simulated with each stage's "
        "measured times\n"
        "imbalance: pipeline rank 0 computes 1.00 times as long as the mean\n"
        "exposed communication: 0.7 % of the step in waits for tp, cp and dp, mean over ranks; "
        "0.7 % more in waits for other groups, mostly for the pipeline's end\n"
        "\n"
        "ms of step 5 in forwards and backwards (waits within them included), and waiting for whom; "
        "computing over the mean of all ranks; waits for tp, cp and dp over the step:\n"
        "rank   tp   cp   dp   pp    computing    stages        tp        cp        dp    others  "
        "imbalance   exposed\n"
        "   0    0    0    0    0       24.000     1.000     0.000     0.000     0.000     0.500"
        "       1.00     0.0 %\n"
        "   1    0    1    0    0       24.000     1.000     0.000     0.000     0.000     0.500"
        "       1.00     0.0 %\n"
        "   2    0    0    0    1       24.000     1.000     0.000     0.500     0.000     0.000"
        "       1.00     1.4 %\n"
        "   3    0    1    0    1       24.000     1.000     0.000     0.500     0.000     0.000"
        "       1.00     1.4 %\n");
    Grid experts = {.size = {[AXIS_EP] = 2, [AXIS_DP] = 2, [AXIS_PP] = 2}};
    expect_printed(experts, "ep", "1f1b on tp 1, ep 2, dp 2, pp 2\n");
    expect_printed(experts, "ep",
                   "computing over the mean of all ranks; waits for tp, ep and dp over the step:\n"
                   "rank   tp   dp   pp    computing    stages        tp        ep        dp    others  "
                   "imbalance   exposed\n"
                   "   0    0    0    0       24.000     1.000     0.000     0.000     0.000     0.500"
                   "       1.00     0.0 %\n"
                   "   1    0    1    0       24.000     1.000     0.000     0.000     0.000     0.500"
                   "       1.00     0.0 %\n"
                   "   2    0    0    1       24.000     1.000     0.000     0.500     0.000     0.000"
                   "       1.00     1.4 %\n");
    Grid tensors = {.size = {[AXIS_TP] = 2, [AXIS_ETP] = 1, [AXIS_EP] = 2, [AXIS_PP] = 2}};
    expect_printed(tensors, "ep", "1f1b on tp 2, etp 1, ep 2, dp 1, pp 2\n");
    expect_printed(context, "dp-cp", "0.7 % of the step in waits for tp and dp, mean over ranks; 0.7 % more");
}

// The turns of a pair are a compute each of two instructions.
static void turns_of_pairs(void) {
    MeasuredStep step;
    record_run_of("paired", harness_path("paired.json"), EVENTS, 0);
    EXPECT_OK(measured_step_read(&step, harness_path("paired.json")));
    EXPECT(step.iteration == 5 && step.num_steps == 4, "step %lld of %d", (long long)step.iteration,
           step.num_steps);
    for (int pp = 0; pp < 2; pp++)
        for (int i = 0; i < step.schedule.programs[pp].count; i++) {
            Span seen = step.measured.spans[pp][i], made = step.simulated.spans[pp][i];
            bool compute = schedule_ops[step.schedule.programs[pp].instrs[i].op].kind == COMPUTE;
            EXPECT(!compute ||
                       (fabs(seen.start_us - made.start_us) < 0.1 && fabs(seen.end_us - made.end_us) < 0.1),
                   "rank %d, instruction %d: from %g to %g us, not from %g to %g", pp, i, seen.start_us,
                   seen.end_us, made.start_us, made.end_us);
        }
    EXPECT(fabs(step.bubble - step.simulated.bubble) < 1e-6, "bubbles %g and %g", step.bubble,
           step.simulated.bubble);
    measured_step_destroy(&step);
}

// A ring that is too small keeps the end: what is whole there is still reported.
static void a_small_ring_keeps_the_end(void) {
    MeasuredStep step;
    RecordedRun run = record_run(harness_path("small.json"), 2 * 14 + 5, 0);
    EXPECT(run.status == OK && run.lost == NUM_STEPS * 14 - (2 * 14 + 5), "%llu lost",
           (unsigned long long)run.lost);
    EXPECT_OK(measured_step_read(&step, harness_path("small.json")));
    EXPECT(step.num_steps == 1 && step.iteration == 6, "step %lld of %d", (long long)step.iteration,
           step.num_steps);
    measured_step_destroy(&step);
    record_run(harness_path("tiny.json"), 8, 0);
    Status status = measured_step_read(&step, harness_path("tiny.json"));
    EXPECT(status == ERR_DATA && strstr(fail_message(), "--trace-events was too small"), "%s",
           fail_message());
    measured_step_destroy(&step);
}

// More than fits into one block on its way; what is sent meanwhile neither is recorded nor takes others'
// place.
static void a_large_ring_arrives_whole(void) {
    enum { CAPACITY = 30000 };
    RecordedRun run = record_run(harness_path("large.json"), CAPACITY, 19 * CAPACITY / 10 - NUM_STEPS * 14);
    char *text;
    size_t size, found = 0;
    EXPECT(run.status == OK && run.lost == 9 * CAPACITY / 10, "%llu lost", (unsigned long long)run.lost);
    EXPECT_OK(file_read(harness_path("large.json"), 64 << 20, &text, &size));
    EXPECT(size > 8 << 20, "%zu bytes: few blocks of each rank", size);
    // By lines: the address sanitizer measures the whole text each time that it is searched.
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n"));) found += strstr(line, "\"name\":\"before\"") != NULL;
    EXPECT(found == 4 * (CAPACITY - NUM_STEPS * 14), "%zu events before the steps", found);
    free(text);
}

// ---- what goes wrong ----------------------------------------------------------------------------

static void files_that_cannot_be(void) {
    RecordedRun run = record_run(harness_path("no/such/folder.json"), EVENTS, 0);
    EXPECT(run.status == ERR_CREATE && strstr(fail_message(), "--trace"), "%d: %s", (int)run.status,
           fail_message());
    run = record_run(harness_folder(), EVENTS, 0);
    EXPECT(run.status == ERR_CREATE && strstr(fail_message(), "not a regular file"), "%d: %s",
           (int)run.status, fail_message());
}

// A run that is aborted closes nothing: there must be nothing to remove.
static Status work(Comm *world, void *arg) {
    Options options = {.trace = arg, .trace_events = 16};
    TraceFile file;
    TRY(trace_file_open(&file, &options, world));
    TRY(trace_file_start(&file, &options));
    char temporary[520];
    snprintf(temporary, sizeof temporary, "%s.tmp", (const char *)arg);
    EXPECT(!file_exists(arg) && !file_exists(temporary), "a file is there before the end");
    trace_file_close(&file);
    return OK;
}

static void no_file_before_the_end(void) {
    char path[512];
    snprintf(path, sizeof path, "%s", harness_path("left.json"));
    EXPECT_OK(comm_launch((CommOptions){.transport = "threads", .ranks = 2, .timeout_s = 20}, work, path));
    EXPECT(!file_exists(path) && !file_exists(harness_path("left.json.tmp")), "a file is left");
}

// A folder that goes while the run goes on: every rank gets the error, none waits.
static Status lose_folder(Comm *world, void *arg) {
    EngineSpec spec = {.grid = GRID(1, 1, 2), .schedule = "1f1b"};
    Options options = {.trace = arg, .trace_events = 16};
    TraceFile file;
    Schedule schedule;
    uint64_t lost;
    TRY(trace_file_open(&file, &options, world));
    TRY(trace_file_start(&file, &options));
    comm_barrier(world);
    if (comm_rank(world) == 0) rmdir(harness_path("gone"));
    comm_barrier(world);
    make_schedule(&schedule, "1f1b");
    Status status = trace_file_write(&file, &spec, &schedule, &lost);
    EXPECT(status == ERR_CREATE && strstr(fail_message(), "gone/t.json: cannot create"), "%d: %s",
           (int)status, fail_message());
    schedule_destroy(&schedule);
    trace_file_close(&file);
    return OK;
}

static void a_folder_that_goes(void) {
    char path[520];
    snprintf(path, sizeof path, "%s/t.json", harness_path("gone"));
    EXPECT(mkdir(harness_path("gone"), 0700) == 0, "no folder");
    EXPECT_OK(
        comm_launch((CommOptions){.transport = "threads", .ranks = 2, .timeout_s = 20}, lose_folder, path));
}

int main(int argc, char **argv) {
    static const Test tests[] = {
        {"is a chrome trace", is_a_chrome_trace},
        {"the median step", the_median_step},
        {"context and experts", context_and_experts},
        {"turns of pairs", turns_of_pairs},
        {"a small ring keeps the end", a_small_ring_keeps_the_end},
        {"a large ring arrives whole", a_large_ring_arrives_whole},
        {"files that cannot be", files_that_cannot_be},
        {"no file before the end", no_file_before_the_end},
        {"a folder that goes", a_folder_that_goes},
        {0},
    };
    return harness_run(tests, argc, argv);
}
