// What llama.cpp takes as fixed or has to find: a GGUF file holds it, or is not made and a message tells why.
#include "base/file.h"
#include "checkpoint_models.h"
#include "formats/gguf.h"
#include <math.h>

static Status export_as(const ModelShape *shape, const char *name, Path *file) {
    Path save = path_of(name);
    ModelSource *source;
    *file = inside(save.text, "file.gguf");
    make_checkpoint(save.text, shape, 7, 5);
    EXPECT_OK(model_source_open(&source, save.text, -1));
    Status status = export_gguf(source, file->text, GGUF_F16);
    model_source_close(source);
    return status;
}

static void expect_refused(ModelShape shape, const char *told) {
    static int count;
    char name[32];
    Path file;
    snprintf(name, sizeof name, "refused%d", count++);
    EXPECT(export_as(&shape, name, &file) == ERR_UNAVAILABLE, "no refusal: %s", told);
    EXPECT(strstr(fail_message(), told) && strstr(fail_message(), "--to hf can hold it"), "no '%s' in: %s",
           told, fail_message());
    EXPECT(!file_exists(file.text), "something was left behind");
}

static Gguf *exported(ModelShape shape) {
    static int count;
    char name[32];
    Path path;
    Gguf *file = NULL;
    snprintf(name, sizeof name, "exported%d", count++);
    EXPECT_OK(export_as(&shape, name, &path));
    EXPECT_OK(gguf_open(&file, path.text));
    CHECK(file, "no GGUF file");
    return file;
}

static void expect_exported(ModelShape shape) { gguf_close(exported(shape)); }

// As llama.cpp takes them.
static ModelShape their_gemma2(void) {
    ModelShape s = gemma2();
    s.softmax_scale = 0;
    return s;
}

static ModelShape their_gemma3(void) {
    ModelShape s = gemma3();
    s.layers = 7, s.window_period = 6, s.window_layers = 31;
    return s;
}

static ModelShape their_smollm3(void) {
    ModelShape s = smollm3();
    s.layers = 5, s.no_rope_freq = 4, s.rope = (Rope){0};
    return s;
}

static void activations(void) {
    ModelShape shape = exact_gelu();
    expect_refused(shape, "llama.cpp's gpt2 has the tanh form of GELU");
    shape = neox();
    expect_refused(shape, "llama.cpp's gptneox has the tanh form of GELU");
    shape.activation = ACTIVATION_GELU;
    expect_exported(shape);
}

static void scales_and_caps(void) {
    ModelShape shape = gemma2();
    expect_refused(shape, "gemma2 scales scores of a model of these sizes by 0.353553, the model by 0.25");
    shape = their_gemma2();
    expect_exported(shape);
    shape.softmax_cap = 0;
    expect_refused(shape, "gemma2 has no models without attn_logit_softcapping");
    shape = their_gemma2(), shape.logit_cap = 0;
    expect_refused(shape, "gemma2 has no models without final_logit_softcapping");
    shape = their_gemma3(), shape.softmax_scale = 0.1;
    expect_refused(shape, "gemma3 scales scores");
    shape = their_gemma3(), shape.softmax_cap = 50;
    expect_refused(shape, "gemma3 has no attn_logit_softcapping");
    shape = their_gemma3(), shape.logit_cap = 30;
    expect_refused(shape, "gemma3 has no final_logit_softcapping");
}

// Of the largest models of a family: by the width of the model.
static void scales_by_hidden_size(void) {
    ModelShape shape = their_gemma2();
    shape.layers = 46, shape.head_size = 16;
    expect_refused(shape, "gemma2 scales scores of a model of these sizes by 0.353553, the model by 0.25");
    shape.softmax_scale = sqrt(1.0 / 8);
    expect_exported(shape);
}

static void layers(void) {
    ModelShape shape = their_gemma2();
    shape.layers = 3, shape.window_period = 3, shape.window_layers = 3;
    expect_refused(shape, "gemma2 has windows in all layers but every Nth, N = 2");
    shape = their_gemma3();
    expect_exported(shape);
    shape.window_period = 2, shape.window_layers = 1;
    expect_refused(shape, "gemma3 has windows in all layers but every Nth, N = 6");
    shape = their_gemma3(), shape.layers = 5, shape.window_period = 0, shape.window_layers = 0;
    expect_exported(shape); // the first five of six
    shape = their_gemma3(), shape.rotary_base_local = 500;
    expect_refused(shape, "gemma3 rotates by the base 10000 in layers with a window, the model by 500");
    shape = their_smollm3();
    expect_exported(shape);
    shape.no_rope_freq = 2;
    expect_refused(shape, "smollm3 rotates all layers but every Nth, N = 4");
    shape = their_smollm3(), shape.no_rope_freq = 0, shape.family = FAMILY_SMOLLM3;
    expect_refused(shape, "smollm3 rotates all layers but every Nth, N = 4");
    shape = phi3();
    expect_refused(shape, "phi3 has no windows of attention");
    shape.window = 16;
    expect_exported(shape);
}

static float real(const Gguf *file, const char *key) {
    const GgufPair *pair = gguf_find(file, key);
    float value = NAN;
    EXPECT(pair && pair->type == GGUF_FLOAT32 && !pair->is_array, "no number %s", key);
    if (pair) memcpy(&value, pair->data, sizeof value);
    return value;
}

// llama.cpp multiplies attn_factor by 1 + 0.1 log(factor), which the factor of ours replaces.
static void yarn(void) {
    ModelShape shape = llama();
    shape.rope = (Rope){.kind = ROPE_YARN, .factor = 4, .low = 1, .high = 32, .original = 8};
    Gguf *file = exported(shape);
    EXPECT(!gguf_find(file, "llama.rope.scaling.attn_factor"), "a factor that is YaRN's own");
    gguf_close(file);
    shape.rope.attention = 2.5;
    file = exported(shape);
    float found = real(file, "llama.rope.scaling.attn_factor"), wanted = 2.5f / (1 + 0.1f * logf(4));
    EXPECT(fabsf(found - wanted) < 1e-6f, "%g, not %g", (double)found, (double)wanted);
    gguf_close(file);
    shape.rope.unrounded = true;
    expect_refused(shape, "llama has no YaRN without rounding");
    shape = their_gemma3();
    shape.rope = (Rope){.kind = ROPE_YARN, .factor = 4, .low = 1, .high = 32, .original = 8, .attention = 2};
    expect_refused(shape, "gemma3 has no factor of YaRN for layers without a window alone");
}

static void divisors(void) {
    ModelShape shape = llama3_rope();
    shape.rms_norm = false, shape.rotary_columns = 2;
    expect_refused(shape, "stablelm has no llama3 scaling");
    shape = their_smollm3(), shape.rope = llama3_rope().rope;
    expect_refused(shape, "smollm3 has no llama3 scaling");
    shape = granite(), shape.rope = llama3_rope().rope;
    Gguf *file = exported(shape);
    EXPECT(gguf_tensor(file, "rope_freqs.weight"), "no divisors");
    gguf_close(file);
    shape = long_phi3(), shape.family = FAMILY_MISTRAL, shape.rotary_columns = 0;
    shape.rope.shorter.count = shape.rope.longer.count = 4;
    expect_refused(shape, "llama has no LongRoPE");
    shape = long_phi3(), shape.window = shape.positions;
    file = exported(shape);
    EXPECT(gguf_tensor(file, "rope_factors_long.weight") && gguf_tensor(file, "rope_factors_short.weight"),
           "no divisors");
    EXPECT(fabsf(real(file, "phi3.rope.scaling.attn_factor") - 1.1547005f) < 1e-6f, "sqrt(1 + ln 2 / ln 8)");
    gguf_close(file);
    shape = llama3_rope(), shape.family = FAMILY_MISTRAL;
    file = exported(shape);
    EXPECT(gguf_tensor(file, "rope_freqs.weight"), "no divisors");
    gguf_close(file);
}

static void weights_of_experts(void) {
    ModelShape shape = qwen2_moe();
    shape.family = FAMILY_QWEN2_MOE, shape.router_pre_softmax = false;
    expect_refused(shape, "qwen2moe has norm_topk_prob false, the model true");
    shape = qwen3_moe(), shape.family = FAMILY_QWEN3_MOE, shape.experts_layers = 0, shape.experts_period = 0;
    shape.router_pre_softmax = true;
    expect_refused(shape, "qwen3moe has norm_topk_prob true, the model false");
}

// It cuts off at 7, and writes what llama.cpp's loader looks for.
static void gpt_oss_limits(void) {
    ModelShape shape = gpt_oss();
    Gguf *file = exported(shape);
    int64_t width = 0, window = 0;
    EXPECT(gguf_int(gguf_find(file, "gpt-oss.expert_feed_forward_length"), &width) && width == 20,
           "the width of an expert");
    EXPECT(gguf_int(gguf_find(file, "gpt-oss.attention.sliding_window"), &window) && window == 5,
           "the window");
    const GgufTensor *sinks = gguf_tensor(file, "blk.1.attn_sinks.weight"),
                     *bias = gguf_tensor(file, "blk.1.ffn_gate_exps.bias");
    EXPECT(sinks && sinks->type == GGML_F32 && sinks->dims[0] == shape.heads, "sinks");
    EXPECT(bias && bias->type == GGML_F32 && bias->ndim == 2 && bias->dims[0] == 20 && bias->dims[1] == 3,
           "biases of experts");
    gguf_close(file);
    shape.glu_clamp = 6;
    expect_refused(shape, "gpt-oss has a swiglu_limit of 7, the model of 6");
    shape = gpt_oss(), shape.window_layers = 2;
    expect_refused(shape, "gpt-oss has windows in all layers but every Nth, N = 2");
}

static void latents(void) {
    ModelShape shape = deepseek2();
    expect_refused(minicpm3(), "llama.cpp has no MiniCPM3ForCausalLM");
    expect_refused(shape, "deepseek2 has no models without a latent of queries");
    shape.q_rank = 14, shape.norm_epsilon = 1e-5f, shape.latent_epsilon = 1e-6f;
    expect_refused(shape, "deepseek2 has no epsilon of latents of its own");
    shape = deepseek3(), shape.norm_epsilon = 1e-6f, shape.latent_epsilon = 0;
    expect_refused(shape, "deepseek2 has no factor of sines and cosines");
}

// llama.cpp requires output.weight of these families, and takes the table of others.
static void tied_outputs(void) {
    const struct {
        MakeShape *shape;
        bool copied;
    } cases[] = {{gpt2, true},     {neox, true},     {nemotron, true},      {olmo2, true},
                 {stablelm, true}, {granite, false}, {their_gemma2, false}, {llama, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ModelShape shape = cases[i].shape();
        shape.untied = false, shape.rope = (Rope){0};
        if (shape.activation == ACTIVATION_GELU_ERF) shape.activation = ACTIVATION_GELU;
        Gguf *file = exported(shape);
        EXPECT(!!gguf_tensor(file, "output.weight") == cases[i].copied, "case %zu", i);
        gguf_close(file);
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"activations", activations},
                                      {"scales_and_caps", scales_and_caps},
                                      {"scales_by_hidden_size", scales_by_hidden_size},
                                      {"layers", layers},
                                      {"yarn", yarn},
                                      {"divisors", divisors},
                                      {"weights_of_experts", weights_of_experts},
                                      {"latents", latents},
                                      {"gpt_oss", gpt_oss_limits},
                                      {"tied_outputs", tied_outputs},
                                      {0}},
                       argc, argv);
}
