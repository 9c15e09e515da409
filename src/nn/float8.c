// Linear layers in 8 and 4 bits: the scales of their tensors, over all ranks that share them, and their products.
#include "nn/float8.h"
#include "nn/factors.h"

// Returns the largest magnitude of all of the tensor, `x` being what this rank makes a factor of. Infinity is kept.
static Tensor largest(Context *c, const Linear *l, LinearFactor which, Tensor x) {
    Tensor max = tensor_take(c->scratch, "largest magnitude", 1, 1, F32);
    device_zero(c->device, c->stream, max);
    abs_max(c->device, c->stream, (AbsMax){.x = x, .max = max});
    if (factor_is_cut(l->weight, which)) tp_all_reduce(c, max, REDUCE_MAX);
    if (which != FACTOR_W && context_ranks(c, ROLE_CONTEXT) > 1)
        comm_all_reduce(context_group(c, ROLE_CONTEXT), c->stream, max, REDUCE_MAX);
    return max;
}

static FewBitsFactor factor(Context *c, const Linear *l, LinearProduct product, LinearFactor which,
                            Tensor x) {
    FactorSource s = {.few_bits = &l->few_bits, .product = product, .which = which, .x = x};
    if (which == FACTOR_DY) {
        s.random = factor_random(c, &l->few_bits, product, l->weight, ROLE_TENSOR, x.cols);
        s.random.first_sample = c->first_sample, s.random.samples = c->samples;
    }
    FactorMemory memory = factor_take(c, &s);
    Tensor prepared = factor_prepare(c, &s, &memory);
    Tensor max = factor_needs_largest(&s) ? largest(c, l, which, prepared)
                                          : factor_earlier_largest(c, &s, l->few_bits.history + (int)which);
    return factor_make(c, &s, &memory, prepared, max);
}

// Fast sums are for this product alone: gradients are small beside their largest, and more is added to them.
void float8_forward(Context *c, const Linear *l, Tensor x, Tensor bias, Tensor y) {
    ArenaMark mark = arena_mark(c->scratch);
    FewBitsFactor a = factor(c, l, PRODUCT_FORWARD, FACTOR_X, x);
    FewBitsFactor b = factor(c, l, PRODUCT_FORWARD, FACTOR_W, l->weight->value);
    factors_multiply(c, a, b, (Matmul){.bias = bias, .d = y, .fast_sums = true});
    arena_release(c->scratch, mark);
}

void float8_input_gradient(Context *c, const Linear *l, Tensor dy, Tensor dx) {
    ArenaMark mark = arena_mark(c->scratch);
    FewBitsFactor a = factor(c, l, PRODUCT_INPUT, FACTOR_DY, dy);
    FewBitsFactor b = factor(c, l, PRODUCT_INPUT, FACTOR_W, l->weight->value);
    factors_multiply(c, a, b, (Matmul){.d = dx});
    arena_release(c->scratch, mark);
}

void float8_weight_gradient(Context *c, const Linear *l, Tensor x, Tensor dy) {
    ArenaMark mark = arena_mark(c->scratch);
    FewBitsFactor a = factor(c, l, PRODUCT_WEIGHT, FACTOR_DY, dy);
    GradSum dweight = param_grad_sum(l->weight, c->device, c->place);
    FewBitsFactor b = factor(c, l, PRODUCT_WEIGHT, FACTOR_X, x);
    factors_multiply(c, a, b, (Matmul){.d = dweight.sum, .accumulate = dweight.adds});
    arena_release(c->scratch, mark);
}
