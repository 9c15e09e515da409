// Measured rows of models with experts: what their notes say, and what the recipes of their releases do.
#include "calibrate/rows.h"
#include "harness.h"
#include <string.h>

static void notes_say_what_experts_are(void) {
    PlanRow row = {.stack = "megatron-bridge (26.02)"};
    row.model.layers = 61, row.model.ffn = 2048, row.model.head_size = 56;
    EXPECT(row_experts_read(
               "MoE: ep=64 E=256 k=8 shared=1, first 3 layers dense with ffn 18432; heads are MLA; with "
               "MTP layer; dispatcher hybridep",
               &row),
           "DeepSeek-V3 is not read");
    const ModelShape *m = &row.model;
    EXPECT(m->experts == 256 && m->experts_topk == 8 && m->expert_ffn == 2048 && m->shared_ffn == 2048 &&
               m->ffn == 18432,
           "the experts");
    EXPECT(!model_layer_has_experts(m, 2) && model_layer_has_experts(m, 3) && model_layer_has_experts(m, 60),
           "the dense layers");
    EXPECT(m->kv_rank == 512 && m->head_size == 192 && m->value_size == 128 && row.config.further_heads == 1,
           "latents, and a further head");
    EXPECT(grid_along(row.config.grid, AXIS_EP) == 64 && grid_along(row.config.grid, AXIS_ETP) == 1,
           "the grid");
    EXPECT(!strcmp(row.kernel, "26.02+hybridep"), "words: %s", row.kernel);
    PlanRow windows = {.model = {.layers = 36, .ffn = 2880, .head_size = 45}};
    EXPECT(row_experts_read("MoE: ep=8 E=128 k=4; head size 64; every other layer attends to a window of 128",
                            &windows),
           "GPT-OSS is not read");
    EXPECT(windows.model.head_size == 64 && model_window(&windows.model, 0) == 128 &&
               !model_window(&windows.model, 1) && windows.model.mlp_bias,
           "windows, and biases of experts");
    PlanRow plain = {.model = {.layers = 2, .ffn = 8, .head_size = 4}};
    EXPECT(row_experts_read("head size 128", &plain) && plain.model.head_size == 4 && !plain.model.experts,
           "no experts");
    static const char *const BAD[] = {"MoE: E=8 k=2",
                                      "MoE: ep=2 E=8",
                                      "MoE: ep=2 E=9999 k=2",
                                      "MoE: ep=2 E=4 k=5",
                                      "MoE: ep=2 E=4 k=2, first 2 layers dense with ffn 8",
                                      "MoE: ep=2 E=4 k=2, first 1 layers dense"};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        PlanRow one = {.model = {.layers = 2, .ffn = 8, .head_size = 4}};
        EXPECT(!row_experts_read(BAD[i], &one), "'%s' is read", BAD[i]);
    }
}

// Where a note does not say how the program ran, the recipes of its release do.
static void releases_say_what_notes_do_not(void) {
    static const struct {
        const char *release, *gpu, *note, *words;
        int pp;
        FactorFormat factors;
        bool pairs;
    } rows[] = {{"26.02", "b200", "recipe of", "26.02+alltoall", 1, FACTORS_MXFP8, true},
                {"26.02", "b200",
                 "recipe of: all-to-all overlapped, dispatcher deepep, CUDA graph transformer_engine",
                 "26.02+deepep+overlapped+graphs", 1, FACTORS_MXFP8, false},
                {"26.06.01", "gb200", "recipe of: dispatcher hybridep, CUDA graph full_iteration",
                 "26.06.01+hybridep+graph+fused", 4, FACTORS_MXFP8, false},
                {"26.08", "gb300", "", "26.08+overlapped+graph+fused", 4, FACTORS_MXFP8, false},
                {"26.08", "b200", "", "26.08", 4, FACTORS_MXFP8, false},
                {"26.08", "h100-80gb", "", "26.08", 4, FACTORS_FP8, false},
                {"25.09", "b200", "tokens dropped", "25.09+alltoall+graph+dropped", 1, FACTORS_FP8, true},
                {"25.09", "b200", "tokens dropped", "25.09+alltoall+dropped", 16, FACTORS_FP8, true},
                {"25.09", "h100-80gb", "tokens dropped", "25.09+alltoall+dropped", 1, FACTORS_FP8, true},
                {"25.09", "h100-80gb", "", "25.09+overlapped", 8, FACTORS_FP8, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        PlanRow row = {.model = {.layers = 8, .ffn = 64, .head_size = 64},
                       .config = {.grid = GRID(1, 64, rows[i].pp), .factors = rows[i].factors}};
        char note[200];
        snprintf(row.stack, sizeof row.stack, "megatron-bridge (%s)", rows[i].release);
        snprintf(row.gpu, sizeof row.gpu, "%s", rows[i].gpu);
        snprintf(note, sizeof note, "MoE: ep=8 E=64 k=4; %s", rows[i].note);
        EXPECT(row_experts_read(note, &row) && !strcmp(row.kernel, rows[i].words), "row %zu: %s", i,
               row.kernel);
        EXPECT(row.config.sends_pairs == rows[i].pairs, "row %zu: pairs", i);
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"notes say what experts are", notes_say_what_experts_are},
                                      {"releases say what notes do not", releases_say_what_notes_do_not},
                                      {0}},
                       argc, argv);
}
