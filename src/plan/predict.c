// Predicts one configuration's step: sums the parts of each stage, replays the schedule with these times, and adds
// what every step ends with. All data-parallel replicas do the same, so one pipeline stands for all.
#include "machine/rates.h"
#include "plan/fleet.h"
#include "plan/stages.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- the end of a step ------------------------------------------------------------------------------

// Parameters of all stages of a rank: those that all data-parallel ranks have, and those of experts. A tied table has a
// copy on the last rank, and so have further heads.
typedef struct {
    double dense, experts;
} Held;

static Held rank_parameters(const Stages *s, const ModelShape *model, int rank) {
    Held held = {0};
    for (int chunk = 0; chunk < s->chunks; chunk++) {
        int stage = stages_at(s, rank, chunk), further = stage == s->stages - 1 ? s->further_heads : 0;
        for (ModelPart part = 0; part < NUM_PARTS; part++) {
            int count = stages_count(s, stage, part) - (part == PART_HEAD ? further : 0);
            held.dense += count * s->parts->parameters[part];
        }
        held.experts += stages_count(s, stage, PART_LAYER) * s->parts->expert_parameters;
    }
    bool copies = !model->untied && rank && rank == s->last_rank;
    held.dense += copies ? s->parts->parameters[PART_EMBEDDING] : 0;
    return held;
}

static Held most_parameters(const Stages *s, const ModelShape *model) {
    Held most = {0};
    for (int rank = 0; rank < s->ranks; rank++) {
        Held one = rank_parameters(s, model, rank);
        if (one.dense + one.experts > most.dense + most.experts) most = one;
    }
    return most;
}

// The part of a reduction or gather that does not overlap with computing, if the program overlaps them: what exceeds
// the window, at least a fixed share.
static double exposed_seconds(const CostModel *costs, const ParallelConfig *config, double seconds,
                              double window) {
    if (!config->overlap_gradients) return seconds;
    return fmax(costs->constants.data_exposed * seconds, seconds - window);
}

// The same where weights are cut: each layer waits for its gather, and each gather for room, so that where computing
// and gathering take about as long, both take longer than either. Together they take the root of the sum of squares: of
// the exponents 2, 2.5 and 3 the one that suits the runs of Narayanan 2021, table 2.
static double exposed_of_units(const CostModel *costs, const ParallelConfig *config, double seconds,
                               double window) {
    double hidden = exposed_seconds(costs, config, seconds, window);
    return config->overlap_gradients ? fmax(hidden, hypot(seconds, window) - window) : hidden;
}

// Bytes of each gradient in its reduction; the stack says them for 16-bit parameters.
static double gradient_bytes(const CostModel *costs, const ParallelConfig *config) {
    return config->dtype == F32 ? 4 : costs->stack->gradient_bytes;
}

// Collectives slow down with the number of nodes as the computing does that hides them. Experts have replicas of their
// own. `part`: all replicas, those that have all shards, or those that have the same one.
static double over_replicas(const CostModel *costs, const ParallelConfig *config, const Stages *s, CommOp op,
                            RolePart part, Held held, double bytes) {
    static const Role roles[][2] = {
        [PART_WHOLE] = {ROLE_REPLICAS, ROLE_EXPERT_REPLICAS},
        [PART_INSTANCE] = {ROLE_REPLICAS_SHARDS, ROLE_EXPERT_REPLICAS_SHARDS},
        [PART_ACROSS] = {ROLE_REPLICAS_COPIES, ROLE_EXPERT_REPLICAS_COPIES},
    };
    double seconds = price_collective(costs, config, op, roles[part][0], held.dense * bytes);
    if (held.experts > 0)
        seconds += price_collective(costs, config, op, roles[part][1], held.experts * bytes);
    return s->slower * seconds;
}

// The shards of gradients are summed over the instances once a step.
static double over_instances(const CostModel *costs, const ParallelConfig *config, const Stages *s,
                             Held held) {
    Held shard = {held.dense / grid_count(config->grid, ROLE_REPLICAS_SHARDS),
                  held.experts / grid_count(config->grid, ROLE_EXPERT_REPLICAS_SHARDS)};
    return over_replicas(costs, config, s, COMM_ALL_REDUCE, PART_ACROSS, shard,
                         gradient_bytes(costs, config));
}

// The exposed time of reductions and gathers over the replicas: gradients are all-reduced; with a distributed
// optimizer they are reduce-scattered during the backward, and parameters gathered during the forward. Zero stage 2
// scatters after each microbatch, trireme once unless it is asked to; zero stage 3 also gathers for each forward and
// each backward. The sums over instances follow the last scatter of each part, behind the rest of that backward;
// trireme makes them when all gradients are there.
//   network: a factor on all of them
static double reduction_seconds(const CostModel *costs, const ParallelConfig *config, const Stages *s,
                                Held held, double network) {
    int zero = config->zero_stage;
    bool own = costs->stack->is_trireme,
         again = zero > 1 && (!own || config->reduce_every); // each microbatch
    double forward = 0, backward = 0, count = again || zero > 2 ? 1 : schedule_kind_window(s->kind, &s->spec);
    double bytes = gradient_bytes(costs, config), times = s->microbatches;
    if (grid_count(config->grid, ROLE_REPLICAS) == 1) return 0;
    for (int chunk = 0; chunk < s->chunks; chunk++) {
        forward += count * s->forward_us[stages_at(s, 0, chunk)] / US;
        backward += count * s->backward_us[stages_at(s, 0, chunk)] / US;
    }
    if (zero == 0)
        return exposed_seconds(
            costs, config,
            network * over_replicas(costs, config, s, COMM_ALL_REDUCE, PART_WHOLE, held, bytes), backward);
    double scatter =
        network * over_replicas(costs, config, s, COMM_REDUCE_SCATTER, PART_INSTANCE, held, bytes);
    double gather = network * over_replicas(costs, config, s, COMM_ALL_GATHER, PART_INSTANCE, held,
                                            (double)dtype_bytes(config->dtype));
    double across = network * over_instances(costs, config, s, held), last = scatter + (own ? 0 : across);
    double scatters = again ? times : 1, seconds = own ? across : 0; // backwards with a scatter
    if (zero < 3)
        return seconds + exposed_seconds(costs, config, gather, forward) +
               (scatters - 1) * exposed_seconds(costs, config, scatter, backward) +
               exposed_seconds(costs, config, last, backward);
    return seconds + times * exposed_of_units(costs, config, gather, forward) +
           (times - scatters) * exposed_of_units(costs, config, gather, backward) +
           (scatters - 1) * exposed_of_units(costs, config, gather + scatter, backward) +
           exposed_of_units(costs, config, gather + last, backward);
}

// All-reduces the gradients of the two copies of a tied table, between the first and the last stage.
static double table_seconds(const CostModel *costs, const ModelShape *model, const ParallelConfig *config,
                            const Stages *s) {
    if (model->untied || !s->last_rank) return 0;
    // The ends are half of the machine apart: on one node only if all ranks are.
    ParallelConfig ends = *config;
    ends.grid = (Grid)GRID((parallel_config_devices(config) + 1) / 2, 2, 1);
    double bytes = s->parts->parameters[PART_EMBEDDING] * gradient_bytes(costs, config);
    return s->slower * price_collective(costs, &ends, COMM_ALL_REDUCE, ROLE_REPLICAS, bytes);
}

// Of so many parameters, of which `role` has all shards.
static double stepping_seconds(const CostModel *costs, const ParallelConfig *config, Role role,
                               double parameters) {
    const Constants *c = &costs->constants;
    double shares = config->zero_stage ? grid_count(config->grid, role) : 1,
           here = (1 - config->offload) / shares;
    double host = price_offload(costs, config, parameters * config->offload / shares);
    if (cost_model_has_rates(costs))
        return host + price_step_by_rates(costs->machine, parameters * here, config->dtype,
                                          cost_model_busy_ranks(costs, config)) /
                          c->memory_efficiency;
    double bytes = c->optimizer_whole_bytes + (c->optimizer_bytes - c->optimizer_whole_bytes) * here;
    return host + parameters * bytes / (costs->machine->memory_gbs * 1e9 * c->stream_efficiency);
}

static double optimizer_seconds(const CostModel *costs, const ParallelConfig *config, Held held) {
    double seconds = stepping_seconds(costs, config, ROLE_REPLICAS_SHARDS, held.dense);
    if (!(held.experts > 0)) return seconds;
    return seconds + stepping_seconds(costs, config, ROLE_EXPERT_REPLICAS_SHARDS, held.experts);
}

// ---- Muon -------------------------------------------------------------------------------------------

// The most layers of a rank.
static double most_layers(const Stages *s) {
    double most = 0;
    for (int rank = 0; rank < s->ranks; rank++) {
        double layers = 0;
        for (int chunk = 0; chunk < s->chunks; chunk++) layers += s->layers[stages_at(s, rank, chunk)];
        most = fmax(most, layers);
    }
    return most;
}

// Each replica makes some of a rank's matrices orthogonal. The momentum and the step itself cost what AdamW's do.
static double muon_seconds(const ParallelConfig *config, const Stages *s) {
    double layers = most_layers(s), matrices = layers * s->parts->matrices;
    if (!(matrices > 0)) return 0;
    return layers * s->parts->muon * ceil(matrices / grid_count(config->grid, ROLE_REPLICAS)) / matrices;
}

// The replicas exchange updates and results in fp32 after the backward: results are all-reduced; with a distributed
// optimizer updates are gathered and results scattered.
static double muon_exchange_seconds(const CostModel *costs, const ParallelConfig *config, const Stages *s) {
    Held matrices = {.dense = most_layers(s) * s->parts->matrix_parameters};
    if (grid_count(config->grid, ROLE_REPLICAS) == 1 || !(matrices.dense > 0)) return 0;
    if (!config->zero_stage) return over_replicas(costs, config, s, COMM_ALL_REDUCE, PART_WHOLE, matrices, 4);
    return over_replicas(costs, config, s, COMM_ALL_GATHER, PART_WHOLE, matrices, 4) +
           over_replicas(costs, config, s, COMM_REDUCE_SCATTER, PART_WHOLE, matrices, 4);
}

// ---- the whole step -----------------------------------------------------------------------------------

// The rank that computes longest.
static int busiest(const Stages *s, const Simulation *simulation) {
    int most = 0;
    for (int rank = 1; rank < s->ranks; rank++)
        if (simulation->busy_us[rank] > simulation->busy_us[most]) most = rank;
    return most;
}

// Adds the times of a rank's stages over all microbatches.
static void add_rank_parts(const Stages *s, int rank, SlowFactors slow, Breakdown *parts) {
    for (int chunk = 0; chunk < s->chunks; chunk++) {
        for (ModelPart part = 0; part < NUM_PARTS; part++) {
            const PartTime *forward = &s->parts->forward[part], *backward = &s->parts->backward[part];
            double times = s->slower * s->microbatches * stages_count(s, stages_at(s, rank, chunk), part);
            parts->tensor += times * slow.tensor * (forward->tensor + backward->tensor);
            parts->experts += times * slow.experts * (forward->experts + backward->experts);
            parts->recompute += times * slow.compute * s->parts->again[part];
        }
    }
}

static double host_seconds(const CostModel *costs, const ParallelConfig *config) {
    const Constants *c = &costs->constants;
    if (costs->machine->is_cpu) return 0;
    return 1e-3 * (c->step_ms + c->microbatch_ms * parallel_config_microbatches(config));
}

static void break_down(const Stages *s, const CostModel *costs, const ParallelConfig *config,
                       const Simulation *simulation, Breakdown *parts) {
    double whole_us = costs->stack->steps_apart ? simulation->apart_us : simulation->computed_us;
    int rank = busiest(s, simulation);
    add_rank_parts(s, rank, slow_factors(costs, config, rank), parts);
    parts->experts -= stages_hidden_seconds(s, rank, simulation);
    parts->stages = simulation->message_us[rank] / US;
    parts->compute = simulation->busy_us[rank] / US - parts->tensor - parts->experts;
    parts->bubble = whole_us / US - simulation->busy_us[rank] / US - parts->stages;
}

// Of a rank that holds so much, whose collectives over replicas and whose computing take so much longer.
static Breakdown end_of_rank(const CostModel *costs, const ModelShape *model, const ParallelConfig *config,
                             const Stages *s, Held held, double network, double compute) {
    Breakdown end = {0};
    end.data = reduction_seconds(costs, config, s, held, network) + table_seconds(costs, model, config, s);
    end.data += network * muon_exchange_seconds(costs, config, s);
    end.optimizer = optimizer_seconds(costs, config, held) + muon_seconds(config, s);
    end.optimizer = compute * (end.optimizer + most_layers(s) * s->parts->factors);
    return end;
}

// The step ends with the rank that takes longest.
static void end_step(const CostModel *costs, const ModelShape *model, const ParallelConfig *config,
                     const Stages *s, Breakdown *parts) {
    Breakdown end = end_of_rank(costs, model, config, s, most_parameters(s, model), 1, 1);
    for (int rank = config->slow.first; costs->slow.nodes && rank < config->slow.first + config->slow.count;
         rank++) {
        Breakdown slow =
            end_of_rank(costs, model, config, s, rank_parameters(s, model, rank),
                        slow_replicas(costs, config, rank), slow_factors(costs, config, rank).compute);
        if (slow.data + slow.optimizer > end.data + end.optimizer) end = slow;
    }
    parts->data = end.data, parts->optimizer = end.optimizer;
    parts->other = host_seconds(costs, config);
}

static double sum_of(const Breakdown *p) {
    return p->compute + p->tensor + p->experts + p->stages + p->bubble + p->data + p->optimizer + p->other;
}

// ---- rates, traffic, interval --------------------------------------------------------------------------

static void set_rates(const CostModel *costs, const ModelShape *model, const Stages *s, Prediction *out) {
    const ParallelConfig *c = &out->config;
    double flops = 0, devices = parallel_config_devices(c);
    for (int stage = 0; stage < s->stages; stage++)
        for (ModelPart part = 0; part < NUM_PARTS; part++)
            flops += s->parts->flops[part] * stages_count(s, stage, part);
    out->hardware_flops =
        flops * grid_along(c->grid, AXIS_TP) * grid_along(c->grid, AXIS_CP) * c->batch / c->microbatch;
    out->model_flops =
        model_flops(model, padded_vocabulary(model->vocabulary, VOCABULARY_DIVISOR, 1), c->batch);
    out->tflops = out->hardware_flops / out->step_s / devices / 1e12;
    double peak = parallel_config_peak(costs->machine, c);
    out->hfu = out->tflops / peak;
    out->mfu = out->model_flops / out->step_s / devices / 1e12 / peak;
}

// Bandwidths across the middle of the machine. Pipelines: both directions of one edge, of all replicas, while
// messages are sent. Reductions: half of what all devices send.
static void set_traffic(const CostModel *costs, const ModelShape *model, const Stages *s, Prediction *out) {
    const ParallelConfig *c = &out->config;
    double replicas = grid_count(c->grid, ROLE_REPLICAS);
    out->edge_bytes = s->parts->message_bytes;
    if (grid_along(c->grid, AXIS_PP) > 1) {
        bool leaves = edge_leaves_node(costs, c, (grid_along(c->grid, AXIS_PP) - 1) / 2);
        out->edge_bandwidth =
            2 * out->edge_bytes * replicas / price_message(costs, c, leaves, out->edge_bytes);
    }
    double bytes = most_parameters(s, model).dense * gradient_bytes(costs, c);
    if (replicas > 1)
        out->data_bandwidth = (replicas - 1) / replicas * bytes * parallel_config_devices(c) /
                              price_collective(costs, c, COMM_ALL_REDUCE, ROLE_REPLICAS, bytes);
}

static bool outside(double value, double least, double most) {
    return most > 0 && (value < least || value > most);
}

// Returns how far the interval reaches above the time, as a fraction: nine in ten of the rows that the constants had
// not seen have a smaller error. Outside of their ranges: the largest error of all rows. On another machine, or without
// measurements: at least ELSEWHERE.
static double interval(const CostModel *costs, bool extrapolates) {
    static const double ELSEWHERE = 0.2;
    const Accuracy *a = &costs->stack->accuracy;
    if (!a->count) return ELSEWHERE;
    double share = (extrapolates ? a->worst : a->p90) / 100;
    return stack_is_of(costs->stack, costs->machine) ? share : fmax(share, ELSEWHERE);
}

static void set_interval(const CostModel *costs, const ModelShape *model, Prediction *out) {
    const Accuracy *a = &costs->stack->accuracy;
    const ParallelConfig *c = &out->config;
    out->extrapolates = !a->count || outside(parallel_config_devices(c), a->least_gpus, a->most_gpus) ||
                        outside(model->hidden, a->least_hidden, a->most_hidden) ||
                        outside(grid_along(c->grid, AXIS_TP), a->least_tp, a->most_tp) ||
                        outside(model->sequence, a->least_sequence, a->most_sequence);
    double share = interval(costs, out->extrapolates);
    out->low_s = out->step_s / (1 + share);
    out->high_s = out->step_s * (1 + share);
}

// ---- predictions ------------------------------------------------------------------------------------------

static Status run_stages(const Stages *s, Simulation *simulation) {
    Schedule schedule;
    ScheduleSpec spec = s->spec;
    spec.costs = stages_costs(s);
    TRY(schedule_order(&schedule, &spec));
    schedule_replay(&schedule, stages_costs(s), simulation);
    schedule_destroy(&schedule);
    return OK;
}

static Status open_priced(PlanCache *cache, const CostModel *costs, const ModelShape *model,
                          const ParallelConfig *config, Stages *s) {
    const Parts *parts;
    TRY(parts_of(cache, costs, model, config, &parts));
    return stages_open(s, costs, parts, model, config);
}

// All but the memory, with slow nodes where the configuration has them.
static Status predict_time(PlanCache *cache, const CostModel *costs, const ModelShape *model,
                           const ParallelConfig *config, Prediction *out) {
    Stages s;
    Simulation simulation;
    *out = (Prediction){.config = *config};
    TRY(open_priced(cache, costs, model, config, &s));
    Status status = run_stages(&s, &simulation);
    if (status == OK) {
        break_down(&s, costs, config, &simulation, &out->parts);
        end_step(costs, model, config, &s, &out->parts);
        out->step_s = sum_of(&out->parts);
        out->bubble = simulation.bubble;
        if (costs->stack->steps_apart)
            out->bubble = (1 + simulation.bubble) * simulation.apart_us / simulation.computed_us - 1;
        set_rates(costs, model, &s, out);
        set_traffic(costs, model, &s, out);
        set_interval(costs, model, out);
        simulation_destroy(&simulation, NULL);
    }
    stages_close(&s);
    return status;
}

// All but the memory, with slow nodes where the configuration has them.
static Status bound_time(PlanCache *cache, const CostModel *costs, const ModelShape *model,
                         const ParallelConfig *config, double *step_s) {
    Stages s;
    Breakdown parts = {0};
    TRY(open_priced(cache, costs, model, config, &s));
    end_step(costs, model, config, &s, &parts);
    parts.compute = stages_bound_s(&s);
    *step_s = sum_of(&parts);
    stages_close(&s);
    return OK;
}

typedef struct {
    SlowPlace place;
    double bound_s;
} PlaceBound;

static int by_bound(const void *a, const void *b) {
    double x = ((const PlaceBound *)a)->bound_s, y = ((const PlaceBound *)b)->bound_s;
    return (x > y) - (x < y);
}

// Bounds the step with the slow nodes at each place, in ascending order.   ERR_OS, ERR_CONFIG
static Status bound_places(PlanCache *cache, const CostModel *costs, const ModelShape *model,
                           const ParallelConfig *config, PlaceBound bounds[MAX_SLOW_PLACES], int *count) {
    SlowPlace places[MAX_SLOW_PLACES];
    ParallelConfig placed = *config;
    *count = slow_places(costs, config, places);
    for (int i = 0; i < *count; i++) {
        bounds[i].place = placed.slow = places[i];
        TRY(bound_time(cache, costs, model, &placed, &bounds[i].bound_s));
    }
    qsort(bounds, (size_t)*count, sizeof *bounds, by_bound);
    return OK;
}

// Replays the slow nodes at some places with the lowest bounds: places between the ends of a pipeline are nearly alike.
static Status predict_places(PlanCache *cache, const CostModel *costs, const ModelShape *model,
                             const ParallelConfig *config, Prediction *out) {
    enum { REPLAYED = 4 };
    PlaceBound bounds[MAX_SLOW_PLACES];
    Prediction one, best = {.step_s = INFINITY};
    ParallelConfig placed = *config;
    int count;
    TRY(bound_places(cache, costs, model, config, bounds, &count));
    for (int i = 0; i < count && i < REPLAYED && bounds[i].bound_s < best.step_s; i++) {
        placed.slow = bounds[i].place;
        TRY(predict_time(cache, costs, model, &placed, &one));
        if (one.step_s < best.step_s) best = one;
    }
    *out = best;
    return OK;
}

Status predict_slow_nodes(PlanCache *cache, const CostModel *costs, const ModelShape *model, Prediction *p) {
    SlowPlace places[MAX_SLOW_PLACES];
    CostModel even = *costs;
    ParallelConfig placed = p->config;
    Prediction one, best = *p, worst = *p;
    int count = slow_places(costs, &p->config, places);
    for (int i = 0; i < count; i++) {
        placed.slow = places[i];
        TRY(predict_time(cache, costs, model, &placed, &one));
        if (one.step_s < best.step_s) best = one;
        if (one.step_s > worst.step_s) worst = one;
    }
    even.slow = (SlowNodes){0};
    TRY(predict_time(cache, &even, model, &placed, &one));
    best.memory = p->memory, *p = best;
    p->worst_s = worst.step_s, p->worst = worst.config.slow, p->even_s = one.step_s;
    return OK;
}

Status predict(PlanCache *cache, const CostModel *costs, const ModelShape *model,
               const ParallelConfig *config, Prediction *out) {
    if (costs->slow.nodes)
        TRY(predict_places(cache, costs, model, config, out));
    else
        TRY(predict_time(cache, costs, model, config, out));
    return memory_exact(costs, model, &out->config, &out->memory);
}

Status predict_fewer_layers(PlanCache *cache, const CostModel *costs, const ModelShape *model,
                            const Prediction *even, Prediction *out, bool *is_found) {
    ParallelConfig config = even->config;
    int stages = grid_along(config.grid, AXIS_PP) * config.chunks, most = model->layers / stages;
    bool all = config.slow.count >= grid_along(config.grid, AXIS_PP);
    *out = *even, *is_found = false;
    if (all || !costs->slow.nodes || parallel_config_kind(&config)->stage) return OK;
    for (int layers = most; layers >= most / costs->slow.compute - 1 && layers > 0; layers--) {
        Prediction one;
        config.slow.layers = layers;
        TRY(predict_time(cache, costs, model, &config, &one));
        if (one.step_s >= out->step_s) continue;
        TRY(memory_need(costs, model, &config, &one.memory));
        if (memory_verdict(&one.memory) == FITS_NOT) continue;
        one.even_s = even->even_s, one.worst_s = even->worst_s, one.worst = even->worst;
        *out = one, *is_found = true;
    }
    return OK;
}

Status predict_bound(PlanCache *cache, const CostModel *costs, const ModelShape *model,
                     const ParallelConfig *config, double *step_s, MemoryNeed *memory) {
    PlaceBound bounds[MAX_SLOW_PLACES];
    int count;
    if (costs->slow.nodes) {
        TRY(bound_places(cache, costs, model, config, bounds, &count));
        *step_s = bounds[0].bound_s;
    } else {
        TRY(bound_time(cache, costs, model, config, step_s));
    }
    return memory ? memory_need(costs, model, config, memory) : OK;
}

Status predict_timeline(PlanCache *cache, const CostModel *costs, const ModelShape *model,
                        const ParallelConfig *config, Schedule *schedule, Simulation *simulation) {
    Stages s;
    TRY(open_priced(cache, costs, model, config, &s));
    ScheduleSpec spec = s.spec;
    spec.costs = stages_costs(&s);
    Status status = schedule_create(schedule, &spec);
    if (status == OK) schedule_simulate(schedule, stages_costs(&s), simulation);
    stages_close(&s);
    return status;
}
