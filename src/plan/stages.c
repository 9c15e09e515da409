// The stages of a pipeline: which layers they have, and what forwards, backwards and messages of them cost.
#include "plan/stages.h"
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

// The lower rank of the edge between a stage and the next. Schedules with a placement of their own send over the
// edges between neighbouring ranks in both directions.
static int edge_rank(const Stages *s, int stage) {
    if (!s->kind->stage) return stage;
    int from = rank_of_stage(s, stage), to = rank_of_stage(s, stage + 1);
    return from < to ? from : to;
}

Status stages_open(Stages *s, const CostModel *costs, const Parts *parts, const ModelShape *model,
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

int stages_part_count(const Stages *s, int stage, ModelPart part) {
    int further = stage == s->stages - 1 ? s->further_heads : 0;
    switch (part) {
    case PART_EMBEDDING: return stage == 0;
    case PART_HEAD: return (stage == s->stages - 1) + further;
    case PART_DENSE: return s->dense[stage];
    default: return s->layers[stage] - s->dense[stage] + further;
    }
}

static double stage_sum(const Stages *s, int stage, const PartTime *times) {
    double seconds = 0;
    for (ModelPart part = 0; part < NUM_PARTS; part++)
        seconds += stages_part_count(s, stage, part) * times[part].total;
    return seconds;
}

static LayerExchange in_us(const Stages *s, LayerExchange one) {
    double us = s->slower * US;
    return (LayerExchange){us * one.before_us, us * one.rows_us, us * one.exchange_us,
                           us * one.before_weight_us, us * one.rows_weight_us};
}

// In programs that wait for their messages, a message blocks both its ranks; in others it only arrives later.
void stages_price(Stages *s, const CostModel *costs, const ParallelConfig *config) {
    double held = config->chunks > 1 ? costs->constants.interleaved_hold : 1, message_us[2];
    bool waits = !costs->stack->overlaps_messages;
    for (int leaves = 0; leaves < 2 && s->stages > 1; leaves++)
        message_us[leaves] = s->slower * US * price_message(costs, config, leaves, s->parts->message_bytes);
    for (int stage = 0; stage < s->stages; stage++) {
        s->forward_us[stage] = s->slower * US * stage_sum(s, stage, s->parts->forward);
        s->backward_us[stage] = s->slower * US * stage_sum(s, stage, s->parts->backward);
        s->exchanges[stage] =
            (StageExchange){stages_part_count(s, stage, PART_LAYER), in_us(s, s->parts->exchange_forward),
                            in_us(s, s->parts->exchange_backward)};
        if (stage + 1 == s->stages) break;
        double us = message_us[edge_leaves_node(costs, config, edge_rank(s, stage))];
        s->hop_us[stage] = waits ? 0 : us;
        s->hold_us[stage] = waits ? us * held : 0;
    }
}

ScheduleCosts stages_costs(const Stages *s) {
    return (ScheduleCosts){.stage_forward_us = s->forward_us,
                           .stage_backward_us = s->backward_us,
                           .weight_fraction = s->parts->weight_fraction,
                           .edge_hop_us = s->hop_us,
                           .edge_hold_us = s->hold_us,
                           .stage_exchanges = s->kind->pairs ? s->exchanges : NULL};
}

// The least time of a stage's forward, or backward: pairs hide its messages to experts at best.
static double least_us(const Stages *s, int stage, const LayerExchange *one, const double *times_us) {
    return times_us[stage] - (s->kind->pairs ? 2 * s->exchanges[stage].layers * one->exchange_us : 0);
}

double stages_least_forward_us(const Stages *s, int stage) {
    return least_us(s, stage, &s->exchanges[stage].forward, s->forward_us);
}

double stages_least_backward_us(const Stages *s, int stage) {
    return least_us(s, stage, &s->exchanges[stage].backward, s->backward_us);
}

// What pairs hide of a rank's messages to experts: it is busy for less than its forwards and backwards apart.
double stages_hidden_seconds(const Stages *s, int rank, const Simulation *simulation) {
    double us = 0;
    for (int chunk = 0; chunk < s->chunks && s->kind->pairs; chunk++) {
        int stage = stages_at(s, rank, chunk);
        us += s->microbatches * (s->forward_us[stage] + s->backward_us[stage]);
    }
    return s->kind->pairs ? (us - simulation->busy_us[rank]) / US : 0;
}
