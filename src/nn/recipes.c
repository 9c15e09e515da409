// The table of recipes of scales. Sources: Micikevicius 2022 (scales of tensors), DeepSeek-V3 2024 (blockwise), OCP
// Microscaling 1.0 (MX), NVIDIA 2025 (NVFP4); the choices are Transformer Engine's.
#include "nn/recipes.h"
#include <stdio.h>

#define LINE(elements, kind)                                                                                 \
    { .along = (elements), .across = 1, .scales = (kind) }
#define SQUARE(elements, kind)                                                                               \
    { .along = (elements), .across = (elements), .scales = (kind) }

// A 1-D block lies along the sum, so a tensor of two products is quantised twice, each time from its own numbers.
const RecipeRow recipe_rows[NUM_RECIPES] = {
    [RECIPE_TENSORWISE] = {.name = "tensorwise"},
    [RECIPE_DELAYED] = {.name = "delayed", .delayed = true},
    [RECIPE_BLOCKWISE] =
        {.name = "blockwise",
         .factors =
             {[PRODUCT_FORWARD] =
                  {[FACTOR_X] = LINE(128, BLOCK_POWER_DOWN), [FACTOR_W] = SQUARE(128, BLOCK_POWER_DOWN)},
              [PRODUCT_INPUT] =
                  {[FACTOR_DY] = LINE(128, BLOCK_POWER_DOWN), [FACTOR_W] = SQUARE(128, BLOCK_POWER_DOWN)},
              [PRODUCT_WEIGHT] =
                  {[FACTOR_DY] = LINE(128, BLOCK_POWER_DOWN), [FACTOR_X] = LINE(128, BLOCK_POWER_DOWN)}}},
    [RECIPE_MXFP8] =
        {.name = "mxfp8",
         .factors = {[PRODUCT_FORWARD] =
                         {[FACTOR_X] = LINE(32, BLOCK_POWER_UP), [FACTOR_W] = LINE(32, BLOCK_POWER_UP)},
                     [PRODUCT_INPUT] =
                         {[FACTOR_DY] = LINE(32, BLOCK_POWER_UP), [FACTOR_W] = LINE(32, BLOCK_POWER_UP)},
                     [PRODUCT_WEIGHT] =
                         {[FACTOR_DY] = LINE(32, BLOCK_POWER_UP), [FACTOR_X] = LINE(32, BLOCK_POWER_UP)}}},
    [RECIPE_NVFP4] =
        {.name = "nvfp4",
         .factors =
             {[PRODUCT_FORWARD] = {[FACTOR_X] = LINE(16, BLOCK_E4M3), [FACTOR_W] = SQUARE(16, BLOCK_E4M3)},
              [PRODUCT_INPUT] =
                  {[FACTOR_DY] = {16, 1, BLOCK_E4M3, .random = true}, [FACTOR_W] = SQUARE(16, BLOCK_E4M3)},
              [PRODUCT_WEIGHT] = {[FACTOR_DY] = {16, 1, BLOCK_E4M3, .random = true, .hadamard = true},
                                  [FACTOR_X] = {16, 1, BLOCK_E4M3, .hadamard = true}}}},
};

bool recipe_takes_8_bits(const ModelMode *mode) {
    return mode->float8 && !recipe_rows[mode->recipe].factors[PRODUCT_FORWARD][FACTOR_X].along;
}

Codes recipe_codes(Float8 format, LinearFactor factor) {
    if (format == FLOAT4_E2M1) return CODES_E2M1;
    return factor == FACTOR_DY && format == FLOAT8_HYBRID ? CODES_E5M2 : CODES_E4M3;
}

RecipeName recipe_describe(const ModelMode *mode, const char *between) {
    static const char *const formats[NUM_FLOAT8] = {"", "e4m3", "hybrid", "e2m1"};
    RecipeName name = {""};
    bool plain = !mode->float8 || mode->recipe == RECIPE_TENSORWISE;
    snprintf(name.text, sizeof name.text, "%s%s%s", formats[mode->float8], plain ? "" : between,
             plain ? "" : recipe_rows[mode->recipe].name);
    return name;
}
