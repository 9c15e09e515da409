// Multiplies the rows of each expert of a rank with its weights.
#include "nn/expert_rows.h"
#include "device/ops_experts.h"
#include "nn/expert_factors.h"

// ---- products ---------------------------------------------------------------------------------------------

static Tensor bias_of(const Param *bias, int e) {
    return bias ? tensor_rows(bias->value, e, 1) : (Tensor){0};
}

// Products of experts, which do not depend on each other, some at once.
typedef struct {
    const Context *context;
    Matmul calls[MATMULS_AT_ONCE];
    int count;
} Together;

static void make_all(Together *t) {
    matmul_each(t->context->device, t->context->stream, t->calls, t->count);
    t->count = 0;
}

static void add_product(Together *t, Matmul call) {
    if (t->count == MATMULS_AT_ONCE) make_all(t);
    t->calls[t->count++] = call;
}

// y = x W^T (+ bias), or x W. `max` are the largest magnitudes of x, if they are known.
static void row_products(Context *c, const ExpertWeights *w, const ExpertLinear *l, const ExpertRows *rows,
                         LinearProduct product, Tensor x, Tensor max, const Param *bias, Tensor y) {
    if (l->few_bits.format) {
        expert_factors_rows(c, &(ExpertProducts){w, l, rows, product}, x, max, bias, y);
        return;
    }
    bool transpose = product == PRODUCT_FORWARD;
    Matmul most = {.a = x,
                   .b = expert_matrix(w, l->weight->value, 0),
                   .bias = bias_of(bias, 0),
                   .d = y,
                   .transpose_b = transpose};
    matmul_reserve(c->device, c->stream, most, false);
    Together products = {.context = c};
    for (int i = 0; i < rows->count; i++) {
        const DispatchStretch *s = &rows->stretches[i];
        if (!s->count) continue;
        add_product(&products, (Matmul){.a = expert_stretch(x, s),
                                        .b = expert_matrix(w, l->weight->value, s->expert),
                                        .bias = bias_of(bias, s->expert),
                                        .d = expert_stretch(y, s),
                                        .transpose_b = transpose});
    }
    make_all(&products);
}

// dW += dy^T x of the tokens of one source.
static void source_products(Context *c, const ExpertWeights *w, const ExpertLinear *l, const ExpertRows *rows,
                            int source, Tensor dy, Tensor x) {
    GradSum sum = param_grad_sum(param_of_source(l->weight, source), c->device, c->place);
    Matmul most = {
        .a = dy, .b = x, .d = expert_matrix(w, sum.sum, 0), .transpose_a = true, .accumulate = sum.adds};
    matmul_reserve(c->device, c->stream, most, true);
    Together products = {.context = c};
    for (int i = 0; i < rows->count; i++) {
        const DispatchStretch *s = &rows->stretches[i];
        Tensor own = expert_matrix(w, sum.sum, s->expert);
        if (s->source != source) continue;
        if (s->count)
            add_product(&products, (Matmul){.a = expert_stretch(dy, s),
                                            .b = expert_stretch(x, s),
                                            .d = own,
                                            .transpose_a = true,
                                            .accumulate = sum.adds});
        else if (!sum.adds)
            device_zero(c->device, c->stream, own);
    }
    make_all(&products);
}

// The same of all sources.
static void weight_products(Context *c, const ExpertWeights *w, const ExpertLinear *l, const ExpertRows *rows,
                            Tensor dy, Tensor max_dy, Tensor x, Tensor max_x) {
    if (l->weight->frozen) return;
    if (l->few_bits.format) {
        expert_factors_weights(c, &(ExpertProducts){w, l, rows, PRODUCT_WEIGHT}, dy, max_dy, x, max_x);
        return;
    }
    for (int source = 0; source < rows->sources; source++) source_products(c, w, l, rows, source, dy, x);
}

// db += the sums of the rows of dy that are of the tokens of one source.
static void bias_sums(Context *c, const ExpertRows *rows, int source, Tensor dy, Param *bias) {
    if (!bias || bias->frozen) return;
    Tensor sum = param_grad(param_of_source(bias, source), c->device, c->place);
    for (int i = 0; i < rows->count; i++) {
        const DispatchStretch *s = &rows->stretches[i];
        if (s->count && s->source == source)
            column_sum(c->device, c->stream,
                       (ColumnSum){.x = expert_stretch(dy, s), .sum = tensor_rows(sum, s->expert, 1)});
    }
}

// ---- the activation ---------------------------------------------------------------------------------------

// The rows from stretch *i on that follow each other without a gap; sets *i behind them.
static DispatchStretch next_run(const ExpertRows *rows, int *i) {
    DispatchStretch run = rows->stretches[(*i)++];
    for (; *i < rows->count && rows->stretches[*i].begin == run.begin + run.count; ++*i)
        run.count += rows->stretches[*i].count;
    return run;
}

static void activate(Context *c, const ExpertWeights *w, const ExpertRows *rows, Tensor inner, Tensor core) {
    for (int i = 0; i < rows->count;) {
        DispatchStretch run = next_run(rows, &i);
        if (run.count)
            activation_forward(c, &w->activation, expert_stretch(inner, &run), (Tensor){0},
                               expert_stretch(core, &run));
    }
}

// The gradient of `inner` takes its place.
static void activation_gradient(Context *c, const ExpertWeights *w, const ExpertRows *rows, Tensor dcore,
                                Tensor inner) {
    for (int i = 0; i < rows->count;) {
        DispatchStretch run = next_run(rows, &i);
        Tensor x = expert_stretch(inner, &run);
        if (run.count) activation_backward(c, &w->activation, expert_stretch(dcore, &run), x, (Tensor){0}, x);
    }
}

// ---- forward and backward ---------------------------------------------------------------------------------

void expert_inner_forward(Context *c, const ExpertWeights *w, const ExpertRows *rows, Tensor x, Tensor inner,
                          Tensor core) {
    row_products(c, w, &w->fc1, rows, PRODUCT_FORWARD, x, rows->maxima.x, w->fc1.bias, inner);
    activate(c, w, rows, inner, core);
}

void expert_outer_forward(Context *c, const ExpertWeights *w, const ExpertRows *rows, Tensor core, Tensor y) {
    const Param *bias = context_rank(c, ROLE_EXPERT_TENSOR) ? NULL : w->fc2.bias;
    row_products(c, w, &w->fc2, rows, PRODUCT_FORWARD, core, rows->maxima.core, bias, y);
}

void expert_outer_gradient(Context *c, const ExpertWeights *w, const ExpertRows *rows, Tensor dy,
                           Tensor inner) {
    ArenaMark mark = arena_mark(c->scratch);
    Tensor dcore = tensor_take(c->scratch, "gradient of activation output", dy.rows,
                               w->fc2.weight->value.cols, dy.dtype);
    row_products(c, w, &w->fc2, rows, PRODUCT_INPUT, dy, rows->maxima.dy, NULL, dcore);
    activation_gradient(c, w, rows, dcore, inner);
    arena_release(c->scratch, mark);
}

void expert_inner_gradient(Context *c, const ExpertWeights *w, const ExpertRows *rows, Tensor dinner,
                           Tensor dx) {
    row_products(c, w, &w->fc1, rows, PRODUCT_INPUT, dinner, rows->maxima.dinner, NULL, dx);
}

void expert_weight_gradient(Context *c, const ExpertWeights *w, const ExpertRows *rows, Tensor x,
                            Tensor dinner, Tensor core, Tensor dy) {
    const ExpertMaxima *max = &rows->maxima;
    weight_products(c, w, &w->fc2, rows, dy, max->dy, core, max->core);
    weight_products(c, w, &w->fc1, rows, dinner, max->dinner, x, max->x);
    for (int source = 0; source < rows->sources; source++) {
        bias_sums(c, rows, source, dy, w->fc2.bias);
        bias_sums(c, rows, source, dinner, w->fc1.bias);
    }
}
