// Configurations of families that are read as they are meant, or refused with a message that tells why.
#include "base/file.h"
#include "checkpoint/foreign/hugging_face.h"
#include "checkpoint_models.h"
#include <unistd.h>

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
        {gpt_oss, CACHE, "\"swiglu_alpha\": 1.5", ERR_UNAVAILABLE, "a swiglu_alpha of 1.5 is not supported"},
        {gpt_oss, "\"swiglu_limit\": 7.0", "\"swiglu_limit\": 0", ERR_DATA,
         "\"swiglu_limit\" is not a number above 0"},
        {qwen2_moe, CACHE, "\"qkv_bias\": false", ERR_UNAVAILABLE, "qkv_bias false is not supported"},
        {qwen2_moe, "\"sliding_window\": null,\n  \"use_sliding_window\": false",
         "\"sliding_window\": 3, \"use_sliding_window\": true", ERR_UNAVAILABLE,
         "use_sliding_window without layer_types is not read"},
        {deepseek2_lite, "\"topk_group\": 2", "\"topk_group\": 1", ERR_DATA,
         "2 groups (n_group) of 4 experts, of which 1 (topk_group) are open"},
        {one_group, "\"num_experts_per_tok\": 1", "\"num_experts_per_tok\": 2", ERR_UNAVAILABLE,
         "a deepseek_v2 chooses groups by their best expert"},
        {deepseek2_lite, "\"topk_method\": \"group_limited_greedy\"", "\"topk_method\": \"noaux_tc\"",
         ERR_UNAVAILABLE, "topk_method \"noaux_tc\" is not supported"},
        {deepseek2_lite, "\"norm_topk_prob\": false", "\"norm_topk_prob\": true", ERR_UNAVAILABLE,
         "norm_topk_prob true is not supported"},
        {deepseek2_lite, CACHE, "\"moe_layer_freq\": 2", ERR_UNAVAILABLE,
         "a moe_layer_freq other than 1 is not supported"},
        {deepseek3_moe, "\"topk_group\": 1", "\"topk_group\": 2", ERR_UNAVAILABLE,
         "a deepseek_v3 chooses groups by their best two experts"},
        {deepseek3_moe, "\"norm_topk_prob\": true", "\"norm_topk_prob\": false", ERR_UNAVAILABLE,
         "norm_topk_prob false is not supported"},
        {deepseek3_moe, "\"scoring_func\": \"sigmoid\"", "\"scoring_func\": \"softmax\"", ERR_UNAVAILABLE,
         "scoring_func \"softmax\" is not supported"},
        {many_experts, "\"mlp_only_layers\": [", "\"mlp_only_layers\": [3, 5, ", ERR_UNAVAILABLE,
         "which layers have experts has to repeat"},
    };
    expect_refusals(cases, sizeof cases / sizeof *cases);
}

// Beside the tensors that another configuration is of.
static void other_experts(void) {
    static const Refusal cases[] = {
        {olmoe, "\"num_experts\": 3", "\"num_experts\": 1000", ERR_DATA,
         "2 layers with experts in config.json"},
        {olmoe, "\"num_experts\": 3", "\"num_experts\": 4", ERR_DATA, "mlp.gate.weight is not [4, 32]"},
        {olmoe, "\"num_experts\": 3", "\"num_local_experts\": 4", ERR_DATA, "mlp.gate.weight is not [4, 32]"},
        {olmoe, "\"intermediate_size\": 20", "\"intermediate_size\": 21", ERR_DATA,
         "mlp.experts.0.gate_proj.weight is not [21, 32]"},
        {granite_moe, "\"intermediate_size\": 20", "\"intermediate_size\": 21", ERR_DATA,
         "block_sparse_moe.input_linear.weight is not [3, 42, 32]"},
        {qwen3_moe, "\"mlp_only_layers\": [0]", "\"mlp_only_layers\": []", ERR_DATA,
         "model.layers.0.mlp.gate.weight is missing"},
        {mixtral, "\"num_local_experts\": 3", "\"num_local_experts\": 2", ERR_DATA,
         "block_sparse_moe.gate.weight is not [2, 32]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Path folder = changed(cases[i].shape, cases[i].old, cases[i].new);
        ModelSource *source;
        EXPECT(!symlink("../hf/model.safetensors", inside(folder.text, "model.safetensors").text), "no link");
        Status status = model_source_open(&source, folder.text, -1);
        EXPECT(status == cases[i].status && !source, "case %zu: exit %d: %s", i, status, fail_message());
        EXPECT(strstr(fail_message(), cases[i].told), "no '%s' in: %s", cases[i].told, fail_message());
        model_source_close(source);
    }
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

// Members of published configurations, the parameters of their models, and those that a token uses.
static const struct {
    const char *members;
    int64_t parameters, active;
} models[] = {
    {"\"architectures\": [\"MixtralForCausalLM\"], \"model_type\": \"mixtral\", \"hidden_size\": 4096, "
     "\"intermediate_size\": 14336, \"num_hidden_layers\": 32, \"num_attention_heads\": 32, "
     "\"num_key_value_heads\": 8, \"num_local_experts\": 8, \"num_experts_per_tok\": 2, \"vocab_size\": 32000, "
     "\"max_position_embeddings\": 32768, \"rms_norm_eps\": 1e-05, \"rope_theta\": 1000000.0, "
     "\"router_aux_loss_coef\": 0.02, \"output_router_logits\": false, \"sliding_window\": null",
     46702792704, 12879925248},
    {"\"architectures\": [\"Qwen3MoeForCausalLM\"], \"model_type\": \"qwen3_moe\", \"hidden_size\": 2048, "
     "\"intermediate_size\": 6144, \"moe_intermediate_size\": 768, \"num_hidden_layers\": 48, "
     "\"num_attention_heads\": 32, \"num_key_value_heads\": 4, \"head_dim\": 128, \"num_experts\": 128, "
     "\"num_experts_per_tok\": 8, \"norm_topk_prob\": true, \"decoder_sparse_step\": 1, "
     "\"mlp_only_layers\": [], \"vocab_size\": 151936, \"max_position_embeddings\": 40960, "
     "\"max_window_layers\": 48, \"use_sliding_window\": false, \"sliding_window\": null, "
     "\"rope_scaling\": null, \"rope_theta\": 1000000.0, \"router_aux_loss_coef\": 0.001",
     30532122624, 3353032704},
    {"\"architectures\": [\"OlmoeForCausalLM\"], \"model_type\": \"olmoe\", \"hidden_size\": 2048, "
     "\"intermediate_size\": 1024, \"num_hidden_layers\": 16, \"num_attention_heads\": 16, "
     "\"num_key_value_heads\": 16, \"num_experts\": 64, \"num_experts_per_tok\": 8, "
     "\"norm_topk_prob\": false, \"clip_qkv\": null, \"vocab_size\": 50304, "
     "\"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-05, \"router_aux_loss_coef\": 0.01",
     6919161856, 1282017280},
    {"\"architectures\": [\"DeepseekV2ForCausalLM\"], \"model_type\": \"deepseek_v2\", \"hidden_size\": 2048, "
     "\"intermediate_size\": 10944, \"moe_intermediate_size\": 1408, \"num_hidden_layers\": 27, "
     "\"num_attention_heads\": 16, \"num_key_value_heads\": 16, \"q_lora_rank\": null, "
     "\"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, \"v_head_dim\": 128, "
     "\"first_k_dense_replace\": 1, \"moe_layer_freq\": 1, \"n_routed_experts\": 64, "
     "\"n_shared_experts\": 2, \"num_experts_per_tok\": 6, \"n_group\": 1, \"topk_group\": 1, "
     "\"topk_method\": \"greedy\", \"scoring_func\": \"softmax\", \"norm_topk_prob\": false, "
     "\"routed_scaling_factor\": 1.0, \"aux_loss_alpha\": 0.001, \"seq_aux\": true, \"ep_size\": 1, "
     "\"vocab_size\": 102400, \"max_position_embeddings\": 163840, \"rope_theta\": 10000, "
     "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, \"beta_fast\": 32, \"beta_slow\": 1, "
     "\"mscale\": 0.707, \"mscale_all_dim\": 0.707, \"original_max_position_embeddings\": 4096}",
     15706484224, 2661150208},
    {"\"architectures\": [\"DeepseekV3ForCausalLM\"], \"model_type\": \"deepseek_v3\", \"hidden_size\": 7168, "
     "\"intermediate_size\": 18432, \"moe_intermediate_size\": 2048, \"num_hidden_layers\": 61, "
     "\"num_attention_heads\": 128, \"num_key_value_heads\": 128, \"q_lora_rank\": 1536, \"kv_lora_rank\": 512, "
     "\"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, \"v_head_dim\": 128, \"first_k_dense_replace\": 3, "
     "\"moe_layer_freq\": 1, \"n_routed_experts\": 256, \"n_shared_experts\": 1, \"num_experts_per_tok\": 8, "
     "\"n_group\": 8, \"topk_group\": 4, \"topk_method\": \"noaux_tc\", \"scoring_func\": \"sigmoid\", "
     "\"norm_topk_prob\": true, \"routed_scaling_factor\": 2.5, \"aux_loss_alpha\": 0.001, \"seq_aux\": true, "
     "\"ep_size\": 1, \"num_nextn_predict_layers\": 1, \"vocab_size\": 129280, "
     "\"max_position_embeddings\": 163840, \"rope_theta\": 10000, "
     "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, \"beta_fast\": 32, \"beta_slow\": 1, "
     "\"mscale\": 1.0, \"mscale_all_dim\": 1.0, \"original_max_position_embeddings\": 4096}",
     671026404352, 37552282624},
    {"\"architectures\": [\"GptOssForCausalLM\"], \"model_type\": \"gpt_oss\", \"attention_bias\": true, "
     "\"hidden_size\": 2880, \"intermediate_size\": 2880, \"num_hidden_layers\": 24, \"num_attention_heads\": 64, "
     "\"num_key_value_heads\": 8, \"head_dim\": 64, \"num_local_experts\": 32, \"num_experts_per_tok\": 4, "
     "\"experts_per_token\": 4, \"initial_context_length\": 4096, \"max_position_embeddings\": 131072, "
     "\"sliding_window\": 128, \"swiglu_limit\": 7.0, \"vocab_size\": 201088, \"rms_norm_eps\": 1e-05, "
     "\"rope_theta\": 150000, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 32.0, \"beta_fast\": 32.0, "
     "\"beta_slow\": 1.0, \"original_max_position_embeddings\": 4096, \"truncate\": false}, "
     "\"output_router_logits\": false, \"router_aux_loss_coef\": 0.9",
     20914757184, 4187440704},
    {"\"architectures\": [\"GptOssForCausalLM\"], \"model_type\": \"gpt_oss\", \"num_hidden_layers\": 36, "
     "\"num_local_experts\": 128, \"hidden_size\": 2880, \"intermediate_size\": 2880, \"num_attention_heads\": 64, "
     "\"num_key_value_heads\": 8, \"vocab_size\": 201088, \"max_position_embeddings\": 131072",
     116829156672, 5711982912},
};

// All members are known.
static void published(void) {
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        CheckpointInfo info = {0};
        const Family *family;
        Json *root;
        Text text = {0};
        text_add(
            &text,
            "{%s, \"hidden_act\": \"silu\", \"torch_dtype\": \"bfloat16\", \"tie_word_embeddings\": false, "
            "\"attention_dropout\": 0.0, \"bos_token_id\": 1, \"eos_token_id\": 2, \"use_cache\": true, "
            "\"initializer_range\": 0.02, \"transformers_version\": \"4.51.0\"}",
            models[i].members);
        EXPECT_OK(json_parse(&root, text.data, text.size, "config"));
        EXPECT_OK(config_read(root, "config", &info, &family));
        const ModelShape *s = &info.shape;
        EXPECT(model_parameters(s) == models[i].parameters && model_active_parameters(s) == models[i].active,
               "model %zu: %" PRId64 " parameters, %" PRId64 " of a token", i, model_parameters(s),
               model_active_parameters(s));
        json_free(root);
        text_free(&text);
    }
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
               strstr(fail_message(), "MixtralForCausalLM has no such scores of experts"),
           "%s", fail_message());
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"refused", refused},
                                      {"refused_experts", refused_experts},
                                      {"other_experts", other_experts},
                                      {"lacks", lacks},
                                      {"published", published},
                                      {"experts", experts_without_family},
                                      {0}},
                       argc, argv);
}
