// The rules that a configuration must keep. Each message says which rule is broken, and a value that would keep it.
#include "plan/plan.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int parallel_config_microbatches(const ParallelConfig *c) {
    return c->batch / (c->microbatch * grid_along(c->grid, AXIS_DP));
}

int parallel_config_devices(const ParallelConfig *c) { return grid_size(c->grid); }

int parallel_config_devices_in_node(const Machine *machine, const ParallelConfig *c) {
    int devices = parallel_config_devices(c);
    return devices < machine->devices_per_node ? devices : machine->devices_per_node;
}

const char *parallel_config_device(const ParallelConfig *c) {
    return c->device && device_load(c->device) == OK ? c->device : NULL;
}

double parallel_config_peak(const Machine *machine, const ParallelConfig *c) {
    double low = machine->factor_tflops[c->factors];
    return low > 0 ? low : machine->peak_tflops[c->dtype];
}

const ScheduleKind *parallel_config_kind(const ParallelConfig *c) {
    const ScheduleKind *kind = schedule_kind(c->schedule);
    CHECK(kind, "no schedule is named %s", c->schedule);
    return kind;
}

ScheduleSpec parallel_config_schedule(const ParallelConfig *c) {
    return (ScheduleSpec){.kind = c->schedule,
                          .ranks = grid_along(c->grid, AXIS_PP),
                          .chunks = c->chunks,
                          .microbatches = parallel_config_microbatches(c),
                          .stash_limit = c->stash_limit};
}

ContextWay stack_context_way(const Stack *stack, AttentionKind attention) {
    return stack->is_trireme || attention == ATTENTION_UNFUSED ? CONTEXT_ALL_GATHER : CONTEXT_RING;
}

ParallelConfig parallel_config_of_stack(const Stack *stack, const SearchSpace *space) {
    bool unfused = space->fused_attention < 0 ? stack->unfused_attention : !space->fused_attention;
    return (ParallelConfig){.grid = {.instances = space->grid.instances},
                            .chunks = 1,
                            .microbatch = 1,
                            .batch = space->batch,
                            .schedule = schedule_kind_default(1)->name,
                            .attention = unfused ? ATTENTION_UNFUSED : ATTENTION_FUSED,
                            .dtype = space->dtype,
                            .factors = space->factors,
                            .muon = space->muon,
                            .offload = space->offload,
                            .reduce_every = space->reduce_every,
                            .context_way =
                                space->context_way >= 0
                                    ? (ContextWay)space->context_way
                                    : stack_context_way(stack, unfused ? ATTENTION_UNFUSED : ATTENTION_FUSED),
                            .scatter_gather = stack->scatters_messages,
                            .overlap_gradients = stack->overlaps_gradients,
                            .overlap_tensor = stack->overlaps_tensor,
                            .groups_experts = !stack->is_trireme,
                            .device = *stack->device && strcmp(stack->device, "cpu") ? stack->device : NULL};
}

typedef struct {
    const ModelShape *model;
    const Machine *machine;
    const ParallelConfig *config;
    char *why;
    size_t size;
} Rules;

__attribute__((format(printf, 2, 3))) static bool broken(const Rules *r, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(r->why, r->size, format, list);
    va_end(list);
    return true;
}

// The largest divisor of `value` that is at most `limit`.
static int divisor_below(int value, int limit) {
    int divisor = limit < value ? limit : value;
    while (divisor > 1 && value % divisor) divisor--;
    return divisor > 0 ? divisor : 1;
}

static bool tensor_breaks(const Rules *r) {
    const ModelShape *m = r->model;
    int t = grid_along(r->config->grid, AXIS_TP), groups = model_groups(m);
    if (m->heads % t)
        return broken(r, "t = %d does not divide the %d heads: use %d", t, m->heads,
                      divisor_below(m->heads, t));
    if (groups % t)
        return broken(r, "t = %d does not divide the %d groups of keys and values: use %d", t, groups,
                      divisor_below(groups, t));
    if (m->ffn % t)
        return broken(r, "t = %d does not divide the MLP's width, %d: use %d", t, m->ffn,
                      divisor_below(m->ffn, t));
    if (r->config->sequence_parallel && t == 1) return broken(r, "sequence parallelism needs t > 1");
    if (r->config->sequence_parallel && m->sequence / grid_along(r->config->grid, AXIS_CP) % t)
        return broken(r, "t = %d does not divide the sequence, %d", t,
                      m->sequence / grid_along(r->config->grid, AXIS_CP));
    return false;
}

// What train asks of them (check_few_bits_sizes and check_experts_few_bits of config/), of the same units.
static bool factors_break(const Rules *r) {
    const ModelShape *m = r->model;
    const ParallelConfig *c = r->config;
    int unit = few_bits_unit(factor_format_recipe(c->factors)), t = grid_along(c->grid, AXIS_TP);
    const struct {
        const char *what;
        int64_t size;
    } sizes[] = {
        {"tokens of a microbatch", (int64_t)m->sequence / grid_along(c->grid, AXIS_CP) * c->microbatch},
        {"the hidden size", m->hidden},
        {"a rank's columns of the MLP", m->ffn / t},
        {"a rank's columns of queries", m->heads / t * m->head_size},
        {"a rank's columns of queries, keys and values",
         (m->heads / t + 2 * (model_groups(m) / t)) * m->head_size},
        {"a rank's columns of an expert", m->expert_ffn / grid_along(c->grid, AXIS_ETP)},
        {"a rank's columns of the shared experts", m->shared_ffn / t}};
    for (size_t i = 0; c->factors && i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].size % unit)
            return broken(r, "products in %s: %s, %lld, are no multiple of %d: leave them in %s",
                          factor_format_name(c->factors), sizes[i].what, (long long)sizes[i].size, unit,
                          dtype_name(c->dtype));
    return false;
}

// Each rank has an early and a late part of a sequence, so that all see as many keys.
static bool cuts_sequence(const Rules *r, int c) { return c == 1 || r->model->sequence % (2 * c) == 0; }

static bool cuts_heads(const Rules *r, int c) {
    return model_groups(r->model) / grid_along(r->config->grid, AXIS_TP) % c == 0;
}

static bool context_breaks(const Rules *r) {
    const ParallelConfig *config = r->config;
    int c = grid_along(config->grid, AXIS_CP), fits = c;
    bool heads = config->context_way == CONTEXT_ALL_TO_ALL;
    if (c == 1) return false;
    while (!cuts_sequence(r, fits) || (heads && !cuts_heads(r, fits))) fits--;
    if (!cuts_sequence(r, c))
        return broken(r, "2 c = %d does not divide the sequence, %d: use c = %d", 2 * c, r->model->sequence,
                      fits);
    if (fits < c)
        return broken(
            r,
            "c = %d does not divide the %d groups of heads of a rank, which a2a exchanges: use c = %d, "
            "or --cp-comm-type all_gather",
            c, model_groups(r->model) / grid_along(config->grid, AXIS_TP), fits);
    return config->context_way == CONTEXT_RING && config->attention == ATTENTION_UNFUSED &&
           broken(
               r,
               "a ring over c = %d ranks joins parts of the softmax, and unfused attention stores the whole: "
               "use --attention-backend flash, or --cp-comm-type all_gather",
               c);
}

static bool experts_break(const Rules *r) {
    const ModelShape *m = r->model;
    Grid grid = r->config->grid;
    int ep = grid_along(grid, AXIS_EP), etp = grid_along(grid, AXIS_ETP), t = grid_along(grid, AXIS_TP);
    int ranks = grid_size(grid) / grid_along(grid, AXIS_PP);
    int fits = ep;
    while (fits > 1 && (m->experts % fits || ranks % (etp * fits))) fits--;
    bool whole = etp == 1 && (t == 1 || r->config->sequence_parallel);
    if (!m->experts && ranks % etp)
        return broken(r, "etp = %d does not divide the %d ranks of a stage: use %d", etp, ranks, t);
    if (!m->experts) return ep > 1 && broken(r, "ep = %d needs a model with experts: use 1", ep);
    if (m->experts % ep)
        return broken(r, "ep = %d does not divide the %d experts: use %d", ep, m->experts, fits);
    if (etp != t && !whole)
        return broken(r, "etp = %d with t = %d: use etp = %d, or 1 with sequence parallelism", etp, t, t);
    if (m->expert_ffn % etp)
        return broken(r, "etp = %d does not divide the %d inner columns of an expert: use 1", etp,
                      m->expert_ffn);
    return ranks % (etp * ep) &&
           broken(r, "ep * etp = %d * %d does not divide the %d ranks of a stage: use ep = %d", ep, etp,
                  ranks, fits);
}

static bool pairs_break(const Rules *r) {
    const ParallelConfig *c = r->config;
    if (!schedule_kind(c->schedule) || !schedule_kind(c->schedule)->pairs) return false;
    if (grid_along(c->grid, AXIS_EP) == 1)
        return broken(r,
                      "the schedule %s hides messages to experts on other ranks: use ep = 2 or more, or %s",
                      c->schedule, schedule_kind_default(c->chunks)->name);
    return c->zero_stage > 1 &&
           broken(r, "the schedule %s computes two layers at a time: use zero stage 1 or 0", c->schedule);
}

static bool instances_break(const Rules *r) {
    Grid grid = r->config->grid;
    return grid.instances > 1 && grid_check(grid) != OK && broken(r, "%s", fail_message());
}

static bool sums_break(const Rules *r) {
    const ParallelConfig *c = r->config;
    if (!c->reduce_every) return false;
    if (parallel_config_kind(c)->splits_backward)
        return broken(r,
                      "the gradients of each microbatch are summed, and the schedule %s adds to those of all "
                      "layers in turn: use %s, or leave out --reduce-grads-every-microbatch",
                      c->schedule, schedule_kind_default(c->chunks)->name);
    return c->muon.iterations &&
           broken(r, "the gradients of each microbatch are summed, and Muon steps matrices in the memory of "
                     "whole ones: leave out --reduce-grads-every-microbatch, or Muon");
}

static bool offload_breaks(const Rules *r) {
    const Machine *m = r->machine;
    if (!(r->config->offload > 0)) return false;
    if (m->is_cpu)
        return broken(r,
                      "the devices of %s are processors, in whose memory the optimizer's state is anyway: "
                      "leave out --optimizer-cpu-offload",
                      m->name);
    if (r->config->muon.iterations)
        return broken(
            r, "Muon makes matrices orthogonal on the devices: leave out --optimizer-cpu-offload, or Muon");
    return !(m->host_link_gbs > 0 && m->host_memory_gbs > 0) &&
           broken(r,
                  "the file of %s does not say how fast its hosts are: add host_link_gbs and "
                  "host_memory_gbs, or leave out --optimizer-cpu-offload",
                  m->name);
}

static bool batch_breaks(const Rules *r) {
    const ParallelConfig *c = r->config;
    int64_t unit = (int64_t)c->microbatch * grid_along(c->grid, AXIS_DP);
    if (c->batch < unit)
        return broken(r, "a batch of %d is less than b * d = %d * %d: use %lld samples, or a smaller d",
                      c->batch, c->microbatch, grid_along(c->grid, AXIS_DP), (long long)unit);
    return c->batch % unit &&
           broken(r, "a batch of %d is no multiple of b * d = %d * %d: use %lld", c->batch, c->microbatch,
                  grid_along(c->grid, AXIS_DP), (long long)((c->batch / unit + 1) * unit));
}

static bool pipeline_breaks(const Rules *r) {
    const ParallelConfig *c = r->config;
    int p = grid_along(c->grid, AXIS_PP), v = c->chunks, layers = r->model->layers;
    // Embedding and head may each have a stage of their own.
    if (p * v > layers && p * v != layers + 2)
        return broken(r, "p * v = %d * %d stages are more than the %d layers", p, v, layers);
    int64_t m = parallel_config_microbatches(c);
    if (m > SCHEDULE_MAX_MICROBATCHES || p * v * m > SCHEDULE_MAX_FORWARDS)
        return broken(r, "%lld microbatches on %d stages are more than a schedule holds: use a larger b or d",
                      (long long)m, p * v);
    ScheduleSpec spec = parallel_config_schedule(c);
    const ScheduleKind *kind = schedule_kind(c->schedule);
    char why[160];
    if (!kind) return broken(r, "no schedule is named %s", c->schedule);
    const char *refusal = schedule_kind_refuse(kind, &spec, why, sizeof why);
    return refusal && broken(r, "the schedule %s %s", c->schedule, refusal);
}

static bool machine_breaks(const Rules *r) {
    const Machine *m = r->machine;
    const ParallelConfig *c = r->config;
    int devices = parallel_config_devices(c);
    if (m->peak_tflops[c->dtype] <= 0)
        return broken(r, "%s does not compute in %s", m->name, dtype_name(c->dtype));
    bool has = m->is_cpu ? c->factors == FACTORS_FP8 : m->factor_tflops[c->factors] > 0;
    if (c->factors && !has)
        return broken(r, "%s has no rate for products in %s: leave them in %s", m->name,
                      factor_format_name(c->factors), dtype_name(c->dtype));
    return (m->is_cpu || !m->nics) && devices > m->devices_per_node &&
           broken(r, "%s has one node: use at most %d devices", m->name, m->devices_per_node);
}

const char *parallel_config_refuse(const ModelShape *model, const Machine *machine,
                                   const ParallelConfig *config, char *why, size_t size) {
    Rules rules = {model, machine, config, why, size};
    bool refused = machine_breaks(&rules) || tensor_breaks(&rules) || context_breaks(&rules) ||
                   experts_break(&rules) || factors_break(&rules) || batch_breaks(&rules) ||
                   pipeline_breaks(&rules) || pairs_break(&rules) || instances_break(&rules) ||
                   sums_break(&rules) || offload_breaks(&rules);
    return refused ? why : NULL;
}
