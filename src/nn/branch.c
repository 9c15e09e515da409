// The frame of attention and MLP: norm, column-parallel linear, a core, row-parallel linear, dropout and residual.
#include "nn/branch.h"
#include "nn/adapter.h"
#include "nn/factors.h"
#include <math.h>

Branch branch_declare(const Builder *b, int layer, const char *norm, const char *post, LinearSpec in,
                      LinearSpec out, const char *dropout) {
    const ModelShape *shape = b->shape;
    PartName in_name = {0}, out_name = {0};
    if (in.name) in_name = part_name(layer, in.name), in.name = in_name.text;
    if (out.name) out_name = part_name(layer, out.name), out.name = out_name.text;
    in.in = out.out = shape->hidden;
    in.stddev = shape->init_std;
    out.stddev = shape->init_std / sqrtf(2.0f * (float)shape->layers);
    Branch branch = {.hidden_dropout = shape->hidden_dropout, .scale = shape->residual_multiplier};
    branch.hidden_key = rng_key(shape->seed, dropout, (uint64_t)layer);
    if (model_has_pre_norm(shape)) branch.norm = norm_declare(b, part_name(layer, norm).text);
    if (in.name) branch.in = column_linear_declare(b, in);
    if (out.name) branch.out = row_linear_declare(b, out);
    if (model_has_post_norm(shape)) branch.post = norm_declare(b, part_name(layer, post).text);
    few_bits_declare(b, layer, branch.in.weight, 1, &branch.in.few_bits);
    few_bits_declare(b, layer, branch.out.weight, 1, &branch.out.few_bits);
    return branch;
}

// Part `i` of the rows of the sublayer's output, with their dropout; false: there is none.
static bool hidden_rows(const SublayerArgs *a, int i, DropoutRows *rows) {
    const Branch *branch = a->self;
    return microbatch_rows(a->context, a->microbatch, branch->hidden_key, branch->hidden_dropout, true, i,
                           rows);
}

// Then the stash holds the aux of the GELU in place of the output of `in`.
static bool joins_gelu(const SublayerArgs *a, const Core *core) {
    const Branch *branch = a->self;
    if (branch->in.adapter.num_parts || branch->out.adapter.num_parts) return false;
    return !branch->in.few_bits.format && device_is_fused(a->context->device) && core->is_gelu &&
           core->is_gelu(a);
}

static AdapterUse use_of(const SublayerArgs *a, const AdapterStash *stash) {
    return (AdapterUse){a->microbatch, stash};
}

static void take_adapters(const SublayerArgs *a, BranchStash *stash, int64_t tokens) {
    const Branch *branch = a->self;
    adapter_take_stash(&branch->in.adapter, a->arena, tokens, a->x.dtype, &stash->in_adapter);
    adapter_take_stash(&branch->out.adapter, a->arena, tokens, a->x.dtype, &stash->out_adapter);
}

static void in_forward(const SublayerArgs *a, const Core *core) {
    const Branch *branch = a->self;
    BranchStash *stash = a->stash;
    AdapterUse use = use_of(a, &stash->in_adapter);
    if (core->in_forward)
        core->in_forward(a);
    else
        column_linear_forward(a->context, &branch->in, &use, stash->norm.y, stash->inner, !core->fused_bias);
}

static void in_backward(const SublayerArgs *a, const Core *core, Tensor dinner, Tensor dx) {
    const Branch *branch = a->self;
    const BranchStash *stash = a->stash;
    AdapterUse use = use_of(a, &stash->in_adapter);
    if (core->in_backward)
        core->in_backward(a, dinner, dx);
    else
        column_linear_backward(a->context, &branch->in, &use, a->halves, stash->norm.y, dinner, dx);
}

// From norm.y of the stash to `core` of it.
static void core_forward(const SublayerArgs *a, const Core *core) {
    Context *c = a->context;
    const Branch *branch = a->self;
    BranchStash *stash = a->stash;
    int64_t tokens = a->microbatch->sequence * a->microbatch->samples;
    DType dtype = a->x.dtype;
    int64_t width = core->width ? core->width(a) : branch->in.weight->value.rows;
    stash->inner = tensor_take(a->arena, core->inner_name, tokens, width, dtype);
    stash->core = tensor_take(a->arena, core->core_name, tokens, branch->out.weight->value.cols, dtype);
    take_adapters(a, stash, tokens);
    if (joins_gelu(a, core)) {
        column_linear_gelu_forward(c, &branch->in, stash->norm.y, stash->inner, stash->core);
    } else {
        in_forward(a, core);
        core->forward(a);
    }
}

void branch_forward(const SublayerArgs *a, const Core *core) {
    Context *c = a->context;
    const Branch *branch = a->self;
    BranchStash *stash = a->stash;
    stash->norm = (NormStash){.x = a->x, .y = a->x};
    if (branch->norm.gamma) norm_apply(c, &branch->norm, a->x, &stash->norm, a->arena);
    if (!core->all_forward) core_forward(a, core);
    AdapterUse last = use_of(a, &stash->out_adapter);
    Tensor out = a->y;
    if (branch->post.gamma)
        out = tensor_take(a->arena, "input of the norm after", a->y.rows, a->y.cols, a->y.dtype);
    if (core->all_forward)
        core->all_forward(a, out);
    else
        row_linear_forward(c, &branch->out, &last, stash->core, out);
    if (branch->post.gamma) norm_apply_to(c, &branch->post, out, a->y, &stash->post, a->arena);
    if (branch->scale > 0)
        scale(c->device, c->stream, (Scale){.x = a->y, .y = a->y, .factor = branch->scale});
    DropoutRows rows;
    for (int i = 0; hidden_rows(a, i, &rows); i++)
        bias_dropout_add(c->device, c->stream,
                         (BiasDropoutAdd){.x = tensor_rows(a->y, rows.row, rows.count),
                                          .bias = param_value(branch->out.bias),
                                          .residual = tensor_rows(a->residual, rows.row, rows.count),
                                          .y = tensor_rows(a->y, rows.row, rows.count),
                                          .dropout = rows.dropout});
}

// Returns the gradient of what dropout reads: without dropout dy itself, unless it must outlive this call. A device
// that is not fused copies it, as most programs do: what plans price is recorded there.
static Tensor scaled_gradient(const SublayerArgs *a) {
    Context *c = a->context;
    DropoutRows rows;
    for (int i = 0; hidden_rows(a, i, &rows); i++) {
        if (rows.dropout.probability == 0 && a->halves == BOTH_HALVES && device_is_fused(c->device))
            return a->dy;
        dropout_backward(c->device, c->stream,
                         (DropoutBackward){.dy = tensor_rows(a->dy, rows.row, rows.count),
                                           .dx = tensor_rows(a->dlast, rows.row, rows.count),
                                           .dropout = rows.dropout});
    }
    return a->dlast;
}

// The tensor that the gradient of the output of `out` goes to and stays in until the weight half, where it has one.
static Tensor last_place(const SublayerArgs *a) {
    const Branch *branch = a->self;
    const BranchStash *stash = a->stash;
    return branch->post.gamma ? stash->post.x : a->dlast;
}

// Returns the gradient of the output of `out`.
static Tensor last_gradient(const SublayerArgs *a) {
    Context *c = a->context;
    const Branch *branch = a->self;
    const BranchStash *stash = a->stash;
    Tensor dy = scaled_gradient(a);
    if (branch->scale > 0) {
        scale(c->device, c->stream, (Scale){.x = dy, .y = a->dlast, .factor = branch->scale});
        dy = a->dlast;
    }
    if (!branch->post.gamma) return dy;
    norm_gradient(c, &branch->post, &stash->post, dy, (Tensor){0}, last_place(a));
    return last_place(a);
}

// Takes dlast [T', H] through `out` and the core, to the gradient of `inner`.
static void core_gradient(const SublayerArgs *a, const Core *core, Tensor dlast, Tensor dinner) {
    Context *c = a->context;
    const Branch *branch = a->self;
    const BranchStash *stash = a->stash;
    Tensor y = stash->core;
    if (joins_gelu(a, core)) {
        row_linear_gelu_backward(c, &branch->out, a->halves, y, dlast, stash->inner, dinner);
        return;
    }
    ArenaMark mark = arena_mark(c->scratch);
    Tensor dcore = tensor_take(c->scratch, core->core_gradient_name, y.rows, y.cols, y.dtype);
    AdapterUse use = use_of(a, &stash->out_adapter);
    row_linear_backward(c, &branch->out, &use, a->halves, y, dlast, dcore);
    core->backward(a, dcore, dinner);
    arena_release(c->scratch, mark);
}

static void input_half(const SublayerArgs *a, const Core *core) {
    Context *c = a->context;
    const Branch *branch = a->self;
    const BranchStash *stash = a->stash;
    Tensor dy = a->dy, dinner = stash->inner;
    ArenaMark mark = arena_mark(c->scratch);
    bool apart = core->gradient_apart && a->halves == BOTH_HALVES && device_is_fused(c->device);
    if (apart || joins_gelu(a, core))
        dinner = tensor_take(c->scratch, "gradient apart", dinner.rows, dinner.cols, dinner.dtype);
    Tensor dlast = last_gradient(a);
    if (!core->all_backward) core_gradient(a, core, dlast, dinner);
    if (dinner.data != stash->inner.data && a->halves == INPUT_HALF)
        device_copy(c->device, c->stream, stash->inner, dinner);
    Tensor dnorm = tensor_take(c->scratch, "gradient of norm", dy.rows, dy.cols, dy.dtype);
    if (core->all_backward)
        core->all_backward(a, dlast, dnorm);
    else
        in_backward(a, core, dinner, dnorm);
    if (branch->norm.gamma)
        norm_gradient(c, &branch->norm, &stash->norm, dnorm, a->dresidual, a->dx);
    else
        bias_dropout_add(c->device, c->stream,
                         (BiasDropoutAdd){.x = dnorm, .residual = a->dresidual, .y = a->dx});
    arena_release(c->scratch, mark);
}

void branch_backward(const SublayerArgs *a, const Core *core) {
    const Branch *branch = a->self;
    const BranchStash *stash = a->stash;
    if (a->halves & INPUT_HALF) {
        input_half(a, core);
        return;
    }
    if (core->all_backward) {
        core->all_backward(a, last_place(a), (Tensor){0});
        return;
    }
    row_linear_backward(a->context, &branch->out, NULL, a->halves, stash->core, last_place(a), (Tensor){0});
    in_backward(a, core, stash->inner, (Tensor){0});
}

// ---- closed forms ---------------------------------------------------------------------------------------

int64_t branch_norm_parameters(const ModelShape *s) {
    return (model_has_pre_norm(s) + model_has_post_norm(s)) * norm_parameters(s);
}

int branch_stash_terms(const ModelShape *s, const ModelMode *mode, int tp, int targets, StashTerm *terms) {
    double low = (double)adapter_width(s, targets) * stash_tokens(s, mode);
    double e = (double)dtype_bytes(mode->dtype), hidden = stash_rows(s, mode, tp) * s->hidden;
    double statistics = (s->rms_norm ? 1 : 2) * 4 * stash_rows(s, mode, tp);
    bool pre = model_has_pre_norm(s), post = model_has_post_norm(s);
    int n = 0;
    terms[n++] =
        (StashTerm){pre ? "inputs of the two norms" : "inputs of qkv and fc1", e * hidden, e * hidden, false};
    if (pre) terms[n++] = (StashTerm){"inputs of qkv and fc1", e * hidden, e * hidden, false};
    if (post) terms[n++] = (StashTerm){"inputs of the norms after", e * hidden, e * hidden, false};
    if (low > 0) terms[n++] = (StashTerm){"low-rank products", 0, e * low, false};
    terms[n++] = (StashTerm){"norm statistics, fp32", 0, (pre + post) * statistics, true};
    return n;
}
