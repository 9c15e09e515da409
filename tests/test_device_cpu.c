// The cpu backend's exp, gelu, dropout and attention against plain loops in double, for every variant that
// runs here.
#include "cpu_fixture.h"

// ---- exp and gelu -----------------------------------------------------------------------------------------

// The sum over one column is exp(logit - max) itself.
static void exponentials(Fixture *b) {
    enum { COUNT = 100003 };
    Tensor x = zeros(b, COUNT, 1), labels = integers(b, COUNT, 1);
    for (int64_t i = 0; i < COUNT; i++) f(x)[i] = -87.3f + 175.6f * (float)i / COUNT;
    const float special[] = {-INFINITY, -1e30f, -200, -87.4f, 0, NAN}, limit[] = {0, 0, 0, 0, 1};
    memcpy(f(x), special, sizeof special);
    LossSum args = {x, labels, zeros(b, 1, COUNT), zeros(b, 1, COUNT), zeros(b, 1, COUNT), 0, 1};
    run(b, OP_LOSS_SUM, &args);
    const float *y = f(args.sum);
    double worst = 0;
    for (int64_t i = 6; i < COUNT; i++) {
        double want = exp((double)f(x)[i]), unit = nextafterf((float)want, INFINITY) - (float)want;
        worst = fmax(worst, fabs((double)y[i] - want) / unit);
    }
    EXPECT(worst < 1.2, "%s: exp is off by %.2f units in the last place", b->variant->isa, worst);
    for (int i = 0; i < 5; i++) EXPECT(y[i] == limit[i], "exp(%g) = %g", (double)special[i], (double)y[i]);
    EXPECT(isnan(y[5]), "exp(NaN) = %g", (double)y[5]);
}

static double exact_gelu(double u, double *slope) {
    double below = 0.5 * erfc(-u / sqrt(2));
    *slope = below + u * exp(-u * u / 2) / sqrt(2 * M_PI);
    return u * below;
}

static double gelu(double u, double *slope) {
    double a = 0.79788456080286535588, z = a * u * (1 + 0.044715 * u * u), gate = 1 / (1 + exp(-2 * z));
    *slope = gate + 2 * u * gate * (1 - gate) * a * (1 + 3 * 0.044715 * u * u);
    return u * gate;
}

// Relative to the value itself, down to the smallest normal numbers: the argument of the exponential is
// rounded, so its size multiplies the error.
static void gelus(Fixture *b, bool exact) {
    enum { ROWS = 131, COLS = 701 };
    Tensor x = normals(b, ROWS, COLS), bias = normals(b, 1, COLS), dy = normals(b, ROWS, COLS);
    for (int64_t i = 0; i < ROWS * COLS; i++) f(x)[i] *= 3;
    BiasGeluForward forward = {x, bias, zeros(b, ROWS, COLS), exact};
    BiasGeluBackward backward = {dy, x, bias, dy, exact}; // in place
    Tensor dy_before = copy(b, dy);
    run(b, OP_BIAS_GELU_FORWARD, &forward);
    run(b, OP_BIAS_GELU_BACKWARD, &backward);
    for (int64_t i = 0; i < ROWS * COLS; i++) {
        double slope, u = (double)(f(x)[i] + f(bias)[i % COLS]);
        double y = exact ? exact_gelu(u, &slope) : gelu(u, &slope);
        double z = exact ? u * u / 2 : u * (1 + u * u), relative = 3e-7 * (2 + fabs(z));
        EXPECT(fabs((double)f(forward.y)[i] - y) <= relative * fabs(y) + 2e-37,
               "%s: %s(%.9g) = %.9g, not %.9g", b->variant->isa, exact ? "exact gelu" : "gelu", u,
               (double)f(forward.y)[i], y);
        near(b, "gelu slope", i, f(dy)[i], (double)f(dy_before)[i] * slope, 1e-6);
    }
}

// Where the gate is 1: numbers as large as the type holds come through.
static void large_gates(Fixture *b) {
    enum { COUNT = 100 };
    Tensor none = {0}, x = zeros(b, COUNT, 2), u = zeros(b, COUNT, 1), y = zeros(b, COUNT, 1);
    for (int64_t i = 0; i < COUNT; i++) f(u)[i] = f(x)[2 * i] = ldexpf(1.5f, 5 + (int)i), f(x)[2 * i + 1] = 1;
    for (int exact = 0; exact < 2; exact++) {
        run(b, OP_BIAS_GELU_FORWARD, &(BiasGeluForward){u, none, y, (GeluForm)exact});
        for (int64_t i = 0; i < COUNT; i++) near(b, "gelu", i, f(y)[i], (double)f(u)[i], 1e-6);
    }
    run(b, OP_SWIGLU_FORWARD, &(SwigluForward){x, none, y, GATE_SILU, 0, 0});
    for (int64_t i = 0; i < COUNT; i++) near(b, "swiglu", i, f(y)[i], (double)f(u)[i], 1e-6);
}

// ---- dropout ----------------------------------------------------------------------------------------------

static void dropouts(Fixture *b, float probability) {
    enum { S = 37, B = 3, COLS = 701, ROWS = S * B }; // rows begin at all four lanes of a Philox block
    Dropout d = dropout_of(probability, B);
    Tensor x = normals(b, ROWS, COLS), bias = normals(b, 1, COLS), residual = normals(b, ROWS, COLS);
    Tensor position = normals(b, S + 2, COLS), before = copy(b, residual);
    BiasDropoutAdd sum = {x, bias, residual, residual, d};
    DropoutBackward backward = {x, zeros(b, ROWS, COLS), d};
    PositionDropout embedded = {x, position, zeros(b, ROWS, COLS), d};
    run(b, OP_BIAS_DROPOUT_ADD, &sum);
    run(b, OP_DROPOUT_BACKWARD, &backward);
    run(b, OP_POSITION_DROPOUT, &embedded);
    for (int64_t i = 0; i < ROWS * COLS; i++) {
        int64_t s = i / COLS / B, sample = i / COLS % B, c = i % COLS;
        double keep = factor(d, sample, s * COLS + c), value = (double)f(x)[i];
        EXPECT((f(backward.dx)[i] == 0) == (keep == 0), "%s: the mask differs at %lld", b->variant->isa,
               (long long)i);
        near(b, "dropout_backward", i, f(backward.dx)[i], value * keep, 1e-6);
        near(b, "bias_dropout_add", i, f(sum.y)[i],
             (double)f(before)[i] + (value + (double)f(bias)[c]) * keep, 1e-6);
        near(b, "position_dropout", i, f(embedded.y)[i], (value + (double)f(position)[s * COLS + c]) * keep,
             1e-6);
    }
}

static void dropped(Fixture *b) { dropouts(b, 0.3f); }
static void not_dropped(Fixture *b) { dropouts(b, 0); }

// With q = 0 all keys weigh the same, and with v = 1 in column k of row k (D = S) out is the matrix P itself.
static void attention_masks(Fixture *b) {
    enum { S = 70, B = 2, N = 2, FIRST_HEAD = 3 };
    AttentionShape shape = {B, S, N, N, S, FIRST_HEAD, 0, 0, 0, 0};
    Dropout d = dropout_of(0.4f, B);
    AttentionForward args = {.shape = shape, .dropout = d, .qkv = zeros(b, S * B, 3 * S * N)};
    args.out = zeros(b, S * B, S * N), args.stats = zeros(b, B * N, S);
    for (int64_t row = 0; row < S * B; row++)
        for (int64_t h = 0; h < N; h++) f(args.qkv)[row * 3 * S * N + h * 3 * S + 2 * S + row / B] = 1;
    run(b, OP_ATTENTION_FORWARD, &args);
    for (int64_t i = 0; i < S * B * S * N; i++) {
        int64_t row = i / (S * N), h = i / S % N, key = i % S, query = row / B, sample = row % B;
        double keep = key <= query ? factor(d, sample, ((FIRST_HEAD + h) * S + query) * S + key) : 0;
        EXPECT((f(args.out)[i] == 0) == (keep == 0), "%s: query %lld, key %lld", b->variant->isa,
               (long long)query, (long long)key);
        near(b, "probability", i, f(args.out)[i], keep / (double)(query + 1), 1e-6);
    }
}

// ---- attention --------------------------------------------------------------------------------------------

// One head of one sample in double: out, log-sum-exp, dq, dk and dv, by the definition.
typedef struct {
    int64_t s, d;
    double *q, *k, *v, *out, *dout, *dq, *dk, *dv; // [s, d]
    double *stats, *p, *keep;                      // [s]
} Exact;

static double dot(const double *x, const double *y, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += x[i] * y[i];
    return sum;
}

static void add_scaled(double *to, double by, const double *x, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] += by * x[i];
}

static void exact_query(Exact *e, int64_t query) {
    int64_t d = e->d;
    double scale = 1 / sqrt((double)d), sum = 0, delta = 0;
    for (int64_t k = 0; k <= query; k++) sum += e->p[k] = exp(scale * dot(e->q + query * d, e->k + k * d, d));
    e->stats[query] = log(sum);
    for (int64_t k = 0; k <= query; k++) {
        e->p[k] /= sum;
        add_scaled(e->out + query * d, e->p[k] * e->keep[k], e->v + k * d, d);
        add_scaled(e->dv + k * d, e->p[k] * e->keep[k], e->dout + query * d, d);
        delta += e->p[k] * e->keep[k] * dot(e->dout + query * d, e->v + k * d, d);
    }
    for (int64_t k = 0; k <= query; k++) {
        double dp = e->keep[k] * dot(e->dout + query * d, e->v + k * d, d);
        double dscore = scale * e->p[k] * (dp - delta);
        add_scaled(e->dq + query * d, dscore, e->k + k * d, d);
        add_scaled(e->dk + k * d, dscore, e->q + query * d, d);
    }
}

static double *slice(double **free_space, int64_t count) {
    double *start = *free_space;
    *free_space += count;
    return start;
}

static void compare_head(Fixture *b, const AttentionBackward *p, int64_t sample, int64_t h) {
    int64_t S = p->shape.sequence, D = p->shape.head_size, B = p->shape.batch, N = p->shape.heads;
    double *space = calloc((size_t)(8 * S * D + 3 * S), sizeof *space), *next = space;
    CHECK(space, "no memory");
    Exact e = {.s = S, .d = D};
    double **parts[] = {&e.q, &e.k, &e.v, &e.dq, &e.dk, &e.dv, &e.out, &e.dout};
    for (int i = 0; i < 8; i++) *parts[i] = slice(&next, S * D);
    e.stats = slice(&next, S), e.p = slice(&next, S), e.keep = slice(&next, S);
    for (int64_t i = 0; i < S * D; i++) {
        int64_t row = i / D * B + sample, at = row * 3 * D * N + h * 3 * D + i % D;
        for (int part = 0; part < 3; part++) (*parts[part])[i] = (double)f(p->qkv)[at + part * D];
        e.dout[i] = (double)f(p->dout)[(row * N + h) * D + i % D];
    }
    for (int64_t query = 0; query < S; query++) {
        for (int64_t k = 0; k <= query; k++)
            e.keep[k] = factor(p->dropout, sample, ((p->shape.first_head + h) * S + query) * S + k);
        exact_query(&e, query);
        near(b, "stats", query, f(p->stats)[(sample * N + h) * S + query], e.stats[query], 2e-6);
    }
    for (int64_t i = 0; i < S * D; i++) {
        int64_t row = i / D * B + sample, at = row * 3 * D * N + h * 3 * D + i % D;
        near(b, "out", i, f(p->out)[(row * N + h) * D + i % D], e.out[i], 5e-6);
        for (int part = 0; part < 3; part++)
            near(b,
                 part == 0   ? "dq"
                 : part == 1 ? "dk"
                             : "dv",
                 i, f(p->dqkv)[at + part * D], (*parts[3 + part])[i], 1e-5);
    }
    free(space);
}

static void attention(Fixture *b, AttentionShape shape, float probability) {
    int64_t rows = shape.sequence * shape.batch, width = shape.heads * shape.head_size;
    Dropout d = dropout_of(probability, shape.batch);
    Tensor qkv = normals(b, rows, 3 * width), dout = normals(b, rows, width);
    AttentionForward forward = {
        .qkv = qkv, .out = constant(b, rows, width, NAN), .shape = shape, .dropout = d};
    forward.stats = zeros(b, shape.batch * shape.heads, shape.sequence);
    run(b, OP_ATTENTION_FORWARD, &forward);
    AttentionBackward backward = {.dout = dout,
                                  .qkv = qkv,
                                  .out = forward.out,
                                  .stats = forward.stats,
                                  .probabilities = {0},
                                  .dqkv = constant(b, rows, 3 * width, NAN),
                                  .shape = shape,
                                  .dropout = d};
    run(b, OP_ATTENTION_BACKWARD, &backward);
    for (int64_t i = 0; i < shape.batch * shape.heads; i++)
        compare_head(b, &backward, i / shape.heads, i % shape.heads);
}

static void attentions(Fixture *b) {
    attention(b, (AttentionShape){1, 1, 1, 1, 4, 0, 0, 0, 0, 0}, 0);
    attention(b, (AttentionShape){2, 64, 3, 3, 8, 0, 0, 0, 0, 0}, 0.2f);
    attention(b, (AttentionShape){3, 135, 2, 2, 20, 6, 0, 0, 0, 0},
              0.1f); // neither blocks nor vectors divide it
    attention(b, (AttentionShape){1, 560, 1, 1, 8, 1, 0, 0, 0, 0}, 0.1f); // several spans of the mask
    attention(b, (AttentionShape){2, 100, 2, 2, 16, 0, 0, 0, 0, 0}, 0);
}

static void exponential_law(void) { each_variant(exponentials); }
static void tanh_gelus(Fixture *b) { gelus(b, false); }
static void exact_gelus(Fixture *b) { gelus(b, true); }
static void gelu_law(void) { each_variant(tanh_gelus), each_variant(exact_gelus), each_variant(large_gates); }
static void dropout_law(void) { each_variant(dropped), each_variant(not_dropped); }
static void attention_mask_law(void) { each_variant(attention_masks); }
static void attention_law(void) { each_variant(attentions); }

// ---- places -----------------------------------------------------------------------------------------------

enum { PLACES_ROWS = 3, PERIOD = 16, PLACES_COLS = PERIOD + 7 };

// Columns that are PERIOD apart hold the same numbers.
static Tensor periodic(Fixture *b, int64_t rows) {
    Tensor x = normals(b, rows, PLACES_COLS);
    for (int64_t i = 0; i < rows * PLACES_COLS; i++)
        if (i % PLACES_COLS >= PERIOD) f(x)[i] = f(x)[i - PERIOD];
    return x;
}

static void expect_periodic(const Fixture *b, const char *what, Tensor x) {
    int64_t bad = 0;
    for (int64_t i = 0; i < tensor_count(x); i++)
        bad += i % PLACES_COLS >= PERIOD && f(x)[i] != f(x)[i - PERIOD];
    EXPECT(!bad, "%s: %lld elements of %s depend on their place in a row", b->variant->isa, (long long)bad,
           what);
}

// The last, partial vector of a row has the bits that whole ones have.
static void places(Fixture *b) {
    Tensor x = periodic(b, PLACES_ROWS), dy = periodic(b, PLACES_ROWS), gamma = periodic(b, 1);
    Tensor beta = periodic(b, 1), y = zeros(b, PLACES_ROWS, PLACES_COLS), dx = periodic(b, PLACES_ROWS);
    Tensor mean = zeros(b, 1, PLACES_ROWS), rstd = zeros(b, 1, PLACES_ROWS);
    run(b, OP_NORM_FORWARD, &(NormForward){x, gamma, beta, y, mean, rstd, 1e-5f, 0});
    expect_periodic(b, "a norm", y);
    run(b, OP_NORM_BACKWARD_INPUT, &(NormBackwardInput){dy, x, gamma, mean, rstd, dx, dx, 0});
    expect_periodic(b, "a norm's gradient with a residual", dx);
    run(b, OP_NORM_BACKWARD_INPUT, &(NormBackwardInput){dy, x, gamma, mean, rstd, {0}, dx, 0});
    expect_periodic(b, "a norm's gradient", dx);
    for (int exact = 0; exact < 2; exact++) {
        run(b, OP_BIAS_GELU_FORWARD, &(BiasGeluForward){x, beta, y, (GeluForm)exact});
        expect_periodic(b, "GELU", y);
        run(b, OP_BIAS_GELU_BACKWARD, &(BiasGeluBackward){dy, x, beta, dx, (GeluForm)exact});
        expect_periodic(b, "GELU's gradient", dx);
    }
}

static void place_law(void) { each_variant(places); }

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"exponential", exponential_law},
                                      {"gelu", gelu_law},
                                      {"dropout masks", dropout_law},
                                      {"attention masks", attention_mask_law},
                                      {"attention", attention_law},
                                      {"places", place_law},
                                      {0}},
                       argc, argv);
}
