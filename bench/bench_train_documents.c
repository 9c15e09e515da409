// What a token costs with documents of one length in a sample, and with a window: attention forward and backward, and a
// whole training step, on the cpu with one thread.
//
//   bench_train_documents [--json FILE]
//
// Attention as in GPT-2 124M (12 heads of 64), samples of 4096 tokens. The step is that of two layers, hidden size 512.
// "visible" is the share of the causal scores that queries see. Blocks of 128 queries and 64 keys are computed or left
// out as wholes, so that documents shorter than these cost no less. Medians of processor time.
#include "base/half.h"
#include "base/text.h"
#include "device/cpu/cpu.h"
#include "median.h"
#include "table.h"
#include "train/train.h"
#include <stdlib.h>
#include <string.h>

enum { SEQUENCE = 4096, HEADS = 12, SIZE = 64, HIDDEN = HEADS * SIZE, VOCABULARY = 8191 };

// Documents of so many tokens, and a window (0: none).
typedef struct {
    const char *name;
    int document, window;
} Row;

static const Row ROWS[] = {
    {"one document", SEQUENCE, 0}, {"documents of 2048", 2048, 0},       {"documents of 1024", 1024, 0},
    {"documents of 512", 512, 0},  {"documents of 256", 256, 0},         {"documents of 128", 128, 0},
    {"documents of 64", 64, 0},    {"a window of 1024", SEQUENCE, 1024}, {"a window of 256", SEQUENCE, 256}};
enum { NUM_ROWS = sizeof ROWS / sizeof *ROWS };

static const Column COLUMNS[] = {{"visible %", 2, INFORMS},
                                 {"attention us/token", 2, LOWER_IS_BETTER},
                                 {"% of one", 1, INFORMS},
                                 {"step us/token", 1, LOWER_IS_BETTER},
                                 {"% of one step", 1, INFORMS}};

static double visible_share(const Row *row) {
    double document = row->document, all = SEQUENCE;
    return (document + 1) / (all + 1) * attention_visible_share(row->window, 0, row->document);
}

// ---- attention alone --------------------------------------------------------------------------------------

typedef struct {
    Exec exec;
    AttentionForward forward;
    AttentionBackward backward;
} Attention;

static void attend(void *self) {
    Attention *a = self;
    cpu_backend.run(&a->exec, OP_ATTENTION_FORWARD, &a->forward);
    cpu_backend.run(&a->exec, OP_ATTENTION_BACKWARD, &a->backward);
}

static Tensor values(Arena *arena, DType dtype, int64_t rows, int64_t cols) {
    Tensor x = tensor_take(arena, "values", rows, cols, dtype);
    uint32_t state = 1;
    for (int64_t i = 0; i < tensor_count(x); i++) {
        state = state * 1664525u + 1013904223u;
        float value = (float)(state >> 8) * 0x1p-24f - 0.5f;
        if (dtype == F32)
            ((float *)x.data)[i] = value;
        else
            ((uint16_t *)x.data)[i] = bf16_of_f32(value);
    }
    return x;
}

static double attention_us(const Row *row, DType dtype) {
    Arena arena;
    CHECK(arena_open(&arena, "bench", memory_host(), (size_t)1 << 30) == OK, "%s", fail_message());
    Attention a = {.exec = {.threads = 1}};
    Tensor first_key = tensor_take(&arena, "first keys", 1, SEQUENCE, I32);
    for (int i = 0; i < SEQUENCE; i++) ((int32_t *)first_key.data)[i] = i / row->document * row->document;
    if (row->document == SEQUENCE) first_key = (Tensor){0};
    a.forward = (AttentionForward){
        .qkv = values(&arena, dtype, SEQUENCE, 3 * HIDDEN),
        .first_key = first_key,
        .out = values(&arena, dtype, SEQUENCE, HIDDEN),
        .stats = tensor_take(&arena, "stats", HEADS, SEQUENCE, F32),
        .shape = {.batch = 1, .sequence = SEQUENCE, .heads = HEADS, .groups = HEADS, .head_size = SIZE},
        .rules = {.window = row->window},
        .dropout = {.samples = 1}};
    a.backward = (AttentionBackward){.dout = values(&arena, dtype, SEQUENCE, HIDDEN),
                                     .qkv = a.forward.qkv,
                                     .out = a.forward.out,
                                     .stats = a.forward.stats,
                                     .first_key = first_key,
                                     .dqkv = values(&arena, dtype, SEQUENCE, 3 * HIDDEN),
                                     .shape = a.forward.shape,
                                     .rules = a.forward.rules,
                                     .dropout = a.forward.dropout};
    DeviceOptions options = {.threads = 1};
    a.exec.workspace_bytes = cpu_backend.workspace_bytes(&options, OP_ATTENTION_BACKWARD, &a.backward);
    a.exec.workspace = arena_take(&arena, "workspace", a.exec.workspace_bytes);
    double time = median_time(1, attend, &a);
    arena_close(&arena);
    return 1e6 * time / SEQUENCE;
}

// ---- a training step --------------------------------------------------------------------------------------

static EngineSpec spec_of(const Row *row, DType dtype) {
    EngineSpec spec = {.grid = GRID(1, 1, 1), .schedule = "1f1b", .num_chunks = 1, .num_microbatches = 1};
    spec.shape = (ModelShape){.layers = 2,
                              .hidden = 512,
                              .heads = 8,
                              .head_size = 64,
                              .ffn = 2048,
                              .sequence = SEQUENCE,
                              .positions = SEQUENCE,
                              .vocabulary = VOCABULARY,
                              .norm_epsilon = 1e-5f,
                              .init_std = 0.02f,
                              .window = row->window,
                              .seed = 1234};
    spec.mode = (ModelMode){.microbatch = 1, .dtype = dtype};
    spec.mode.padded_vocabulary = padded_vocabulary(VOCABULARY, 1, 1);
    spec.split.layers = 2;
    spec.adam = (AdamOptions){0.9, 0.95, 1e-8, 1.0};
    spec.bucket_elements = 40000000;
    spec.device = "cpu", spec.threads = 1;
    spec.first_keys = spec.positions = row->document < SEQUENCE;
    return spec;
}

typedef struct {
    const Row *row;
    DType dtype;
    Engine *engine;
    Batch batch;
    double us;
} Step;

static void train(void *self) {
    Step *step = self;
    engine_train(step->engine, step->batch, (StepOptions){1e-4, 0.1, 1});
}

static Status measure_step(Comm *world, void *arg) {
    static int32_t tokens[SEQUENCE], labels[SEQUENCE], first_keys[SEQUENCE], positions[SEQUENCE];
    Step *step = arg;
    EngineSpec spec = spec_of(step->row, step->dtype);
    for (int i = 0; i < SEQUENCE; i++) {
        tokens[i] = (int32_t)((uint32_t)i * 2654435761u % VOCABULARY),
        labels[i] = (tokens[i] + 1) % VOCABULARY;
        first_keys[i] = i / step->row->document * step->row->document, positions[i] = i - first_keys[i];
    }
    step->batch = (Batch){.num_microbatches = 1, .tokens = tokens, .labels = labels};
    step->batch.first_keys = first_keys, step->batch.positions = positions;
    TRY(engine_open(&step->engine, &spec, world));
    step->us = 1e6 * median_time(1, train, step) / SEQUENCE;
    engine_close(step->engine);
    return OK;
}

static Status bench_type(Tables *tables, DType dtype) {
    double attention = 0, all = 0;
    char title[64];
    snprintf(title, sizeof title, "documents and windows, %s, 1 thread", dtype_name(dtype));
    table_begin(tables, title, COLUMNS, sizeof COLUMNS / sizeof *COLUMNS);
    for (int i = 0; i < NUM_ROWS; i++) {
        Step step = {.row = &ROWS[i], .dtype = dtype};
        double us = attention_us(&ROWS[i], dtype);
        TRY(comm_launch((CommOptions){.transport = "threads", .ranks = 1, .timeout_s = 600}, measure_step,
                        &step));
        if (i == 0) attention = us, all = step.us;
        table_row(tables, ROWS[i].name,
                  (double[]){100 * visible_share(&ROWS[i]), us, 100 * us / attention, step.us,
                             100 * step.us / all});
    }
    return OK;
}

int main(int argc, char **argv) {
    const char *json = tables_path(&argc, argv);
    Tables tables = {0};
    Status status = bench_type(&tables, F32);
    if (status == OK) status = bench_type(&tables, BF16);
    if (status == OK) status = tables_finish(&tables, "documents", json);
    if (status != OK) fprintf(stderr, "bench_train_documents: %s\n", fail_message());
    return (int)status;
}
