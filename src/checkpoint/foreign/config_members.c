// Reads members of a config.json, and refuses those that are not read and may change what the model computes.
#include "checkpoint/foreign/config_members.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

// ---- members ------------------------------------------------------------------------------------------

bool config_is_given(const Json *value) { return value && value->type != JSON_NULL; }

const Json *config_member(Config *c, const char *name) {
    CHECK(c->num_read < MAX_READ, "more than %d members of %s are read", MAX_READ, c->what);
    c->read[c->num_read++] = name;
    return json_member(c->object, name);
}

Status config_bad(const Config *c, const char *name, const char *wanted) {
    const Json *value = json_member(c->object, name);
    if (!config_is_given(value)) return fail(ERR_DATA, "%s: no member \"%s\" (%s)", c->what, name, wanted);
    return fail(ERR_DATA, "%s: byte %" PRId64 ": \"%s\" is not %s", c->what, value->offset, name, wanted);
}

static Status read_whole(Config *c, const char *name, int least, int most, int *out) {
    const Json *value = config_member(c, name);
    int64_t size = 0;
    char wanted[64];
    if (!config_is_given(value) && *out >= 0) return OK;
    snprintf(wanted, sizeof wanted, "a whole number from %d to %d", least, most);
    if (!json_int(value, &size) || size < least || size > most) return config_bad(c, name, wanted);
    *out = (int)size;
    return OK;
}

Status config_size(Config *c, const char *name, int most, int *out) {
    return read_whole(c, name, 1, most, out);
}
Status config_count(Config *c, const char *name, int most, int *out) {
    return read_whole(c, name, 0, most, out);
}

Status config_real(Config *c, const char *name, double least, double most, double *out) {
    const Json *value = config_member(c, name);
    char wanted[64];
    if (!config_is_given(value) && !isnan(*out)) return OK;
    snprintf(wanted, sizeof wanted, "a number from %g to %g", least, most);
    if (!json_double(value, out) || !(*out >= least && *out <= most)) return config_bad(c, name, wanted);
    return OK;
}

Status config_flag(Config *c, const char *name, bool *out) {
    const Json *value = config_member(c, name);
    if (!config_is_given(value) || json_flag(value, out)) return OK;
    return config_bad(c, name, "true or false");
}

Status config_word(Config *c, const char *name, const char *const *words, int *out) {
    const Json *value = config_member(c, name);
    const char *word = json_string(value);
    Text known = {0};
    *out = 0;
    if (!config_is_given(value)) return OK;
    if (!word) return config_bad(c, name, "a string");
    for (int i = 0; words[i]; i++)
        if (!strcmp(word, words[i])) return *out = i, OK;
    for (int i = 0; words[i]; i++) text_add(&known, "%s%s", i ? ", " : "", words[i]);
    Status status = fail(ERR_UNAVAILABLE, "%s: %s \"%.80s\" is not supported; known: %s", c->what, name, word,
                         text_string(&known));
    text_free(&known);
    return status;
}

Status config_must_be(Config *c, const char *name, bool wanted) {
    bool value = wanted;
    TRY(config_flag(c, name, &value));
    if (value == wanted) return OK;
    return fail(ERR_UNAVAILABLE, "%s: %s %s is not supported", c->what, name, value ? "true" : "false");
}

Status config_must_be_zero(Config *c, const char *name) {
    const Json *value = config_member(c, name);
    double number = 1;
    if (!config_is_given(value) || (json_double(value, &number) && number == 0)) return OK;
    return fail(ERR_UNAVAILABLE, "%s: a %s other than 0 is not supported", c->what, name);
}

Status config_must_be_absent(Config *c, const char *name) {
    if (!config_is_given(config_member(c, name))) return OK;
    return fail(ERR_UNAVAILABLE, "%s: %s is not supported", c->what, name);
}

// ---- members that are not read --------------------------------------------------------------------------

// These members do not change what a model computes: they say where it came from, or how it is trained, sampled or
// stored. A '*' at the end stands for any ending.
static const char *const harmless[] = {
    "_*", "architectures", "transformers_version", "transformers.js_config", "unsloth_*", "torchscript",
    "use_cache", "cache_implementation", "auto_map", "model_name", "pretraining_tp", "is_llama_config",
    "is_decoder", "n_ctx", "initial_context_length", "predict_special_tokens", "max_sequence_length",
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "mask_token_id",
    "unk_token_id", "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "tokenizer_class",
    "classifier_dropout", "prefix", "finetuning_task", "task_specific_params", "problem_type", "id2label",
    "label2id", "num_labels", "summary_*", "gradient_checkpointing", "aux_loss_alpha", "seq_aux", "ep_size",
    "num_nextn_predict_layers", "reorder_and_upcast_attn", "attn_implementation", "use_bfloat16",
    "output_attentions", "output_hidden_states", "output_router_logits", "router_aux_loss_coef",
    "output_past", "output_scores", "return_dict", "return_dict_in_generate", "remove_invalid_values",
    "tf_legacy_loss", "chunk_size_feed_forward",
    // Members of generation_config.json, which older versions kept here.
    "do_sample", "early_stopping", "max_length", "min_length", "max_new_tokens", "min_new_tokens",
    "penalty_alpha", "renormalize_logits", "temperature", "top_k", "top_p", "typical_p", "num_beams",
    "num_beam_groups", "num_return_sequences", "diversity_penalty", "length_penalty", "repetition_penalty",
    "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "suppress_tokens",
    "begin_suppress_tokens", "exponential_decay_length_penalty", NULL};

static bool is_harmless(const char *name) {
    for (int i = 0; harmless[i]; i++) {
        size_t size = strlen(harmless[i]);
        bool any_ending = harmless[i][size - 1] == '*';
        if (any_ending ? !strncmp(name, harmless[i], size - 1) : !strcmp(name, harmless[i])) return true;
    }
    return false;
}

static bool was_read(const Config *c, const char *name) {
    for (int i = 0; i < c->num_read; i++)
        if (!strcmp(c->read[i], name)) return true;
    return false;
}

// A feature is off when its member is null, false or empty.
static bool is_off(const Json *value) {
    switch (value->type) {
    case JSON_NULL:
    case JSON_FALSE: return true;
    case JSON_STRING: return value->size == 0;
    case JSON_ARRAY:
    case JSON_OBJECT: return value->count == 0;
    default: return false;
    }
}

const Json *config_unread(const Config *c) {
    for (size_t i = 0; i < c->object->count; i++) {
        const Json *value = &c->object->items[i];
        if (!is_off(value) && !was_read(c, value->key) && !is_harmless(value->key)) return value;
    }
    return NULL;
}

Status config_check_all_read(const Config *c) {
    const Json *value = config_unread(c);
    if (!value) return OK;
    return fail(ERR_UNAVAILABLE,
                "%s: byte %" PRId64 ": \"%.80s\" is not supported: it may change what the model "
                "computes; if it does not, remove it from the file",
                c->what, value->offset, value->key);
}
