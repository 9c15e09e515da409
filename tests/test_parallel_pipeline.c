// The interpreter on a toy model: stage s adds s + 1, and its weight gradient is the sum of dy * x. Whole
// numbers, so that whatever the schedule, outputs and sums must be exact; a buffer used too early or too late
// changes them.
#include "base/trace.h"
#include "harness.h"
#include "layout/kinds.h"
#include "nn/runtime.h"
#include "parallel/parallel.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { HIDDEN = 3, MAX_CHUNKS = 3, MAX_MICROBATCHES = 12 };

typedef struct {
    const Schedule *schedule;
    Device *device;
    int rank, stages;
    int weights[MAX_CHUNKS], finals[MAX_CHUNKS];
    double sums[MAX_CHUNKS], outputs[MAX_MICROBATCHES];
    int64_t faults;
} Toy;

// Of one microbatch of a chunk, between its forward and its backwards.
typedef struct {
    Tensor x, dy;
} ToyLayers;

static float *data_of(const Toy *toy, Tensor x) {
    if (!x.data) return NULL;
    device_sync(toy->device, device_stream(toy->device));
    return device_address(toy->device, x);
}

static float first_input(int64_t microbatch, int64_t i) { return (float)(10 * microbatch + i); }

// The sum of what stages `first` to `last` - 1 add.
static float added(int first, int last) { return (float)(last * (last + 1) - first * (first + 1)) / 2; }

static int stage_of(const Toy *toy, int chunk) { return schedule_stage(toy->schedule, toy->rank, chunk); }

static Tensor keep(Toy *toy, Slot *slot, const char *name, Tensor x) {
    Tensor kept = tensor_take(&slot->stash, name, x.rows, x.cols, x.dtype);
    memcpy(data_of(toy, kept), data_of(toy, x), tensor_bytes(x));
    return kept;
}

static void toy_forward(void *self, int chunk, Slot *slot, const Microbatch *microbatch) {
    Toy *toy = self;
    ToyLayers *layers = slot->layers;
    int stage = stage_of(toy, chunk);
    float *x = data_of(toy, slot->input), *y = data_of(toy, slot->output);
    double sum = 0;
    for (int64_t i = 0; i < tensor_count(slot->input); i++) {
        if (stage == 0) x[i] = first_input(microbatch->first_sample, i);
        y[i] = x[i] + (float)(stage + 1);
        sum += (double)y[i];
    }
    layers->x = keep(toy, slot, "x", slot->input);
    if (stage == toy->stages - 1) toy->outputs[microbatch->first_sample] = sum;
}

// dx = dy + s + 1; dy is used up, and kept for the other half.
static void input_half(Toy *toy, int stage, Slot *slot) {
    ToyLayers *layers = slot->layers;
    float *dy = data_of(toy, slot->output_gradient), *dx = data_of(toy, slot->input_gradient);
    toy->faults += !dx != (stage == 0);
    layers->dy = keep(toy, slot, "dy", slot->output_gradient);
    for (int64_t i = 0; i < tensor_count(slot->output_gradient); i++) {
        if (dx) dx[i] = dy[i] + (float)(stage + 1);
        dy[i] = NAN;
    }
}

static void weight_half(Toy *toy, int chunk, const Slot *slot) {
    const ToyLayers *layers = slot->layers;
    const float *x = data_of(toy, slot->input), *kept = data_of(toy, layers->x),
                *dy = data_of(toy, layers->dy);
    toy->weights[chunk]++;
    for (int64_t i = 0; i < tensor_count(slot->input); i++) {
        toy->sums[chunk] += (double)dy[i] * (double)x[i];
        toy->faults += x[i] != kept[i];
    }
}

static void toy_backward(void *self, int chunk, Slot *slot, const Microbatch *microbatch, Halves halves,
                         bool final) {
    Toy *toy = self;
    (void)microbatch;
    if (halves & INPUT_HALF) input_half(toy, stage_of(toy, chunk), slot);
    if (halves & WEIGHT_HALF) weight_half(toy, chunk, slot);
    toy->finals[chunk] += final;
    toy->faults += final != (halves & WEIGHT_HALF && toy->weights[chunk] == toy->schedule->num_microbatches);
}

// ---- one schedule -----------------------------------------------------------------------------------------

typedef struct {
    Runtime runtime;
    Arena run; // of one pipeline
    Toy toy;
    GradReducer reducer;
    Buckets no_buckets;
    Microbatch microbatches[MAX_MICROBATCHES];
    Pipeline *pipeline;
} Rig;

static void open_rig(Rig *rig, const Schedule *schedule, int64_t rows, bool scatter_gather) {
    Context *c = &rig->runtime.context;
    rig->toy = (Toy){.schedule = schedule,
                     .device = c->device,
                     .rank = context_rank(c, ROLE_PIPELINE),
                     .stages = schedule->num_ranks * schedule->num_chunks};
    rig->reducer = (GradReducer){.context = c, .buckets = &rig->no_buckets};
    for (int i = 0; i < MAX_MICROBATCHES; i++) rig->microbatches[i] = (Microbatch){.first_sample = i};
    EXPECT_OK(arena_open(&rig->run, "run", device_memory(c->device), 1 << 20));
    PipelineSpec spec = {.schedule = schedule,
                         .arena = &rig->run,
                         .stash_bytes = 2 * ARENA_ALIGNMENT,
                         .scatter_gather = scatter_gather};
    spec.stage = (Stage){.self = &rig->toy,
                         .num_chunks = schedule->num_chunks,
                         .rows = rows,
                         .hidden = HIDDEN,
                         .dtype = F32,
                         .slot_layers_bytes = sizeof(ToyLayers),
                         .forward = toy_forward,
                         .backward = toy_backward};
    EXPECT_OK(pipeline_create(&rig->pipeline, c, &spec));
    EXPECT_OK(pipeline_connect(rig->pipeline));
}

static void close_rig(Rig *rig) {
    pipeline_destroy(rig->pipeline);
    arena_close(&rig->run);
}

static void expect_outputs(const Rig *rig, int64_t count, const char *what) {
    const Toy *toy = &rig->toy;
    if (stage_of(toy, 0) != toy->stages - 1 &&
        stage_of(toy, toy->schedule->num_chunks - 1) != toy->stages - 1)
        return;
    for (int m = 0; m < toy->schedule->num_microbatches; m++) {
        double expected = 0;
        for (int64_t i = 0; i < count; i++) expected += (double)(first_input(m, i) + added(0, toy->stages));
        EXPECT(toy->outputs[m] == expected, "%s microbatch %d: %g, not %g", what, m, toy->outputs[m],
               expected);
    }
}

static void expect_sums(const Rig *rig, int64_t count, const char *what) {
    const Toy *toy = &rig->toy;
    for (int chunk = 0; chunk < toy->schedule->num_chunks; chunk++) {
        int stage = stage_of(toy, chunk);
        double expected = 0;
        for (int64_t i = 0; i < count * toy->schedule->num_microbatches; i++) {
            float first = first_input(i / count, i % count);
            float dy = first + added(0, toy->stages) + added(stage + 1, toy->stages);
            expected += (double)dy * (double)(first + added(0, stage));
        }
        EXPECT(toy->sums[chunk] == expected, "%s stage %d: %g, not %g", what, stage, toy->sums[chunk],
               expected);
        EXPECT(toy->finals[chunk] == 1, "%s stage %d: %d times final", what, stage, toy->finals[chunk]);
    }
    EXPECT(toy->faults == 0, "%s: %lld faults", what, (long long)toy->faults);
}

static int num_sends(const Schedule *schedule, int rank) {
    int sends = 0;
    for (int i = 0; i < schedule->programs[rank].count; i++)
        sends += schedule_ops[schedule->programs[rank].instrs[i].op].kind == SEND;
    return sends;
}

// A step with `schedule`, exact and with exactly the messages that it names.
static void train_once(Rig *rig, const Schedule *schedule, int64_t rows, double bytes, const char *what) {
    const Context *c = &rig->runtime.context;
    double sent = comm_counts(context_group(c, ROLE_PIPELINE))[COMM_SEND].bytes;
    EXPECT_OK(pipeline_use(rig->pipeline, schedule));
    rig->toy.schedule = schedule;
    memset(rig->toy.sums, 0, sizeof rig->toy.sums);
    memset(rig->toy.weights, 0, sizeof rig->toy.weights);
    memset(rig->toy.finals, 0, sizeof rig->toy.finals);
    pipeline_train(rig->pipeline, rig->microbatches, &rig->reducer);
    expect_outputs(rig, rows * HIDDEN, what);
    expect_sums(rig, rows * HIDDEN, what);
    sent = comm_counts(context_group(c, ROLE_PIPELINE))[COMM_SEND].bytes - sent;
    EXPECT(sent == bytes * num_sends(schedule, context_rank(c, ROLE_PIPELINE)), "%s: %g bytes sent", what,
           sent);
}

static void evaluate_once(Rig *rig, int64_t rows, const char *what) {
    memset(rig->toy.outputs, 0, sizeof rig->toy.outputs);
    pipeline_evaluate(rig->pipeline, rig->microbatches);
    expect_outputs(rig, rows * HIDDEN, what);
}

typedef struct {
    ScheduleSpec spec;
    int64_t rows;
    bool scatter_gather;
} Case;

// The largest schedule, an evaluation, a smaller one, the largest again.
static void run_case(Rig *rig, const Case *one) {
    char what[128];
    ScheduleSpec few = one->spec;
    Schedule large, small;
    int tp = context_ranks(&rig->runtime.context, ROLE_TENSOR);
    bool shared = one->scatter_gather && one->rows % tp == 0;
    double bytes = (double)(one->rows * HIDDEN * 4) / (shared ? tp : 1);
    few.microbatches = one->spec.ranks;
    snprintf(what, sizeof what, "%s t %d p %d v %d m %d ahead %d rows %d scatter %d", one->spec.kind, tp,
             one->spec.ranks, one->spec.chunks, one->spec.microbatches, one->spec.receive_ahead,
             (int)one->rows, one->scatter_gather);
    EXPECT_OK(schedule_create(&large, &one->spec));
    EXPECT_OK(schedule_create(&small, &few));
    open_rig(rig, &large, one->rows, one->scatter_gather);
    train_once(rig, &large, one->rows, bytes, what);
    evaluate_once(rig, one->rows, what);
    train_once(rig, &small, one->rows, bytes, what);
    evaluate_once(rig, one->rows, what);
    train_once(rig, &large, one->rows, bytes, what);
    EXPECT(pipeline_pool_count(rig->pipeline, BUFFER_STASH) ==
               schedule_peak_stash(&large, context_rank(&rig->runtime.context, ROLE_PIPELINE)),
           "%s", what);
    EXPECT(pipeline_pool_peak(rig->pipeline, BUFFER_STASH) == 2 * ARENA_ALIGNMENT, "%s", what);
    close_rig(rig);
    schedule_destroy(&small);
    schedule_destroy(&large);
}

// ---- all of them on one grid ------------------------------------------------------------------------------

typedef struct {
    Grid grid;
    void (*run)(Rig *rig);
} Job;

static Status run_job(Comm *world, void *arg) {
    const Job *job = arg;
    Rig rig = {.pipeline = NULL};
    RuntimeMemory memory = {.workspace = 1 << 20};
    RuntimeSpec spec = {.topology = topology_of(job->grid, comm_rank(world)),
                        .roles = ALL_ROLES,
                        .device = harness_device("reference"),
                        .threads = 1,
                        .memory = &memory};
    Status status = runtime_open(&rig.runtime, &spec, world);
    if (status == OK) job->run(&rig);
    runtime_close(&rig.runtime);
    return status;
}

static void on_grid(int tp, int pp, void (*run)(Rig *rig)) {
    Job job = {GRID(tp, 1, pp), run};
    EXPECT_OK(comm_launch((CommOptions){.transport = "threads",
                                        .ranks = tp * pp,
                                        .timeout_s = 20,
                                        .check = tp > 1,
                                        .device_transport = harness_device_transport(),
                                        .deterministic = true},
                          run_job, &job));
}

static void run_every_kind(Rig *rig) {
    static const int64_t rows[] = {4, 5};
    int p = context_ranks(&rig->runtime.context, ROLE_PIPELINE),
        most_ways = context_ranks(&rig->runtime.context, ROLE_TENSOR) > 1 ? 3 : 1;
    for (int i = 0; i < num_schedule_kinds * MAX_CHUNKS * 3 * most_ways; i++) {
        int j = i / num_schedule_kinds, way = j / (3 * MAX_CHUNKS);
        Case one = {.rows = rows[way == 2], .scatter_gather = way > 0};
        one.spec = (ScheduleSpec){.kind = schedule_kinds[i % num_schedule_kinds]->name,
                                  .ranks = p,
                                  .chunks = 1 + j % MAX_CHUNKS,
                                  .microbatches = 3 * p,
                                  .receive_ahead = j / MAX_CHUNKS % 3,
                                  .costs = {.forward_us = 1, .backward_us = 2, .weight_fraction = 0.5}};
        char why[256];
        if (!schedule_kind_refuse(schedule_kind(one.spec.kind), &one.spec, why, sizeof why))
            run_case(rig, &one);
    }
}

// The short form has a rank alone, first and last ranks with one between, and over tp first and last alone.
static void every_schedule_is_exact(void) {
    for (int p = 1; p <= 4; p += harness_short() ? 2 : 1) on_grid(1, p, run_every_kind);
}

static void every_schedule_is_exact_over_tp(void) {
    for (int p = 1; p <= 3; p++)
        if (p == 2 || !harness_short()) on_grid(2, p, run_every_kind);
}

// ---- what else it promises --------------------------------------------------------------------------------

static void run_traced(Rig *rig) {
    Schedule s;
    EXPECT_OK(
        schedule_create(&s, &(ScheduleSpec){.kind = "zb-h1", .ranks = 2, .chunks = 1, .microbatches = 4}));
    open_rig(rig, &s, 4, false);
    EXPECT(trace_open(1000), "no memory");
    pipeline_train(rig->pipeline, rig->microbatches, &rig->reducer);
    const Trace *trace = rank_current()->trace;
    const Program *program = &s.programs[context_rank(&rig->runtime.context, ROLE_PIPELINE)];
    int at = 0;
    double before = 0;
    for (uint64_t i = 0; i < trace->count; i++) {
        const TraceEvent *event = &trace->events[i];
        if (event->row != TRACE_PIPELINE) continue;
        Instr in = at < program->count ? program->instrs[at++] : (Instr){.microbatch = -2};
        EXPECT(!strcmp(event->name, schedule_ops[in.op].text) && event->microbatch == in.microbatch &&
                   event->chunk == in.chunk,
               "event %d: %s of microbatch %d", at, event->name, event->microbatch);
        EXPECT(event->start_s >= before && event->end_s >= event->start_s, "event %d", at);
        before = event->end_s;
    }
    EXPECT(at == program->count, "%d events of %d", at, program->count);
    PipelineTimes times = pipeline_times(rig->pipeline);
    double total_s = times.total_s, forward_s = times.chunks[0].forward_s;
    pipeline_evaluate(rig->pipeline, rig->microbatches);
    times = pipeline_times(rig->pipeline);
    EXPECT(times.total_s == total_s && times.chunks[0].forward_s == forward_s, "an evaluation is counted");
    trace_close();
    EXPECT(times.chunks[0].weight_s > 0 && times.chunks[0].weight_s < times.chunks[0].backward_s, "%g of %g",
           times.chunks[0].weight_s, times.chunks[0].backward_s);
    EXPECT(times.wait_s > 0 && times.wait_s < times.total_s, "%g of %g", times.wait_s, times.total_s);
    close_rig(rig);
    schedule_destroy(&s);
}

static void instructions_are_traced_and_timed(void) { on_grid(1, 2, run_traced); }

// The linker puts this in the place of device_mark_read. Where marks are counted, each one is a second of work after the
// one read before.
void __real_device_mark_read(Device *device, DeviceMark *mark);
void __wrap_device_mark_read(Device *device, DeviceMark *mark);
static _Thread_local int *marks_read; // NULL: they are not counted

void __wrap_device_mark_read(Device *device, DeviceMark *mark) {
    __real_device_mark_read(device, mark);
    if (marks_read) mark->work_s = ++*marks_read;
}

static void expect_times(Rig *rig, int instrs, const char *when) {
    ChunkTimes times = pipeline_times(rig->pipeline).chunks[0];
    EXPECT(times.forward_s == instrs && times.backward_s == 2 * instrs && times.weight_s == instrs,
           "%s: %g s forward, %g backward, %g of it weights", when, times.forward_s, times.backward_s,
           times.weight_s);
    EXPECT(*marks_read == 6 * instrs, "%s: %d marks read", when, *marks_read);
}

// Law: a step reads no mark of its own, for which the host would wait; every mark is read once all the same, and each
// instruction's time is added once.
static void run_untraced(Rig *rig) {
    enum { SOME = 2, MORE = 4 };
    ScheduleSpec spec = {.kind = "zb-h1", .ranks = 1, .chunks = 1, .microbatches = SOME};
    Schedule some, more;
    EXPECT_OK(schedule_create(&some, &spec));
    spec.microbatches = MORE;
    EXPECT_OK(schedule_create(&more, &spec));
    int read = 0;
    marks_read = &read;
    open_rig(rig, &more, 4, false);
    EXPECT_OK(pipeline_use(rig->pipeline, &some));
    pipeline_train(rig->pipeline, rig->microbatches, &rig->reducer);
    EXPECT(read == 0, "the first step reads %d marks", read);
    EXPECT_OK(pipeline_use(rig->pipeline, &more));
    pipeline_train(rig->pipeline, rig->microbatches, &rig->reducer);
    EXPECT(read == 6 * SOME, "the second step reads %d marks", read);
    expect_times(rig, SOME + MORE, "asked");
    expect_times(rig, SOME + MORE, "asked again");
    pipeline_train(rig->pipeline, rig->microbatches, &rig->reducer);
    pipeline_evaluate(rig->pipeline, rig->microbatches);
    expect_times(rig, SOME + 2 * MORE, "after an evaluation");
    pipeline_train(rig->pipeline, rig->microbatches, &rig->reducer);
    close_rig(rig);
    EXPECT(read == 6 * (SOME + 3 * MORE), "%d marks read in all", read);
    marks_read = NULL;
    schedule_destroy(&more);
    schedule_destroy(&some);
}

// The clocks of a host and of its device agree to within this time.
static const double CLOCKS_S = 1e-3;

// Law: the time after a run is no part of it, and a trace that is opened after a run holds nothing of it.
static void run_then_wait(Rig *rig) {
    Schedule s;
    EXPECT_OK(
        schedule_create(&s, &(ScheduleSpec){.kind = "zb-h1", .ranks = 1, .chunks = 1, .microbatches = 4}));
    open_rig(rig, &s, 4, false);
    double start_s = clock_s();
    pipeline_train(rig->pipeline, rig->microbatches, &rig->reducer);
    device_sync(rig->runtime.device, rig->runtime.context.stream);
    double took_s = clock_s() - start_s;
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    double total_s = pipeline_times(rig->pipeline).total_s;
    EXPECT(total_s > 0 && total_s <= took_s + CLOCKS_S, "%g s of %g s", total_s, took_s);
    pipeline_train(rig->pipeline, rig->microbatches, &rig->reducer);
    EXPECT(trace_open(1000), "no memory");
    pipeline_train(rig->pipeline, rig->microbatches, &rig->reducer);
    const Trace *trace = rank_current()->trace;
    int events = 0;
    for (uint64_t i = 0; i < trace->count; i++) events += trace->events[i].row == TRACE_PIPELINE;
    EXPECT(events == s.programs[0].count, "%d events of %d instructions", events, s.programs[0].count);
    trace_close();
    close_rig(rig);
    schedule_destroy(&s);
}

static void times_are_read_later(void) {
    on_grid(1, 1, run_untraced);
    on_grid(1, 1, run_then_wait);
}

static void expect_unusable(Rig *rig, const char *kind, int chunks, int microbatches, const char *message) {
    Schedule s;
    ScheduleSpec spec = {.kind = kind, .ranks = 2, .chunks = chunks, .microbatches = microbatches};
    EXPECT_OK(schedule_create(&s, &spec));
    EXPECT(pipeline_use(rig->pipeline, &s) == ERR_CONFIG && !strcmp(fail_message(), message), "%s",
           fail_message());
    schedule_destroy(&s);
}

static void run_refusals(Rig *rig) {
    Schedule s;
    EXPECT_OK(
        schedule_create(&s, &(ScheduleSpec){.kind = "1f1b", .ranks = 2, .chunks = 1, .microbatches = 4}));
    open_rig(rig, &s, 4, false);
    expect_unusable(rig, "1f1b", 1, 5,
                    "a schedule of 2 ranks, 1 chunks and 5 microbatches does not fit this pipeline");
    expect_unusable(rig, "zb-v", 2, 2,
                    "a schedule of 2 ranks, 2 chunks and 2 microbatches does not fit this pipeline");
    expect_unusable(rig, "gpipe", 1, 4,
                    context_rank(&rig->runtime.context, ROLE_PIPELINE)
                        ? "the schedule of 4 microbatches needs 4 buffers for stage input, there are 1"
                        : "the schedule of 4 microbatches needs 4 buffers for stage input, there are 2");
    close_rig(rig);
    schedule_destroy(&s);
}

static void other_schedules_are_refused(void) { on_grid(1, 2, run_refusals); }

int main(int argc, char **argv) {
    static const Test tests[] = {
        {"every schedule is exact", every_schedule_is_exact},
        {"every schedule is exact over tp", every_schedule_is_exact_over_tp},
        {"instructions are traced and timed", instructions_are_traced_and_timed},
        {"times are read later", times_are_read_later},
        {"other schedules are refused", other_schedules_are_refused},
        {0},
    };
    return harness_run(tests, argc, argv);
}
