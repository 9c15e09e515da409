// Multiplies the rows of each expert of a rank with its weights.
#include "nn/expert_rows.h"
#include "device/ops_experts.h"

// ---- stretches --------------------------------------------------------------------------------------------

void expert_rows_of(ExpertRows *rows, const int32_t *counts, int experts) {
    rows->count = experts, rows->sources = 1;
    for (int64_t e = 0, at = 0; e < experts; at += counts[e++])
        rows->stretches[e] = (DispatchStretch){.expert = (int)e, .begin = at, .count = counts[e]};
}

void expert_rows_of_round(ExpertRows *rows, const Dispatch *d, const DispatchPlan *plan, int round) {
    rows->count = dispatch_stretches(d);
    rows->sources = d->apart ? d->ranks : 1;
    for (int i = 0; i < rows->count; i++) {
        rows->stretches[i] = dispatch_stretch(d, plan, round, i);
        if (!d->apart) rows->stretches[i].source = 0;
    }
}

// ---- products ---------------------------------------------------------------------------------------------

static Tensor matrix_of(const ExpertWeights *w, Tensor all, int e) {
    int64_t rows = all.rows / w->experts;
    return tensor_rows(all, e * rows, rows);
}

static Tensor part_of(Tensor x, const DispatchStretch *s) { return tensor_rows(x, s->begin, s->count); }

static Tensor bias_of(const Param *bias, int e) {
    return bias ? tensor_rows(bias->value, e, 1) : (Tensor){0};
}

// y = x W^T (+ bias) with `transpose`, else x W.
static void row_products(Context *c, const ExpertWeights *w, const ExpertRows *rows, Tensor x,
                         const Param *weight, const Param *bias, bool transpose, Tensor y) {
    matmul_reserve(c->device, c->stream,
                   (Matmul){.a = x,
                            .b = matrix_of(w, weight->value, 0),
                            .bias = bias_of(bias, 0),
                            .d = y,
                            .transpose_b = transpose});
    for (int i = 0; i < rows->count; i++) {
        const DispatchStretch *s = &rows->stretches[i];
        if (!s->count) continue;
        matmul(c->device, c->stream,
               (Matmul){.a = part_of(x, s),
                        .b = matrix_of(w, weight->value, s->expert),
                        .bias = bias_of(bias, s->expert),
                        .d = part_of(y, s),
                        .transpose_b = transpose});
    }
}

// dW += dy^T x of the tokens of one source.
static void weight_products(Context *c, const ExpertWeights *w, const ExpertRows *rows, int source, Tensor dy,
                            Tensor x, Param *weight) {
    GradSum sum = param_grad_sum(param_of_source(weight, source), c->device, c->place);
    Matmul most = {
        .a = dy, .b = x, .d = matrix_of(w, sum.sum, 0), .transpose_a = true, .accumulate = sum.adds};
    matmul_reserve(c->device, c->stream, most);
    for (int i = 0; i < rows->count; i++) {
        const DispatchStretch *s = &rows->stretches[i];
        Tensor own = matrix_of(w, sum.sum, s->expert);
        if (s->source != source) continue;
        if (s->count)
            matmul(c->device, c->stream,
                   (Matmul){.a = part_of(dy, s),
                            .b = part_of(x, s),
                            .d = own,
                            .transpose_a = true,
                            .accumulate = sum.adds});
        else if (!sum.adds)
            device_zero(c->device, c->stream, own);
    }
}

// db += the sums of the rows of dy that are of the tokens of one source.
static void bias_sums(Context *c, const ExpertRows *rows, int source, Tensor dy, Param *bias) {
    if (!bias || bias->frozen) return;
    Tensor sum = param_grad(param_of_source(bias, source), c->device, c->place);
    for (int i = 0; i < rows->count; i++) {
        const DispatchStretch *s = &rows->stretches[i];
        if (s->count && s->source == source)
            column_sum(c->device, c->stream,
                       (ColumnSum){.x = part_of(dy, s), .sum = tensor_rows(sum, s->expert, 1)});
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
            activation_forward(c, &w->activation, part_of(inner, &run), (Tensor){0}, part_of(core, &run));
    }
}

// The gradient of `inner` takes its place.
static void activation_gradient(Context *c, const ExpertWeights *w, const ExpertRows *rows, Tensor dcore,
                                Tensor inner) {
    for (int i = 0; i < rows->count;) {
        DispatchStretch run = next_run(rows, &i);
        Tensor x = part_of(inner, &run);
        if (run.count) activation_backward(c, &w->activation, part_of(dcore, &run), x, (Tensor){0}, x);
    }
}

// ---- forward and backward ---------------------------------------------------------------------------------

void expert_inner_forward(Context *c, const ExpertWeights *w, const ExpertRows *rows, Tensor x, Tensor inner,
                          Tensor core) {
    row_products(c, w, rows, x, w->fc1, w->fc1_bias, true, inner);
    activate(c, w, rows, inner, core);
}

void expert_outer_forward(Context *c, const ExpertWeights *w, const ExpertRows *rows, Tensor core, Tensor y) {
    const Param *bias = context_rank(c, ROLE_EXPERT_TENSOR) ? NULL : w->fc2_bias;
    row_products(c, w, rows, core, w->fc2, bias, true, y);
}

void expert_outer_gradient(Context *c, const ExpertWeights *w, const ExpertRows *rows, Tensor dy,
                           Tensor inner) {
    ArenaMark mark = arena_mark(c->scratch);
    Tensor dcore =
        tensor_take(c->scratch, "gradient of activation output", dy.rows, w->fc2->value.cols, dy.dtype);
    row_products(c, w, rows, dy, w->fc2, NULL, false, dcore);
    activation_gradient(c, w, rows, dcore, inner);
    arena_release(c->scratch, mark);
}

void expert_inner_gradient(Context *c, const ExpertWeights *w, const ExpertRows *rows, Tensor dinner,
                           Tensor dx) {
    row_products(c, w, rows, dinner, w->fc1, NULL, false, dx);
}

void expert_weight_gradient(Context *c, const ExpertWeights *w, const ExpertRows *rows, Tensor x,
                            Tensor dinner, Tensor core, Tensor dy) {
    for (int source = 0; source < rows->sources; source++) {
        if (!w->fc2->frozen) weight_products(c, w, rows, source, dy, core, w->fc2);
        if (!w->fc1->frozen) weight_products(c, w, rows, source, dinner, x, w->fc1);
        bias_sums(c, rows, source, dy, w->fc2_bias);
        bias_sums(c, rows, source, dinner, w->fc1_bias);
    }
}
