// The cpu backend in bf16 and fp16, for every variant that runs here: the same arithmetic as in f32, on
// what the elements stand for, and one rounding at the end. So kernels over rows give the f32 result,
// rounded, bit by bit; matrix products and attention, which may round their factors, come as close as
// roundings allow. And the results have the bits of tests/golden/kernels.txt, whichever compiler made the kernels.
#include "cpu_fixture.h"
#include <float.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

// ---- the same call in f32 and in an element type ----------------------------------------------------------

// Where a case draws its tensors: numbers of type `element`, held as `b->dtype`, which is that or F32.
typedef struct {
    Fixture *b;
    DType element;
    Tensor outputs[8];
    int num_outputs;
} Draw;

static void set(Tensor x, int64_t i, float to) {
    if (x.dtype == F32)
        f(x)[i] = to;
    else
        ((uint16_t *)x.data)[i] = x.dtype == BF16 ? bf16_of_f32(to) : f16_of_f32(to);
}

static Tensor elements(Draw *d, int64_t rows, int64_t cols) {
    Tensor x = {block(d->b, (size_t)(rows * cols) * dtype_bytes(d->b->dtype)), rows, cols, d->b->dtype};
    Tensor normal = normals(d->b, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++) set(x, i, rounded(d->element, f(normal)[i]));
    return x;
}

static Tensor output(Draw *d, Tensor x) { return d->outputs[d->num_outputs++] = x; }
static Tensor sums(Draw *d, int64_t rows, int64_t cols) { return output(d, normals(d->b, rows, cols)); }

typedef void (*Case)(Draw *d);

// FNV-1a of all outputs.
static uint64_t hash_of(const Draw *d) {
    uint64_t hash = 0xcbf29ce484222325;
    for (int n = 0; n < d->num_outputs; n++)
        for (size_t i = 0; i < tensor_bytes(d->outputs[n]); i++)
            hash = (hash ^ ((const unsigned char *)d->outputs[n].data)[i]) * 0x100000001b3;
    return hash;
}

// A row of the golden file is a variant, an element type, a case and the hash of its outputs. There are none for
// variants and cases whose bits depend on the machine or on oneDNN.
enum { MAX_ROWS = 200 };
static bool met[MAX_ROWS]; // rows of the golden file, by line

static void expect_golden(const char *name, const Draw *d) {
    char line[128], row[128];
    const char *variant = d->b->variant->name, *type = dtype_name(d->b->dtype);
    FILE *file = fopen(TEST_FOLDER "/golden/kernels.txt", "r");
    CHECK(file, "no " TEST_FOLDER "/golden/kernels.txt");
    int same = snprintf(row, sizeof row, "%s %s %s ", variant, type, name);
    snprintf(row + same, sizeof row - (size_t)same, "%016llx\n", (unsigned long long)hash_of(d));
    for (int i = 0; i < MAX_ROWS && fgets(line, sizeof line, file); i++)
        if (!strncmp(line, row, (size_t)same)) {
            EXPECT(!strcmp(line, row), "golden is %snow is    %s", line, row);
            met[i] = true;
        }
    fclose(file);
}

// Runs a case in F32 and in the element type, from the same numbers, on one variant.
static void both(const CpuVariant *variant, DType element, const char *name, Case run_case,
                 void (*compare)(const Draw *want, const Draw *got)) {
    Fixture wide = {.variant = variant, .dtype = F32}, narrow = {.variant = variant, .dtype = element};
    Draw want = {.b = &wide, .element = element}, got = {.b = &narrow, .element = element};
    run_case(&want);
    run_case(&got);
    compare(&want, &got);
    expect_golden(name, &got);
    fixture_close(&wide);
    fixture_close(&narrow);
}

// What variants share runs once; in the short form they take turns, BF16 first.
static bool takes_turn(const CpuVariant *variant, DType type) {
    int before = 0;
    for (const CpuVariant *v = cpu_variants; v < variant; v++) before += wants_variant(v);
    if (!wants_variant(variant)) return false;
    return harness_short() ? before % 2 == (type == F16) : !shares_kernels(variant, type);
}

static bool is_without_unit; // where F16 is what it is with the unit

static void each_type(const char *name, Case run_case, void (*compare)(const Draw *want, const Draw *got)) {
    int count = 0;
    for (const CpuVariant *v = cpu_variants; v < cpu_variants + num_cpu_variants; v++) {
        if (takes_turn(v, BF16)) both(v, BF16, name, run_case, compare), count++;
        if (takes_turn(v, F16) && !is_without_unit) both(v, F16, name, run_case, compare), count++;
    }
    expect_variants(count);
}

static void same_bits(const Draw *want, const Draw *got) {
    for (int n = 0; n < got->num_outputs; n++) {
        Tensor x = got->outputs[n], y = want->outputs[n];
        int64_t bad = 0;
        while (bad < tensor_count(x) && value(x, bad) == rounded(x.dtype, f(y)[bad])) bad++;
        EXPECT(bad == tensor_count(x), "%s %s: output %d, element %lld is %.9g, not %.9g rounded",
               got->b->variant->isa, dtype_name(got->element), n, (long long)bad, (double)value(x, bad),
               (double)f(y)[bad]);
    }
}

// Of the largest value: one rounding of a result and several of the factors on the way.
static void close_values(const Draw *want, const Draw *got) {
    double unit = got->element == BF16 ? 0x1p-8 : 0x1p-11;
    for (int n = 0; n < got->num_outputs; n++) {
        Tensor x = got->outputs[n], y = want->outputs[n];
        double largest = 0, worst = 0;
        for (int64_t i = 0; i < tensor_count(x); i++) {
            double off = fabs((double)value(x, i) - (double)f(y)[i]);
            largest = fmax(largest, fabs((double)f(y)[i]));
            worst = off <= worst ? worst : off; // a NaN stays
        }
        EXPECT(worst <= 2 * unit * largest, "%s %s: output %d is off by %g of %g", got->b->variant->isa,
               dtype_name(got->element), n, worst, largest);
    }
}

// ---- kernels over rows ------------------------------------------------------------------------------------

enum { ROWS = 30, COLS = 701, SAMPLES = 3 }; // no vector divides the columns

static void activations(Draw *d) {
    Tensor x = elements(d, ROWS, COLS), bias = elements(d, 1, COLS), dy = elements(d, ROWS, COLS);
    Tensor y = output(d, elements(d, ROWS, COLS)), dx = output(d, elements(d, ROWS, COLS));
    run(d->b, OP_BIAS_GELU_FORWARD, &(BiasGeluForward){x, bias, y, false});
    run(d->b, OP_BIAS_GELU_BACKWARD, &(BiasGeluBackward){dy, x, bias, dx, false});
    Tensor wide = output(d, elements(d, ROWS, 2 * COLS)), wide_bias = elements(d, 1, 2 * COLS);
    Tensor gated = output(d, elements(d, ROWS, COLS));
    run(d->b, OP_SWIGLU_FORWARD, &(SwigluForward){wide, wide_bias, gated, GATE_SILU, 0, 0});
    run(d->b, OP_SWIGLU_BACKWARD,
        &(SwigluBackward){dy, wide, (Tensor){0}, wide, GATE_SILU, 0, 0}); // in place
    run(d->b, OP_COLUMN_SUM, &(ColumnSum){x, sums(d, 1, COLS)});
    run(d->b, OP_ADD, &(Add){x, output(d, dy)});
}

static void exact_gelu(Draw *d) {
    Tensor x = elements(d, ROWS, COLS), bias = elements(d, 1, COLS), dy = elements(d, ROWS, COLS);
    Tensor y = output(d, elements(d, ROWS, COLS)), dx = output(d, elements(d, ROWS, COLS));
    run(d->b, OP_BIAS_GELU_FORWARD, &(BiasGeluForward){x, bias, y, true});
    run(d->b, OP_BIAS_GELU_BACKWARD, &(BiasGeluBackward){dy, x, bias, dx, true});
}

static void dropouts(Draw *d) {
    Dropout dropout = dropout_of(0.3f, SAMPLES);
    dropout.first_row = 4 * SAMPLES;
    Tensor x = elements(d, ROWS, COLS), bias = elements(d, 1, COLS), residual = elements(d, ROWS, COLS);
    Tensor position = elements(d, 4 + ROWS / SAMPLES, COLS), dposition = sums(d, 4 + ROWS / SAMPLES, COLS);
    run(d->b, OP_BIAS_DROPOUT_ADD,
        &(BiasDropoutAdd){x, bias, residual, output(d, elements(d, ROWS, COLS)), dropout});
    run(d->b, OP_DROPOUT_BACKWARD, &(DropoutBackward){x, output(d, residual), dropout});
    run(d->b, OP_POSITION_BACKWARD, &(PositionBackward){x, dposition, SAMPLES, 4 * SAMPLES});
    run(d->b, OP_POSITION_DROPOUT, &(PositionDropout){x, position, output(d, x), dropout});
}

// Results around the smallest normal number and below it, which no rounding may take for zero.
static void tiny_numbers(Draw *d) {
    Tensor x = elements(d, ROWS, COLS), y = output(d, elements(d, ROWS, COLS));
    float smallest = d->element == BF16 ? 0x1p-126f : 0x1p-14f;
    for (int64_t i = 0; i < ROWS * COLS; i++) set(x, i, rounded(d->element, value(x, i) * smallest));
    run(d->b, OP_DROPOUT_BACKWARD, &(DropoutBackward){x, y, dropout_of(0.3f, SAMPLES)});
}

static void norms_of(Draw *d, bool centres) {
    Tensor none = {0}, x = elements(d, ROWS, COLS), gamma = elements(d, 1, COLS),
           dy = elements(d, ROWS, COLS);
    Tensor beta = centres ? elements(d, 1, COLS) : none, mean = centres ? sums(d, 1, ROWS) : none;
    Tensor rstd = sums(d, 1, ROWS), y = output(d, elements(d, ROWS, COLS));
    Tensor residual = output(d, elements(d, ROWS, COLS)), dbeta = centres ? sums(d, 1, COLS) : none;
    run(d->b, OP_NORM_FORWARD, &(NormForward){x, gamma, beta, y, mean, rstd, 1e-5f, 0});
    run(d->b, OP_NORM_BACKWARD_WEIGHT, &(NormBackwardWeight){dy, x, mean, rstd, sums(d, 1, COLS), dbeta});
    run(d->b, OP_NORM_BACKWARD_INPUT, &(NormBackwardInput){dy, x, gamma, mean, rstd, residual, residual, 0});
}

static void layer_norms(Draw *d) { norms_of(d, true); }
static void rms_norms(Draw *d) { norms_of(d, false); }

static void embeddings(Draw *d) {
    Tensor tokens = integers(d->b, ROWS, 20), table = elements(d, 7, COLS);
    run(d->b, OP_EMBEDDING_FORWARD,
        &(EmbeddingForward){tokens, table, output(d, elements(d, ROWS, COLS)), 5});
    run(d->b, OP_EMBEDDING_BACKWARD,
        &(EmbeddingBackward){tokens, elements(d, ROWS, COLS), sums(d, 7, COLS), 5});
    AttentionShape shape = {SAMPLES, ROWS / SAMPLES, 6, 2, 11, 0, 0, 0, 0, 0};
    Tensor angles = normals(d->b, ROWS / SAMPLES, 10);
    run(d->b, OP_ROTARY, &(Rotary){angles, output(d, elements(d, ROWS, 10 * 11)), shape, false});
    run(d->b, OP_ROTARY, &(Rotary){angles, output(d, elements(d, ROWS, 10 * 11)), shape, true});
}

// The gradients of logits are rounded once, also where the label is.
static void losses(Draw *d) {
    Tensor logits = normals(d->b, ROWS, COLS), labels = integers(d->b, ROWS, COLS),
           max = zeros(d->b, 1, ROWS);
    Tensor sum = zeros(d->b, 1, ROWS), target = zeros(d->b, 1, ROWS), none = {0};
    Tensor dlogits = output(d, elements(d, ROWS, COLS));
    for (int64_t i = 0; i < ROWS; i++) f(logits)[i * COLS + integer(labels, i)] = 12; // p - 1 is small
    run(d->b, OP_LOSS_MAX, &(LossMax){logits, max, 0, COLS - 3});
    run(d->b, OP_LOSS_SUM, &(LossSum){logits, labels, max, sum, target, 0, COLS - 3});
    run(d->b, OP_LOSS_FINISH,
        &(LossFinish){labels, max, sum, target, none, logits, dlogits, sums(d, 1, ROWS), 0, COLS - 3, 0.5f});
}

static void optimizers(Draw *d) {
    enum { COUNT = FLAT_BLOCK + 7 };
    Tensor p = sums(d, 1, COUNT), m = sums(d, 1, COUNT), v = sums(d, 1, COUNT), g = normals(d->b, 1, COUNT);
    for (int64_t i = 0; i < COUNT; i++) f(v)[i] *= f(v)[i];
    Tensor given = output(d, elements(d, 1, COUNT));
    run(d->b, OP_ADAMW, &(AdamW){g, p, m, v, given, 0.01, 0.9, 0.999, 1e-8, 0.1, 0.19, 0.002, 0.5, 0, NULL});
}

// A parameter kept as a bf16 value and what this leaves out takes the same step to the bit.
static void split_step(Fixture *b) {
    enum { COUNT = FLAT_BLOCK + 7 };
    Tensor whole = normals(b, 1, COUNT), g = normals(b, 1, COUNT), m[2], v[2];
    Tensor given = {block(b, COUNT * sizeof(uint16_t)), 1, COUNT, BF16}, rest = given;
    rest.data = block(b, COUNT * sizeof(uint16_t)), rest.dtype = U16;
    uint16_t *high = given.data, *low = rest.data;
    for (int64_t i = 0; i < COUNT; i++) high[i] = bf16_split(f(whole)[i], &low[i]);
    for (int i = 0; i < 2; i++) m[i] = zeros(b, 1, COUNT), v[i] = zeros(b, 1, COUNT);
    b->dtype = F32;
    run(b, OP_ADAMW,
        &(AdamW){g, whole, m[0], v[0], {0}, 0.01, 0.9, 0.999, 1e-8, 0.1, 0.1, 0.001, 0.5, 0, NULL});
    b->dtype = BF16;
    run(b, OP_ADAMW,
        &(AdamW){g, rest, m[1], v[1], given, 0.01, 0.9, 0.999, 1e-8, 0.1, 0.1, 0.001, 0.5, 0, NULL});
    int64_t bad = 0;
    for (int64_t i = 0; i < COUNT; i++)
        bad += bits_of_float(bf16_join(high[i], low[i])) != bits_of_float(f(whole)[i]);
    EXPECT(!bad, "%s: %lld parameters differ", b->variant->isa, (long long)bad);
}

static void activation_law(void) {
    each_type("activations", activations, same_bits), each_type("exact_gelu", exact_gelu, same_bits);
}
static void dropout_law(void) { each_type("dropouts", dropouts, same_bits); }
static void tiny_law(void) { each_type("tiny_numbers", tiny_numbers, same_bits); }
static void norm_law(void) {
    each_type("layer_norms", layer_norms, same_bits), each_type("rms_norms", rms_norms, same_bits);
}
static void embedding_law(void) { each_type("embeddings", embeddings, same_bits); }
static void loss_law(void) { each_type("losses", losses, same_bits); }
static void optimizer_law(void) { each_type("optimizers", optimizers, same_bits), each_variant(split_step); }

// ---- rounding itself --------------------------------------------------------------------------------------

static bool same_number(float a, float b) { return a == b || (isnan(a) && isnan(b)); }

// Floats near every boundary of every 16-bit number, and NaNs, become what base/half.h says: the optimizer's
// copy of a parameter that it does not change. And back: the sum of a single row. The short form takes every
// 17th of the 16-bit numbers.
static void roundings(Fixture *b) {
    const uint32_t step = harness_short() ? 17 : 1, COUNT = (1U << 19) / step;
    const DType types[] = {BF16, F16};
    Tensor x = zeros(b, 1, COUNT), y = {block(b, COUNT * sizeof(uint16_t)), 1, COUNT, BF16};
    Tensor g = zeros(b, 1, COUNT), m = zeros(b, 1, COUNT), v = zeros(b, 1, COUNT), z;
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xfff, 0x1000, 0x1001};
        f(x)[i] = float_of_bits((i >> 3) * step << 16 | low[i & 7]);
        if (isinf(f(x)[i])) f(x)[i] = FLT_MAX;
    }
    for (int t = 0; t < 2; t++) {
        b->dtype = y.dtype = types[t], z = zeros(b, 1, COUNT);
        run(b, OP_ADAMW, &(AdamW){g, x, m, v, y, .epsilon = 1, .correction1 = 1, .correction2 = 1});
        run(b, OP_COLUMN_SUM, &(ColumnSum){y, z});
        int64_t bad = 0, worse = 0;
        for (int64_t i = 0; i < COUNT; i++) {
            bad += !same_number(value(y, i), rounded(y.dtype, f(x)[i]));
            worse += !same_number(f(z)[i], value(y, i));
        }
        EXPECT(!bad && !worse, "%s: %lld of f32 to %s are wrong, %lld back", b->variant->isa, (long long)bad,
               dtype_name(y.dtype), (long long)worse);
    }
}

static void rounding_law(void) { each_variant(roundings); }

// ---- matrix products and attention ------------------------------------------------------------------------

typedef struct {
    int64_t rows, cols, inner;
} Size;

static void product(Draw *d, Size n, bool ta, bool tb, bool with_bias, bool accumulate) {
    Tensor x = ta ? elements(d, n.inner, n.rows) : elements(d, n.rows, n.inner);
    Tensor y = tb ? elements(d, n.cols, n.inner) : elements(d, n.inner, n.cols);
    Tensor bias = with_bias ? elements(d, 1, n.cols) : (Tensor){0};
    Tensor into = accumulate ? sums(d, n.rows, n.cols) : output(d, elements(d, n.rows, n.cols));
    if (!accumulate) memset(into.data, 0xFF, tensor_bytes(into)); // NaN: must not be read
    run(d->b, OP_MATMUL,
        &(Matmul){x, y, bias, .d = into, .transpose_a = ta, .transpose_b = tb, .accumulate = accumulate});
}

// More than one tile both ways; then more than one panel along the sum.
static void products(Draw *d) {
    const Size wide = {TILE_ROWS + 18, TILE_COLS + 22, 9}, deep = {20, 30, PANEL_INNER + 88};
    product(d, wide, false, true, true, false);
    product(d, wide, true, true, true, true);
    product(d, deep, false, false, false, false);
    product(d, deep, true, false, false, true);
}

// Rounded once: a result is off by half a unit in the last place and the order of a sum of K terms, no more.
static void rounded_once(const Draw *want, const Draw *got) {
    double unit = got->element == BF16 ? 0x1p-8 : 0x1p-11;
    for (int n = 0; n < got->num_outputs; n++) {
        Tensor x = got->outputs[n], y = want->outputs[n];
        int64_t bad = 0;
        for (int64_t i = 0; i < tensor_count(x); i++) {
            double exact = (double)f(y)[i], half = x.dtype == F32 ? 0 : unit * fabs(exact);
            bad += !(fabs((double)value(x, i) - exact) <= half + 2e-4);
        }
        EXPECT(!bad, "%s %s: %lld elements of product %d are off", got->b->variant->isa,
               dtype_name(got->element), (long long)bad, n);
    }
}

// Groups of heads, sequences over one block, dropout; backward in place, with probabilities kept and without.
static void attention(Draw *d, AttentionShape s, float probability, bool keeps) {
    int64_t rows = s.sequence * s.batch, width = (s.heads + 2 * s.groups) * s.head_size;
    Tensor qkv = elements(d, rows, width), out = output(d, elements(d, rows, s.heads * s.head_size));
    Tensor stats = sums(d, s.batch * s.heads, s.sequence), dout = elements(d, rows, s.heads * s.head_size);
    Tensor kept = keeps ? output(d, elements(d, s.batch * s.heads * s.sequence, s.sequence)) : (Tensor){0};
    Dropout dropout = dropout_of(probability, s.batch);
    run(d->b, OP_ATTENTION_FORWARD,
        &(AttentionForward){
            .qkv = qkv, .out = out, .stats = stats, .probabilities = kept, .shape = s, .dropout = dropout});
    run(d->b, OP_ATTENTION_BACKWARD,
        &(AttentionBackward){.dout = dout,
                             .qkv = qkv,
                             .out = out,
                             .stats = stats,
                             .probabilities = kept,
                             .dqkv = output(d, qkv),
                             .shape = s,
                             .dropout = dropout});
}

static void attentions(Draw *d) {
    attention(d, (AttentionShape){1, 150, 2, 2, 20, 1, 0, 0, 0, 0}, 0.1f, false);
    attention(d, (AttentionShape){2, 131, 4, 2, 8, 0, 0, 0, 0, 0}, 0, true);
}

static void groups(Draw *d) {
    attention(d, (AttentionShape){2, 70, 6, 2, 16, 0, 0, 0, 0, 0}, 0.2f, true);
    attention(d, (AttentionShape){2, 70, 3, 1, 16, 0, 0, 0, 0, 0}, 0.2f, false);
}

// Later positions of groups of heads, that neither vectors nor threads divide, and the next token alone.
static void cached(Draw *d) {
    static const AttentionShape SHAPES[] = {{2, 9, 6, 2, 20, 0, 0, 0, 0, 0}, {3, 1, 2, 2, 64, 0, 0, 0, 0, 0}};
    for (int i = 0; i < 2; i++) {
        AttentionShape s = SHAPES[i];
        int64_t position = 131, rows = s.sequence * s.batch, all = (position + s.sequence) * s.batch;
        Tensor qkv = elements(d, rows, (s.heads + 2 * s.groups) * s.head_size);
        Tensor out = output(d, elements(d, rows, s.heads * s.head_size));
        Tensor keys = output(d, elements(d, all, s.groups * s.head_size));
        Tensor values = output(d, elements(d, all, s.groups * s.head_size));
        run(d->b, OP_ATTENTION_CACHED,
            &(AttentionCached){
                .qkv = qkv, .out = out, .keys = keys, .values = values, .shape = s, .position = position});
    }
}

static void cached_law(void) { each_type("cached", cached, same_bits); }
static void product_law(void) { each_type("products", products, rounded_once); }
static void attention_law(void) {
    each_type("attentions", attentions, close_values), each_type("groups", groups, close_values);
}

static bool is_due(const char *variant, const char *type) {
    for (int i = 0; i < num_cpu_variants; i++)
        if (!strcmp(cpu_variants[i].name, variant))
            return takes_turn(&cpu_variants[i], strcmp(type, "f16") ? BF16 : F16);
    return false;
}

// After all cases: a row that none of them met tests nothing.
static void every_golden_row(void) {
    char line[128], variant[32], type[32];
    FILE *file = fopen(TEST_FOLDER "/golden/kernels.txt", "r");
    CHECK(file, "no " TEST_FOLDER "/golden/kernels.txt");
    for (int i = 0; fgets(line, sizeof line, file); i++) {
        CHECK(i < MAX_ROWS && sscanf(line, "%31s %31s", variant, type) == 2, "row %d: %s", i, line);
        EXPECT(met[i] || !is_due(variant, type), "no case met the golden row %s", line);
    }
    fclose(file);
}

#ifdef __aarch64__
#define WITHOUT_UNIT "baseline"
#else
#define WITHOUT_UNIT "avx2"
#endif

// As on a CPU without a unit for bf16; where variants are named, the CPU is, too. oneDNN fixes what it uses at its first
// call, so this runs first, in a process of its own.
static void without_unit(void) {
    if (names_variants()) return;
    pid_t child = fork();
    CHECK(child >= 0, "no process");
    if (child == 0) {
        setenv("TRIREME_MAX_CPU_ISA", WITHOUT_UNIT, 1);
        if (cpu_multiplies_bf16()) _exit(2);
        is_without_unit = true;
        int failures = harness_run(
            (const Test[]){{"products", product_law}, {"attention", attention_law}, {0}}, 0, NULL);
        _exit(failures ? 1 : 0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child, "no child");
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0, "products of copies: status %d", status);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"without the unit", without_unit},
                                      {"matrix products", product_law},
                                      {"attention", attention_law},
                                      {"attention with a cache", cached_law},
                                      {"rounding", rounding_law},
                                      {"activation", activation_law},
                                      {"dropout", dropout_law},
                                      {"tiny numbers", tiny_law},
                                      {"norm", norm_law},
                                      {"embedding", embedding_law},
                                      {"loss", loss_law},
                                      {"optimizer", optimizer_law},
                                      {"every golden row", every_golden_row},
                                      {0}},
                       argc, argv);
}
