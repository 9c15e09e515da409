// Reads from the metadata of a GGUF file which model it is. Keys that would change what the model computes are refused
// by name.
#include "checkpoint/fields.h"
#include "checkpoint/foreign/gguf_model.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- keys of the architecture -----------------------------------------------------------------------------

typedef struct {
    const Gguf *file;
    const Family *family;
    bool *read; // of file->pairs: those that were asked for
} Keys;

// The pair "llama.NAME", or NULL.
static const GgufPair *pair_of(const Keys *k, const char *name) {
    char key[96];
    snprintf(key, sizeof key, "%s.%s", k->family->gguf, name);
    const GgufPair *pair = gguf_find(k->file, key);
    if (pair) k->read[pair - k->file->pairs] = true;
    return pair;
}

static bool number_of(const GgufPair *pair, double *value) {
    int64_t whole;
    if (gguf_real(pair, value)) return true;
    if (gguf_int(pair, &whole)) return *value = (double)whole, true;
    if (pair->is_array || pair->type != GGUF_BOOL) return false;
    return *value = *pair->data != 0, true;
}

// NaN in `value` says that the key has to be there; else an absent one leaves it.
static Status read_number(const Keys *k, const char *name, double least, double most, double *value) {
    const GgufPair *pair = pair_of(k, name);
    if (!pair && isnan(*value))
        return fail(ERR_DATA, "%s: no key %s.%s", k->file->path, k->family->gguf, name);
    if (!pair) return OK;
    if (pair->is_array)
        return fail(ERR_UNAVAILABLE, "%s: %s.%s is a list: layers of different sizes are not supported",
                    k->file->path, k->family->gguf, name);
    if (number_of(pair, value) && *value >= least && *value <= most) return OK;
    return fail(ERR_DATA, "%s: %s.%s is no number from %g to %g", k->file->path, k->family->gguf, name, least,
                most);
}

static Status read_whole(const Keys *k, const char *name, double least, double most, int *value) {
    double real = *value < 0 ? (double)NAN : (double)*value;
    TRY(read_number(k, name, least, most, &real));
    if (real != floor(real))
        return fail(ERR_DATA, "%s: %s.%s is no whole number", k->file->path, k->family->gguf, name);
    *value = (int)real;
    return OK;
}

static double real_at(const ManifestField *field, const ModelShape *s) {
    const void *at = (const char *)s + field->offset;
    return field->type == FLOAT_FIELD ? (double)*(const float *)at : *(const double *)at;
}

static void store(const ManifestField *field, ModelShape *s, double value) {
    void *at = (char *)s + field->offset;
    if (field->type == BOOL_FIELD)
        *(bool *)at = value != 0;
    else if (field->type == INT_FIELD)
        *(int *)at = (int)value;
    else if (field->type == FLOAT_FIELD)
        *(float *)at = (float)value;
    else
        *(double *)at = value;
}

// The sizes that sizes.def names. One that holds -1 has to be there; others keep what they hold.
static Status read_sizes(const Keys *k, ModelShape *s) {
    for (int i = 0; i < num_model_sizes; i++) {
        const ManifestField *field = &model_sizes[i].field;
        const char *name = size_name(&model_sizes[i], FORMAT_GGUF, k->family);
        if (!name || !*name) continue;
        if (field->type == INT_FIELD) {
            TRY(read_whole(k, name, field->least, field->most, (int *)(void *)((char *)s + field->offset)));
            continue;
        }
        double value = real_at(field, s);
        TRY(read_number(k, name, field->least, field->most, &value));
        store(field, s, value);
    }
    return OK;
}

// ---- what is in the tensors ------------------------------------------------------------------------------

static bool has(const Keys *k, const char *tensor) { return gguf_tensor(k->file, tensor); }

static Status read_vocabulary(const Keys *k, ModelShape *s) {
    const GgufTensor *table = gguf_tensor(k->file, "token_embd.weight");
    if (!table || table->ndim != 2 || table->dims[1] > 1 << 30)
        return fail(ERR_DATA, "%s: no matrix token_embd.weight: this is no language model", k->file->path);
    s->vocabulary = (int)table->dims[1];
    return OK;
}

static void read_biases(const Keys *k, ModelShape *s) {
    bool qkv = has(k, "blk.0.attn_q.bias") || has(k, "blk.0.attn_qkv.bias");
    bool proj = has(k, "blk.0.attn_output.bias"),
         mlp = has(k, "blk.0.ffn_up.bias") || has(k, "blk.0.ffn_up_exps.bias");
    bool all = qkv && proj && mlp;
    s->no_linear_bias = !all;
    s->qkv_bias = qkv && !all, s->proj_bias = proj && !all, s->mlp_bias = mlp && !all;
}

// Some families have a copy of the table as their output.
static bool is_untied(const Keys *k) {
    const GgufTensor *table = gguf_tensor(k->file, "token_embd.weight"),
                     *output = gguf_tensor(k->file, "output.weight");
    if (!output || !(k->family->says & GGUF_COPIES_TABLE)) return output;
    return output->type != table->type || output->bytes != table->bytes ||
           memcmp(k->file->map + output->offset, k->file->map + table->offset, (size_t)table->bytes) != 0;
}

// ---- rotary positions ------------------------------------------------------------------------------------

static bool divides_so(const float *divisors, const ModelShape *s) {
    ModelShape plain = *s;
    plain.rope = (Rope){0};
    for (int i = 0; i < model_rotary_columns(s) / 2; i++) {
        double wanted = model_rotary_frequency(&plain, i, false) / model_rotary_frequency(s, i, false);
        if (!(fabs(wanted - (double)divisors[i]) <= 1e-5 * wanted)) return false;
    }
    return true;
}

// Llama 3's scaling is in the file as the divisors of the frequencies: finds the one that has them.
static Status read_divisors(const Keys *k, ModelShape *s) {
    enum { MOST = 1 << 12, LONGEST = 1 << 24 };
    float divisors[MOST];
    const GgufTensor *t = gguf_tensor(k->file, "rope_freqs.weight");
    int count = model_rotary_columns(s) / 2;
    if (!t) return OK;
    if (t->ndim != 1 || t->dims[0] != count || count > MOST)
        return fail(ERR_DATA, "%s: tensor rope_freqs.weight is not [%d]", k->file->path, count);
    gguf_read(k->file, t, 0, count, divisors);
    if (divides_so(divisors, s)) return OK;
    for (int original = 8; original <= LONGEST; original *= 2) {
        s->rope = (Rope){.kind = ROPE_LLAMA3,
                         .factor = (double)divisors[count - 1],
                         .low = 1,
                         .high = 4,
                         .original = original};
        if (divides_so(divisors, s)) return OK;
    }
    return fail(
        ERR_UNAVAILABLE,
        "%s: tensor rope_freqs.weight is not the scaling of a Llama 3 with factors 1 and 4: import the "
        "Hugging Face edition of the model",
        k->file->path);
}

static Status read_factors(const Keys *k, const char *name, int pairs, RopeFactors *out) {
    float factors[MAX_ROPE_FACTORS];
    const GgufTensor *t = gguf_tensor(k->file, name);
    bool right = t && t->ndim == 1 && t->dims[0] == pairs && pairs <= MAX_ROPE_FACTORS;
    if (right) gguf_read(k->file, t, 0, pairs, factors);
    out->count = pairs;
    for (int i = 0; right && i < pairs; i++) {
        out->at[i] = (double)factors[i];
        right = out->at[i] > 0 && out->at[i] <= 65536;
    }
    return right ? OK : fail(ERR_DATA, "%s: tensor %s is not %d numbers above 0", k->file->path, name, pairs);
}

// Reads LongRoPE: two tensors of divisors, and a key with the factor of sines and cosines. The shape keeps that factor
// only where it is not sqrt(1 + ln factor / ln original).
static Status read_longrope(const Keys *k, int original, ModelShape *s) {
    Rope rope = {.kind = ROPE_LONG, .original = original, .factor = fmax(1, (double)s->positions / original)};
    double attention = NAN;
    int pairs = model_rotary_columns(s) / 2;
    if (original < 2)
        return fail(ERR_DATA, "%s: LongRoPE with an original length of %d", k->file->path, original);
    TRY(read_number(k, "rope.scaling.attn_factor", 1e-6, 1 << 16, &attention));
    TRY(read_factors(k, "rope_factors_short.weight", pairs, &rope.shorter));
    TRY(read_factors(k, "rope_factors_long.weight", pairs, &rope.longer));
    s->rope = rope;
    if ((float)attention != (float)model_rotary_factor(s, false)) s->rope.attention = attention;
    return OK;
}

static Status read_scaling(const Keys *k, ModelShape *s) {
    enum { MOST = 1 << 16, POSITIONS = 1 << 24 };
    const GgufPair *type = pair_of(k, "rope.scaling.type");
    Rope rope = {.factor = NAN, .high = 32, .low = 1, .original = s->positions};
    rope.unrounded = k->family->is.rope.unrounded;
    pair_of(k, "rope.scaling.finetuned"); // says nothing about the function
    TRY(read_whole(k, "rope.scaling.original_context_length", 1, POSITIONS, &rope.original));
    if (k->family->family == FAMILY_PHI3 && has(k, "rope_factors_long.weight"))
        return read_longrope(k, rope.original, s);
    if (!type || gguf_string_is(type, "none")) return OK;
    rope.kind = gguf_string_is(type, "linear") ? ROPE_LINEAR : ROPE_YARN;
    if (rope.kind == ROPE_YARN && !gguf_string_is(type, "yarn"))
        return fail(ERR_UNAVAILABLE, "%s: %s.rope.scaling.type is neither none, linear nor yarn",
                    k->file->path, k->family->gguf);
    TRY(read_number(k, "rope.scaling.factor", 1, MOST, &rope.factor));
    if (rope.kind == ROPE_LINEAR) {
        s->rope = (Rope){.kind = ROPE_LINEAR, .factor = rope.factor};
        return OK;
    }
    TRY(read_number(k, "rope.scaling.yarn_beta_fast", 1e-6, MOST, &rope.high));
    TRY(read_number(k, "rope.scaling.yarn_beta_slow", 1e-6, MOST, &rope.low));
    if (k->family->says & SAYS_LATENT) {
        rope.attention = 1; // llama.cpp's, whatever the factor of scores
        TRY(read_number(k, "rope.scaling.yarn_log_multiplier", 0, MOST, &rope.mscale_all));
        rope.mscale_all = (double)(float)(rope.mscale_all / 0.1);
        s->rope = rope;
        return OK;
    }
    // llama.cpp multiplies this factor by YaRN's own.
    TRY(read_number(k, "rope.scaling.attn_factor", 0, MOST, &rope.attention));
    rope.attention *= 1 + 0.1 * log(rope.factor);
    s->rope = rope;
    if (rope.high > rope.low) return OK;
    return fail(ERR_DATA, "%s: yarn_beta_fast %g is not above yarn_beta_slow %g", k->file->path, rope.high,
                rope.low);
}

static Status read_rotation(const Keys *k, ModelShape *s) {
    if (s->position != POSITION_ROTARY) return OK;
    s->rotary_base = 10000; // llama.cpp's
    TRY(read_number(k, "rope.freq_base", 2, 1e12, &s->rotary_base));
    if (k->family->says & SAYS_LOCAL_BASE)
        TRY(read_number(k, "rope.freq_base_swa", 2, 1e12, &s->rotary_base_local));
    if (s->rotary_columns % 2 || s->rotary_columns > s->head_size || s->head_size % 2)
        return fail(ERR_DATA, "%s: %d of the %d columns of a head rotate: both are even", k->file->path,
                    s->rotary_columns, s->head_size);
    TRY(read_scaling(k, s));
    return read_divisors(k, s);
}

// ---- attention and factors ---------------------------------------------------------------------------------

static Status read_heads(const Keys *k, ModelShape *s) {
    int values = 0;
    if (!s->groups) s->groups = s->heads;
    if (!s->head_size) s->head_size = s->hidden / s->heads;
    if (!s->rotary_columns && s->position == POSITION_ROTARY) s->rotary_columns = s->head_size;
    TRY(read_whole(k, "attention.value_length", 0, 1 << 13, &values));
    bool latent = k->family->says & SAYS_LATENT;
    if (latent) s->value_size = values;
    if (s->head_size && s->heads % s->groups == 0 && (!values || values == s->head_size || latent)) return OK;
    return fail(ERR_DATA, "%s: %d heads of %d in %d groups, whose values have %d: groups divide heads",
                k->file->path, s->heads, s->head_size, s->groups, values);
}

// Experts are not supported: all layers have to come before those that have them.
static Status read_latents(const Keys *k, const ModelShape *s) {
    static const char *const of_experts[] = {
        "expert_feed_forward_length", "expert_shared_count", "expert_count",      "expert_used_count",
        "expert_weights_scale",       "expert_weights_norm", "expert_gating_func"};
    int dense = 0;
    if (!(k->family->says & SAYS_LATENT)) return OK;
    for (size_t i = 0; i < sizeof of_experts / sizeof *of_experts; i++) pair_of(k, of_experts[i]);
    TRY(read_whole(k, "leading_dense_block_count", 0, INT32_MAX, &dense));
    if (dense < s->layers)
        return fail(ERR_UNAVAILABLE, "%s: layers from %d of %d on have experts, which are not supported",
                    k->file->path, dense, s->layers);
    if (s->value_size && s->rotary_columns < s->head_size && s->groups == s->heads) return OK;
    return fail(
        ERR_UNAVAILABLE,
        "%s: %d heads in %d groups, %d of %d columns rotate: of models with latent attention, files with "
        "the keys and values of all heads (attn_kv_b) are read; import the Hugging Face edition",
        k->file->path, s->heads, s->groups, s->rotary_columns, s->head_size);
}

// Which layers have a window follows from the architecture. A window that hides nothing is none.
static Status read_windows(const Keys *k, ModelShape *s) {
    int window = k->family->says & SAYS_WINDOW_LAYERS ? -1 : 0, period = s->window_period;
    TRY(read_whole(k, "attention.sliding_window", 0, 1 << 24, &window));
    s->window = window;
    if (!(k->family->says & SAYS_WINDOW_LAYERS)) {
        if (window >= s->positions) s->window = 0;
        return OK;
    }
    TRY(read_whole(k, "attention.sliding_window_pattern", 1, MAX_WINDOW_PERIOD, &period));
    if (period == s->window_period) return OK;
    return fail(ERR_UNAVAILABLE, "%s: windows in all but every %dth layer; of %s all but every %dth are read",
                k->file->path, period, k->family->gguf, s->window_period);
}

static Status read_member(const Keys *k, const FamilyMember *m, ModelShape *s) {
    const ManifestField *field = &size_named(m->size)->field;
    bool scale = !strcmp(m->size, "softmax_scale"); // 0, as in ours: by the size of a head
    double value = scale || !m->gguf ? 0 : m->missing;
    // As llama.cpp takes all models of the family; a name of no GGUF.
    bool fixed = !m->gguf && m->meaning == SAME_VALUE;
    if (fixed || m->meaning == NEGATED || m->meaning == OTHER_NAME) return OK;
    if (m->gguf) TRY(read_number(k, m->gguf, field->least, field->most, &value));
    // llama.cpp tells the largest Gemma 2 and 3 by their layers.
    bool largest = m->meaning == INVERSE_SQUARE && s->layers == k->family->gguf_hidden_scale_layers;
    if (largest) value = 1 / sqrt(s->hidden / s->heads);
    store(field, s, m->meaning == SAME_FACTOR && value == 1 ? 0 : value);
    return OK;
}

static Status read_members(const Keys *k, ModelShape *s) {
    for (const FamilyMember *m = k->family->members; m < k->family->members + MAX_FAMILY_MEMBERS && m->name;
         m++)
        TRY(read_member(k, m, s));
    if (k->family->says & HAS_ROOT_EMBEDDING) s->embedding_multiplier = sqrtf((float)s->hidden);
    return OK;
}

static Status check_experts(const Keys *k, ModelShape *s) {
    if (k->family->says & EXPERTS_ARE_MLPS) s->expert_ffn = s->ffn;
    if (k->family->says & SAYS_WIDTH_IN_GGUF)
        TRY(read_whole(k, "expert_feed_forward_length", 1, 1 << 24, &s->expert_ffn));
    if (!s->experts) s->router_pre_softmax = s->router_sigmoid = s->router_bias = s->shared_gate = false;
    if (!s->experts || (s->experts_topk > 0 && s->experts_topk <= s->experts && s->expert_ffn > 0)) return OK;
    return fail(ERR_DATA, "%s: a token has %d of %d experts of width %d: their number is from 1 to all",
                k->file->path, s->experts_topk, s->experts, s->expert_ffn);
}

// ---- the whole model -------------------------------------------------------------------------------------

static bool starts_with(GgufString text, const char *prefix, size_t size) {
    return text.size > size && !memcmp(text.data, prefix, size) && text.data[size] == '.';
}

// Keys of the architecture that were not read may only say that the model does not have something.
static Status check_all_read(const Keys *k) {
    size_t size = strlen(k->family->gguf);
    for (int64_t i = 0; i < k->file->num_pairs; i++) {
        const GgufPair *pair = &k->file->pairs[i];
        double value = 1;
        if (k->read[i] || !starts_with(pair->key, k->family->gguf, size)) continue;
        if (number_of(pair, &value) && value == 0) continue;
        return fail(
            ERR_UNAVAILABLE,
            "%s: key %.*s is not supported: the model may have what is not read here. Import its Hugging "
            "Face edition",
            k->file->path, (int)(pair->key.size < 80 ? pair->key.size : 80), pair->key.data);
    }
    return OK;
}

static Status read_shape(const Keys *k, ModelShape *s) {
    double causal = 1;
    *s = k->family->is;
    // llama.cpp computes the tanh form whatever the model was trained with.
    if (k->family->says & ONLY_TANH_IN_GGUF) s->activation = ACTIVATION_GELU;
    s->window = 0, s->head_size = 0, s->rope = (Rope){0}; // defaults of configurations
    if (model_is_latent(s)) s->kv_rank = s->q_rank = s->rotary_columns = -1;
    s->layers = s->hidden = s->heads = s->ffn = s->positions = -1;
    s->init_std = 0.02f, s->seed = 1234;
    s->family = k->family->family;
    TRY(read_vocabulary(k, s));
    int rows = s->vocabulary;
    TRY(read_sizes(k, s));
    if (s->vocabulary != rows)
        return fail(ERR_DATA, "%s: vocab_size is %d, token_embd.weight has %d rows", k->file->path,
                    s->vocabulary, rows);
    TRY(read_heads(k, s));
    TRY(read_latents(k, s));
    TRY(read_rotation(k, s));
    TRY(read_windows(k, s));
    TRY(read_members(k, s));
    TRY(check_experts(k, s));
    read_biases(k, s);
    s->untied = is_untied(k);
    if (!s->window) s->window_period = 0, s->window_layers = 0;
    s->sequence = s->positions;
    pair_of(k, "tensor_data_layout"); // a word on where the file comes from
    return read_number(k, "attention.causal", 1, 1, &causal);
}

// Models with experts may have the architecture of models without: of the rows of one it is the first that has them,
// too, where the file says how many.
static const Family *family_of_file(const Gguf *file, const GgufPair *architecture) {
    const Family *first = NULL;
    for (int i = 0; i < num_families; i++) {
        const Family *f = &families[i];
        char key[96];
        double experts = 0;
        if (!f->gguf || !gguf_string_is(architecture, f->gguf)) continue;
        snprintf(key, sizeof key, "%s.expert_count", f->gguf);
        const GgufPair *count = gguf_find(file, key);
        if (count && !number_of(count, &experts)) experts = 0;
        if ((experts > 0) == (f->is.experts > 0)) return f;
        if (!first) first = f;
    }
    return first;
}

static Status find_architecture(const Gguf *file, const Family **family) {
    const GgufPair *pair = gguf_find(file, "general.architecture");
    *family = family_of_file(file, pair);
    if (*family) return OK;
    Text known = {0};
    for (int i = 0; i < num_families; i++) {
        int before = 0;
        while (families[i].gguf && families[before].gguf != families[i].gguf &&
               (!families[before].gguf || strcmp(families[before].gguf, families[i].gguf) != 0))
            before++;
        if (families[i].gguf && before == i) text_add(&known, "%s%s", i ? ", " : "", families[i].gguf);
    }
    bool word = pair && !pair->is_array && pair->type == GGUF_STRING;
    GgufString name = word ? pair->text[0] : (GgufString){"unknown", 7};
    Status status = fail(ERR_UNAVAILABLE, "%s: architecture %.*s is not read; known: %s", file->path,
                         (int)(name.size < 80 ? name.size : 80), name.data, text_string(&known));
    text_free(&known);
    return status;
}

static Status check_one_file(const Gguf *file) {
    const GgufPair *pair = gguf_find(file, "split.count");
    double parts = 0;
    if (!pair || !number_of(pair, &parts) || parts <= 1) return OK;
    return fail(ERR_UNAVAILABLE,
                "%s is one of %g parts: join them with llama.cpp's `llama-gguf-split --merge FIRST_PART "
                "WHOLE.gguf` and name that file",
                file->path, parts);
}

// The row that holds what was read. It may be another one of this architecture.
static Status check_family(const Gguf *file, const ModelShape *s, const Family **family) {
    const Family *holds;
    char why[512];
    Status status = family_of(s, &holds);
    if (status == OK && holds->gguf && !strcmp(holds->gguf, (*family)->gguf)) return *family = holds, OK;
    snprintf(why, sizeof why, "%s", fail_message());
    if (status == OK) snprintf(why, sizeof why, "it is a model as %s has it", holds->architecture);
    return fail(ERR_UNAVAILABLE, "%s: what its keys describe is no model of architecture %s: %s", file->path,
                (*family)->gguf, why);
}

Status gguf_shape(const Gguf *file, ModelShape *s, const Family **family) {
    TRY(check_one_file(file));
    TRY(find_architecture(file, family));
    Keys keys = {file, *family, calloc((size_t)file->num_pairs + 1, sizeof(bool))};
    if (!keys.read) return fail(ERR_OS, "no memory for %" PRId64 " keys", file->num_pairs);
    Status status = read_shape(&keys, s);
    if (status == OK) status = check_all_read(&keys);
    free(keys.read);
    return status == OK ? check_family(file, s, family) : status;
}
