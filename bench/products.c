// Measures matrix products at the shapes of a GPT.
#include "products.h"
#include "device/ops.h"
#include "median.h"
#include <math.h>
#include <string.h>

typedef struct {
    Device *device;
    Matmul args;
} Call;

static void multiply(void *self) {
    Call *call = self;
    matmul(call->device, device_stream(call->device), call->args);
}

static void measure_linear(Device *device, float *memory, int64_t tokens, DType dtype, int threads, int which,
                           Products *out) {
    const LinearShape *l = &out->linears[which];
    bool is_head = which == NUM_LINEARS - 1;
    Tensor x = {memory, tokens, l->in, dtype};
    Tensor y = {memory + tokens * l->in, tokens, l->out, is_head ? F32 : dtype}, dy = y;
    Tensor w = {(float *)y.data + tokens * l->out, l->out, l->in, dtype}, dw = w;
    dw.data = (float *)w.data + l->out * l->in, dw.dtype = F32;
    dy.dtype = dtype;
    const Matmul products[NUM_PRODUCTS] = {
        {.a = x, .b = w, .d = y, .transpose_b = true},
        {.a = dy, .b = w, .d = x},
        {.a = dy, .b = x, .d = dw, .transpose_a = true, .accumulate = true}};
    for (int i = 0; i < NUM_PRODUCTS; i++) {
        Call call = {device, products[i]};
        out->seconds[which][i] = median_time(threads, multiply, &call);
        out->rates[which][i] = 2.0 * (double)(tokens * l->out * l->in) / out->seconds[which][i];
    }
}

static void sum_up(Products *p, int64_t tokens) {
    double seconds = 0, flops = 0;
    for (int i = 0; i < NUM_LINEARS * NUM_PRODUCTS; i++) {
        const LinearShape *l = &p->linears[i / NUM_PRODUCTS];
        flops += 2.0 * (double)(tokens * l->out * l->in) * l->times;
        seconds += p->seconds[i / NUM_PRODUCTS][i % NUM_PRODUCTS] * l->times;
        p->best = fmax(p->best, p->rates[i / NUM_PRODUCTS][i % NUM_PRODUCTS]);
    }
    p->all = flops / seconds;
}

Products measure_products(const ModelShape *s, int microbatch, DType dtype, int threads) {
    int64_t h = s->hidden, f = s->ffn, v = table_rows(s), tokens = (int64_t)s->sequence * microbatch;
    Products p = {.linears = {{"qkv", 3 * h, h, s->layers},
                              {"projection", h, h, s->layers},
                              {"mlp up", f, h, s->layers},
                              {"mlp down", h, f, s->layers},
                              {"head", v, h, 1}}};
    Device *device;
    DeviceOptions options = {.kind = "cpu", .threads = threads, .workspace_bytes = (size_t)1 << 28};
    CHECK(device_open(&device, options) == OK, "%s", fail_message());
    int64_t most = 0;
    for (int i = 0; i < NUM_LINEARS; i++) {
        const LinearShape *l = &p.linears[i];
        int64_t floats = tokens * (l->in + l->out) + 2 * l->in * l->out;
        if (floats > most) most = floats;
    }
    float *memory = malloc((size_t)most * sizeof *memory);
    CHECK(memory, "no memory for products of %lld floats", (long long)most);
    // Bytes of 0x3c make small normal numbers in all three types; zeros might be multiplied faster.
    memset(memory, 0x3c, (size_t)most * sizeof *memory);
    for (int i = 0; i < NUM_LINEARS; i++) measure_linear(device, memory, tokens, dtype, threads, i, &p);
    free(memory);
    device_close(device);
    sum_up(&p, tokens);
    return p;
}

int table_rows(const ModelShape *s) { return padded_vocabulary(s->vocabulary, VOCABULARY_DIVISOR, 1); }

ModelShape gpt2_124m(int sequence) {
    return (ModelShape){.layers = 12,
                        .hidden = 768,
                        .heads = 12,
                        .head_size = 64,
                        .ffn = 3072,
                        .sequence = sequence,
                        .positions = sequence,
                        .vocabulary = 50257,
                        .norm_epsilon = 1e-5f,
                        .init_std = 0.02f,
                        .seed = 1};
}
