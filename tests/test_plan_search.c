// The search finds what trying everything finds, keeps what it is told, and says why the rest is out.
#include "harness.h"
#include "plan_fixtures.h"
#include <stdlib.h>
#include <string.h>

static Machine machine;
static Stack stack;
static PlanCache *cache;

static SearchSpace space_of(int devices, int batch) {
    return (SearchSpace){.devices = devices,
                         .batch = batch,
                         .sequence_parallel = -1,
                         .zero_stage = -1,
                         .fused_attention = -1,
                         .recompute = -1,
                         .dtype = F16};
}

static PlanResult found(const CostModel *costs, const ModelShape *model, const SearchSpace *space, int most) {
    PlanResult result;
    Prediction best;
    EXPECT_OK(plan_search(cache, costs, model, space, most, &result));
    EXPECT_OK(plan_search_best(cache, costs, model, space, &best));
    EXPECT(best.step_s == result.best[0].step_s && best.memory.total == result.best[0].memory.total,
           "the best alone takes %g s, the first %g s", best.step_s, result.best[0].step_s);
    return result;
}

// ---- everything tried -------------------------------------------------------------------------------------

enum { MAX_FOUND = 20000 };

typedef struct {
    Prediction *items;
    int count;
} Everything;

static void try_one(Everything *all, const CostModel *costs, const ModelShape *model,
                    const ParallelConfig *c) {
    char why[200];
    MemoryNeed need;
    if (parallel_config_refuse(model, costs->machine, c, why, sizeof why)) return;
    EXPECT_OK(memory_need(costs, model, c, &need));
    if (memory_verdict(&need) != FITS || all->count == MAX_FOUND) return;
    EXPECT_OK(predict(cache, costs, model, c, &all->items[all->count++]));
}

static void try_memory(Everything *all, const CostModel *costs, const ModelShape *model, ParallelConfig c) {
    for (int i = 0; i < 3 * 2 * 2; i++) {
        c.recompute = (Recompute)(i % 3), c.sequence_parallel = i / 3 % 2, c.zero_stage = i / 6;
        bool pointless = (c.recompute == RECOMPUTE_SELECTIVE && c.attention == ATTENTION_FUSED) ||
                         (c.zero_stage && grid_along(c.grid, AXIS_DP) == 1);
        if (!pointless) try_one(all, costs, model, &c);
    }
}

static void try_chunks(Everything *all, const CostModel *costs, const ModelShape *model, ParallelConfig c) {
    int layers = model->layers, p = grid_along(c.grid, AXIS_PP);
    if (layers % p && (layers + 2) % p == 0) layers += 2; // embedding and head for a layer each
    for (int v = 1; v <= model->layers / p; v++) {
        if (v > 1 && (p == 1 || layers % (p * v))) continue;
        c.chunks = v, c.schedule = v > 1 ? "interleaved" : "1f1b";
        for (c.microbatch = 1; c.microbatch <= 64; c.microbatch *= 2) try_memory(all, costs, model, c);
    }
}

static Everything try_everything(const CostModel *costs, const ModelShape *model, const SearchSpace *q) {
    Everything all = {.items = calloc(MAX_FOUND, sizeof(Prediction))};
    CHECK(all.items, "no memory");
    ParallelConfig c = parallel_config_of_stack(costs->stack, q);
    for (int t = 1; t <= 8; t++)
        for (int p = 1; p <= q->devices && p <= model->layers; p++) {
            if (q->devices % (t * p) || (q->devices >= 8 && 8 % t)) continue;
            c.grid = (Grid)GRID(t, q->devices / (t * p), p);
            try_chunks(&all, costs, model, c);
        }
    CHECK(all.count < MAX_FOUND, "more than %d candidates", MAX_FOUND);
    return all;
}

static bool alike(const ParallelConfig *a, const ParallelConfig *b) {
    return !memcmp(&a->grid, &b->grid, sizeof a->grid) && a->chunks == b->chunks &&
           a->microbatch == b->microbatch && a->recompute == b->recompute;
}

// The fastest one that is unlike all before; NULL: there is none.
static const Prediction *fastest_unlike(const Everything *all, const Prediction *const *before, int count) {
    const Prediction *best = NULL;
    for (int i = 0; i < all->count; i++) {
        bool seen = false;
        for (int j = 0; j < count; j++) seen |= alike(&all->items[i].config, &before[j]->config);
        if (!seen && (!best || all->items[i].step_s < best->step_s)) best = &all->items[i];
    }
    return best;
}

static void nothing_faster_is_missed(const CostModel *costs, const ModelShape *model,
                                     const SearchSpace *space) {
    enum { MAX_BEST = 5 };
    const Prediction *best[MAX_BEST];
    Everything all = try_everything(costs, model, space);
    PlanResult result = found(costs, model, space, MAX_BEST);
    int count = 0;
    while (count < MAX_BEST && (best[count] = fastest_unlike(&all, best, count))) count++;
    EXPECT(result.perhaps ? count == 0 : result.count == count, "%d devices: %d found of %d", space->devices,
           result.count, count);
    for (int i = 0; i < count && i < result.count; i++) {
        const ParallelConfig *c = &result.best[i].config;
        EXPECT(result.best[i].step_s == best[i]->step_s,
               "%d devices, number %d: %.9g s with t %d p %d v %d b %d, %.9g with t %d p %d v %d b %d",
               space->devices, i, result.best[i].step_s, grid_along(c->grid, AXIS_TP),
               grid_along(c->grid, AXIS_PP), c->chunks, c->microbatch, best[i]->step_s,
               grid_along(best[i]->config.grid, AXIS_TP), grid_along(best[i]->config.grid, AXIS_PP),
               best[i]->config.chunks, best[i]->config.microbatch);
    }
    plan_result_free(&result);
    free(all.items);
}

static void nothing_is_missed(void) {
    static const int devices[] = {1, 2, 6, 7, 8, 12, 16};
    Machine small = machine;
    small.usable_gb = 22;
    ModelShape models[] = {gpt_of(12, 2048, 24), llama_of(14, 2688, 24)};
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        CostModel costs = costs_of(i % 3 ? &small : &machine, &stack);
        SearchSpace space = space_of(devices[i], 6 * devices[i]);
        for (int fused = 0; fused < 2; fused++) {
            space.fused_attention = fused;
            nothing_faster_is_missed(&costs, &models[i % 2], &space);
        }
    }
}

// A machine of any size is one group of tensor ranks, where the model can be cut so.
static void tensor_ranks_fill_odd_machines(void) {
    CostModel costs = costs_of(&machine, &stack);
    for (int devices = 1; devices <= 8; devices++) {
        ModelShape model = gpt_of(4, 128 * 2 * devices, 2 * devices);
        SearchSpace space = space_of(devices, 4);
        space.grid.size[AXIS_PP] = space.grid.size[AXIS_DP] = 1;
        PlanResult result = found(&costs, &model, &space, 1);
        EXPECT(result.count && grid_along(result.best[0].config.grid, AXIS_TP) == devices, "%d devices",
               devices);
        plan_result_free(&result);
    }
}

// ---- what is told -----------------------------------------------------------------------------------------

static bool kept(const SearchSpace *q, const ParallelConfig *c) {
    return parallel_config_devices(c) == q->devices && c->batch == q->batch &&
           (!q->grid.size[AXIS_TP] || q->grid.size[AXIS_TP] == grid_along(c->grid, AXIS_TP)) &&
           (!q->grid.size[AXIS_PP] || q->grid.size[AXIS_PP] == grid_along(c->grid, AXIS_PP)) &&
           (!q->grid.size[AXIS_DP] || q->grid.size[AXIS_DP] == grid_along(c->grid, AXIS_DP)) &&
           (!q->chunks || q->chunks == c->chunks) && (!q->microbatch || q->microbatch == c->microbatch) &&
           (!q->grid.size[AXIS_CP] || q->grid.size[AXIS_CP] == grid_along(c->grid, AXIS_CP)) &&
           (q->recompute < 0 || q->recompute == (int)c->recompute) &&
           (q->sequence_parallel < 0 || q->sequence_parallel == c->sequence_parallel) &&
           (q->zero_stage < 0 || q->zero_stage == c->zero_stage) &&
           (q->fused_attention < 0 || q->fused_attention == (c->attention == ATTENTION_FUSED)) &&
           (!q->schedule || !strcmp(q->schedule, c->schedule)) && q->dtype == c->dtype;
}

static void what_is_decided_is_kept(void) {
    CostModel costs = costs_of(&machine, &stack);
    ModelShape model = gpt_of(16, 2048, 16);
    enum { NUM = 13 };
    SearchSpace q[NUM];
    for (int i = 0; i < NUM; i++) q[i] = space_of(32, 64);
    q[0].grid.size[AXIS_TP] = 16, q[1].grid.size[AXIS_PP] = 4, q[2].grid.size[AXIS_DP] = 4, q[3].chunks = 2,
    q[4].microbatch = 4, q[5].grid.size[AXIS_CP] = 2;
    q[6].recompute = RECOMPUTE_UNIFORM, q[7].sequence_parallel = 1, q[8].zero_stage = 1,
    q[9].fused_attention = 1;
    q[10].schedule = "gpipe", q[11].schedule = "zb-v", q[12].dtype = BF16;
    q[7].grid.size[AXIS_TP] = 4;
    for (int i = 0; i < NUM; i++) {
        PlanResult result = found(&costs, &model, &q[i], 8);
        EXPECT(result.count > 0, "question %d: nothing", i);
        for (int j = 0; j < result.count; j++)
            EXPECT(kept(&q[i], &result.best[j].config), "question %d, number %d", i, j);
        plan_result_free(&result);
    }
}

static void the_best_come_first_and_once(void) {
    CostModel costs = costs_of(&machine, &stack);
    ModelShape model = gpt_of(16, 2048, 16);
    SearchSpace space = space_of(64, 128);
    PlanResult result = found(&costs, &model, &space, 20);
    EXPECT(result.count == 20, "%d of 20", result.count);
    for (int i = 1; i < result.count; i++) {
        EXPECT(result.best[i - 1].step_s <= result.best[i].step_s, "number %d is faster", i);
        for (int j = 0; j < i; j++)
            EXPECT(!alike(&result.best[i].config, &result.best[j].config), "%d and %d are alike", i, j);
    }
    plan_result_free(&result);
}

static void rejections_are_counted(void) {
    Machine small = machine;
    small.usable_gb = 16;
    CostModel costs = costs_of(&small, &stack);
    ModelShape model = gpt_of(24, 4096, 32);
    SearchSpace space = space_of(64, 128);
    PlanResult result = found(&costs, &model, &space, 3);
    EXPECT(!result.perhaps, "something fits for sure");
    int64_t refused = 0;
    for (int i = 0; i < NUM_REJECTS; i++) {
        EXPECT(result.rejected[i] > 0 && strlen(result.examples[i]) > 10, "class %d: %lld, %s", i,
               (long long)result.rejected[i], result.examples[i]);
        refused += result.rejected[i];
    }
    int64_t replayed = result.replayed - result.num_alternatives;
    EXPECT(replayed >= result.count && refused + replayed <= result.tried,
           "%lld refused, %lld replayed of %lld", (long long)refused, (long long)replayed,
           (long long)result.tried);
    EXPECT(strstr(result.examples[REJECT_MEMORY], "GB"), "%s", result.examples[REJECT_MEMORY]);
    for (int i = 0; i < result.count; i++)
        EXPECT(memory_verdict(&result.best[i].memory) == FITS, "number %d does not fit", i);
    plan_result_free(&result);
}

// No value of a choice is there twice, and none of the choices that can vary is left out.
static void expect_each_value_once(const PlanResult *result) {
    static const char *const varying[] = {"t = ", "p = ", "v = ", "b = "};
    for (size_t k = 0; k < sizeof varying / sizeof *varying; k++) {
        bool found = false;
        for (int i = 0; i < result->num_alternatives; i++)
            found |= strstr(result->alternatives[i].choice, varying[k]) == result->alternatives[i].choice;
        EXPECT(found, "no alternative with another %s", varying[k]);
    }
    for (int i = 0; i < result->num_alternatives; i++)
        for (int j = 0; j < i; j++)
            EXPECT(strcmp(result->alternatives[i].choice, result->alternatives[j].choice) != 0, "%s twice",
                   result->alternatives[i].choice);
}

static void alternatives_differ_and_are_slower(void) {
    CostModel costs = costs_of(&machine, &stack);
    ModelShape model = gpt_of(16, 2048, 16);
    SearchSpace space = space_of(64, 128);
    PlanResult result = found(&costs, &model, &space, 3);
    EXPECT(result.num_alternatives > 5, "%d alternatives", result.num_alternatives);
    expect_each_value_once(&result);
    const Prediction *winner = &result.best[0];
    for (int i = 0; i < result.num_alternatives; i++) {
        const Alternative *a = &result.alternatives[i];
        EXPECT(!alike(&a->prediction.config, &winner->config), "%s is the winner", a->choice);
        EXPECT(a->prediction.step_s >= winner->step_s, "%s: %g s, the winner %g", a->choice,
               a->prediction.step_s, winner->step_s);
    }
    plan_result_free(&result);
}

// ---- when nothing is left ---------------------------------------------------------------------------------

static void expect_failure(const CostModel *costs, const ModelShape *model, const SearchSpace *space,
                           const char *words) {
    PlanResult result;
    EXPECT(plan_search(cache, costs, model, space, 3, &result) == ERR_CONFIG, "no failure");
    EXPECT(strstr(fail_message(), words), "no \"%s\" in: %s", words, fail_message());
    plan_result_free(&result);
}

static double number_before(const char *text, const char *words) {
    const char *at = strstr(text, words);
    EXPECT(at, "no \"%s\" in: %s", words, text);
    while (at && at > text && strchr("0123456789.", at[-1])) at--;
    return at ? atof(at) : 0;
}

// What the message says would do, does.
static void what_fits_nowhere_says_what_would(void) {
    Machine small = machine;
    small.usable_gb = 14;
    CostModel costs = costs_of(&small, &stack);
    ModelShape model = gpt_of(48, 8192, 64);
    SearchSpace space = space_of(16, 64);
    expect_failure(&costs, &model, &space, "misses by least");
    EXPECT(strstr(fail_message(), "16 devices"), "%s", fail_message());
    const char *words = strstr(fail_message(), "devices with ");
    Machine larger = small;
    larger.usable_gb = words ? atof(words + strlen("devices with ")) : 0;
    int devices = (int)number_before(fail_message(), " devices would do");
    CostModel roomy = costs_of(&larger, &stack);
    PlanResult result = found(&roomy, &model, &space, 1);
    EXPECT(result.count == 1 && !result.perhaps, "%g GB do not do", larger.usable_gb);
    plan_result_free(&result);
    space.devices = devices;
    result = found(&costs, &model, &space, 1);
    EXPECT(result.count == 1, "%d devices do not do", devices);
    plan_result_free(&result);
    small.usable_gb = 3;
    expect_failure(&costs, &model, &space, "misses by least");
    EXPECT(!strstr(fail_message(), "devices would do"), "less than the reserve: %s", fail_message());
}

// Trireme on a GPU: what is named fits by the memory that a run takes, which the closed form only nears; or the search
// says that nothing does.
static void what_is_named_fits_exactly(void) {
    Stack own = stack;
    Machine gpu = machine;
    ModelShape model = llama_of(4, 1024, 16);
    int num_found = 0, num_failed = 0;
    own.is_trireme = true, snprintf(own.device, sizeof own.device, "cuda");
    setenv("TRIREME_CUDA", "/nonexistent", 1); // the same on machines with the module
    model.sequence = model.positions = 8192;
    SearchSpace space = space_of(2, 4);
    space.dtype = BF16;
    for (gpu.usable_gb = 1; gpu.usable_gb < 30; gpu.usable_gb *= 1.1) {
        CostModel costs = costs_of(&gpu, &own);
        PlanResult result;
        costs.constants.reserve_gb = 0;
        Status status = plan_search(cache, &costs, &model, &space, 3, &result);
        EXPECT(status == OK || (status == ERR_CONFIG && strstr(fail_message(), "nothing fits")), "%s",
               fail_message());
        EXPECT(result.count ? status == OK : status != OK, "%d found", result.count);
        Verdict verdict = result.perhaps ? FITS_PERHAPS : FITS;
        for (int i = 0; i < result.count; i++) {
            MemoryNeed need;
            EXPECT_OK(memory_exact(&costs, &model, &result.best[i].config, &need));
            EXPECT(memory_verdict(&need) == verdict, "number %d needs %.2f GB of %.2f", i, need.total / 1e9,
                   gpu.usable_gb);
        }
        for (int i = 0; i < result.num_alternatives; i++)
            EXPECT(memory_verdict(&result.alternatives[i].prediction.memory) == FITS, "%s does not fit",
                   result.alternatives[i].choice);
        num_found += status == OK, num_failed += status != OK;
        plan_result_free(&result);
    }
    unsetenv("TRIREME_CUDA");
    EXPECT(num_found > 5 && num_failed > 5, "%d searches found something, %d nothing", num_found, num_failed);
}

static void the_only_one_is_the_example(void) {
    CostModel costs = costs_of(&machine, &stack);
    ModelShape model = gpt_of(48, 8192, 64);
    SearchSpace space = space_of(1, 1);
    PlanResult result;
    const char *words = "t 1 p 1 d 1, v 1, b 1, recomputed ";
    space.microbatch = 1, space.recompute = RECOMPUTE_UNIFORM;
    EXPECT(plan_search(cache, &costs, &model, &space, 1, &result) == ERR_CONFIG, "no failure");
    EXPECT(result.tried == 1 && result.rejected[REJECT_MEMORY] == 1, "%lld tried, %lld rejected",
           (long long)result.tried, (long long)result.rejected[REJECT_MEMORY]);
    EXPECT(strstr(result.examples[REJECT_MEMORY], words), "%s", result.examples[REJECT_MEMORY]);
    EXPECT(strstr(result.nearest, words), "%s", result.nearest);
    plan_result_free(&result);
}

static void rules_that_leave_nothing_are_reported(void) {
    CostModel costs = costs_of(&machine, &stack);
    ModelShape model = gpt_of(16, 2048, 16);
    SearchSpace space = space_of(64, 4);
    space.grid.size[AXIS_DP] = 64;
    expect_failure(&costs, &model, &space, "a batch of 4 is too small");
    space = space_of(64, 64), space.grid.size[AXIS_TP] = 5;
    expect_failure(&costs, &model, &space, "64 devices");
    space = space_of(64, 64), space.grid.size[AXIS_PP] = 32;
    expect_failure(&costs, &model, &space, "16 layers");
}

// Too small for the margin, large enough for the need.
static void what_may_fit_is_reported_as_such(void) {
    CostModel costs = costs_of(&machine, &stack);
    ModelShape model = gpt_of(16, 2048, 16);
    SearchSpace space = space_of(8, 16);
    space.grid.size[AXIS_TP] = space.grid.size[AXIS_DP] = 2, space.microbatch = 1,
    space.recompute = RECOMPUTE_UNIFORM;
    space.zero_stage = space.sequence_parallel = 0, space.chunks = 1;
    PlanResult result = found(&costs, &model, &space, 1);
    Machine tight = machine;
    tight.usable_gb = result.best[0].memory.total / 1e9 * 1.001;
    CostModel cramped = costs_of(&tight, &stack);
    plan_result_free(&result);
    result = found(&cramped, &model, &space, 1);
    EXPECT(result.count == 1 && result.perhaps, "%d found, perhaps %d", result.count, result.perhaps);
    plan_result_free(&result);
}

static void batches_smaller_than_the_machine_find_their_d(void) {
    CostModel costs = costs_of(&machine, &stack);
    ModelShape model = gpt_of(16, 2048, 16);
    SearchSpace space = space_of(64, 4);
    PlanResult result = found(&costs, &model, &space, 1);
    EXPECT(grid_along(result.best[0].config.grid, AXIS_DP) <= 4, "d %d",
           grid_along(result.best[0].config.grid, AXIS_DP));
    plan_result_free(&result);
}

static void the_largest_run_is_planned(void) {
    CostModel costs = costs_of(&machine, &stack);
    ModelShape model = gpt_of(128, 25600, 160);
    SearchSpace space = space_of(3072, 3072);
    PlanResult result = found(&costs, &model, &space, 3);
    EXPECT(result.count == 3 && grid_along(result.best[0].config.grid, AXIS_TP) == 8, "%d found",
           result.count);
    plan_result_free(&result);
}

int main(int argc, char **argv) {
    machine = plain_machine();
    stack = plain_stack();
    CHECK(plan_cache_open(&cache) == OK, "%s", fail_message());
    int code = harness_run(
        (const Test[]){
            {"nothing_is_missed", nothing_is_missed},
            {"tensor_ranks_fill_odd_machines", tensor_ranks_fill_odd_machines},
            {"what_is_decided_is_kept", what_is_decided_is_kept},
            {"the_best_come_first_and_once", the_best_come_first_and_once},
            {"rejections_are_counted", rejections_are_counted},
            {"alternatives_differ_and_are_slower", alternatives_differ_and_are_slower},
            {"what_fits_nowhere_says_what_would", what_fits_nowhere_says_what_would},
            {"what_is_named_fits_exactly", what_is_named_fits_exactly},
            {"the_only_one_is_the_example", the_only_one_is_the_example},
            {"rules_that_leave_nothing_are_reported", rules_that_leave_nothing_are_reported},
            {"what_may_fit_is_reported_as_such", what_may_fit_is_reported_as_such},
            {"batches_smaller_than_the_machine_find_their_d", batches_smaller_than_the_machine_find_their_d},
            {"the_largest_run_is_planned", the_largest_run_is_planned},
            {0}},
        argc, argv);
    plan_cache_close(cache);
    return code;
}
