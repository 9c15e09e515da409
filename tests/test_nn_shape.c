// What follows from a model's sizes alone: the frequencies of rotary positions.
#include "harness.h"
#include "nn/sublayer.h"
#include <math.h>

static ModelShape rotated(int columns, Rope rope) {
    return (ModelShape){
        .heads = 4, .head_size = columns, .position = POSITION_ROTARY, .rotary_base = 500000, .rope = rope};
}

// The numbers are those of transformers' ROPE_INIT_FUNCTIONS, in fp32, for a Llama 3.1 8B, a Llama 3.2 1B, one
// with other factors, and a linear scaling.
static void frequencies(void) {
    static const Rope llama31 = {.kind = ROPE_LLAMA3, .factor = 8, .low = 1, .high = 4, .original = 8192},
                      llama32 = {.kind = ROPE_LLAMA3, .factor = 32, .low = 1, .high = 4, .original = 8192},
                      other = {.kind = ROPE_LLAMA3, .factor = 4, .low = 2, .high = 3, .original = 512},
                      linear = {.kind = ROPE_LINEAR, .factor = 2.5};
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
        double found = model_rotary_frequency(&shape, rows[n].i, false);
        EXPECT(fabs(found / rows[n].wanted - 1) < 1e-6, "row %zu: %.9e, not %.9e", n, found, rows[n].wanted);
    }
}

// Each frequency has a divisor of its own, of another list above the original length.
static void longrope(void) {
    Rope rope = {.kind = ROPE_LONG,
                 .factor = 32,
                 .original = 4096,
                 .shorter = {.count = 32, .at = {1, 1.25}},
                 .longer = {.count = 32, .at = {1, 1.25, 4}}};
    for (int i = 2; i < 32; i++) rope.shorter.at[i] = 2;
    for (int i = 3; i < 32; i++) rope.longer.at[i] = 60;
    const struct {
        int sequence, i;
        double divisor;
    } rows[] = {{4096, 1, 1.25}, {4096, 2, 2}, {4096, 31, 2}, {4097, 1, 1.25}, {4097, 2, 4}, {4097, 31, 60}};
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        ModelShape shape = rotated(64, rope);
        shape.sequence = rows[n].sequence;
        double plain = pow(shape.rotary_base, -2.0 * rows[n].i / 64),
               found = model_rotary_frequency(&shape, rows[n].i, false);
        EXPECT(fabs(found * rows[n].divisor / plain - 1) < 1e-12, "row %zu: %.9e of %.9e", n, found, plain);
    }
    ModelShape shape = rotated(64, rope);
    EXPECT(fabs(model_rotary_factor(&shape, false) - 1.19023807) < 1e-8, "%.9f", // Phi-3's, 128k of 4k
           model_rotary_factor(&shape, false));
    shape.rope.attention = 1.5;
    EXPECT(model_rotary_factor(&shape, false) == 1.5, "its own factor");
}

// The numbers of GPT-OSS (limits not rounded) and DeepSeek-V3 are those of the definition in fp64.
static void yarn(void) {
    static const struct {
        Rope rope;
        double base, wanted, factor;
        int i;
    } rows[] = {
        {{.kind = ROPE_YARN, .factor = 32, .low = 1, .high = 32, .original = 4096, .unrounded = true},
         1.5e5,
         5.081327482e-2,
         1.346573590,
         8},
        {{.kind = ROPE_YARN, .factor = 32, .low = 1, .high = 32, .original = 4096, .unrounded = true},
         1.5e5,
         3.170569618e-2,
         1.346573590,
         9},
        {{.kind = ROPE_YARN, .factor = 32, .low = 1, .high = 32, .original = 4096, .unrounded = true},
         1.5e5,
         6.794959490e-3,
         1.346573590,
         12},
        {{.kind = ROPE_YARN, .factor = 32, .low = 1, .high = 32, .original = 4096, .unrounded = true},
         1.5e5,
         1.293187012e-4,
         1.346573590,
         17},
        {{.kind = ROPE_YARN, .factor = 32, .low = 1, .high = 32, .original = 4096, .unrounded = true},
         1.5e5,
         3.830881237e-5,
         1.346573590,
         18},
        {{.kind = ROPE_YARN, .factor = 40, .low = 1, .high = 32, .original = 4096},
         1e4,
         5.5e-3,
         1.368887945,
         16},
        {{.kind = ROPE_YARN, .factor = 40, .low = 1, .high = 32, .original = 4096, .attention = 1.25},
         1e4,
         3.333803580e-5,
         1.25,
         23},
    };
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        ModelShape shape = rotated(64, rows[n].rope);
        shape.rotary_base = rows[n].base;
        double found = model_rotary_frequency(&shape, rows[n].i, false),
               factor = model_rotary_factor(&shape, false);
        EXPECT(fabs(found / rows[n].wanted - 1) < 1e-8, "row %zu: %.9e, not %.9e", n, found, rows[n].wanted);
        EXPECT(fabs(factor / rows[n].factor - 1) < 1e-8, "row %zu: factor %.9f", n, factor);
    }
}

// Source: DeepSeek-V3, whose layers have 187 million parameters of attention.
static void deepseek(void) {
    ModelShape s = rotated(192, (Rope){.kind = ROPE_YARN,
                                       .factor = 40,
                                       .low = 1,
                                       .high = 32,
                                       .original = 4096,
                                       .attention = 1,
                                       .mscale_all = 1});
    s.rotary_base = 1e4, s.rotary_columns = 64, s.value_size = 128, s.rms_norm = s.no_linear_bias = true;
    s.hidden = 7168, s.heads = 128, s.q_rank = 1536, s.kv_rank = 512;
    double scale = model_softmax_scale(&s), slowest = model_rotary_frequency(&s, 23, false);
    EXPECT(fabs(scale / 0.1352337789 - 1) < 1e-9, "scores are scaled by %.10f", scale);
    EXPECT(fabs(slowest / 3.333803580e-5 - 1) < 1e-8, "%.9e", slowest);
    ParamCount count = sublayer_kinds[SUBLAYER_attention]->parameters(&s);
    int64_t norm = norm_parameters(&s), found = count.cut + count.whole - norm;
    EXPECT(found == 187107328, "%lld parameters", (long long)found);
    s.rope.kind = ROPE_PLAIN, s.rope.mscale_all = 0;
    EXPECT(model_softmax_scale(&s) == 1 / sqrt(192), "without YaRN %g", model_softmax_scale(&s));
}

// Four times as many positions as before, by a larger base; as many leave it as it is. Layers with a window have another.
static void dynamic(void) {
    ModelShape shape = rotated(128, (Rope){.kind = ROPE_DYNAMIC, .factor = 1, .original = 2048});
    shape.rotary_base = 10000, shape.sequence = 2048;
    EXPECT(model_rotary_frequency(&shape, 1, false) == pow(10000, -2.0 / 128), "as many positions");
    shape.sequence = 4 * 2048;
    double found = model_rotary_frequency(&shape, 1, false), wanted = pow(40889.942432, -2.0 / 128);
    EXPECT(fabs(found / wanted - 1) < 1e-9, "%.9e, not %.9e", found, wanted);
    shape.rotary_base_local = 500;
    EXPECT(model_rotary_frequency(&shape, 3, true) == pow(500, -6.0 / 128), "the base of windows");
}

static void rotating_layers(void) {
    ModelShape shape = rotated(64, (Rope){0});
    shape.no_rope_freq = 4;
    for (int layer = 0; layer < 12; layer++)
        EXPECT(model_layer_rotates(&shape, layer) == (layer % 4 != 3), "layer %d", layer);
}

// Without scaling, and in the columns that are rotated alone.
static void plain_frequencies(void) {
    ModelShape shape = rotated(64, (Rope){0});
    for (int i = 0; i < 32; i++) {
        double found = model_rotary_frequency(&shape, i, false), wanted = pow(500000, -2.0 * i / 64);
        EXPECT(found == wanted, "%d: %.17g, not %.17g", i, found, wanted);
    }
    shape.rotary_columns = 16;
    EXPECT(model_rotary_frequency(&shape, 3, false) == pow(500000, -6.0 / 16), "a share of the head");
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"frequencies", frequencies},
                                      {"plain_frequencies", plain_frequencies},
                                      {"yarn", yarn},
                                      {"longrope", longrope},
                                      {"deepseek", deepseek},
                                      {"dynamic", dynamic},
                                      {"rotating_layers", rotating_layers},
                                      {0}},
                       argc, argv);
}
