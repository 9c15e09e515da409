// The layer that a plan records stands for all layers of a model, with windows and without: its attention has the mean of
// their FLOPs.
#include "harness.h"
#include "plan/plan.h"
#include <math.h>

static void expect_mean(int window, int period, uint64_t layers) {
    ModelShape model = {.layers = 6, .hidden = 32, .heads = 4, .head_size = 8, .ffn = 128, .sequence = 256};
    ParallelConfig c = {.grid = GRID(1, 1, 1), .microbatch = 2, .batch = 2, .dtype = BF16};
    Work work;
    double flops = 0, s = model.sequence, all;
    model.positions = model.vocabulary = 256, model.norm_epsilon = 1e-5f, model.init_std = 0.02f;
    model.window = window, model.window_period = period, model.window_layers = layers;
    all = 4.0 * c.microbatch * s * s * model.heads * model.head_size;
    EXPECT_OK(work_record(&work, &model, &c));
    const WorkList *list = &work.forward[PART_LAYER];
    for (int i = 0; i < list->count; i++)
        if (list->items[i].kind == WORK_OP && list->items[i].op == OP_ATTENTION_FORWARD)
            flops += list->items[i].flops;
    EXPECT(fabs(flops / (all * model_visible_share(&model)) - 1) < 0.01,
           "window %d, period %d, layers %llx: %.0f FLOPs of %.0f, visible %g", window, period,
           (unsigned long long)layers, flops, all, model_visible_share(&model));
    work_free(&work);
}

static void layers_count_by_their_windows(void) {
    expect_mean(0, 0, 0);
    expect_mean(40, 0, 0);
    expect_mean(40, 3, 3);
    expect_mean(1, 2, 2);
    expect_mean(128, 6, 31);
    expect_mean(300, 2, 1);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"layers count by their windows", layers_count_by_their_windows}, {0}},
                       argc, argv);
}
