// The experts sublayer, in the place of an MLP: norm, router, experts, and shared experts that every token goes to.
//
// A rank routes its own rows. Where a tensor rank has a part of every expert, it then has the rows of all of them.
// Pairs of a token and an expert are sorted by expert, so that an expert's rows follow each other, and each expert's
// products are those of a range of rows, on this rank or on another one (nn/expert_rounds.h). What the experts made of
// a token is added up in the order of its choices. How many rows an expert gets is known on the host alone where the
// device computes; memory depends on the number of pairs.
#include "nn/branch.h"
#include "nn/declare.h"
#include "nn/expert_rounds.h"
#include <math.h>
#include <string.h>

typedef struct {
    Branch branch;         // without linear layers
    Param *router;         // [E, H]
    ExpertWeights weights; // without the number of this rank's experts
    int experts;           // E
    RouterRules rules;
    MlpActivation activation;
    Linear shared_in, shared_out; // without weights: there are no shared experts
} Experts;

// Rows T' are this rank's, T those that it gives to its part of the experts; n = T * k pairs.
typedef struct {
    BranchStash branch;
    Tensor logits, weights, experts; // F32 [T', E], F32 and I32 [T', k]
    Tensor all_weights;              // F32 [T, k]: the weights of all T rows
    Tensor positions, order;         // I32 [T, k], [1, n]
    ExpertsKept kept;
    Tensor shared_inner, shared_core; //
} ExpertsStash;

// ---- declaration ------------------------------------------------------------------------------------------

// The matrices of all experts, one after the other along the rows: each `rows` x `cols`, cut over etp.
static Param *declare_weights(const Builder *b, int layer, const char *name, int64_t rows, int64_t cols,
                              float stddev, Cut cut) {
    ParamSpec spec = builder_spec(b, part_name(layer, name).text, "weight");
    spec.experts = b->shape->experts;
    spec.rows = spec.experts * rows, spec.cols = cols;
    spec.cut = cut;
    spec.init = INIT_NORMAL, spec.stddev = stddev;
    spec.decay = true;
    spec.matrices[0] = 1;
    return params_declare(b->params, spec);
}

static Param *declare_router(const Builder *b, int layer) {
    ParamSpec spec = builder_spec(b, part_name(layer, "mlp.router").text, "weight");
    spec.rows = b->shape->experts, spec.cols = b->shape->hidden;
    spec.init = INIT_NORMAL, spec.stddev = b->shape->init_std;
    spec.decay = true;
    spec.reduction = builder_row_reduction(b);
    return params_declare(b->params, spec);
}

static float output_stddev(const ModelShape *s) { return s->init_std / sqrtf(2.0f * (float)s->layers); }

static void declare_shared(const Builder *b, int layer, Experts *m) {
    const ModelShape *s = b->shape;
    PartName in = part_name(layer, "mlp.shared_experts.linear_fc1"),
             out = part_name(layer, "mlp.shared_experts.linear_fc2");
    m->shared_in = column_linear_declare(b, (LinearSpec){.name = in.text,
                                                         .in = s->hidden,
                                                         .out = activation_inputs(s, s->shared_ffn),
                                                         .stddev = s->init_std,
                                                         .blocks = model_is_gated(s) ? 2 : 1});
    m->shared_out = row_linear_declare(
        b, (LinearSpec){.name = out.text, .in = s->shared_ffn, .out = s->hidden, .stddev = output_stddev(s)});
}

static void declare(const Builder *b, int layer, void *self) {
    const ModelShape *s = b->shape;
    Experts *m = self;
    m->branch = branch_declare(b, layer, "pre_mlp_layernorm", "post_mlp_layernorm", (LinearSpec){0},
                               (LinearSpec){0}, "mlp output dropout");
    m->experts = s->experts;
    m->rules = (RouterRules){.topk = s->experts_topk,
                             .groups = s->router_groups,
                             .group_topk = s->router_open_groups,
                             .sigmoid = s->router_sigmoid,
                             .pre_softmax = s->router_pre_softmax,
                             .scale = s->router_scale};
    m->activation = activation_of(s);
    m->router = declare_router(b, layer);
    Cut rows = {.dim = 0, .blocks = model_is_gated(s) ? 2 : 1}, cols = {.dim = 1};
    m->weights.activation = m->activation;
    m->weights.fc1 = declare_weights(b, layer, "mlp.experts.linear_fc1", activation_inputs(s, s->expert_ffn),
                                     s->hidden, s->init_std, rows);
    m->weights.fc2 =
        declare_weights(b, layer, "mlp.experts.linear_fc2", s->hidden, s->expert_ffn, output_stddev(s), cols);
    if (s->shared_ffn) declare_shared(b, layer, m);
}

// ---- rows of the tensor ranks that share each expert --------------------------------------------------------

static bool is_shared(const Context *c) { return context_ranks(c, ROLE_EXPERT_TENSOR) > 1; }

static Tensor gather(Context *c, Tensor share) { return is_shared(c) ? tp_gather(c, share) : share; }

static Tensor reduce_begin(Context *c, Tensor result) {
    return is_shared(c) ? tp_reduce_begin(c, result) : result;
}

static void reduce_end(Context *c, Tensor partial, Tensor result) {
    if (is_shared(c)) tp_reduce_end(c, partial, result);
}

// T of a rank's T' rows.
static int64_t all_rows(const Context *c, int64_t rows) {
    return is_shared(c) && c->mode.sequence_parallel ? rows * context_ranks(c, ROLE_TENSOR) : rows;
}

// ---- rows by expert -----------------------------------------------------------------------------------------

// Of so many pairs of this rank.
static Dispatch dispatch_for(const Context *c, const Experts *m, int64_t pairs) {
    return dispatch_of(c, m->experts, pairs, c->mode.dispatch_slot, c->mode.experts_apart);
}

static Dispatch dispatch_in(const SublayerArgs *a) {
    const ExpertsStash *s = a->stash;
    return dispatch_for(a->context, a->self, s->order.cols);
}

static ExpertWeights weights_here(const SublayerArgs *a) {
    const Experts *m = a->self;
    ExpertWeights weights = m->weights;
    weights.experts = m->experts / context_ranks(a->context, ROLE_EXPERT);
    return weights;
}

static Tensor used_rows(const SublayerArgs *a, Tensor rows) {
    const ExpertsStash *s = a->stash;
    Dispatch d = dispatch_in(a);
    return tensor_rows(rows, 0, experts_pairs(&d, &s->kept));
}

// ---- forward ------------------------------------------------------------------------------------------------

// Takes all that the stash keeps: its arena may be that of scratch memory, which is given back to an earlier place when
// the layer's work is done.
static void take_stash(const SublayerArgs *a, Tensor x) {
    Context *c = a->context;
    const Experts *m = a->self;
    ExpertsStash *s = a->stash;
    int64_t k = m->rules.topk, rows = all_rows(c, x.rows),
            tokens = a->microbatch->sequence * a->microbatch->samples;
    s->logits = tensor_take(a->arena, "router logits", x.rows, m->experts, F32);
    s->weights = tensor_take(a->arena, "expert weights", x.rows, k, F32);
    s->experts = tensor_take(a->arena, "experts of tokens", x.rows, k, I32);
    s->all_weights = s->weights;
    if (rows != x.rows) s->all_weights = tensor_take(a->arena, "weights of all rows", rows, k, F32);
    s->positions = tensor_take(a->arena, "places of pairs", rows, k, I32);
    s->order = tensor_take(a->arena, "pairs by expert", 1, rows * k, I32);
    Dispatch d = dispatch_in(a);
    ExpertWeights weights = weights_here(a);
    experts_take(c, &weights, &d, &s->kept, a->arena, rows * k, x.cols);
    if (!m->shared_in.weight) return;
    s->shared_inner = tensor_take(a->arena, "fc1 output of shared experts", tokens,
                                  m->shared_in.weight->value.rows, x.dtype);
    s->shared_core = tensor_take(a->arena, "activation output of shared experts", tokens,
                                 m->shared_out.weight->value.cols, x.dtype);
}

static void route(const SublayerArgs *a, Tensor x) {
    Context *c = a->context;
    const Experts *m = a->self;
    const ExpertsStash *s = a->stash;
    matmul(c->device, c->stream,
           (Matmul){.a = x, .b = m->router->value, .d = s->logits, .transpose_b = true});
    router_forward(c->device, c->stream,
                   (RouterForward){
                       .logits = s->logits, .weights = s->weights, .experts = s->experts, .rules = m->rules});
    if (s->all_weights.data != s->weights.data || s->all_weights.rows != s->weights.rows)
        tp_all_gather(c, s->weights, s->all_weights);
}

// Sorts the pairs, and learns how many each expert has.
static void sort(const SublayerArgs *a) {
    Context *c = a->context;
    const Experts *m = a->self;
    ExpertsStash *s = a->stash;
    ArenaMark mark = arena_mark(c->scratch);
    Tensor experts = gather(c, s->experts),
           counts = tensor_take(c->scratch, "rows of experts", 1, m->experts, I32);
    Dispatch d = dispatch_in(a);
    sort_pairs(
        c->device, c->stream,
        (SortPairs){.experts = experts, .order = s->order, .positions = s->positions, .counts = counts});
    experts_plan(c, &d, counts, tensor_count(experts), &s->kept);
    arena_release(c->scratch, mark);
}

// The rows of x that the experts read, by expert; without `needed` memory alone.
static Tensor sorted_rows(const SublayerArgs *a, Tensor x, bool needed) {
    Context *c = a->context;
    const Experts *m = a->self;
    const ExpertsStash *s = a->stash;
    Tensor rows = tensor_take(c->scratch, "rows by expert", s->order.cols, x.cols, x.dtype);
    ArenaMark mark = arena_mark(c->scratch);
    if (needed)
        gather_rows(c->device, c->stream,
                    (GatherRows){.x = gather(c, x), .order = s->order, .y = rows, .divisor = m->rules.topk});
    arena_release(c->scratch, mark);
    return rows;
}

// Adds what the shared experts make of x.
static void shared_forward(const SublayerArgs *a, Tensor x, Tensor out) {
    Context *c = a->context;
    const Experts *m = a->self;
    ExpertsStash *s = a->stash;
    Tensor own = tensor_take(c->scratch, "output of shared experts", out.rows, out.cols, out.dtype);
    column_linear_forward(c, &m->shared_in, NULL, x, s->shared_inner, false);
    activation_forward(c, &m->activation, s->shared_inner, (Tensor){0}, s->shared_core);
    row_linear_forward(c, &m->shared_out, NULL, s->shared_core, own);
    add(c->device, c->stream, (Add){.x = own, .y = out});
}

static void all_forward(const SublayerArgs *a, Tensor out) {
    Context *c = a->context;
    const Experts *m = a->self;
    ExpertsStash *s = a->stash;
    Tensor x = s->branch.norm.y;
    take_stash(a, x);
    ArenaMark mark = arena_mark(c->scratch);
    route(a, x);
    sort(a);
    Dispatch d = dispatch_in(a);
    ExpertWeights weights = weights_here(a);
    experts_forward(c, &weights, &d, &s->kept, sorted_rows(a, x, true));
    Tensor partial = reduce_begin(c, out);
    combine_rows(c->device, c->stream,
                 (CombineRows){.x = used_rows(a, s->kept.out),
                               .positions = s->positions,
                               .weights = s->all_weights,
                               .y = partial});
    reduce_end(c, partial, out);
    if (m->shared_in.weight) shared_forward(a, x, out);
    arena_release(c->scratch, mark);
}

// ---- backward -----------------------------------------------------------------------------------------------

// From the gradient of the output to those of the experts' rows and of the weights [T', k].
static void combine_gradient(const SublayerArgs *a, Tensor dout, Tensor dweights) {
    Context *c = a->context;
    const ExpertsStash *s = a->stash;
    ArenaMark mark = arena_mark(c->scratch);
    Tensor partial = reduce_begin(c, dweights), rows = used_rows(a, s->kept.out);
    combine_backward(c->device, c->stream,
                     (CombineBackward){.dy = gather(c, dout),
                                       .x = rows,
                                       .positions = s->positions,
                                       .weights = s->all_weights,
                                       .dx = rows,
                                       .dweights = partial});
    reduce_end(c, partial, dweights);
    arena_release(c->scratch, mark);
}

// The gradient of x through the experts, and with `halves` those of their weights. dx absent: these alone.
static void rows_gradient(const SublayerArgs *a, Halves halves, Tensor dx) {
    Context *c = a->context;
    const ExpertsStash *s = a->stash;
    Dispatch d = dispatch_in(a);
    ExpertWeights weights = weights_here(a);
    Tensor x = s->branch.norm.y, sorted = {0}, drows = {0}, out = s->kept.out;
    ArenaMark mark = arena_mark(c->scratch);
    if (d.ranks > 1 || halves & WEIGHT_HALF)
        sorted = sorted_rows(a, x, experts_need_rows(&d, &s->kept, halves));
    if (halves & INPUT_HALF)
        drows = tensor_take(c->scratch, "gradient of rows by expert", out.rows, out.cols, out.dtype);
    experts_backward(c, &weights, &d, &s->kept, halves, sorted, drows);
    if (halves & INPUT_HALF) {
        Tensor partial = reduce_begin(c, dx);
        combine_rows(c->device, c->stream,
                     (CombineRows){.x = used_rows(a, drows), .positions = s->positions, .y = partial});
        reduce_end(c, partial, dx);
    }
    arena_release(c->scratch, mark);
}

// Adds the gradient of x through the router, and makes that of its weight, which is small enough for the input half.
static void router_gradient(const SublayerArgs *a, Tensor dweights, Tensor dx) {
    Context *c = a->context;
    const Experts *m = a->self;
    const ExpertsStash *s = a->stash;
    ArenaMark mark = arena_mark(c->scratch);
    Tensor dlogits =
               tensor_take(c->scratch, "gradient of router logits", s->logits.rows, m->experts, dx.dtype),
           own = tensor_take(c->scratch, "gradient of router input", dx.rows, dx.cols, dx.dtype);
    router_backward(c->device, c->stream,
                    (RouterBackward){.logits = s->logits,
                                     .experts = s->experts,
                                     .dweights = dweights,
                                     .dlogits = dlogits,
                                     .rules = m->rules});
    if (!m->router->frozen) {
        GradSum sum = param_grad_sum(m->router, c->device, c->place);
        matmul(c->device, c->stream,
               (Matmul){.a = dlogits,
                        .b = s->branch.norm.y,
                        .d = sum.sum,
                        .transpose_a = true,
                        .accumulate = sum.adds});
    }
    matmul(c->device, c->stream, (Matmul){.a = dlogits, .b = m->router->value, .d = own});
    add(c->device, c->stream, (Add){.x = own, .y = dx});
    arena_release(c->scratch, mark);
}

// dx absent: the weight half alone.
static void shared_gradient(const SublayerArgs *a, Tensor dout, Tensor dx) {
    Context *c = a->context;
    const Experts *m = a->self;
    const ExpertsStash *s = a->stash;
    Tensor own = {0}, dcore = {0};
    ArenaMark mark = arena_mark(c->scratch);
    if (dx.data) {
        own = tensor_take(c->scratch, "gradient of shared experts' input", dx.rows, dx.cols, dx.dtype);
        dcore = tensor_take(c->scratch, "gradient of activation output", s->shared_core.rows,
                            s->shared_core.cols, dx.dtype);
    }
    row_linear_backward(c, &m->shared_out, NULL, a->halves, s->shared_core, dout, dcore);
    if (dx.data) activation_backward(c, &m->activation, dcore, s->shared_inner, (Tensor){0}, s->shared_inner);
    column_linear_backward(c, &m->shared_in, NULL, a->halves, s->branch.norm.y, s->shared_inner, own);
    if (dx.data) add(c->device, c->stream, (Add){.x = own, .y = dx});
    arena_release(c->scratch, mark);
}

static void all_backward(const SublayerArgs *a, Tensor dout, Tensor dx) {
    Context *c = a->context;
    const Experts *m = a->self;
    const ExpertsStash *s = a->stash;
    ArenaMark mark = arena_mark(c->scratch);
    // Where rows come from other ranks, both halves use what was sent once.
    bool at_once = a->halves == BOTH_HALVES && dispatch_in(a).ranks > 1;
    if (a->halves & INPUT_HALF) {
        Tensor dweights =
            tensor_take(c->scratch, "gradient of expert weights", s->weights.rows, s->weights.cols, F32);
        combine_gradient(a, dout, dweights);
        rows_gradient(a, at_once ? BOTH_HALVES : INPUT_HALF, dx);
        router_gradient(a, dweights, dx);
    }
    if (m->shared_in.weight) shared_gradient(a, dout, dx);
    if (a->halves & WEIGHT_HALF && !at_once) rows_gradient(a, WEIGHT_HALF, (Tensor){0});
    arena_release(c->scratch, mark);
}

static const Core core = {.all_forward = all_forward, .all_backward = all_backward};

static void forward(const SublayerArgs *args) { branch_forward(args, &core); }
static void backward(const SublayerArgs *args) { branch_backward(args, &core); }

// ---- closed forms -------------------------------------------------------------------------------------------

// Weights of an expert, or of shared experts, of so many inner columns.
static int64_t weights_of(const ModelShape *s, int64_t width) {
    return s->hidden * (activation_inputs(s, width) + width);
}

static ParamCount parameters(const ModelShape *s) {
    return (ParamCount){.cut = s->experts * weights_of(s, s->expert_ffn) + weights_of(s, s->shared_ffn),
                        .whole = branch_norm_parameters(s) + (int64_t)s->experts * s->hidden};
}

static double flops(const ModelShape *s) {
    return 2.0 * (double)(s->experts_topk * weights_of(s, s->expert_ffn) + weights_of(s, s->shared_ffn) +
                          (int64_t)s->experts * s->hidden);
}

// As if each expert were cut over all tensor ranks.
static int stash_terms(const ModelShape *s, const ModelMode *mode, int tp, StashTerm *out) {
    double e = (double)dtype_bytes(mode->dtype), tokens = (double)s->sequence * mode->microbatch;
    double pairs = tokens * s->experts_topk, rows = stash_rows(s, mode, tp), k = s->experts_topk;
    double inner = e * pairs * (double)activation_inputs(s, s->expert_ffn) / tp,
           activated = e * pairs * s->expert_ffn / tp, width = e * pairs * s->hidden;
    double routing = 4 * (rows * (s->experts + 2 * k) + 2 * pairs) + (rows < tokens ? 4 * pairs : 0);
    int n = branch_stash_terms(s, mode, tp, 0, out);
    out[n++] = (StashTerm){"experts' fc1 output", inner, inner, false};
    out[n++] = (StashTerm){"experts' activation output", activated, activated, false};
    out[n++] = (StashTerm){"experts' output", width, width, false};
    out[n++] = (StashTerm){"routing, fp32", 0, routing, true};
    if (s->shared_ffn) {
        double shared = e * tokens * s->shared_ffn / tp;
        double both = shared * (double)activation_inputs(s, 1);
        out[n++] = (StashTerm){"shared experts' fc1 output", both, both, false};
        out[n++] = (StashTerm){"shared activation output", shared, shared, false};
    }
    out[n++] = (StashTerm){"mlp dropout mask", rows * s->hidden, 0, false};
    return n;
}

const SublayerKind experts_sublayer = {.self_bytes = sizeof(Experts),
                                       .stash_bytes = sizeof(ExpertsStash),
                                       .has_weights = true,
                                       .declare = declare,
                                       .forward = forward,
                                       .backward = backward,
                                       .parameters = parameters,
                                       .flops = flops,
                                       .stash_terms = stash_terms};
