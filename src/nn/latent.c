// Latent attention: the way from x to queries, keys and values, and back.
#include "nn/latent.h"
#include "nn/declare.h"
#include "nn/sublayer.h"

// ---- declaration -----------------------------------------------------------------------------------

static LinearSpec spec_of(const Builder *b, const char *name, int64_t in, int64_t out) {
    return (LinearSpec){.name = name, .in = in, .out = out, .stddev = b->shape->init_std};
}

static void declare_queries(const Builder *b, int layer, Latent *l) {
    const ModelShape *s = b->shape;
    int64_t width = (int64_t)s->heads * s->head_size;
    if (!s->q_rank) {
        PartName name = part_name(layer, "self_attention.linear_q_proj");
        l->q_up = column_linear_declare(b, spec_of(b, name.text, s->hidden, width));
        return;
    }
    PartName down = part_name(layer, "self_attention.linear_q_down_proj"),
             norm = part_name(layer, "self_attention.q_layernorm"),
             up = part_name(layer, "self_attention.linear_q_up_proj");
    l->q_down = whole_linear_declare(b, spec_of(b, down.text, s->hidden, s->q_rank));
    l->q_norm = latent_norm_declare(b, norm.text, s->q_rank);
    l->q_up = column_linear_declare(b, spec_of(b, up.text, s->q_rank, width));
}

Latent latent_declare(const Builder *b, int layer) {
    const ModelShape *s = b->shape;
    Latent l = {0};
    if (!model_is_latent(s)) return l;
    l.rotated = s->rotary_columns, l.plain = s->head_size - s->rotary_columns;
    l.values = model_value_size(s), l.columns = model_core_columns(s);
    declare_queries(b, layer, &l);
    PartName down = part_name(layer, "self_attention.linear_kv_down_proj"),
             norm = part_name(layer, "self_attention.kv_layernorm"),
             up = part_name(layer, "self_attention.linear_kv_up_proj");
    l.kv_down = whole_linear_declare(b, spec_of(b, down.text, s->hidden, s->kv_rank + l.rotated));
    l.kv_norm = latent_norm_declare(b, norm.text, s->kv_rank);
    l.kv_up = column_linear_declare(b, spec_of(b, up.text, s->kv_rank, s->heads * (l.plain + l.values)));
    return l;
}

int64_t latent_heads(const Latent *l) { return l->kv_up.weight->value.rows / (l->plain + l->values); }

// ---- columns of heads --------------------------------------------------------------------------------

static int64_t query_size(const Latent *l) { return l->plain + l->rotated; }
static int64_t up_size(const Latent *l) { return l->plain + l->values; }

// The columns of a head of qkv: query, key, value.
static void join_heads(Context *c, const Latent *l, Tensor q, Tensor up, Tensor rotated, Tensor qkv) {
    int64_t qk = query_size(l), of_up = up_size(l), d = l->columns;
    arrange_columns(c->device, c->stream,
                    (ArrangeColumns){.a = q,
                                     .b = up,
                                     .c = rotated,
                                     .y = qkv,
                                     .blocks = latent_heads(l),
                                     .pieces = {{SOURCE_A, 1, l->rotated, l->plain, qk, 0},
                                                {SOURCE_A, 1, l->plain, 0, qk, 0},
                                                {SOURCE_ZEROS, 1, d - qk, 0, 0, 0},
                                                {SOURCE_C, 1, l->rotated, 0, 0, 0},
                                                {SOURCE_B, 1, l->plain, 0, of_up, 0},
                                                {SOURCE_ZEROS, 1, d - qk, 0, 0, 0},
                                                {SOURCE_B, 1, l->values, l->plain, of_up, 0},
                                                {SOURCE_ZEROS, 1, d - l->values, 0, 0, 0}}});
}

// The gradients of queries, and of keys and values, of those of qkv.
static void split_heads(Context *c, const Latent *l, Tensor dqkv, Tensor dq, Tensor dup) {
    int64_t d = l->columns, heads = latent_heads(l);
    arrange_columns(c->device, c->stream,
                    (ArrangeColumns){.a = dqkv,
                                     .y = dq,
                                     .blocks = heads,
                                     .pieces = {{SOURCE_A, 1, l->plain, l->rotated, 3 * d, 0},
                                                {SOURCE_A, 1, l->rotated, 0, 3 * d, 0}}});
    arrange_columns(c->device, c->stream,
                    (ArrangeColumns){.a = dqkv,
                                     .y = dup,
                                     .blocks = heads,
                                     .pieces = {{SOURCE_A, 1, l->plain, d + l->rotated, 3 * d, 0},
                                                {SOURCE_A, 1, l->values, 2 * d, 3 * d, 0}}});
}

// The gradient of what ends the keys of all heads, those of other tp ranks included.
static void sum_rotated(Context *c, const Latent *l, Tensor dqkv, Tensor drotated) {
    ArenaMark mark = arena_mark(c->scratch);
    Tensor partial = tp_reduce_begin(c, drotated);
    arrange_columns(c->device, c->stream,
                    (ArrangeColumns){.a = dqkv,
                                     .y = partial,
                                     .blocks = 1,
                                     .pieces = {{SOURCE_A, (int)latent_heads(l), l->rotated, l->columns, 0,
                                                 3 * l->columns}}});
    tp_reduce_end(c, partial, drotated);
    arena_release(c->scratch, mark);
}

void latent_widen(Context *c, const Latent *l, Tensor narrow, Tensor wide) {
    arrange_columns(c->device, c->stream,
                    (ArrangeColumns){.a = narrow,
                                     .y = wide,
                                     .blocks = latent_heads(l),
                                     .pieces = {{SOURCE_A, 1, l->values, 0, l->values, 0},
                                                {SOURCE_ZEROS, 1, l->columns - l->values, 0, 0, 0}}});
}

void latent_narrow(Context *c, const Latent *l, Tensor wide, Tensor narrow) {
    arrange_columns(c->device, c->stream,
                    (ArrangeColumns){.a = wide,
                                     .y = narrow,
                                     .blocks = latent_heads(l),
                                     .pieces = {{SOURCE_A, 1, l->values, 0, l->columns, 0}}});
}

// ---- forward, backward -------------------------------------------------------------------------------

// Computes both parts of kv_down: the latent of keys and values, and what ends the keys.
static void down(Context *c, const Latent *l, Tensor x, LatentStash *stash, Arena *arena) {
    int64_t rank = l->kv_up.weight->value.cols;
    stash->kv.x = tensor_take(arena, "latent of keys, values", x.rows, rank, x.dtype);
    stash->rotated = tensor_take(arena, "rotated columns of keys", x.rows, l->rotated, x.dtype);
    ArenaMark mark = arena_mark(c->scratch);
    Tensor both = tensor_take(c->scratch, "down projection", x.rows, rank + l->rotated, x.dtype);
    linear_forward(c, &l->kv_down, x, (Tensor){0}, both);
    arrange_columns(
        c->device, c->stream,
        (ArrangeColumns){.a = both, .y = stash->kv.x, .blocks = 1, .pieces = {{SOURCE_A, 1, rank, 0, 0, 0}}});
    arrange_columns(
        c->device, c->stream,
        (ArrangeColumns){
            .a = both, .y = stash->rotated, .blocks = 1, .pieces = {{SOURCE_A, 1, l->rotated, rank, 0, 0}}});
    arena_release(c->scratch, mark);
}

// What the up projection of queries reads.
static Tensor query_input(const Latent *l, const LatentStash *stash, Tensor x) {
    return l->q_down.weight ? stash->q.y : x;
}

void latent_forward(Context *c, const Latent *l, Tensor x, Tensor qkv, LatentStash *stash, Arena *arena) {
    if (l->q_down.weight) {
        Tensor latent =
            tensor_take(arena, "latent of queries", x.rows, l->q_down.weight->value.rows, x.dtype);
        linear_forward(c, &l->q_down, x, (Tensor){0}, latent);
        norm_apply(c, &l->q_norm, latent, &stash->q, arena);
    }
    down(c, l, x, stash, arena);
    norm_apply(c, &l->kv_norm, stash->kv.x, &stash->kv, arena);
    ArenaMark mark = arena_mark(c->scratch);
    int64_t heads = latent_heads(l);
    Tensor q = tensor_take(c->scratch, "queries", qkv.rows, heads * query_size(l), x.dtype);
    Tensor up = tensor_take(c->scratch, "keys, values", qkv.rows, heads * up_size(l), x.dtype);
    column_linear_forward(c, &l->q_up, NULL, query_input(l, stash, x), q, true);
    column_linear_forward(c, &l->kv_up, NULL, stash->kv.y, up, true);
    join_heads(c, l, q, up, tp_gather(c, stash->rotated), qkv);
    arena_release(c->scratch, mark);
}

// The gradient of a latent before its norm takes its place.
static void through_norm(Context *c, const Norm *norm, const NormStash *stash, Tensor dlatent) {
    norm_gradient(c, norm, stash, dlatent, (Tensor){0}, stash->x);
}

// From the gradient of queries to `dx`.
static void queries_backward(Context *c, const Latent *l, Halves halves, Tensor x, const LatentStash *stash,
                             Tensor dq, Tensor dx) {
    Tensor dlatent = dx, latent = stash->q.x;
    if (!l->q_down.weight) {
        column_linear_backward(c, &l->q_up, NULL, halves, x, dq, dx);
        return;
    }
    if (halves & INPUT_HALF)
        dlatent = tensor_take(c->scratch, "gradient of a latent", latent.rows, latent.cols, latent.dtype);
    column_linear_backward(c, &l->q_up, NULL, halves, stash->q.y, dq, dlatent);
    if (halves & INPUT_HALF) through_norm(c, &l->q_norm, &stash->q, dlatent);
    whole_linear_backward(c, &l->q_down, halves, x, latent, dx);
}

// From the gradient of keys and values, and that of what ends the keys, to `dx`.
static void keys_backward(Context *c, const Latent *l, Halves halves, Tensor x, const LatentStash *stash,
                          Tensor dup, Tensor dx) {
    Tensor dlatent = {0}, latent = stash->kv.x, rotated = stash->rotated;
    if (halves & INPUT_HALF)
        dlatent = tensor_take(c->scratch, "gradient of a latent", latent.rows, latent.cols, latent.dtype);
    column_linear_backward(c, &l->kv_up, NULL, halves, stash->kv.y, dup, dlatent);
    if (halves & INPUT_HALF) through_norm(c, &l->kv_norm, &stash->kv, dlatent);
    Tensor both = tensor_take(c->scratch, "gradient of the down projection", latent.rows,
                              latent.cols + rotated.cols, latent.dtype);
    arrange_columns(c->device, c->stream,
                    (ArrangeColumns){.a = latent,
                                     .b = rotated,
                                     .y = both,
                                     .blocks = 1,
                                     .pieces = {{SOURCE_A, 1, latent.cols, 0, 0, 0},
                                                {SOURCE_B, 1, rotated.cols, 0, 0, 0}}});
    whole_linear_backward(c, &l->kv_down, halves, x, both, dx);
}

// The weight half makes the gradients of the heads again of dqkv, which outlives the input half, and reads those of the
// latents where that left them.
void latent_backward(Context *c, const Latent *l, Halves halves, Tensor x, const LatentStash *stash,
                     Tensor dqkv, Tensor dx) {
    ArenaMark mark = arena_mark(c->scratch);
    int64_t heads = latent_heads(l);
    Tensor dq = tensor_take(c->scratch, "gradient of queries", dqkv.rows, heads * query_size(l), x.dtype);
    Tensor dup = tensor_take(c->scratch, "gradient of keys, values", dqkv.rows, heads * up_size(l), x.dtype);
    split_heads(c, l, dqkv, dq, dup);
    Tensor of_keys = {0};
    if (halves & INPUT_HALF) {
        sum_rotated(c, l, dqkv, stash->rotated);
        of_keys = tensor_take(c->scratch, "gradient of the input by keys", dx.rows, dx.cols, dx.dtype);
    }
    queries_backward(c, l, halves, x, stash, dq, dx);
    keys_backward(c, l, halves, x, stash, dup, of_keys);
    if (halves & INPUT_HALF) add(c->device, c->stream, (Add){.x = of_keys, .y = dx});
    arena_release(c->scratch, mark);
}

// ---- closed forms ---------------------------------------------------------------------------------------

static int64_t query_weights(const ModelShape *s, int64_t *whole) {
    int64_t width = (int64_t)s->heads * s->head_size;
    *whole = (int64_t)s->hidden * s->q_rank;
    return s->q_rank ? s->q_rank * width : s->hidden * width;
}

static int64_t up_weights(const ModelShape *s) {
    return (int64_t)s->kv_rank * s->heads * (s->head_size - s->rotary_columns + model_value_size(s));
}

ParamCount latent_parameters(const ModelShape *s) {
    int64_t whole, cut = query_weights(s, &whole) + up_weights(s);
    whole += (int64_t)s->hidden * (s->kv_rank + s->rotary_columns);
    whole += (s->rms_norm ? 1 : 2) * ((int64_t)s->q_rank + s->kv_rank);
    return (ParamCount){.cut = cut, .whole = whole};
}

double latent_weights(const ModelShape *s) {
    ParamCount all = latent_parameters(s);
    return (double)(all.cut + all.whole) - (s->rms_norm ? 1 : 2) * ((double)s->q_rank + s->kv_rank);
}

int latent_stash_terms(const ModelShape *s, const ModelMode *mode, int tp, StashTerm *out) {
    double e = (double)dtype_bytes(mode->dtype), rows = stash_rows(s, mode, tp);
    double latents = e * rows * (s->q_rank + s->kv_rank), rotated = e * rows * s->rotary_columns;
    double statistics = (s->rms_norm ? 1 : 2) * 4 * rows * (s->q_rank ? 2 : 1);
    int n = 0;
    out[n++] = (StashTerm){"latents, rotated columns of keys", latents + rotated, latents + rotated, false};
    out[n++] = (StashTerm){"normalised latents", latents, latents, false};
    out[n++] = (StashTerm){"norm statistics, fp32", 0, statistics, true};
    return n;
}
