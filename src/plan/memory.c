// The memory of a rank in closed form: the state of its parameters, the activations of the microbatches in flight,
// and the two ends of the model.
#include "plan/memory.h"
#include "layout/layers.h"
#include <math.h>
#include <stdlib.h>

// ---- stages --------------------------------------------------------------------------------------

static int num_stages(const ParallelConfig *c) { return grid_along(c->grid, AXIS_PP) * c->chunks; }

// The number of layers that embedding and head each count for when layers are distributed over stages. Programs that
// distribute evenly count each as one layer where that makes the layers divide.
static double end_weight(const Stack *stack, const ModelShape *model, const ParallelConfig *c) {
    int stages = num_stages(c);
    if (model->layers % stages && (model->layers + 2) % stages == 0) return 1;
    if (!stack->balances_stages) return 0;
    return part_parameters(model, grid_along(c->grid, AXIS_TP), PART_EMBEDDING) /
           part_parameters(model, grid_along(c->grid, AXIS_TP), PART_LAYER);
}

static void fill_stages(int layers, int stages, int *counts) {
    int most = (layers + stages - 1) / stages;
    for (int stage = 0; stage < stages; stage++, layers -= most) {
        counts[stage] = layers < most ? layers : most;
        if (layers < most) most = layers;
    }
}

// So many layers on each stage of the slow ranks; the other stages share the rest evenly, the longest ones first.
static void spare_slow(const ModelShape *model, const ParallelConfig *c, int *counts) {
    int stages = num_stages(c), ranks = grid_along(c->grid, AXIS_PP), spared = c->slow.count * c->chunks;
    int rest = model->layers - spared * c->slow.layers, others = stages - spared, longer = rest % others;
    for (int stage = 0; stage < stages; stage++) {
        bool slow = stage % ranks >= c->slow.first && stage % ranks < c->slow.first + c->slow.count;
        counts[stage] = slow ? c->slow.layers : rest / others + (longer-- > 0);
    }
}

Status parallel_config_layers(const Stack *stack, const ModelShape *model, const ParallelConfig *config,
                              int *layers) {
    int stages = num_stages(config);
    if (stages > MAX_STAGES)
        return fail(ERR_CONFIG, "%d pipeline stages: at most %d are possible", stages, MAX_STAGES);
    double ends = end_weight(stack, model, config);
    if (config->slow.layers)
        spare_slow(model, config, layers);
    else if (stack->fills_stages && model->layers % stages && ends == 0)
        fill_stages(model->layers, stages, layers);
    else
        layer_balance(model->layers, stages, ends, ends, layers);
    return OK;
}

// ---- parameters ----------------------------------------------------------------------------------

static int table_rows(const ModelShape *m, int tp) {
    return padded_vocabulary(m->vocabulary, VOCABULARY_DIVISOR, tp);
}

static ParamCount part_count(const ModelShape *m, int tp, ModelPart part) {
    switch (part) {
    case PART_EMBEDDING: return model_embedding_parameters(m, table_rows(m, tp));
    case PART_HEAD: return model_head_parameters(m, table_rows(m, tp));
    default: return model_layer_parameters(m);
    }
}

static ModelShape without_experts(const ModelShape *m) {
    ModelShape dense = *m;
    dense.experts = 0;
    return dense;
}

// Of a layer, on a rank: what twice as many experts add, but for the router's columns.
static double expert_parameters(const ModelShape *m, const ParallelConfig *c) {
    ModelShape twice = *m;
    twice.experts *= 2;
    double all = (double)(model_layer_parameters(&twice).cut - model_layer_parameters(m).cut);
    return all / grid_along(c->grid, AXIS_EP) / grid_along(c->grid, AXIS_ETP);
}

double part_parameters(const ModelShape *m, int tp, ModelPart part) {
    ModelShape shape = part == PART_DENSE ? without_experts(m) : *m;
    ParamCount count = part_count(&shape, tp, part);
    return (double)count.cut / tp + (double)count.whole;
}

// Bytes of each parameter: weight, gradient and optimizer state.
typedef struct {
    double weight, gradient, optimizer;
    double moment; // of `optimizer`: the second moment, which Muon does not keep
    double host;   // of state that the host keeps, and of its copy of the weight
} State;

// trireme keeps whole gradients where several microbatches add to them, or the halves of split backwards in turn.
static bool cuts_gradients(const CostModel *costs, const ParallelConfig *c) {
    bool once = parallel_config_microbatches(c) == 1 || c->reduce_every;
    return c->zero_stage >= 2 &&
           (!costs->stack->is_trireme || (once && !parallel_config_kind(c)->splits_backward));
}

// Of parameters of which `role` has all shards.
static State state_of(const CostModel *costs, const ParallelConfig *c, Role role) {
    const Stack *stack = costs->stack;
    double weight = (double)dtype_bytes(c->dtype), gradient = stack->state_bytes - weight;
    double cut = stack->sharded_bytes, shares = (double)grid_count(c->grid, role);
    // Two moments, and what AdamW keeps of the fp32 weight beyond the value: nothing in fp32, a remainder in
    // bf16, all of it in fp16.
    static const double kept[NUM_DTYPES] = {[F32] = 8, [BF16] = 10, [F16] = 12};
    if (costs->stack->is_trireme || c->dtype == F32) gradient = 4, cut = kept[c->dtype];
    if (c->dtype == BF16) gradient += costs->constants.bf16_sum_bytes, cut -= costs->constants.bf16_sum_bytes;
    gradient = fmax(gradient, 0), cut = fmax(cut, 0);
    double on_host = c->dtype == F16 ? 14 : 12;
    return (State){.weight = c->zero_stage >= 3 ? weight / shares : weight,
                   .gradient = cuts_gradients(costs, c) ? gradient / shares : gradient,
                   .optimizer = (1 - c->offload) * (c->zero_stage >= 1 ? cut / shares : cut),
                   .moment = c->zero_stage >= 1 ? 4 / shares : 4,
                   .host = c->offload * on_host / (c->zero_stage >= 1 ? shares : 1)};
}

// ---- activations ---------------------------------------------------------------------------------

// Tokens of a microbatch that a rank computes.
static double tokens_of(const ModelShape *m, const ParallelConfig *c) {
    return (double)m->sequence / grid_along(c->grid, AXIS_CP) * c->microbatch;
}

// Elements of a tensor that norms, dropout and residuals work on.
static double hidden_elements(const ModelShape *m, const ParallelConfig *c) {
    return tokens_of(m, c) * m->hidden / (c->sequence_parallel ? grid_along(c->grid, AXIS_TP) : 1);
}

static double sum_terms(const ModelShape *m, const ParallelConfig *c, Recompute recompute, bool own) {
    ModelShape share = *m;
    share.sequence /= grid_along(c->grid, AXIS_CP);
    ModelMode mode = {.microbatch = c->microbatch,
                      .dtype = c->dtype,
                      .sequence_parallel = c->sequence_parallel,
                      .keep_probabilities = c->attention == ATTENTION_UNFUSED,
                      .recompute = recompute};
    StashSum sum = model_stash_sum(&share, &mode, grid_along(c->grid, AXIS_TP));
    return own ? sum.kept : sum.published;
}

// The inner columns of an MLP, or of the experts of a token.
static double inner_width(const ModelShape *m) {
    return m->experts ? (double)m->experts_topk * m->expert_ffn + m->shared_ffn : m->ffn;
}

// The inputs of qkv, fc1 and fc2 are kept as factors, and not in 16 bits; that of proj is kept as a factor, too, since
// the attention core keeps its output.   Source: Transformer Engine, what its linear layers save
static double factors_kept(const ModelShape *m, const ParallelConfig *c) {
    double factor = factor_format_bytes(c->factors), less = (double)dtype_bytes(c->dtype) - factor;
    int t = grid_along(c->grid, AXIS_TP);
    if (!c->factors) return 0;
    return tokens_of(m, c) * (m->heads * m->head_size * factor - inner_width(m) * less) / t -
           2 * hidden_elements(m, c) * less;
}

// Bytes of everything but the attention core. The published terms have dropout masks; the constants add what the
// kernels of norms and MLP keep.
static double outside_core(const CostModel *costs, const ModelShape *m, const ParallelConfig *c) {
    const Constants *k = &costs->constants;
    double hidden = hidden_elements(m, c),
           bytes = sum_terms(m, c, RECOMPUTE_SELECTIVE, costs->stack->is_trireme);
    if (costs->stack->is_trireme) return bytes;
    if (m->hidden_dropout == 0) bytes -= 2 * hidden;
    bytes += factors_kept(m, c);
    return bytes + 2 * k->norm_kept_bytes * hidden +
           k->mlp_kept_bytes * tokens_of(m, c) * inner_width(m) / grid_along(c->grid, AXIS_TP);
}

// Bytes of the attention core: softmax output, dropout mask and dropout output. Fused attention keeps two fp32
// numbers for each row of the S x S matrix instead.
static double core(const CostModel *costs, const ModelShape *m, const ParallelConfig *c) {
    if (costs->stack->is_trireme)
        return sum_terms(m, c, RECOMPUTE_NOTHING, true) - sum_terms(m, c, RECOMPUTE_SELECTIVE, true);
    double rows = tokens_of(m, c) * m->heads / grid_along(c->grid, AXIS_TP);
    if (c->attention == ATTENTION_FUSED) return 8 * rows;
    double dropout = m->attention_dropout > 0 ? 1 + (double)dtype_bytes(c->dtype) : 0;
    return rows * m->sequence * (costs->constants.score_kept_bytes + dropout);
}

double layer_kept_bytes(const CostModel *costs, const ModelShape *m, const ParallelConfig *c) {
    switch (c->recompute) {
    case RECOMPUTE_NOTHING: return outside_core(costs, m, c) + core(costs, m, c);
    case RECOMPUTE_SELECTIVE: return outside_core(costs, m, c);
    default: return (double)dtype_bytes(c->dtype) * hidden_elements(m, c);
    }
}

double layer_again_bytes(const CostModel *costs, const ModelShape *m, const ParallelConfig *c) {
    switch (c->recompute) {
    case RECOMPUTE_NOTHING: return 0;
    case RECOMPUTE_SELECTIVE: return core(costs, m, c);
    default: return outside_core(costs, m, c) + core(costs, m, c);
    }
}

// ---- a rank --------------------------------------------------------------------------------------

// The inputs that all pipeline ranks have in common.
typedef struct {
    const CostModel *costs;
    const ModelShape *model;
    const ParallelConfig *config;
    const ScheduleKind *kind;
    ScheduleSpec spec; // of the schedule
    int stages;
    State state, expert_state;
    double parameters[NUM_PARTS]; // without experts
    double experts;               // parameters of a layer's experts
    double matrices;              // parameters of a layer that Muon steps
    double table;                 // parameters of the word table, of which a tied head has a copy
    double kept, again;           // bytes of a layer: kept, and while it is recomputed
    double dense_kept;            // of a layer without experts, where others have them
    double masks;                 // of the embedding's dropout, of one microbatch
    double head;                  // of the last stage
    double buffers;
    int layers[MAX_STAGES], dense[MAX_STAGES];
} Sizes;

// The input and output of the final norm; the logits in 16 bits, in fp32, and their gradient. Where every rank
// gathers all logits, its own share of them and of their gradient in addition.
static double head_bytes(const CostModel *costs, const ModelShape *m, const ParallelConfig *c) {
    int t = grid_along(c->grid, AXIS_TP);
    double rows = (double)table_rows(m, t) / t, e = (double)dtype_bytes(c->dtype);
    double logits = tokens_of(m, c) * rows, norm = 2 * e * hidden_elements(m, c);
    if (!costs->stack->gathers_logits) return norm + costs->constants.logit_bytes * logits;
    return norm + costs->constants.logit_bytes * logits * t + 2 * e * logits;
}

// Messages to and from the neighbours; a gathered input of sequence parallelism; keys and values in transit over cp;
// with zero stage 3, two gathered layers; trireme's window of the gradients of two layers, where it cuts gradients.
static double buffer_bytes(const Sizes *s) {
    const ModelShape *m = s->model;
    const ParallelConfig *c = s->config;
    double e = (double)dtype_bytes(c->dtype), bytes = 0;
    if (grid_along(c->grid, AXIS_PP) > 1) bytes += 2 * e * hidden_elements(m, c);
    if (c->sequence_parallel) bytes += e * tokens_of(m, c) * m->hidden;
    if (grid_along(c->grid, AXIS_CP) > 1)
        bytes += 4 * e * tokens_of(m, c) * model_groups(m) * m->head_size / grid_along(c->grid, AXIS_TP);
    if (c->zero_stage >= 3) bytes += 2 * e * (s->parameters[PART_LAYER] + s->experts);
    if (s->costs->stack->is_trireme && cuts_gradients(s->costs, c))
        bytes += 2 * 4 * (s->parameters[PART_LAYER] + s->experts);
    return bytes;
}

// Counts the parameters of a layer that are hidden matrices, each cut over tp.
static Status count_matrices(const ModelShape *model, int tp, double *parameters) {
    ModelShape one = *model;
    WeightSpec *weights;
    int count;
    one.layers = 1;
    TRY(model_weights(&one, &weights, &count));
    for (int i = 0; i < count; i++)
        if (weights[i].is_hidden_matrix)
            *parameters += (double)weights[i].rows * (double)weights[i].cols / tp;
    free(weights);
    return OK;
}

// The layers without experts of each stage; a layer's parameters without those of experts.
static void count_experts(Sizes *s) {
    const ModelShape *m = s->model;
    s->experts = 0;
    for (int stage = 0, first = 0; stage < s->stages; first += s->layers[stage++])
        s->dense[stage] = model_dense_layers(m, first, s->layers[stage]);
    if (!m->experts) return;
    s->experts = expert_parameters(m, s->config);
    s->parameters[PART_LAYER] -= s->experts * grid_along(s->config->grid, AXIS_EP) *
                                 grid_along(s->config->grid, AXIS_ETP) / grid_along(s->config->grid, AXIS_TP);
}

static Status sizes_of(Sizes *s, const CostModel *costs, const ModelShape *model,
                       const ParallelConfig *config) {
    int t = grid_along(config->grid, AXIS_TP);
    s->costs = costs, s->model = model, s->config = config, s->matrices = 0;
    if (config->muon.iterations) TRY(count_matrices(model, t, &s->matrices));
    s->kind = parallel_config_kind(config), s->spec = parallel_config_schedule(config);
    s->stages = num_stages(config);
    TRY(parallel_config_layers(costs->stack, model, config, s->layers));
    for (ModelPart part = 0; part < NUM_PARTS; part++) s->parameters[part] = part_parameters(model, t, part);
    count_experts(s);
    s->table = (double)part_count(model, t, PART_EMBEDDING).cut / t;
    double factor = costs->stack->is_trireme ? 1 : costs->constants.activation_factor;
    bool masks = !costs->stack->is_trireme && model->hidden_dropout > 0;
    s->state = state_of(costs, config, ROLE_REPLICAS_SHARDS);
    s->expert_state = state_of(costs, config, ROLE_EXPERT_REPLICAS_SHARDS);
    s->kept = factor * layer_kept_bytes(costs, model, config);
    ModelShape dense = without_experts(model);
    s->dense_kept = model->experts ? factor * layer_kept_bytes(costs, &dense, config) : s->kept;
    s->again = factor * layer_again_bytes(costs, model, config);
    s->masks = masks ? factor * hidden_elements(model, config) : 0;
    s->head = head_bytes(costs, model, config);
    s->buffers = s->again + buffer_bytes(s);
    if (costs->stack->is_trireme) s->buffers += (double)trireme_usual_workspace(model, config);
    return OK;
}

static MemoryNeed need_of(const Sizes *s, int rank) {
    const ParallelConfig *c = s->config;
    double flight = (double)schedule_kind_stash(s->kind, &s->spec, rank) / c->chunks, layers = 0, dense = 0,
           parameters = 0;
    MemoryNeed need = {.rank = rank,
                       .buffers = s->buffers,
                       .reserve = s->costs->machine->is_cpu ? 0 : 1e9 * s->costs->constants.reserve_gb,
                       .capacity = 1e9 * s->costs->machine->usable_gb,
                       .margin = s->costs->constants.memory_margin};
    for (int chunk = 0; chunk < c->chunks; chunk++) {
        int stage = schedule_kind_stage(s->kind, &s->spec, rank, chunk);
        bool first = stage == 0, last = stage == s->stages - 1;
        layers += s->layers[stage] + last * c->further_heads;
        dense += s->dense[stage];
        parameters += first * s->parameters[PART_EMBEDDING] + last * s->parameters[PART_HEAD];
        bool copies = last && rank > 0 && !s->model->untied; // rank 0 has the table itself
        if (copies) parameters += s->table;
        need.ends += first * s->masks * flight + last * s->head * (1 + c->further_heads);
    }
    double experts = (layers - dense) * s->experts;
    parameters += (layers - dense) * s->parameters[PART_LAYER] + dense * s->parameters[PART_DENSE];
    need.parameters = parameters * s->state.weight + experts * s->expert_state.weight;
    if (c->factors && !s->costs->stack->is_trireme)
        need.parameters +=
            (layers * s->parameters[PART_LAYER] + experts) * s->costs->constants.factor_kept_bytes;
    need.gradients = parameters * s->state.gradient + experts * s->expert_state.gradient;
    need.optimizer = parameters * s->state.optimizer + experts * s->expert_state.optimizer -
                     layers * s->matrices * s->state.moment;
    need.host = parameters * s->state.host + experts * s->expert_state.host;
    need.activations = flight * ((layers - dense) * s->kept + dense * s->dense_kept);
    need.total = need.parameters + need.gradients + need.optimizer + need.activations + need.ends +
                 need.buffers + need.reserve;
    return need;
}

Status memory_of_rank(const CostModel *costs, const ModelShape *model, const ParallelConfig *config, int rank,
                      MemoryNeed *need) {
    Sizes sizes;
    TRY(sizes_of(&sizes, costs, model, config));
    *need = need_of(&sizes, rank);
    return OK;
}

Status memory_need(const CostModel *costs, const ModelShape *model, const ParallelConfig *config,
                   MemoryNeed *need) {
    Sizes sizes;
    TRY(sizes_of(&sizes, costs, model, config));
    *need = need_of(&sizes, 0);
    for (int rank = 1; rank < grid_along(config->grid, AXIS_PP); rank++) {
        MemoryNeed one = need_of(&sizes, rank);
        if (one.total > need->total) *need = one;
    }
    return OK;
}

// Half of what driver and libraries are said to keep is how well that is known.
static double allowance_margin(const MemoryNeed *need) { return 0.5 * need->reserve / need->total; }

// The total is measured in trireme's own step, but for what driver and libraries keep on a GPU. State and activations
// are those of the closed form; buffers are the remainder.
static Status own_need(const CostModel *costs, const ModelShape *model, const ParallelConfig *config,
                       MemoryNeed *need) {
    size_t bytes, host;
    int rank;
    TRY(trireme_memory(model, config, &bytes, &host, &rank));
    TRY(memory_of_rank(costs, model, config, rank, need));
    double state = need->parameters + need->gradients + need->optimizer;
    need->total = (double)bytes + need->reserve;
    need->activations = fmax(0, fmin(need->activations, (double)bytes - state));
    need->buffers = (double)bytes - state - need->activations;
    need->ends = 0;
    need->margin = allowance_margin(need);
    need->host = (double)host;
    need->guessed = (double)trireme_guessed_workspace(model, config);
    return OK;
}

Status memory_exact(const CostModel *costs, const ModelShape *model, const ParallelConfig *config,
                    MemoryNeed *need) {
    int ranks = grid_along(config->grid, AXIS_CP);
    bool cuts = ranks == 1 || model->sequence % (2 * ranks) == 0;
    bool runs = cuts && model->layers % num_stages(config) == 0 && !config->slow.layers;
    if (!costs->stack->is_trireme || !runs) return memory_need(costs, model, config, need);
    return own_need(costs, model, config, need);
}

Verdict memory_verdict(const MemoryNeed *need) {
    if (need->total * (1 + need->margin) <= need->capacity) return FITS;
    return need->total * (1 - need->margin) > need->capacity ? FITS_NOT : FITS_PERHAPS;
}
