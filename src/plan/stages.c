// Cuts a model into the stages of one pipeline and prices them: the sums of their parts, messages between them, and
// what slow nodes add.
#include "plan/stages.h"
#include "plan/fleet.h"
#include "plan/memory.h"
#include <math.h>
#include <stdlib.h>

static double nodes_of(const CostModel *costs, const ParallelConfig *config) {
    return fmax(1, ceil((double)parallel_config_devices(config) / costs->machine->devices_per_node));
}

// Stragglers and network contention grow with the number of nodes.
static double slower_by_size(const CostModel *costs, const ParallelConfig *config) {
    return costs->machine->is_cpu ? 1 : 1 + costs->constants.straggler * log2(nodes_of(costs, config));
}

int stages_at(const Stages *s, int rank, int chunk) {
    return schedule_kind_stage(s->kind, &s->spec, rank, chunk);
}

static int rank_of_stage(const Stages *s, int stage) {
    for (int place = 0; place < s->stages; place++)
        if (stages_at(s, place / s->chunks, place % s->chunks) == stage) return place / s->chunks;
    CHECK(false, "no rank holds stage %d", stage);
    return -1;
}

int stages_rank(const Stages *s, int stage) {
    return s->kind->stage ? rank_of_stage(s, stage) : stage % s->ranks;
}

// The lower rank of the edge between a stage and the next. Schedules with a placement of their own send over the
// edges between neighbouring ranks in both directions.
static int edge_rank(const Stages *s, int stage) {
    if (!s->kind->stage) return stage;
    int from = rank_of_stage(s, stage), to = rank_of_stage(s, stage + 1);
    return from < to ? from : to;
}

static Status fill_layers(Stages *s, const CostModel *costs, const Parts *parts, const ModelShape *model,
                          const ParallelConfig *config) {
    size_t stages = (size_t)grid_along(config->grid, AXIS_PP) * (size_t)config->chunks;
    *s = (Stages){.parts = parts,
                  .ranks = grid_along(config->grid, AXIS_PP),
                  .chunks = config->chunks,
                  .stages = (int)stages,
                  .microbatches = parallel_config_microbatches(config),
                  .kind = parallel_config_kind(config),
                  .spec = parallel_config_schedule(config),
                  .slower = slower_by_size(costs, config),
                  .further_heads = config->further_heads};
    s->exchanges = s->memory = calloc(stages, sizeof *s->exchanges + 4 * sizeof(double) + 2 * sizeof(int));
    if (!s->memory) return fail(ERR_OS, "no memory for %zu stages", stages);
    double *numbers = (double *)(s->exchanges + stages);
    s->forward_us = numbers, s->backward_us = numbers + stages;
    s->hop_us = numbers + 2 * stages, s->hold_us = numbers + 3 * stages;
    s->layers = (int *)(numbers + 4 * stages), s->dense = s->layers + stages;
    s->last_rank = rank_of_stage(s, s->stages - 1);
    Status status = parallel_config_layers(costs->stack, model, config, s->layers);
    for (int stage = 0, first = 0; status == OK && stage < s->stages; first += s->layers[stage++])
        s->dense[stage] = model_dense_layers(model, first, s->layers[stage]);
    if (status != OK) free(s->memory);
    return status;
}

void stages_close(Stages *s) { free(s->memory); }

int stages_count(const Stages *s, int stage, ModelPart part) {
    int further = stage == s->stages - 1 ? s->further_heads : 0;
    switch (part) {
    case PART_EMBEDDING: return stage == 0;
    case PART_HEAD: return (stage == s->stages - 1) + further;
    case PART_DENSE: return s->dense[stage];
    default: return s->layers[stage] - s->dense[stage] + further;
    }
}

// Of one microbatch on a rank of a stage; computing, and messages between nodes, take longer where it has slow nodes.
static double stage_us(const Stages *s, int stage, const PartTime *times, SlowFactors slow) {
    double seconds = 0;
    for (ModelPart part = 0; part < NUM_PARTS; part++) {
        const PartTime *time = &times[part];
        double computed = time->total - time->tensor - time->experts;
        seconds += stages_count(s, stage, part) *
                   (slow.compute * computed + slow.tensor * time->tensor + slow.experts * time->experts);
    }
    return s->slower * US * seconds;
}

// In programs that wait for their messages, a message blocks both its ranks; in others it only arrives later.
static void price_edge(Stages *s, const CostModel *costs, const ParallelConfig *config, int stage,
                       const double message_us[2]) {
    double held = config->chunks > 1 ? costs->constants.interleaved_hold : 1;
    bool posts = costs->stack->overlaps_messages || (costs->stack->steps_apart && s->kind->splits_backward);
    bool leaves = edge_leaves_node(costs, config, edge_rank(s, stage));
    double us = message_us[leaves];
    if (leaves) us *= slow_edge(costs, config, stages_rank(s, stage), stages_rank(s, stage + 1));
    s->hop_us[stage] = posts ? us : 0;
    s->hold_us[stage] = posts ? 0 : us * held;
}

// Computing, and messages to experts, take longer where a rank has slow nodes, as in stage_us.
static LayerExchange in_us(const Stages *s, LayerExchange one, SlowFactors slow) {
    double us = s->slower * US, compute_us = us * slow.compute;
    return (LayerExchange){.before_us = compute_us * one.before_us,
                           .rows_us = compute_us * one.rows_us,
                           .exchange_us = us * slow.experts * one.exchange_us,
                           .before_weight_us = compute_us * one.before_weight_us,
                           .rows_weight_us = compute_us * one.rows_weight_us};
}

static void price_stages(Stages *s, const CostModel *costs, const ParallelConfig *config) {
    double message_us[2];
    for (int leaves = 0; leaves < 2 && s->stages > 1; leaves++)
        message_us[leaves] = s->slower * US * price_message(costs, config, leaves, s->parts->message_bytes);
    for (int stage = 0; stage < s->stages; stage++) {
        SlowFactors slow = slow_factors(costs, config, stages_rank(s, stage));
        s->forward_us[stage] = stage_us(s, stage, s->parts->forward, slow);
        s->backward_us[stage] = stage_us(s, stage, s->parts->backward, slow);
        s->exchanges[stage] =
            (StageExchange){stages_count(s, stage, PART_LAYER), in_us(s, s->parts->exchange_forward, slow),
                            in_us(s, s->parts->exchange_backward, slow)};
        if (stage + 1 < s->stages) price_edge(s, costs, config, stage, message_us);
    }
}

Status stages_open(Stages *s, const CostModel *costs, const Parts *parts, const ModelShape *model,
                   const ParallelConfig *config) {
    TRY(fill_layers(s, costs, parts, model, config));
    price_stages(s, costs, config);
    return OK;
}

ScheduleCosts stages_costs(const Stages *s) {
    return (ScheduleCosts){.stage_forward_us = s->forward_us,
                           .stage_backward_us = s->backward_us,
                           .weight_fraction = s->parts->weight_fraction,
                           .edge_hop_us = s->hop_us,
                           .edge_hold_us = s->hold_us,
                           .stage_exchanges = s->kind->pairs ? s->exchanges : NULL};
}

// The least time of a stage: pairs hide its messages to experts at best.
static double least_us(const Stages *s, int stage, const LayerExchange *one, const double *times_us) {
    return times_us[stage] - (s->kind->pairs ? 2 * s->exchanges[stage].layers * one->exchange_us : 0);
}

static double least_forward_us(const Stages *s, int stage) {
    return least_us(s, stage, &s->exchanges[stage].forward, s->forward_us);
}

static double least_backward_us(const Stages *s, int stage) {
    return least_us(s, stage, &s->exchanges[stage].backward, s->backward_us);
}

// A rank starts when the first microbatch has come down to it, and ends after the last one has gone back from it,
// unless weight gradients are computed last.
double stages_bound_s(const Stages *s) {
    double most = 0, before = 0;
    for (int rank = 0; rank < s->ranks; rank++) {
        double us = 0;
        for (int chunk = 0; chunk < s->chunks; chunk++) {
            int stage = stages_at(s, rank, chunk);
            us += least_forward_us(s, stage) + least_backward_us(s, stage);
        }
        most = fmax(most, before + s->microbatches * us);
        int first = stages_at(s, rank, 0);
        before += least_forward_us(s, first) + (s->kind->splits_backward ? 0 : least_backward_us(s, first));
    }
    return most / US;
}

// A rank is busy for less than its forwards and backwards take apart.
double stages_hidden_seconds(const Stages *s, int rank, const Simulation *simulation) {
    double us = 0;
    if (!s->kind->pairs) return 0;
    for (int chunk = 0; chunk < s->chunks; chunk++) {
        int stage = stages_at(s, rank, chunk);
        us += s->microbatches * (s->forward_us[stage] + s->backward_us[stage]);
    }
    return (us - simulation->busy_us[rank]) / US;
}
