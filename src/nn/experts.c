// The experts sublayer, in the place of an MLP: norm, router, experts, and shared experts that every token goes to.
//
// A rank routes its own rows. Where a tensor rank has a part of every expert, it then has the rows of all of them.
// Pairs of a token and an expert are sorted by expert, so that an expert's rows follow each other, and each expert's
// products are those of a range of rows, on this rank or on another one (nn/expert_rounds.h). What the experts made of
// a token is added up in the order of its choices. How many rows an expert gets is known on the host alone where the
// device computes; memory depends on the number of pairs.
#include "nn/branch.h"
#include "nn/declare.h"
#include "nn/expert_factors.h"
#include "nn/expert_rounds.h"
#include "nn/factors.h"
#include "nn/router.h"
#include <math.h>
#include <string.h>

typedef struct {
    Branch branch; // without linear layers
    Router router;
    ExpertWeights weights; // without the number of this rank's experts
    int experts;           // E
    MlpActivation activation;
    Linear shared_in, shared_out; // without weights: there are no shared experts
    Router gate;                  // of these; without a weight: there is none
} Experts;

// Rows T' are this rank's, T those that it gives to its part of the experts; n = T * k pairs.
typedef struct {
    BranchStash branch;
    Routing routing;
    Tensor all_weights;      // F32 [T, k]: the weights of all T rows
    Tensor positions, order; // I32 [T, k], [1, n]
    ExpertsKept kept;
    Tensor shared_inner, shared_core;
    // Of a gate: its weights, the output of the shared experts [T', H], and the place of each row, which is its own.
    Routing gate;
    Tensor shared_out, rows, gate_order; // I32 [T', 1], [1, T']
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

// The biases of all experts, a row each.
static Param *declare_biases(const Builder *b, int layer, const char *name, int64_t cols, Cut cut) {
    if (!model_has_mlp_bias(b->shape)) return NULL;
    ParamSpec spec = builder_spec(b, part_name(layer, name).text, "bias");
    spec.rows = spec.experts = b->shape->experts;
    spec.cols = cols;
    spec.cut = cut;
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

// Each expert's matrices have scales of their own. The router multiplies in fp32.
static void declare_few_bits(const Builder *b, int layer, Experts *m) {
    ExpertLinear *own[] = {&m->weights.fc1, &m->weights.fc2};
    Linear *shared[] = {&m->shared_in, &m->shared_out};
    for (int i = 0; i < 2; i++) {
        few_bits_declare(b, layer, own[i]->weight, m->experts, &own[i]->few_bits);
        few_bits_declare(b, layer, shared[i]->weight, 1, &shared[i]->few_bits);
    }
}

static void declare(const Builder *b, int layer, void *self) {
    const ModelShape *s = b->shape;
    Experts *m = self;
    m->branch = branch_declare(b, layer, "pre_mlp_layernorm", "post_mlp_layernorm", (LinearSpec){0},
                               (LinearSpec){0}, "mlp output dropout");
    m->experts = s->experts;
    m->activation = activation_of(s);
    m->router = router_declare(b, layer);
    Cut rows = {.dim = 0, .blocks = model_is_gated(s) ? 2 : 1}, cols = {.dim = 1}, of_rows = rows;
    of_rows.dim = 1;
    const char *fc1 = "mlp.experts.linear_fc1", *fc2 = "mlp.experts.linear_fc2";
    int64_t inner = activation_inputs(s, s->expert_ffn);
    m->weights.activation = m->activation;
    ExpertLinear *in = &m->weights.fc1, *out = &m->weights.fc2;
    in->weight = declare_weights(b, layer, fc1, inner, s->hidden, s->init_std, rows);
    in->bias = declare_biases(b, layer, fc1, inner, of_rows);
    out->weight = declare_weights(b, layer, fc2, s->hidden, s->expert_ffn, output_stddev(s), cols);
    out->bias = declare_biases(b, layer, fc2, s->hidden, (Cut){.dim = -1});
    if (s->shared_ffn) declare_shared(b, layer, m);
    if (!b->mode->wide_experts) declare_few_bits(b, layer, m);
    if (s->shared_gate) m->gate = router_declare_gate(b, layer);
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

// Of so many pairs of this rank. A token chooses different experts.
static Dispatch dispatch_for(const Context *c, const Experts *m, int64_t pairs) {
    bool apart = c->mode.experts_apart;
    DispatchRules rules = {
        .slot = c->mode.dispatch_slot, .whole = apart, .apart = apart, .grads_apart = apart};
    rules.tokens = pairs / m->router.rules.topk;
    return dispatch_of(c, m->experts, pairs, expert_factors_rules(&m->weights.fc1.few_bits, rules));
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
    int64_t k = m->router.rules.topk, rows = all_rows(c, x.rows),
            tokens = a->microbatch->sequence * a->microbatch->samples;
    routing_take(c, &m->router, a->microbatch, &s->routing, a->arena, x.rows);
    s->all_weights = s->routing.weights;
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
    if (!m->gate.weight) return;
    routing_take(c, &m->gate, a->microbatch, &s->gate, a->arena, x.rows);
    s->shared_out = tensor_take(a->arena, "output of shared experts", x.rows, x.cols, x.dtype);
    s->rows = tensor_take(a->arena, "numbers of rows", x.rows, 1, I32);
    s->gate_order = tensor_take(a->arena, "rows in order", 1, x.rows, I32);
}

static void route(const SublayerArgs *a, Tensor x) {
    Context *c = a->context;
    const Experts *m = a->self;
    const ExpertsStash *s = a->stash;
    router_choose(c, &m->router, a->microbatch, x, &s->routing);
    Tensor own = s->routing.weights;
    if (s->all_weights.data != own.data || s->all_weights.rows != own.rows)
        tp_all_gather(c, own, s->all_weights);
}

// How many pairs chose each expert, where some are dropped: those of `experts` before that.
static void count_choices(const SublayerArgs *a, Tensor experts, int32_t *choices) {
    Context *c = a->context;
    const Experts *m = a->self;
    Tensor counts = tensor_take(c->scratch, "tokens that chose experts", 1, m->experts, I32);
    SortPairs sorted = {.experts = experts,
                        .order = tensor_take(c->scratch, "pairs by expert", 1, tensor_count(experts), I32),
                        .positions =
                            tensor_take(c->scratch, "places of pairs", experts.rows, experts.cols, I32),
                        .counts = counts};
    sort_pairs(c->device, c->stream, sorted);
    if (device_computes(c->device)) device_download(c->device, c->stream, choices, counts);
}

// Tensor ranks that have the same pairs count them once.
static void note_loads(const SublayerArgs *a, const int32_t *choices) {
    Context *c = a->context;
    const Experts *m = a->self;
    const ExpertsStash *s = a->stash;
    bool own_pairs = c->mode.sequence_parallel && !is_shared(c);
    if (!expert_loads_count(c, a->microbatch) || (!own_pairs && context_rank(c, ROLE_TENSOR))) return;
    double *loads = expert_loads_of(c->loads, m->router.layer),
           *dropped = expert_load_sum(c->loads, m->router.layer, LOAD_DROPPED);
    for (int e = 0; e < m->experts; e++) {
        loads[e] += choices[e];
        *dropped += choices[e] - s->kept.plan.mine[e];
    }
}

// Sorts the pairs, and learns how many each expert has.
static void sort(const SublayerArgs *a) {
    Context *c = a->context;
    const Experts *m = a->self;
    ExpertsStash *s = a->stash;
    ArenaMark mark = arena_mark(c->scratch);
    int32_t choices[MAX_EXPERTS];
    bool drops = router_drops(c, a->microbatch);
    Tensor experts = gather(c, s->routing.kept),
           counts = tensor_take(c->scratch, "rows of experts", 1, m->experts, I32);
    Dispatch d = dispatch_in(a);
    sort_pairs(
        c->device, c->stream,
        (SortPairs){.experts = experts, .order = s->order, .positions = s->positions, .counts = counts});
    experts_plan(c, &d, counts, tensor_count(experts), &s->kept);
    if (drops) count_choices(a, gather(c, s->routing.experts), choices);
    note_loads(a, drops ? choices : s->kept.plan.mine);
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
        gather_rows(
            c->device, c->stream,
            (GatherRows){.x = gather(c, x), .order = s->order, .y = rows, .divisor = m->router.rules.topk});
    arena_release(c->scratch, mark);
    return rows;
}

// y = the shared experts' output times the sigmoid of the gate.
static void gate_forward(const SublayerArgs *a, Tensor x, Tensor y) {
    Context *c = a->context;
    const Experts *m = a->self;
    const ExpertsStash *s = a->stash;
    ArenaMark mark = arena_mark(c->scratch);
    Tensor counts = tensor_take(c->scratch, "number of rows", 1, 1, I32);
    router_choose(c, &m->gate, a->microbatch, x, &s->gate);
    sort_pairs(
        c->device, c->stream,
        (SortPairs){
            .experts = s->gate.experts, .order = s->gate_order, .positions = s->rows, .counts = counts});
    combine_rows(c->device, c->stream,
                 (CombineRows){.x = s->shared_out, .positions = s->rows, .weights = s->gate.weights, .y = y});
    arena_release(c->scratch, mark);
}

// Returns the gradient of the shared experts' output, in scratch memory, and adds that of x through the gate to dx.
static Tensor gate_gradient(const SublayerArgs *a, Tensor dout, Tensor dx) {
    Context *c = a->context;
    const Experts *m = a->self;
    const ExpertsStash *s = a->stash;
    Tensor dshared =
        tensor_take(c->scratch, "gradient of shared experts' output", dout.rows, dout.cols, dout.dtype);
    ArenaMark mark = arena_mark(c->scratch);
    Tensor dweights = tensor_take(c->scratch, "gradient of gate", dout.rows, 1, F32);
    combine_backward(c->device, c->stream,
                     (CombineBackward){.dy = dout,
                                       .x = s->shared_out,
                                       .positions = s->rows,
                                       .weights = s->gate.weights,
                                       .dx = dshared,
                                       .dweights = dweights});
    if (dx.data) router_gradient(c, &m->gate, a->microbatch, &s->gate, s->branch.norm.y, dweights, dx);
    arena_release(c->scratch, mark);
    return dshared;
}

// Adds what the shared experts make of x.
static void shared_forward(const SublayerArgs *a, Tensor x, Tensor out) {
    Context *c = a->context;
    const Experts *m = a->self;
    ExpertsStash *s = a->stash;
    Tensor own = tensor_take(c->scratch, "output of shared experts", out.rows, out.cols, out.dtype);
    column_linear_forward(c, &m->shared_in, NULL, x, s->shared_inner, false);
    activation_forward(c, &m->activation, s->shared_inner, (Tensor){0}, s->shared_core);
    row_linear_forward(c, &m->shared_out, NULL, s->shared_core, m->gate.weight ? s->shared_out : own);
    if (m->gate.weight) gate_forward(a, x, own);
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

// dx absent: the weight half alone.
static void shared_gradient(const SublayerArgs *a, Tensor dout, Tensor dx) {
    Context *c = a->context;
    const Experts *m = a->self;
    const ExpertsStash *s = a->stash;
    Tensor own = {0}, dcore = {0};
    ArenaMark mark = arena_mark(c->scratch);
    if (m->gate.weight) dout = gate_gradient(a, dout, dx);
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
        Tensor dweights = tensor_take(c->scratch, "gradient of expert weights", s->routing.weights.rows,
                                      s->routing.weights.cols, F32);
        combine_gradient(a, dout, dweights);
        rows_gradient(a, at_once ? BOTH_HALVES : INPUT_HALF, dx);
        router_gradient(c, &m->router, a->microbatch, &s->routing, s->branch.norm.y, dweights, dx);
    }
    if (m->shared_in.weight) shared_gradient(a, dout, dx);
    if (a->halves & WEIGHT_HALF && !at_once) rows_gradient(a, WEIGHT_HALF, (Tensor){0});
    arena_release(c->scratch, mark);
}

static const Core core = {.all_forward = all_forward, .all_backward = all_backward};

static void forward(const SublayerArgs *args) { branch_forward(args, &core); }
static void backward(const SublayerArgs *args) { branch_backward(args, &core); }

// ---- closed forms -------------------------------------------------------------------------------------------

// Weights of a layer's routers.
static int64_t router_weights(const ModelShape *s) {
    return (s->experts + s->shared_gate) * (int64_t)s->hidden;
}

// Weights of an expert, or of shared experts, of so many inner columns.
static int64_t weights_of(const ModelShape *s, int64_t width) {
    return s->hidden * (activation_inputs(s, width) + width);
}

static ParamCount parameters(const ModelShape *s) {
    // The outer bias of an expert is whole on the ranks that share it; it counts with the rest of the expert.
    int64_t biases = activation_inputs(s, s->expert_ffn) + s->hidden;
    bool has = model_has_mlp_bias(s);
    return (ParamCount){.cut = s->experts * (weights_of(s, s->expert_ffn) + (has ? biases : 0)) +
                               weights_of(s, s->shared_ffn),
                        .whole = branch_norm_parameters(s) + router_weights(s) + (has ? s->experts : 0)};
}

static double flops(const ModelShape *s) {
    return 2.0 * (double)(s->experts_topk * weights_of(s, s->expert_ffn) + weights_of(s, s->shared_ffn) +
                          router_weights(s));
}

// As if each expert were cut over all tensor ranks.
static int stash_terms(const ModelShape *s, const ModelMode *mode, int tp, StashTerm *out) {
    double e = (double)dtype_bytes(mode->dtype), tokens = (double)s->sequence * mode->microbatch;
    double pairs = tokens * s->experts_topk, rows = stash_rows(s, mode, tp), k = s->experts_topk;
    double inner = e * pairs * (double)activation_inputs(s, s->expert_ffn) / tp,
           activated = e * pairs * s->expert_ffn / tp, width = e * pairs * s->hidden;
    double counts = mode->router.by_sequence ? mode->microbatch : 1;
    if (mode->router.balance <= 0 && mode->router.z <= 0) counts = 0;
    if (mode->router.capacity > 0) k *= 1.5; // beside weights and experts those that keep tokens
    double routing = 4 * (rows * (s->experts + 2 * k) + 2 * pairs) + (rows < tokens ? 4 * pairs : 0) +
                     4 * counts * s->experts;
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
        if (s->shared_gate)
            out[n++] =
                (StashTerm){"shared experts' output", e * rows * s->hidden, e * rows * s->hidden, false};
        if (s->shared_gate) out[n++] = (StashTerm){"routing, fp32", 0, 20 * rows, true};
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
