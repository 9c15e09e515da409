#include "checkpoint/hugging_face.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- members ------------------------------------------------------------------------------------------

typedef struct {
    const Json *root;
    const char *what;
} Config;

static bool is_given(const Json *value) { return value && value->type != JSON_NULL; }

static Status bad_member(const Config *c, const char *name, const char *wanted) {
    const Json *value = json_member(c->root, name);
    if (!is_given(value)) return fail(ERR_DATA, "%s: no member \"%s\" (%s)", c->what, name, wanted);
    return fail(ERR_DATA, "%s: byte %" PRId64 ": \"%s\" is not %s", c->what, value->offset, name, wanted);
}

// A member that is absent or null keeps what `out` holds, unless that is -1.
static Status read_size(const Config *c, const char *name, int most, int *out) {
    const Json *value = json_member(c->root, name);
    int64_t size = 0;
    char wanted[64];
    if (!is_given(value) && *out >= 0) return OK;
    snprintf(wanted, sizeof wanted, "a whole number from 1 to %d", most);
    if (!json_int(value, &size) || size < 1 || size > most) return bad_member(c, name, wanted);
    *out = (int)size;
    return OK;
}

static Status read_real(const Config *c, const char *name, double least, double most, double *out) {
    const Json *value = json_member(c->root, name);
    char wanted[64];
    if (!is_given(value)) return OK;
    snprintf(wanted, sizeof wanted, "a number from %g to %g", least, most);
    if (!json_double(value, out) || !(*out >= least && *out <= most)) return bad_member(c, name, wanted);
    return OK;
}

static Status read_flag(const Config *c, const char *name, bool *out) {
    const Json *value = json_member(c->root, name);
    if (!is_given(value) || json_flag(value, out)) return OK;
    return bad_member(c, name, "true or false");
}

// One of `allowed`; absent or null is the first.
static Status check_word(const Config *c, const char *name, const char *const *allowed, int count) {
    const Json *value = json_member(c->root, name);
    const char *word = json_string(value);
    if (!is_given(value)) return OK;
    if (!word) return bad_member(c, name, "a string");
    for (int i = 0; i < count; i++)
        if (!strcmp(word, allowed[i])) return OK;
    return fail(ERR_UNAVAILABLE, "%s: %s \"%.80s\" is not supported; %s is", c->what, name, word, allowed[0]);
}

static Status check_flag(const Config *c, const char *name, bool wanted) {
    bool value = wanted;
    TRY(read_flag(c, name, &value));
    if (value == wanted) return OK;
    return fail(ERR_UNAVAILABLE, "%s: %s is not supported", c->what, name);
}

static Status check_absent(const Config *c, const char *name) {
    if (!is_given(json_member(c->root, name))) return OK;
    return fail(ERR_UNAVAILABLE, "%s: %s is not supported", c->what, name);
}

// ---- reading ------------------------------------------------------------------------------------------

enum { MOST_LAYERS = 100000, MOST_HIDDEN = 1 << 20, MOST_FFN = 1 << 24, MOST_HEADS = 1 << 16 };
enum { MOST_HEAD_SIZE = 8192, MOST_POSITIONS = 1 << 24, MOST_VOCABULARY = 1 << 30 };

static Status read_gpt2(const Config *c, ModelShape *s) {
    double embedding = 0.1, residual = 0.1, attention = 0.1, epsilon = 1e-5, std = 0.02;
    bool tied = true;
    s->layers = s->hidden = s->heads = s->positions = s->vocabulary = -1;
    TRY(read_size(c, "n_layer", MOST_LAYERS, &s->layers));
    TRY(read_size(c, "n_embd", MOST_HIDDEN, &s->hidden));
    TRY(read_size(c, "n_head", MOST_HEADS, &s->heads));
    TRY(read_size(c, "n_positions", MOST_POSITIONS, &s->positions));
    TRY(read_size(c, "vocab_size", MOST_VOCABULARY, &s->vocabulary));
    s->ffn = 4 * s->hidden;
    TRY(read_size(c, "n_inner", MOST_FFN, &s->ffn));
    TRY(read_real(c, "embd_pdrop", 0, 0.99, &embedding));
    TRY(read_real(c, "resid_pdrop", 0, 0.99, &residual));
    TRY(read_real(c, "attn_pdrop", 0, 0.99, &attention));
    TRY(read_real(c, "layer_norm_epsilon", 1e-30, 1, &epsilon));
    TRY(read_real(c, "initializer_range", 0, 1e6, &std));
    TRY(read_flag(c, "tie_word_embeddings", &tied));
    TRY(check_word(c, "activation_function", (const char *const[]){"gelu_new", "gelu_pytorch_tanh"}, 2));
    TRY(check_flag(c, "scale_attn_weights", true));
    TRY(check_flag(c, "scale_attn_by_inverse_layer_idx", false));
    TRY(check_flag(c, "add_cross_attention", false));
    if (s->hidden % s->heads)
        return fail(ERR_DATA, "%s: n_embd %d is no multiple of n_head %d", c->what, s->hidden, s->heads);
    s->head_size = s->hidden / s->heads;
    s->groups = s->heads;
    s->position = POSITION_LEARNED;
    s->untied = !tied;
    s->hidden_dropout = (float)residual;
    s->attention_dropout = (float)attention;
    s->norm_epsilon = (float)epsilon;
    s->init_std = (float)std;
    return OK;
}

// The base of the rotation: a member of its own, or since transformers 5 one of rope_parameters.
static Status read_rotation(const Config *c, double *base) {
    *base = 10000;
    TRY(read_real(c, "rope_theta", 2, 1e9, base));
    TRY(check_absent(c, "rope_scaling"));
    const Json *parameters = json_member(c->root, "rope_parameters");
    if (!is_given(parameters)) return OK;
    Config inner = {parameters, c->what};
    TRY(read_real(&inner, "rope_theta", 2, 1e9, base));
    double share = 1;
    TRY(read_real(&inner, "partial_rotary_factor", 0, 1, &share));
    if (share < 1) return fail(ERR_UNAVAILABLE, "%s: partial_rotary_factor is not supported", c->what);
    return check_word(&inner, "rope_type", (const char *const[]){"default"}, 1);
}

// Biases: of all linear layers, or of queries, keys and values alone. That the projection's are zero then is
// seen in the tensors.
static Status read_biases(const Config *c, ModelShape *s) {
    bool attention = false, mlp = false;
    TRY(read_flag(c, "attention_bias", &attention));
    TRY(read_flag(c, "mlp_bias", &mlp));
    if (mlp && !attention)
        return fail(ERR_UNAVAILABLE, "%s: mlp_bias without attention_bias is not supported", c->what);
    s->no_linear_bias = !mlp;
    s->qkv_bias = attention && !mlp;
    return OK;
}

static Status read_llama(const Config *c, ModelShape *s) {
    double attention = 0, epsilon = 1e-6, std = 0.02;
    bool tied = false;
    s->layers = s->hidden = s->heads = s->ffn = s->positions = s->vocabulary = -1;
    TRY(read_size(c, "num_hidden_layers", MOST_LAYERS, &s->layers));
    TRY(read_size(c, "hidden_size", MOST_HIDDEN, &s->hidden));
    TRY(read_size(c, "num_attention_heads", MOST_HEADS, &s->heads));
    TRY(read_size(c, "intermediate_size", MOST_FFN, &s->ffn));
    TRY(read_size(c, "max_position_embeddings", MOST_POSITIONS, &s->positions));
    TRY(read_size(c, "vocab_size", MOST_VOCABULARY, &s->vocabulary));
    s->groups = s->heads;
    TRY(read_size(c, "num_key_value_heads", MOST_HEADS, &s->groups));
    s->head_size = s->hidden % s->heads ? -1 : s->hidden / s->heads;
    TRY(read_size(c, "head_dim", MOST_HEAD_SIZE, &s->head_size));
    TRY(read_real(c, "attention_dropout", 0, 0.99, &attention));
    TRY(read_real(c, "rms_norm_eps", 1e-30, 1, &epsilon));
    TRY(read_real(c, "initializer_range", 0, 1e6, &std));
    TRY(read_flag(c, "tie_word_embeddings", &tied));
    TRY(read_rotation(c, &s->rotary_base));
    TRY(read_biases(c, s));
    TRY(check_word(c, "hidden_act", (const char *const[]){"silu"}, 1));
    if (s->heads % s->groups || s->head_size % 2)
        return fail(ERR_DATA, "%s: %d heads of %d in %d groups: groups divide heads, and heads are even",
                    c->what, s->heads, s->head_size, s->groups);
    s->position = POSITION_ROTARY;
    s->rotary_columns = s->head_size;
    s->activation = ACTIVATION_SWIGLU;
    s->rms_norm = true;
    s->untied = !tied;
    s->attention_dropout = (float)attention;
    s->norm_epsilon = (float)epsilon;
    s->init_std = (float)std;
    return OK;
}

static Status read_dtype(const Config *c, const char **dtype) {
    const struct {
        const char *theirs, *ours;
    } types[] = {{"float32", "f32"}, {"bfloat16", "bf16"}, {"float16", "f16"}};
    const Json *member = json_member(c->root, "dtype");
    if (!is_given(member)) member = json_member(c->root, "torch_dtype");
    const char *word = json_string(member);
    *dtype = "f32";
    for (size_t i = 0; word && i < sizeof types / sizeof *types; i++)
        if (!strcmp(word, types[i].theirs)) {
            *dtype = types[i].ours;
            return OK;
        }
    if (!is_given(member)) return OK;
    return fail(ERR_UNAVAILABLE, "%s: tensors of type \"%.40s\" are not supported", c->what,
                word ? word : "?");
}

Status config_read(const Json *root, const char *what, ModelShape *shape, const char **dtype) {
    Config c = {root, what};
    *shape = (ModelShape){.seed = 1234};
    if (root->type != JSON_OBJECT) return fail(ERR_DATA, "%s: not a JSON object", what);
    TRY(check_absent(&c, "quantization_config"));
    TRY(read_dtype(&c, dtype));
    const Json *names = json_member(root, "architectures");
    bool one = names && names->type == JSON_ARRAY && names->count == 1;
    const char *name = one ? json_string(&names->items[0]) : NULL;
    Status status;
    if (name && !strcmp(name, architecture_name(ARCHITECTURE_GPT2)))
        status = read_gpt2(&c, shape);
    else if (name && !strcmp(name, architecture_name(ARCHITECTURE_LLAMA)))
        status = read_llama(&c, shape);
    else
        return fail(ERR_UNAVAILABLE, "%s: architecture %.80s; GPT2LMHeadModel and LlamaForCausalLM are read",
                    what, name ? name : "unknown");
    shape->sequence = shape->positions;
    return status;
}

// ---- writing ------------------------------------------------------------------------------------------

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
    text_add(out, "  \"activation_function\": \"gelu_new\",\n");
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

static void write_llama(const ModelShape *s, Text *out) {
    text_add(out, "  \"model_type\": \"llama\",\n");
    text_add(out, "  \"hidden_act\": \"silu\",\n");
    write_flag(out, "attention_bias", !s->no_linear_bias || s->qkv_bias);
    write_flag(out, "mlp_bias", !s->no_linear_bias);
    write_float(out, "attention_dropout", s->attention_dropout);
    write_int(out, "head_dim", s->head_size);
    write_int(out, "hidden_size", s->hidden);
    write_int(out, "intermediate_size", s->ffn);
    write_int(out, "max_position_embeddings", s->positions > s->sequence ? s->positions : s->sequence);
    write_int(out, "num_attention_heads", s->heads);
    write_int(out, "num_hidden_layers", s->layers);
    write_int(out, "num_key_value_heads", model_groups(s));
    write_float(out, "rms_norm_eps", s->norm_epsilon);
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
