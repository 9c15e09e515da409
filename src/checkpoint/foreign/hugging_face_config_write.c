// Writes the config.json of a Hugging Face model.
#include "checkpoint/fields.h"
#include "checkpoint/foreign/hugging_face.h"
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
static void write_sizes(Text *out, Architecture architecture, const ModelShape *s, const char *const *names) {
    for (int i = 0; names[i]; i++) {
        const ModelSize *size = size_of_name(FORMAT_HUGGING_FACE, architecture, names[i]);
        CHECK(size, "no size is named %s", names[i]);
        write_size(out, names[i], size, s);
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
static const char *const common_names[] = {"initializer_range", "vocab_size", NULL};

static bool is_listed(const char *name, const char *const *names) {
    for (int i = 0; names[i]; i++)
        if (!strcmp(name, names[i])) return true;
    return false;
}

// Writes the sizes that no list has, where they are not zero.
static void write_others(Text *out, Architecture architecture, const ModelShape *s) {
    const char *const *listed = architecture == ARCHITECTURE_GPT2 ? gpt2_names : llama_names;
    for (int i = 0; i < num_model_sizes; i++) {
        const char *name = model_sizes[i].names[FORMAT_HUGGING_FACE][architecture];
        if (!name || !*name || is_listed(name, listed) || is_listed(name, common_names)) continue;
        if (!field_is_zero(&model_sizes[i].field, s)) write_size(out, name, &model_sizes[i], s);
    }
}

static void write_gpt2(const ModelShape *s, Text *out) {
    text_add(out, "  \"model_type\": \"gpt2\",\n");
    text_add(out, "  \"activation_function\": \"%s\",\n",
             s->activation == ACTIVATION_GELU_ERF ? "gelu" : "gelu_new");
    write_sizes(out, ARCHITECTURE_GPT2, s, gpt2_names);
}

static void write_scaling(const Rope *rope, Text *out) {
    if (rope->kind == ROPE_PLAIN) return;
    text_add(out, "  \"rope_scaling\": {\n  ");
    write_float(out, "factor", (float)rope->factor);
    if (rope->kind == ROPE_LLAMA3) {
        text_add(out, "  ");
        write_float(out, "high_freq_factor", (float)rope->high);
        text_add(out, "  ");
        write_float(out, "low_freq_factor", (float)rope->low);
        text_add(out, "  ");
        write_int(out, "original_max_position_embeddings", rope->original);
    }
    text_add(out, "    \"rope_type\": \"%s\"\n  },\n", rope->kind == ROPE_LINEAR ? "linear" : "llama3");
}

static void write_llama(const ModelShape *s, Text *out) {
    text_add(out, "  \"model_type\": \"llama\",\n");
    text_add(out, "  \"hidden_act\": \"silu\",\n");
    write_flag(out, "attention_bias", model_has_qkv_bias(s) || model_has_proj_bias(s));
    write_flag(out, "mlp_bias", model_has_mlp_bias(s));
    write_sizes(out, ARCHITECTURE_LLAMA, s, llama_names);
    write_scaling(&s->rope, out);
    write_float(out, "rope_theta", (float)s->rotary_base);
}

static void write_token(Text *out, const char *name, int id) {
    if (id >= 0)
        write_int(out, name, id);
    else
        text_add(out, "  \"%s\": null,\n", name);
}

void config_write(const ModelShape *shape, Architecture architecture, FileType type,
                  const Tokenizer *tokenizer, Text *out) {
    ModelShape spelled_out = shape_spelled_out(shape), *s = &spelled_out;
    const char *dtype = type == FILE_F32 ? "float32" : type == FILE_BF16 ? "bfloat16" : "float16";
    int eos = tokenizer ? tokenizer_eod(tokenizer) : -1, bos = tokenizer ? tokenizer_bos(tokenizer) : -1;
    text_add(out, "{\n  \"architectures\": [\"%s\"],\n", architecture_name(architecture));
    if (architecture == ARCHITECTURE_GPT2)
        write_gpt2(s, out);
    else
        write_llama(s, out);
    write_token(out, "bos_token_id", bos >= 0 ? bos : architecture == ARCHITECTURE_GPT2 ? eos : -1);
    write_token(out, "eos_token_id", eos);
    write_float(out, "initializer_range", s->init_std);
    write_flag(out, "tie_word_embeddings", !s->untied);
    write_int(out, "vocab_size", s->vocabulary);
    write_others(out, architecture, s);
    write_flag(out, "use_cache", true);
    text_add(out, "  \"torch_dtype\": \"%s\"\n}\n", dtype);
}
