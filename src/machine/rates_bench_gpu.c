// Measures GPUs: what one does at its best, what it costs to launch, operations in training steps, messages among all.
#include "base/rank.h"
#include "device/ops.h"
#include "device/survey.h"
#include "machine/algorithms_bench.h"
#include "machine/rates.h"
#include "train/train.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- what is measured ----------------------------------------------------------------------------

// Their layers enclose those of models that one GPU trains, from 124 million parameters to 8 billion.
static const Reference large_models[] = {
    {768, 12, 3072, 1024, 4, 16384, false, false, false},
    {768, 12, 3072, 1024, 16, 50304, false, true, false},
    {1024, 16, 4096, 2048, 4, 16384, false, false, false},
    {1600, 25, 6400, 1024, 8, 50304, false, false, false},
    {2560, 32, 10240, 1024, 4, 16384, false, true, false},
    {4096, 32, 16384, 2048, 1, 50304, false, false, false},
    {1024, 16, 2816, 4096, 1, 32000, true, false, false},
    {2048, 32, 8192, 2048, 4, 32000, true, false, false},
    {2048, 16, 5632, 1024, 8, 32000, true, false, false},
    {4096, 32, 11008, 4096, 1, 32000, true, false, false},
    {4096, 32, 14336, 2048, 2, 32000, true, false, false},
    {3072, 24, 8192, 8192, 1, 32000, true, false, false},
};
static const Reference tiny_models[] = {
    {64, 2, 128, 32, 1, 256, false, true, false},
    {32, 4, 128, 16, 2, 256, false, false, false},
    {64, 4, 96, 16, 2, 256, true, false, false},
};

typedef struct {
    int64_t bytes;   // of a copy
    int64_t product; // rows and columns of its factors
    int launches;
    const Reference *models;
    int num_models, num_messages; // of messages so many sizes, each four times the one before
} Sizes;

static const Sizes LARGE = {
    (int64_t)1 << 30, 8192, 800, large_models, sizeof large_models / sizeof *large_models, 9};
static const Sizes TINY = {1 << 16, 64, 20, tiny_models, sizeof tiny_models / sizeof *tiny_models, 2};

typedef struct {
    Machine *machine;
    Stack *stack;
    const char *kind;
    int sms;
    Sizes sizes;
    void (*tell)(const char *what, int ranks);
} Job;

static void tell(const Job *job, const char *what, int ranks) {
    if (job->tell) job->tell(what, ranks);
}

// ---- one GPU at its best -------------------------------------------------------------------------

enum { TURNS = 9 };

typedef struct {
    Device *device;
    Stream *stream;
    Arena arena;
    Tensor from, to;
    Matmul product;
} Gpu;

static int compare(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

// The median of some turns, after one that is not counted.
static double seconds_of(Gpu *g, void (*work)(Gpu *g)) {
    DeviceMark marks[TURNS + 2];
    double seconds[TURNS];
    for (int i = 0; i < TURNS + 2; i++) {
        marks[i] = device_mark(g->device, g->stream);
        if (i < TURNS + 1) work(g);
    }
    for (int i = 0; i < TURNS + 2; i++) device_mark_read(g->device, &marks[i]);
    for (int i = 0; i < TURNS; i++) seconds[i] = marks[i + 2].work_s - marks[i + 1].work_s;
    qsort(seconds, TURNS, sizeof *seconds, compare);
    return fmax(seconds[TURNS / 2], 1e-9);
}

static void copy(Gpu *g) { device_copy(g->device, g->stream, g->to, g->from); }
static void multiply(Gpu *g) { matmul(g->device, g->stream, g->product); }

// Numbers in place of zeros, which are multiplied faster.
static Status fill(Gpu *g, Tensor x) {
    size_t bytes = tensor_bytes(x);
    unsigned char *values = malloc(bytes);
    if (!values) return fail(ERR_OS, "no memory for %zu bytes", bytes);
    // Bytes whose pairs and fours are numbers near 1 in every type.
    for (size_t i = 0; i < bytes; i++)
        values[i] = i % 2 ? 0x3c : (unsigned char)(rng_word(rng_key(1, "values", 0), 0, i / 2) & 0x7f);
    device_upload(g->device, g->stream, x, values);
    free(values);
    return OK;
}

// A rate is at least what a machine's file may say.
static Status product_tflops(Gpu *g, const Job *job, DType dtype, double *rate) {
    int64_t n = job->sizes.product;
    ArenaMark mark = arena_mark(&g->arena);
    g->product = (Matmul){.a = tensor_take(&g->arena, "a", n, n, dtype),
                          .b = tensor_take(&g->arena, "b", n, n, dtype),
                          .d = tensor_take(&g->arena, "d", n, n, dtype),
                          .transpose_b = true};
    Status status = fill(g, g->product.a);
    if (status == OK) status = fill(g, g->product.b);
    if (status == OK) *rate = fmax(2e-12 * pow((double)n, 3) / seconds_of(g, multiply), 1e-4);
    device_sync(g->device, g->stream);
    arena_release(&g->arena, mark);
    return status;
}

// Of both directions together.
static double copy_gbs(Gpu *g, const Job *job) {
    ArenaMark mark = arena_mark(&g->arena);
    g->from = tensor_take(&g->arena, "from", 1, job->sizes.bytes / 4, F32);
    g->to = tensor_take(&g->arena, "to", 1, job->sizes.bytes / 4, F32);
    device_zero(g->device, g->stream, g->from);
    double rate = 2e-9 * (double)job->sizes.bytes / seconds_of(g, copy);
    device_sync(g->device, g->stream);
    arena_release(&g->arena, mark);
    return rate;
}

static Status host_gbs(Gpu *g, const Job *job, double *rate) {
    size_t bytes = (size_t)job->sizes.bytes / 8;
    void *from = calloc(1, bytes);
    if (!from) return fail(ERR_OS, "no memory for %zu bytes", bytes);
    ArenaMark mark = arena_mark(&g->arena);
    Tensor to = tensor_take(&g->arena, "to", 1, (int64_t)bytes / 4, F32);
    device_upload(g->device, g->stream, to, from);
    device_sync(g->device, g->stream);
    double start_s = clock_s();
    device_upload(g->device, g->stream, to, from);
    device_sync(g->device, g->stream);
    *rate = 1e-9 * (double)bytes / fmax(clock_s() - start_s, 1e-9);
    free(from);
    arena_release(&g->arena, mark);
    return OK;
}

// The host's time for one operation, which it does not wait for.
static double launch_us(Gpu *g, const Job *job) {
    ArenaMark mark = arena_mark(&g->arena);
    Tensor x = tensor_take(&g->arena, "x", 1, 64, F32), y = tensor_take(&g->arena, "y", 1, 64, F32);
    device_zero(g->device, g->stream, x);
    device_zero(g->device, g->stream, y);
    device_sync(g->device, g->stream);
    double start_s = clock_s();
    for (int i = 0; i < job->sizes.launches; i++) add(g->device, g->stream, (Add){x, y});
    double seconds = clock_s() - start_s;
    device_sync(g->device, g->stream);
    arena_release(&g->arena, mark);
    return fmin(1e6 * seconds / job->sizes.launches, 500);
}

static Status measure_best(Gpu *g, const Job *job) {
    Machine *m = job->machine;
    double gbs = 0;
    TRY(product_tflops(g, job, F32, &m->peak_tflops[F32]));
    TRY(product_tflops(g, job, BF16, &m->peak_tflops[BF16]));
    TRY(product_tflops(g, job, F16, &m->peak_tflops[F16]));
    m->memory_gbs = fmax(copy_gbs(g, job), 0.1);
    TRY(host_gbs(g, job, &gbs));
    m->link_gbs = fmax(gbs, 0.01); // of one GPU: to the host; several: see measure_messages
    int launch = constant_find("launch_us");
    *constant_at(&job->stack->constants, launch) = launch_us(g, job);
    job->stack->set[launch] = true;
    return OK;
}

// What it has opened close_gpu closes, also where it fails.
static Status open_gpu(Gpu *g, const Job *job, int rank_here, size_t bytes) {
    DeviceOptions options = {.kind = job->kind, .threads = 1, .rank_here = rank_here};
    const Tensor any = {NULL, 64, 64, BF16};
    TRY(product_workspace(job->kind, &(Matmul){.a = any, .b = any, .d = any}, &options.workspace_bytes));
    TRY(device_open(&g->device, options));
    g->stream = device_stream(g->device);
    return arena_open(&g->arena, "measurements", device_memory(g->device), bytes);
}

static void close_gpu(Gpu *g) {
    arena_close(&g->arena);
    device_close(g->device);
}

static Status measure_gpu(const Job *job) {
    Gpu g = {0};
    int64_t n = job->sizes.product, products = 3 * n * n * 4, copies = 2 * job->sizes.bytes;
    Status status =
        open_gpu(&g, job, 0, (size_t)(products > copies ? products : copies) + 16 * ARENA_ALIGNMENT);
    if (status == OK) status = measure_best(&g, job);
    close_gpu(&g);
    return status;
}

// ---- messages ------------------------------------------------------------------------------------

static double all_reduce_seconds(Comm *world, Gpu *g, Tensor x) {
    double seconds[TURNS];
    for (int i = -1; i < TURNS; i++) {
        comm_barrier(world);
        double start_s = clock_s();
        comm_all_reduce(world, g->stream, x, REDUCE_SUM);
        device_sync(g->device, g->stream);
        if (i >= 0) seconds[i] = clock_s() - start_s;
    }
    qsort(seconds, TURNS, sizeof *seconds, compare);
    return fmax(seconds[TURNS / 2], 1e-9);
}

// All-reduces of all GPUs, from `first` elements on.
static void time_messages(Comm *world, Gpu *g, const Job *job, int64_t first, Tensor x, Curve *curve) {
    double bus = 2.0 * (curve->ranks - 1) / curve->ranks;
    device_zero(g->device, g->stream, x);
    for (int i = 0; i < job->sizes.num_messages; i++) {
        int64_t count = first << 2 * i;
        double seconds = all_reduce_seconds(world, g, tensor_part(x, 0, count));
        curve->points[curve->count++] =
            (CurvePoint){4 * (double)count, fmax(4e-9 * bus * (double)count / seconds, 1e-6)};
    }
}

static Status measure_messages(Comm *world, const Job *job) {
    const int64_t first = 1 << 14; // 64 KiB
    Gpu g = {0};
    Curve curve = {.ranks = comm_size(world), .nodes = 1};
    int64_t most = first << 2 * (job->sizes.num_messages - 1);
    Status status =
        comm_agree(world, open_gpu(&g, job, comm_rank_here(world), (size_t)most * 4 + ARENA_ALIGNMENT));
    if (status == OK) status = comm_use_device(world, g.device);
    if (status == OK)
        time_messages(world, &g, job, first, tensor_take(&g.arena, "message", 1, most, F32), &curve);
    comm_use_device(world, NULL);
    close_gpu(&g);
    if (status != OK || comm_rank(world)) return status;
    job->machine->curves[0] = curve;
    job->machine->num_curves = 1;
    job->machine->link_gbs = fmax(curve.points[curve.count - 1].gbs, 0.01);
    return OK;
}

// ---- all of it -----------------------------------------------------------------------------------

static Status measure_first(Comm *alone, const Job *job) {
    Samples samples = {0};
    tell(job, "copies and products", 1);
    TRY(measure_gpu(job));
    tell(job, "training steps in bf16", 1);
    Status status = rates_of_references(alone, job->sizes.models, job->sizes.num_models, BF16, job->kind, 1,
                                        job->sms, &samples);
    if (status == OK) status = rates_fit(job->machine, &samples, 1);
    samples_free(&samples);
    return status;
}

static Status rank_main(Comm *world, void *arg) {
    const Job *job = arg;
    Comm *alone;
    int me = comm_rank(world);
    TRY(comm_agree(world, comm_split(world, "alone", &me, 1, &alone)));
    Status status = comm_agree(world, me ? OK : measure_first(alone, job));
    comm_close(alone);
    if (status != OK || comm_size(world) == 1) return status;
    if (!me) tell(job, "messages", comm_size(world));
    return measure_messages(world, job);
}

// Other programs' plans cut products into these tiles, as on other GPUs.
static void set_tiles(Machine *machine) {
    static const Tile tiles[] = {{256, 128, 1},   {128, 256, 1},   {128, 128, 0.95},
                                 {256, 64, 0.85}, {128, 64, 0.78}, {64, 64, 0.6}};
    machine->num_tiles = sizeof tiles / sizeof *tiles;
    memcpy(machine->tiles, tiles, sizeof tiles);
}

static void set_constant(Stack *stack, const char *name, double value, bool is_free) {
    int i = constant_find(name);
    CHECK(i >= 0, "no constant is named %s", name);
    *constant_at(&stack->constants, i) = value;
    stack->set[i] = true;
    stack->is_free[i] = is_free;
    if (is_free) *constant_at(&stack->priors, i) = value;
}

static void describe(Machine *machine, const GpuSurvey *gpu, int gpus) {
    snprintf(machine->gpu, sizeof machine->gpu, "%.*s", (int)sizeof machine->gpu - 1, gpu->name);
    machine->devices_per_node = gpus;
    machine->sms = gpu->multiprocessors;
    machine->memory_gb = machine->usable_gb = 1e-9 * (double)gpu->memory_bytes;
    set_tiles(machine);
}

Status rates_bench_gpu(Machine *machine, Stack *stack, const char *device,
                       void (*tell_user)(const char *what, int ranks)) {
    DeviceSurvey *survey = calloc(1, sizeof *survey);
    Text module = {0};
    *machine = (Machine){.is_cpu = false};
    if (!survey) return fail(ERR_OS, "no memory for a list of GPUs");
    Status status = device_survey(device, false, survey, &module);
    if (status == OK) status = stack_open(stack, "trireme-cuda");
    if (status == OK) {
        describe(machine, &survey->gpus[0], survey->num_gpus);
        snprintf(stack->device, sizeof stack->device, "%s", device);
        // Operations cost what was measured: nothing scales them until a calibration does.
        set_constant(stack, "matmul_efficiency", 1, true);
        set_constant(stack, "memory_efficiency", 1, true);
        Job job = {machine, stack, device, machine->sms, strcmp(device, "cuda") ? TINY : LARGE, tell_user};
        CommOptions options = {.transport = "threads",
                               .ranks = survey->num_gpus,
                               .timeout_s = 600,
                               .deterministic = true,
                               .threads = 1,
                               .bind_cores = true,
                               .device = device};
        status = comm_launch(options, rank_main, &job);
    }
    text_free(&module);
    free(survey);
    return status;
}
