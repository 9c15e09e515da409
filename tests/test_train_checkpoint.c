// Checkpoints of real runs, on every grid of at most 8 ranks with t in {1, 2, 4, 8}, and some with sequences cut over
// c, experts on several ranks or shards in two instances: GPT, Llama and a Llama of experts with biases, fp32 and bf16,
// whole and sharded optimizer, AdamW and Muon, with an average of the weights and without. Going on from a checkpoint
// of the same grid is never having stopped, bit for bit; what another grid has loaded and saved again is the same
// tensors, byte for byte.
//
// Each grid is left in one of the eight settings and met on an eighth of the grids; with TRIREME_TEST_LONG=1
// in all settings and on all grids. The short form has four settings, which hold every pair of choices, and a
// grid or two for each, met on an eighth.
#include "harness.h"
#include "nn/amax.h"
#include "runs.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_GRIDS = 40, LAYERS = 8, NUM_SETTINGS = 8, MAX_RANKS = 8 };

// Before the checkpoint, and again as many behind it.
static int half(void) { return harness_short() ? 1 : 2; }

static Grid grids[MAX_GRIDS];
static int num_grids;

static const Grid cut_grids[] = {{.size = {[AXIS_CP] = 2, [AXIS_PP] = 2}},
                                 {.size = {[AXIS_CP] = 4, [AXIS_DP] = 2}},
                                 {.size = {[AXIS_TP] = 2, [AXIS_CP] = 2, [AXIS_DP] = 2}},
                                 {.size = {[AXIS_DP] = 2, [AXIS_EP] = 2}},
                                 {.size = {[AXIS_DP] = 4, [AXIS_EP] = 2, [AXIS_PP] = 2}},
                                 {.size = {[AXIS_TP] = 2, [AXIS_DP] = 4, [AXIS_EP] = 4}},
                                 {.size = {[AXIS_DP] = 4}, .instances = 2}};

static void list_grids(void) {
    num_grids = 0;
    for (int tp = 1; tp <= MAX_RANKS; tp *= 2)
        for (int dp = 1; tp * dp <= MAX_RANKS; dp++)
            for (int pp = 1; tp * dp * pp <= MAX_RANKS; pp++) grids[num_grids++] = (Grid)GRID(tp, dp, pp);
    for (size_t i = 0; i < sizeof cut_grids / sizeof *cut_grids; i++) grids[num_grids++] = cut_grids[i];
    CHECK(num_grids <= MAX_GRIDS, "%d grids", num_grids);
}

// Of at most 4 ranks: every size of every axis, and d > 1 where the setting shards the optimizer, from the
// fifth to the eighth.
static void list_few_grids(void) {
    static const Grid few[] = {GRID(1, 1, 1), GRID(1, 1, 3), GRID(2, 1, 2), GRID(4, 1, 1), GRID(1, 2, 2),
                               GRID(1, 2, 1), GRID(2, 2, 1), GRID(1, 4, 1), GRID(1, 1, 4)};
    num_grids = sizeof few / sizeof *few;
    memcpy(grids, few, sizeof few);
    grids[5] = cut_grids[3];                      // of a setting with experts
    grids[7] = grids[6], grids[6] = cut_grids[6]; // shards that there are twice
    grids[num_grids++] = cut_grids[0], grids[num_grids++] = (Grid)GRID(1, 3, 1);
}

// ---- one run ------------------------------------------------------------------------------------

typedef struct {
    EngineSpec spec;
    int counts[16]; // layers of each stage
    char name[96];
} Setting;

// Muon in half of the settings, of which the short form takes half, an average of the weights in half.
static void set_optimizer(EngineSpec *spec, int number) {
    bool llama = number & 1, bf16 = number & 2;
    if (llama != bf16) run_use_muon(spec);
    spec->ema_decay = llama ? 0.9 : 0;
    // Every second pipeline has a part of AdamW's state beside its device's memory.
    if (llama == bf16 && grid_along(spec->grid, AXIS_PP) % 2 == 0) spec->offload = 0.6;
}

// Chunks where there are layers for them; 8 layers go unevenly into 3, 5, 6 and 7 stages.
static void make_setting(Setting *s, Grid grid, int number) {
    bool llama = number & 1, bf16 = number & 2, sharded = number & 4;
    bool two_chunks = grid_along(grid, AXIS_PP) == 2 || grid_along(grid, AXIS_PP) == 4;
    const char *schedule = grid_along(grid, AXIS_PP) == 2 ? "zb-v" : two_chunks ? "interleaved" : "1f1b";
    s->spec = run_spec(grid, schedule, two_chunks ? 2 : 1, LAYERS, 4 * grid_along(grid, AXIS_DP));
    ModelShape *shape = &s->spec.shape;
    if (llama) run_make_model(&s->spec, sharded ? RUN_EXPERTS : RUN_LLAMA);
    if (llama && sharded) {
        shape->experts = 8;
        shape->router_sigmoid = shape->router_bias = true;
        s->spec.bias_rate = 0.01f;
    }
    shape->heads = llama ? 16 : 8, shape->head_size = llama ? 2 : 4, shape->groups = llama ? 8 : 0;
    s->spec.mode.dtype = bf16 ? BF16 : F32;
    s->spec.mode.context_way = grid_along(grid, AXIS_CP) > 1 ? (ContextWay)(number % NUM_CONTEXT_WAYS) : 0;
    s->spec.sharding = sharded && grid_along(grid, AXIS_DP) > 1;
    if (!s->spec.sharding) s->spec.grid.instances = 0;
    s->spec.overlap_weights = s->spec.overlap_gradients = s->spec.sharding;
    set_optimizer(&s->spec, number);
    layer_balance(LAYERS, grid_along(grid, AXIS_PP) * s->spec.num_chunks, 0, 0, s->counts);
    s->spec.split.counts = s->counts;
    snprintf(s->name, sizeof s->name, "t%d c%d d%d e%d p%d i%d %s %s%s", grid_along(grid, AXIS_TP),
             grid_along(grid, AXIS_CP), grid_along(grid, AXIS_DP), grid_along(grid, AXIS_EP),
             grid_along(grid, AXIS_PP), s->spec.grid.instances, llama ? "llama" : "gpt",
             bf16 ? "bf16" : "fp32", sharded ? " sharded" : "");
}

// What the ranks of one run share while they load and save.
typedef struct {
    const char *load; // a checkpoint, or NULL
    const char *save; // a folder, or NULL
    int64_t iteration;
    int64_t loaded_steps; // AdamW's
    bool same_products;   // the history of delayed scaling that it loads is of those that it makes
    void (*opened)(Engine *engine, void *self); // in the place of `load`
    Text records[MAX_RANKS];
} Files;

static void barrier(Engine *engine) {
    comm_barrier(context_group(engine_context(engine), ROLE_MODEL));
    comm_barrier(context_group(engine_context(engine), ROLE_REPLICAS));
}

static void load(Engine *engine, void *self) {
    Files *files = self;
    if (!files->load) return;
    ModelSource *source = NULL;
    EXPECT_OK(model_source_open(&source, files->load, -1));
    if (!source) return;
    EXPECT_OK(engine_read(engine, source, true, true, model_source_info(source)->state.optimizer_steps));
    model_source_close(source);
}

static void save(Engine *engine, void *self) {
    Files *files = self;
    if (!files->save) return;
    Context *c = engine_context(engine);
    int rank = grid_rank(c->groups.topology.grid, c->groups.topology.place);
    CheckpointNames names;
    EngineState state = {0};
    CheckpointInfo info = {.shape = engine_spec_of(engine)->shape,
                           .state = {.iteration = files->iteration,
                                     .consumed = 8 * files->iteration,
                                     .optimizer_steps = engine_optimizer_steps(engine)},
                           .grid = c->groups.topology.grid,
                           .num_chunks = engine_spec_of(engine)->num_chunks,
                           .dtype = dtype_name(c->mode.dtype),
                           .has_optimizer = true,
                           .program = "test"};
    EXPECT_OK(checkpoint_names(files->save, files->iteration, &names));
    EXPECT_OK(engine_state(engine, true, rank % 2 == 0, &state));
    if (rank == 0) EXPECT_OK(checkpoint_begin(&names, state.bytes));
    barrier(engine);
    files->records[rank].size = 0;
    EXPECT_OK(checkpoint_write_shard(&names, rank, state.items, state.count, &files->records[rank]));
    barrier(engine);
    if (rank == 0)
        EXPECT_OK(
            checkpoint_commit(&names, -1, &info, NULL, files->records, grid_size(c->groups.topology.grid)));
    barrier(engine);
    engine_state_free(&state);
}

static void free_files(Files *files) {
    for (int i = 0; i < MAX_RANKS; i++) text_free(&files->records[i]);
}

// Trains `steps` from sample `consumed` on, between loading and saving.
static bool run(const Setting *setting, Files *files, int steps, int64_t consumed, RunResult *result) {
    RunPlan plan = {.spec = setting->spec,
                    .steps = steps,
                    .consumed = consumed,
                    .lr = 1e-2,
                    .transport = "threads",
                    .opened = files->opened ? files->opened : load,
                    .finished = save,
                    .self = files};
    plan.spec.split.counts = setting->counts;
    Status status = run_plan(&plan, result);
    EXPECT(status == OK, "%s: %s", setting->name, fail_message());
    return status == OK;
}

static void path_of(char path[512], const char *kind, int grid, int number) {
    snprintf(path, 512, "%s/%s-%d-%d", harness_folder(), kind, grid, number);
}

static void step_of(char path[600], const char *folder, int64_t step) {
    snprintf(path, 600, "%s/step-%08lld", folder, (long long)step);
}

// ---- the same bytes -----------------------------------------------------------------------------

static float *read_whole(Checkpoint *checkpoint, int i, int64_t *count) {
    CheckpointTensor tensor = checkpoint_tensor(checkpoint, i);
    *count = tensor.rows * tensor.cols;
    float *all = malloc((size_t)*count * sizeof *all + 1);
    CHECK(all, "no memory for %s", tensor.name);
    EXPECT_OK(checkpoint_read(checkpoint, i, (Rect){0, 0, tensor.rows, tensor.cols}, all, tensor.cols));
    return all;
}

static void compare_tensor(Checkpoint *a, Checkpoint *b, int i, const char *name) {
    int64_t count, other_count;
    int other = checkpoint_find(b, checkpoint_tensor(a, i).name);
    EXPECT(other >= 0, "%s: %s is gone", name, checkpoint_tensor(a, i).name);
    if (other < 0) return;
    float *x = read_whole(a, i, &count), *y = read_whole(b, other, &other_count);
    EXPECT(count == other_count && !memcmp(x, y, (size_t)count * sizeof *x), "%s: %s differs", name,
           checkpoint_tensor(a, i).name);
    free(x), free(y);
}

static void expect_same_tensors(const char *first, const char *second, const char *name) {
    Checkpoint *a = NULL, *b = NULL;
    EXPECT_OK(checkpoint_open(&a, first));
    EXPECT_OK(checkpoint_open(&b, second));
    if (a && b) {
        int count = checkpoint_num_tensors(a);
        EXPECT(count > 0 && count == checkpoint_num_tensors(b), "%s: %d and %d tensors", name, count,
               checkpoint_num_tensors(b));
        EXPECT(!memcmp(&checkpoint_info(a)->state, &checkpoint_info(b)->state, sizeof(RunState)),
               "%s: the states differ", name);
        for (int i = 0; i < count; i++) compare_tensor(a, b, i, name);
    }
    checkpoint_close(a);
    checkpoint_close(b);
}

// ---- the laws -----------------------------------------------------------------------------------

// Leaves the checkpoint behind, for the pairs.
static void expect_going_on(int g, int number) {
    Setting setting;
    char folder[512], step[600];
    make_setting(&setting, grids[g], number);
    path_of(folder, "first", g, number);
    step_of(step, folder, half());
    Files none = {0}, saving = {.save = folder, .iteration = half()}, loading = {.load = step};
    RunResult whole, first, second;
    int64_t consumed = (int64_t)half() * setting.spec.num_microbatches * grid_along(grids[g], AXIS_DP);
    if (!run(&setting, &none, 2 * half(), 0, &whole) || !run(&setting, &saving, half(), 0, &first) ||
        !run(&setting, &loading, half(), consumed, &second))
        return;
    for (int i = 0; i < half(); i++)
        EXPECT(!memcmp(&whole.loss[half() + i], &second.loss[i], sizeof(float)) &&
                   !memcmp(&whole.norm[half() + i], &second.norm[i], sizeof(double)),
               "%s: step %d after going on: loss %.9g, not %.9g", setting.name, i, (double)second.loss[i],
               (double)whole.loss[half() + i]);
    EXPECT(!memcmp(whole.checksum, second.checksum, sizeof whole.checksum), "%s: parameters differ",
           setting.name);
    EXPECT(memcmp(first.checksum, second.checksum, sizeof first.checksum) != 0, "%s: nothing was trained",
           setting.name);
    free_files(&saving);
}

static void expect_same_elsewhere(int from, int to, int number) {
    Setting setting;
    char folder[512], step[600], again[512], again_step[600], name[256];
    make_setting(&setting, grids[to], number);
    path_of(folder, "first", from, number);
    step_of(step, folder, half());
    path_of(again, "again", to, number);
    step_of(again_step, again, half());
    Files files = {.load = step, .save = again, .iteration = half()};
    RunResult result;
    snprintf(name, sizeof name, "%s, from grid t%d d%d p%d", setting.name, grid_along(grids[from], AXIS_TP),
             grid_along(grids[from], AXIS_DP), grid_along(grids[from], AXIS_PP));
    if (run(&setting, &files, 0, 0, &result)) expect_same_tensors(step, again_step, name);
    free_files(&files);
}

static void every_pair(void) {
    bool all = getenv("TRIREME_TEST_LONG") != NULL;
    const int part = 8, rest = harness_short() ? 1 : 0;
    if (harness_short())
        list_few_grids();
    else
        list_grids();
    for (int number = 0; number < NUM_SETTINGS; number++)
        for (int from = 0; from < num_grids; from++) {
            if (!all && from % NUM_SETTINGS != number) continue;
            if (harness_short() && __builtin_parity((unsigned)number)) continue;
            expect_going_on(from, number);
            for (int to = 0; to < num_grids; to++)
                if (all || (from + to) % part == rest) expect_same_elsewhere(from, to, number);
        }
}

// ---- histories of other products ----------------------------------------------------------------

// What a rank finds in the history of delayed scaling once it has read.
static void load_scales(Engine *engine, void *self) {
    const AmaxHistory *amax = engine_context(engine)->amax;
    Files *files = self;
    ModelSource *source = NULL;
    load(engine, self);
    EXPECT_OK(model_source_open(&source, files->load, -1));
    if (!source) return;
    bool known = engine_knows_amax(engine, source), any = false;
    for (int i = 0; i < amax->rows; i++) any |= amax->largest[i] > 0;
    EXPECT(known == files->same_products, "the history is%s of the same products", known ? "" : " not");
    EXPECT(any == known, "%d rows of largest magnitudes, %s", amax->rows, any ? "read" : "empty");
    model_source_close(source);
}

// Where experts were in bf16 before, the history has fewer rows: the run goes on and its scales begin at 1. This is so
// whether a run takes experts up or drops them.
static void other_products_empty_the_history(void) {
    for (int way = 0; way < 4; way++) {
        Setting setting = {.name = "delayed", .counts = {LAYERS}};
        char folder[512], step[600];
        RunResult result;
        setting.spec = run_spec((Grid)GRID(1, 2, 1), "1f1b", 1, LAYERS, 8);
        run_make_model(&setting.spec, RUN_EXPERTS);
        ModelMode *mode = &setting.spec.mode;
        mode->dtype = BF16, mode->float8 = FLOAT8_HYBRID, mode->recipe = RECIPE_DELAYED;
        mode->delayed = (DelayedScaling){.history = 2};
        mode->wide_experts = way & 1;
        path_of(folder, "delayed", 0, way);
        step_of(step, folder, 1);
        Files saving = {.save = folder, .iteration = 1};
        bool saved = run(&setting, &saving, 1, 0, &result);
        free_files(&saving);
        if (!saved) return;
        mode->wide_experts = way & 2;
        Files loading = {.load = step, .same_products = (way & 1) == (way >> 1), .opened = load_scales};
        if (!run(&setting, &loading, 1, 8, &result)) return;
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"every pair of grids", every_pair},
                                      {"other products empty the history", other_products_empty_the_history},
                                      {0}},
                       argc, argv);
}
