// Counts what a layer asks of a device: how many operations a microbatch takes, and how many bytes those bound by memory read and
// write, on a device whose operations are joined and on one where they are not.
#include "harness.h"
#include "runs.h"

enum { HIDDEN = 48, FFN = 192, TOKENS = 32 * 2 };

typedef struct {
    int64_t calls[NUM_DEVICE_OPS];
    double bytes; // of all but products, attention, loss, embedding and optimizer
} Counts;

static void on_opened(void *self, const Params *params) { (void)self, (void)params; }

static void on_call(void *self, const Instr *at, const Comm *group, CommOp op, DType dtype, size_t bytes) {
    (void)self, (void)at, (void)group, (void)op, (void)dtype, (void)bytes;
}

// Products count what they make beside themselves.
static void on_operation(void *self, const Instr *at, DeviceOp op, const void *args, OpCount one) {
    Counts *counts = self;
    if (!at) return;
    counts->calls[op]++;
    if (op == OP_MATMUL_GELU) counts->bytes += (double)tensor_bytes(((const MatmulGelu *)args)->aux);
    if (op == OP_MATMUL_GELU_BACKWARD)
        counts->bytes += (double)tensor_bytes(((const MatmulGeluBackward *)args)->aux);
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
    case OP_NORM_BACKWARD: counts->bytes += one.bytes; break;
    default: break;
    }
}

static EngineSpec spec_of(const char *device, int layers, bool llama) {
    EngineSpec spec = run_spec((Grid)GRID(1, 1, 1), "1f1b", 1, layers, 2);
    spec.shape.hidden = HIDDEN, spec.shape.ffn = FFN, spec.shape.heads = 4, spec.shape.head_size = 12;
    spec.shape.sequence = 32, spec.shape.positions = 32;
    spec.mode.microbatch = 2, spec.num_microbatches = 1, spec.mode.dtype = BF16;
    spec.shape.hidden_dropout = spec.shape.attention_dropout = 0;
    if (llama) {
        spec.shape.activation = ACTIVATION_SWIGLU;
        spec.shape.rms_norm = spec.shape.no_linear_bias = true;
    }
    spec.device = device;
    return spec;
}

static Counts recorded(const EngineSpec *spec) {
    Counts counts = {{0}, 0};
    EXPECT_OK(engine_record(spec, 0, &(StepListener){&counts, on_opened, on_operation, on_call}));
    return counts;
}

// One layer's operations, and its bytes per token in units of H.
static int64_t layer_calls(const char *device, bool llama, Counts *layer) {
    EngineSpec more = spec_of(device, 3, llama), less = spec_of(device, 2, llama);
    Counts a = recorded(&more), b = recorded(&less);
    int64_t all = 0;
    for (int op = 0; op < NUM_DEVICE_OPS; op++) all += layer->calls[op] = a.calls[op] - b.calls[op];
    layer->bytes = (a.bytes - b.bytes) / TOKENS / HIDDEN;
    return all;
}

// Without statistics of rows and vectors of parameters, which at these sizes are a few bytes more: twice 4 for norms, twice 8
// for their gradients, twice 6 for residuals; GELU writes and reads aux, 4 H in bf16; SwiGLU, here with F = 4 H, reads and
// writes 6 F and 10 F.
static void joined_layers_read_less(void) {
    const char *const device = "cuda-sim";
    const double common = 2 * 4 + 2 * 8 + 2 * 6, few = 4;
    Counts gpt, llama;
    if (device_check(device) == ERR_UNAVAILABLE) return;
    int64_t calls = layer_calls(device, false, &gpt);
    EXPECT(calls == 20, "%lld operations of a layer", (long long)calls);
    EXPECT(gpt.calls[OP_MATMUL_SUMS] == 4 && gpt.calls[OP_MATMUL_GELU] == 1 &&
               gpt.calls[OP_NORM_BACKWARD] == 2 && gpt.calls[OP_MATMUL_GELU_BACKWARD] == 1 &&
               !gpt.calls[OP_DROPOUT_BACKWARD],
           "operations are not joined");
    EXPECT(gpt.bytes >= common + 16 && gpt.bytes < common + 16 + few, "%.2f H bytes a token", gpt.bytes);
    calls = layer_calls(device, true, &llama);
    EXPECT(calls == 22, "%lld operations of a layer of a Llama", (long long)calls);
    EXPECT(llama.bytes >= common + 64 && llama.bytes < common + 64 + few, "%.2f H bytes a token of a Llama",
           llama.bytes);
}

// These are the operations that plans price.
static void the_cpu_makes_each_apart(void) {
    Counts gpt;
    int64_t calls = layer_calls("cpu", false, &gpt);
    EXPECT(calls == 30, "%lld operations of a layer", (long long)calls);
    EXPECT(gpt.calls[OP_COLUMN_SUM] == 4 && gpt.calls[OP_DROPOUT_BACKWARD] == 2, "operations are missing");
    EXPECT(gpt.bytes > 110 && gpt.bytes < 116, "%.2f H bytes a token", gpt.bytes);
}

// Products in 8 bits join nothing: each is made of two factors, and sums and GELU stand beside it.
static void every_product_is_in_8_bits(void) {
    static const char *const devices[] = {"cpu", "cuda-sim"};
    for (int i = 0; i < 2; i++) {
        if (device_check(devices[i]) == ERR_UNAVAILABLE) continue;
        EngineSpec more = spec_of(devices[i], 3, false), less = spec_of(devices[i], 2, false);
        more.mode.float8 = less.mode.float8 = FLOAT8_HYBRID;
        Counts a = recorded(&more), b = recorded(&less);
        for (int op = 0; op < NUM_DEVICE_OPS; op++) a.calls[op] -= b.calls[op];
        EXPECT(a.calls[OP_MATMUL] == 12 && a.calls[OP_QUANTIZE] == 24 && a.calls[OP_ABS_MAX] == 24,
               "%s: %lld products of %lld factors", devices[i], (long long)a.calls[OP_MATMUL],
               (long long)a.calls[OP_QUANTIZE]);
        EXPECT(a.calls[OP_COLUMN_SUM] == 4 && a.calls[OP_BIAS_GELU_FORWARD] == 1, "%s: sums, GELU",
               devices[i]);
    }
}

// All chunks of the head are one on a GPU, and each has one operation for its loss.
static void the_loss_is_one_operation(void) {
    EngineSpec gpu = spec_of("cuda-sim", 1, false), cpu = spec_of("cpu", 1, false);
    gpu.mode.microbatch = cpu.mode.microbatch = 20; // 640 tokens
    gpu.num_microbatches = cpu.num_microbatches = 1;
    Counts apart = recorded(&cpu);
    EXPECT(apart.calls[OP_LOSS_MAX] == 2 && apart.calls[OP_LOSS_FINISH] == 2 && !apart.calls[OP_LOSS_WHOLE],
           "%lld chunks on the cpu", (long long)apart.calls[OP_LOSS_MAX]);
    if (device_check("cuda-sim") == ERR_UNAVAILABLE) return;
    Counts joined = recorded(&gpu);
    EXPECT(joined.calls[OP_LOSS_WHOLE] == 1 && !joined.calls[OP_LOSS_MAX], "%lld losses on a GPU",
           (long long)joined.calls[OP_LOSS_WHOLE]);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"joined_layers_read_less", joined_layers_read_less},
                                      {"the_cpu_makes_each_apart", the_cpu_makes_each_apart},
                                      {"every_product_is_in_8_bits", every_product_is_in_8_bits},
                                      {"the_loss_is_one_operation", the_loss_is_one_operation},
                                      {0}},
                       argc, argv);
}
