// The formats of factors with 8 and 4 bits: their names, recipes and sizes.
#include "machine/machine.h"
#include <string.h>

// A scale is shared by a tensor, by 32 numbers (a byte) or by 16 (a byte).
static const struct {
    const char *name, *recipe;
    double bytes;
} formats[NUM_FACTOR_FORMATS] = {[FACTORS_WHOLE] = {"", "", 0},
                                 [FACTORS_FP8] = {"fp8", "tensorwise", 1},
                                 [FACTORS_MXFP8] = {"mxfp8", "mxfp8", 1 + 1.0 / 32},
                                 [FACTORS_NVFP4] = {"nvfp4", "nvfp4", 0.5 + 1.0 / 16}};

const char *factor_format_name(FactorFormat format) { return formats[format].name; }

const char *factor_format_recipe(FactorFormat format) { return formats[format].recipe; }

double factor_format_bytes(FactorFormat format) { return formats[format].bytes; }

bool factor_format_find(const char *name, FactorFormat *format) {
    for (int i = FACTORS_FP8; i < NUM_FACTOR_FORMATS; i++) {
        if (strcmp(name, formats[i].name)) continue;
        *format = (FactorFormat)i;
        return true;
    }
    return false;
}
