// Reads the config.json of a Hugging Face model: the shape of a GPT-2 or Llama. Members that would change what the
// model computes are refused by name.
#include "checkpoint/fields.h"
#include "checkpoint/foreign/hugging_face.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- members ------------------------------------------------------------------------------------------

enum { MAX_READ = 48 };

// An object, and the names that were read from it, so that other members can be refused.
typedef struct {
    const Json *object;
    const char *what; // begins messages
    const char *read[MAX_READ];
    int num_read;
} Config;

static bool is_given(const Json *value) { return value && value->type != JSON_NULL; }

static const Json *member(Config *c, const char *name) {
    CHECK(c->num_read < MAX_READ, "more than %d members of %s are read", MAX_READ, c->what);
    c->read[c->num_read++] = name;
    return json_member(c->object, name);
}

static Status bad_member(const Config *c, const char *name, const char *wanted) {
    const Json *value = json_member(c->object, name);
    if (!is_given(value)) return fail(ERR_DATA, "%s: no member \"%s\" (%s)", c->what, name, wanted);
    return fail(ERR_DATA, "%s: byte %" PRId64 ": \"%s\" is not %s", c->what, value->offset, name, wanted);
}

// Reads an integer. A member that is missing or null leaves `out` as it is, and fails where that is -1.
static Status read_size(Config *c, const char *name, int most, int *out) {
    const Json *value = member(c, name);
    int64_t size = 0;
    char wanted[64];
    if (!is_given(value) && *out >= 0) return OK;
    snprintf(wanted, sizeof wanted, "a whole number from 1 to %d", most);
    if (!json_int(value, &size) || size < 1 || size > most) return bad_member(c, name, wanted);
    *out = (int)size;
    return OK;
}

// Reads a number. A member that is missing or null leaves `out` as it is, and fails where that is NaN.
static Status read_real(Config *c, const char *name, double least, double most, double *out) {
    const Json *value = member(c, name);
    char wanted[64];
    if (!is_given(value) && !isnan(*out)) return OK;
    snprintf(wanted, sizeof wanted, "a number from %g to %g", least, most);
    if (!json_double(value, out) || !(*out >= least && *out <= most)) return bad_member(c, name, wanted);
    return OK;
}

static Status read_flag(Config *c, const char *name, bool *out) {
    const Json *value = member(c, name);
    if (!is_given(value) || json_flag(value, out)) return OK;
    return bad_member(c, name, "true or false");
}

// Reads one of `words`, which NULL ends. A member that is missing or null means the first.
static Status read_word(Config *c, const char *name, const char *const *words, int *out) {
    const Json *value = member(c, name);
    const char *word = json_string(value);
    Text known = {0};
    *out = 0;
    if (!is_given(value)) return OK;
    if (!word) return bad_member(c, name, "a string");
    for (int i = 0; words[i]; i++)
        if (!strcmp(word, words[i])) return *out = i, OK;
    for (int i = 0; words[i]; i++) text_add(&known, "%s%s", i ? ", " : "", words[i]);
    Status status = fail(ERR_UNAVAILABLE, "%s: %s \"%.80s\" is not supported; known: %s", c->what, name, word,
                         text_string(&known));
    text_free(&known);
    return status;
}

static Status check_flag(Config *c, const char *name, bool wanted) {
    bool value = wanted;
    TRY(read_flag(c, name, &value));
    if (value == wanted) return OK;
    return fail(ERR_UNAVAILABLE, "%s: %s is not supported", c->what, name);
}

static Status check_zero(Config *c, const char *name) {
    const Json *value = member(c, name);
    int64_t number = 0;
    if (!is_given(value) || (json_int(value, &number) && number == 0)) return OK;
    return fail(ERR_UNAVAILABLE, "%s: a %s other than 0 is not supported", c->what, name);
}

static Status check_absent(Config *c, const char *name) {
    if (!is_given(member(c, name))) return OK;
    return fail(ERR_UNAVAILABLE, "%s: %s is not supported", c->what, name);
}

// ---- members that are not read --------------------------------------------------------------------------

// These members do not change what a model computes: they say where it came from, or how it is trained, sampled or
// stored. A '*' at the end stands for any ending.
static const char *const harmless[] = {
    "_*", "architectures", "transformers_version", "transformers.js_config", "unsloth_*", "torchscript",
    "use_cache", "pretraining_tp", "is_llama_config", "is_decoder", "n_ctx", "predict_special_tokens",
    "max_sequence_length", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id",
    "mask_token_id", "unk_token_id", "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id",
    "tokenizer_class", "prefix", "finetuning_task", "task_specific_params", "problem_type", "id2label",
    "label2id", "num_labels", "summary_*", "gradient_checkpointing", "reorder_and_upcast_attn",
    "attn_implementation", "use_bfloat16", "output_attentions", "output_hidden_states", "output_past",
    "output_scores", "return_dict", "return_dict_in_generate", "remove_invalid_values", "tf_legacy_loss",
    "chunk_size_feed_forward",
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

// Refuses members that are not read here, such as a window, a multiplier or another norm: the model would differ.
static Status check_all_read(const Config *c) {
    for (size_t i = 0; i < c->object->count; i++) {
        const Json *value = &c->object->items[i];
        if (is_off(value) || was_read(c, value->key) || is_harmless(value->key)) continue;
        return fail(ERR_UNAVAILABLE,
                    "%s: byte %" PRId64 ": \"%.80s\" is not supported: it may change what the model "
                    "computes; if it does not, remove it from the file",
                    c->what, value->offset, value->key);
    }
    return OK;
}

// ---- reading ------------------------------------------------------------------------------------------

enum { MAX_HEAD_SIZE = 1 << 13, MAX_POSITIONS = 1 << 24, MAX_SCALING = 1 << 16 };

// Reads the members that sizes.def names. A size that holds -1 has to be there; others keep what they hold.
static Status read_sizes(Config *c, Architecture architecture, ModelShape *s) {
    for (int i = 0; i < num_model_sizes; i++) {
        const ManifestField *field = &model_sizes[i].field;
        const char *name = model_sizes[i].names[FORMAT_HUGGING_FACE][architecture];
        void *at = (char *)s + field->offset;
        if (!name || !*name) continue;
        if (field->type == INT_FIELD) TRY(read_size(c, name, (int)field->most, at));
        if (field->type == BOOL_FIELD) TRY(read_flag(c, name, at));
        if (field->type == DOUBLE_FIELD) TRY(read_real(c, name, field->least, field->most, at));
        if (field->type != FLOAT_FIELD) continue;
        double value = (double)*(float *)at;
        TRY(read_real(c, name, field->least, field->most, &value));
        *(float *)at = (float)value;
    }
    return OK;
}

// transformers' names for the tanh form of GELU, then for the exact form.
static const char *const gelus[] = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast",
                                    "gelu",     "gelu_python",       NULL};
enum { NUM_TANH_GELUS = 3 };

static Status read_gpt2(Config *c, ModelShape *s) {
    double embedding = 0.1;
    bool tied = true;
    int gelu;
    s->layers = s->hidden = s->heads = s->positions = s->vocabulary = -1;
    s->hidden_dropout = s->attention_dropout = 0.1f;
    s->norm_epsilon = 1e-5f, s->init_std = 0.02f;
    TRY(read_sizes(c, ARCHITECTURE_GPT2, s));
    if (!s->ffn) s->ffn = 4 * s->hidden;
    TRY(read_real(c, "embd_pdrop", 0, MAX_DROPOUT, &embedding));
    TRY(read_flag(c, "tie_word_embeddings", &tied));
    TRY(read_word(c, "activation_function", gelus, &gelu));
    TRY(check_flag(c, "scale_attn_weights", true));
    TRY(check_flag(c, "scale_attn_by_inverse_layer_idx", false));
    TRY(check_flag(c, "add_cross_attention", false));
    TRY(check_zero(c, "n_special"));
    if (s->hidden % s->heads)
        return fail(ERR_DATA, "%s: n_embd %d is no multiple of n_head %d", c->what, s->hidden, s->heads);
    s->head_size = s->hidden / s->heads;
    s->groups = s->heads;
    s->activation = gelu < NUM_TANH_GELUS ? ACTIVATION_GELU : ACTIVATION_GELU_ERF;
    s->position = POSITION_LEARNED;
    s->untied = !tied;
    return OK;
}

static Status read_partial_rotation(Config *c) {
    double share = 1;
    TRY(read_real(c, "partial_rotary_factor", 0, 1, &share));
    if (share == 1) return OK;
    return fail(ERR_UNAVAILABLE, "%s: partial_rotary_factor is not supported", c->what);
}

static Status read_llama3(Config *c, Rope *rope) {
    double low = NAN, high = NAN;
    rope->original = -1;
    TRY(read_real(c, "low_freq_factor", 1e-6, MAX_SCALING, &low));
    TRY(read_real(c, "high_freq_factor", 1e-6, MAX_SCALING, &high));
    TRY(read_size(c, "original_max_position_embeddings", MAX_POSITIONS, &rope->original));
    rope->low = low;
    rope->high = high;
    if (high > low) return OK;
    return fail(ERR_DATA, "%s: high_freq_factor %g is not above low_freq_factor %g", c->what, high, low);
}

// Reads the object `name`: the scaling of the rotation, and since transformers 5 also its base.
static Status read_scaling(Config *outer, const char *name, ModelShape *s) {
    static const char *const types[] = {"default", "linear", "llama3", NULL};
    static const RopeScaling kinds[] = {ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3};
    const Json *object = member(outer, name);
    char what[4200];
    double factor = NAN;
    int older, type;
    if (!is_given(object)) return OK;
    if (object->type != JSON_OBJECT) return bad_member(outer, name, "an object");
    snprintf(what, sizeof what, "%s: %s", outer->what, name);
    Config c = {.object = object, .what = what};
    TRY(read_word(&c, "type", types, &older)); // its name before transformers 4.43
    TRY(read_word(&c, "rope_type", types, &type));
    s->rope = (Rope){.kind = kinds[is_given(json_member(object, "rope_type")) ? type : older]};
    TRY(read_real(&c, "rope_theta", 2, 1e9, &s->rotary_base));
    TRY(read_partial_rotation(&c));
    if (s->rope.kind != ROPE_PLAIN) {
        TRY(read_real(&c, "factor", 1, MAX_SCALING, &factor));
        s->rope.factor = factor;
    }
    if (s->rope.kind == ROPE_LLAMA3) TRY(read_llama3(&c, &s->rope));
    return check_all_read(&c);
}

static Status read_rotation(Config *c, ModelShape *s) {
    s->rotary_base = 10000;
    TRY(read_real(c, "rope_theta", 2, 1e9, &s->rotary_base));
    TRY(read_partial_rotation(c));
    TRY(read_scaling(c, "rope_scaling", s));
    return read_scaling(c, "rope_parameters", s);
}

// attention_bias stands for queries, keys, values and the projection, mlp_bias for the three weights of the MLP.
static Status read_biases(Config *c, ModelShape *s) {
    bool attention = false, mlp = false;
    TRY(read_flag(c, "attention_bias", &attention));
    TRY(read_flag(c, "mlp_bias", &mlp));
    s->no_linear_bias = !attention || !mlp;
    s->qkv_bias = s->proj_bias = attention && !mlp;
    s->mlp_bias = mlp && !attention;
    return OK;
}

// The size of a head follows from the others where they divide; else it has to be there.
static Status read_heads(Config *c, ModelShape *s) {
    if (!s->groups) s->groups = s->heads;
    if (!s->head_size) {
        s->head_size = s->hidden % s->heads ? -1 : s->hidden / s->heads;
        TRY(read_size(c, "head_dim", MAX_HEAD_SIZE, &s->head_size));
    }
    if (s->heads % s->groups == 0 && s->head_size % 2 == 0) return OK;
    return fail(ERR_DATA, "%s: %d heads of %d in %d groups: groups divide heads, and heads are even", c->what,
                s->heads, s->head_size, s->groups);
}

static Status read_llama(Config *c, ModelShape *s) {
    bool tied = false;
    int silu;
    s->layers = s->hidden = s->heads = s->ffn = s->positions = s->vocabulary = -1;
    s->norm_epsilon = 1e-6f, s->init_std = 0.02f;
    TRY(read_sizes(c, ARCHITECTURE_LLAMA, s));
    TRY(read_flag(c, "tie_word_embeddings", &tied));
    TRY(read_rotation(c, s));
    TRY(read_biases(c, s));
    TRY(read_word(c, "hidden_act", (const char *const[]){"silu", NULL}, &silu));
    TRY(read_heads(c, s));
    s->position = POSITION_ROTARY;
    s->rotary_columns = s->head_size;
    s->activation = ACTIVATION_SWIGLU;
    s->rms_norm = true;
    s->untied = !tied;
    return OK;
}

static Status read_dtype(Config *c, const char **dtype) {
    const struct {
        const char *theirs, *ours;
    } types[] = {{"float32", "f32"}, {"bfloat16", "bf16"}, {"float16", "f16"}};
    const Json *newer = member(c, "dtype"), *older = member(c, "torch_dtype");
    const Json *type = is_given(newer) ? newer : older;
    const char *word = json_string(type);
    *dtype = "f32";
    for (size_t i = 0; word && i < sizeof types / sizeof *types; i++)
        if (!strcmp(word, types[i].theirs)) {
            *dtype = types[i].ours;
            return OK;
        }
    if (!is_given(type)) return OK;
    return fail(ERR_UNAVAILABLE, "%s: tensors of type \"%.40s\" are not supported", c->what,
                word ? word : "?");
}

// AutoModel decides by model_type: a Mistral whose architecture is LlamaForCausalLM would get a window.
static Status check_model_type(Config *c, const char *wanted) {
    const Json *value = member(c, "model_type");
    const char *word = json_string(value);
    if (!is_given(value) || (word && !strcmp(word, wanted))) return OK;
    return fail(ERR_UNAVAILABLE, "%s: model_type \"%.40s\" with an architecture of model_type \"%s\"",
                c->what, word ? word : "?", wanted);
}

static Status read_architecture(Config *c, ModelShape *shape) {
    const Json *names = json_member(c->object, "architectures");
    bool one = names && names->type == JSON_ARRAY && names->count == 1;
    const char *name = one ? json_string(&names->items[0]) : NULL;
    if (name && !strcmp(name, architecture_name(ARCHITECTURE_GPT2))) {
        TRY(check_model_type(c, "gpt2"));
        return read_gpt2(c, shape);
    }
    if (name && !strcmp(name, architecture_name(ARCHITECTURE_LLAMA))) {
        TRY(check_model_type(c, "llama"));
        return read_llama(c, shape);
    }
    return fail(ERR_UNAVAILABLE, "%s: architecture %.80s; GPT2LMHeadModel and LlamaForCausalLM are read",
                c->what, name ? name : "unknown");
}

Status config_read(const Json *root, const char *what, ModelShape *shape, const char **dtype) {
    Config c = {.object = root, .what = what};
    *shape = (ModelShape){.seed = 1234};
    if (root->type != JSON_OBJECT) return fail(ERR_DATA, "%s: not a JSON object", what);
    TRY(check_absent(&c, "quantization_config"));
    TRY(read_dtype(&c, dtype));
    TRY(read_architecture(&c, shape));
    TRY(check_all_read(&c));
    shape->sequence = shape->positions;
    return OK;
}
