// The cpu backend's attention in blocks, strips and vectors against the definition, for every variant that
// runs here and every element type: sizes that none of them divides, shared keys, masks, probabilities that
// are kept, and scores so far apart that a running maximum without rescaling would overflow.
#include "cpu_fixture.h"

// The numbers of `x`, which its type holds exactly, in that type.
static Tensor narrowed(Fixture *b, DType type, Tensor x) {
    Tensor y = {block(b, (size_t)tensor_count(x) * dtype_bytes(type)), x.rows, x.cols, type};
    for (int64_t i = 0; i < tensor_count(x); i++)
        if (type == F32)
            f(y)[i] = f(x)[i];
        else
            ((uint16_t *)y.data)[i] = type == BF16 ? bf16_of_f32(f(x)[i]) : f16_of_f32(f(x)[i]);
    return y;
}

static Tensor elements(Fixture *b, DType type, int64_t rows, int64_t cols, float scale) {
    Tensor x = normals(b, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++) f(x)[i] = rounded(type, scale * f(x)[i]);
    return x;
}

// ---- against the definition -------------------------------------------------------------------------------

typedef struct {
    AttentionForward forward;
    AttentionBackward backward;
} Call;

// What restricts a call: its rules, documents of this length in all samples (0: none), whether it has sinks.
typedef struct {
    AttentionRules rules;
    int64_t document;
    bool has_sinks;
} Limits;

static Tensor first_keys(Fixture *b, AttentionShape shape, int64_t document) {
    Tensor x = {0};
    if (!document) return x;
    x = (Tensor){block(b, (size_t)(shape.sequence * shape.batch) * sizeof(int32_t)), 1,
                 shape.sequence * shape.batch, I32};
    for (int64_t i = 0; i < x.cols; i++)
        ((int32_t *)x.data)[i] = (int32_t)(i / shape.batch / document * document);
    return x;
}

static Call call_in(Fixture *b, DType type, AttentionShape shape, Dropout d, Limits limits, Tensor qkv,
                    Tensor dout, bool keeps) {
    Tensor kept = {0}, in = narrowed(b, type, qkv), gradient = narrowed(b, type, dout);
    Tensor nothing = constant(b, shape.batch * shape.heads * shape.sequence, shape.sequence, NAN);
    if (keeps) kept = narrowed(b, type, nothing);
    Tensor out = narrowed(b, type, constant(b, dout.rows, dout.cols, NAN));
    Tensor dqkv = narrowed(b, type, constant(b, qkv.rows, qkv.cols, NAN));
    Tensor stats = constant(b, shape.batch * shape.heads, shape.sequence, NAN);
    Call call = {
        .forward = {.qkv = in, .out = out, .stats = stats, .probabilities = kept, .shape = shape},
        .backward = {.dout = gradient, .qkv = in, .out = out, .stats = stats, .probabilities = kept}};
    if (limits.has_sinks) {
        Tensor sinks = constant(b, 1, shape.heads, 0.75f);
        call.forward.sinks = narrowed(b, type, sinks);
        call.backward.dsinks = constant(b, 1, shape.heads, 0);
    }
    call.forward.first_key = first_keys(b, shape, limits.document);
    call.forward.rules = limits.rules, call.forward.dropout = d;
    call.backward.first_key = call.forward.first_key, call.backward.sinks = call.forward.sinks;
    call.backward.dqkv = dqkv, call.backward.shape = shape;
    call.backward.rules = limits.rules, call.backward.dropout = d;
    return call;
}

static void define(const Call *call) {
    const DeviceOptions options = {.threads = 1};
    size_t bytes = reference_backend.workspace_bytes(&options, OP_ATTENTION_BACKWARD, &call->backward);
    size_t other = reference_backend.workspace_bytes(&options, OP_ATTENTION_FORWARD, &call->forward);
    Exec exec = {.threads = 1, .workspace = malloc(bytes + other + 1), .workspace_bytes = bytes + other};
    CHECK(exec.workspace, "no memory");
    reference_backend.attention_forward(&exec, &call->forward);
    reference_backend.attention_backward(&exec, &call->backward);
    free(exec.workspace);
}

// Of the largest value. A number that is not finite is infinitely far off.
static void expect_close(Fixture *b, const char *what, AttentionShape s, Tensor got, Tensor want,
                         double tolerance) {
    double largest = 0, worst = 0;
    for (int64_t i = 0; i < tensor_count(want); i++) {
        double off = fabs((double)value(got, i) - (double)f(want)[i]);
        largest = fmax(largest, fabs((double)f(want)[i]));
        worst = off <= worst ? worst : off;
    }
    EXPECT(worst <= tolerance * largest + 1e-7,
           "%s %s, S %lld, %lld heads, %lld groups, D %lld: %s is off by %g of %g", b->variant->isa,
           dtype_name(b->dtype), (long long)s.sequence, (long long)s.heads, (long long)s.groups,
           (long long)s.head_size, what, worst, largest);
}

static void compare_within(Fixture *b, AttentionShape shape, float probability, bool keeps, float scale,
                           Limits limits) {
    int64_t rows = shape.sequence * shape.batch, width = shape.heads * shape.head_size;
    int64_t wide = width + 2 * shape.groups * shape.head_size;
    Dropout d = dropout_of(probability, shape.batch);
    Tensor qkv = elements(b, b->dtype, rows, wide, scale), dout = elements(b, b->dtype, rows, width, 1);
    Call want = call_in(b, F32, shape, d, limits, qkv, dout, keeps),
         got = call_in(b, b->dtype, shape, d, limits, qkv, dout, keeps);
    define(&want);
    run(b, OP_ATTENTION_FORWARD, &got.forward);
    run(b, OP_ATTENTION_BACKWARD, &got.backward);
    double unit = b->dtype == BF16 ? 0x1p-8 : b->dtype == F16 ? 0x1p-11 : 2e-6;
    expect_close(b, "stats", shape, got.forward.stats, want.forward.stats, 4e-6);
    expect_close(b, "out", shape, got.forward.out, want.forward.out, 2 * unit);
    if (keeps)
        expect_close(b, "probabilities", shape, got.forward.probabilities, want.forward.probabilities, unit);
    expect_close(b, "dqkv", shape, got.backward.dqkv, want.backward.dqkv,
                 3 * unit + 4e-6 * ((double)scale - 1));
    if (limits.has_sinks)
        expect_close(b, "dsinks", shape, got.backward.dsinks, want.backward.dsinks, 4 * unit);
}

static void compare(Fixture *b, AttentionShape shape, float probability, bool keeps, float scale) {
    compare_within(b, shape, probability, keeps, scale, (Limits){0});
}

// Whether variant i has a kernel of its own for this type, not that of the next one.
static bool has_own(int i, DType type) {
    return i + 1 == num_cpu_variants || cpu_variants[i].of[type] != cpu_variants[i + 1].of[type];
}

// Every kernel once; in the short form each variant has one type.
static void each_type(void (*law)(Fixture *)) {
    const DType types[] = {F32, BF16, F16};
    for (int i = 0; i < num_cpu_variants; i++)
        for (int t = 0; t < 3 && cpu_variants[i].runs_here(); t++) {
            if (!has_own(i, types[t])) continue;
            if (harness_short() && has_own(i, F32) && (i + 1) % 3 != t) continue;
            Fixture b = {.variant = &cpu_variants[i], .dtype = types[t]};
            law(&b);
            fixture_close(&b);
        }
}

static void shapes(Fixture *b) {
    compare(b, (AttentionShape){1, 1, 1, 1, 4, 0, 0, 0, 0, 0}, 0, false, 1);
    compare(b, (AttentionShape){2, 17, 2, 1, 20, 3, 0, 0, 0, 0}, 0.2f, true, 1);
    compare(b, (AttentionShape){1, 129, 2, 2, 64, 1, 0, 0, 0, 0}, 0.1f, false, 1);
    compare(b, (AttentionShape){1, 67, 3, 1, 80, 0, 0, 0, 0, 0}, 0, true, 1);
}

static void long_shapes(Fixture *b) {
    compare(b, (AttentionShape){1, 300, 2, 1, 7, 1, 0, 0, 0, 0}, 0.3f, true, 1);
    compare(b, (AttentionShape){1, 193, 1, 1, 128, 0, 0, 0, 0, 0}, 0.1f, false, 1);
}

// Windows and documents around the sizes of blocks, on and off their edges.
static void limited_shapes(Fixture *b) {
    static const Limits LIMITS[] = {
        {.rules = {.window = 1}},
        {.rules = {.window = 64}, .has_sinks = true},
        {.rules = {.window = 65, .cap = 2}},
        {.document = 64},
        {.document = 1, .has_sinks = true},
        {.document = 129, .rules = {.window = 100, .scale = 0.3f, .off_by_one = true}},
        {.document = 7, .rules = {.cap = 1.5f}, .has_sinks = true},
    };
    for (size_t i = 0; i < sizeof LIMITS / sizeof *LIMITS; i++)
        compare_within(b, (AttentionShape){2, i % 2 ? 193 : 320, 4, 2, i % 3 ? 16 : 40, 1, 0, 0, 0, 0},
                       i % 2 ? 0.1f : 0, i % 3 == 1, 1, LIMITS[i]);
}

// Scores of hundreds, most of whose exponentials vanish beside the largest.
static void far_scores(Fixture *b) {
    compare(b, (AttentionShape){1, 200, 1, 1, 16, 0, 0, 0, 0, 0}, 0, false, 6);
}

// ---- long sequences ---------------------------------------------------------------------------------------

// One key dimension grows along the sequence: each query's largest score is its own, up to 16380, and every
// block raises the maximum. out is then the query's own value, up to what the keys just before it weigh.
static void growing_scores(Fixture *b) {
    enum { D = 4 };
    const int64_t S = harness_short() ? 512 : 4096;
    AttentionShape shape = {1, S, 1, 1, D, 0, 0, 0, 0, 0};
    Tensor qkv = zeros(b, S, 3 * D), dout = constant(b, S, D, 1);
    for (int64_t s = 0; s < S; s++) {
        f(qkv)[s * 3 * D] = 16, f(qkv)[s * 3 * D + D] = (float)s / 2;
        f(qkv)[s * 3 * D + 2 * D] = 1, f(qkv)[s * 3 * D + 2 * D + 1] = (float)(s % 2);
    }
    Call call = call_in(b, F32, shape, dropout_of(0, 1), (Limits){0}, qkv, dout, false);
    with_threads(b, 1, OP_ATTENTION_FORWARD, &call.forward);
    with_threads(b, 1, OP_ATTENTION_BACKWARD, &call.backward);
    for (int64_t s = 0; s < S; s++) {
        near(b, "out", s, f(call.forward.out)[s * D], 1, 1e-5);
        near(b, "stats", s, f(call.forward.stats)[s], 4 * (double)s - (s > 0 ? log1p(-exp(-4)) : 0), 2e-4);
        if (s > 2) near(b, "parity", s, f(call.forward.out)[s * D + 1], s % 2 ? 0.982014 : 0.017986, 4e-3);
        for (int64_t c = 0; c < 3 * D; c++)
            EXPECT(isfinite(f(call.backward.dqkv)[s * 3 * D + c]), "dqkv of row %lld", (long long)s);
    }
}

static void shape_law(void) { each_type(shapes); }
static void long_law(void) { each_type(long_shapes); }
static void limited_law(void) { each_type(limited_shapes); }
static void far_law(void) { each_type(far_scores); }
static void growing_law(void) { each_variant(growing_scores); }

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"shapes", shape_law},
                                      {"several blocks", long_law},
                                      {"windows, documents, sinks, caps", limited_law},
                                      {"scores far apart", far_law},
                                      {"growing scores", growing_law},
                                      {0}},
                       argc, argv);
}
