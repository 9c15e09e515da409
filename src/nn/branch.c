// The frame of attention and MLP: norm, column-parallel linear, a core, row-parallel linear, dropout and residual.
#include "nn/branch.h"
#include <math.h>

Branch branch_declare(const Builder *b, int layer, const char *norm, LinearSpec in, LinearSpec out,
                      const char *dropout) {
    const ModelShape *shape = b->shape;
    PartName in_name = part_name(layer, in.name), out_name = part_name(layer, out.name);
    in.name = in_name.text, out.name = out_name.text;
    in.in = out.out = shape->hidden;
    in.stddev = shape->init_std;
    out.stddev = shape->init_std / sqrtf(2.0f * (float)shape->layers);
    Branch branch = {.hidden_dropout = shape->hidden_dropout};
    branch.hidden_key = rng_key(shape->seed, dropout, (uint64_t)layer);
    branch.norm = norm_declare(b, part_name(layer, norm).text);
    branch.in = column_linear_declare(b, in);
    branch.out = row_linear_declare(b, out);
    branch.in.float8 = branch.out.float8 = model_layer_float8(shape, b->mode, layer);
    return branch;
}

static Dropout hidden_dropout(const SublayerArgs *a) {
    const Branch *branch = a->self;
    return microbatch_dropout(a->context, a->microbatch, branch->hidden_key, branch->hidden_dropout, true);
}

void branch_forward(const SublayerArgs *a, const Core *core) {
    Context *c = a->context;
    const Branch *branch = a->self;
    BranchStash *stash = a->stash;
    int64_t tokens = a->microbatch->sequence * a->microbatch->samples;
    DType dtype = a->x.dtype;
    norm_apply(c, &branch->norm, a->x, &stash->norm, a->arena);
    stash->inner = tensor_take(a->arena, core->inner_name, tokens, branch->in.weight->value.rows, dtype);
    stash->core = tensor_take(a->arena, core->core_name, tokens, branch->out.weight->value.cols, dtype);
    column_linear_forward(c, &branch->in, stash->norm.y, stash->inner, !core->fused_bias);
    core->forward(a);
    row_linear_forward(c, &branch->out, stash->core, a->y);
    bias_dropout_add(c->device, c->stream,
                     (BiasDropoutAdd){.x = a->y,
                                      .bias = param_value(branch->out.bias),
                                      .residual = a->x,
                                      .y = a->y,
                                      .dropout = hidden_dropout(a)});
}

static void input_half(const SublayerArgs *a, const Core *core) {
    Context *c = a->context;
    const Branch *branch = a->self;
    const BranchStash *stash = a->stash;
    Tensor dy = a->dy, y = stash->core;
    ArenaMark mark = arena_mark(c->scratch);
    dropout_backward(c->device, c->stream,
                     (DropoutBackward){.dy = dy, .dx = a->dlast, .dropout = hidden_dropout(a)});
    Tensor dcore = tensor_take(c->scratch, core->core_gradient_name, y.rows, y.cols, y.dtype);
    row_linear_backward(c, &branch->out, a->halves, y, a->dlast, dcore);
    core->backward(a, dcore);
    arena_release(c->scratch, mark);
    Tensor dnorm = tensor_take(c->scratch, "gradient of norm", dy.rows, dy.cols, dy.dtype);
    column_linear_backward(c, &branch->in, a->halves, stash->norm.y, stash->inner, dnorm);
    norm_gradient(c, &branch->norm, &stash->norm, dnorm, dy, a->dx);
    arena_release(c->scratch, mark);
}

void branch_backward(const SublayerArgs *a, const Core *core) {
    const Branch *branch = a->self;
    const BranchStash *stash = a->stash;
    if (a->halves & INPUT_HALF) {
        input_half(a, core);
        return;
    }
    row_linear_backward(a->context, &branch->out, a->halves, stash->core, a->dlast, (Tensor){0});
    column_linear_backward(a->context, &branch->in, a->halves, stash->norm.y, stash->inner, (Tensor){0});
}

// ---- closed forms ---------------------------------------------------------------------------------------

int branch_stash_terms(const ModelShape *s, const ModelMode *mode, int tp, StashTerm *terms) {
    double e = (double)dtype_bytes(mode->dtype), hidden = stash_rows(s, mode, tp) * s->hidden;
    double statistics = (s->rms_norm ? 1 : 2) * 4 * stash_rows(s, mode, tp);
    terms[0] = (StashTerm){"inputs of the two norms", e * hidden, e * hidden, false};
    terms[1] = (StashTerm){"inputs of qkv and fc1", e * hidden, e * hidden, false};
    terms[2] = (StashTerm){"norm statistics, fp32", 0, statistics, true};
    return 3;
}
