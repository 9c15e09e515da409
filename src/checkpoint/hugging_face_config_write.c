// config.json of a Hugging Face model, written.
#include "checkpoint/hugging_face.h"
#include <math.h>
#include <stdlib.h>

static void write_int(Text *out, const char *name, int value) {
    text_add(out, "  \"%s\": %d,\n", name, value);
}

// The shortest decimal that gives the same float, as the number was once typed.
static void write_float(Text *out, const char *name, float value) {
    enum { ENOUGH_DIGITS = 9 };
    char text[32];
    for (int digits = 1; digits <= ENOUGH_DIGITS; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value) break;
    }
    bool whole = value == floorf(value) && fabsf(value) < 1e9f;
    if (whole) snprintf(text, sizeof text, "%.1f", (double)value);
    text_add(out, "  \"%s\": %s,\n", name, text);
}

static void write_flag(Text *out, const char *name, bool value) {
    text_add(out, "  \"%s\": %s,\n", name, value ? "true" : "false");
}

static void write_gpt2(const ModelShape *s, Text *out) {
    text_add(out, "  \"model_type\": \"gpt2\",\n");
    text_add(out, "  \"activation_function\": \"%s\",\n",
             s->activation == ACTIVATION_GELU_ERF ? "gelu" : "gelu_new");
    write_float(out, "attn_pdrop", s->attention_dropout);
    write_float(out, "embd_pdrop", s->hidden_dropout);
    write_float(out, "resid_pdrop", s->hidden_dropout);
    write_float(out, "layer_norm_epsilon", s->norm_epsilon);
    write_int(out, "n_ctx", s->positions);
    write_int(out, "n_embd", s->hidden);
    write_int(out, "n_head", s->heads);
    write_int(out, "n_inner", s->ffn);
    write_int(out, "n_layer", s->layers);
    write_int(out, "n_positions", s->positions);
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
    write_float(out, "attention_dropout", s->attention_dropout);
    write_int(out, "head_dim", s->head_size);
    write_int(out, "hidden_size", s->hidden);
    write_int(out, "intermediate_size", s->ffn);
    write_int(out, "max_position_embeddings", s->positions > s->sequence ? s->positions : s->sequence);
    write_int(out, "num_attention_heads", s->heads);
    write_int(out, "num_hidden_layers", s->layers);
    write_int(out, "num_key_value_heads", model_groups(s));
    write_float(out, "rms_norm_eps", s->norm_epsilon);
    write_scaling(&s->rope, out);
    write_float(out, "rope_theta", (float)s->rotary_base);
}

static void write_token(Text *out, const char *name, int id) {
    if (id >= 0)
        write_int(out, name, id);
    else
        text_add(out, "  \"%s\": null,\n", name);
}

void config_write(const ModelShape *s, Architecture architecture, FileType type, const Tokenizer *tokenizer,
                  Text *out) {
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
    write_flag(out, "use_cache", true);
    text_add(out, "  \"torch_dtype\": \"%s\"\n}\n", dtype);
}
