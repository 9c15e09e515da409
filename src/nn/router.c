// The router of a layer with experts, forward and backward, with the losses that keep experts balanced, capacities
// of experts and jitter.
#include "nn/router.h"
#include "nn/declare.h"
#include <math.h>

// Of logits, or with `by_rule` of scores where experts are chosen.
static Param *declare_bias(const Builder *b, int layer, const char *name, bool by_rule) {
    ParamSpec spec = builder_spec(b, part_name(layer, "mlp.router").text, name);
    spec.rows = 1, spec.cols = b->shape->experts;
    spec.by_rule = by_rule;
    if (!by_rule) spec.reduction = builder_row_reduction(b);
    return params_declare(b->params, spec);
}

static Param *declare_weight(const Builder *b, int layer, const char *part, const char *name, int64_t rows) {
    ParamSpec spec = builder_spec(b, part_name(layer, part).text, name);
    spec.rows = rows, spec.cols = b->shape->hidden;
    spec.init = INIT_NORMAL, spec.stddev = b->shape->init_std;
    spec.decay = true;
    spec.reduction = builder_row_reduction(b);
    return params_declare(b->params, spec);
}

Router router_declare(const Builder *b, int layer) {
    const ModelShape *s = b->shape;
    Param *weight = declare_weight(b, layer, "mlp.router", "weight", s->experts);
    Param *bias = model_has_mlp_bias(s) ? declare_bias(b, layer, "bias", false) : NULL;
    return (Router){.weight = weight,
                    .bias = bias,
                    .choice = s->router_bias ? declare_bias(b, layer, ROUTER_BIAS, true) : NULL,
                    .rules = {.topk = s->experts_topk,
                              .groups = s->router_groups,
                              .group_topk = s->router_open_groups,
                              .sigmoid = s->router_sigmoid,
                              .pre_softmax = s->router_pre_softmax,
                              .scale = s->router_scale},
                    .layer = layer,
                    .jitter = rng_key(s->seed, "router jitter", (uint64_t)layer),
                    .experts = s->experts};
}

Router router_declare_gate(const Builder *b, int layer) {
    return (Router){.weight = declare_weight(b, layer, "mlp.shared_experts", SHARED_GATE, 1),
                    .rules = {.topk = 1, .sigmoid = true},
                    .layer = layer,
                    .is_gate = true,
                    .experts = 1};
}

// ---- losses ---------------------------------------------------------------------------------------------------

static bool has_losses(const Context *c, const Router *r, const Microbatch *mb) {
    return !r->is_gate && mb->training && (c->mode.router.balance > 0 || c->mode.router.z > 0);
}

// Rows of counts: a loss is of each sequence, or of all of a microbatch together.
static int64_t num_counts(const Context *c, const Microbatch *mb) {
    return c->mode.router.by_sequence ? mb->samples : 1;
}

// S*B.
static double num_tokens(const Context *c, const Microbatch *mb) {
    return (double)(mb->sequence * mb->samples * context_ranks(c, ROLE_CONTEXT));
}

// The factor of the sum of counts * sums: E / (k T^2) for the T tokens of each row of counts, and the mean over these
// rows. It makes 1 where all experts have as many tokens.   Source: Fedus 2021, equation 4, for k experts of a token.
static double balance_factor(const Context *c, const Router *r, const Microbatch *mb) {
    double rows = (double)num_counts(c, mb), tokens = num_tokens(c, mb) / rows;
    return r->experts / (r->rules.topk * tokens * tokens) / rows;
}

// Tensor ranks have a share of the rows each, or all have the same ones; then the first one's count.
static bool has_own_rows(const Context *c) {
    return c->mode.sequence_parallel || context_rank(c, ROLE_TENSOR) == 0;
}

// Notes what the losses are of this rank's rows: counts are those of all rows, so shares of a loss add up.
static void note_losses(Context *c, const Router *r, const Microbatch *mb, Tensor counts, Tensor sums) {
    enum { MOST_NUMBERS = MAX_EXPERTS + 1 };
    float chosen[MAX_EXPERTS], probabilities[MOST_NUMBERS];
    double balance = 0, z = 0;
    if (!expert_loads_count(c, mb) || !has_own_rows(c)) return;
    for (int64_t b = 0; b < counts.rows; b++) {
        device_download(c->device, c->stream, chosen, tensor_rows(counts, b, 1));
        device_download(c->device, c->stream, probabilities, tensor_rows(sums, b, 1));
        for (int e = 0; e < r->experts; e++) balance += (double)chosen[e] * (double)probabilities[e];
        z += (double)probabilities[r->experts];
    }
    *expert_load_sum(c->loads, r->layer, LOAD_BALANCE_LOSS) += balance * balance_factor(c, r, mb);
    *expert_load_sum(c->loads, r->layer, LOAD_Z_LOSS) += z / num_tokens(c, mb);
}

static void make_losses(Context *c, const Router *r, const Microbatch *mb, const Routing *routing) {
    ArenaMark mark = arena_mark(c->scratch);
    Tensor counts = routing->counts,
           sums = tensor_take(c->scratch, "sums of probabilities", counts.rows, r->experts + 1, F32);
    router_sums(c->device, c->stream,
                (RouterSums){.logits = routing->logits, .counts = counts, .sums = sums, .rules = r->rules});
    if (c->mode.sequence_parallel) tp_all_reduce(c, counts, REDUCE_SUM);
    if (context_ranks(c, ROLE_CONTEXT) > 1)
        comm_all_reduce(context_group(c, ROLE_CONTEXT), c->stream, counts, REDUCE_SUM);
    note_losses(c, r, mb, counts, sums);
    arena_release(c->scratch, mark);
}

// ---- capacity ---------------------------------------------------------------------------------------------------

bool router_drops(const Context *c, const Microbatch *mb) {
    return mb->training && c->mode.router.capacity > 0;
}

// The rows of all ranks that share the sequences, in the order of positions: x, or scratch memory.
static Tensor all_positions(Context *c, const Microbatch *mb, Tensor x) {
    int ranks = context_ranks(c, ROLE_CONTEXT);
    if (ranks == 1) return x;
    Tensor all = tensor_take(c->scratch, "rows of whole sequences", x.rows * ranks, x.cols, x.dtype);
    ArenaMark mark = arena_mark(c->scratch);
    Tensor shares = tensor_take(c->scratch, "rows by rank", all.rows, x.cols, x.dtype);
    cp_show(c, x);
    comm_all_gather(context_group(c, ROLE_CONTEXT), c->stream, x, shares);
    for (int i = 0; i < ranks * sequence_pieces(mb->cut); i++) {
        int rank = i % ranks;
        SequencePiece piece = sequence_piece(mb->cut, rank, i / ranks);
        int64_t from = rank * x.rows + piece.local * mb->samples, count = piece.count * mb->samples;
        device_copy(c->device, c->stream, tensor_rows(all, piece.first * mb->samples, count),
                    tensor_rows(shares, from, count));
    }
    arena_release(c->scratch, mark);
    return all;
}

// Of whole sequences: ranks with shares of the rows get those of all.
static void drop(Context *c, const Router *r, const Microbatch *mb, const Routing *routing) {
    const RouterTraining *training = &c->mode.router;
    ArenaMark mark = arena_mark(c->scratch);
    double mean = (double)(mb->sequence * context_ranks(c, ROLE_CONTEXT) * r->rules.topk) / r->experts;
    Tensor weights = all_positions(c, mb, tp_gather(c, routing->weights)),
           experts = all_positions(c, mb, tp_gather(c, routing->experts)), kept = routing->kept;
    bool shares = weights.rows != kept.rows;
    if (shares) kept = tensor_take(c->scratch, "experts that keep tokens", weights.rows, weights.cols, I32);
    router_drop(c->device, c->stream,
                (RouterDrop){.weights = weights,
                             .experts = experts,
                             .kept = kept,
                             .samples = mb->samples,
                             .capacity = (int64_t)ceil(mean * (double)training->capacity),
                             .by_position = training->by_position});
    DropoutRows at;
    for (int i = 0; shares && microbatch_rows(c, mb, r->jitter, 0, true, i, &at); i++)
        device_copy(c->device, c->stream, tensor_rows(routing->kept, at.row, at.count),
                    tensor_rows(kept, at.dropout.first_row, at.count));
    arena_release(c->scratch, mark);
}

// ---- jitter -----------------------------------------------------------------------------------------------------

static bool has_jitter(const Context *c, const Router *r, const Microbatch *mb) {
    return !r->is_gate && mb->training && c->mode.router.jitter > 0;
}

// y = x times the random factors of its elements.
static void apply_jitter(Context *c, const Router *r, const Microbatch *mb, Tensor x, Tensor y) {
    DropoutRows at;
    for (int i = 0; microbatch_rows(c, mb, r->jitter, 0, true, i, &at); i++)
        jitter(c->device, c->stream,
               (Jitter){.x = tensor_rows(x, at.row, at.count),
                        .y = tensor_rows(y, at.row, at.count),
                        .place = at.dropout,
                        .epsilon = c->mode.router.jitter});
}

// What the router reads of x: scratch memory, or x itself.
static Tensor router_input(Context *c, const Router *r, const Microbatch *mb, Tensor x) {
    if (!has_jitter(c, r, mb)) return x;
    Tensor y = tensor_take(c->scratch, "router input", x.rows, x.cols, x.dtype);
    apply_jitter(c, r, mb, x, y);
    return y;
}

// ---- forward and backward ---------------------------------------------------------------------------------------

void routing_take(const Context *c, const Router *r, const Microbatch *mb, Routing *routing, Arena *arena,
                  int64_t rows) {
    routing->logits = tensor_take(arena, "router logits", rows, r->experts, F32);
    routing->weights = tensor_take(arena, "expert weights", rows, r->rules.topk, F32);
    routing->experts = tensor_take(arena, "experts of tokens", rows, r->rules.topk, I32);
    routing->kept = routing->experts;
    if (!r->is_gate && router_drops(c, mb))
        routing->kept = tensor_take(arena, "experts that keep tokens", rows, r->rules.topk, I32);
    if (has_losses(c, r, mb))
        routing->counts = tensor_take(arena, "tokens of experts", num_counts(c, mb), r->experts, F32);
}

void router_choose(Context *c, const Router *r, const Microbatch *mb, Tensor x, const Routing *routing) {
    ArenaMark mark = arena_mark(c->scratch);
    matmul(c->device, c->stream,
           (Matmul){.a = router_input(c, r, mb, x),
                    .b = r->weight->value,
                    .bias = param_value(r->bias),
                    .d = routing->logits,
                    .transpose_b = true});
    router_forward(c->device, c->stream,
                   (RouterForward){.logits = routing->logits,
                                   .bias = param_value(r->choice),
                                   .weights = routing->weights,
                                   .experts = routing->experts,
                                   .rules = r->rules});
    arena_release(c->scratch, mark);
    if (!r->is_gate && router_drops(c, mb)) drop(c, r, mb, routing);
    if (has_losses(c, r, mb)) make_losses(c, r, mb, routing);
}

// The gradients of weight and bias are small enough for the input half.
void router_gradient(Context *c, const Router *r, const Microbatch *mb, const Routing *routing, Tensor x,
                     Tensor dweights, Tensor dx) {
    const RouterTraining *training = &c->mode.router;
    ArenaMark mark = arena_mark(c->scratch);
    Tensor dlogits = tensor_take(c->scratch, "gradient of router logits", x.rows, r->experts, dx.dtype),
           own = tensor_take(c->scratch, "gradient of router input", dx.rows, dx.cols, dx.dtype);
    RouterBackward backward = {.logits = routing->logits,
                               .experts = routing->experts,
                               .dweights = dweights,
                               .counts = routing->counts,
                               .dlogits = dlogits,
                               .rules = r->rules};
    if (has_losses(c, r, mb)) {
        backward.balance = (float)((double)(training->balance * mb->router_scale) * balance_factor(c, r, mb));
        backward.z = (float)((double)(training->z * mb->router_scale) / num_tokens(c, mb));
    }
    router_backward(c->device, c->stream, backward);
    if (!r->weight->frozen) {
        GradSum sum = param_grad_sum(r->weight, c->device, c->place);
        matmul(c->device, c->stream,
               (Matmul){.a = dlogits,
                        .b = router_input(c, r, mb, x),
                        .d = sum.sum,
                        .transpose_a = true,
                        .accumulate = sum.adds});
    }
    if (r->bias && !r->bias->frozen)
        column_sum(c->device, c->stream,
                   (ColumnSum){.x = dlogits, .sum = param_grad(r->bias, c->device, c->place)});
    matmul(c->device, c->stream, (Matmul){.a = dlogits, .b = r->weight->value, .d = own});
    if (has_jitter(c, r, mb)) apply_jitter(c, r, mb, own, own);
    add(c->device, c->stream, (Add){.x = own, .y = dx});
    arena_release(c->scratch, mark);
}
