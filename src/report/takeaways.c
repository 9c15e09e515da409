// Counts how often the winners of searches follow the paper's three takeaways. The search knows none of them, so
// agreement supports both.   Source: Narayanan 2021, section 3.
#include "report/plan_report.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

// The first takeaway makes two statements.
typedef enum { WITHIN_NODES, NODES_FIRST, JUST_LARGE_ENOUGH, BEST_MICROBATCH, NUM_CHECKS } Check;

static const char *const sentences[NUM_CHECKS] = {
    [WITHIN_NODES] = "Takeaway 1a. No tensor parallelism beyond the devices of a node.",
    [NODES_FIRST] = "Takeaway 1b. Pipelines only once tensor parallelism fills a node.",
    [JUST_LARGE_ENOUGH] =
        "Takeaway 2. Model parallelism just large enough to fit, data parallelism for the rest.",
    [BEST_MICROBATCH] =
        "Takeaway 3. The best microbatch b is that of eq. 1, (B/(d b) + (p-1)/v) (t_f(b) + t_b(b))."};

enum { MAX_DOUBLINGS = 7 };

typedef struct {
    int cases, agreements;
    Text counterexamples;
} Tally;

// The choices of a search apart from grid and microbatch.
typedef struct {
    const char *name;
    int chunks, recompute, sequence_parallel, zero_stage; // as in SearchSpace
} Setting;

// A model on a cluster, and the counts of all studies so far.
typedef struct {
    PlanCache *cache;
    const CostModel *costs;
    const Setting *setting;
    const char *name; // of the model
    ModelShape model;
    SearchSpace space;
    Prediction winner;
    Tally tallies[NUM_CHECKS];
    int microbatches[MAX_DOUBLINGS]; // [i]: winners with a microbatch of 2^i
} Study;

// ---- cases --------------------------------------------------------------------------------------

static const char *const models[] = {"megatron-1.7b", "megatron-7.5b", "megatron-39b",
                                     "megatron-145b", "megatron-530b", "megatron-1008b",
                                     "llama2-7b",     "llama2-70b",    "llama3-405b"};

static const struct { int devices, batch; } clusters[] = {{8, 64}, {64, 512}, {512, 1536}, {3072, 3072}};

static int published_vocabulary(const char *name) {
    for (int i = 0; i < num_model_presets; i++)
        if (!strcmp(model_presets[i].name, name)) return model_presets[i].vocabulary;
    CHECK(false, "no model is named %s", name);
    return 0;
}

static Status published_model(const char *name, ModelShape *model) {
    Options options;
    char *words[] = {"--model", (char *)name};
    TRY(options_parse(&options, FOR_PLAN, 2, words));
    Status status = options_resolve(&options, 1);
    if (status == OK) *model = options_model(&options, published_vocabulary(name));
    options_destroy(&options);
    return status;
}

static const Setting settings[] = {
    {"As the paper compares: 1F1B, all layers computed again, whole optimizer states", 1, RECOMPUTE_UNIFORM,
     0, 0},
    {"With interleaving, recomputation, sequence parallelism and distributed optimizer left open", 0, -1, -1,
     -1}};

static SearchSpace space_of(const Setting *setting, int devices, int batch) {
    return (SearchSpace){.devices = devices,
                         .batch = batch,
                         .chunks = setting->chunks,
                         .sequence_parallel = setting->sequence_parallel,
                         .zero_stage = setting->zero_stage,
                         .context_way = -1,
                         .fused_attention = -1,
                         .recompute = setting->recompute,
                         .dtype = F16};
}

// ---- what is compared ---------------------------------------------------------------------------

// Finds the fastest configuration that fits for sure; `found` says whether there is one.
static Status best_of(const Study *study, const SearchSpace *space, Prediction *best, bool *found) {
    PlanResult result;
    Status status = plan_search(study->cache, study->costs, &study->model, space, 1, &result);
    *found = status == OK && result.count && !result.perhaps;
    if (*found) *best = result.best[0];
    plan_result_free(&result);
    return status == ERR_CONFIG ? OK : status;
}

static void name_config(const ParallelConfig *c, Text *out) {
    text_add(out, "t %d p %d d %d v %d b %d", grid_along(c->grid, AXIS_TP), grid_along(c->grid, AXIS_PP),
             grid_along(c->grid, AXIS_DP), c->chunks, c->microbatch);
}

static void note(Study *study, Check check, bool agrees) {
    study->tallies[check].cases++;
    study->tallies[check].agreements += agrees;
}

// Records a counterexample: the prediction that wins, and the one that should win by the takeaway.
static void note_against(Study *study, Check check, const Prediction *wins, const Prediction *loses) {
    Text *out = &study->tallies[check].counterexamples;
    note(study, check, false);
    text_add(out, "    %s on %d: ", study->name, study->space.devices);
    name_config(&wins->config, out);
    text_add(out, ", %.3g s; ", wins->step_s);
    name_config(&loses->config, out);
    text_add(out, " ");
    plan_compare(wins, loses, out);
    text_add(out, "\n");
}

// ---- the takeaways ------------------------------------------------------------------------------

// A search never leaves nodes by itself, so twice a node's devices are asked for.
static Status check_nodes(Study *study) {
    SearchSpace space = study->space;
    Prediction other;
    bool found;
    space.grid.size[AXIS_TP] = 2 * study->costs->machine->devices_per_node;
    TRY(best_of(study, &space, &other, &found));
    if (found && other.step_s < study->winner.step_s)
        note_against(study, WITHIN_NODES, &other, &study->winner);
    else
        note(study, WITHIN_NODES, true);
    return OK;
}

static Status check_tensor(Study *study) {
    Grid grid = study->winner.config.grid;
    SearchSpace space = study->space;
    Prediction other;
    bool found = false;
    space.grid.size[AXIS_TP] = study->costs->machine->devices_per_node;
    if (grid_along(grid, AXIS_PP) > 1 && grid_along(grid, AXIS_TP) < space.grid.size[AXIS_TP])
        TRY(best_of(study, &space, &other, &found));
    if (found)
        note_against(study, NODES_FIRST, &study->winner, &other);
    else
        note(study, NODES_FIRST, true);
    return OK;
}

// Tries the smallest t p first.
static Status check_size(Study *study) {
    Grid grid = study->winner.config.grid;
    SearchSpace space = study->space;
    Prediction other;
    bool found = false;
    for (int size = 1; size < grid_along(grid, AXIS_TP) * grid_along(grid, AXIS_PP) && !found; size++) {
        if (space.devices % size) continue;
        space.grid.size[AXIS_DP] = space.devices / size;
        TRY(best_of(study, &space, &other, &found));
    }
    if (found)
        note_against(study, JUST_LARGE_ENOUGH, &study->winner, &other);
    else
        note(study, JUST_LARGE_ENOUGH, true);
    return OK;
}

// Equation 1, with the predicted times of the busiest rank.
static double estimated_s(const Prediction *p) {
    const ParallelConfig *c = &p->config;
    double microbatches = parallel_config_microbatches(c);
    return (microbatches + (grid_along(c->grid, AXIS_PP) - 1.0) / c->chunks) *
           (p->parts.compute + p->parts.tensor) / microbatches;
}

static Status check_microbatch(Study *study) {
    Prediction best = study->winner;
    for (int i = 0; i < MAX_DOUBLINGS; i++) {
        ParallelConfig c = study->winner.config;
        char why[200];
        Prediction p;
        study->microbatches[i] += c.microbatch == 1 << i;
        c.microbatch = 1 << i;
        if (parallel_config_refuse(&study->model, study->costs->machine, &c, why, sizeof why)) continue;
        TRY(predict(study->cache, study->costs, &study->model, &c, &p));
        if (memory_verdict(&p.memory) == FITS && estimated_s(&p) < estimated_s(&best)) best = p;
    }
    if (best.config.microbatch != study->winner.config.microbatch)
        note_against(study, BEST_MICROBATCH, &study->winner, &best);
    else
        note(study, BEST_MICROBATCH, true);
    return OK;
}

static Status check_case(Study *study, int devices, int batch) {
    bool found;
    study->space = space_of(study->setting, devices, batch);
    TRY(best_of(study, &study->space, &study->winner, &found));
    if (!found) return OK;
    Grid grid = study->winner.config.grid;
    if (grid_along(grid, AXIS_TP) * grid_along(grid, AXIS_PP) > 1) {
        TRY(check_nodes(study));
        TRY(check_tensor(study));
    }
    TRY(check_size(study));
    return check_microbatch(study);
}

static Status check_all(Study *study) {
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        study->name = models[i];
        TRY(published_model(models[i], &study->model));
        for (size_t j = 0; j < sizeof clusters / sizeof *clusters; j++)
            TRY(check_case(study, clusters[j].devices, clusters[j].batch));
    }
    return OK;
}

// ---- all of it ----------------------------------------------------------------------------------

static void print(const Study *study, Text *out) {
    text_add(out, "%s.\n", study->setting->name);
    for (int i = 0; i < NUM_CHECKS; i++) {
        const Tally *tally = &study->tallies[i];
        text_add(out, "  %s\n  The search agrees in %d of %d cases.%s\n%s", sentences[i], tally->agreements,
                 tally->cases, tally->agreements < tally->cases ? " Not in" : "",
                 text_string(&tally->counterexamples));
    }
    text_add(out, "  Best microbatches:");
    for (int i = 0; i < MAX_DOUBLINGS; i++)
        if (study->microbatches[i]) text_add(out, " %d in %d", 1 << i, study->microbatches[i]);
    text_add(out, "\n");
}

static Status check_setting(PlanCache *cache, const CostModel *costs, const Setting *setting, Text *out) {
    Study study = {.cache = cache, .costs = costs, .setting = setting};
    Status status = check_all(&study);
    if (status == OK) print(&study, out);
    for (int i = 0; i < NUM_CHECKS; i++) text_free(&study.tallies[i].counterexamples);
    return status;
}

Status plan_takeaways(PlanCache *cache, const CostModel *costs, Text *out) {
    if (costs->machine->is_cpu)
        return fail(ERR_CONFIG,
                    "the takeaways are about clusters of GPUs, and %s is a CPU: take another machine",
                    costs->machine->name);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        TRY(check_setting(cache, costs, &settings[i], out));
    return OK;
}
