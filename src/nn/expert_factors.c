// Makes the factors of experts' matrices and rows in 8 and 4 bits, and multiplies them.
#include "nn/expert_factors.h"
#include "device/ops_experts.h"
#include "nn/factors.h"

// Rows that are looked at together, for a scale or a block, are those of one rank.
DispatchRules expert_factors_rules(const FewBits *bits, DispatchRules rules) {
    const RecipeRow *recipe = &recipe_rows[bits->recipe];
    const Quant *sums_rows = &recipe->factors[PRODUCT_WEIGHT][FACTOR_DY];
    if (!bits->format || recipe->delayed) return rules;
    rules.apart = true;
    // The largest magnitude is that of the transformed rows, which nobody has before all of them have come.
    if (sums_rows->hadamard) rules.whole = true;
    rules.samples = sums_rows->random;
    rules.unit = sums_rows->along;
    return rules;
}

bool expert_factors_look(const FewBits *bits, const Dispatch *d) {
    FactorSource any = {.few_bits = bits, .product = PRODUCT_FORWARD, .which = FACTOR_X};
    return bits->format && d->ranks > 1 && !d->rules.whole && factor_needs_largest(&any);
}

void expert_factors_note(Context *c, const ExpertRows *rows, Tensor x, Tensor max) {
    for (int i = 0; i < rows->count; i++)
        if (rows->stretches[i].count)
            abs_max(c->device, c->stream,
                    (AbsMax){.x = expert_stretch(x, &rows->stretches[i]), .max = tensor_part(max, i, 1)});
}

void expert_factors_join(Context *c, const ExpertLinear *l, LinearFactor which, Tensor max) {
    if (context_ranks(c, ROLE_EXPERT_TENSOR) > 1 && factor_is_cut(l->weight, which))
        tp_all_reduce(c, max, REDUCE_MAX);
}

// ---- factors ----------------------------------------------------------------------------------------------

// The matrix of an expert; or of a tensor of rows those of stretch i.
static FactorSource source_of(const Context *c, const ExpertProducts *p, LinearFactor which, Tensor x,
                              int i) {
    const ExpertLinear *l = p->linear;
    FactorSource s = {.few_bits = &l->few_bits, .product = p->product, .which = which};
    s.any_rows = which != FACTOR_W;
    if (which == FACTOR_W) {
        s.x = expert_matrix(p->weights, x, i);
        return s;
    }
    const DispatchStretch *stretch = &p->rows->stretches[i];
    s.x = expert_stretch(x, stretch);
    if (which == FACTOR_X) return s;
    // Experts count as columns of one tensor, and the row among those of the expert as a position of the first sample.
    int64_t ranks = context_ranks(c, ROLE_EXPERT), first = context_rank(c, ROLE_EXPERT) * p->weights->experts;
    s.random = factor_random(c, &l->few_bits, p->product, l->weight, ROLE_EXPERT_TENSOR, x.cols);
    s.random.first_col += (first + stretch->expert) * s.random.cols;
    s.random.cols *= ranks * p->weights->experts;
    s.random.first_sample = stretch->first_sample, s.random.samples = 1;
    return s;
}

// Returns F32 [1, n] the largest magnitudes of the matrices, or of the stretches of x, `known` where they are; absent
// where none is asked for.
static Tensor largest(Context *c, const ExpertProducts *p, LinearFactor which, Tensor x, Tensor known) {
    FactorSource any = {.few_bits = &p->linear->few_bits, .product = p->product, .which = which};
    if (!factor_needs_largest(&any)) return (Tensor){0};
    int count = which == FACTOR_W ? p->weights->experts : p->rows->count;
    Tensor max = tensor_take(c->scratch, "largest magnitudes of experts", 1, count, F32);
    if (known.cols) return known; // memory does not depend on the number of rounds
    device_zero(c->device, c->stream, max);
    for (int i = 0; i < count; i++) {
        if (which != FACTOR_W && !p->rows->stretches[i].count) continue;
        ArenaMark mark = arena_mark(c->scratch);
        FactorSource s = source_of(c, p, which, x, i);
        FactorMemory memory = factor_take(c, &s);
        abs_max(c->device, c->stream,
                (AbsMax){.x = factor_prepare(c, &s, &memory), .max = tensor_part(max, i, 1)});
        arena_release(c->scratch, mark);
    }
    expert_factors_join(c, p->linear, which, max);
    return max;
}

static FewBitsFactor factor(Context *c, const ExpertProducts *p, LinearFactor which, Tensor x, Tensor maxima,
                            int i) {
    FactorSource s = source_of(c, p, which, x, i);
    FactorMemory memory = factor_take(c, &s);
    Tensor prepared = factor_prepare(c, &s, &memory);
    int expert = which == FACTOR_W ? i : p->rows->stretches[i].expert;
    int64_t matrix = context_rank(c, ROLE_EXPERT) * p->weights->experts + expert;
    int row = p->linear->few_bits.history + NUM_FACTORS * (int)matrix + (int)which;
    Tensor max = maxima.cols ? tensor_part(maxima, i, 1) : factor_earlier_largest(c, &s, row);
    return factor_make(c, &s, &memory, prepared, max);
}

// ---- memory -----------------------------------------------------------------------------------------------

// The memory of a factor of so many rows of x.
static FewBitsFactor take_rows(Context *c, const ExpertProducts *p, LinearFactor which, Tensor x,
                               int64_t rows) {
    FactorSource s = {.few_bits = &p->linear->few_bits, .product = p->product, .which = which};
    s.any_rows = which != FACTOR_W, s.x = tensor_rows(x, 0, rows);
    return factor_take(c, &s).factor;
}

// How many rows a stretch has is not known before. The most memory is needed for the largest number of rows, or for one
// row less: that number may not be a multiple of 16 where the largest is, and is then copied.
static int64_t most_rows(const ExpertProducts *p, int times) {
    int64_t most = p->rows->most - times;
    return most > 0 ? most : 1;
}

// ---- products ---------------------------------------------------------------------------------------------

// The product of a factor that has rows of zeros is as long, and copied.
static Tensor product_of(Context *c, FewBitsFactor a, Tensor y) {
    return a.q.rows == y.rows ? y : tensor_take(c->scratch, "product and zeros", a.q.rows, y.cols, y.dtype);
}

static void reserve_rows(Context *c, const ExpertProducts *p, LinearFactor which, Tensor x, Tensor bias,
                         Tensor y) {
    for (int times = 0; times < 2; times++) {
        ArenaMark mark = arena_mark(c->scratch);
        Tensor w = expert_matrix(p->weights, p->linear->weight->value, 0);
        FewBitsFactor b = take_rows(c, p, FACTOR_W, w, w.rows);
        FewBitsFactor a = take_rows(c, p, which, x, most_rows(p, times));
        Tensor d = product_of(c, a, tensor_rows(y, 0, most_rows(p, times)));
        factors_reserve(c, a, b, (Matmul){.bias = bias, .d = d}, false);
        arena_release(c->scratch, mark);
    }
}

static void multiply_rows(Context *c, FewBitsFactor a, FewBitsFactor b, Matmul args) {
    Tensor y = args.d;
    args.d = product_of(c, a, y);
    factors_multiply(c, a, b, args);
    if (args.d.rows != y.rows) device_copy(c->device, c->stream, y, tensor_rows(args.d, 0, y.rows));
}

static bool has_rows(const ExpertProducts *p, int expert) {
    for (int i = expert; i < p->rows->count; i += p->weights->experts)
        if (p->rows->stretches[i].count) return true;
    return false;
}

void expert_factors_rows(Context *c, const ExpertProducts *p, Tensor x, Tensor max, const Param *bias,
                         Tensor y) {
    LinearFactor which = p->product == PRODUCT_FORWARD ? FACTOR_X : FACTOR_DY;
    ArenaMark all = arena_mark(c->scratch);
    Tensor w = p->linear->weight->value, biases = param_value(bias), none = {0};
    Tensor max_x = largest(c, p, which, x, max), max_w = largest(c, p, FACTOR_W, w, none);
    reserve_rows(c, p, which, x, bias ? tensor_rows(biases, 0, 1) : none, y);
    for (int e = 0; e < p->weights->experts; e++) {
        if (!has_rows(p, e)) continue;
        ArenaMark own = arena_mark(c->scratch);
        FewBitsFactor b = factor(c, p, FACTOR_W, w, max_w, e);
        for (int i = e; i < p->rows->count; i += p->weights->experts) {
            const DispatchStretch *s = &p->rows->stretches[i];
            if (!s->count) continue;
            ArenaMark mark = arena_mark(c->scratch);
            multiply_rows(c, factor(c, p, which, x, max_x, i), b,
                          (Matmul){.bias = bias ? tensor_rows(biases, e, 1) : none,
                                   .d = expert_stretch(y, s),
                                   .fast_sums = p->product == PRODUCT_FORWARD});
            arena_release(c->scratch, mark);
        }
        arena_release(c->scratch, own);
    }
    arena_release(c->scratch, all);
}

static void reserve_weights(Context *c, const ExpertProducts *p, Tensor dy, Tensor x, Matmul args) {
    for (int times = 0; times < 2; times++) {
        ArenaMark mark = arena_mark(c->scratch);
        FewBitsFactor a = take_rows(c, p, FACTOR_DY, dy, most_rows(p, times));
        FewBitsFactor b = take_rows(c, p, FACTOR_X, x, most_rows(p, times));
        factors_reserve(c, a, b, args, true);
        arena_release(c->scratch, mark);
    }
}

// Two tensors of rows, and the largest magnitudes of their stretches.
typedef struct {
    Tensor dy, max_dy, x, max_x;
} Rows;

// Adds the products of an expert's rows of one source, or writes the first one.
static void sum_products(Context *c, const ExpertProducts *p, const Rows *r, int source, int expert,
                         GradSum sum) {
    Matmul args = {.d = expert_matrix(p->weights, sum.sum, expert), .accumulate = sum.adds};
    for (int i = expert; i < p->rows->count; i += p->weights->experts) {
        const DispatchStretch *s = &p->rows->stretches[i];
        if (!s->count || s->source != source) continue;
        ArenaMark mark = arena_mark(c->scratch);
        FewBitsFactor a = factor(c, p, FACTOR_DY, r->dy, r->max_dy, i);
        FewBitsFactor b = factor(c, p, FACTOR_X, r->x, r->max_x, i);
        factors_multiply(c, a, b, args);
        args.accumulate = true;
        arena_release(c->scratch, mark);
    }
    if (!args.accumulate) device_zero(c->device, c->stream, args.d);
}

void expert_factors_weights(Context *c, const ExpertProducts *p, Tensor dy, Tensor max_dy, Tensor x,
                            Tensor max_x) {
    ArenaMark mark = arena_mark(c->scratch);
    Rows rows = {.dy = dy, .x = x};
    rows.max_dy = largest(c, p, FACTOR_DY, dy, max_dy), rows.max_x = largest(c, p, FACTOR_X, x, max_x);
    for (int source = 0; source < p->rows->sources; source++) {
        GradSum sum = param_grad_sum(param_of_source(p->linear->weight, source), c->device, c->place);
        Tensor d = expert_matrix(p->weights, sum.sum, 0);
        for (int adds = 0; adds < 2; adds++)
            reserve_weights(c, p, dy, x, (Matmul){.d = d, .accumulate = adds});
        for (int e = 0; e < p->weights->experts; e++) sum_products(c, p, &rows, source, e, sum);
    }
    arena_release(c->scratch, mark);
}
