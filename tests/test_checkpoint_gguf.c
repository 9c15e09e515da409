// GGUF files of others as models: what is exported is read back, whatever its type; what is no model of ours is refused
// with a message that tells why.
#include "base/file.h"
#include "checkpoint_models.h"
#include "formats/gguf.h"

static void export_gguf_to(const char *from, const char *path, GgufKind kind) {
    ModelSource *source;
    EXPECT_OK(model_source_open(&source, from, -1));
    if (source) EXPECT_OK(export_gguf(source, path, kind));
    model_source_close(source);
}

// ---- out and in -----------------------------------------------------------------------------------------

// What no GGUF file holds is left out: llama.cpp has another activation, no dynamic scaling, no such windows.
static ModelShape held(ModelShape s) {
    if (s.activation == ACTIVATION_GELU_ERF) s.activation = ACTIVATION_GELU;
    s.rope.unrounded = false;
    if (s.norm_place == NORM_SANDWICH) s.softmax_scale = 0;
    if (s.rotary_base_local > 0) s.window_period = 6, s.window_layers = 31;
    if (s.no_rope_freq) s.no_rope_freq = 4;
    if (s.rope.kind == ROPE_DYNAMIC) s.rope = (Rope){0};
    if (s.window && !s.window_period) s.window = 0;
    s.experts_period = 0, s.experts_layers = 0;
    if (!model_is_latent(&s)) return s;
    s.rope.attention = 1, s.latent_epsilon = 0,
    s.norm_epsilon = 1e-6f; // and the file does not say which DeepSeek it is
    s.family = FAMILY_DEEPSEEK_V3;
    return s;
}

// The copies are of one name, because it is in the file. Norms that have 1 added in the file lose bits, so only files
// are compared.
static void expect_round_trip(int i) {
    ModelShape shape = held(shapes[i]());
    char name[32];
    snprintf(name, sizeof name, "trip%d", i);
    Path top = path_of(name), save = inside(top.text, "model"), back = inside(top.text, "back"),
         imported = inside(back.text, "model"), first = inside(top.text, "model.gguf"),
         second = inside(back.text, "model.gguf"), direct = inside(back.text, "direct");
    EXPECT_OK(folder_make(top.text));
    EXPECT_OK(folder_make(back.text));
    EXPECT_OK(folder_make(direct.text));
    make_checkpoint(save.text, &shape, 7, (uint64_t)i);
    export_gguf_to(save.text, first.text, GGUF_F32);
    if (!shape.norm_offset) expect_weights(first.text, &shape, (uint64_t)i);
    import_to(first.text, imported.text);
    if (!shape.norm_offset) expect_weights(imported.text, &shape, (uint64_t)i);
    export_gguf_to(imported.text, second.text, GGUF_F32);
    expect_same_file(first.text, second.text);
    Path third = inside(direct.text, "model.gguf");
    export_gguf_to(first.text, third.text, GGUF_F32);
    expect_same_file(first.text, third.text);
}

static void round_trips(void) {
    for (int i = 0; i < NUM_SHAPES; i++) {
        ModelShape shape = shapes[i]();
        bool deepseek = model_is_latent(&shape);
        if (!deepseek || (shape.family == FAMILY_DEEPSEEK_V3 && !shape.experts)) expect_round_trip(i);
    }
}

static ModelShape usual_gemma3(void) {
    ModelShape s = gemma3();
    s.window_period = 6, s.window_layers = 31; // the file does not say which layers have windows
    return s;
}

static ModelShape tanh_neox(void) {
    ModelShape s = neox();
    s.activation = ACTIVATION_GELU;
    return s;
}

// The file holds by how much the factor is larger than YaRN's own.
static ModelShape yarn_factor(void) {
    ModelShape s = llama();
    s.rope = (Rope){.kind = ROPE_YARN, .factor = 4, .low = 2, .high = 24, .original = 8};
    s.rope.attention = 2 * (1 + 0.1 * log(4));
    return s;
}

static ModelShape full_qwen3_moe(void) {
    ModelShape s = qwen3_moe();
    s.experts_period = 0, s.experts_layers = 0;
    return s;
}

// Every member of the shape that decides about the function and that the file can hold.
static void same_model(void) {
    MakeShape *const exact[] = {
        gpt2,    untied_gpt2,    llama,       tied_llama,   biased_queries,   biases_everywhere,
        qwen3,   wide_heads,     linear_rope, llama3_rope,  tanh_neox,        stablelm,
        granite, yarn_factor,    nemotron,    usual_gemma3, attention_biases, mlp_biases,
        mixtral, full_qwen3_moe, olmoe,       granite_moe,  qwen2_moe,        gpt_oss};
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++) {
        ModelShape shape = exact[i]();
        char name[32];
        snprintf(name, sizeof name, "same%zu", i);
        Path save = path_of(name), file = inside(save.text, "model.gguf");
        ModelSource *source;
        make_checkpoint(save.text, &shape, 7, 3);
        export_gguf_to(save.text, file.text, GGUF_F16);
        EXPECT_OK(model_source_open(&source, file.text, -1));
        if (!source) continue;
        ModelOption a[MAX_MODEL_OPTIONS], b[MAX_MODEL_OPTIONS];
        int count = model_options(&shape, a);
        model_options(&model_source_info(source)->shape, b);
        for (int o = 0; o < count; o++)
            EXPECT(!a[o].is_fixed || a[o].follows || !strcmp(a[o].value, b[o].value),
                   "model %zu: %s: %s, not %s", i, a[o].option, b[o].value, a[o].value);
        const Rope *r = &shape.rope, *found = &model_source_info(source)->shape.rope;
        EXPECT(r->kind == found->kind && r->factor == found->factor && r->original == found->original,
               "model %zu: rotation %d by %g", i, (int)found->kind, found->factor);
        EXPECT(!strcmp(model_source_info(source)->dtype, "f16"), "%s", model_source_info(source)->dtype);
        model_source_close(source);
    }
}

// Each element is as near as its type allows, in the place that our order has for it.
static void types(void) {
    static const float allowed[] = {[GGUF_F16] = 0.001f, [GGUF_BF16] = 0.008f, [GGUF_Q8_0] = 0.02f};
    ModelShape shape = llama();
    WeightSpec qkv = {"decoder.layers.1.self_attention.linear_qkv.weight", 64, 32, .is_hidden_matrix = true};
    float wanted[MAX_ELEMENTS], found[MAX_ELEMENTS];
    Path save = path_of("types");
    fill(&qkv, 5, wanted);
    make_checkpoint(save.text, &shape, 7, 5);
    for (GgufKind kind = GGUF_F16; kind <= GGUF_Q8_0; kind++) {
        char name[32];
        snprintf(name, sizeof name, "kind%d.gguf", (int)kind);
        Path file = inside(save.text, name);
        ModelSource *source;
        export_gguf_to(save.text, file.text, kind);
        EXPECT_OK(model_source_open(&source, file.text, -1));
        if (!source) continue;
        EXPECT_OK(model_source_read(source, qkv.name, (Rect){0, 0, 64, 32}, found, 32));
        bool rounded = false;
        for (int i = 0; i < 64 * 32; i++) {
            rounded = rounded || found[i] != wanted[i];
            EXPECT(fabsf(found[i] - wanted[i]) <= allowed[kind] * fmaxf(1, fabsf(wanted[i])),
                   "kind %d, element %d", (int)kind, i);
        }
        EXPECT(rounded, "kind %d keeps all bits", (int)kind);
        float part[3 * 7];
        EXPECT_OK(model_source_read(source, qkv.name, (Rect){9, 3, 3, 7}, part, 7));
        for (int i = 0; i < 3 * 7; i++) EXPECT(part[i] == found[(9 + i / 7) * 32 + 3 + i % 7], "part %d", i);
        model_source_close(source);
    }
}

// ---- what is refused --------------------------------------------------------------------------------------

static size_t find_bytes(const char *data, size_t size, const char *text) {
    for (size_t i = 0; i + strlen(text) <= size; i++)
        if (!memcmp(data + i, text, strlen(text))) return i;
    CHECK(false, "no '%s' in the file", text);
}

typedef struct {
    const char *at; // a text in the file
    int64_t skip;   // from its first byte
    const char *bytes;
    int count; // of bytes written there
    Status status;
    const char *told;
} Refusal;

static void expect_refusals(const char *name, ModelShape shape, const Refusal *cases, size_t count) {
    Path save = path_of(name), from = inside(save.text, "model.gguf"), to = inside(save.text, "other.gguf");
    char *data;
    size_t size;
    make_checkpoint(save.text, &shape, 7, 5);
    export_gguf_to(save.text, from.text, GGUF_F32);
    EXPECT_OK(file_read(from.text, 1 << 24, &data, &size));
    for (size_t i = 0; i < count; i++) {
        char kept[32], *at = data + find_bytes(data, size, cases[i].at) + cases[i].skip;
        ModelSource *source;
        memcpy(kept, at, sizeof kept);
        memcpy(at, cases[i].bytes, (size_t)cases[i].count);
        EXPECT_OK(file_write(to.text, data, size));
        memcpy(at, kept, sizeof kept);
        Status status = model_source_open(&source, to.text, -1);
        EXPECT(status == cases[i].status, "case %zu: exit %d: %s", i, (int)status, fail_message());
        if (status != OK && cases[i].told)
            EXPECT(strstr(fail_message(), cases[i].told) && strstr(fail_message(), "other.gguf"),
                   "no '%s' in: %s", cases[i].told, fail_message());
        model_source_close(source);
    }
    free(data);
}

static void refused(void) {
    static const Refusal cases[] = {
        {"general.architecture", 20 + 12, "mamba", 5, ERR_UNAVAILABLE,
         "architecture mamba is not read; known: gpt2, llama, qwen2"},
        {"llama.block_count", 0, "llama.block_c0unt", 17, ERR_DATA, "no key llama.block_count"},
        {"llama.block_count", 17 + 4, "\3", 1, ERR_DATA, "tensor blk.2.attn_norm.weight is missing"},
        {"llama.block_count", 17 + 4, "\1", 1, ERR_DATA, "blk.1.attn_k.weight is not a weight of the model"},
        {"llama.block_count", 17 + 4, "\0\1", 2, ERR_DATA, "256 layers, "},
        {"llama.block_count", 17, "\6", 1, ERR_DATA, "llama.block_count is no"},
        {"llama.embedding_length", 22 + 4, "\100", 1, ERR_DATA, "is not ["},
        {"llama.vocab_size", 16 + 4, "\7", 1, ERR_DATA, "vocab_size is 7, token_embd.weight has 67 rows"},
        {"llama.attention.head_count_kv", 29 + 4, "\3", 1, ERR_DATA, "groups divide heads"},
        {"llama.attention.value_length", 28 + 4, "\6", 1, ERR_DATA, "whose values have 6"},
        {"llama.rope.dimension_count", 26 + 4, "\7", 1, ERR_DATA, "both are even"},
        {"llama.rope.dimension_count", 26 + 4, "\4", 1, ERR_UNAVAILABLE,
         "no model of architecture llama: it is a model as "},
        {"llama.feed_forward_length", 0, "llama.expert_used_count__", 25, ERR_DATA,
         "no key llama.feed_forward"},
        {"llama.attention.value_length", 0, "llama.expert_feed_forward_le", 28, ERR_UNAVAILABLE,
         "key llama.expert_feed_forward_le is not supported"},
        {"general.alignment", 0, "general.aligned__", 17, OK, NULL},
        {"blk.1.ffn_up.weight", 0, "blk.1.ffn_xp.weight", 19, ERR_DATA, "blk.1.ffn_up.weight is missing"},
        {"token_embd.weight", 0, "token_xmbd.weight", 17, ERR_DATA, "no matrix token_embd.weight"},
        {"output_norm.weight", 18 + 4 + 8, "\16", 1, ERR_DATA, "no multiple of its type's block"},
        {"token_embd.weight", 17 + 4 + 16, "\20", 1, ERR_UNAVAILABLE,
         "token_embd.weight is of GGUF's type 16"},
    };
    expect_refusals("refused", llama(), cases, sizeof cases / sizeof *cases);
}

static void refused_experts(void) {
    static const Refusal cases[] = {
        {"llama.expert_used_count", 23 + 4, "\4", 1, ERR_DATA, "a token has 4 of 3 experts of width 20"},
        {"llama.expert_used_count", 23 + 4, "\0", 1, ERR_DATA, "a token has 0 of 3 experts"},
        {"llama.expert_count", 18 + 4, "\2", 1, ERR_DATA, "is not [32, 2]"},
        {"llama.expert_count", 18 + 4, "\0\10", 2, ERR_DATA,
         "llama.expert_count is no number from 0 to 1024"},
        {"llama.expert_count", 0, "llama.expert_c0unt", 18, ERR_UNAVAILABLE, "is not supported"},
        {"llama.feed_forward_length", 25 + 4, "\5", 1, ERR_DATA, "is not [32, 5, 3]"},
    };
    expect_refusals("refused_experts", mixtral(), cases, sizeof cases / sizeof *cases);
}

// The last bytes of the file are those of its last tensor.
static void not_a_number(void) {
    ModelShape shape = llama();
    Path save = path_of("nan"), path = inside(save.text, "model.gguf"), back = inside(save.text, "back");
    ModelSource *source;
    const float value = NAN;
    make_checkpoint(save.text, &shape, 7, 5);
    export_gguf_to(save.text, path.text, GGUF_F32);
    FILE *file = fopen(path.text, "r+b");
    EXPECT(file && fseek(file, -(long)sizeof value, SEEK_END) == 0 &&
               fwrite(&value, sizeof value, 1, file) == 1 && fclose(file) == 0,
           "cannot write %s", path.text);
    EXPECT_OK(model_source_open(&source, path.text, -1));
    EXPECT(import_model(source, NULL, back.text, 0) == ERR_DATA &&
               strstr(fail_message(), "tensor output.weight is NaN in row") &&
               strstr(fail_message(), path.text),
           "%s", fail_message());
    model_source_close(source);
}

static void no_tokenizer_no_step(void) {
    ModelShape shape = gpt2();
    Path save = path_of("bare"), file = inside(save.text, "model.gguf");
    ModelSource *source;
    Tokenizer *tokenizer;
    make_checkpoint(save.text, &shape, 7, 5);
    export_gguf_to(save.text, file.text, GGUF_Q8_0);
    EXPECT(model_source_open(&source, file.text, 7) == ERR_USAGE &&
               strstr(fail_message(), "is a GGUF file: it has no step 7"),
           "%s", fail_message());
    EXPECT_OK(model_source_open(&source, file.text, -1));
    EXPECT(model_source_tokenizer(source, &tokenizer) == ERR_NO_INPUT &&
               strstr(fail_message(), "give --tokenizer-model"),
           "%s", fail_message());
    EXPECT(model_is_there(file.text) && !model_is_there(path_of("none.gguf").text), "what is there");
    model_source_close(source);
}

// A pickle is not read: the message has the line that converts it.
static void pickle(void) {
    ModelShape shape = llama();
    Path save = path_of("pickle"), folder = inside(save.text, "hf");
    ModelSource *source;
    make_checkpoint(save.text, &shape, 7, 5);
    export_to(save.text, folder.text, FILE_F32);
    EXPECT(rename(inside(folder.text, "model.safetensors").text,
                  inside(folder.text, "pytorch_model.bin").text) == 0,
           "cannot rename");
    Text line = {0};
    text_add(&line,
             "python3 -c \"from transformers import AutoModelForCausalLM as M; M.from_pretrained('%s', "
             "torch_dtype='auto').save_pretrained('%s')\"",
             folder.text, folder.text);
    EXPECT(model_source_open(&source, folder.text, -1) == ERR_UNAVAILABLE &&
               strstr(fail_message(), text_string(&line)),
           "%s", fail_message());
    text_free(&line);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"round_trips", round_trips},
                                      {"same_model", same_model},
                                      {"types", types},
                                      {"refused", refused},
                                      {"refused_experts", refused_experts},
                                      {"not_a_number", not_a_number},
                                      {"no_tokenizer_no_step", no_tokenizer_no_step},
                                      {"pickle", pickle},
                                      {0}},
                       argc, argv);
}
