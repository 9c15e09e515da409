// Linear layers in 8 and 4 bits: scales, factors, products.
#include "nn/float8.h"
#include "nn/amax.h"
#include "nn/recipes.h"
#include <stdio.h>

void float8_declare(const Builder *b, int layer, Linear *l) {
    char purpose[sizeof l->weight->spec.name + 16];
    if (!l->weight) return; // the branch has other layers in its place
    snprintf(purpose, sizeof purpose, "rounding of %s", l->weight->spec.name);
    l->float8 = model_layer_float8(b->shape, b->mode, layer);
    l->recipe = b->mode->recipe;
    for (int i = 0; i < 2; i++) l->rounding[i] = rng_key(b->shape->seed, purpose, (uint64_t)i);
    l->history = NUM_FACTORS * b->params->num_linears++;
}

// A factor of a product, with its scale, absent where blocks have all of it: `rows` of numbers along the sum, or
// columns.
typedef struct {
    Tensor q, scale;
    bool rows;
} Factor;

// A tensor that becomes a factor: the sum of the product runs along its rows, or down its columns. `cut`: other tp
// ranks hold other parts of it. Of what is no weight, other cp ranks do.
typedef struct {
    LinearProduct product;
    LinearFactor which;
    Tensor x;
    bool down, cut;
} Source;

// Returns the largest magnitude of all of the tensor, `x` being what this rank makes a factor of. Infinity is kept.
static Tensor largest(Context *c, const Source *s, Tensor x) {
    Tensor max = tensor_take(c->scratch, "largest magnitude", 1, 1, F32);
    device_zero(c->device, c->stream, max);
    abs_max(c->device, c->stream, (AbsMax){.x = x, .max = max});
    if (s->cut) tp_all_reduce(c, max, REDUCE_MAX);
    if (s->which != FACTOR_W && context_ranks(c, ROLE_CONTEXT) > 1)
        comm_all_reduce(context_group(c, ROLE_CONTEXT), c->stream, max, REDUCE_MAX);
    return max;
}

// Notes the largest magnitude, once in a microbatch, and returns that of earlier steps.
static Tensor earlier_largest(Context *c, const Linear *l, const Source *s) {
    CHECK(c->amax && l->history + (int)s->which < c->amax->rows, "no history of %s", l->weight->spec.name);
    int row = l->history + (int)s->which;
    if (s->product == (s->which == FACTOR_DY ? PRODUCT_INPUT : PRODUCT_FORWARD))
        abs_max(c->device, c->stream, (AbsMax){.x = s->x, .max = tensor_part(c->amax->now, row, 1)});
    return tensor_part(c->amax->used, row, 1);
}

// With one scale for the tensor: numbers of 8 bits, transposed where the sum runs down the columns.
static Factor tensor_factor(Context *c, const Linear *l, const Source *s) {
    Tensor max = recipe_rows[l->recipe].delayed ? earlier_largest(c, l, s) : largest(c, s, s->x), x = s->x;
    DType type = recipe_codes(l->float8, s->which) == CODES_E5M2 ? E5M2 : E4M3;
    Factor f = {.q = s->down ? tensor_take(c->scratch, "transposed factor in 8 bits", x.cols, x.rows, type)
                             : tensor_take(c->scratch, "factor in 8 bits", x.rows, x.cols, type),
                .scale = tensor_take(c->scratch, "scale", 1, 1, F32),
                .rows = true};
    quantize(c->device, c->stream,
             (Quantize){.x = x, .max = max, .q = f.q, .scale = f.scale, .transpose = s->down});
    return f;
}

// A column-parallel layer cuts its output, a row-parallel one its input.
static bool cuts_output(const Linear *l) { return l->weight->spec.cut.dim == 0; }

// The random numbers of dy [T, O] or [T, O/t].
static RandomRounding rounding_of(const Context *c, const Linear *l, const Source *s, int64_t cols) {
    int blocks = cuts_output(l) && l->weight->spec.cut.blocks ? l->weight->spec.cut.blocks : 1;
    int64_t t = cuts_output(l) ? context_ranks(c, ROLE_TENSOR) : 1, part = cols / blocks;
    return (RandomRounding){.key = l->rounding[s->product - PRODUCT_INPUT],
                            .first_sample = c->first_sample,
                            .samples = c->samples,
                            .cols = cols * t,
                            .first_col = t > 1 ? context_rank(c, ROLE_TENSOR) * part : 0,
                            .part = part,
                            .stride = part * t};
}

// With scales of blocks: the bf16 numbers that codes stand for.
static Factor block_factors(Context *c, const Linear *l, const Source *s, const Quant *quant) {
    Tensor x = s->x;
    QuantizeBlocks args = {.codes = recipe_codes(l->float8, s->which), .scales = quant->scales};
    bool down = s->down;
    if (quant->random) args.random = rounding_of(c, l, s, x.cols);
    if (quant->hadamard) {
        CHECK(down, "a Hadamard transform along rows of %s", l->weight->spec.name);
        x = tensor_take(c->scratch, "transformed factor", x.cols, x.rows, x.dtype);
        hadamard(c->device, c->stream, (Hadamard){.x = s->x, .y = x});
        down = false, args.random.transposed = true;
    }
    args.x = x;
    args.q = tensor_take(c->scratch, "factor of codes", x.rows, x.cols, BF16);
    args.block_rows = down ? quant->along : quant->across,
    args.block_cols = down ? quant->across : quant->along;
    if (quant->scales == BLOCK_E4M3)
        args.max = largest(c, s, x), args.scale = tensor_take(c->scratch, "scale", 1, 1, F32);
    quantize_blocks(c->device, c->stream, args);
    return (Factor){.q = args.q, .scale = args.scale, .rows = !down};
}

static Factor factor(Context *c, const Linear *l, Source source) {
    const Quant *quant = &recipe_rows[l->recipe].factors[source.product][source.which];
    return quant->along ? block_factors(c, l, &source, quant) : tensor_factor(c, l, &source);
}

// Makes d = a b (+ bias) (+ d), as `args` has d and the bias. Of factors in bf16 the scales of tensors come after the
// sums, and units for 8 bits have no part in it.
static void multiply(Context *c, Factor a, Factor b, Matmul args) {
    args.a = a.q, args.b = b.q;
    args.transpose_a = !a.rows, args.transpose_b = b.rows;
    if (a.q.dtype != BF16)
        args.scale_a = a.scale, args.scale_b = b.scale;
    else
        args.fast_sums = false;
    if (a.q.dtype != BF16 || !a.scale.data) {
        matmul(c->device, c->stream, args);
        return;
    }
    ScaleProduct last = {.scale_a = a.scale, .scale_b = b.scale, .bias = args.bias, .d = args.d};
    last.x = tensor_take(c->scratch, "product before its scales", args.d.rows, args.d.cols, F32);
    last.accumulate = args.accumulate;
    args.d = last.x, args.bias = (Tensor){0}, args.accumulate = false;
    matmul(c->device, c->stream, args);
    scale_product(c->device, c->stream, last);
}

// Fast sums are for this product alone: gradients are small beside their largest, and more is added to them.
void float8_forward(Context *c, const Linear *l, Tensor x, Tensor bias, Tensor y) {
    ArenaMark mark = arena_mark(c->scratch);
    Factor a = factor(c, l, (Source){PRODUCT_FORWARD, FACTOR_X, x, false, !cuts_output(l)});
    Factor b = factor(c, l, (Source){PRODUCT_FORWARD, FACTOR_W, l->weight->value, false, true});
    multiply(c, a, b, (Matmul){.bias = bias, .d = y, .fast_sums = true});
    arena_release(c->scratch, mark);
}

void float8_input_gradient(Context *c, const Linear *l, Tensor dy, Tensor dx) {
    ArenaMark mark = arena_mark(c->scratch);
    Factor a = factor(c, l, (Source){PRODUCT_INPUT, FACTOR_DY, dy, false, cuts_output(l)});
    Factor b = factor(c, l, (Source){PRODUCT_INPUT, FACTOR_W, l->weight->value, true, true});
    multiply(c, a, b, (Matmul){.d = dx});
    arena_release(c->scratch, mark);
}

void float8_weight_gradient(Context *c, const Linear *l, Tensor x, Tensor dy) {
    ArenaMark mark = arena_mark(c->scratch);
    Factor a = factor(c, l, (Source){PRODUCT_WEIGHT, FACTOR_DY, dy, true, cuts_output(l)});
    GradSum dweight = param_grad_sum(l->weight, c->device, c->place);
    Factor b = factor(c, l, (Source){PRODUCT_WEIGHT, FACTOR_X, x, true, !cuts_output(l)});
    multiply(c, a, b, (Matmul){.d = dweight.sum, .accumulate = dweight.adds});
    arena_release(c->scratch, mark);
}
