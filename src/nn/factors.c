// Makes the factors of products in 8 and 4 bits, and multiplies them.
#include "nn/factors.h"
#include "nn/amax.h"
#include <stdio.h>

enum { ROWS_OF_UNITS = 16 }; // that units for 8 bits take at a time

void few_bits_declare(const Builder *b, int layer, const Param *weight, int matrices, FewBits *bits) {
    if (!weight) return; // the layer has others in its place
    char purpose[sizeof weight->spec.name + 16];
    snprintf(purpose, sizeof purpose, "rounding of %s", weight->spec.name);
    bits->format = model_layer_float8(b->shape, b->mode, layer);
    bits->recipe = b->mode->recipe;
    for (int i = 0; i < 2; i++) bits->rounding[i] = rng_key(b->shape->seed, purpose, (uint64_t)i);
    bits->history = NUM_FACTORS * b->params->num_matrices;
    b->params->num_matrices += matrices;
}

// ---- what a factor is ---------------------------------------------------------------------------------------

static const Quant *quant_of(const FactorSource *s) {
    return &recipe_rows[s->few_bits->recipe].factors[s->product][s->which];
}

static bool is_delayed(const FactorSource *s) { return recipe_rows[s->few_bits->recipe].delayed; }

static bool has_tensor_scale(const FactorSource *s) { return !quant_of(s)->along; }

// The sum of the product runs down the columns of the tensor.
static bool is_down(const FactorSource *s) {
    return s->product == PRODUCT_WEIGHT || (s->product == PRODUCT_INPUT && s->which == FACTOR_W);
}

// The factor holds the tensor transposed.
static bool is_turned(const FactorSource *s) {
    return is_down(s) && (has_tensor_scale(s) || quant_of(s)->hadamard);
}

// A column-parallel layer cuts its output, a row-parallel one its input.
static bool cuts_output(const Param *weight) { return weight->spec.cut.dim == 0; }

bool factor_is_cut(const Param *weight, LinearFactor which) {
    return which == FACTOR_W || (which == FACTOR_DY) == cuts_output(weight);
}

RandomRounding factor_random(const Context *c, const FewBits *bits, LinearProduct product,
                             const Param *weight, Role role, int64_t cols) {
    int blocks = cuts_output(weight) && weight->spec.cut.blocks ? weight->spec.cut.blocks : 1;
    int64_t ranks = cuts_output(weight) ? context_ranks(c, role) : 1, part = cols / blocks;
    return (RandomRounding){.key = bits->rounding[product - PRODUCT_INPUT],
                            .cols = cols * ranks,
                            .first_col = ranks > 1 ? context_rank(c, role) * part : 0,
                            .part = part,
                            .stride = part * ranks};
}

// ---- making it ----------------------------------------------------------------------------------------------

static int64_t rows_with_zeros(const FactorSource *s) {
    if (!s->any_rows) return s->x.rows;
    int64_t unit = has_tensor_scale(s) ? ROWS_OF_UNITS : quant_of(s)->hadamard ? HADAMARD_SIZE : 1;
    return (s->x.rows + unit - 1) / unit * unit;
}

FactorMemory factor_take(Context *c, const FactorSource *s) {
    DType type = BF16;
    int64_t rows = rows_with_zeros(s), cols = s->x.cols;
    FactorMemory m = {.factor.rows = is_turned(s) || !is_down(s)};
    if (has_tensor_scale(s)) type = recipe_codes(s->few_bits->format, s->which) == CODES_E5M2 ? E5M2 : E4M3;
    if (rows != s->x.rows) m.padded = tensor_take(c->scratch, "factor and zeros", rows, cols, s->x.dtype);
    if (quant_of(s)->hadamard)
        m.turned = tensor_take(c->scratch, "transformed factor", cols, rows, s->x.dtype);
    m.factor.q = is_turned(s) ? tensor_take(c->scratch, "transposed factor of few bits", cols, rows, type)
                              : tensor_take(c->scratch, "factor of few bits", rows, cols, type);
    if (has_tensor_scale(s) || quant_of(s)->scales == BLOCK_E4M3)
        m.factor.scale = tensor_take(c->scratch, "scale", 1, 1, F32);
    return m;
}

Tensor factor_prepare(Context *c, const FactorSource *s, const FactorMemory *m) {
    Tensor x = s->x;
    if (m->padded.rows) {
        device_copy(c->device, c->stream, tensor_rows(m->padded, 0, x.rows), x);
        device_zero(c->device, c->stream, tensor_rows(m->padded, x.rows, m->padded.rows - x.rows));
        x = m->padded;
    }
    if (!m->turned.rows) return x;
    CHECK(is_down(s), "a Hadamard transform along rows");
    hadamard(c->device, c->stream, (Hadamard){.x = x, .y = m->turned});
    return m->turned;
}

FewBitsFactor factor_make(Context *c, const FactorSource *s, const FactorMemory *m, Tensor prepared,
                          Tensor max) {
    const Quant *quant = quant_of(s);
    if (has_tensor_scale(s)) {
        quantize(c->device, c->stream,
                 (Quantize){.x = prepared,
                            .max = max,
                            .q = m->factor.q,
                            .scale = m->factor.scale,
                            .transpose = is_down(s)});
        return m->factor;
    }
    QuantizeBlocks args = {.x = prepared,
                           .max = max,
                           .q = m->factor.q,
                           .scale = m->factor.scale,
                           .codes = recipe_codes(s->few_bits->format, s->which),
                           .scales = quant->scales};
    if (quant->random) args.random = s->random;
    args.random.transposed = quant->hadamard;
    args.block_rows = m->factor.rows ? quant->across : quant->along;
    args.block_cols = m->factor.rows ? quant->along : quant->across;
    quantize_blocks(c->device, c->stream, args);
    return m->factor;
}

bool factor_needs_largest(const FactorSource *s) {
    return has_tensor_scale(s) ? !is_delayed(s) : quant_of(s)->scales == BLOCK_E4M3;
}

Tensor factor_earlier_largest(Context *c, const FactorSource *s, int row) {
    if (!is_delayed(s)) return (Tensor){0};
    CHECK(c->amax && row < c->amax->rows, "no row %d of the history of largest magnitudes", row);
    if (s->product == (s->which == FACTOR_DY ? PRODUCT_INPUT : PRODUCT_FORWARD))
        abs_max(c->device, c->stream, (AbsMax){.x = s->x, .max = tensor_part(c->amax->now, row, 1)});
    return tensor_part(c->amax->used, row, 1);
}

// ---- products -----------------------------------------------------------------------------------------------

// Units for 8 bits have no part in products of factors in bf16.
static Matmul product_of(FewBitsFactor a, FewBitsFactor b, Matmul args) {
    args.a = a.q, args.b = b.q;
    args.transpose_a = !a.rows, args.transpose_b = b.rows;
    if (a.q.dtype != BF16)
        args.scale_a = a.scale, args.scale_b = b.scale;
    else
        args.fast_sums = false;
    return args;
}

// Scales of tensors come after the sums, where factors are in bf16.
static bool is_scaled_later(FewBitsFactor a) { return a.q.dtype == BF16 && a.scale.rows; }

// The same product, without scales, bias and what `args` adds to, in fp32.
static Matmul product_before_scales(Context *c, FewBitsFactor a, FewBitsFactor b, Matmul args) {
    Tensor sums = tensor_take(c->scratch, "product before its scales", args.d.rows, args.d.cols, F32);
    return product_of(a, b, (Matmul){.d = sums});
}

void factors_multiply(Context *c, FewBitsFactor a, FewBitsFactor b, Matmul args) {
    if (!is_scaled_later(a)) {
        matmul(c->device, c->stream, product_of(a, b, args));
        return;
    }
    Matmul product = product_before_scales(c, a, b, args);
    matmul(c->device, c->stream, product);
    scale_product(c->device, c->stream,
                  (ScaleProduct){.x = product.d,
                                 .scale_a = a.scale,
                                 .scale_b = b.scale,
                                 .bias = args.bias,
                                 .d = args.d,
                                 .accumulate = args.accumulate});
}

void factors_reserve(Context *c, FewBitsFactor a, FewBitsFactor b, Matmul args, bool tokens_are_summed) {
    Matmul product = is_scaled_later(a) ? product_before_scales(c, a, b, args) : product_of(a, b, args);
    matmul_reserve(c->device, c->stream, product, tokens_are_summed);
}
