// Other people's formats: what goes out comes in again, and lies where they look for it.
#include "base/file.h"
#include "base/half.h"
#include "checkpoint_models.h"
#include "formats/gguf.h"
#include "small_sentencepiece.h"
#include <math.h>

// ---- out and in -----------------------------------------------------------------------------------------

// All that decides about the function, but for what is compared by itself.
static void expect_features(const ModelShape *wanted, const ModelShape *found) {
    ModelOption a[MAX_MODEL_OPTIONS], b[MAX_MODEL_OPTIONS];
    int count = model_options(wanted, a);
    EXPECT(model_options(found, b) == count, "%d options", count);
    for (int i = 0; i < count; i++)
        EXPECT(!a[i].is_fixed || a[i].follows || !strcmp(a[i].value, b[i].value), "%s: %s, not %s",
               a[i].option, b[i].value, a[i].value);
}

// What config.json says beside sizes, read back.
static void expect_meaning(const ModelShape *wanted, const char *path) {
    ModelSource *source;
    EXPECT_OK(model_source_open(&source, path, -1));
    if (!source) return;
    const ModelShape *found = &model_source_info(source)->shape;
    const Rope *a = &wanted->rope, *b = &found->rope;
    EXPECT(found->activation == wanted->activation, "activation %d", (int)found->activation);
    EXPECT(a->kind == b->kind && a->factor == b->factor && a->low == b->low && a->high == b->high &&
               a->original == b->original,
           "rotation %d by %g", (int)b->kind, b->factor);
    EXPECT(model_has_qkv_bias(found) == model_has_qkv_bias(wanted) &&
               model_has_proj_bias(found) == model_has_proj_bias(wanted) &&
               model_has_mlp_bias(found) == model_has_mlp_bias(wanted),
           "biases");
    expect_features(wanted, found);
    model_source_close(source);
}

static void expect_round_trip(int i) {
    ModelShape shape = shapes[i]();
    char name[32];
    snprintf(name, sizeof name, "trip%d", i);
    Path save = path_of(name), first = inside(save.text, "first"), back = inside(save.text, "back"),
         second = inside(save.text, "second"), direct = inside(save.text, "direct");
    make_checkpoint(save.text, &shape, 7, (uint64_t)i);
    export_to(save.text, first.text, FILE_F32);
    expect_weights(save.text, &shape, (uint64_t)i);
    expect_weights(first.text, &shape, (uint64_t)i);
    import_to(first.text, back.text);
    expect_weights(back.text, &shape, (uint64_t)i);
    export_to(back.text, second.text, FILE_F32);
    export_to(first.text, direct.text, FILE_F32);
    expect_meaning(&shape, back.text);
    for (int f = 0; f < 2; f++) {
        const char *file = f ? "model.safetensors" : "config.json";
        expect_same_file(inside(first.text, file).text, inside(second.text, file).text);
        expect_same_file(inside(first.text, file).text, inside(direct.text, file).text);
    }
}

static void round_trips(void) {
    for (int i = 0; i < NUM_SHAPES; i++) expect_round_trip(i);
}

// 16 bits are rounded once.
static void rounded(void) {
    ModelShape shape = llama();
    Path save = path_of("rounded"), bf16 = inside(save.text, "bf16"), back = inside(save.text, "back"),
         again = inside(save.text, "again");
    make_checkpoint(save.text, &shape, 7, 1);
    export_to(save.text, bf16.text, FILE_BF16);
    import_to(bf16.text, back.text);
    export_to(back.text, again.text, FILE_BF16);
    expect_same_file(inside(bf16.text, "model.safetensors").text,
                     inside(again.text, "model.safetensors").text);
    ModelSource *source;
    float wanted[MAX_ELEMENTS], found[4];
    WeightSpec head = {.name = "output_layer.weight", .rows = 67, .cols = 32};
    fill(&head, 1, wanted);
    EXPECT_OK(model_source_open(&source, bf16.text, -1));
    EXPECT(!strcmp(model_source_info(source)->dtype, "bf16"), "%s", model_source_info(source)->dtype);
    EXPECT_OK(model_source_read(source, head.name, (Rect){2, 3, 1, 4}, found, 4));
    for (int i = 0; i < 4; i++)
        EXPECT(found[i] == bf16_to_f32(bf16_of_f32(wanted[2 * 32 + 3 + i])), "element %d", i);
    model_source_close(source);
}

// Biases by which experts are chosen stay fp32 among 16 bits.
static void whole_biases(void) {
    ModelShape shape = deepseek3_moe();
    Path save = path_of("biases"), bf16 = inside(save.text, "bf16"), back = inside(save.text, "back");
    const char *name = "decoder.layers.1.mlp.router.expert_bias";
    WeightSpec bias = {.rows = 1, .cols = shape.experts};
    float wanted[4], found[4];
    snprintf(bias.name, sizeof bias.name, "%s", name);
    fill(&bias, 1, wanted);
    make_checkpoint(save.text, &shape, 7, 1);
    export_to(save.text, bf16.text, FILE_BF16);
    import_to(bf16.text, back.text);
    for (int i = 0; i < 2; i++) {
        ModelSource *source;
        EXPECT_OK(model_source_open(&source, i ? back.text : bf16.text, -1));
        EXPECT_OK(model_source_read(source, name, (Rect){0, 0, 1, 4}, found, 4));
        EXPECT(!memcmp(wanted, found, sizeof found), "rounded in %s", model_source_path(source));
        model_source_close(source);
    }
}

// ---- where others look ------------------------------------------------------------------------------------

static float element(const Safetensors *file, const char *name, int64_t i) {
    float value = NAN;
    const SafeTensor *t = safetensors_find(file, name);
    EXPECT(t, "no tensor %s", name);
    if (t) EXPECT_OK(safetensors_read_f32(file, t, i, 1, &value));
    return value;
}

// Row of ours where group g has its queries (part 0, of head h of the group), key (1) or value (2).
static int64_t our_row(const ModelShape *s, int g, int part, int h, int d) {
    int heads = s->heads / model_groups(s);
    return ((int64_t)g * (heads + 2) + (part ? heads + part - 1 : h)) * s->head_size + d;
}

static void gpt2_layout(void) {
    ModelShape shape = gpt2();
    Path save = path_of("layout_gpt2"), folder = inside(save.text, "hf");
    float qkv[MAX_ELEMENTS];
    WeightSpec weight = {"decoder.layers.1.self_attention.linear_qkv.weight", 96, 32,
                         .is_hidden_matrix = true};
    fill(&weight, 5, qkv);
    make_checkpoint(save.text, &shape, 7, 5);
    export_to(save.text, folder.text, FILE_F32);
    Safetensors *file;
    EXPECT_OK(safetensors_open(&file, inside(folder.text, "model.safetensors").text));
    EXPECT(!safetensors_find(file, "lm_head.weight"), "a tied head is stored");
    EXPECT(safetensors_metadata(file, "format") && !strcmp(safetensors_metadata(file, "format"), "pt"),
           "the format");
    // c_attn [H, 3H]: column 32 * part + 8 * head + d, row: the input.
    for (int part = 0; part < 3; part++)
        for (int head = 0; head < 4; head++)
            for (int d = 0; d < 8; d += 3) {
                int64_t row = our_row(&shape, head, part, 0, d), col = 32 * part + 8 * head + d, in = 11;
                float found = element(file, "transformer.h.1.attn.c_attn.weight", in * 96 + col);
                EXPECT(found == qkv[row * 32 + in], "part %d, head %d, %d", part, head, d);
            }
    safetensors_close(file);
}

static void llama_layout(void) {
    ModelShape shape = llama();
    Path save = path_of("layout_llama"), folder = inside(save.text, "hf");
    float qkv[MAX_ELEMENTS], fc1[MAX_ELEMENTS];
    WeightSpec weight = {"decoder.layers.0.self_attention.linear_qkv.weight", 64, 32,
                         .is_hidden_matrix = true};
    WeightSpec inner = {"decoder.layers.0.mlp.linear_fc1.weight", 128, 32, .is_hidden_matrix = true};
    fill(&weight, 5, qkv);
    fill(&inner, 5, fc1);
    make_checkpoint(save.text, &shape, 7, 5);
    export_to(save.text, folder.text, FILE_F32);
    Safetensors *file;
    EXPECT_OK(safetensors_open(&file, inside(folder.text, "model.safetensors").text));
    static const char *const names[] = {"model.layers.0.self_attn.q_proj.weight",
                                        "model.layers.0.self_attn.k_proj.weight",
                                        "model.layers.0.self_attn.v_proj.weight"};
    for (int part = 0; part < 3; part++)
        for (int head = 0; head < (part ? 2 : 4); head++) {
            int group = part ? head : head / 2, d = 5, in = 11;
            float found = element(file, names[part], (head * 8 + d) * 32 + in);
            EXPECT(found == qkv[our_row(&shape, group, part, head % 2, d) * 32 + in], "part %d, head %d",
                   part, head);
        }
    EXPECT(element(file, "model.layers.0.mlp.gate_proj.weight", 40 * 32 + 7) == fc1[40 * 32 + 7], "gate");
    EXPECT(element(file, "model.layers.0.mlp.up_proj.weight", 40 * 32 + 7) == fc1[(64 + 40) * 32 + 7], "up");
    safetensors_close(file);
}

// Each expert has tensors of its own; ours has all gates and ups one after the other, by expert.
static void experts_layout(void) {
    ModelShape shape = olmoe(), other = mixtral();
    enum { F = 20, H = 32, LAST = 2 };
    Path save = path_of("layout_experts"), folder = inside(save.text, "hf"),
         second = path_of("layout_mixtral");
    float fc1[MAX_ELEMENTS], fc2[MAX_ELEMENTS];
    WeightSpec inner = {"decoder.layers.1.mlp.experts.linear_fc1.weight", 3 * 2 * F, H,
                        .is_hidden_matrix = true};
    WeightSpec outer = {"decoder.layers.1.mlp.experts.linear_fc2.weight", 3 * H, F, .is_hidden_matrix = true};
    fill(&inner, 5, fc1);
    fill(&outer, 5, fc2);
    make_checkpoint(save.text, &shape, 7, 5);
    export_to(save.text, folder.text, FILE_F32);
    Safetensors *file;
    EXPECT_OK(safetensors_open(&file, inside(folder.text, "model.safetensors").text));
    EXPECT(safetensors_find(file, "model.layers.1.mlp.gate.weight"), "no router");
    EXPECT(!safetensors_find(file, "model.layers.1.mlp.experts.3.gate_proj.weight"), "a fourth expert");
    int64_t gate = (LAST * 2 * F + 7) * H + 9, up = gate + F * H, down = (LAST * H + 7) * F + 9;
    EXPECT(element(file, "model.layers.1.mlp.experts.2.gate_proj.weight", 7 * H + 9) == fc1[gate], "gate");
    EXPECT(element(file, "model.layers.1.mlp.experts.2.up_proj.weight", 7 * H + 9) == fc1[up], "up");
    EXPECT(element(file, "model.layers.1.mlp.experts.2.down_proj.weight", 7 * F + 9) == fc2[down], "down");
    safetensors_close(file);
    make_checkpoint(second.text, &other, 7, 5);
    export_to(second.text, inside(second.text, "hf").text, FILE_F32);
    EXPECT_OK(safetensors_open(&file, inside(second.text, "hf/model.safetensors").text));
    EXPECT(element(file, "model.layers.1.block_sparse_moe.experts.2.w1.weight", 7 * H + 9) == fc1[gate],
           "w1");
    EXPECT(element(file, "model.layers.1.block_sparse_moe.experts.2.w3.weight", 7 * H + 9) == fc1[up], "w3");
    EXPECT(element(file, "model.layers.1.block_sparse_moe.experts.2.w2.weight", 7 * F + 9) == fc2[down],
           "w2");
    safetensors_close(file);
}

// ---- GGUF -----------------------------------------------------------------------------------------------

static Gguf *export_gguf_to(const char *save, const char *name, GgufKind kind) {
    ModelSource *source;
    Gguf *file = NULL;
    Path path = inside(save, name);
    EXPECT_OK(model_source_open(&source, save, -1));
    if (source) EXPECT_OK(export_gguf(source, path.text, kind));
    EXPECT(export_gguf(source, path.text, kind) == ERR_CREATE, "%s was replaced", path.text);
    model_source_close(source);
    EXPECT_OK(gguf_open(&file, path.text));
    CHECK(file, "no GGUF file");
    return file;
}

static int64_t number(const Gguf *file, const char *key) {
    int64_t value = -1;
    EXPECT(gguf_int(gguf_find(file, key), &value), "no whole number %s", key);
    return value;
}

// Dimension 2i + k of a head is its row i + k D/2: llama.cpp rotates neighbours.
static void llama_gguf(void) {
    ModelShape shape = llama();
    Path save = path_of("gguf_llama");
    float qkv[MAX_ELEMENTS], row[32];
    WeightSpec weight = {"decoder.layers.1.self_attention.linear_qkv.weight", 64, 32,
                         .is_hidden_matrix = true};
    fill(&weight, 5, qkv);
    make_checkpoint(save.text, &shape, 7, 5);
    Gguf *file = export_gguf_to(save.text, "f32.gguf", GGUF_F32);
    EXPECT(gguf_string_is(gguf_find(file, "general.architecture"), "llama"), "the architecture");
    EXPECT(number(file, "llama.attention.head_count_kv") == 2 && number(file, "llama.block_count") == 2 &&
               number(file, "llama.rope.dimension_count") == 8 && number(file, "general.file_type") == 0,
           "metadata");
    const GgufTensor *k = gguf_tensor(file, "blk.1.attn_k.weight"),
                     *v = gguf_tensor(file, "blk.1.attn_v.weight");
    CHECK(k && v && gguf_tensor(file, "output.weight"), "tensors are missing");
    EXPECT(k->ndim == 2 && k->dims[0] == 32 && k->dims[1] == 16, "the keys' shape");
    for (int i = 0; i < 4; i++)
        for (int half = 0; half < 2; half++) {
            gguf_read(file, k, (8 + 2 * i + half) * 32, 32, row);
            EXPECT(!memcmp(row, qkv + our_row(&shape, 1, 1, 0, i + half * 4) * 32, sizeof row), "key %d %d",
                   i, half);
        }
    gguf_read(file, v, (8 + 3) * 32, 32, row);
    EXPECT(!memcmp(row, qkv + our_row(&shape, 1, 2, 0, 3) * 32, sizeof row), "a value");
    gguf_close(file);
}

// All experts of a layer are one tensor there, of three dimensions; the router stays in fp32.
static void experts_gguf(void) {
    ModelShape shape = mixtral();
    enum { F = 20, H = 32 };
    Path save = path_of("gguf_experts");
    float fc1[MAX_ELEMENTS], row[H];
    WeightSpec inner = {"decoder.layers.1.mlp.experts.linear_fc1.weight", 3 * 2 * F, H,
                        .is_hidden_matrix = true};
    fill(&inner, 5, fc1);
    make_checkpoint(save.text, &shape, 7, 5);
    Gguf *file = export_gguf_to(save.text, "f32.gguf", GGUF_F32);
    EXPECT(gguf_string_is(gguf_find(file, "general.architecture"), "llama"), "the architecture");
    EXPECT(number(file, "llama.expert_count") == 3 && number(file, "llama.expert_used_count") == 2 &&
               number(file, "llama.feed_forward_length") == F,
           "metadata");
    const GgufTensor *up = gguf_tensor(file, "blk.1.ffn_up_exps.weight");
    CHECK(up && gguf_tensor(file, "blk.1.ffn_down_exps.weight"), "tensors are missing");
    EXPECT(up->ndim == 3 && up->dims[0] == H && up->dims[1] == F && up->dims[2] == 3, "the shape of ups");
    gguf_read(file, up, (2 * F + 7) * H, H, row);
    EXPECT(!memcmp(row, fc1 + (2 * 2 * F + F + 7) * H, sizeof row), "a row of the last expert's up");
    gguf_close(file);
    file = export_gguf_to(save.text, "q8.gguf", GGUF_Q8_0);
    const GgufTensor *router = gguf_tensor(file, "blk.0.ffn_gate_inp.weight"),
                     *gate = gguf_tensor(file, "blk.0.ffn_gate_exps.weight");
    CHECK(router && gate, "tensors are missing");
    EXPECT(router->type == GGML_F32 && gate->type == GGML_Q8_0, "types");
    gguf_close(file);
}

// llama.cpp divides the frequencies by a tensor's numbers, or all by one.
static void scaled_gguf(void) {
    ModelShape shape = llama3_rope();
    Path save = path_of("gguf_llama3"), other = path_of("gguf_linear");
    float divisors[4];
    make_checkpoint(save.text, &shape, 7, 5);
    Gguf *file = export_gguf_to(save.text, "f32.gguf", GGUF_F32);
    const GgufTensor *t = gguf_tensor(file, "rope_freqs.weight");
    CHECK(t && t->ndim == 1 && t->dims[0] == 4 && t->type == GGML_F32, "no divisors of 4 frequencies");
    gguf_read(file, t, 0, 4, divisors);
    EXPECT(divisors[0] == 1 && divisors[1] == 1 && divisors[2] > 1 && divisors[2] < 32 && divisors[3] == 32,
           "%g %g %g %g", (double)divisors[0], (double)divisors[1], (double)divisors[2], (double)divisors[3]);
    EXPECT(!gguf_find(file, "llama.rope.scaling.type"), "divided twice");
    gguf_close(file);
    shape = linear_rope();
    make_checkpoint(other.text, &shape, 7, 5);
    file = export_gguf_to(other.text, "f32.gguf", GGUF_F32);
    EXPECT(gguf_string_is(gguf_find(file, "llama.rope.scaling.type"), "linear"), "the kind of scaling");
    EXPECT(!gguf_tensor(file, "rope_freqs.weight"), "divided twice");
    gguf_close(file);
}

// ---- what lies beside the weights -------------------------------------------------------------------------

static void put(const char *folder, const char *name, const char *text, size_t size) {
    EXPECT_OK(file_write(inside(folder, name).text, text, size));
}

static bool has_flag(const Gguf *file, const char *key) {
    const GgufPair *pair = gguf_find(file, key);
    EXPECT(pair && pair->type == GGUF_BOOL && !pair->is_array, "no flag %s", key);
    return pair && *pair->data;
}

static void companions_stay(void) {
    static const char *const names[] = {"generation_config.json", "chat_template.jinja",
                                        "special_tokens_map.json", "tokenizer_config.json",
                                        "tokenizer.model"};
    static const char config[] = "{\"tokenizer_class\": \"LlamaTokenizer\", \"chat_template\": \"older\"}";
    ModelShape shape = llama();
    Text model = sentencepiece_model();
    Path save = path_of("beside"), theirs = inside(save.text, "theirs"),
         imported = inside(save.text, "my-model"), back = inside(save.text, "back");
    make_checkpoint(save.text, &shape, 7, 5);
    export_to(save.text, theirs.text, FILE_F32);
    put(theirs.text, names[0], "{\"temperature\": 0.6}", 20);
    put(theirs.text, names[1], "{{ newer }}", 11);
    put(theirs.text, names[2], "{\"bos_token\": \"<s>\"}", 20);
    put(theirs.text, names[3], config, strlen(config));
    put(theirs.text, names[4], model.data, model.size);
    import_to(theirs.text, imported.text);
    export_to(imported.text, back.text, FILE_F32);
    for (int i = 0; i < 5; i++)
        expect_same_file(inside(theirs.text, names[i]).text, inside(back.text, names[i]).text);
    Gguf *file = export_gguf_to(imported.text, "f32.gguf", GGUF_F32);
    EXPECT(gguf_string_is(gguf_find(file, "tokenizer.chat_template"), "{{ newer }}"), "the template");
    EXPECT(gguf_string_is(gguf_find(file, "general.name"), "my-model"), "the name");
    EXPECT(has_flag(file, "tokenizer.ggml.add_bos_token") && !has_flag(file, "tokenizer.ggml.add_eos_token"),
           "what stands before a text");
    gguf_close(file);
    text_free(&model);
}

// The files of the tokenizer that is replaced go with it.
static void another_tokenizer(void) {
    ModelShape shape = llama();
    Text model = sentencepiece_model();
    ModelSource *source;
    Tokenizer *tokenizer;
    Path save = path_of("replaced"), theirs = inside(save.text, "theirs"),
         imported = inside(save.text, "imported"), mine = inside(save.text, "mine.model"),
         step = inside(imported.text, "step-00000000");
    make_checkpoint(save.text, &shape, 7, 5);
    export_to(save.text, theirs.text, FILE_F32);
    put(theirs.text, "generation_config.json", "{}", 2);
    put(theirs.text, "special_tokens_map.json", "{}", 2);
    put(theirs.text, "tokenizer.json", "no tokenizer", 12);
    put(save.text, "mine.model", model.data, model.size);
    EXPECT_OK(tokenizer_open_path(&tokenizer, mine.text));
    EXPECT_OK(model_source_open(&source, theirs.text, -1));
    EXPECT_OK(import_model(source, tokenizer, imported.text, 0));
    EXPECT(file_exists(inside(step.text, "generation_config.json").text) &&
               file_exists(inside(step.text, "tokenizer.model").text),
           "what belongs to it");
    EXPECT(!file_exists(inside(step.text, "special_tokens_map.json").text) &&
               !file_exists(inside(step.text, "tokenizer.json").text),
           "what belongs to the other");
    model_source_close(source);
    tokenizer_close(tokenizer);
    text_free(&model);
}

static GgmlType type_in(const Gguf *file, const char *name) {
    const GgufTensor *t = gguf_tensor(file, name);
    EXPECT(t, "no tensor %s", name);
    return t ? t->type : NUM_GGML_TYPES;
}

// Rows of no whole blocks fall back to fp16; vectors and positions stay as they are.
static void quantised_gguf(void) {
    ModelShape shape = gpt2();
    shape.ffn = 72;
    Path save = path_of("gguf_gpt2");
    float whole[MAX_ELEMENTS], row[32];
    WeightSpec weight = {"embedding.word_embeddings.weight", 67, 32, .is_hidden_matrix = true};
    fill(&weight, 5, whole);
    make_checkpoint(save.text, &shape, 7, 5);
    Gguf *file = export_gguf_to(save.text, "q8.gguf", GGUF_Q8_0);
    EXPECT(number(file, "general.file_type") == 7 && number(file, "gpt2.feed_forward_length") == 72,
           "metadata");
    EXPECT(type_in(file, "token_embd.weight") == GGML_Q8_0 &&
               type_in(file, "blk.0.attn_qkv.weight") == GGML_Q8_0,
           "matrices are q8_0");
    EXPECT(type_in(file, "blk.0.ffn_down.weight") == GGML_F16, "rows of 72 are fp16");
    EXPECT(type_in(file, "blk.0.ffn_up.bias") == GGML_F32 &&
               type_in(file, "position_embd.weight") == GGML_F32,
           "vectors and positions are fp32");
    gguf_read(file, gguf_tensor(file, "token_embd.weight"), 9 * 32, 32, row);
    for (int i = 0; i < 32; i++)
        EXPECT(fabsf(row[i] - whole[9 * 32 + i]) < 0.02f, "element %d is %g", i, (double)row[i]);
    gguf_close(file);
    file = export_gguf_to(save.text, "bf16.gguf", GGUF_BF16);
    EXPECT(type_in(file, "blk.0.ffn_down.weight") == GGML_BF16, "every row is bf16");
    gguf_close(file);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"round_trips", round_trips},
                                      {"rounded", rounded},
                                      {"whole_biases", whole_biases},
                                      {"gpt2_layout", gpt2_layout},
                                      {"llama_layout", llama_layout},
                                      {"experts_layout", experts_layout},
                                      {"llama_gguf", llama_gguf},
                                      {"experts_gguf", experts_gguf},
                                      {"scaled_gguf", scaled_gguf},
                                      {"quantised_gguf", quantised_gguf},
                                      {"companions_stay", companions_stay},
                                      {"another_tokenizer", another_tokenizer},
                                      {0}},
                       argc, argv);
}
