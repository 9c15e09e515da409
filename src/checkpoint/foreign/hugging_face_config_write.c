// Writes the config.json of a Hugging Face model.
#include "checkpoint/fields.h"
#include "checkpoint/foreign/hugging_face.h"
#include "checkpoint/manifest.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void write_int(Text *out, const char *name, int value) {
    text_add(out, "  \"%s\": %d,\n", name, value);
}

static void write_float(Text *out, const char *name, float value) {
    bool whole = value == floorf(value) && fabsf(value) < 1e9f;
    text_add(out, "  \"%s\": ", name);
    if (whole)
        text_add(out, "%.1f", (double)value);
    else
        text_add_float(out, value);
    text_add(out, ",\n");
}

static void write_flag(Text *out, const char *name, bool value) {
    text_add(out, "  \"%s\": %s,\n", name, value ? "true" : "false");
}

static void write_size(Text *out, const char *name, const ModelSize *size, const ModelShape *s) {
    const void *at = (const char *)s + size->field.offset;
    switch (size->field.type) {
    case INT_FIELD: write_int(out, name, *(const int *)at); break;
    case BOOL_FIELD: write_flag(out, name, *(const bool *)at); break;
    case FLOAT_FIELD: write_float(out, name, *(const float *)at); break;
    case DOUBLE_FIELD: write_float(out, name, (float)*(const double *)at); break;
    default: CHECK(false, "%s has no form in config.json", size->field.name);
    }
}

// Writes the sizes of these names, ended by NULL, in their order.
static void write_sizes(Text *out, const Family *f, const ModelShape *s, const char *const *names) {
    for (int i = 0; names[i]; i++) {
        const char *name = strcmp(names[i], "rms_norm_eps") ? names[i] : f->epsilon;
        const ModelSize *size = size_of_name(FORMAT_HUGGING_FACE, f, name);
        bool has_groups = f->says & SAYS_GROUPS || f->dialect == DIALECT_GPT2;
        CHECK(size, "no size is named %s", name);
        if (!strcmp(name, "head_dim") && !(f->says & SAYS_HEAD_SIZE)) continue;
        if (strcmp(name, "num_key_value_heads") || has_groups) write_size(out, name, size, s);
    }
}

static const char *const gpt2_names[] = {"attn_pdrop", "embd_pdrop",  "resid_pdrop", "layer_norm_epsilon",
                                         "n_ctx",      "n_embd",      "n_head",      "n_inner",
                                         "n_layer",    "n_positions", NULL};
static const char *const llama_names[] = {"attention_dropout",
                                          "head_dim",
                                          "hidden_size",
                                          "intermediate_size",
                                          "max_position_embeddings",
                                          "num_attention_heads",
                                          "num_hidden_layers",
                                          "num_key_value_heads",
                                          "rms_norm_eps",
                                          NULL};
static const char *const latent_names[] = {"kv_lora_rank", "q_lora_rank", "v_head_dim", NULL};
static const char *const common_names[] = {"initializer_range", "vocab_size", NULL};

static bool is_listed(const char *name, const char *const *names) {
    for (int i = 0; names[i]; i++)
        if (!strcmp(name, names[i])) return true;
    return false;
}

// Writes the sizes that no list has, where they are not zero.
static void write_others(Text *out, const Family *f, const ModelShape *s) {
    const char *const *listed = f->dialect == DIALECT_GPT2 ? gpt2_names : llama_names;
    for (int i = 0; i < num_model_sizes; i++) {
        const char *name = model_sizes[i].names[FORMAT_HUGGING_FACE][f->dialect];
        if (!name || !*name || is_listed(name, listed) || is_listed(name, common_names) ||
            is_listed(name, latent_names))
            continue;
        if (!field_is_zero(&model_sizes[i].field, s)) write_size(out, name, &model_sizes[i], s);
    }
}

static void write_gpt2(const ModelShape *s, const Family *f, Text *out) {
    text_add(out, "  \"model_type\": \"gpt2\",\n");
    text_add(out, "  \"activation_function\": \"%s\",\n",
             s->activation == ACTIVATION_GELU_ERF ? "gelu" : "gelu_new");
    write_sizes(out, f, s, gpt2_names);
}

// ---- rotary positions -----------------------------------------------------------------------------------

// A double as others wrote it: with the digits that it needs.
static void write_real(Text *out, const char *name, double value) {
    if (value == (double)(float)value) {
        write_float(out, name, (float)value);
        return;
    }
    text_add(out, "  \"%s\": ", name);
    json_add_double(out, value);
    text_add(out, ",\n");
}

static void write_factors(const char *name, const char *member, const ModelShape *s, Text *out) {
    text_add(out, "    \"%s\": ", name);
    field_print(&size_named(member)->field, s, out);
    text_add(out, ",\n");
}

static void write_scaling(const ModelShape *s, Text *out) {
    const Rope *rope = &s->rope;
    static const char *const types[] = {[ROPE_LINEAR] = "linear",
                                        [ROPE_LLAMA3] = "llama3",
                                        [ROPE_YARN] = "yarn",
                                        [ROPE_DYNAMIC] = "dynamic",
                                        [ROPE_LONG] = "longrope"};
    if (rope->kind == ROPE_PLAIN) return;
    bool llama3 = rope->kind == ROPE_LLAMA3, yarn = rope->kind == ROPE_YARN,
         is_long = rope->kind == ROPE_LONG;
    const struct {
        bool has;
        const char *name;
        double value;
    } rows[] = {{rope->attention > 0, "attention_factor", rope->attention},
                {yarn, "beta_fast", rope->high},
                {yarn, "beta_slow", rope->low},
                {true, "factor", rope->factor},
                {rope->mscale_all > 0, "mscale_all_dim", rope->mscale_all},
                {llama3, "high_freq_factor", rope->high},
                {llama3, "low_freq_factor", rope->low}};
    text_add(out, "  \"rope_scaling\": {\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!rows[i].has) continue;
        text_add(out, "  ");
        write_real(out, rows[i].name, rows[i].value);
    }
    if (is_long) write_factors("long_factor", "rope_long_factors", s, out);
    if (llama3 || yarn || is_long) text_add(out, "  ");
    if (llama3 || yarn || is_long) write_int(out, "original_max_position_embeddings", rope->original);
    if (is_long) write_factors("short_factor", "rope_short_factors", s, out);
    if (rope->unrounded) text_add(out, "    \"truncate\": false,\n");
    text_add(out, "    \"rope_type\": \"%s\"\n  },\n", types[rope->kind]);
}

// The shortest share that gives this number of columns.
static void write_share(const ModelShape *s, const char *name, Text *out) {
    double share = (double)model_rotary_columns(s) / s->head_size;
    if ((int)(s->head_size * (double)(float)share) == model_rotary_columns(s)) share = (double)(float)share;
    write_real(out, name, share);
}

static void write_rotation(const ModelShape *s, const Family *f, Text *out) {
    if (f->says & SAYS_ROTARY_SHARE) write_share(s, "partial_rotary_factor", out);
    if (f->says & SAYS_LOCAL_BASE) write_real(out, "rope_local_base_freq", s->rotary_base_local);
    write_scaling(s, out);
    if (s->rope.kind == ROPE_LONG) write_int(out, "original_max_position_embeddings", s->rope.original);
    if (f->says & SAYS_ROTARY_PCT) {
        write_real(out, "rotary_emb_base", s->rotary_base);
        write_share(s, "rotary_pct", out);
    } else {
        write_real(out, "rope_theta", s->rotary_base);
    }
}

// ---- lists of layers ------------------------------------------------------------------------------------

static void write_layer_types(const ModelShape *s, Text *out) {
    text_add(out, "  \"layer_types\": [");
    for (int i = 0; i < s->layers; i++)
        text_add(out, "%s\n    \"%s\"", i ? "," : "",
                 model_window(s, i) ? "sliding_attention" : "full_attention");
    text_add(out, "\n  ],\n");
}

static void write_windows(const ModelShape *s, const Family *f, Text *out) {
    bool on = s->window > 0;
    if (!(f->says & (SAYS_WINDOW | SAYS_WINDOW_LAYERS | SAYS_WINDOW_SWITCH))) return;
    if (!(f->says & SAYS_WINDOW) && (on || f->says & SAYS_WINDOW_LAYERS)) write_layer_types(s, out);
    if (on)
        write_int(out, "sliding_window", s->window);
    else
        text_add(out, "  \"sliding_window\": null,\n");
    if (f->says & SAYS_WINDOW_SWITCH) write_flag(out, "use_sliding_window", on);
}

static void write_no_rope(const ModelShape *s, const Family *f, Text *out) {
    if (!(f->says & SAYS_NO_ROPE)) return;
    if (s->no_rope_freq) write_int(out, "no_rope_layer_interval", s->no_rope_freq);
    text_add(out, "  \"no_rope_layers\": [");
    for (int i = 0; i < s->layers; i++) text_add(out, "%s%d", i ? ", " : "", model_layer_rotates(s, i));
    text_add(out, "],\n");
}

// ---- what families say ----------------------------------------------------------------------------------

static const char *activation_name(Activation activation) {
    switch (activation) {
    case ACTIVATION_SWIGLU:
    case ACTIVATION_QUICK_GEGLU: return "silu";
    case ACTIVATION_GELU_ERF: return "gelu";
    case ACTIVATION_RELU_SQUARED: return "relu2";
    case ACTIVATION_GEGLU: return "gelu_pytorch_tanh";
    default: return "gelu_new";
    }
}

static void write_layers_with_experts(const ModelShape *s, Text *out) {
    int count = 0;
    write_int(out, "decoder_sparse_step", 1);
    text_add(out, "  \"mlp_only_layers\": [");
    for (int i = 0; i < s->layers; i++)
        if (!model_layer_has_experts(s, i)) text_add(out, "%s%d", count++ ? ", " : "", i);
    text_add(out, "],\n");
}

static double real_of(const ManifestField *field, const ModelShape *s) {
    const void *at = (const char *)s + field->offset;
    return field->type == FLOAT_FIELD ? (double)*(const float *)at : *(const double *)at;
}

// Writes the shortest number from which ours follows.
static void write_derived(const ModelShape *s, const FamilyMember *m, double ours, Text *out) {
    enum { ENOUGH_DIGITS = 17 };
    char text[32];
    if (ours == 0) {
        text_add(out, "  \"%s\": null,\n", m->name);
        return;
    }
    double theirs = m->meaning == TIMES_DEPTH ? ours * sqrt(s->layers) : s->hidden / ours;
    for (int digits = 1; digits <= ENOUGH_DIGITS; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, theirs);
        double read = strtod(text, NULL),
               made = m->meaning == TIMES_DEPTH ? read / sqrt(s->layers) : s->hidden / read;
        if ((float)made == (float)ours) break;
    }
    text_add(out, "  \"%s\": %s,\n", m->name, text);
}

static void write_member(const ModelShape *s, const FamilyMember *m, Text *out) {
    const ModelSize *size = size_named(m->size);
    const void *at = (const char *)s + size->field.offset;
    if (size->field.type == BOOL_FIELD) {
        write_flag(out, m->name, *(const bool *)at != (m->meaning == NEGATED));
        return;
    }
    if (size->field.type == INT_FIELD) {
        write_int(out, m->name, *(const int *)at);
        return;
    }
    if (m->meaning == TIMES_DEPTH || m->meaning == OF_WIDTH) {
        write_derived(s, m, real_of(&size->field, s), out);
        return;
    }
    double value = real_of(&size->field, s), squared = value > 0 ? 1 / (value * value) : s->head_size;
    if (m->meaning == SAME_CAP && value == 0)
        text_add(out, "  \"%s\": null,\n", m->name);
    else if (m->meaning == INVERSE_SQUARE && fabs(squared - round(squared)) < 1e-9 * squared)
        write_int(out, m->name, (int)round(squared));
    else if (m->meaning == INVERSE_SQUARE)
        write_real(out, m->name, squared);
    else if (!strcmp(m->size, "softmax_scale"))
        write_real(out, m->name, value > 0 ? value : 1 / sqrt(s->head_size));
    else
        write_real(out, m->name, m->meaning == SAME_FACTOR && value == 0 ? 1 : value);
}

static void write_latents(const ModelShape *s, const Family *f, Text *out) {
    if (!(f->says & SAYS_LATENT)) return;
    write_int(out, "kv_lora_rank", s->kv_rank);
    if (s->q_rank)
        write_int(out, "q_lora_rank", s->q_rank);
    else
        text_add(out, "  \"q_lora_rank\": null,\n");
    write_int(out, "qk_nope_head_dim", s->head_size - s->rotary_columns);
    write_int(out, "qk_rope_head_dim", s->rotary_columns);
    write_int(out, "v_head_dim", model_value_size(s));
}

static void write_deepseek(const ModelShape *s, Text *out) {
    const char *method = s->router_sigmoid  ? "noaux_tc"
                         : s->router_groups ? "group_limited_greedy"
                                            : "greedy";
    int dense = 0;
    while (dense < s->layers && !model_layer_has_experts(s, dense)) dense++;
    write_int(out, "first_k_dense_replace", dense);
    if (!s->experts) return;
    write_int(out, "n_shared_experts", s->shared_ffn / s->expert_ffn);
    write_flag(out, "norm_topk_prob", s->router_sigmoid);
    text_add(out, "  \"scoring_func\": \"%s\",\n", s->router_sigmoid ? "sigmoid" : "softmax");
    text_add(out, "  \"topk_method\": \"%s\",\n", method);
    write_int(out, "n_group", s->router_groups ? s->router_groups : 1);
    write_int(out, "topk_group", s->router_groups ? s->router_open_groups : 1);
}

static void write_llama(const ModelShape *s, const Family *f, Text *out) {
    text_add(out, "  \"model_type\": \"%s\",\n", f->model_type);
    text_add(out, "  \"%s\": \"%s\",\n", f->activation, activation_name(s->activation));
    if (f->says & SAYS_ATTENTION_BIAS)
        write_flag(out, "attention_bias", model_has_qkv_bias(s) || model_has_proj_bias(s));
    if (f->says & SAYS_QKV_BIAS) write_flag(out, "use_qkv_bias", model_has_qkv_bias(s));
    if (f->says & SAYS_MLP_BIAS) write_flag(out, "mlp_bias", model_has_mlp_bias(s));
    write_sizes(out, f, s, llama_names);
    write_latents(s, f, out);
    if (f->says & SAYS_DENSE) write_deepseek(s, out);
    if (f->says & SAYS_DROPOUTS) {
        write_float(out, "embd_pdrop", s->hidden_dropout);
        write_float(out, "resid_pdrop", s->hidden_dropout);
    }
    write_windows(s, f, out);
    write_no_rope(s, f, out);
    if (f->says & SAYS_SPARSE) write_layers_with_experts(s, out);
    for (const FamilyMember *m = f->members; m < f->members + MAX_FAMILY_MEMBERS && m->name; m++)
        if (m->meaning != OTHER_NAME && (s->experts || !size_is_of_experts(m->size))) write_member(s, m, out);
    write_rotation(s, f, out);
}

static void write_tokens(Text *out, const char *name, const int *ids, int count) {
    text_add(out, "  \"%s\": ", name);
    tokens_write_ends(ids, count, out);
    text_add(out, ",\n");
}

static int or_null(int id) { return id < 0 ? NO_TOKEN : id; }

// A token that the configuration does not name is the tokenizer's.
static ModelTokens all_tokens(const ModelTokens *said, bool gpt2, const Tokenizer *tokenizer) {
    ModelTokens tokens = *said;
    int eos = tokenizer ? tokenizer_eod(tokenizer) : -1, bos = tokenizer ? tokenizer_bos(tokenizer) : -1;
    if (!said->says_begin) tokens.begin = or_null(bos >= 0 ? bos : gpt2 ? eos : -1);
    if (!said->says_ends) tokens.num_ends = 1, tokens.ends[0] = or_null(eos);
    if (!said->says_pad) tokens.pad = NO_TOKEN;
    return tokens;
}

void config_write(const CheckpointInfo *info, const Family *family, FileType type, const Tokenizer *tokenizer,
                  Text *out) {
    ModelShape spelled_out = shape_spelled_out(&info->shape), *s = &spelled_out;
    const char *dtype = type == FILE_F32 ? "float32" : type == FILE_BF16 ? "bfloat16" : "float16";
    bool gpt2 = family->dialect == DIALECT_GPT2;
    ModelTokens tokens = all_tokens(&info->tokens, gpt2, tokenizer);
    text_add(out, "{\n  \"architectures\": [\"%s\"],\n", family->architecture);
    if (family->says & EXPERTS_ARE_MLPS) s->ffn = s->expert_ffn;
    (gpt2 ? write_gpt2 : write_llama)(s, family, out);
    write_tokens(out, "bos_token_id", &tokens.begin, 1);
    write_tokens(out, "eos_token_id", tokens.ends, tokens.num_ends);
    write_float(out, "initializer_range", s->init_std);
    // Some families have a token here unless it is written; the defaults of GPT-2 and Llama are null.
    if (family->family || tokens.says_pad) write_tokens(out, "pad_token_id", &tokens.pad, 1);
    write_flag(out, "tie_word_embeddings", !s->untied);
    write_int(out, "vocab_size", s->vocabulary);
    write_others(out, family, s);
    write_flag(out, "use_cache", true);
    text_add(out, "  \"torch_dtype\": \"%s\"\n}\n", dtype);
}
