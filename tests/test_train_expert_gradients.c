// Where the experts of a layer are and in how many rounds their tokens travel changes no bit of a forward, a loss or a
// gradient but those of the experts' own weights, which are sums over tokens. It holds where a row of a product has the
// same bits whatever the number of rows; elsewhere gradients agree within rounding. What computes meanwhile changes no
// bit anywhere.
#include "harness.h"
#include "product_rows.h"
#include "runs.h"
#include "train/internal.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, RANKS = 4, MAX_GRADS = 64, NO_RECIPE = NUM_RECIPES };

// ---- gradients of rank 0 ----------------------------------------------------------------------------------

typedef struct {
    char name[96];
    int64_t count;
    float *values;
    bool of_experts;
} Grad;

typedef struct {
    Grad items[MAX_GRADS];
    int count;
} Grads;

static void keep_grads(Engine *engine, void *self) {
    const Context *c = engine_context(engine);
    const Params *params = engine_params(engine);
    Grads *grads = self;
    if (c->groups.topology.rank != 0) return;
    for (int i = 0; i < params->count; i++) {
        const Param *param = params->items[i];
        if (param->chunk < 0 || !param->grad.data) continue;
        CHECK(grads->count < MAX_GRADS, "more than %d parameters", MAX_GRADS);
        Grad *grad = &grads->items[grads->count++];
        snprintf(grad->name, sizeof grad->name, "%s", param->spec.name);
        grad->count = tensor_count(param->grad), grad->of_experts = param->spec.experts > 0;
        grad->values = malloc((size_t)grad->count * sizeof *grad->values);
        CHECK(grad->values, "no memory");
        device_download(c->device, c->stream, grad->values, param->grad);
    }
}

static void free_grads(Grads *grads) {
    for (int i = 0; i < grads->count; i++) free(grads->items[i].values);
    grads->count = 0;
}

static bool is_zero(const Grad *grad) {
    for (int64_t i = 0; i < grad->count; i++)
        if (grad->values[i] < 0 || grad->values[i] > 0) return false;
    return true;
}

// How far they are apart, of the length of the second.
static double distance(const Grad *a, const Grad *b) {
    double apart = 0, length = 0;
    for (int64_t i = 0; i < b->count; i++) {
        apart += pow((double)a->values[i] - (double)b->values[i], 2);
        length += pow((double)b->values[i], 2);
    }
    return sqrt(apart / length);
}

// ALL_BITS: also of the weights of experts. ROUNDED: what sums in another order leave.
typedef enum { ALL_BITS, BITS, ROUNDED } Likeness;

static void expect_like(const Grads *got, const Grads *want, Likeness likeness, const char *name) {
    EXPECT(got->count == want->count && got->count > 0, "%s: %d gradients, not %d", name, got->count,
           want->count);
    for (int i = 0; i < got->count && i < want->count; i++) {
        const Grad *a = &got->items[i], *b = &want->items[i];
        if (b->of_experts && likeness != ALL_BITS) continue;
        bool same = a->count == b->count && !strcmp(a->name, b->name);
        EXPECT(same, "%s: %s, not %s", name, a->name, b->name);
        if (!same) continue;
        EXPECT(a->of_experts || !is_zero(b), "%s: %s has no gradient", name, b->name);
        if (likeness == ROUNDED)
            EXPECT(distance(a, b) < 1e-5, "%s: gradient of %s is %.3g off", name, a->name, distance(a, b));
        else
            EXPECT(!memcmp(a->values, b->values, (size_t)a->count * sizeof *a->values), "%s: gradient of %s",
                   name, a->name);
    }
}

// ---- the law ----------------------------------------------------------------------------------------------

typedef struct {
    const char *device;
    DType dtype;
    int recipe;
    RunModel model;
    bool tensor_ranks;
} Arithmetic;

typedef struct {
    int ep, slot;
    const char *schedule;
    int like; // the number of the way that it is compared with
} Way;

// Each is compared with one before it. With slots of 3 rows tokens travel in many rounds. Where computes are paired the
// experts are where they were, and all gradients are the same.
static const Way ways[] = {{1, 0, "1f1b", 0}, {2, 0, "1f1b", 0},   {4, 0, "1f1b", 0},
                           {4, 3, "1f1b", 0}, {4, 3, "paired", 3}, {2, 0, "paired", 1}};
enum { NUM_WAYS = sizeof ways / sizeof *ways };

// One step without a rate, so that the evaluation after it is another forward of the same model. Its gradients stay what
// they are: nothing clips them.
static RunPlan plan_of(const Arithmetic *of, const Way *way) {
    Grid grid = GRID(of->tensor_ranks ? 2 : 1, of->tensor_ranks ? 2 : 4, 1);
    grid.size[AXIS_ETP] = 1, grid.size[AXIS_EP] = way->ep;
    RunPlan plan = {.spec = run_spec(grid, way->schedule, 1, LAYERS, 2 * RANKS),
                    .steps = 1,
                    .lr = 0,
                    .transport = "threads",
                    .finished = keep_grads};
    run_make_model(&plan.spec, of->model);
    ModelMode *mode = &plan.spec.mode;
    plan.spec.device = of->device, plan.spec.adam.clip = 0;
    mode->sequence_parallel = of->tensor_ranks, mode->dispatch_slot = way->slot, mode->dtype = of->dtype;
    if (of->recipe == NO_RECIPE) return plan;
    mode->recipe = (ScalingRecipe)of->recipe, mode->float8 = FLOAT8_HYBRID;
    mode->delayed = (DelayedScaling){.history = 2};
    return plan;
}

static void expect_same_loss(const RunResult *got, const RunResult *want, const char *name) {
    EXPECT(isfinite(got->loss[0]) && got->loss[0] > 1, "%s: loss %g", name, (double)got->loss[0]);
    EXPECT(!memcmp(&got->loss[0], &want->loss[0], sizeof(float)), "%s: loss %.9g, not %.9g", name,
           (double)got->loss[0], (double)want->loss[0]);
    EXPECT(!memcmp(&got->evaluation[0], &want->evaluation[0], sizeof(float)), "%s: evaluation %.9g, not %.9g",
           name, (double)got->evaluation[0], (double)want->evaluation[0]);
}

static Likeness likeness_of(const Arithmetic *of, const Way *way) {
    if (!strcmp(way->schedule, "paired")) return ALL_BITS;
    return strcmp(of->device, "cpu") != 0 || cpu_keeps_rows(of->dtype) ? BITS : ROUNDED;
}

static void law(const Arithmetic *of) {
    RunPlan plans[NUM_WAYS];
    RunResult results[NUM_WAYS];
    Grads grads[NUM_WAYS] = {0};
    for (int i = 0; i < NUM_WAYS; i++) plans[i] = plan_of(of, &ways[i]), plans[i].self = &grads[i];
    Status status = run_plans(plans, NUM_WAYS, results);
    EXPECT(status == OK, "%s", fail_message());
    for (int i = 1; i < NUM_WAYS && status == OK; i++) {
        const Way *way = &ways[i];
        Likeness likeness = likeness_of(of, way);
        char name[160];
        snprintf(name, sizeof name, "%s, %s, recipe %d, %s%s: ep %d, slot %d, %s", of->device,
                 dtype_name(of->dtype), of->recipe, run_model_names[of->model],
                 of->tensor_ranks ? " with tensor ranks" : "", way->ep, way->slot, way->schedule);
        if (likeness != ROUNDED) expect_same_loss(&results[i], &results[way->like], name);
        // Of few bits a product's last bit changes many of the next one.
        if (likeness != ROUNDED || of->dtype == F32)
            expect_like(&grads[i], &grads[way->like], likeness, name);
    }
    for (int i = 0; i < NUM_WAYS; i++) free_grads(&grads[i]);
}

// Recipes of 8 bits.
static int num_recipes(void) { return harness_short() ? 1 : RECIPE_NVFP4; }

static void on_the_reference_device(void) {
    law(&(Arithmetic){"reference", F32, NO_RECIPE, RUN_EXPERTS, false});
    law(&(Arithmetic){"reference", F32, NO_RECIPE, RUN_BIASED_EXPERTS, true});
    for (int recipe = 0; recipe < num_recipes(); recipe++)
        law(&(Arithmetic){"reference", BF16, recipe, RUN_EXPERTS, false});
}

static void on_the_cpu(void) {
    law(&(Arithmetic){"cpu", F32, NO_RECIPE, RUN_EXPERTS, false});
    law(&(Arithmetic){"cpu", BF16, NO_RECIPE, RUN_EXPERTS, false});
    law(&(Arithmetic){"cpu", BF16, NO_RECIPE, RUN_BIASED_EXPERTS, true});
    for (int recipe = 0; recipe < num_recipes(); recipe++)
        law(&(Arithmetic){"cpu", BF16, recipe, RUN_EXPERTS, false});
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"on_the_reference_device", on_the_reference_device}, {"on_the_cpu", on_the_cpu}, {0}},
        argc, argv);
}
