// Counts what a step of large models asks of a device: its operations, the bytes that those bound by memory read and
// write, and the memory it takes; recorded on the null device, so that neither a GPU nor the memory need be there.
//
//   bench_train_counts [--device KIND] [--json FILE]
//
// Counts of the basic operations, as every device took them before operations were joined and as the cpu takes them
// now, then those of KIND: cuda-sim unless given, which asks for what cuda does.
#include "base/text.h"
#include "table.h"
#include "train/train.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *name;
    int layers, hidden, heads, groups, ffn, sequence, vocabulary, microbatch;
    bool llama;
} Model;

static const Model MODELS[] = {{"GPT-2 124M, B 16", 12, 768, 12, 12, 3072, 1024, 50257, 16, false},
                               {"GPT-2 1558M, B 8", 48, 1600, 25, 25, 6400, 1024, 50257, 8, false},
                               {"Llama-2 7B, B 1", 32, 4096, 32, 32, 11008, 4096, 32000, 1, true},
                               {"Llama-3 8B, B 1", 32, 4096, 32, 8, 14336, 4096, 128256, 1, true}};
enum { NUM_MODELS = sizeof MODELS / sizeof *MODELS };

// A GPU's run on one rank in bf16, without dropout and with nothing recomputed.
static EngineSpec spec_of(const Model *m, const char *device) {
    EngineSpec spec = {.grid = GRID(1, 1, 1),
                       .shape = {.layers = m->layers,
                                 .hidden = m->hidden,
                                 .heads = m->heads,
                                 .groups = m->groups,
                                 .head_size = m->hidden / m->heads,
                                 .ffn = m->ffn,
                                 .sequence = m->sequence,
                                 .positions = m->sequence,
                                 .vocabulary = m->vocabulary,
                                 .norm_epsilon = 1e-5f,
                                 .init_std = 0.02f},
                       .mode = {.microbatch = m->microbatch,
                                .padded_vocabulary = padded_vocabulary(m->vocabulary, VOCABULARY_DIVISOR, 1),
                                .dtype = BF16},
                       .split = {.layers = m->layers},
                       .schedule = "1f1b",
                       .num_chunks = 1,
                       .num_microbatches = 1,
                       .adam = {0.9, 0.95, 1e-8, 1},
                       .bucket_elements = 40000000,
                       .device = device,
                       .threads = 1};
    if (!m->llama) return spec;
    spec.shape.activation = ACTIVATION_SWIGLU;
    spec.shape.position = POSITION_ROTARY, spec.shape.rotary_base = 10000;
    spec.shape.rms_norm = spec.shape.no_linear_bias = spec.shape.untied = true;
    return spec;
}

typedef struct {
    int64_t in_microbatch, beyond; // operations
    double elementwise, loss;      // bytes
} Counts;

// The bytes of an operation that are bound by memory. A product counts what it makes beside itself.
static double elementwise_bytes(DeviceOp op, const void *args, double bytes) {
    switch (op) {
    case OP_BIAS_GELU_FORWARD:
    case OP_BIAS_GELU_BACKWARD:
    case OP_SWIGLU_FORWARD:
    case OP_SWIGLU_BACKWARD:
    case OP_BIAS_DROPOUT_ADD:
    case OP_DROPOUT_BACKWARD:
    case OP_COLUMN_SUM:
    case OP_NORM_FORWARD:
    case OP_NORM_BACKWARD_INPUT:
    case OP_NORM_BACKWARD_WEIGHT:
    case OP_NORM_BACKWARD:
    case OP_ROTARY: return bytes;
    case OP_MATMUL_SUMS: return (double)tensor_bytes(((const MatmulSums *)args)->sums);
    case OP_MATMUL_GELU: return (double)tensor_bytes(((const MatmulGelu *)args)->aux);
    case OP_MATMUL_GELU_BACKWARD: return (double)tensor_bytes(((const MatmulGeluBackward *)args)->aux);
    default: return 0;
    }
}

static bool is_loss(DeviceOp op) {
    return op == OP_LOSS_MAX || op == OP_LOSS_SUM || op == OP_LOSS_FINISH || op == OP_LOSS_WHOLE;
}

static void on_opened(void *self, const Params *params) { (void)self, (void)params; }

static void on_operation(void *self, const Instr *at, DeviceOp op, const void *args, OpCount one) {
    Counts *counts = self;
    (at ? &counts->in_microbatch : &counts->beyond)[0]++;
    counts->elementwise += elementwise_bytes(op, args, one.bytes);
    if (is_loss(op)) counts->loss += one.bytes;
}

static void on_call(void *self, const Instr *at, const Comm *group, CommOp op, DType dtype, size_t bytes) {
    (void)self, (void)at, (void)group, (void)op, (void)dtype, (void)bytes;
}

static Status count_model(Tables *tables, const Model *m, const char *device) {
    EngineSpec spec = spec_of(m, device);
    Counts counts = {0};
    EngineMemory memory;
    TRY(engine_record(&spec, 0, &(StepListener){&counts, on_opened, on_operation, on_call}));
    TRY(engine_measure(&spec, 0, &memory, NULL));
    double tokens = (double)m->sequence * m->microbatch, gb = 1e-9;
    table_row(tables, m->name,
              (double[]){(double)counts.in_microbatch, (double)counts.beyond,
                         counts.elementwise / tokens / m->hidden / m->layers,
                         counts.loss / tokens / m->vocabulary, (double)memory.run * gb,
                         (double)memory.stash * gb, (double)memory.scratch * gb});
    return OK;
}

static Status count_all(Tables *tables, const char *title, const char *device) {
    static const Column columns[] = {{"operations a microbatch", 0, LOWER_IS_BETTER},
                                     {"a step beyond", 0, LOWER_IS_BETTER},
                                     {"H bytes a token and layer", 1, LOWER_IS_BETTER},
                                     {"V bytes of the loss a token", 1, LOWER_IS_BETTER},
                                     {"run, GB", 1, LOWER_IS_BETTER},
                                     {"stash, GB", 1, LOWER_IS_BETTER},
                                     {"scratch, GB", 1, LOWER_IS_BETTER}};
    table_begin(tables, title, columns, sizeof columns / sizeof *columns);
    for (int i = 0; i < NUM_MODELS; i++) TRY(count_model(tables, &MODELS[i], device));
    return OK;
}

int main(int argc, char **argv) {
    const char *path = tables_path(&argc, argv), *device = "cuda-sim";
    Tables tables = {0};
    if (argc == 3 && !strcmp(argv[1], "--device")) device = argv[2], argc = 1;
    if (argc != 1) {
        fprintf(stderr, "bench_train_counts: usage: bench_train_counts [--device KIND] [--json FILE]\n");
        return 64;
    }
    Status status = count_all(&tables, "The basic operations", "cpu");
    if (status == OK) status = count_all(&tables, "With operations joined, as a GPU makes them", device);
    if (status == OK) status = tables_finish(&tables, "counts", path);
    if (status != OK) fprintf(stderr, "bench_train_counts: %s\n", fail_message());
    return status == OK ? 0 : (int)status;
}
