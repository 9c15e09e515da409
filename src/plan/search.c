// The search. Bounds every configuration that keeps the rules and fits from below, in closed form; then replays them
// in the order of their bounds, until no bound is below the times found.
#include "plan/plan.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CHOICES = 64, MAX_MICROBATCH = 64 };

typedef struct {
    int values[MAX_CHOICES];
    int count;
} Choices;

typedef struct {
    ParallelConfig config;
    double bound_s;
    Verdict verdict; // of the closed form; after a replay, of exact memory
    bool is_exact;
} Bounded;

typedef struct {
    PlanCache *cache;
    const CostModel *costs;
    const ModelShape *model;
    const SearchSpace *space;
    Bounded *bounded;
    int count, capacity;
    int64_t least_batch; // the smallest b d of all configurations tried; 0: none was tried
    Bounded closest;     // of those that do not fit, the one that misses by least
    MemoryNeed closest_need;
    PlanResult *out;
} Search;

// ---- choices -------------------------------------------------------------------------------------

static void choose(Choices *choices, int value) {
    if (choices->count < MAX_CHOICES) choices->values[choices->count++] = value;
}

static bool is_chosen(const Choices *choices, int value) {
    for (int i = 0; i < choices->count; i++)
        if (choices->values[i] == value) return true;
    return false;
}

static Choices one(int value) { return (Choices){{value}, 1}; }

static Choices divisors(int value, int limit) {
    Choices choices = {0};
    for (int i = 1; i <= value && i <= limit; i++)
        if (value % i == 0) choose(&choices, i);
    return choices;
}

static Choices powers_of_two(int limit) {
    Choices choices = {0};
    for (int i = 1; i <= limit; i *= 2) choose(&choices, i);
    return choices;
}

// Equal shares of a node. Tensor parallelism beyond a node must be asked for.
static Choices tensor_choices(const Search *s) {
    int devices = s->space->devices, node = s->costs->machine->devices_per_node;
    return s->space->grid.size[AXIS_TP] ? one(s->space->grid.size[AXIS_TP])
                                        : divisors(devices < node ? devices : node, node);
}

static Choices pipeline_choices(const Search *s, int ranks) {
    return s->space->grid.size[AXIS_PP] ? one(s->space->grid.size[AXIS_PP])
                                        : divisors(ranks, s->model->layers);
}

static Choices chunk_choices(const Search *s, int pp) {
    if (s->space->chunks) return one(s->space->chunks);
    const ScheduleKind *kind = s->space->schedule ? schedule_kind(s->space->schedule) : NULL;
    if (kind && schedule_kind_chunks(kind)) return one(schedule_kind_chunks(kind));
    int layers = s->model->layers;
    if (layers % pp && (layers + 2) % pp == 0) layers += 2; // embedding and head count as a layer each
    if (pp == 1 || layers % pp || pp > s->model->layers) return one(1);
    int most = s->model->layers / pp;
    return divisors(layers / pp, most < SCHEDULE_MAX_CHUNKS ? most : SCHEDULE_MAX_CHUNKS);
}

static Choices microbatch_choices(const Search *s) {
    return s->space->microbatch ? one(s->space->microbatch) : powers_of_two(MAX_MICROBATCH);
}

// A rank's share of a sequence keeps the device busy.
static Choices context_choices(const Search *s) {
    enum { LEAST_SHARE = 4096 };
    Choices choices = one(1);
    if (s->space->grid.size[AXIS_CP]) return one(s->space->grid.size[AXIS_CP]);
    for (int c = 2; s->model->sequence % (2 * c) == 0 && s->model->sequence / c >= LEAST_SHARE; c *= 2)
        choose(&choices, c);
    return choices;
}

// Ranks that share the experts of a layer, of those of a stage.
static Choices expert_choices(const Search *s, const ParallelConfig *c) {
    if (s->space->grid.size[AXIS_EP] || !s->model->experts) return one(s->space->grid.size[AXIS_EP]);
    int ranks = grid_size(c->grid) / grid_along(c->grid, AXIS_PP);
    Choices choices = divisors(s->model->experts, ranks), fit = {0};
    for (int i = 0; i < choices.count; i++)
        if (ranks % choices.values[i] == 0) choose(&fit, choices.values[i]);
    return fit;
}

// What is cut over replicas. Cut weights are gathered for every microbatch: behind a pipeline too often.
static Choices sharding_choices(const Search *s, const ParallelConfig *c) {
    if (s->space->zero_stage >= 0) return one(s->space->zero_stage);
    Choices choices = one(0);
    if (grid_count(c->grid, ROLE_REPLICAS) == 1) return choices;
    choose(&choices, 1);
    if (parallel_config_kind(c)->pairs || !s->costs->stack->shards_weights ||
        grid_along(c->grid, AXIS_PP) > 1)
        return choices;
    choose(&choices, 2), choose(&choices, 3);
    return choices;
}

// Without an S x S matrix selective recomputation saves nothing.
static Choices recompute_choices(const Search *s, const ParallelConfig *config) {
    if (s->space->recompute >= 0) return one(s->space->recompute);
    Choices choices = {{RECOMPUTE_NOTHING, RECOMPUTE_UNIFORM}, 2};
    if (config->attention == ATTENTION_UNFUSED) choose(&choices, RECOMPUTE_SELECTIVE);
    return choices;
}

static Choices flag_choices(int decided, bool sensible) {
    if (decided >= 0) return one(decided);
    return sensible ? (Choices){{0, 1}, 2} : one(0);
}

// ---- one candidate -----------------------------------------------------------------------------------

// Counts a rejected configuration. Returns true for the first of its class: the caller writes it down as the example.
static bool reject(Search *s, Reject reject) { return !s->out->rejected[reject]++; }

static void describe(const ParallelConfig *c, char *text, size_t size) {
    static const char *const cut[] = {"", ", distributed optimizer", ", gradients cut", ", weights cut"};
    char more[40] = "";
    int cp = grid_along(c->grid, AXIS_CP), ep = grid_along(c->grid, AXIS_EP);
    if (cp > 1 || ep > 1) snprintf(more, sizeof more, " c %d ep %d", cp, ep);
    const ScheduleKind *kind = parallel_config_kind(c);
    snprintf(text, size, "t %d p %d d %d%s, v %d%s%s, b %d%s%s%s", grid_along(c->grid, AXIS_TP),
             grid_along(c->grid, AXIS_PP), grid_along(c->grid, AXIS_DP), more, c->chunks,
             kind->is_default ? "" : " ", kind->is_default ? "" : kind->name, c->microbatch,
             c->recompute == RECOMPUTE_NOTHING     ? ""
             : c->recompute == RECOMPUTE_SELECTIVE ? ", attention recomputed"
                                                   : ", recomputed",
             c->sequence_parallel ? ", sequence parallel" : "", cut[c->zero_stage]);
}

static void reject_memory(Search *s, const Bounded *b, const MemoryNeed *need) {
    double miss = need->total / need->capacity;
    bool first = reject(s, REJECT_MEMORY);
    if (first || miss < s->closest_need.total / s->closest_need.capacity)
        s->closest = *b, s->closest_need = *need;
    if (!first) return;
    char text[120], *example = s->out->examples[REJECT_MEMORY];
    describe(&b->config, text, sizeof text);
    snprintf(example, MAX_EXAMPLE, "%s needs %.1f GB of %.1f on pipeline rank %d", text, need->total / 1e9,
             need->capacity / 1e9, need->rank);
}

static Status keep(Search *s, const Bounded *bounded) {
    if (s->count == s->capacity) {
        int capacity = s->capacity ? 2 * s->capacity : 1024;
        Bounded *more = realloc(s->bounded, (size_t)capacity * sizeof *more);
        if (!more) return fail(ERR_OS, "no memory for %d candidates", capacity);
        s->bounded = more, s->capacity = capacity;
    }
    s->bounded[s->count++] = *bounded;
    return OK;
}

static void reject_rule(Search *s, const ParallelConfig *c, const char *why) {
    int64_t unit = (int64_t)c->microbatch * grid_along(c->grid, AXIS_DP);
    if (!s->least_batch || unit < s->least_batch) s->least_batch = unit;
    if (reject(s, REJECT_RULE)) snprintf(s->out->examples[REJECT_RULE], MAX_EXAMPLE, "%s", why);
}

static Status try_candidate(Search *s, const ParallelConfig *config) {
    char why[200];
    MemoryNeed need;
    Bounded bounded = {.config = *config};
    s->out->tried++;
    if (parallel_config_refuse(s->model, s->costs->machine, config, why, sizeof why)) {
        reject_rule(s, config, why);
        return OK;
    }
    TRY(memory_need(s->costs, s->model, config, &need));
    bounded.verdict = memory_verdict(&need);
    bounded.is_exact = !s->costs->stack->is_trireme;
    if (bounded.verdict == FITS_NOT) {
        reject_memory(s, &bounded, &need);
        return OK;
    }
    TRY(predict_bound(s->cache, s->costs, s->model, config, &bounded.bound_s, NULL));
    return keep(s, &bounded);
}

// ---- all candidates ----------------------------------------------------------------------------------

// Tries what changes memory first of all: recomputation, sequence parallelism, the distributed optimizer.
static Status try_memory_choices(Search *s, ParallelConfig c) {
    Choices recompute = recompute_choices(s, &c);
    Choices share = flag_choices(grid_along(c.grid, AXIS_TP) > 1 ? s->space->sequence_parallel : 0,
                                 grid_along(c.grid, AXIS_TP) > 1);
    Choices zero = sharding_choices(s, &c);
    for (int i = 0; i < recompute.count * share.count * zero.count; i++) {
        c.recompute = (Recompute)recompute.values[i % recompute.count];
        c.sequence_parallel = share.values[i / recompute.count % share.count];
        c.zero_stage = zero.values[i / recompute.count / share.count];
        bool whole = s->model->experts && !s->space->grid.size[AXIS_ETP] && c.sequence_parallel;
        c.grid.size[AXIS_ETP] = whole ? 1 : s->space->grid.size[AXIS_ETP];
        TRY(try_candidate(s, &c));
    }
    return OK;
}

// Where several ranks share experts, rows may also travel to them while another microbatch computes. Other programs
// than trireme have pairs in several chunks alone, or without a pipeline.
static bool may_pair(const Search *s, const ParallelConfig *c) {
    bool chunks = c->chunks > 1 || grid_along(c->grid, AXIS_PP) == 1;
    return !s->space->schedule && grid_along(c->grid, AXIS_EP) > 1 && parallel_config_microbatches(c) > 1 &&
           (chunks || s->costs->stack->is_trireme);
}

static Status try_schedules(Search *s, ParallelConfig c) {
    c.schedule = s->space->schedule ? s->space->schedule : schedule_kind_default(c.chunks)->name;
    TRY(try_memory_choices(s, c));
    if (!may_pair(s, &c)) return OK;
    c.schedule = schedule_kind_paired()->name;
    return try_memory_choices(s, c);
}

static Status try_grid(Search *s, ParallelConfig c) {
    Choices chunks = chunk_choices(s, grid_along(c.grid, AXIS_PP)), microbatches = microbatch_choices(s),
            experts = expert_choices(s, &c);
    for (int i = 0; i < chunks.count * microbatches.count * experts.count; i++) {
        c.chunks = chunks.values[i % chunks.count];
        c.microbatch = microbatches.values[i / chunks.count % microbatches.count];
        c.grid.size[AXIS_EP] = experts.values[i / chunks.count / microbatches.count];
        TRY(try_schedules(s, c));
    }
    return OK;
}

// Of so many ranks, which t and c leave.
static Status try_pipelines(Search *s, ParallelConfig c, int ranks) {
    Choices pipeline = pipeline_choices(s, ranks);
    for (int j = 0, decided = s->space->grid.size[AXIS_DP]; j < pipeline.count; j++) {
        int dp = ranks / pipeline.values[j];
        if (dp < 1 || ranks != pipeline.values[j] * dp || (decided && decided != dp)) continue;
        c.grid.size[AXIS_PP] = pipeline.values[j], c.grid.size[AXIS_DP] = dp;
        TRY(try_grid(s, c));
    }
    return OK;
}

static Status try_all(Search *s) {
    const SearchSpace *q = s->space;
    ParallelConfig c = parallel_config_of_stack(s->costs->stack, q);
    Choices tensor = tensor_choices(s), context = context_choices(s);
    for (int i = 0; i < tensor.count * context.count; i++) {
        int t = tensor.values[i % tensor.count], cp = context.values[i / tensor.count];
        if (q->devices % ((int64_t)t * cp)) continue;
        c.grid.size[AXIS_TP] = t, c.grid.size[AXIS_CP] = cp;
        TRY(try_pipelines(s, c, q->devices / (t * cp)));
    }
    return OK;
}

// ---- the best ------------------------------------------------------------------------------------------

static int by_bound(const void *a, const void *b) {
    double x = ((const Bounded *)a)->bound_s, y = ((const Bounded *)b)->bound_s;
    return (x > y) - (x < y);
}

// Returns whether two configurations differ only in how memory is used; of those the fastest is kept.
static bool alike(const ParallelConfig *a, const ParallelConfig *b) {
    return grid_along(a->grid, AXIS_TP) == grid_along(b->grid, AXIS_TP) &&
           grid_along(a->grid, AXIS_PP) == grid_along(b->grid, AXIS_PP) &&
           grid_along(a->grid, AXIS_CP) == grid_along(b->grid, AXIS_CP) &&
           grid_along(a->grid, AXIS_EP) == grid_along(b->grid, AXIS_EP) && a->chunks == b->chunks &&
           a->microbatch == b->microbatch && a->recompute == b->recompute &&
           !strcmp(a->schedule, b->schedule);
}

static void insert(PlanResult *out, const Prediction *p, int most) {
    int at = 0, same = -1;
    for (int i = 0; i < out->count; i++)
        if (alike(&out->best[i].config, &p->config)) same = i;
    if (same >= 0 && out->best[same].step_s <= p->step_s) return;
    if (same >= 0) {
        memmove(&out->best[same], &out->best[same + 1], (size_t)(--out->count - same) * sizeof *out->best);
    }
    while (at < out->count && out->best[at].step_s <= p->step_s) at++;
    if (at == most) return;
    int moved = (out->count < most ? out->count : most - 1) - at;
    memmove(&out->best[at + 1], &out->best[at], (size_t)moved * sizeof *out->best);
    out->best[at] = *p;
    if (out->count < most) out->count++;
}

// Predicts a configuration whose memory, as the prediction states it, has the verdict. `is_found`: it has.
static Status replay(Search *s, Bounded *b, Verdict verdict, Prediction *prediction, bool *is_found) {
    *is_found = false;
    if (b->is_exact && b->verdict != verdict) return OK;
    s->out->replayed++;
    TRY(predict(s->cache, s->costs, s->model, &b->config, prediction));
    bool is_news = !b->is_exact;
    b->verdict = memory_verdict(&prediction->memory), b->is_exact = true;
    if (is_news && b->verdict == FITS_NOT) reject_memory(s, b, &prediction->memory);
    *is_found = b->verdict == verdict;
    return OK;
}

static void reject_bound(Search *s, const Bounded *b) {
    if (!reject(s, REJECT_BOUND)) return;
    char text[120];
    describe(&b->config, text, sizeof text);
    snprintf(s->out->examples[REJECT_BOUND], MAX_EXAMPLE, "%s takes at least %.4g s", text, b->bound_s);
}

static Status replay_best(Search *s, int most, Verdict verdict) {
    PlanResult *out = s->out;
    for (int i = 0; i < s->count; i++) {
        Bounded *b = &s->bounded[i];
        Prediction p;
        bool is_found;
        if (b->is_exact && b->verdict != verdict) continue;
        if (out->count == most && b->bound_s >= out->best[most - 1].step_s) {
            reject_bound(s, b);
            continue;
        }
        TRY(replay(s, b, verdict, &p, &is_found));
        if (is_found) insert(out, &p, most);
    }
    return OK;
}

// ---- alternatives ------------------------------------------------------------------------------------

// The choices for which alternatives are reported.
typedef struct {
    const char *name;
    int (*of)(const ParallelConfig *config);
    const char *const *values; // their names by number; NULL: the number is printed
} Choice;

static int tensor_of(const ParallelConfig *c) { return grid_along(c->grid, AXIS_TP); }
static int pipeline_of(const ParallelConfig *c) { return grid_along(c->grid, AXIS_PP); }
static int context_of(const ParallelConfig *c) { return grid_along(c->grid, AXIS_CP); }
static int expert_ranks_of(const ParallelConfig *c) { return grid_along(c->grid, AXIS_EP); }
static int chunks_of(const ParallelConfig *c) { return c->chunks; }
static int microbatch_of(const ParallelConfig *c) { return c->microbatch; }
static int recompute_of(const ParallelConfig *c) { return (int)c->recompute; }
static int pairs_of(const ParallelConfig *c) { return parallel_config_kind(c)->pairs; }

static const char *const recompute_names[] = {"nothing", "attention", "layers", "layers"};
static const char *const pairs_names[] = {"unpaired", "paired"};
static const Choice reported_choices[] = {{"t", tensor_of, NULL},
                                          {"p", pipeline_of, NULL},
                                          {"c", context_of, NULL},
                                          {"ep", expert_ranks_of, NULL},
                                          {"v", chunks_of, NULL},
                                          {"b", microbatch_of, NULL},
                                          {"recompute", recompute_of, recompute_names},
                                          {"schedule", pairs_of, pairs_names}};

// Finds the fastest configuration that fits with a value of a choice: replays in the order of bounds, until none is
// below the best time.
static Status best_of_value(Search *s, const Choice *choice, int value, Prediction *best, bool *is_found) {
    *is_found = false;
    for (int i = 0; i < s->count && (!*is_found || s->bounded[i].bound_s < best->step_s); i++) {
        Prediction p;
        bool fits;
        if (choice->of(&s->bounded[i].config) != value) continue;
        TRY(replay(s, &s->bounded[i], FITS, &p, &fits));
        if (fits && (!*is_found || p.step_s < best->step_s)) *best = p;
        *is_found |= fits;
    }
    return OK;
}

static Status add_alternative(Search *s, const Choice *choice, int value) {
    Alternative *a = &s->out->alternatives[s->out->num_alternatives];
    bool is_found;
    TRY(best_of_value(s, choice, value, &a->prediction, &is_found));
    if (!is_found) return OK;
    if (choice->values)
        snprintf(a->choice, sizeof a->choice, "%s %s", choice->name, choice->values[value]);
    else
        snprintf(a->choice, sizeof a->choice, "%s = %d", choice->name, value);
    s->out->num_alternatives++;
    return OK;
}

static Status add_alternatives(Search *s, const Choice *choice) {
    Choices seen = one(choice->of(&s->out->best[0].config));
    for (int i = 0; i < s->count && s->out->num_alternatives < MAX_ALTERNATIVES; i++) {
        int value = choice->of(&s->bounded[i].config);
        if (is_chosen(&seen, value)) continue;
        choose(&seen, value);
        TRY(add_alternative(s, choice, value));
    }
    return OK;
}

// ---- nothing fits -----------------------------------------------------------------------------------

static Status fail_with_nearest(Search *s) {
    PlanResult *out = s->out;
    const MemoryNeed *need = &s->closest_need;
    int devices = s->space->devices;
    char text[120];
    if (!out->rejected[REJECT_MEMORY] && s->least_batch > s->space->batch)
        return fail(
            ERR_CONFIG,
            "a batch of %d is too small for every grid of %d devices: %lld samples, or fewer devices, "
            "would do",
            s->space->batch, devices, (long long)s->least_batch);
    if (!out->rejected[REJECT_MEMORY])
        return fail(ERR_CONFIG, "no configuration of %d devices keeps the rules; one example: %s", devices,
                    out->examples[REJECT_RULE]);
    describe(&s->closest.config, text, sizeof text);
    snprintf(
        out->nearest, sizeof out->nearest,
        "%s misses by least: it needs %.1f GB of the %.1f GB of a device (%.1f parameters and gradients, "
        "%.1f optimizer, %.1f activations)",
        text, need->total / 1e9, need->capacity / 1e9, (need->parameters + need->gradients) / 1e9,
        need->optimizer / 1e9, need->activations / 1e9);
    double gb = 1.1 * need->total / 1e9, room = need->capacity - need->reserve;
    if (room <= 0)
        return fail(ERR_CONFIG, "nothing fits on %d devices: %s; devices with %.0f GB would do", devices,
                    out->nearest, gb);
    // A power of two times as many: that keeps all sizes dividing.
    double enough = devices * exp2(ceil(log2(1.1 * (need->total - need->reserve) / room)));
    return fail(ERR_CONFIG,
                "nothing fits on %d devices: %s; about %.0f devices would do, or devices with %.0f GB",
                devices, out->nearest, enough, gb);
}

// ---- all of it -------------------------------------------------------------------------------------------

// Replays the most promising ones. Where nothing fits for sure, those that may fit.
static Status find_best(Search *s, int most) {
    TRY(try_all(s));
    if (s->count) qsort(s->bounded, (size_t)s->count, sizeof *s->bounded, by_bound);
    TRY(replay_best(s, most, FITS));
    s->out->perhaps = !s->out->count;
    if (s->out->perhaps) TRY(replay_best(s, most, FITS_PERHAPS));
    return s->out->count ? OK : fail_with_nearest(s);
}

static Status find_alternatives(Search *s) {
    for (size_t i = 0; i < sizeof reported_choices / sizeof *reported_choices && !s->out->perhaps; i++)
        TRY(add_alternatives(s, &reported_choices[i]));
    return OK;
}

static Status search(Search *s, int most, bool alternatives) {
    *s->out = (PlanResult){.best = calloc((size_t)most, sizeof *s->out->best)};
    if (!s->out->best) return fail(ERR_OS, "no memory for %d predictions", most);
    Status status = find_best(s, most);
    if (status == OK && alternatives) status = find_alternatives(s);
    free(s->bounded);
    return status;
}

Status plan_search(PlanCache *cache, const CostModel *costs, const ModelShape *model,
                   const SearchSpace *space, int most, PlanResult *out) {
    return search(&(Search){.cache = cache, .costs = costs, .model = model, .space = space, .out = out}, most,
                  true);
}

Status plan_search_best(PlanCache *cache, const CostModel *costs, const ModelShape *model,
                        const SearchSpace *space, Prediction *best) {
    PlanResult result;
    Search s = {.cache = cache, .costs = costs, .model = model, .space = space, .out = &result};
    Status status = search(&s, 1, false);
    if (status == OK) *best = result.best[0];
    plan_result_free(&result);
    return status;
}

void plan_result_free(PlanResult *result) {
    free(result->best);
    *result = (PlanResult){0};
}
