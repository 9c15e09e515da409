// Times of the parts of a model (embedding, layer, head) for one microbatch, priced from recorded work and cached.
#include "plan/parts.h"
#include "base/hash.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- keys ----------------------------------------------------------------------------------------

// All that the times of parts depend on; the rest of a configuration does not change them. Keys are compared as
// bytes, so they are made from zeroed memory. The work is recorded without recomputation, which is added to its
// price.
typedef struct {
    ModelShape model;
    int tp, cp, ep, etp, microbatch;
    Recompute recompute;
    ContextWay context_way;
    AttentionKind attention;
    DType dtype;
    FactorFormat factors;
    int sequence_parallel, overlap_tensor, groups_experts, sends_pairs;
    int muon_iterations, muon_splits; // queries, keys and values apart
    char device[16];
} Key;

typedef struct {
    Key key;
    uint64_t hash;
    Work work;
    Constants constants; // with which the parts were priced
    const Machine *machine;
    const Stack *stack;
    int busy_ranks; // ranks of a node that compute at once: on a CPU they share its memory bandwidth
    Parts parts;
} Entry;

struct PlanCache {
    Entry **entries;
    int *slots; // hash table with open addressing: index + 1 of an entry, 0: empty
    int count, capacity, num_slots;
};

static Key key_of(const ModelShape *model, const ParallelConfig *c) {
    Key key;
    memset(&key, 0, sizeof key);
    memcpy(&key.model, model, sizeof *model);
    if (!model->experts_period && !model->window_period) key.model.layers = 0;
    key.tp = grid_along(c->grid, AXIS_TP);
    key.cp = grid_along(c->grid, AXIS_CP);
    if (model->experts) {
        key.ep = grid_along(c->grid, AXIS_EP), key.etp = grid_along(c->grid, AXIS_ETP);
        key.groups_experts = c->groups_experts, key.sends_pairs = c->sends_pairs;
    }
    key.microbatch = c->microbatch;
    key.recompute = c->recompute;
    if (key.cp > 1) key.context_way = c->context_way;
    key.attention = c->attention;
    key.dtype = c->dtype;
    key.factors = c->factors;
    key.sequence_parallel = c->sequence_parallel;
    key.overlap_tensor = c->overlap_tensor;
    key.muon_iterations = c->muon.iterations;
    key.muon_splits = c->muon.split_qkv;
    if (c->device) snprintf(key.device, sizeof key.device, "%s", c->device);
    return key;
}

// ---- the cache -----------------------------------------------------------------------------------

Status plan_cache_open(PlanCache **cache) {
    *cache = calloc(1, sizeof **cache);
    return *cache ? OK : fail(ERR_OS, "no memory for a plan");
}

void plan_cache_close(PlanCache *cache) {
    if (!cache) return;
    for (int i = 0; i < cache->count; i++) {
        work_free(&cache->entries[i]->work);
        free(cache->entries[i]);
    }
    free(cache->entries);
    free(cache->slots);
    free(cache);
}

static int *find_slot(const PlanCache *cache, const Key *key, uint64_t hash) {
    uint64_t mask = (uint64_t)cache->num_slots - 1;
    for (uint64_t i = hash & mask;; i = (i + 1) & mask) {
        int *slot = &cache->slots[i];
        if (!*slot) return slot;
        const Entry *entry = cache->entries[*slot - 1];
        if (entry->hash == hash && !memcmp(&entry->key, key, sizeof *key)) return slot;
    }
}

static Status grow(PlanCache *cache) {
    int capacity = cache->capacity ? 2 * cache->capacity : 64, num_slots = 4 * capacity;
    Entry **entries = realloc(cache->entries, (size_t)capacity * sizeof *entries);
    if (entries) cache->entries = entries;
    int *slots = calloc((size_t)num_slots, sizeof *slots);
    if (!entries || !slots) {
        free(slots);
        return fail(ERR_OS, "no memory for a plan of %d parts", capacity);
    }
    free(cache->slots);
    cache->slots = slots;
    cache->capacity = capacity;
    cache->num_slots = num_slots;
    for (int i = 0; i < cache->count; i++)
        *find_slot(cache, &cache->entries[i]->key, cache->entries[i]->hash) = i + 1;
    return OK;
}

// ---- prices --------------------------------------------------------------------------------------

static const ModelPart layer_parts[] = {PART_LAYER, PART_DENSE};

// The host launches while the device computes: the longer of the two, and a little more where both take about as
// long.
static double overlap(double host, double device) {
    double longer = fmax(host, device), ratio = longer > 0 ? fmin(host, device) / longer : 0;
    double cube = ratio * ratio * ratio;
    return longer * pow(1 + cube * cube, 1.0 / 6);
}

static bool is_attention(const WorkItem *item) {
    return item->kind == WORK_OP && (item->op == OP_ATTENTION_FORWARD || item->op == OP_ATTENTION_BACKWARD);
}

// The step waits for the rank whose experts have most tokens.
static double imbalance(const CostModel *costs, const WorkItem *item) {
    bool of_experts = item->kind == WORK_OP ? item->of_experts : item->role == ROLE_EXPERT;
    return of_experts ? costs->constants.expert_imbalance : 1;
}

// Trireme's attention has values as wide as queries and keys; that of other programs has not.
static double narrower(const CostModel *costs, const ModelShape *model, const WorkItem *item) {
    if (costs->stack->is_trireme || !is_attention(item)) return 1;
    return 0.5 + 0.5 * model_value_size(model) / model_core_columns(model);
}

// Programs that have no kernel of their own for it add the biases of experts to their rows one expert after the other.
static double biased(const CostModel *costs, const ModelShape *model, const WorkItem *item) {
    bool activates = item->op == OP_SWIGLU_FORWARD || item->op == OP_SWIGLU_BACKWARD;
    return item->of_experts && activates && model_has_mlp_bias(model) ? costs->constants.biased_passes : 1;
}

static double item_seconds(const CostModel *costs, const ModelShape *model, const ParallelConfig *config,
                           const WorkItem *item) {
    return price_operation(costs, config, item) * imbalance(costs, item) * narrower(costs, model, item) *
           biased(costs, model, item);
}

// Seconds of a list: operations on the device, collectives over tp, messages to experts and back.
typedef struct {
    double device, tensor, experts;
    double rows;                                       // of `device`: the work on the rows of experts
    double gradients;                                  // of `device`: the products that make weight gradients
    double launches, row_launches, products, routings; // row_launches, products: of experts
    double factors; // making factors of weights, which other programs do once per step
} Price;

// Other programs than trireme gather the inputs of products as factors already, and scale each rank's part of a weight
// by itself, so that no largest magnitude is reduced.   Source: Transformer Engine, current scaling
static double sent_bytes(const CostModel *costs, const ParallelConfig *config, const WorkItem *item) {
    bool largest = item->bytes <= sizeof(float) && (item->role == ROLE_TENSOR || item->role == ROLE_CONTEXT);
    if (!config->factors || costs->stack->is_trireme) return item->bytes;
    if (item->op == COMM_ALL_GATHER && item->role == ROLE_TENSOR)
        return item->bytes * factor_format_bytes(config->factors) / (double)dtype_bytes(config->dtype);
    return largest ? 0 : item->bytes;
}

static double collective_seconds(const CostModel *costs, const ModelShape *model,
                                 const ParallelConfig *config, const WorkItem *item) {
    double bytes = sent_bytes(costs, config, item);
    if (item->role == ROLE_EXPERT) return price_dispatch(costs, model, config, bytes);
    if (item->op == COMM_SEND) return price_context(costs, config, bytes);
    return bytes > 0 ? price_collective(costs, config, (CommOp)item->op, (Role)item->role, bytes) : 0;
}

static Price price_list(const CostModel *costs, const ModelShape *model, const ParallelConfig *config,
                        const WorkList *list) {
    Price price = {0};
    for (int i = 0; i < list->count; i++) {
        const WorkItem *item = &list->items[i];
        if (item->kind == WORK_COLLECTIVE) {
            double *sum = item->role == ROLE_EXPERT ? &price.experts : &price.tensor;
            *sum += collective_seconds(costs, model, config, item) * imbalance(costs, item);
            continue;
        }
        double seconds = item_seconds(costs, model, config, item);
        if (item->of_weight && !costs->stack->is_trireme) {
            price.factors += seconds;
            continue;
        }
        price.device += seconds;
        if (item->accumulate) price.gradients += seconds;
        if (item->of_experts) {
            price.rows += seconds;
            price.row_launches += operation_launches(costs, item);
            price.products += work_item_is_product(item) ? (double)item->batch : 0;
        } else {
            price.launches += operation_launches(costs, item);
        }
        price.routings += item->op == OP_SORT_PAIRS || item->op == OP_COMBINE_BACKWARD;
    }
    return price;
}

// Of the host, for what works on the rows of experts.
static double row_host_seconds(const Constants *c, const Price *price) {
    return 1e-6 * (price->row_launches * c->launch_us + price->products * c->expert_launch_us) +
           1e-3 * price->routings * c->routing_ms;
}

// Where the program overlaps messages to experts with computing, that hides as much of them as it takes.
static double exposed_messages(const CostModel *costs, const Price *price) {
    double least = costs->constants.expert_exposed * price->experts;
    return costs->constants.expert_exposed < 1 ? fmax(least, price->experts - price->device) : least;
}

// The host goes on launching while collectives run. Where it waits for the numbers of rows, the device then waits for
// what works on them; the rest of a layer is already launched when the device comes to it.
static PartTime part_time(const CostModel *costs, const Price *price, double tensor, bool waits) {
    const Constants *c = &costs->constants;
    double host = price->launches * c->launch_us * 1e-6, host_rows = row_host_seconds(c, price);
    if (costs->machine->is_cpu) host = host_rows = 0;
    double experts = exposed_messages(costs, price);
    double device = price->device + tensor + experts, rows = price->rows + experts;
    double total = overlap(host + host_rows, device);
    if (waits) total = fmax(total, overlap(host_rows, rows) + device - rows);
    double longer = device > 0 ? total / device : 0;
    return (PartTime){total, tensor * longer, experts * longer};
}

// Seconds of a backward that its weight gradients take.
static double weight_seconds(const Price *price, const PartTime *backward) {
    double device = backward->total - backward->tensor - backward->experts;
    return price->device > 0 ? device * price->gradients / price->device : 0;
}

// Splits the time of a layer's forward or backward into what a pair of the schedule can hide, and what can hide it.
static LayerExchange layer_exchange(const CostModel *costs, const ModelShape *model,
                                    const ParallelConfig *config, const WorkList *list,
                                    const PartTime *whole) {
    double all = 0, rows = 0, weights = 0, rows_weights = 0,
           computes = whole->total - whole->tensor - whole->experts;
    for (int i = 0; i < list->count; i++) {
        const WorkItem *item = &list->items[i];
        if (item->kind == WORK_COLLECTIVE) continue;
        double seconds = item_seconds(costs, model, config, item), weight = item->accumulate ? seconds : 0;
        all += seconds, weights += weight;
        if (item->of_experts) rows += seconds, rows_weights += weight;
    }
    if (!(whole->experts > 0) || !(all > 0)) return (LayerExchange){0};
    return (LayerExchange){.before_us = whole->tensor + computes * (all - rows) / all,
                           .rows_us = computes * rows / all,
                           .exchange_us = whole->experts / 2,
                           .before_weight_us = computes * (weights - rows_weights) / all,
                           .rows_weight_us = computes * rows_weights / all};
}

// The share of a backward's collectives that overlaps with the weight gradients of the two linear layers with
// gathered inputs: all all-reduces; with sequence parallelism two thirds of the gathers and scatters, or only the
// third that gathers those inputs again.   Source: Korthikanti 2022, section 4.2.2
static double hidden_share(const Stack *stack, const ParallelConfig *config) {
    bool sequence = config->sequence_parallel;
    if (stack->overlaps_backward) return sequence ? 2.0 / 3 : 1;
    return stack->hides_gathers && sequence ? 1.0 / 3 : 0;
}

static double backward_tensor(const CostModel *costs, const ParallelConfig *config, const Price *price) {
    static const double first_products = 7.0 / 12; // their share of the arithmetic of all weight gradients
    double tensor = price->tensor;
    if (config->overlap_tensor) tensor *= costs->constants.tensor_backward_exposed;
    return tensor - fmin(tensor * hidden_share(costs->stack, config), first_products * price->gradients);
}

// Selective recomputation runs the attention of a layer's forward again.
static void add_attention_again(Parts *parts, const CostModel *costs, const ModelShape *model,
                                const ParallelConfig *config, ModelPart part, const WorkList *forward) {
    for (int i = 0; i < forward->count; i++) {
        const WorkItem *item = &forward->items[i];
        if (item->kind != WORK_OP || item->op != OP_ATTENTION_FORWARD) continue;
        double seconds = item_seconds(costs, model, config, item);
        parts->again[part] += seconds;
        parts->backward[part].total += seconds;
        parts->flops[part] += item->flops;
    }
}

static void add_again(Parts *parts, const CostModel *costs, const ModelShape *model,
                      const ParallelConfig *config, ModelPart part, const WorkList *forward) {
    const PartTime *whole = &parts->forward[part];
    PartTime *backward = &parts->backward[part];
    if (config->recompute == RECOMPUTE_SELECTIVE)
        add_attention_again(parts, costs, model, config, part, forward);
    if (config->recompute < RECOMPUTE_UNIFORM) return;
    backward->total += whole->total;
    backward->tensor += whole->tensor, backward->experts += whole->experts;
    parts->again[part] = whole->total - whole->tensor - whole->experts;
    parts->flops[part] += work_flops(forward);
}

// Programs whose loss needs the whole vocabulary gather the logits first.
static void add_gathered_logits(Parts *parts, const CostModel *costs, const ParallelConfig *config,
                                const ModelShape *model) {
    if (!costs->stack->gathers_logits || grid_along(config->grid, AXIS_TP) == 1) return;
    double logits =
        (double)model->sequence / grid_along(config->grid, AXIS_CP) * config->microbatch * model->vocabulary;
    double seconds = price_collective(costs, config, COMM_ALL_GATHER, ROLE_TENSOR,
                                      logits * (double)dtype_bytes(config->dtype));
    parts->forward[PART_HEAD].total += seconds, parts->forward[PART_HEAD].tensor += seconds;
}

static void price_parts(const CostModel *costs, const ModelShape *model, const ParallelConfig *config,
                        Entry *entry) {
    Parts *parts = &entry->parts;
    const Work *work = &entry->work;
    double exposed = config->overlap_tensor ? costs->constants.tensor_exposed : 1, weights[NUM_PARTS];
    *parts = (Parts){.message_bytes = work->stage_message_bytes};
    for (int p = 0; p < NUM_PARTS; p++) {
        ParallelConfig whole = *config; // embedding and head have no products of such factors
        if (p == PART_EMBEDDING || p == PART_HEAD) whole.factors = FACTORS_WHOLE;
        Price forward = price_list(costs, model, &whole, &work->forward[p]);
        Price backward = price_list(costs, model, &whole, &work->backward[p]);
        parts->forward[p] = part_time(costs, &forward, exposed * forward.tensor, true);
        parts->backward[p] = part_time(costs, &backward, backward_tensor(costs, config, &backward), false);
        parts->flops[p] = work_flops(&work->forward[p]) + work_flops(&work->backward[p]);
        parts->parameters[p] = (double)work->parameters[p];
        if (p == PART_LAYER) parts->factors = forward.factors + backward.factors;
        weights[p] = weight_seconds(&backward, &parts->backward[p]);
    }
    parts->exchange_forward =
        layer_exchange(costs, model, config, &work->forward[PART_LAYER], &parts->forward[PART_LAYER]);
    parts->exchange_backward =
        layer_exchange(costs, model, config, &work->backward[PART_LAYER], &parts->backward[PART_LAYER]);
    parts->expert_parameters = (double)work->expert_parameters;
    parts->parameters[PART_LAYER] -= parts->expert_parameters;
    Price muon = price_list(costs, model, config, &work->muon);
    parts->muon = part_time(costs, &muon, muon.tensor, false).total;
    parts->matrix_parameters = (double)work->matrix_parameters;
    parts->matrices = work->matrices;
    add_gathered_logits(parts, costs, config, model);
    for (int i = 0; i < 2; i++)
        add_again(parts, costs, model, config, layer_parts[i], &work->forward[layer_parts[i]]);
    double backward_s = parts->backward[PART_LAYER].total;
    parts->weight_fraction = backward_s > 0 ? weights[PART_LAYER] / backward_s : 0;
    entry->constants = costs->constants;
    entry->machine = costs->machine;
    entry->stack = costs->stack;
    entry->busy_ranks = cost_model_busy_ranks(costs, config);
}

static Status add_entry(PlanCache *cache, const Key *key, uint64_t hash, const ModelShape *model,
                        const ParallelConfig *config, Entry **out) {
    if (cache->count == cache->capacity) TRY(grow(cache));
    Entry *entry = calloc(1, sizeof *entry);
    if (!entry) return fail(ERR_OS, "no memory for a part of a plan");
    memcpy(&entry->key, key, sizeof *key);
    entry->hash = hash;
    ParallelConfig whole = *config;
    whole.recompute = RECOMPUTE_NOTHING;
    Status status = work_record(&entry->work, model, &whole);
    if (status != OK) {
        free(entry);
        return status;
    }
    *find_slot(cache, key, hash) = cache->count + 1;
    cache->entries[cache->count++] = entry;
    *out = entry;
    return OK;
}

Status parts_of(PlanCache *cache, const CostModel *costs, const ModelShape *model,
                const ParallelConfig *config, const Parts **parts) {
    Key key = key_of(model, config);
    uint64_t hash = hash64_of(&key, sizeof key);
    int found = cache->num_slots ? *find_slot(cache, &key, hash) : 0;
    Entry *entry = found ? cache->entries[found - 1] : NULL;
    if (!entry) TRY(add_entry(cache, &key, hash, model, config, &entry));
    bool priced = entry->machine == costs->machine && entry->stack == costs->stack &&
                  entry->busy_ranks == cost_model_busy_ranks(costs, config) &&
                  !memcmp(&entry->constants, &costs->constants, sizeof costs->constants);
    if (!priced) price_parts(costs, model, config, entry);
    *parts = &entry->parts;
    return OK;
}
