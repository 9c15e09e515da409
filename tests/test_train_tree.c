// Gradients that are added in a tree of leaves: the number of data-parallel ranks changes no bit, with any pipeline, sharded
// or not, over many steps. And the bits do depend on it where they are not.
#include "harness.h"
#include "runs.h"
#include <string.h>

enum { LAYERS = 4, GLOBAL_BATCH = 16, LEAVES = 8, LONG_RUN = 50, SHORT_RUN = 4 };

typedef struct {
    int d, p, virtual_data;
    bool sharded;
    DType dtype;
} Kind;

static RunPlan plan_of(const Kind *k) {
    Grid grid = GRID(1, k->d, k->p);
    RunPlan plan = {.spec = run_spec(grid, "1f1b", 1, LAYERS, GLOBAL_BATCH),
                    .steps = harness_short() ? SHORT_RUN : LONG_RUN,
                    .lr = 3e-3,
                    .transport = "threads",
                    .finished = run_expect_predicted_memory};
    plan.spec.mode.dtype = k->dtype;
    plan.spec.virtual_data = k->virtual_data;
    plan.spec.sharding = plan.spec.overlap_gradients = plan.spec.overlap_weights = k->sharded && k->d > 1;
    return plan;
}

static bool run(const Kind *k, RunResult *result, char name[80]) {
    snprintf(name, 80, "d%d p%d %s%s, %d leaves", k->d, k->p, dtype_name(k->dtype),
             k->sharded ? " sharded" : "", k->virtual_data);
    RunPlan plan = plan_of(k);
    return run_or_complain(&plan, name, result);
}

static void ranks_change_no_bit_of(DType dtype) {
    RunResult first, result;
    bool any = false;
    for (int d = 1; d <= LEAVES; d *= 2)
        for (int p = 1; p <= 2; p++)
            for (int sharded = 0; sharded < 2; sharded++) {
                Kind k = {d, p, LEAVES, sharded, dtype};
                char name[80];
                if ((sharded && d == 1) || (harness_short() && d * p > 4)) continue;
                if (!run(&k, any ? &result : &first, name)) return;
                if (any) run_expect_same_bits(&first, &result, name);
                any = true;
            }
}

static void ranks_change_no_bit(void) {
    ranks_change_no_bit_of(F32);
    ranks_change_no_bit_of(BF16);
}

// Else the test above would compare what is always equal.
static void ranks_change_bits_without_leaves(void) {
    RunResult one, four;
    char name[80];
    if (!run(&(Kind){1, 1, 0, false, F32}, &one, name) || !run(&(Kind){4, 1, 0, false, F32}, &four, name))
        return;
    EXPECT(memcmp(one.norm, four.norm, sizeof one.norm), "one and four ranks give the same norms");
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"ranks_change_no_bit", ranks_change_no_bit},
                                      {"ranks_change_bits_without_leaves", ranks_change_bits_without_leaves},
                                      {0}},
                       argc, argv);
}
