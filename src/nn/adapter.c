// The adapters of linear layers (LoRA): declaration, forward and backward.
#include "nn/adapter.h"
#include "nn/declare.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

// ---- declaration -----------------------------------------------------------------------------------

// The name of a part of the linear layer NAME: what stands before its last word, and the target's name.
static ParamSpec part_spec(const Builder *b, const LinearSpec *linear, int target, const char *suffix) {
    char name[96];
    int before = (int)(strrchr(linear->name, '.') + 1 - linear->name);
    snprintf(name, sizeof name, "%.*s%s", before, linear->name, lora_target_name(target));
    ParamSpec spec = builder_spec(b, name, suffix);
    spec.adapter = spec.decay = true;
    return spec;
}

static AdapterPart declare_part(const Builder *b, const LinearSpec *linear, Cut cut, LinearPart part) {
    ParamSpec a = part_spec(b, linear, part.target, "lora_A.weight"),
              rows = part_spec(b, linear, part.target, "lora_B.weight");
    bool column = cut.dim == 0;
    a.rows = b->shape->lora_rank, a.cols = linear->in;
    a.init = INIT_UNIFORM, a.stddev = 1 / sqrtf((float)linear->in);
    rows.rows = part.all ? linear->out / part.all * part.own : linear->out, rows.cols = b->shape->lora_rank;
    rows.init = INIT_ZERO;
    if (column)
        rows.cut = (Cut){.dim = 0, .blocks = part.all ? 0 : cut.blocks};
    else
        a.cut = cut;
    *(column ? &a.reduction : &rows.reduction) = REDUCTION_PARTIAL;
    AdapterPart declared = {.of = part, .a = params_declare(b->params, a)};
    declared.b = params_declare(b->params, rows);
    return declared;
}

Adapter adapter_declare(const Builder *b, const LinearSpec *linear, Cut cut) {
    const ModelShape *s = b->shape;
    Adapter adapter = {.is_row_parallel = cut.dim == 1, .dropout = s->lora_dropout};
    if (!s->lora_rank) return adapter;
    adapter.scale = model_lora_scale(s);
    adapter.key = rng_key(s->seed, linear->name, 0);
    for (int i = 0; i < MAX_PARTS; i++)
        if (linear->parts[i].own && s->lora_targets >> linear->parts[i].target & 1)
            adapter.parts[adapter.num_parts++] = declare_part(b, linear, cut, linear->parts[i]);
    return adapter;
}

void adapter_take_stash(const Adapter *adapter, Arena *arena, int64_t tokens, DType dtype,
                        AdapterStash *stash) {
    for (int i = 0; i < adapter->num_parts; i++)
        stash->low[i] = tensor_take(arena, "low-rank product of an adapter", tokens,
                                    adapter->parts[i].b->value.cols, dtype);
}

// ---- the rows of a part --------------------------------------------------------------------------------

// Rows of the layer's output that are of a part: in each of `turns` turns `rows` rows from `first` on.
typedef struct {
    int64_t turns, turn, first, rows;
} PartRows;

static bool is_whole(const AdapterPart *part) { return !part->of.all; }

static PartRows rows_of(const AdapterPart *part, int64_t output) {
    int64_t unit = part->of.unit ? part->of.unit : output / part->of.all, turn = unit * part->of.all;
    return (PartRows){output / turn, turn, unit * part->of.before, unit * part->of.own};
}

// Returns B with a row for every column of y: rows of other parts are zeros.
static Tensor spread(Context *c, const AdapterPart *part, int64_t output) {
    Tensor b = part->b->value;
    if (is_whole(part)) return b;
    PartRows at = rows_of(part, output);
    Tensor all = tensor_take(c->scratch, "rows of lora_B among those of all parts", output, b.cols, b.dtype);
    device_zero(c->device, c->stream, all);
    for (int64_t i = 0; i < at.turns; i++)
        device_copy(c->device, c->stream, tensor_rows(all, i * at.turn + at.first, at.rows),
                    tensor_rows(b, i * at.rows, at.rows));
    return all;
}

// Adds the rows of a gradient that are of a part to the gradient of its B.
static void gather(Context *c, const AdapterPart *part, Tensor all, GradSum db) {
    PartRows at = rows_of(part, all.rows);
    for (int64_t i = 0; i < at.turns; i++) {
        Tensor from = tensor_rows(all, i * at.turn + at.first, at.rows),
               to = tensor_rows(db.sum, i * at.rows, at.rows);
        if (db.adds)
            add(c->device, c->stream, (Add){.x = from, .y = to});
        else
            device_copy(c->device, c->stream, to, from);
    }
}

// ---- products ------------------------------------------------------------------------------------------

static bool is_on(const Context *c, const Adapter *adapter, const AdapterUse *use) {
    return use && adapter->num_parts && !c->adapters_off;
}

// Part `i` of the rows of the layer's input x with their mask, which does not depend on how a row-parallel layer cuts
// its columns; false: there is none.
static bool input_rows(const Context *c, const Adapter *adapter, const AdapterUse *use, Tensor x, int i,
                       DropoutRows *rows) {
    bool found = microbatch_rows(c, use->microbatch, adapter->key, adapter->dropout, false, i, rows);
    if (!adapter->is_row_parallel) return found;
    rows->dropout.first_col = x.cols * context_rank(c, ROLE_TENSOR);
    rows->dropout.cols = x.cols * context_ranks(c, ROLE_TENSOR);
    return found;
}

static bool drops(const Adapter *adapter, const AdapterUse *use) {
    return use->microbatch->training && adapter->dropout > 0;
}

static Tensor drop(Context *c, const Adapter *adapter, const AdapterUse *use, Tensor x) {
    if (!drops(adapter, use)) return x;
    Tensor dropped = tensor_take(c->scratch, "input of an adapter after dropout", x.rows, x.cols, x.dtype);
    DropoutRows rows;
    for (int i = 0; input_rows(c, adapter, use, x, i, &rows); i++)
        dropout_backward(c->device, c->stream,
                         (DropoutBackward){.dy = tensor_rows(x, rows.row, rows.count),
                                           .dx = tensor_rows(dropped, rows.row, rows.count),
                                           .dropout = rows.dropout});
    return dropped;
}

static void multiply_by(Context *c, Tensor x, float factor) {
    if (factor != 1) scale(c->device, c->stream, (Scale){.x = x, .y = x, .factor = factor});
}

// y += product.
static void add_product(Context *c, Matmul product, Tensor y) {
    product.d = y;
    if (y.dtype == F32) {
        product.accumulate = true;
        matmul(c->device, c->stream, product);
        return;
    }
    ArenaMark mark = arena_mark(c->scratch);
    product.d = tensor_take(c->scratch, "product of an adapter", y.rows, y.cols, y.dtype);
    matmul(c->device, c->stream, product);
    bias_dropout_add(c->device, c->stream, (BiasDropoutAdd){.x = product.d, .residual = y, .y = y});
    arena_release(c->scratch, mark);
}

// dx += dropout(product), where dropout is that of the layer's input.
static void add_dropped(Context *c, const Adapter *adapter, const AdapterUse *use, Matmul product,
                        Tensor dx) {
    ArenaMark mark = arena_mark(c->scratch);
    DropoutRows rows;
    product.d = tensor_take(c->scratch, "product of an adapter", dx.rows, dx.cols, dx.dtype);
    matmul(c->device, c->stream, product);
    for (int i = 0; input_rows(c, adapter, use, dx, i, &rows); i++) {
        Tensor part = tensor_rows(dx, rows.row, rows.count);
        bias_dropout_add(c->device, c->stream,
                         (BiasDropoutAdd){.x = tensor_rows(product.d, rows.row, rows.count),
                                          .residual = part,
                                          .y = part,
                                          .dropout = rows.dropout});
    }
    arena_release(c->scratch, mark);
}

void adapter_forward(Context *c, const Adapter *adapter, const AdapterUse *use, Tensor x, Tensor y) {
    if (!is_on(c, adapter, use)) return;
    ArenaMark mark = arena_mark(c->scratch);
    Tensor dropped = drop(c, adapter, use, x);
    for (int i = 0; i < adapter->num_parts; i++) {
        const AdapterPart *part = &adapter->parts[i];
        ArenaMark of_part = arena_mark(c->scratch);
        Tensor low = use->stash->low[i];
        matmul(c->device, c->stream,
               (Matmul){.a = dropped, .b = part->a->value, .d = low, .transpose_b = true});
        multiply_by(c, low, adapter->scale);
        add_product(c, (Matmul){.a = low, .b = spread(c, part, y.cols), .transpose_b = true}, y);
        arena_release(c->scratch, of_part);
    }
    arena_release(c->scratch, mark);
}

static void gradient_of_b(Context *c, const AdapterPart *part, Tensor low, Tensor dy) {
    GradSum db = param_grad_sum(part->b, c->device, c->place);
    Matmul product = {.a = dy, .b = low, .d = db.sum, .transpose_a = true, .accumulate = db.adds};
    if (!is_whole(part)) {
        product.d =
            tensor_take(c->scratch, "gradient of lora_B among those of all parts", dy.cols, low.cols, F32);
        product.accumulate = false;
    }
    matmul(c->device, c->stream, product);
    if (!is_whole(part)) gather(c, part, product.d, db);
}

void adapter_backward(Context *c, const Adapter *adapter, const AdapterUse *use, Tensor x, Tensor dy,
                      Tensor dx) {
    if (!is_on(c, adapter, use)) return;
    ArenaMark mark = arena_mark(c->scratch);
    Tensor dropped = drop(c, adapter, use, x);
    for (int i = 0; i < adapter->num_parts; i++) {
        const AdapterPart *part = &adapter->parts[i];
        ArenaMark of_part = arena_mark(c->scratch);
        Tensor low = use->stash->low[i];
        Tensor dlow =
            tensor_take(c->scratch, "gradient of a low-rank product", low.rows, low.cols, low.dtype);
        gradient_of_b(c, part, low, dy);
        matmul(c->device, c->stream, (Matmul){.a = dy, .b = spread(c, part, dy.cols), .d = dlow});
        multiply_by(c, dlow, adapter->scale);
        GradSum da = param_grad_sum(part->a, c->device, c->place);
        matmul(c->device, c->stream,
               (Matmul){.a = dlow, .b = dropped, .d = da.sum, .transpose_a = true, .accumulate = da.adds});
        Matmul back = {.a = dlow, .b = part->a->value};
        if (drops(adapter, use))
            add_dropped(c, adapter, use, back, dx);
        else
            add_product(c, back, dx);
        arena_release(c->scratch, of_part);
    }
    arena_release(c->scratch, mark);
}

// ---- closed forms --------------------------------------------------------------------------------------

int64_t adapter_width(const ModelShape *s, int targets) {
    int64_t count = 0;
    for (int i = 0; i < NUM_LORA_TARGETS; i++) count += s->lora_targets >> i & targets >> i & 1;
    return count * s->lora_rank;
}

// Layers with experts have no linear layers of an MLP.
int64_t model_adapter_parameters(const ModelShape *s) {
    const int mlp = LORA_FC1 | LORA_GATE | LORA_UP | LORA_FC2;
    int mlps = 0;
    for (int layer = 0; layer < s->layers; layer++) mlps += !model_layer_has_experts(s, layer);
    int64_t h = s->hidden, width = (int64_t)s->heads * s->head_size, f = s->ffn,
            output = (int64_t)s->heads * model_value_size(s), keys = (int64_t)model_groups(s) * s->head_size,
            inner = model_is_gated(s) ? 2 * f : f, sum = 0;
    const int64_t sizes[NUM_LORA_TARGETS] = {[LORA_NUMBER_QKV] = h + width + 2 * keys,
                                             [LORA_NUMBER_Q] = h + width,
                                             [LORA_NUMBER_K] = h + keys,
                                             [LORA_NUMBER_V] = h + keys,
                                             [LORA_NUMBER_PROJ] = output + h,
                                             [LORA_NUMBER_FC1] = h + inner,
                                             [LORA_NUMBER_GATE] = h + f,
                                             [LORA_NUMBER_UP] = h + f,
                                             [LORA_NUMBER_FC2] = f + h};
    for (int i = 0; i < NUM_LORA_TARGETS; i++)
        if (s->lora_targets >> i & 1) sum += sizes[i] * (mlp >> i & 1 ? mlps : s->layers);
    return sum * s->lora_rank;
}
