// Linear layers in 8 bits: scales, factors, products.
#include "nn/float8.h"

// A factor of a product, with its scale.
typedef struct {
    Tensor q, scale;
} Factor;

// Returns the largest magnitude of a tensor of which this rank holds all, or with `cut` a part. Infinity is kept.
static Tensor largest(Context *c, Tensor x, bool cut) {
    Tensor max = tensor_take(c->scratch, "largest magnitude", 1, 1, F32);
    device_zero(c->device, c->stream, max);
    abs_max(c->device, c->stream, (AbsMax){.x = x, .max = max});
    if (cut) tp_all_reduce(c, max, REDUCE_MAX);
    return max;
}

static Factor factor(Context *c, Tensor x, DType type, bool cut, bool transpose) {
    Tensor max = largest(c, x, cut);
    Factor f = {.q = transpose ? tensor_take(c->scratch, "transposed factor in 8 bits", x.cols, x.rows, type)
                               : tensor_take(c->scratch, "factor in 8 bits", x.rows, x.cols, type),
                .scale = tensor_take(c->scratch, "scale", 1, 1, F32)};
    quantize(c->device, c->stream,
             (Quantize){.x = x, .max = max, .q = f.q, .scale = f.scale, .transpose = transpose});
    return f;
}

// A column-parallel layer cuts its output, a row-parallel one its input.
static bool cuts_output(const Linear *l) { return l->weight->spec.cut.dim == 0; }

static DType gradient_type(const Linear *l) { return l->float8 == FLOAT8_HYBRID ? E5M2 : E4M3; }

static Matmul product(Factor a, Factor b, Tensor d) {
    return (Matmul){.a = a.q, .b = b.q, .scale_a = a.scale, .scale_b = b.scale, .d = d, .transpose_b = true};
}

// Fast sums are for this product alone: gradients are small beside their largest, and more is added to them.
void float8_forward(Context *c, const Linear *l, Tensor x, Tensor bias, Tensor y) {
    ArenaMark mark = arena_mark(c->scratch);
    Factor a = factor(c, x, E4M3, !cuts_output(l), false);
    Matmul args = product(a, factor(c, l->weight->value, E4M3, true, false), y);
    args.bias = bias;
    args.fast_sums = true;
    matmul(c->device, c->stream, args);
    arena_release(c->scratch, mark);
}

void float8_input_gradient(Context *c, const Linear *l, Tensor dy, Tensor dx) {
    ArenaMark mark = arena_mark(c->scratch);
    Factor a = factor(c, dy, gradient_type(l), cuts_output(l), false);
    matmul(c->device, c->stream, product(a, factor(c, l->weight->value, E4M3, true, true), dx));
    arena_release(c->scratch, mark);
}

void float8_weight_gradient(Context *c, const Linear *l, Tensor x, Tensor dy) {
    ArenaMark mark = arena_mark(c->scratch);
    Factor a = factor(c, dy, gradient_type(l), cuts_output(l), true);
    GradSum dweight = param_grad_sum(l->weight, c->device, c->place);
    Matmul args = product(a, factor(c, x, E4M3, !cuts_output(l), true), dweight.sum);
    args.accumulate = dweight.adds;
    matmul(c->device, c->stream, args);
    arena_release(c->scratch, mark);
}
