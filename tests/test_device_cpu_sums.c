// The cpu backend's matrix products, norms, sums, embedding, loss and optimizer against plain loops in
// double, for every variant that this machine runs.
#include "cpu_fixture.h"

// ---- matrix products --------------------------------------------------------------------------------------

static double factor_at(Tensor x, bool transpose, int64_t row, int64_t col) {
    return (double)f(x)[transpose ? col * x.cols + row : row * x.cols + col];
}

// More than one tile both ways. Without `accumulate` whatever lies in d must not be read. The short form
// looks at every seventh number.
static void product(Fixture *b, unsigned flags) {
    enum { M = 530, N = 790, K = 9 };
    bool ta = flags & 1, tb = flags & 2, with_bias = flags & 4, accumulate = flags & 8;
    Tensor x = ta ? normals(b, K, M) : normals(b, M, K), y = tb ? normals(b, N, K) : normals(b, K, N);
    Tensor bias = with_bias ? normals(b, 1, N) : (Tensor){0};
    Tensor d = accumulate ? normals(b, M, N) : constant(b, M, N, NAN), before = copy(b, d);
    run(b, OP_MATMUL,
        &(Matmul){x, y, bias, .d = d, .transpose_a = ta, .transpose_b = tb, .accumulate = accumulate});
    for (int64_t i = 0; i < M * N; i += harness_short() ? 7 : 1) {
        double want = (accumulate ? (double)f(before)[i] : 0) + (with_bias ? (double)f(bias)[i % N] : 0);
        for (int64_t k = 0; k < K; k++) want += factor_at(x, ta, i / N, k) * factor_at(y, tb, k, i % N);
        near(b, "matmul", i, f(d)[i], want, 3e-6);
    }
}

static void products(void) {
    for (unsigned flags = 0; flags < 16; flags++) {
        Fixture b = {.variant = cpu_best()};
        product(&b, flags);
        fixture_close(&b);
    }
}

// ---- norms and sums over rows -----------------------------------------------------------------------------

static void norm_inputs(Fixture *b, NormBackwardInput p, Tensor dy, Tensor residual) {
    int64_t cols = p.x.cols;
    for (int64_t row = 0; row < p.x.rows; row++) {
        double rstd = (double)f(p.rstd)[row], mean = (double)f(p.mean)[row], mean_g = 0, mean_gn = 0;
        for (int64_t c = 0; c < cols; c++) {
            double g = (double)f(dy)[row * cols + c] * (double)f(p.gamma)[c];
            mean_g += g / (double)cols;
            mean_gn += g * ((double)f(p.x)[row * cols + c] - mean) * rstd / (double)cols;
        }
        for (int64_t c = 0; c < cols; c++) {
            int64_t i = row * cols + c;
            double normal = ((double)f(p.x)[i] - mean) * rstd, g = (double)f(dy)[i] * (double)f(p.gamma)[c];
            double change = rstd * (g - mean_g - normal * mean_gn);
            near(b, "norm dx", i, f(p.dx)[i], change + (residual.data ? (double)f(residual)[i] : 0), 3e-6);
        }
    }
}

static void norms(Fixture *b) {
    enum { ROWS = 130, COLS = 701 };
    Tensor x = normals(b, ROWS, COLS), gamma = normals(b, 1, COLS), beta = normals(b, 1, COLS);
    for (int64_t i = 0; i < ROWS * COLS; i++) f(x)[i] = 5 + 2 * f(x)[i];
    NormForward p = {x, gamma, beta, zeros(b, ROWS, COLS), zeros(b, 1, ROWS), zeros(b, 1, ROWS), 1e-5f, 0};
    run(b, OP_NORM_FORWARD, &p);
    for (int64_t i = 0; i < ROWS * COLS; i++) {
        const float *row = f(x) + i / COLS * COLS;
        double mean = 0, variance = 0, c = (double)COLS;
        for (int64_t k = 0; i % COLS == 0 && k < COLS; k++) mean += (double)row[k] / c;
        for (int64_t k = 0; i % COLS == 0 && k < COLS; k++) variance += pow((double)row[k] - mean, 2) / c;
        if (i % COLS == 0) {
            near(b, "mean", i / COLS, f(p.mean)[i / COLS], mean, 1e-6);
            near(b, "rstd", i / COLS, f(p.rstd)[i / COLS], 1 / sqrt(variance + 1e-5), 1e-6);
        }
        double normal = ((double)f(x)[i] - (double)f(p.mean)[i / COLS]) * (double)f(p.rstd)[i / COLS];
        near(b, "norm y", i, f(p.y)[i], normal * (double)f(gamma)[i % COLS] + (double)f(beta)[i % COLS],
             3e-6);
    }
    Tensor dy = normals(b, ROWS, COLS), residual = normals(b, ROWS, COLS), before = copy(b, residual);
    NormBackwardInput plain = {dy, x, gamma, p.mean, p.rstd, {0}, zeros(b, ROWS, COLS), 0};
    NormBackwardInput added = {dy, x, gamma, p.mean, p.rstd, residual, residual, 0}; // in place
    run(b, OP_NORM_BACKWARD_INPUT, &plain);
    run(b, OP_NORM_BACKWARD_INPUT, &added);
    norm_inputs(b, plain, dy, (Tensor){0});
    norm_inputs(b, added, dy, before);
}

static void row_sums(Fixture *b) {
    enum { ROWS = 131, COLS = 701 };
    Tensor x = normals(b, ROWS, COLS), dy = normals(b, ROWS, COLS), sum = normals(b, 1, COLS);
    Tensor mean = normals(b, 1, ROWS), rstd = normals(b, 1, ROWS);
    Tensor dgamma = copy(b, sum), dbeta = copy(b, sum), before = copy(b, sum);
    run(b, OP_COLUMN_SUM, &(ColumnSum){x, sum});
    run(b, OP_NORM_BACKWARD_WEIGHT, &(NormBackwardWeight){dy, x, mean, rstd, dgamma, dbeta});
    for (int64_t c = 0; c < COLS; c++) {
        double total = (double)f(before)[c], gamma = total, beta = total;
        for (int64_t row = 0; row < ROWS; row++) {
            double value = (double)f(x)[row * COLS + c], g = (double)f(dy)[row * COLS + c];
            total += value;
            gamma += g * (value - (double)f(mean)[row]) * (double)f(rstd)[row];
            beta += g;
        }
        near(b, "column sum", c, f(sum)[c], total, 1e-5);
        near(b, "dgamma", c, f(dgamma)[c], gamma, 1e-5);
        near(b, "dbeta", c, f(dbeta)[c], beta, 1e-5);
    }
}

// ---- embedding --------------------------------------------------------------------------------------------

// A share of the table, so that most tokens lie outside it and those inside repeat.
static void embeddings(Fixture *b) {
    enum { B = 3, S = 60, TOKENS = B * S, COLS = 701, FIRST_ROW = 5, TABLE = 7 };
    Tensor tokens = integers(b, TOKENS, 20), table = normals(b, TABLE, COLS), dy = normals(b, TOKENS, COLS);
    Tensor dtable = normals(b, TABLE, COLS), before = copy(b, dtable), dposition = constant(b, S, COLS, 1);
    EmbeddingForward forward = {tokens, table, constant(b, TOKENS, COLS, NAN), FIRST_ROW};
    run(b, OP_EMBEDDING_FORWARD, &forward);
    run(b, OP_EMBEDDING_BACKWARD, &(EmbeddingBackward){tokens, dy, dtable, FIRST_ROW});
    run(b, OP_POSITION_BACKWARD, &(PositionBackward){dy, dposition, B, 0});
    for (int64_t i = 0; i < TOKENS * COLS; i++) {
        int64_t row = integer(tokens, i / COLS) - FIRST_ROW;
        bool local = row >= 0 && row < TABLE;
        EXPECT(f(forward.y)[i] == (local ? f(table)[row * COLS + i % COLS] : 0), "%s: embedding element %lld",
               b->variant->isa, (long long)i);
        if (local)
            f(before)[row * COLS + i % COLS] += f(dy)[i]; // the contract: in fp32, in the order of the rows
    }
    EXPECT(!memcmp(f(dtable), f(before), tensor_bytes(dtable)), "%s: dtable", b->variant->isa);
    for (int64_t i = 0; i < S * COLS; i++) {
        double want = 1;
        for (int64_t k = 0; k < B; k++) want += (double)f(dy)[(i / COLS * B + k) * COLS + i % COLS];
        near(b, "dposition", i, f(dposition)[i], want, 1e-6);
    }
}

// ---- loss -------------------------------------------------------------------------------------------------

enum { T = 91, SHARE = 402, SHARES = 3, VOCABULARY = 2 * SHARE - 31 }; // the last share is padding alone

// The three steps on every share, the two reductions between them done here.
static void shared_loss(Fixture *b, Tensor *shares, Tensor labels, Tensor mask, float scale, Tensor loss) {
    Tensor max = constant(b, 1, T, -INFINITY), sum = zeros(b, 1, T), target = zeros(b, 1, T);
    Tensor part = zeros(b, 1, T), other = zeros(b, 1, T);
    for (int64_t s = 0; s < SHARES; s++) {
        run(b, OP_LOSS_MAX, &(LossMax){shares[s], part, s * SHARE, VOCABULARY});
        for (int64_t i = 0; i < T; i++) f(max)[i] = fmaxf(f(max)[i], f(part)[i]);
    }
    EXPECT(f(part)[0] == -INFINITY, "%s: the maximum of padding is %g", b->variant->isa, (double)f(part)[0]);
    for (int64_t s = 0; s < SHARES; s++) {
        run(b, OP_LOSS_SUM, &(LossSum){shares[s], labels, max, part, other, s * SHARE, VOCABULARY});
        for (int64_t i = 0; i < T; i++) f(sum)[i] += f(part)[i], f(target)[i] += f(other)[i];
    }
    for (int64_t s = 0; s < SHARES; s++)
        run(b, OP_LOSS_FINISH,
            &(LossFinish){labels, max, sum, target, mask, shares[s], shares[s], loss, s * SHARE, VOCABULARY,
                          scale});
}

static void losses_masked(Fixture *b, bool masked) {
    Tensor labels = integers(b, T, VOCABULARY), mask = masked ? constant(b, 1, T, 1) : (Tensor){0};
    Tensor shares[SHARES], before[SHARES], loss = zeros(b, 1, T);
    for (int s = 0; s < SHARES; s++) {
        shares[s] = normals(b, T, SHARE);
        before[s] = copy(b, shares[s]);
    }
    for (int64_t i = 0; masked && i < T; i += 3) f(mask)[i] = 0;
    shared_loss(b, shares, labels, mask, 0.25f, loss);
    for (int64_t i = 0; i < T; i++) {
        double sum = 0, weight = masked && i % 3 == 0 ? 0 : 1;
        int64_t label = integer(labels, i);
        for (int64_t c = 0; c < VOCABULARY; c++)
            sum += exp((double)f(before[c / SHARE])[i * SHARE + c % SHARE]);
        double target = (double)f(before[label / SHARE])[i * SHARE + label % SHARE];
        near(b, "loss", i, f(loss)[i], weight * (log(sum) - target), 1e-6);
        for (int64_t c = 0; c < SHARES * SHARE; c++) {
            int64_t at = i * SHARE + c % SHARE;
            double p = c < VOCABULARY ? exp((double)f(before[c / SHARE])[at]) / sum - (c == label) : 0;
            double got = (double)f(shares[c / SHARE])[at], want = 0.25 * weight * p;
            EXPECT(fabs(got - want) <= 1e-6 * fabs(want) + 1e-9, "%s: dlogits[%lld, %lld] = %.9g, not %.9g",
                   b->variant->isa, (long long)i, (long long)c, got, want);
        }
    }
}

static void losses(Fixture *b) { losses_masked(b, false), losses_masked(b, true); }

// ---- optimizer --------------------------------------------------------------------------------------------

static void optimizers(Fixture *b) {
    enum { COUNT = 3 * FLAT_BLOCK + 7 };
    Tensor g = normals(b, 1, COUNT), p = normals(b, 1, COUNT), m = normals(b, 1, COUNT),
           v = normals(b, 1, COUNT);
    for (int64_t i = 0; i < COUNT; i++) f(v)[i] *= f(v)[i];
    Tensor p0 = copy(b, p), m0 = copy(b, m), v0 = copy(b, v), y = copy(b, g);
    Tensor squares = {block(b, 3 * sizeof(double)), 1, 3, F64}, max = zeros(b, 1, 1);
    AdamW args = {g, p, m, v, {0}, 0.01, 0.9, 0.999, 1e-8, 0.1, 0.19, 0.002, 0.5, 0, NULL};
    run(b, OP_ADAMW, &args);
    run(b, OP_ADD, &(Add){p0, y});
    run(b, OP_SUM_SQUARES, &(SumSquares){.x = g, .sum = squares, .exponent = 3});
    run(b, OP_ABS_MAX, &(AbsMax){g, max});
    double sum = 0;
    float most = 0;
    for (int64_t i = 0; i < COUNT; i++) {
        double grad = 0.5 * (double)f(g)[i], old = (double)f(p0)[i];
        double want_m = 0.9 * (double)f(m0)[i] + 0.1 * grad,
               want_v = 0.999 * (double)f(v0)[i] + 0.001 * grad * grad;
        near(b, "m", i, f(m)[i], want_m, 3e-7);
        near(b, "v", i, f(v)[i], want_v, 3e-7);
        double step = want_m / 0.19 / (sqrt(want_v / 0.002) + 1e-8);
        near(b, "parameter", i, f(p)[i], old - 0.01 * (step + 0.1 * old), 1e-6);
        EXPECT(f(y)[i] == f(g)[i] + f(p0)[i], "%s: add, element %lld", b->variant->isa, (long long)i);
        sum += (double)f(g)[i] * (double)f(g)[i];
        most = fmaxf(most, fabsf(f(g)[i]));
    }
    EXPECT(f(max)[0] == most && most < 8, "%s: max of |x| is %g, not %g", b->variant->isa, (double)f(max)[0],
           (double)most);
    const double *parts = squares.data;
    double got = (parts[0] + parts[1] + parts[2]) * 64;
    EXPECT(fabs(got - sum) <= 1e-13 * sum, "%s: sum of squares %.17g, not %.17g", b->variant->isa, got, sum);
}

// ---- NaN --------------------------------------------------------------------------------------------------

// A NaN anywhere in the inputs must reach the outputs that depend on it, whatever lane it sits in and
// whatever its payload: a checking device's poison has all bits set.
static void nans_at(Fixture *b, int64_t at, uint32_t nan_bits) {
    enum { ROWS = 3, COLS = 24 };
    Tensor x = normals(b, ROWS, COLS), row = normals(b, 1, COLS), other = normals(b, ROWS, COLS);
    Tensor y = zeros(b, ROWS, COLS), mean = zeros(b, 1, ROWS), rstd = zeros(b, 1, ROWS);
    Tensor labels = integers(b, ROWS, COLS), targets = zeros(b, 1, ROWS);
    memcpy(f(x) + COLS + at, &nan_bits, sizeof nan_bits);
    run(b, OP_BIAS_GELU_FORWARD, &(BiasGeluForward){x, row, y, false});
    EXPECT(isnan(f(y)[COLS + at]), "%s: gelu", b->variant->isa);
    run(b, OP_BIAS_GELU_BACKWARD, &(BiasGeluBackward){other, x, row, y, false});
    EXPECT(isnan(f(y)[COLS + at]), "%s: gelu backward", b->variant->isa);
    run(b, OP_BIAS_GELU_FORWARD, &(BiasGeluForward){x, row, y, true});
    EXPECT(isnan(f(y)[COLS + at]), "%s: exact gelu", b->variant->isa);
    run(b, OP_BIAS_GELU_BACKWARD, &(BiasGeluBackward){other, x, row, y, true});
    EXPECT(isnan(f(y)[COLS + at]), "%s: exact gelu backward", b->variant->isa);
    run(b, OP_NORM_FORWARD, &(NormForward){x, row, row, y, mean, rstd, 1e-5f, 0});
    EXPECT(isnan(f(y)[COLS]) && isnan(f(mean)[1]) && isnan(f(rstd)[1]), "%s: norm", b->variant->isa);
    run(b, OP_LOSS_MAX, &(LossMax){x, mean, 0, COLS});
    EXPECT(isnan(f(mean)[1]) && !isnan(f(mean)[0]), "%s: loss max", b->variant->isa);
    f(mean)[1] = 3;
    run(b, OP_LOSS_SUM, &(LossSum){x, labels, mean, rstd, targets, 0, COLS});
    EXPECT(isnan(f(rstd)[1]), "%s: loss sum", b->variant->isa);
    f(targets)[0] = 1;
    run(b, OP_ABS_MAX, &(AbsMax){x, targets});
    EXPECT(isinf(f(targets)[0]), "%s: max of |x|", b->variant->isa);
    AttentionForward attention = {.qkv = x, .out = zeros(b, ROWS, COLS / 3), .stats = zeros(b, 1, ROWS)};
    attention.shape = (AttentionShape){1, ROWS, 1, 1, COLS / 3, 0, 0, 0, 0, 0};
    attention.dropout = dropout_of(0, 1);
    run(b, OP_ATTENTION_FORWARD, &attention);
    EXPECT(isnan(f(attention.out)[COLS / 3 + at % (COLS / 3)]), "%s: attention",
           b->variant->isa); // q, k or v
}

static void nans(Fixture *b) {
    const int64_t places[] = {0, 7, 15, 16, 23};
    for (int i = 0; i < 5; i++) nans_at(b, places[i], 0x7fc00000), nans_at(b, places[i], 0xffffffff);
}

static void norm_law(void) { each_variant(norms); }
static void row_sum_law(void) { each_variant(row_sums); }
static void embedding_law(void) { each_variant(embeddings); }
static void loss_law(void) { each_variant(losses); }
static void optimizer_law(void) { each_variant(optimizers); }
static void nan_law(void) { each_variant(nans); }

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"matrix products", products},
                                      {"norm", norm_law},
                                      {"sums over rows", row_sum_law},
                                      {"embedding", embedding_law},
                                      {"loss", loss_law},
                                      {"optimizer", optimizer_law},
                                      {"nan", nan_law},
                                      {0}},
                       argc, argv);
}
