// Every operation on every device against the reference, over one table of cases: odd sizes, with and without optional
// tensors, dropout on and off, parts of heads and vocabularies, padding. A wrong dropout mask is an error as large as the
// numbers themselves, so the tolerance finds it.
#include "device_bench.h"
#include <stdio.h>

typedef struct {
    const char *name;
    void (*run)(Bench *b, const int64_t *n, float p);
    double tolerance; // of the largest value of an output
    int64_t n[6];
    float p; // dropout probability
} Case;

enum { TRANSPOSE_A = 1, TRANSPOSE_B = 2, ACCUMULATE = 4, WITH_BIAS = 8 };

static void run_matmul(Bench *b, const int64_t *n, float p) {
    (void)p;
    int64_t rows = n[0], cols = n[1], inner = n[2], flags = n[3];
    Matmul args = {.transpose_a = flags & TRANSPOSE_A, .transpose_b = flags & TRANSPOSE_B};
    args.accumulate = flags & ACCUMULATE;
    args.a = args.transpose_a ? normals(b, inner, rows) : normals(b, rows, inner);
    args.b = args.transpose_b ? normals(b, cols, inner) : normals(b, inner, cols);
    if (flags & WITH_BIAS) args.bias = normals(b, 1, cols);
    args.d = output(b, "d", args.accumulate ? normals(b, rows, cols) : tensor(b, rows, cols));
    matmul(b->device, b->stream, args);
}

static void run_bias_gelu(Bench *b, const int64_t *n, float p) {
    (void)p;
    Tensor x = normals(b, n[0], n[1]), bias = normals(b, 1, n[1]), y = output(b, "y", tensor(b, n[0], n[1]));
    bias_gelu_forward(b->device, b->stream, (BiasGeluForward){x, bias, y});
    Tensor dy = normals(b, n[0], n[1]), dx = n[2] ? dy : tensor(b, n[0], n[1]);
    bias_gelu_backward(b->device, b->stream, (BiasGeluBackward){dy, x, bias, output(b, "dx", dx)});
}

static void run_bias_dropout_add(Bench *b, const int64_t *n, float p) {
    Dropout dropout = dropout_of(p, n[2]);
    Tensor x = normals(b, n[0], n[1]), bias = normals(b, 1, n[1]), residual = normals(b, n[0], n[1]);
    Tensor y = n[3] == 0 ? tensor(b, n[0], n[1]) : n[3] == 1 ? x : residual;
    bias_dropout_add(b->device, b->stream, (BiasDropoutAdd){x, bias, residual, output(b, "y", y), dropout});
    Tensor dy = normals(b, n[0], n[1]), dx = output(b, "dx", n[3] ? dy : tensor(b, n[0], n[1]));
    dropout_backward(b->device, b->stream, (DropoutBackward){dy, dx, dropout});
}

static void run_column_sum(Bench *b, const int64_t *n, float p) {
    (void)p;
    Tensor x = normals(b, n[0], n[1]), sum = output(b, "sum", normals(b, 1, n[1]));
    column_sum(b->device, b->stream, (ColumnSum){x, sum});
}

static void run_norm_forward(Bench *b, const int64_t *n, float p) {
    (void)p;
    Tensor x = normals(b, n[0], n[1]), gamma = normals(b, 1, n[1]), beta = normals(b, 1, n[1]);
    Tensor y = output(b, "y", tensor(b, n[0], n[1]));
    Tensor mean = output(b, "mean", tensor(b, 1, n[0])), rstd = output(b, "rstd", tensor(b, 1, n[0]));
    norm_forward(b->device, b->stream, (NormForward){x, gamma, beta, y, mean, rstd, 1e-5f});
}

static void run_norm_backward(Bench *b, const int64_t *n, float p) {
    (void)p;
    Tensor x = normals(b, n[0], n[1]), gamma = normals(b, 1, n[1]), y = tensor(b, n[0], n[1]);
    Tensor mean = tensor(b, 1, n[0]), rstd = tensor(b, 1, n[0]), dy = normals(b, n[0], n[1]);
    norm_forward(b->device, b->stream, (NormForward){x, gamma, gamma, y, mean, rstd, 1e-5f});
    Tensor dgamma = output(b, "dgamma", normals(b, 1, n[1])), dbeta = output(b, "dbeta", normals(b, 1, n[1]));
    norm_backward_weight(b->device, b->stream, (NormBackwardWeight){dy, x, mean, rstd, dgamma, dbeta});
    Tensor residual = n[2] ? normals(b, n[0], n[1]) : (Tensor){0};
    Tensor dx = output(b, "dx", n[2] == 0 ? tensor(b, n[0], n[1]) : n[2] == 1 ? residual : dy);
    norm_backward_input(b->device, b->stream, (NormBackwardInput){dy, x, gamma, mean, rstd, residual, dx});
}

static void run_attention(Bench *b, const int64_t *n, float p) {
    AttentionShape shape = {n[0], n[1], n[2], n[3], n[4]};
    int64_t rows = n[0] * n[1], width = n[2] * n[3];
    Tensor qkv = normals(b, rows, 3 * width), out = output(b, "out", tensor(b, rows, width));
    Tensor stats = output(b, "stats", tensor(b, n[0] * n[2], n[1]));
    Dropout dropout = dropout_of(p, n[0]);
    attention_forward(b->device, b->stream, (AttentionForward){qkv, out, stats, shape, dropout});
    Tensor dout = normals(b, rows, width), dqkv = output(b, "dqkv", tensor(b, rows, 3 * width));
    attention_backward(b->device, b->stream,
                       (AttentionBackward){dout, qkv, out, stats, dqkv, shape, dropout});
}

static void run_embedding(Bench *b, const int64_t *n, float p) {
    (void)p;
    int64_t rows = n[0], cols = n[1], local = n[2], first = n[3];
    Tensor tokens = integers(b, rows, (int32_t)n[4]), table = normals(b, local, cols),
           dy = normals(b, rows, cols);
    Tensor y = output(b, "y", tensor(b, rows, cols)), dtable = output(b, "dtable", normals(b, local, cols));
    embedding_forward(b->device, b->stream, (EmbeddingForward){tokens, table, y, first});
    embedding_backward(b->device, b->stream, (EmbeddingBackward){tokens, dy, dtable, first});
}

static void run_position(Bench *b, const int64_t *n, float p) {
    int64_t rows = n[0] * n[2], cols = n[1];
    Tensor x = normals(b, rows, cols), position = normals(b, n[0] + n[3], cols), dy = normals(b, rows, cols);
    Tensor y = output(b, "y", n[4] ? x : tensor(b, rows, cols));
    Tensor dposition = output(b, "dposition", normals(b, n[0] + n[3], cols));
    position_dropout(b->device, b->stream, (PositionDropout){x, position, y, dropout_of(p, n[2])});
    position_backward(b->device, b->stream, (PositionBackward){dy, dposition, n[2]});
}

static void run_loss(Bench *b, const int64_t *n, float p) {
    (void)p;
    int64_t rows = n[0], cols = n[1], first = n[2], vocabulary = n[3];
    Tensor logits = output(b, "logits", normals(b, rows, cols)),
           labels = integers(b, rows, (int32_t)vocabulary);
    Tensor max = tensor(b, 1, rows), sum = output(b, "sum", tensor(b, 1, rows));
    Tensor target = output(b, "target", tensor(b, 1, rows)), loss = output(b, "loss", tensor(b, 1, rows));
    Tensor mask = n[4] ? normals(b, 1, rows) : (Tensor){0};
    loss_max(b->device, b->stream, (LossMax){logits, max, first, vocabulary});
    loss_sum(b->device, b->stream, (LossSum){logits, labels, max, sum, target, first, vocabulary});
    loss_finish(b->device, b->stream,
                (LossFinish){labels, max, sum, target, mask, logits, loss, first, vocabulary, 0.125f});
}

static void run_sum_squares(Bench *b, const int64_t *n, float p) {
    (void)p;
    Tensor sum = output(b, "sum", tensor_take(&b->arena, "sum", 1, 1, F64));
    sum_squares(b->device, b->stream, (SumSquares){normals(b, n[0], n[1]), sum});
}

static void run_adamw(Bench *b, const int64_t *n, float p) {
    (void)p;
    Tensor parameter = output(b, "parameter", normals(b, n[0], n[1])),
           v = output(b, "v", tensor(b, n[0], n[1]));
    Tensor m = output(b, "m", normals(b, n[0], n[1]));
    device_zero(b->device, b->stream, v);
    AdamW args = {normals(b, n[0], n[1]), parameter, m, v, 1e-2, 0.9, 0.95, 1e-8, 0.1, 0.19, 0.0975, 0.5};
    adamw(b->device, b->stream, args);
    adamw(b->device, b->stream, args);
}

static void run_add(Bench *b, const int64_t *n, float p) {
    (void)p;
    Tensor x = normals(b, n[0], n[1]), y = output(b, "y", normals(b, n[0], n[1]));
    add(b->device, b->stream, (Add){x, y});
}

static const Case CASES[] = {
    // rows, columns, inner, flags
    {"matmul 1x1x1", run_matmul, 1e-5, {1, 1, 1, 0}, 0},
    {"matmul", run_matmul, 1e-5, {37, 53, 29, 0}, 0},
    {"matmul linear", run_matmul, 1e-5, {33, 65, 70, TRANSPOSE_B | WITH_BIAS}, 0},
    {"matmul accumulates with bias", run_matmul, 1e-5, {17, 9, 31, TRANSPOSE_B | WITH_BIAS | ACCUMULATE}, 0},
    {"matmul of a weight's gradient", run_matmul, 1e-5, {24, 40, 129, TRANSPOSE_A | ACCUMULATE}, 0},
    {"matmul both transposed", run_matmul, 1e-5, {19, 21, 23, TRANSPOSE_A | TRANSPOSE_B | WITH_BIAS}, 0},
    // rows, columns, in place
    {"bias_gelu 1x1", run_bias_gelu, 1e-6, {1, 1, 0}, 0},
    {"bias_gelu", run_bias_gelu, 1e-6, {13, 67, 0}, 0},
    {"bias_gelu in place", run_bias_gelu, 1e-6, {64, 128, 1}, 0},
    // rows, columns, samples, y: new 0, over x 1, over residual 2
    {"bias_dropout_add without", run_bias_dropout_add, 1e-6, {12, 33, 0, 0}, 0},
    {"bias_dropout_add", run_bias_dropout_add, 1e-6, {12, 33, 3, 0}, 0.1f},
    {"bias_dropout_add over x", run_bias_dropout_add, 1e-6, {30, 64, 2, 1}, 0.5f},
    {"bias_dropout_add over residual", run_bias_dropout_add, 1e-6, {7, 35, 7, 2}, 0.9f},
    {"column_sum", run_column_sum, 1e-5, {1, 5}, 0},
    {"column_sum tall", run_column_sum, 1e-5, {517, 37}, 0},
    {"column_sum wide", run_column_sum, 1e-5, {3, 1031}, 0},
    {"norm_forward", run_norm_forward, 1e-5, {9, 33}, 0},
    {"norm_forward wide", run_norm_forward, 1e-5, {5, 768}, 0},
    // rows, columns, residual: none 0, dx over it 1, dx over dy 2
    {"norm_backward", run_norm_backward, 1e-5, {11, 47, 0}, 0},
    {"norm_backward over residual", run_norm_backward, 1e-5, {300, 64, 1}, 0},
    {"norm_backward over dy", run_norm_backward, 1e-5, {65, 129, 2}, 0},
    // B, S, N/t, D, first head
    {"attention of one token", run_attention, 1e-5, {1, 1, 1, 4, 0}, 0},
    {"attention", run_attention, 1e-5, {2, 37, 3, 8, 0}, 0},
    {"attention with dropout", run_attention, 1e-5, {2, 33, 2, 16, 0}, 0.25f},
    {"attention of later heads", run_attention, 1e-5, {1, 70, 2, 5, 6}, 0.1f},
    {"attention of many blocks", run_attention, 1e-5, {1, 131, 1, 64, 1}, 0.1f},
    // rows, columns, local rows, first row, vocabulary
    {"embedding", run_embedding, 1e-6, {21, 33, 50, 0, 50}, 0},
    {"embedding of a slice", run_embedding, 1e-6, {64, 16, 10, 20, 50}, 0},
    {"embedding of no token", run_embedding, 1e-6, {5, 7, 10, 100, 50}, 0},
    // S, columns, B, unused positions, in place
    {"position without dropout", run_position, 1e-6, {9, 17, 3, 0, 0}, 0},
    {"position", run_position, 1e-6, {16, 32, 2, 5, 0}, 0.1f},
    {"position in place", run_position, 1e-6, {5, 70, 1, 1, 1}, 0.3f},
    // rows, local columns, first column, vocabulary, mask
    {"loss", run_loss, 1e-5, {7, 33, 0, 33, 0}, 0},
    {"loss masked", run_loss, 1e-5, {19, 101, 0, 101, 1}, 0},
    {"loss of a slice", run_loss, 1e-5, {19, 40, 40, 101, 1}, 0},
    {"loss with padding", run_loss, 1e-5, {6, 64, 64, 101, 0}, 0},
    {"sum_squares", run_sum_squares, 1e-12, {1, 1}, 0},
    {"sum_squares long", run_sum_squares, 1e-12, {3, 33333}, 0},
    {"adamw", run_adamw, 1e-6, {1, 1027}, 0},
    {"add", run_add, 0, {7, 77}, 0},
};
enum { NUM_CASES = sizeof CASES / sizeof *CASES };

// The largest difference as a part of the largest value; 0 for equal bits, infinity for a NaN.
static double difference(const void *got, const void *wanted, Tensor x) {
    if (memcmp(got, wanted, tensor_bytes(x)) == 0) return 0;
    double largest = 0, error = 0;
    for (int64_t i = 0; i < tensor_count(x); i++) {
        double g = value_at(got, x.dtype, i), w = value_at(wanted, x.dtype, i);
        if (!isfinite(g)) return INFINITY;
        largest = fmax(largest, fabs(w));
        error = fmax(error, fabs(g - w));
    }
    return error == 0 ? 1e-300 : error / largest; // not 0: zeros of different sign are different bits
}

static void compare(const Case *c, const char *how, Bench *got, Bench *wanted, double tolerance) {
    EXPECT(got->num_outputs == wanted->num_outputs && got->num_outputs > 0, "%s: no outputs", c->name);
    for (int i = 0; i < got->num_outputs; i++) {
        Output g = got->outputs[i], w = wanted->outputs[i];
        void *a = values_of(got, g.tensor), *b = values_of(wanted, w.tensor);
        double error = difference(a, b, w.tensor);
        EXPECT(error <= tolerance, "%s: %s differs by %.2g of its largest value, %s", c->name, g.name, error,
               how);
        free(a);
        free(b);
    }
}

// Runs each case on two devices and compares what it leaves there.
static void compare_all(const char *how, const char *kind, int threads, const char *other, bool same_bits) {
    for (int i = 0; i < NUM_CASES; i++) {
        const Case *c = &CASES[i];
        Bench got = bench_open(kind, threads), wanted = bench_open(other, 1);
        c->run(&got, c->n, c->p);
        c->run(&wanted, c->n, c->p);
        compare(c, how, &got, &wanted, same_bits ? 0 : c->tolerance);
        bench_close(&got);
        bench_close(&wanted);
    }
}

static void cpu_agrees_with_reference(void) {
    compare_all("cpu and reference", "cpu", 1, "reference", false);
}

static void threads_do_not_change_bits(void) {
    compare_all("2 threads and 1", "cpu", 2, "cpu", true);
    compare_all("3 threads and 1", "cpu", 3, "cpu", true);
}

// Also: no operation reads memory that nobody wrote, or writes a number that is not finite.
static void check_gives_the_bits_of_cpu(void) { compare_all("check and cpu", "check", 1, "cpu", true); }

static void null_counts_like_cpu(void) {
    for (int i = 0; i < NUM_CASES; i++) {
        Bench null = bench_open("null", 2), cpu = bench_open("cpu", 2);
        CASES[i].run(&null, CASES[i].n, CASES[i].p);
        CASES[i].run(&cpu, CASES[i].n, CASES[i].p);
        EXPECT(memcmp(device_counts(null.device), device_counts(cpu.device),
                      sizeof(OpCount[NUM_DEVICE_OPS])) == 0,
               "%s: counts differ", CASES[i].name);
        EXPECT(device_workspace_peak(null.device) == device_workspace_peak(cpu.device),
               "%s: workspace %zu and %zu", CASES[i].name, device_workspace_peak(null.device),
               device_workspace_peak(cpu.device));
        EXPECT(null.arena.peak == cpu.arena.peak, "%s: memory", CASES[i].name);
        bench_close(&null);
        bench_close(&cpu);
    }
}

static void every_operation_has_a_case(void) {
    Bench b = bench_open("null", 1);
    for (int i = 0; i < NUM_CASES; i++) {
        b.num_outputs = 0;
        CASES[i].run(&b, CASES[i].n, CASES[i].p);
        arena_release(&b.arena, (ArenaMark){0, 0});
    }
    for (DeviceOp op = 0; op < NUM_DEVICE_OPS; op++)
        EXPECT(device_counts(b.device)[op].calls > 0, "%s has no case", device_op_name(op));
    bench_close(&b);
}

static void counts_are_the_formulas(void) {
    Bench b = bench_open("null", 1);
    run_matmul(&b, (const int64_t[]){3, 5, 7, TRANSPOSE_B | WITH_BIAS}, 0);
    OpCount product = device_counts(b.device)[OP_MATMUL];
    EXPECT(product.calls == 1 && product.flops == 2 * 3 * 5 * 7, "%g flops", product.flops);
    EXPECT(product.bytes == 4 * (3 * 7 + 5 * 7 + 5 + 3 * 5), "%g bytes", product.bytes);
    Tensor x = tensor(&b, 4, 4);
    matmul(b.device, b.stream, (Matmul){.a = x, .b = x, .bias = {NULL, 1, 4, F32}, .d = x});
    EXPECT(device_counts(b.device)[OP_MATMUL].bytes - product.bytes == 3 * 64,
           "an absent bias counts nothing");
    b.num_outputs = 0;
    run_attention(&b, (const int64_t[]){2, 16, 3, 8, 0}, 0); // B, S, N/t, D
    const OpCount *counts = device_counts(b.device);
    EXPECT(counts[OP_ATTENTION_FORWARD].flops == 4.0 * 2 * 16 * 16 * 8 * 3, "forward");
    EXPECT(counts[OP_ATTENTION_BACKWARD].flops == 10.0 * 2 * 16 * 16 * 8 * 3, "backward");
    device_counts_reset(b.device);
    EXPECT(counts[OP_MATMUL].calls == 0, "the reset");
    bench_close(&b);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"cpu_agrees_with_reference", cpu_agrees_with_reference},
                                      {"threads_do_not_change_bits", threads_do_not_change_bits},
                                      {"check_gives_the_bits_of_cpu", check_gives_the_bits_of_cpu},
                                      {"null_counts_like_cpu", null_counts_like_cpu},
                                      {"every_operation_has_a_case", every_operation_has_a_case},
                                      {"counts_are_the_formulas", counts_are_the_formulas},
                                      {0}},
                       argc, argv);
}
