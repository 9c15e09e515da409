// Configurations of families that are read as they are meant, or refused with a message that tells why.
#include "base/file.h"
#include "checkpoint/foreign/family.h"
#include "checkpoint_models.h"

// A copy of a model's config.json alone with `old` replaced; nothing else is read of a model that is refused by it.
static Path changed(MakeShape *shape, const char *old, const char *new) {
    static int count;
    char name[32], *text;
    size_t size;
    Text config = {0};
    snprintf(name, sizeof name, "config%d", count++);
    ModelShape s = shape();
    Path save = path_of(name), folder = inside(save.text, "hf"), copy = inside(save.text, "copy");
    make_checkpoint(save.text, &s, 7, 5);
    export_to(save.text, folder.text, FILE_F32);
    EXPECT_OK(file_read(inside(folder.text, "config.json").text, 1 << 20, &text, &size));
    char *at = strstr(text, old);
    CHECK(at, "no %s in %s", old, text);
    text_add(&config, "%.*s%s%s", (int)(at - text), text, new, at + strlen(old));
    EXPECT_OK(folder_make(copy.text));
    EXPECT_OK(file_write(inside(copy.text, "config.json").text, config.data, config.size));
    text_free(&config);
    free(text);
    return copy;
}

static ModelShape five_layers(void) {
    ModelShape s = smollm3();
    s.layers = 5, s.rope = (Rope){0};
    return s;
}

static ModelShape long_gemma2(void) {
    ModelShape s = gemma2();
    s.layers = 70, s.ffn = 8, s.vocabulary = 9;
    return s;
}

static ModelShape many_experts(void) {
    ModelShape s = qwen3_moe();
    s.layers = 70, s.ffn = 8, s.vocabulary = 9;
    return s;
}

static ModelShape one_group(void) {
    ModelShape s = deepseek2_lite();
    s.experts_topk = s.router_open_groups = 1;
    return s;
}

#define CACHE "\"use_cache\": true"

typedef struct {
    MakeShape *shape;
    const char *old, *new;
    Status status;
    const char *told;
} Refusal;

static void expect_refusals(const Refusal *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        Path folder = changed(cases[i].shape, cases[i].old, cases[i].new);
        ModelSource *source;
        Status status = model_source_open(&source, folder.text, -1);
        EXPECT(status == cases[i].status && !source, "case %zu: exit %d: %s", i, status, fail_message());
        EXPECT(strstr(fail_message(), cases[i].told), "no '%s' in: %s", cases[i].told, fail_message());
        model_source_close(source);
    }
}

static void refused(void) {
    static const Refusal cases[] = {
        {granite, "\"attention_multiplier\": 0.015625", "\"attention_multiplier\": 0", ERR_DATA,
         "\"attention_multiplier\" is not a number above 0"},
        {granite, "\"logits_scaling\": 8.0", "\"logits_scaling\": 0", ERR_DATA,
         "\"logits_scaling\" is not a number above 0"},
        {granite, "\"residual_multiplier\": 0.22", "\"residual_multiplier\": 0.0", ERR_DATA,
         "\"residual_multiplier\" is not a number above 0"},
        {granite, "\"embedding_multiplier\": 12.0", "\"embedding_multiplier\": 0", ERR_DATA,
         "\"embedding_multiplier\" is not a number above 0"},
        {granite, "\"attention_bias\": false", "\"attention_bias\": true", ERR_UNAVAILABLE,
         "this model cannot be read: residual_multiplier would multiply biases"},
        {five_layers, "\"sliding_window\": null,\n  \"use_sliding_window\": false",
         "\"sliding_window\": 3, \"use_sliding_window\": true", ERR_UNAVAILABLE,
         "use_sliding_window without layer_types is not read; add the list"},
        {five_layers, "\"no_rope_layers\": [1, 0, 1, 0, 1]", "\"no_rope_layers\": [1, 0, 0, 0, 1]",
         ERR_UNAVAILABLE, "this model cannot be read: the layers without rotations have to be every Nth"},
        {llama, CACHE, "\"rope_parameters\": {\"full_attention\": {}, \"sliding_attention\": {}}",
         ERR_UNAVAILABLE, "a llama has one for all"},
        {long_gemma2,
         "\"layer_types\": [\n    \"sliding_attention\",\n    \"full_attention\",\n    \"sliding_attention\"",
         "\"layer_types\": [\"sliding_attention\", \"full_attention\", \"full_attention\"", ERR_UNAVAILABLE,
         "this model cannot be read: which layers have a window has to repeat"},
    };
    expect_refusals(cases, sizeof cases / sizeof *cases);
}

static void refused_experts(void) {
    static const Refusal cases[] = {
        {mixtral, CACHE, "\"router_jitter_noise\": 0.1", ERR_UNAVAILABLE,
         "a router_jitter_noise other than 0 is not supported"},
        {olmoe, CACHE, "\"clip_qkv\": 8.0", ERR_UNAVAILABLE, "clip_qkv is not supported"},
        {mixtral, "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 4", ERR_DATA,
         "4 experts of a token (num_experts_per_tok), and there are 3"},
        {mixtral, "\"num_local_experts\": 3", "\"num_local_experts\": 2000", ERR_DATA,
         "\"num_local_experts\" is not a whole number from 1 to 1024"},
        {qwen3_moe, "\"mlp_only_layers\": [0]", "\"mlp_only_layers\": [2]", ERR_DATA,
         "\"mlp_only_layers\" is not a list of layers that the model has"},
        {qwen3_moe, "\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 3", ERR_UNAVAILABLE,
         "none of its 2 layers has experts"},
        {deepseek2_lite, "\"topk_group\": 2", "\"topk_group\": 1", ERR_DATA,
         "2 groups (n_group) of 4 experts, of which 1 (topk_group) are open"},
        {one_group, "\"num_experts_per_tok\": 1", "\"num_experts_per_tok\": 2", ERR_UNAVAILABLE,
         "supported for fewer experts of a token than 2 topk_group; there are 2, and topk_group is 1"},
        {deepseek2_lite, "\"topk_method\": \"group_limited_greedy\"", "\"topk_method\": \"noaux_tc\"",
         ERR_UNAVAILABLE, "topk_method \"noaux_tc\" is not supported"},
        {deepseek2_lite, "\"norm_topk_prob\": false", "\"norm_topk_prob\": true", ERR_UNAVAILABLE,
         "norm_topk_prob is not supported"},
        {deepseek2_lite, CACHE, "\"moe_layer_freq\": 2", ERR_UNAVAILABLE,
         "a moe_layer_freq other than 1 is not supported"},
        {deepseek3, "\"first_k_dense_replace\": 2", "\"first_k_dense_replace\": 1", ERR_UNAVAILABLE,
         "its layers from 1 of 2 on have experts (first_k_dense_replace), whose choice has biases"},
        {many_experts, "\"mlp_only_layers\": [", "\"mlp_only_layers\": [3, 5, ", ERR_UNAVAILABLE,
         "which layers have experts has to repeat"},
    };
    expect_refusals(cases, sizeof cases / sizeof *cases);
}

static void expect_lack(ModelShape shape, const char *wanted) {
    Text lack = {0};
    family_lack(&shape, &lack);
    EXPECT(!strcmp(text_string(&lack), wanted), "'%s', not '%s'", text_string(&lack), wanted);
    text_free(&lack);
}

// A model remembers a family that does not hold it.
static void lacks(void) {
    ModelShape shape = gpt2();
    expect_lack(shape, "");
    shape.family = FAMILY_GEMMA2;
    expect_lack(shape, "Gemma2ForCausalLM has no such positions, which this model has");
    shape = gemma2(), shape.family = FAMILY_GEMMA2;
    expect_lack(shape, "");
    shape.norm_place = NORM_PRE;
    expect_lack(shape,
                "Gemma2ForCausalLM has no norms in these places (norm-placement), which this model has");
}

// Says what to do with experts that no family has.
static void experts_without_family(void) {
    const Family *family;
    ModelShape of_gpt = gpt2(), sigmoid = mixtral();
    of_gpt.experts = 3, of_gpt.experts_topk = 2, of_gpt.expert_ffn = 20, sigmoid.router_sigmoid = true;
    EXPECT(family_of(&of_gpt, &family) == ERR_UNAVAILABLE &&
               strstr(fail_message(), "--position-embedding-type rope --normalization RMSNorm --swiglu"),
           "%s", fail_message());
    EXPECT(family_of(&sigmoid, &family) == ERR_UNAVAILABLE &&
               strstr(fail_message(), "MixtralForCausalLM has no sigmoids of routers"),
           "%s", fail_message());
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"refused", refused},
                                      {"refused_experts", refused_experts},
                                      {"lacks", lacks},
                                      {"experts", experts_without_family},
                                      {0}},
                       argc, argv);
}
