// The linear layers, column- and row-parallel: declaration, products, and the messages around them.
#include "nn/adapter.h"
#include "nn/declare.h"
#include "nn/float8.h"
#include <stdio.h>
#include <string.h>

// A weight that is not cut is used on the rows of its rank.
static Param *declare_weight(const Builder *b, LinearSpec linear, Cut cut) {
    ParamSpec weight = builder_spec(b, linear.name, "weight");
    weight.rows = linear.out, weight.cols = linear.in;
    weight.cut = cut;
    if (cut.dim < 0) weight.reduction = builder_row_reduction(b);
    weight.init = INIT_NORMAL, weight.stddev = linear.stddev;
    weight.decay = true;
    memcpy(weight.matrices, linear.matrices, sizeof weight.matrices);
    if (!weight.matrices[0]) weight.matrices[0] = 1;
    return params_declare(b->params, weight);
}

Linear column_linear_declare(const Builder *b, LinearSpec linear) {
    Cut cut = {.dim = 0, .blocks = linear.blocks};
    Linear l = {.weight = declare_weight(b, linear, cut), .adapter = adapter_declare(b, &linear, cut)};
    if (!linear.bias) return l;
    ParamSpec bias = builder_spec(b, linear.name, "bias");
    bias.rows = 1, bias.cols = linear.out;
    bias.cut = (Cut){.dim = 1, .blocks = linear.blocks};
    l.bias = params_declare(b->params, bias);
    return l;
}

Linear row_linear_declare(const Builder *b, LinearSpec linear) {
    Cut cut = {.dim = 1};
    Linear l = {.weight = declare_weight(b, linear, cut), .adapter = adapter_declare(b, &linear, cut)};
    if (!linear.bias) return l;
    ParamSpec bias = builder_spec(b, linear.name, "bias");
    bias.rows = 1, bias.cols = linear.out;
    bias.reduction = builder_row_reduction(b);
    l.bias = params_declare(b->params, bias);
    return l;
}

Linear whole_linear_declare(const Builder *b, LinearSpec linear) {
    Linear l = {.weight = declare_weight(b, linear, (Cut){.dim = -1})};
    return l;
}

// ---- products --------------------------------------------------------------------------------------

void linear_forward(Context *c, const Linear *l, Tensor x, Tensor bias, Tensor y) {
    if (l->few_bits.format) {
        float8_forward(c, l, x, bias, y);
        return;
    }
    matmul(c->device, c->stream,
           (Matmul){.a = x, .b = l->weight->value, .bias = bias, .d = y, .transpose_b = true});
}

void linear_input_gradient(Context *c, const Linear *l, Tensor dy, Tensor dx) {
    if (l->few_bits.format) {
        float8_input_gradient(c, l, dy, dx);
        return;
    }
    matmul(c->device, c->stream, (Matmul){.a = dy, .b = l->weight->value, .d = dx});
}

void linear_weight_gradient(Context *c, const Linear *l, Tensor x, Tensor dy) {
    if (l->few_bits.format) {
        float8_weight_gradient(c, l, x, dy);
        return;
    }
    GradSum dweight = param_grad_sum(l->weight, c->device, c->place);
    matmul(c->device, c->stream,
           (Matmul){.a = dy, .b = x, .d = dweight.sum, .transpose_a = true, .accumulate = dweight.adds});
}

// Returns whether the product for the weight makes the gradient of the bias, too. `all` are the rows of which it is
// made: where `dy` is a share of them, other ranks add the rest. Products in 8 bits join nothing: their dy is another.
// While memory is measured, tensors of two arenas can have one address.
static bool sums_join(const Context *c, const Linear *l, Tensor dy, Tensor all) {
    return l->bias && !l->few_bits.format && device_is_fused(c->device) && dy.data == all.data &&
           dy.rows == all.rows;
}

static void bias_gradient(Context *c, const Linear *l, Tensor dy, Tensor all) {
    if (l->bias && !l->bias->frozen && !sums_join(c, l, dy, all))
        column_sum(c->device, c->stream,
                   (ColumnSum){.x = dy, .sum = param_grad(l->bias, c->device, c->place)});
}

static void weight_half(Context *c, const Linear *l, Tensor x, Tensor dy, Tensor all) {
    if (l->weight->frozen) return;
    if (!sums_join(c, l, dy, all)) {
        linear_weight_gradient(c, l, x, all);
        return;
    }
    GradSum dweight = param_grad_sum(l->weight, c->device, c->place),
            dbias = param_grad_sum(l->bias, c->device, c->place);
    matmul_sums(c->device, c->stream,
                (MatmulSums){.a = dy,
                             .b = x,
                             .d = dweight.sum,
                             .sums = dbias.sum,
                             .accumulate = dweight.adds,
                             .accumulate_sums = dbias.adds});
}

void column_linear_forward(Context *c, const Linear *l, const AdapterUse *use, Tensor x, Tensor y,
                           bool with_bias) {
    ArenaMark mark = arena_mark(c->scratch);
    Tensor all = tp_gather(c, x);
    linear_forward(c, l, all, with_bias ? param_value(l->bias) : (Tensor){0}, y);
    adapter_forward(c, &l->adapter, use, all, y);
    arena_release(c->scratch, mark);
}

void column_linear_gelu_forward(Context *c, const Linear *l, Tensor x, Tensor aux, Tensor y) {
    ArenaMark mark = arena_mark(c->scratch);
    matmul_gelu(
        c->device, c->stream,
        (MatmulGelu){
            .a = tp_gather(c, x), .b = l->weight->value, .bias = param_value(l->bias), .d = y, .aux = aux});
    arena_release(c->scratch, mark);
}

void column_linear_backward(Context *c, const Linear *l, const AdapterUse *use, Halves halves, Tensor x,
                            Tensor dy, Tensor dx) {
    ArenaMark mark = arena_mark(c->scratch);
    if (halves & INPUT_HALF) {
        Tensor partial = tp_reduce_begin(c, dx);
        linear_input_gradient(c, l, dy, partial);
        if (l->adapter.num_parts) adapter_backward(c, &l->adapter, use, tp_gather(c, x), dy, partial);
        tp_reduce_end(c, partial, dx);
        bias_gradient(c, l, dy, dy);
        arena_release(c->scratch, mark);
    }
    if (halves & WEIGHT_HALF && !l->weight->frozen) weight_half(c, l, tp_gather(c, x), dy, dy);
    arena_release(c->scratch, mark);
}

void whole_linear_backward(Context *c, const Linear *l, Halves halves, Tensor x, Tensor dy, Tensor dx) {
    if (halves & INPUT_HALF) linear_input_gradient(c, l, dy, dx);
    if (halves & WEIGHT_HALF && !l->weight->frozen) linear_weight_gradient(c, l, x, dy);
}

void row_linear_forward(Context *c, const Linear *l, const AdapterUse *use, Tensor x, Tensor y) {
    ArenaMark mark = arena_mark(c->scratch);
    Tensor partial = tp_reduce_begin(c, y);
    linear_forward(c, l, x, (Tensor){0}, partial);
    adapter_forward(c, &l->adapter, use, x, partial);
    tp_reduce_end(c, partial, y);
    arena_release(c->scratch, mark);
}

// aux: of the GELU that made x; absent: dx is the gradient of x itself.
static void row_backward(Context *c, const Linear *l, const AdapterUse *use, Halves halves, Tensor x,
                         Tensor dy, Tensor aux, Tensor dx) {
    ArenaMark mark = arena_mark(c->scratch);
    if (halves == WEIGHT_HALF && l->weight->frozen) return;
    Tensor all = tp_gather(c, dy);
    if (halves & INPUT_HALF) {
        if (aux.data)
            matmul_gelu_backward(c->device, c->stream,
                                 (MatmulGeluBackward){.a = all, .b = l->weight->value, .aux = aux, .d = dx});
        else
            linear_input_gradient(c, l, all, dx);
        adapter_backward(c, &l->adapter, use, x, all, dx);
        bias_gradient(c, l, dy, all);
    }
    if (halves & WEIGHT_HALF) weight_half(c, l, x, dy, all);
    arena_release(c->scratch, mark);
}

void row_linear_backward(Context *c, const Linear *l, const AdapterUse *use, Halves halves, Tensor x,
                         Tensor dy, Tensor dx) {
    row_backward(c, l, use, halves, x, dy, (Tensor){0}, dx);
}

void row_linear_gelu_backward(Context *c, const Linear *l, Halves halves, Tensor x, Tensor dy, Tensor aux,
                              Tensor dx) {
    row_backward(c, l, NULL, halves, x, dy, aux, dx);
}
