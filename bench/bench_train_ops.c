// Where the time of a training step goes on a device: each operation's share, and whether the device waits for the
// host.
//
//   bench_train_ops gpt2-124m|llama3|tiny [--device KIND] [--json FILE]
//
// llama3: four layers of Llama-3 8B. KIND is cuda unless given; tiny is for simulated GPUs. In bf16, without dropout,
// one rank, two microbatches a step. An event stands before each operation, so the time of an operation is that until
// the next one's: with copies between them, and with what the device idles because the host is late. Where the device
// reaches an event less than 20 microseconds after the host has asked for it, it has nothing left to do: it waits for
// the host.
#include "base/rank.h"
#include "median.h"
#include "table.h"
#include "train/train.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MICROBATCHES = 2, WARM_STEPS = 3, MAX_EVENTS = 1 << 16 };
static const double STARVED_S = 20e-6;

typedef struct {
    const char *name;
    int layers, hidden, heads, groups, ffn, sequence, vocabulary, microbatch;
    bool llama;
} Model;

static const Model MODELS[] = {
    {"gpt2-124m", 12, 768, 12, 12, 3072, 1024, 50304, 16, false},
    {"llama3", 4, 4096, 32, 8, 14336, 4096, 128256, 1, true},
    {"tiny", 2, 64, 2, 2, 256, 32, 512, 2, false},
};
enum { NUM_MODELS = sizeof MODELS / sizeof *MODELS };

typedef struct {
    DeviceOp op;
    OpCount one;
    double issued_s; // clock_s() when the host asked for the mark before it
    DeviceMark mark;
} Event;

typedef struct {
    const Model *model;
    const char *kind;
    Engine *engine;
    Event *events; // [MAX_EVENTS]
    int num_events;
    double plain_s; // of a step without marks
    Tables tables;
} Bench;

static EngineSpec spec_of(const Bench *b) {
    const Model *m = b->model;
    ModelShape shape = {.layers = m->layers,
                        .hidden = m->hidden,
                        .heads = m->heads,
                        .groups = m->groups,
                        .head_size = m->hidden / m->heads,
                        .ffn = m->ffn,
                        .sequence = m->sequence,
                        .positions = m->sequence,
                        .vocabulary = m->vocabulary,
                        .activation = m->llama ? ACTIVATION_SWIGLU : ACTIVATION_GELU,
                        .position = m->llama ? POSITION_ROTARY : POSITION_LEARNED,
                        .rotary_base = 500000,
                        .rms_norm = m->llama,
                        .no_linear_bias = m->llama,
                        .untied = m->llama,
                        .norm_epsilon = 1e-5f,
                        .init_std = 0.02f,
                        .seed = 1};
    return (EngineSpec){
        .grid = GRID(1, 1, 1),
        .shape = shape,
        .mode = {.microbatch = m->microbatch, .padded_vocabulary = m->vocabulary, .dtype = BF16},
        .split = {.layers = m->layers},
        .schedule = schedule_kind_default(1)->name,
        .num_chunks = 1,
        .num_microbatches = MICROBATCHES,
        .adam = {0.9, 0.95, 1e-8, 1.0},
        .bucket_elements = 40000000,
        .device = b->kind,
        .threads = 1};
}

// ---- steps ------------------------------------------------------------------------------------------------

static void on_operation(void *self, DeviceOp op, const void *args, OpCount one) {
    Bench *b = self;
    Context *c = engine_context(b->engine);
    (void)args;
    CHECK(b->num_events < MAX_EVENTS - 1, "a step of more than %d operations", MAX_EVENTS);
    b->events[b->num_events++] = (Event){op, one, clock_s(), device_mark(c->device, c->stream)};
}

static void take_step(Bench *b, const Batch *batch) {
    engine_train(b->engine, *batch, (StepOptions){.lr = 1e-4, .weight_decay = 0.01, .loss_scale = 1});
}

static void take_steps(Bench *b, const Batch *batch) {
    Context *c = engine_context(b->engine);
    double seconds[WARM_STEPS];
    for (int i = 0; i < WARM_STEPS; i++) {
        double start_s = clock_s();
        take_step(b, batch);
        device_sync(c->device, c->stream);
        seconds[i] = clock_s() - start_s;
    }
    b->plain_s = median(seconds, WARM_STEPS);
    device_on_operation(c->device, on_operation, b);
    take_step(b, batch);
    device_on_operation(c->device, NULL, NULL);
    b->events[b->num_events] = (Event){NUM_DEVICE_OPS, {0}, clock_s(), device_mark(c->device, c->stream)};
    for (int i = 0; i <= b->num_events; i++) device_mark_read(c->device, &b->events[i].mark);
}

// ---- the table --------------------------------------------------------------------------------------------

typedef struct {
    int calls, starved; // starved: the device waited for the host before it
    double seconds, flops, bytes;
} Share;

static double time_of(const Bench *b, int i) {
    return b->events[i + 1].mark.wall_s - b->events[i].mark.wall_s;
}

static void add_share(const Bench *b, int i, Share *share) {
    const Event *e = &b->events[i];
    share->calls++;
    share->starved += e->mark.wall_s - e->issued_s < STARVED_S;
    share->seconds += time_of(b, i);
    share->flops += e->one.flops, share->bytes += e->one.bytes;
}

static const Column COLUMNS[] = {{"calls", 0, INFORMS},     {"ms", 3, LOWER_IS_BETTER},
                                 {"% of step", 1, INFORMS}, {"TFLOP/s", 1, INFORMS},
                                 {"GB/s", 0, INFORMS},      {"host late", 0, INFORMS}};

static void add_row(Bench *b, const char *name, const Share *s, double step_s) {
    table_row(&b->tables, name,
              (double[]){s->calls, 1e3 * s->seconds, 100 * s->seconds / step_s, s->flops / s->seconds / 1e12,
                         s->bytes / s->seconds / 1e9, s->starved});
}

static void print(Bench *b) {
    Share shares[NUM_DEVICE_OPS] = {0}, all = {0};
    char title[80];
    for (int i = 0; i < b->num_events; i++) {
        add_share(b, i, &shares[b->events[i].op]);
        add_share(b, i, &all);
    }
    snprintf(title, sizeof title, "operations of a step of %s in bf16", b->model->name);
    table_begin(&b->tables, title, COLUMNS, sizeof COLUMNS / sizeof *COLUMNS);
    for (DeviceOp op = 0; op < NUM_DEVICE_OPS; op++)
        if (shares[op].calls) add_row(b, device_op_name(op), &shares[op], all.seconds);
    add_row(b, "all", &all, all.seconds);
    table_note(&b->tables, "a step takes %.3f ms without events", 1e3 * b->plain_s);
    table_note(&b->tables, "before %d of %d operations the device waited for the host", all.starved,
               all.calls);
}

// ---- all of it --------------------------------------------------------------------------------------------

static Status run(Comm *world, void *self) {
    Bench *b = self;
    EngineSpec spec = spec_of(b);
    size_t count = (size_t)MICROBATCHES * (size_t)b->model->sequence * (size_t)b->model->microbatch;
    int32_t *tokens = malloc(count * sizeof *tokens);
    CHECK(tokens, "no memory for %zu tokens", count);
    for (size_t i = 0; i < count; i++)
        tokens[i] = (int32_t)(rng_word(rng_key(1, "bench", 0), 0, i) % (uint32_t)b->model->vocabulary);
    Status status = engine_open(&b->engine, &spec, world);
    if (status == OK) {
        take_steps(b, &(Batch){.num_microbatches = MICROBATCHES, .tokens = tokens, .labels = tokens});
        engine_close(b->engine);
        print(b);
    }
    free(tokens);
    return status;
}

static Status bench_ops(Bench *b, int argc, char **argv) {
    const char *json = tables_path(&argc, argv);
    b->kind = "cuda";
    if (argc == 4 && !strcmp(argv[2], "--device")) b->kind = argv[3], argc = 2;
    for (int i = 0; i < NUM_MODELS && argc == 2; i++)
        if (!strcmp(argv[1], MODELS[i].name)) b->model = &MODELS[i];
    if (!b->model)
        return fail(ERR_USAGE, "usage: bench_train_ops gpt2-124m|llama3|tiny [--device KIND] [--json FILE]");
    b->events = malloc(MAX_EVENTS * sizeof *b->events);
    CHECK(b->events, "no memory");
    TRY(comm_launch((CommOptions){.transport = "threads", .ranks = 1, .timeout_s = 600, .threads = 1}, run,
                    b));
    return tables_finish(&b->tables, "gpu-operations", json);
}

int main(int argc, char **argv) {
    Bench b = {0};
    Status status = bench_ops(&b, argc, argv);
    if (status) fprintf(stderr, "bench_train_ops: %s\n", fail_message());
    free(b.events);
    return (int)status;
}
