// What follows from a model's sizes alone: the frequencies of rotary positions.
#include "harness.h"
#include "nn/shape.h"
#include <math.h>

static ModelShape rotated(int columns, Rope rope) {
    return (ModelShape){
        .heads = 4, .head_size = columns, .position = POSITION_ROTARY, .rotary_base = 500000, .rope = rope};
}

// The numbers are those of transformers' ROPE_INIT_FUNCTIONS, in fp32, for a Llama 3.1 8B, a Llama 3.2 1B, one
// with other factors, and a linear scaling.
static void frequencies(void) {
    static const Rope llama31 = {ROPE_LLAMA3, 8, 1, 4, 8192}, llama32 = {ROPE_LLAMA3, 32, 1, 4, 8192},
                      other = {ROPE_LLAMA3, 4, 2, 3, 512}, linear = {.kind = ROPE_LINEAR, .factor = 2.5};
    static const struct {
        const Rope *rope;
        int columns, i;
        double wanted;
    } rows[] = {
        {&llama31, 128, 0, 1},
        {&llama31, 128, 28, 3.211446106e-03},
        {&llama31, 128, 29, 2.166570630e-03},
        {&llama31, 128, 30, 1.371893683e-03},
        {&llama31, 128, 32, 5.248460220e-04},
        {&llama31, 128, 34, 1.785077911e-04},
        {&llama31, 128, 35, 9.556212171e-05},
        {&llama31, 128, 63, 3.068925878e-07},
        {&llama32, 64, 14, 3.211446106e-03},
        {&llama32, 64, 15, 1.290548011e-03},
        {&llama32, 64, 16, 4.295567051e-04},
        {&llama32, 64, 17, 9.708286234e-05},
        {&llama32, 64, 18, 1.946163866e-05},
        {&llama32, 64, 30, 1.419272024e-07},
        {&other, 16, 1, 1.939227581e-01},
        {&other, 16, 2, 3.760603070e-02},
        {&other, 16, 3, 1.823166269e-03},
        {&other, 16, 4, 3.535533615e-04},
        {&linear, 128, 0, 0.4},
        {&linear, 128, 28, 1.284578466e-03},
        {&linear, 128, 63, 9.820562354e-07},
    };
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        ModelShape shape = rotated(rows[n].columns, *rows[n].rope);
        double found = model_rotary_frequency(&shape, rows[n].i);
        EXPECT(fabs(found / rows[n].wanted - 1) < 1e-6, "row %zu: %.9e, not %.9e", n, found, rows[n].wanted);
    }
}

// Without scaling, and in the columns that are rotated alone.
static void plain_frequencies(void) {
    ModelShape shape = rotated(64, (Rope){0});
    for (int i = 0; i < 32; i++) {
        double found = model_rotary_frequency(&shape, i), wanted = pow(500000, -2.0 * i / 64);
        EXPECT(found == wanted, "%d: %.17g, not %.17g", i, found, wanted);
    }
    shape.rotary_columns = 16;
    EXPECT(model_rotary_frequency(&shape, 3) == pow(500000, -6.0 / 16), "a share of the head");
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"frequencies", frequencies}, {"plain_frequencies", plain_frequencies}, {0}}, argc,
        argv);
}
