// The attention sublayer: norm, queries, keys and values, the attention core, the output projection.
#include "nn/adapter.h"
#include "nn/branch.h"
#include "nn/declare.h"
#include "nn/latent.h"
#include "nn/qk_norm.h"
#include "nn/shared_attention.h"

typedef struct {
    Branch branch;                      // in: qkv, its rows ordered by groups (AttentionShape), cut by groups
    Latent latent;                      // what makes qkv where `in` has no weight
    int64_t heads_per_group, head_size; // N/G, D: the columns of a head that the core reads
    int64_t value_size;                 // the columns of a head of its output
    AttentionRules rules;
    Param *sinks;        // a logit for each head, [1, N/t]; NULL: none
    Tensor keys, values; // the cache, [positions * B, G/t * D]; absent: cached microbatches cannot come
    QkNorms norms;
    float dropout; // of probabilities
    RngKey key;
} Attention;

typedef struct {
    BranchStash branch; // inner: qkv [T, (N + 2G)/t * D]; core: [T, H/t]
    LatentStash latents;
    QkNormStash norms;    // what the core reads instead of qkv, where queries and keys are normalised
    Tensor stats;         // F32 [B*N/t, S/c]; absent where the core is recomputed
    Tensor probabilities; // [B*N/t * S/c, S]; absent unless the mode keeps them
} AttentionStash;

static int64_t qkv_width(const ModelShape *s) {
    return ((int64_t)s->heads + 2 * model_groups(s)) * model_core_columns(s);
}

static int64_t output_width(const ModelShape *s) { return (int64_t)s->heads * model_value_size(s); }

static Param *declare_sinks(const Builder *b, int layer) {
    ParamSpec spec = builder_spec(b, part_name(layer, "self_attention.core_attention").text, SOFTMAX_OFFSET);
    spec.rows = 1, spec.cols = b->shape->heads, spec.cut.dim = 1;
    spec.init = INIT_NORMAL, spec.stddev = b->shape->init_std;
    return params_declare(b->params, spec);
}

static AttentionRules layer_rules(const ModelShape *shape, int layer) {
    return (AttentionRules){.window = model_window(shape, layer),
                            .scale = (float)model_softmax_scale(shape),
                            .cap = (float)shape->softmax_cap,
                            .off_by_one = shape->softmax == SOFTMAX_OFF_BY_ONE};
}

static LinearSpec qkv_spec(const ModelShape *s) {
    int each = s->heads / model_groups(s);
    int64_t head_size = s->head_size;
    return (LinearSpec){.name = "self_attention.linear_qkv",
                        .out = qkv_width(s),
                        .bias = model_has_qkv_bias(s),
                        .matrices = {each * head_size, head_size, head_size},
                        .parts = {{LORA_NUMBER_QKV, .own = 1},
                                  {LORA_NUMBER_Q, 0, each, each + 2, head_size},
                                  {LORA_NUMBER_K, each, 1, each + 2, head_size},
                                  {LORA_NUMBER_V, each + 1, 1, each + 2, head_size}}};
}

static LinearSpec proj_spec(const ModelShape *s) {
    return (LinearSpec){.name = "self_attention.linear_proj",
                        .in = output_width(s),
                        .bias = model_has_proj_bias(s),
                        .parts = {{LORA_NUMBER_PROJ, .own = 1}}};
}

static void declare(const Builder *b, int layer, void *self) {
    const ModelShape *shape = b->shape;
    Attention *a = self;
    LinearSpec qkv = model_is_latent(shape) ? (LinearSpec){0} : qkv_spec(shape), proj = proj_spec(shape);
    a->branch = branch_declare(b, layer, "input_layernorm", "post_self_attn_layernorm", qkv, proj,
                               "attention output dropout");
    a->latent = latent_declare(b, layer);
    a->norms = qk_norm_declare(b, layer);
    a->rules = layer_rules(shape, layer);
    a->sinks = shape->softmax == SOFTMAX_SINKS ? declare_sinks(b, layer) : NULL;
    a->dropout = shape->attention_dropout;
    a->key = rng_key(shape->seed, "attention dropout", (uint64_t)layer);
    a->heads_per_group = shape->heads / model_groups(shape);
    a->head_size = model_core_columns(shape), a->value_size = model_value_size(shape);
}

// The groups whose heads the local columns of the projection read.
static int64_t local_groups(const Attention *a) {
    return a->branch.out.weight->value.cols / (a->heads_per_group * a->value_size);
}

static void place_cache(void *self, Arena *arena, int64_t positions, int64_t samples) {
    Attention *a = self;
    int64_t rows = positions * samples, width = local_groups(a) * a->head_size;
    a->keys = tensor_take(arena, "cached keys", rows, width, a->branch.out.weight->value.dtype);
    a->values = tensor_take(arena, "cached values", rows, width, a->branch.out.weight->value.dtype);
}

static AttentionShape local_shape(const SublayerArgs *args) {
    const Attention *a = args->self;
    int64_t groups = local_groups(a);
    int64_t heads = groups * a->heads_per_group;
    return (AttentionShape){.batch = args->microbatch->samples,
                            .sequence = args->microbatch->sequence,
                            .heads = heads,
                            .groups = groups,
                            .head_size = a->head_size,
                            .first_head = heads * context_rank(args->context, ROLE_TENSOR)};
}

static Dropout attention_dropout(const SublayerArgs *args) {
    const Attention *a = args->self;
    return microbatch_dropout(args->microbatch, a->key, a->dropout);
}

// Rotates tokens by positions of their own: as one sequence of all tokens, with a row of the table gathered for each.
static void rotate_by_positions(const SublayerArgs *args, Tensor qkv, AttentionShape shape, bool inverse) {
    Context *c = args->context;
    ArenaMark mark = arena_mark(c->scratch);
    Tensor positions = args->microbatch->positions;
    Tensor rows =
        tensor_take(c->scratch, "rotary rows of tokens", positions.cols, args->rotary_table.cols, F32);
    embedding_forward(c->device, c->stream,
                      (EmbeddingForward){.tokens = positions, .table = args->rotary_table, .y = rows});
    shape.sequence *= shape.batch, shape.batch = 1;
    rotary(c->device, c->stream, (Rotary){.table = rows, .qkv = qkv, .shape = shape, .inverse = inverse});
    arena_release(c->scratch, mark);
}

static void rotate(const SublayerArgs *args, Tensor qkv, AttentionShape shape, bool inverse) {
    if (!args->rotary_table.data) return;
    if (args->microbatch->positions.data) {
        rotate_by_positions(args, qkv, shape, inverse);
        return;
    }
    Tensor table = tensor_rows(args->rotary_table, args->microbatch->position, shape.sequence);
    rotary(args->context->device, args->context->stream,
           (Rotary){.table = table, .qkv = qkv, .shape = shape, .inverse = inverse});
}

// What the core reads.
static Tensor core_input(const AttentionStash *stash) {
    return stash->norms.normed.data ? stash->norms.normed : stash->branch.inner;
}

// ---- the core: scores, softmax, dropout, values -----------------------------------------------------

// Allocates the activations that the core keeps for its backward in addition to its input and output.
static void take_core_stash(const Context *c, AttentionShape shape, AttentionStash *stash, Arena *arena) {
    int64_t heads = shape.batch * shape.heads;
    stash->stats = tensor_take(arena, "attention log-sum-exp", heads, shape.sequence, F32);
    if (c->mode.keep_probabilities)
        stash->probabilities =
            tensor_take(arena, "attention probabilities", heads * shape.sequence,
                        shape.sequence * context_ranks(c, ROLE_CONTEXT), stash->branch.inner.dtype);
}

// What the core writes is wider than the input of the projection where values are narrower than keys.
static bool has_narrow_values(const SublayerArgs *args) {
    const Attention *a = args->self;
    return a->value_size < a->head_size;
}

static Tensor take_wide(const SublayerArgs *args, Tensor narrow, AttentionShape shape) {
    return tensor_take(args->context->scratch, "attention output, wide", narrow.rows,
                       shape.heads * shape.head_size, narrow.dtype);
}

static Tensor widened(const SublayerArgs *args, Tensor narrow, AttentionShape shape) {
    const Attention *a = args->self;
    if (!has_narrow_values(args)) return narrow;
    Tensor wide = take_wide(args, narrow, shape);
    latent_widen(args->context, &a->latent, narrow, wide);
    return wide;
}

// Returns where the core writes its output; finish_output makes the input of the projection of it.
static Tensor begin_output(const SublayerArgs *args, const AttentionStash *stash, AttentionShape shape) {
    return has_narrow_values(args) ? take_wide(args, stash->branch.core, shape) : stash->branch.core;
}

static void finish_output(const SublayerArgs *args, const AttentionStash *stash, Tensor out) {
    const Attention *a = args->self;
    if (has_narrow_values(args)) latent_narrow(args->context, &a->latent, out, stash->branch.core);
}

static void compute(const SublayerArgs *args, const AttentionStash *stash, AttentionShape shape) {
    const Attention *a = args->self;
    Context *c = args->context;
    ArenaMark mark = arena_mark(c->scratch);
    Tensor out = begin_output(args, stash, shape);
    shared_attention_forward(c, args->microbatch,
                             (AttentionForward){.qkv = core_input(stash),
                                                .first_key = args->microbatch->first_key,
                                                .sinks = param_value(a->sinks),
                                                .rules = a->rules,
                                                .out = out,
                                                .stats = stash->stats,
                                                .probabilities = stash->probabilities,
                                                .shape = shape,
                                                .dropout = attention_dropout(args)});
    finish_output(args, stash, out);
    arena_release(c->scratch, mark);
}

static void compute_stashed(const SublayerArgs *args, AttentionShape shape) {
    Context *c = args->context;
    AttentionStash *stash = args->stash, with_core = *stash;
    bool recomputed = c->mode.recompute == RECOMPUTE_SELECTIVE;
    ArenaMark mark = arena_mark(c->scratch);
    take_core_stash(c, shape, &with_core, recomputed ? c->scratch : args->arena);
    if (recomputed) with_core.probabilities = (Tensor){0};
    compute(args, &with_core, shape);
    if (!recomputed) *stash = with_core;
    if (recomputed) arena_release(c->scratch, mark);
}

static void compute_cached(const SublayerArgs *args, AttentionShape shape) {
    const Attention *a = args->self;
    const AttentionStash *stash = args->stash;
    int64_t position = args->microbatch->position, rows = (position + shape.sequence) * shape.batch;
    ArenaMark mark = arena_mark(args->context->scratch);
    Tensor out = begin_output(args, stash, shape);
    attention_cached(args->context->device, args->context->stream,
                     (AttentionCached){.qkv = core_input(stash),
                                       .sinks = param_value(a->sinks),
                                       .rules = a->rules,
                                       .out = out,
                                       .keys = tensor_rows(a->keys, 0, rows),
                                       .values = tensor_rows(a->values, 0, rows),
                                       .shape = shape,
                                       .position = position});
    finish_output(args, stash, out);
    arena_release(args->context->scratch, mark);
}

static void core_forward(const SublayerArgs *args) {
    const Attention *a = args->self;
    AttentionStash *stash = args->stash;
    AttentionShape shape = local_shape(args);
    if (a->norms.query)
        qk_norm_apply(args->context, &a->norms, stash->branch.inner, shape, &stash->norms, args->arena);
    rotate(args, core_input(stash), shape, false);
    if (args->microbatch->cached)
        compute_cached(args, shape);
    else
        compute_stashed(args, shape);
}

// The gradient of the sinks goes nowhere where they are frozen.
static Tensor gradient_of_sinks(Context *c, Param *sinks) {
    if (!sinks || !sinks->frozen) return param_grad(sinks, c->device, c->place);
    Tensor unused = tensor_take(c->scratch, "gradient of frozen sinks", 1, sinks->value.cols, F32);
    device_zero(c->device, c->stream, unused);
    return unused;
}

// With norms of queries and keys the gradient of what the core read takes its place.
static void core_backward(const SublayerArgs *args, Tensor dout, Tensor dqkv) {
    const Attention *a = args->self;
    Context *c = args->context;
    AttentionShape shape = local_shape(args);
    AttentionStash stash = *(const AttentionStash *)args->stash;
    Tensor qkv = core_input(&stash), dcore = a->norms.query ? qkv : dqkv;
    if (!stash.stats.data) {
        take_core_stash(c, shape, &stash, c->scratch);
        compute(args, &stash, shape);
    }
    shared_attention_backward(c, args->microbatch,
                              (AttentionBackward){.dout = widened(args, dout, shape),
                                                  .qkv = qkv,
                                                  .out = widened(args, stash.branch.core, shape),
                                                  .stats = stash.stats,
                                                  .probabilities = stash.probabilities,
                                                  .first_key = args->microbatch->first_key,
                                                  .sinks = param_value(a->sinks),
                                                  .dqkv = dcore,
                                                  .dsinks = gradient_of_sinks(c, a->sinks),
                                                  .rules = a->rules,
                                                  .shape = shape,
                                                  .dropout = attention_dropout(args)});
    rotate(args, dcore, shape, true);
    if (a->norms.query) qk_norm_gradient(c, &a->norms, stash.branch.inner, shape, &stash.norms, dcore, dqkv);
}

static const Core core = {.inner_name = "qkv",
                          .core_name = "attention output",
                          .core_gradient_name = "gradient of attention output",
                          .gradient_apart = true,
                          .forward = core_forward,
                          .backward = core_backward};

static int64_t latent_width(const SublayerArgs *args) {
    AttentionShape shape = local_shape(args);
    return 3 * shape.heads * shape.head_size;
}

static void latents_forward(const SublayerArgs *args) {
    const Attention *a = args->self;
    AttentionStash *stash = args->stash;
    latent_forward(args->context, &a->latent, stash->branch.norm.y, stash->branch.inner, &stash->latents,
                   args->arena);
}

static void latents_backward(const SublayerArgs *args, Tensor dqkv, Tensor dx) {
    const Attention *a = args->self;
    const AttentionStash *stash = args->stash;
    latent_backward(args->context, &a->latent, args->halves, stash->branch.norm.y, &stash->latents, dqkv, dx);
}

static const Core latent_core = {.inner_name = "qkv",
                                 .core_name = "attention output",
                                 .core_gradient_name = "gradient of attention output",
                                 .gradient_apart = true,
                                 .width = latent_width,
                                 .in_forward = latents_forward,
                                 .in_backward = latents_backward,
                                 .forward = core_forward,
                                 .backward = core_backward};

static const Core *core_of(const SublayerArgs *args) {
    const Attention *a = args->self;
    return a->branch.in.weight ? &core : &latent_core;
}

static void forward(const SublayerArgs *args) { branch_forward(args, core_of(args)); }
static void backward(const SublayerArgs *args) { branch_backward(args, core_of(args)); }

// ---- closed forms -----------------------------------------------------------------------------------------

static ParamCount parameters(const ModelShape *s) {
    int64_t h = s->hidden, qkv = qkv_width(s), sinks = s->softmax == SOFTMAX_SINKS ? s->heads : 0;
    ParamCount count = {.cut = h * output_width(s) + sinks,
                        .whole = branch_norm_parameters(s) + (model_has_proj_bias(s) ? h : 0)};
    if (model_is_latent(s)) {
        ParamCount latents = latent_parameters(s);
        return (ParamCount){count.cut + latents.cut, count.whole + latents.whole};
    }
    count.cut += h * qkv + (model_has_qkv_bias(s) ? qkv : 0) + qk_norm_parameters(s, true);
    count.whole += qk_norm_parameters(s, false);
    return count;
}

// Two for each weight, and Q K^T and P V in full, but for what windows hide. Documents count as one.
static double flops(const ModelShape *s) {
    double width = (double)output_width(s), queries = (double)s->heads * s->head_size;
    double inputs = model_is_latent(s) ? latent_weights(s) : s->hidden * (double)qkv_width(s);
    return 2 * (inputs + s->hidden * width) + 2 * s->sequence * (queries + width) * model_visible_share(s);
}

// The published terms assume 16 bits; in another element type those of activations grow with it, masks do not.
static int stash_terms(const ModelShape *s, const ModelMode *mode, int tp, StashTerm *out) {
    double e = (double)dtype_bytes(mode->dtype), t = tp, tokens = stash_tokens(s, mode);
    double hidden = stash_rows(s, mode, tp) * s->hidden, width = (double)output_width(s);
    double qkv = tokens * (double)qkv_width(s) / t;
    double square = tokens * s->heads * s->sequence / t; // elements of the S x S matrices
    bool keeps = mode->recompute != RECOMPUTE_SELECTIVE; // the activations inside the core
    const StashTerm terms[] = {
        {"queries, keys, values", e * qkv, e * qkv, false},
        {"softmax output", keeps ? e * square : 0, keeps && mode->keep_probabilities ? e * square : 0, false},
        {"softmax dropout mask", keeps ? square : 0, 0, false},
        {"softmax dropout output", keeps ? e * square : 0, 0, false},
        {"attention output", e * tokens * width / t, e * tokens * width / t, false},
        {"attention dropout mask", hidden, 0, false},
        {"softmax statistics, fp32", 0, keeps ? 4 * tokens * s->heads / t : 0, true},
    };
    int n = branch_stash_terms(s, mode, tp, LORA_QKV | LORA_Q | LORA_K | LORA_V | LORA_PROJ, out);
    for (size_t i = 0; i < sizeof terms / sizeof terms[0]; i++) out[n++] = terms[i];
    if (model_is_latent(s)) return n + latent_stash_terms(s, mode, tp, out + n);
    if (s->qk_norm == QK_NORM_NONE) return n;
    double heads = (double)s->heads + model_groups(s);
    out[n++] = (StashTerm){"normalised queries, keys", e * qkv, e * qkv, false};
    out[n++] = (StashTerm){"queries' and keys' statistics", 0, 4 * tokens * heads / t, true};
    return n;
}

const SublayerKind attention_sublayer = {.self_bytes = sizeof(Attention),
                                         .stash_bytes = sizeof(AttentionStash),
                                         .has_weights = true,
                                         .declare = declare,
                                         .place_cache = place_cache,
                                         .forward = forward,
                                         .backward = backward,
                                         .parameters = parameters,
                                         .flops = flops,
                                         .stash_terms = stash_terms};
