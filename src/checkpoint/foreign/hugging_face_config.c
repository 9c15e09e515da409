// Reads the config.json of a Hugging Face model: the shape of a model of a known family. Members that would change what
// the model computes are refused by name.
#include "checkpoint/fields.h"
#include "checkpoint/foreign/config_members.h"
#include "checkpoint/manifest.h"
#include <math.h>
#include <string.h>

// ---- sizes ------------------------------------------------------------------------------------------

enum { MAX_HEAD_SIZE = 1 << 13 };

// Whether a configuration of this family has a member for a size that not all have.
static bool says_size(const Family *f, const char *size) {
    if (!strcmp(size, "groups")) return f->dialect == DIALECT_GPT2 || f->says & SAYS_GROUPS;
    if (!strcmp(size, "kv_rank") || !strcmp(size, "q_rank") || !strcmp(size, "value_size"))
        return f->says & SAYS_LATENT;
    if (!strcmp(size, "head_size")) return f->dialect == DIALECT_GPT2 || f->says & SAYS_HEAD_SIZE;
    return true;
}

// Reads the members that sizes.def names. A size that holds -1 has to be there; others keep what they hold.
static Status read_sizes(Config *c, const Family *f, ModelShape *s) {
    for (int i = 0; i < num_model_sizes; i++) {
        const ManifestField *field = &model_sizes[i].field;
        const char *name = size_name(&model_sizes[i], FORMAT_HUGGING_FACE, f);
        void *at = (char *)s + field->offset;
        if (!name || !*name || !says_size(f, field->name)) continue;
        if (field->type == INT_FIELD) TRY(config_size(c, name, (int)field->most, at));
        if (field->type == BOOL_FIELD) TRY(config_flag(c, name, at));
        if (field->type == DOUBLE_FIELD) TRY(config_real(c, name, field->least, field->most, at));
        if (field->type != FLOAT_FIELD) continue;
        double value = (double)*(float *)at;
        TRY(config_real(c, name, field->least, field->most, &value));
        *(float *)at = (float)value;
    }
    return OK;
}

// transformers' names for the tanh form of GELU, then for the exact form.
static const char *const gelus[] = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast",
                                    "gelu",     "gelu_python",       NULL};
enum { NUM_TANH_GELUS = 3 };

static Status read_gpt2(Config *c, const Family *f, ModelShape *s) {
    double embedding = 0.1;
    bool tied = true;
    int gelu;
    s->layers = s->hidden = s->heads = s->positions = s->vocabulary = -1;
    s->hidden_dropout = s->attention_dropout = 0.1f;
    s->norm_epsilon = 1e-5f, s->init_std = 0.02f;
    TRY(read_sizes(c, f, s));
    if (!s->ffn) s->ffn = 4 * s->hidden;
    TRY(config_real(c, "embd_pdrop", 0, MAX_DROPOUT, &embedding));
    TRY(config_flag(c, "tie_word_embeddings", &tied));
    TRY(config_word(c, "activation_function", gelus, &gelu));
    TRY(config_must_be(c, "scale_attn_weights", true));
    TRY(config_must_be(c, "scale_attn_by_inverse_layer_idx", false));
    TRY(config_must_be(c, "add_cross_attention", false));
    TRY(config_must_be_zero(c, "n_special"));
    if (s->hidden % s->heads)
        return fail(ERR_DATA, "%s: n_embd %d is no multiple of n_head %d", c->what, s->hidden, s->heads);
    s->head_size = s->hidden / s->heads;
    s->groups = s->heads;
    s->activation = gelu < NUM_TANH_GELUS ? ACTIVATION_GELU : ACTIVATION_GELU_ERF;
    s->position = POSITION_LEARNED;
    s->untied = !tied;
    return OK;
}

// ---- what families say ------------------------------------------------------------------------------

static void store_real(const ManifestField *field, ModelShape *s, double value) {
    void *at = (char *)s + field->offset;
    if (field->type == FLOAT_FIELD)
        *(float *)at = (float)value;
    else
        *(double *)at = value;
}

static Status read_cap(Config *c, const FamilyMember *m, const ManifestField *field, ModelShape *s) {
    double value = m->missing;
    const Json *given = json_member(c->object, m->name);
    TRY(config_real(c, m->name, field->least, field->most, &value));
    store_real(field, s, given && given->type == JSON_NULL ? 0 : value);
    return OK;
}

// One over the square root, unless that is what there is without a factor.
static Status read_inverse_square(Config *c, const FamilyMember *m, const ManifestField *field,
                                  ModelShape *s) {
    double value = m->missing;
    TRY(config_real(c, m->name, 1e-9, 1e12, &value));
    store_real(field, s, value == s->head_size ? 0 : 1 / sqrt(value));
    return OK;
}

// A member from which ours follows: without one, or with null, nothing is multiplied.
static Status read_derived(Config *c, const FamilyMember *m, const ManifestField *field, ModelShape *s) {
    double value = m->missing;
    const Json *given = json_member(c->object, m->name);
    TRY(config_real(c, m->name, 1e-9, 1e12, &value));
    value = m->meaning == TIMES_DEPTH ? value / sqrt(s->layers) : s->hidden / value;
    store_real(field, s, value == 1 || (given && given->type == JSON_NULL) ? 0 : value);
    return OK;
}

static Status read_flag(Config *c, const FamilyMember *m, const ManifestField *field, ModelShape *s) {
    bool flag = m->missing != 0;
    TRY(config_flag(c, m->name, &flag));
    *(bool *)((char *)s + field->offset) = flag != (m->meaning == NEGATED);
    return OK;
}

static Status read_whole(Config *c, const FamilyMember *m, const ManifestField *field, ModelShape *s) {
    int *value = (void *)((char *)s + field->offset);
    if (m->meaning != OTHER_NAME) *value = (int)m->missing;
    return config_size(c, m->name, (int)field->most, value);
}

static Status read_other(Config *c, const FamilyMember *m, ModelShape *s) {
    const ModelSize *size = size_named(m->size);
    const ManifestField *field = &size->field;
    double value = m->missing;
    if (m->meaning == SAME_CAP) return read_cap(c, m, field, s);
    if (m->meaning == INVERSE_SQUARE) return read_inverse_square(c, m, field, s);
    if (m->meaning == TIMES_DEPTH || m->meaning == OF_WIDTH) return read_derived(c, m, field, s);
    if (field->type == BOOL_FIELD) return read_flag(c, m, field, s);
    if (field->type == INT_FIELD) return read_whole(c, m, field, s);
    TRY(config_real(c, m->name, field->least, field->most, &value));
    // A factor of zero would be none at all in a shape.
    if (value == 0 && size->meaning != MEANS_TRAINING) return config_bad(c, m->name, "a number above 0");
    store_real(field, s, m->meaning == SAME_FACTOR && value == 1 ? 0 : value);
    return OK;
}

static Status read_biases(Config *c, const Family *f, ModelShape *s) {
    bool qkv = model_has_qkv_bias(&f->is), proj = model_has_proj_bias(&f->is),
         mlp = model_has_mlp_bias(&f->is);
    if (f->says & SAYS_ATTENTION_BIAS) {
        TRY(config_flag(c, "attention_bias", &qkv));
        proj = qkv;
    }
    if (f->is.qkv_bias) TRY(config_must_be(c, "qkv_bias", true));
    if (f->says & SAYS_QKV_BIAS) TRY(config_flag(c, "use_qkv_bias", &qkv));
    if (f->says & SAYS_MLP_BIAS) TRY(config_flag(c, "mlp_bias", &mlp));
    bool all = qkv && proj && mlp;
    s->no_linear_bias = !all;
    s->qkv_bias = qkv && !all, s->proj_bias = proj && !all, s->mlp_bias = mlp && !all;
    return OK;
}

// The size of a head follows from the others where they divide; else it has to be there.
static Status read_heads(Config *c, ModelShape *s) {
    if (!s->groups) s->groups = s->heads;
    if (!s->head_size) {
        s->head_size = s->hidden % s->heads ? -1 : s->hidden / s->heads;
        TRY(config_size(c, "head_dim", MAX_HEAD_SIZE, &s->head_size));
    }
    if (s->heads % s->groups == 0 && s->head_size % 2 == 0) return OK;
    return fail(ERR_DATA, "%s: %d heads of %d in %d groups: groups divide heads, and heads are even", c->what,
                s->heads, s->head_size, s->groups);
}

// The sizes of heads that are made of latents. transformers says two of them again, as those of a head.
static Status read_latents(Config *c, const Family *f, ModelShape *s) {
    const Json *rank = json_member(c->object, "q_lora_rank");
    int rotated = f->is.rotary_columns, plain = f->is.head_size - rotated;
    if (!(f->says & SAYS_LATENT)) return OK;
    config_member(c, "head_dim"), config_member(c, "qk_head_dim");
    TRY(config_size(c, "qk_nope_head_dim", MAX_HEAD_SIZE / 2, &plain));
    TRY(config_size(c, "qk_rope_head_dim", MAX_HEAD_SIZE / 2, &rotated));
    TRY(config_must_be(c, "attention_bias", false));
    TRY(config_must_be(c, "mlp_bias", false));
    if (f->says & PAIRS_IN_FILES) TRY(config_must_be(c, "rope_interleave", true));
    if (rank && rank->type == JSON_NULL) s->q_rank = 0;
    if (!s->value_size) s->value_size = s->hidden / s->heads;
    s->head_size = plain + rotated, s->rotary_columns = rotated;
    s->latent_epsilon = s->norm_epsilon == LATENT_EPSILON ? 0 : LATENT_EPSILON;
    if (rotated % 2 == 0 && s->value_size && (!s->groups || s->groups == s->heads)) return OK;
    return fail(
        ERR_DATA,
        "%s: %d heads in %d groups, %d rotated columns, %d of values: with latents there is a group for "
        "each head, and rotated columns are even",
        c->what, s->heads, s->groups, rotated, s->value_size);
}

// GPT-OSS computes its gate as g * sigmoid(1.702 g).
#define QUICK_SLOPE 1.702

// The activation of the gate, or of an MLP without one.
static Status read_activation(Config *c, const Family *f, ModelShape *s) {
    static const char *const silu[] = {"silu", NULL}, *const gelu[] = {"gelu_pytorch_tanh", "gelu_new", NULL},
                             *const relu[] = {"relu2", NULL};
    int word;
    double slope = QUICK_SLOPE;
    if (f->is.activation == ACTIVATION_QUICK_GEGLU) {
        TRY(config_real(c, "swiglu_alpha", 0, 1e3, &slope));
        if (slope != QUICK_SLOPE)
            return fail(ERR_UNAVAILABLE, "%s: a swiglu_alpha of %g is not supported: it is %g in all models",
                        c->what, slope, QUICK_SLOPE);
        return config_word(c, f->activation, silu, &word);
    }
    if (f->is.activation == ACTIVATION_SWIGLU) return config_word(c, f->activation, silu, &word);
    // Gemma's older files have "hidden_act" beside it, which nobody reads.
    if (!strcmp(f->activation, "hidden_activation")) config_member(c, "hidden_act");
    if (f->is.activation == ACTIVATION_GEGLU) return config_word(c, f->activation, gelu, &word);
    if (f->is.activation == ACTIVATION_RELU_SQUARED) return config_word(c, f->activation, relu, &word);
    const Json *value = json_member(c->object, f->activation);
    TRY(config_word(c, f->activation, gelus, &word));
    s->activation = config_is_given(value) && word < NUM_TANH_GELUS ? ACTIVATION_GELU : ACTIVATION_GELU_ERF;
    return OK;
}

// Dropout of the embedding and of what is added to the residual stream.
static Status read_dropouts(Config *c, const Family *f, ModelShape *s) {
    double residual = 0, embedding = 0;
    if (!(f->says & SAYS_DROPOUTS)) return OK;
    TRY(config_real(c, "resid_pdrop", 0, MAX_DROPOUT, &residual));
    TRY(config_real(c, "embd_pdrop", 0, MAX_DROPOUT, &embedding));
    s->hidden_dropout = (float)residual;
    return OK;
}

static Status read_llama(Config *c, const Family *f, ModelShape *s) {
    uint64_t seed = s->seed;
    bool tied = !f->is.untied, dense;
    *s = f->is;
    s->seed = seed;
    s->layers = s->hidden = s->heads = s->ffn = s->positions = s->vocabulary = -1;
    s->init_std = 0.02f;
    TRY(read_sizes(c, f, s));
    TRY(config_flag(c, "tie_word_embeddings", &tied));
    TRY(read_latents(c, f, s));
    TRY(read_heads(c, s));
    TRY(config_rotation(c, f, s));
    TRY(read_biases(c, f, s));
    TRY(read_activation(c, f, s));
    TRY(config_windows(c, f, s));
    TRY(config_no_rope(c, f, s));
    TRY(read_dropouts(c, f, s));
    TRY(config_dense(c, f, s, &dense));
    for (const FamilyMember *m = f->members; m < f->members + MAX_FAMILY_MEMBERS && m->name; m++)
        if (!dense || !size_is_of_experts(m->size)) TRY(read_other(c, m, s));
    TRY(config_experts(c, f, s));
    if (s->residual_multiplier > 0 && (model_has_proj_bias(s) || model_has_mlp_bias(s)))
        return fail(ERR_UNAVAILABLE,
                    "%s: this model cannot be read: residual_multiplier would multiply biases, too, and "
                    "attention_bias or mlp_bias says that it has some",
                    c->what);
    if (f->says & HAS_ROOT_EMBEDDING) s->embedding_multiplier = sqrtf((float)s->hidden);
    s->untied = !tied;
    return OK;
}

// ---- the whole file ---------------------------------------------------------------------------------

// Leaves `dtype` as it is where nothing is said.
static Status read_dtype(Config *c, const char **dtype) {
    const struct {
        const char *theirs, *ours;
    } types[] = {{"float32", "f32"}, {"bfloat16", "bf16"}, {"float16", "f16"}};
    const Json *newer = config_member(c, "dtype"), *older = config_member(c, "torch_dtype");
    const Json *type = config_is_given(newer) ? newer : older;
    const char *word = json_string(type);
    for (size_t i = 0; word && i < sizeof types / sizeof *types; i++)
        if (!strcmp(word, types[i].theirs)) {
            *dtype = types[i].ours;
            return OK;
        }
    if (!config_is_given(type)) return OK;
    return fail(ERR_UNAVAILABLE, "%s: tensors of type \"%.40s\" are not supported", c->what,
                word ? word : "?");
}

// Which tensors are in MXFP4 the files tell themselves. They hold bf16 numbers exactly.
static Status read_quantization(Config *c, const char **dtype) {
    const Json *how = config_member(c, "quantization_config");
    const char *method = json_string(json_member(how, "quant_method"));
    if (!config_is_given(how)) return OK;
    if (method && !strcmp(method, "mxfp4")) return *dtype = "bf16", OK;
    return fail(
        ERR_UNAVAILABLE,
        "%s: quantization_config: weights quantised by %.40s are not read, by mxfp4 they are: take the "
        "model in 16 bits, or a GGUF file of it",
        c->what, method ? method : "an unknown method");
}

// AutoModel decides by model_type: a Mistral whose architecture is LlamaForCausalLM would get a window.
static Status check_model_type(Config *c, const char *wanted) {
    const Json *value = config_member(c, "model_type");
    const char *word = json_string(value);
    if (!config_is_given(value) || (word && !strcmp(word, wanted))) return OK;
    return fail(ERR_UNAVAILABLE, "%s: model_type \"%.40s\" with an architecture of model_type \"%s\"",
                c->what, word ? word : "?", wanted);
}

static Status read_architecture(Config *c, ModelShape *shape, const Family **family) {
    const Json *names = json_member(c->object, "architectures");
    bool one = names && names->type == JSON_ARRAY && names->count == 1;
    const char *name = one ? json_string(&names->items[0]) : NULL;
    const Family *f = *family = name ? family_named(name) : NULL;
    if (f) {
        TRY(check_model_type(c, f->model_type));
        TRY((f->dialect == DIALECT_GPT2 ? read_gpt2 : read_llama)(c, f, shape));
        shape->family = f->family;
        return OK;
    }
    Text known = {0};
    for (int i = 0; i < num_families && family_named(families[i].architecture) == &families[i]; i++)
        text_add(&known, "%s%s", i ? ", " : "", families[i].architecture);
    Status status = fail(ERR_UNAVAILABLE, "%s: architecture %.80s is not read; known: %s", c->what,
                         name ? name : "unknown", text_string(&known));
    text_free(&known);
    return status;
}

Status config_read(const Json *root, const char *what, CheckpointInfo *info, const Family **family) {
    Config c = {.object = root, .what = what};
    ModelShape *shape = &info->shape;
    *shape = (ModelShape){.seed = 1234};
    if (root->type != JSON_OBJECT) return fail(ERR_DATA, "%s: not a JSON object", what);
    info->dtype = "f32";
    TRY(read_quantization(&c, &info->dtype));
    TRY(read_dtype(&c, &info->dtype));
    TRY(tokens_read(root, what, &info->tokens));
    TRY(read_architecture(&c, shape, family));
    TRY(config_check_all_read(&c));
    shape->sequence = shape->positions;
    return OK;
}
