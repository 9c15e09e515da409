// Every operation on every device against the reference, over one table of cases in every element type: odd
// sizes, with and without optional tensors, dropout on and off, parts of heads, rows and vocabularies, in
// place. A wrong dropout mask is an error as large as the numbers themselves, so the tolerance finds it.
#include "device_cases.h"
#include <stdio.h>

// Of cases times types: in the short form a case has one type, but where it is compared with the reference.
static bool is_left_out(int i) {
    return harness_short() && i / NUM_ELEMENTS % NUM_ELEMENTS != i % NUM_ELEMENTS;
}

// The largest difference as a part of the largest value; 0 for equal bits, infinity for a NaN.
static double difference(Fixture *got, Tensor x, Fixture *wanted, Tensor y) {
    void *a = values_of(got, x), *b = values_of(wanted, y);
    bool same = memcmp(a, b, tensor_bytes(x)) == 0;
    free(a);
    free(b);
    if (same) return 0;
    double *g = doubles_of(got, x), *w = doubles_of(wanted, y), largest = 0, error = 0;
    for (int64_t i = 0; i < tensor_count(x); i++) {
        largest = fmax(largest, fabs(w[i]));
        error = fmax(error, isfinite(g[i]) ? fabs(g[i] - w[i]) : INFINITY);
    }
    free(g);
    free(w);
    return error == 0 ? 1e-300 : error / largest; // not 0: zeros of different sign are different bits
}

static void compare(const Case *c, const char *how, Fixture *got, Fixture *wanted, double tolerance) {
    EXPECT(got->num_outputs == wanted->num_outputs && got->num_outputs > 0, "%s: no outputs", c->name);
    for (int i = 0; i < got->num_outputs; i++) {
        Output g = got->outputs[i], w = wanted->outputs[i];
        EXPECT(tensor_same_shape(g.tensor, w.tensor), "%s: shape of %s", c->name, g.name);
        double error = difference(got, g.tensor, wanted, w.tensor);
        EXPECT(error <= tolerance, "%s in %s: %s differs by %.2g of its largest value, %s", c->name,
               dtype_name(got->element), g.name, error, how);
    }
}

// Runs each case in each element type on two devices and compares what it leaves there.
static void compare_all(const char *how, const char *kind, int threads, const char *other, bool same_bits) {
    for (int i = 0; i < NUM_CASES * NUM_ELEMENTS; i++) {
        if (same_bits && is_left_out(i)) continue;
        const Case *c = &CASES[i / NUM_ELEMENTS];
        DType element = ELEMENTS[i % NUM_ELEMENTS];
        if (!case_is_chosen(c)) continue;
        Fixture got = fixture_open_as(kind, threads, element, element);
        Fixture wanted = fixture_open_as(other, 1, element, element);
        c->run(&got, c->n, c->p);
        c->run(&wanted, c->n, c->p);
        double narrow = element == F32 ? 0 : c->roundings * precision_of(element);
        compare(c, how, &got, &wanted, same_bits ? 0 : c->tolerance + narrow);
        fixture_close(&got);
        fixture_close(&wanted);
    }
}

static void cpu_agrees_with_reference(void) {
    compare_all("cpu and reference", "cpu", 1, "reference", false);
}

static void threads_do_not_change_bits(void) {
    if (!harness_short()) compare_all("2 threads and 1", "cpu", 2, "cpu", true);
    compare_all("3 threads and 1", "cpu", 3, "cpu", true);
}

// Also: no operation reads memory that was not written, or writes a number that is not finite.
static void check_gives_the_bits_of_cpu(void) { compare_all("check and cpu", "check", 1, "cpu", true); }

// The kernels of the CUDA device, on the simulated GPU, and on a GPU where there is one.
static void cuda_agrees_with_reference(void) {
    if (is_wanted("cuda-sim")) compare_all("cuda-sim and reference", "cuda-sim", 1, "reference", false);
    if (is_wanted("cuda")) compare_all("cuda and reference", "cuda", 1, "reference", false);
}

// A copy in fp32 of numbers of any type, rounded to `dtype` first.
static Tensor rounded_to(Fixture *b, Tensor x, DType dtype) {
    double *values = doubles_of(b, x);
    Tensor host = {malloc(tensor_bytes(x) + 1), x.rows, x.cols, dtype},
           y = tensor_of(b, dtype, x.rows, x.cols);
    CHECK(host.data, "no memory");
    for (int64_t i = 0; i < tensor_count(x); i++) store(host, i, values[i]);
    device_upload(b->device, b->stream, y, host.data);
    free(values);
    free(host.data);
    return y;
}

// In a narrow type each operation gives what it gives in fp32 on the same numbers, rounded once, to the bit;
// where a case reads its first result again (stored probabilities, a product before its GELU), the second may be a rounding away.
static void narrow_types_round_once(void) {
    for (int i = 0; i < NUM_CASES * NUM_ELEMENTS; i++) {
        const Case *c = &CASES[i / NUM_ELEMENTS];
        DType element = ELEMENTS[i % NUM_ELEMENTS];
        if (element == F32 || is_left_out(i)) continue;
        Fixture narrow = fixture_open_as("reference", 1, element, element);
        Fixture wide = fixture_open_as("reference", 1, F32, element);
        c->run(&narrow, c->n, c->p);
        c->run(&wide, c->n, c->p);
        for (int k = 0; k < wide.num_outputs; k++) {
            Output *w = &wide.outputs[k];
            w->tensor = rounded_to(&wide, w->tensor, narrow.outputs[k].tensor.dtype);
        }
        bool chained =
            c->run == run_attention || c->run == run_matmul_gelu || c->run == run_matmul_gelu_backward;
        compare(c, "narrow and rounded", &narrow, &wide, chained ? precision_of(element) : 0);
        fixture_close(&narrow);
        fixture_close(&wide);
    }
}

// Where pairs are dropped, how many rows are left follows from numbers, which the null device does not have.
static bool follows_numbers(const Case *c) { return c->run == run_pairs && c->n[4] > 0; }

static void null_counts_like_cpu(void) {
    for (int i = 0; i < NUM_CASES * NUM_ELEMENTS; i++) {
        const Case *c = &CASES[i / NUM_ELEMENTS];
        if (is_left_out(i) || follows_numbers(c)) continue;
        DType element = ELEMENTS[i % NUM_ELEMENTS];
        Fixture null = fixture_open_as("null", 2, element, element),
                cpu = fixture_open_as("cpu", 2, element, element);
        c->run(&null, c->n, c->p);
        c->run(&cpu, c->n, c->p);
        EXPECT(memcmp(device_counts(null.device), device_counts(cpu.device),
                      sizeof(OpCount[NUM_DEVICE_OPS])) == 0,
               "%s: counts differ", c->name);
        EXPECT(device_workspace_peak(null.device) == device_workspace_peak(cpu.device),
               "%s: workspace %zu and %zu", c->name, device_workspace_peak(null.device),
               device_workspace_peak(cpu.device));
        EXPECT(null.arena.peak == cpu.arena.peak, "%s: memory", c->name);
        fixture_close(&null);
        fixture_close(&cpu);
    }
}

static const DeviceOp FUSED[] = {
#define X(NAME, function, Args, reads, writes) OP_##NAME,
    FUSED_OPS(X)
#undef X
};
enum { NUM_FUSED = sizeof FUSED / sizeof *FUSED };

static bool is_fused(DeviceOp op) {
    for (int i = 0; i < NUM_FUSED; i++)
        if (FUSED[i] == op) return true;
    return false;
}

// A null device that stands for a kind, in bf16.
static Fixture null_for(const char *kind) {
    Fixture b = {.element = BF16, .drawn = BF16};
    EXPECT_OK(device_open(&b.device, (DeviceOptions){.kind = "null", .stands_for = kind, .threads = 1}));
    b.stream = device_stream(b.device);
    EXPECT_OK(arena_open(&b.arena, "fixture", device_memory(b.device), FIXTURE_BYTES));
    return b;
}

static void run_every_case(Fixture *b) {
    for (int i = 0; i < NUM_CASES; i++) {
        b->num_outputs = 0;
        CASES[i].run(b, CASES[i].n, CASES[i].p);
        arena_release(&b->arena, (ArenaMark){0, 0});
    }
}

// A device that is not fused is never asked for a fused operation.
static void every_operation_has_a_case(void) {
    Fixture b = fixture_open("null", 1);
    EXPECT(!device_is_fused(b.device), "the cpu is fused");
    run_every_case(&b);
    for (DeviceOp op = 0; op < NUM_DEVICE_OPS; op++)
        EXPECT((device_counts(b.device)[op].calls > 0) == !is_fused(op), "%s: %lld calls", device_op_name(op),
               (long long)device_counts(b.device)[op].calls);
    fixture_close(&b);
    if (!is_wanted("cuda-sim")) return;
    b = null_for("cuda-sim");
    EXPECT(device_is_fused(b.device), "cuda-sim is not fused");
    run_every_case(&b);
    for (DeviceOp op = 0; op < NUM_DEVICE_OPS; op++)
        EXPECT(device_counts(b.device)[op].calls > 0, "%s has no case", device_op_name(op));
    fixture_close(&b);
}

static OpCount sum_of(const Device *device) {
    OpCount sum = {0};
    for (DeviceOp op = 0; op < NUM_DEVICE_OPS; op++) {
        OpCount one = device_counts(device)[op];
        sum.calls += one.calls, sum.flops += one.flops, sum.bytes += one.bytes;
    }
    return sum;
}

// One call in place of two or three, the same products, fewer bytes.
static void fused_operations_save_bytes(void) {
    static void (*const runs[])(Fixture *, const int64_t *, float) = {
        run_matmul_sums, run_matmul_gelu, run_matmul_gelu_backward, run_norm_joined, run_loss_whole};
    static const int64_t sizes[][5] = {
        {24, 40, 128, 1, 1}, {32, 64, 16, 1}, {32, 64, 16}, {300, 64, 1, 1, 1}, {64, 500, 500, 1, 1}};
    if (!is_wanted("cuda-sim")) return;
    for (int i = 0; i < NUM_FUSED; i++) {
        Fixture basic = null_for("cpu"), fused = null_for("cuda-sim");
        runs[i](&basic, sizes[i], 0);
        runs[i](&fused, sizes[i], 0);
        OpCount before = sum_of(basic.device), after = sum_of(fused.device);
        int64_t others = after.calls - device_counts(fused.device)[FUSED[i]].calls;
        EXPECT(after.calls - others == 1 && before.calls - others > 1, "%s: %lld calls in place of %lld",
               device_op_name(FUSED[i]), (long long)after.calls, (long long)before.calls);
        EXPECT(after.flops == before.flops && after.bytes < before.bytes,
               "%s: %.0f flops, %.0f bytes; %.0f, %.0f", device_op_name(FUSED[i]), after.flops, after.bytes,
               before.flops, before.bytes);
        fixture_close(&basic);
        fixture_close(&fused);
    }
}

// The loss head's chunks on a GPU: eight waves of tiles, 2 GiB, or at least 1024 tokens.
static void head_chunks_follow_the_sizes(void) {
    static const struct {
        int64_t hidden, vocabulary, tokens;
    } models[] = {{768, 50257, 7121},
                  {4096, 32000, 4352},
                  {4096, 128256, 2790},
                  {16384, 128256, 1088},
                  {32768, 1 << 20, 1024}};
    Fixture b = null_for("cpu");
    EXPECT(device_head_tokens(b.device, 768, 50257) == 512, "on the cpu");
    fixture_close(&b);
    if (!is_wanted("cuda-sim")) return;
    b = null_for("cuda-sim");
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        int64_t tokens = device_head_tokens(b.device, models[i].hidden, models[i].vocabulary);
        EXPECT(tokens == models[i].tokens, "H %lld, V %lld: %lld tokens", (long long)models[i].hidden,
               (long long)models[i].vocabulary, (long long)tokens);
    }
    fixture_close(&b);
}

static void counts_are_the_formulas(void) {
    Fixture b = fixture_open_as("null", 1, BF16, BF16);
    const OpCount *counts = device_counts(b.device);
    run_matmul(&b, (const int64_t[]){3, 5, 7, TRANSPOSE_B | WITH_BIAS | TO_F32}, 0);
    OpCount product = counts[OP_MATMUL];
    EXPECT(product.calls == 1 && product.flops == 2 * 3 * 5 * 7, "%g flops", product.flops);
    EXPECT(product.bytes == 2 * (3 * 7 + 5 * 7 + 5) + 4 * 3 * 5, "%g bytes", product.bytes);
    Tensor x = tensor_f32(&b, 4, 4);
    matmul(b.device, b.stream, (Matmul){.a = x, .b = x, .bias = {NULL, 1, 4, F32}, .d = x});
    EXPECT(counts[OP_MATMUL].bytes - product.bytes == 3 * 64, "an absent bias counts nothing");
    for (int64_t groups = 1; groups <= 3; groups += 2) { // sharing keys and values changes no product
        device_counts_reset(b.device);
        b.num_outputs = 0;
        run_attention(&b, (const int64_t[]){2, 16, 3, groups, 8, 0, 0}, 0); // B, S, N/t, G/t, D
        EXPECT(counts[OP_ATTENTION_FORWARD].flops == 4.0 * 2 * 16 * 16 * 8 * 3, "forward");
        EXPECT(counts[OP_ATTENTION_BACKWARD].flops == 10.0 * 2 * 16 * 16 * 8 * 3, "backward");
    }
    b.num_outputs = 0;
    run_cached(&b, (const int64_t[]){2, 4, 3, 1, 8, 12, 0}, 0); // B, S, N/t, G/t, D, position
    EXPECT(counts[OP_ATTENTION_CACHED].flops == 4.0 * 2 * 4 * 16 * 8 * 3, "with a cache");
    device_counts_reset(b.device);
    EXPECT(counts[OP_ATTENTION_FORWARD].calls == 0, "the reset");
    fixture_close(&b);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"cpu_agrees_with_reference", cpu_agrees_with_reference},
                                      {"threads_do_not_change_bits", threads_do_not_change_bits},
                                      {"check_gives_the_bits_of_cpu", check_gives_the_bits_of_cpu},
                                      {"cuda_agrees_with_reference", cuda_agrees_with_reference},
                                      {"narrow_types_round_once", narrow_types_round_once},
                                      {"null_counts_like_cpu", null_counts_like_cpu},
                                      {"every_operation_has_a_case", every_operation_has_a_case},
                                      {"fused_operations_save_bytes", fused_operations_save_bytes},
                                      {"head_chunks_follow_the_sizes", head_chunks_follow_the_sizes},
                                      {"counts_are_the_formulas", counts_are_the_formulas},
                                      {0}},
                       argc, argv);
}
