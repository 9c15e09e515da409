// The run's state and the model's sizes as rows of a manifest: written, described, read and checked.
#include "checkpoint/fields.h"
#include "checkpoint/manifest.h"
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

static const char *const activation_words[] = {"gelu",         "swiglu",      "gelu_erf", "geglu",
                                               "relu_squared", "quick_geglu", NULL};
static const char *const position_words[] = {"learned", "rotary", "none", NULL};
static const char *const softmax_words[] = {"plain", "off_by_one", "sinks", NULL};
static const char *const family_words[] = {
    "any",     "mistral",   "qwen2",    "qwen3",      "smollm3",   "phi3",     "olmo2",       "gemma2",
    "gemma3",  "gpt_neox",  "stablelm", "granite",    "nemotron",  "minicpm3", "deepseek_v2", "deepseek_v3",
    "mixtral", "qwen3_moe", "olmoe",    "granitemoe", "qwen2_moe", "gpt_oss",  NULL};
static const char *const norm_words[] = {"pre", "post", "sandwich", NULL};
static const char *const qk_words[] = {"none", "head", "all", NULL};
static const char *const rope_words[] = {"plain", "linear", "llama3", "yarn", "dynamic", "long", NULL};

_Static_assert(sizeof(Activation) == sizeof(int) && sizeof(Position) == sizeof(int) &&
                   sizeof(RopeScaling) == sizeof(int) && sizeof(Softmax) == sizeof(int) &&
                   sizeof(NormPlace) == sizeof(int) && sizeof(QkNorm) == sizeof(int) &&
                   sizeof(ModelFamily) == sizeof(int),
               "read as int");

#define X(TYPE, field, least, most) {#field, TYPE##_FIELD, offsetof(RunState, field), least, most, NULL},
static const ManifestField state_fields[] = {RUN_STATE(X)};
#undef X

enum { NUM_STATE = sizeof state_fields / sizeof state_fields[0] };

// The ManifestType and the words of each TYPE of sizes.def.
#define TYPE_INT          INT_FIELD, NULL
#define TYPE_INT64        INT64_FIELD, NULL
#define TYPE_BOOL         BOOL_FIELD, NULL
#define TYPE_FLOAT        FLOAT_FIELD, NULL
#define TYPE_DOUBLE       DOUBLE_FIELD, NULL
#define TYPE_ACTIVATION   WORD_FIELD, activation_words
#define TYPE_POSITION     WORD_FIELD, position_words
#define TYPE_ROPE_SCALING WORD_FIELD, rope_words
#define TYPE_SOFTMAX      WORD_FIELD, softmax_words
#define TYPE_NORM_PLACE   WORD_FIELD, norm_words
#define TYPE_QK_NORM      WORD_FIELD, qk_words
#define TYPE_FAMILY       WORD_FIELD, family_words
#define TYPE_FACTORS      FACTORS_FIELD, NULL

#define ROW(name, type_and_words, member, least, most) ROW_OF(name, type_and_words, member, least, most)
#define ROW_OF(name, type, words, member, least, most)                                                       \
    { name, type, offsetof(ModelShape, member), least, most, words }
#define NAMES(gpt2, llama, gguf_gpt2, gguf_llama)                                                            \
    {                                                                                                        \
        {gpt2, llama}, { gguf_gpt2, gguf_llama }                                                             \
    }
#define NOWHERE   NAMES(NULL, NULL, NULL, NULL)
#define BY_FAMILY NAMES(NULL, "", NULL, "")

const ModelSize model_sizes[] = {
#define SIZE(TYPE, member, least, most, option, meaning, names)                                              \
    {ROW(#member, TYPE_##TYPE, member, least, most), #option, MEANS_##meaning, names},
#define DERIVED(TYPE, member, least, most, names)                                                            \
    {ROW(#member, TYPE_##TYPE, member, least, most), NULL, MEANS_BY_RULE, names},
#define ROPE_SIZE(TYPE, member, key, least, most)                                                            \
    {ROW(#key, TYPE_##TYPE, rope.member, least, most), NULL, MEANS_BY_RULE, NAMES("", "", "", "")},
#include "nn/sizes.def"
};
const int num_model_sizes = sizeof model_sizes / sizeof model_sizes[0];

// ---- writing ------------------------------------------------------------------------------------

static void print_factors(const RopeFactors *factors, Text *out) {
    text_add(out, "[");
    for (int i = 0; i < factors->count; i++) {
        if (i) text_add(out, ", ");
        json_add_double(out, factors->at[i]);
    }
    text_add(out, "]");
}

void field_print(const ManifestField *field, const void *object, Text *out) {
    const void *at = (const char *)object + field->offset;
    switch (field->type) {
    case INT_FIELD: text_add(out, "%d", *(const int *)at); break;
    case INT64_FIELD: text_add(out, "%" PRId64, *(const int64_t *)at); break;
    case BOOL_FIELD: text_add(out, "%s", *(const bool *)at ? "true" : "false"); break;
    case FLOAT_FIELD: json_add_double(out, (double)*(const float *)at); break;
    case DOUBLE_FIELD: json_add_double(out, *(const double *)at); break;
    case WORD_FIELD: text_add(out, "\"%s\"", field->words[*(const int *)at]); break;
    case FACTORS_FIELD: print_factors(at, out); break;
    }
}

bool field_is_zero(const ManifestField *field, const void *object) {
    const void *at = (const char *)object + field->offset;
    switch (field->type) {
    case INT_FIELD:
    case WORD_FIELD: return *(const int *)at == 0;
    case INT64_FIELD: return *(const int64_t *)at == 0;
    case BOOL_FIELD: return !*(const bool *)at;
    case FLOAT_FIELD: return *(const float *)at == 0;
    case DOUBLE_FIELD: return *(const double *)at == 0;
    case FACTORS_FIELD: return ((const RopeFactors *)at)->count == 0;
    }
    return false;
}

static void write_field(const ManifestField *field, const void *object, bool first, Text *out) {
    text_add(out, "%s\"%s\": ", first ? "{" : ", ", field->name);
    field_print(field, object, out);
}

void state_write(const RunState *state, Text *out) {
    for (int i = 0; i < NUM_STATE; i++) write_field(&state_fields[i], state, i == 0, out);
    text_add(out, "}");
}

bool size_is_kept(const ModelSize *size, const ModelShape *shape) {
    if (!strncmp(size->field.name, "lora_", 5)) return shape->lora_rank;
    return size->field.type != FACTORS_FIELD || !field_is_zero(&size->field, shape);
}

void shape_write(const ModelShape *shape, Text *out) {
    for (int i = 0; i < num_model_sizes; i++)
        if (size_is_kept(&model_sizes[i], shape)) write_field(&model_sizes[i].field, shape, i == 0, out);
    text_add(out, "}");
}

void skipped_write(const RunState *state, Text *out) {
    text_add(out, "{\"samples\": [");
    for (int i = 0; i < state->skipped.count; i++)
        text_add(out, "%s[%" PRId64 ", %" PRId64 "]", i ? ", " : "", state->skipped.items[i].first,
                 state->skipped.items[i].end - 1);
    text_add(out, "], \"rewinds\": %" PRId64 "}", state->rewinds);
}

static void describe_field(const ManifestField *field, const void *object, Text *out) {
    text_add(out, "%-18s ", field->name);
    field_print(field, object, out);
    text_add(out, "\n");
}

void checkpoint_describe(const CheckpointInfo *info, Text *out) {
    for (int i = 0; i < NUM_STATE; i++) describe_field(&state_fields[i], &info->state, out);
    text_add(out, "%-18s ", "skipped");
    ranges_print(&info->state.skipped, out);
    text_add(out, "%s\n%-18s %" PRId64 "\n", info->state.skipped.count ? "" : "none", "rewinds",
             info->state.rewinds);
    for (int i = 0; i < num_model_sizes; i++)
        if (size_is_kept(&model_sizes[i], &info->shape))
            describe_field(&model_sizes[i].field, &info->shape, out);
    text_add(out, "%-18s %s\n", "dtype", info->dtype);
    text_add(out, "%-18s %s\n", "optimizer", info->has_optimizer ? "true" : "false");
    if (info->shape.lora_rank) text_add(out, "%-18s %s\n", "base", info->base.path);
}

// ---- reading ------------------------------------------------------------------------------------

static bool read_word(const ManifestField *field, const Json *value, int *out) {
    const char *word = json_string(value);
    for (int i = 0; word && field->words[i]; i++)
        if (!strcmp(field->words[i], word)) return *out = i, true;
    return false;
}

static bool read_real(const ManifestField *field, const Json *value, double *out) {
    return json_double(value, out) && *out >= field->least && *out <= field->most;
}

static bool read_factors(const ManifestField *field, const Json *value, RopeFactors *out) {
    if (value->type != JSON_ARRAY || value->count > MAX_ROPE_FACTORS) return false;
    out->count = (int)value->count;
    for (int i = 0; i < out->count; i++)
        if (!read_real(field, &value->items[i], &out->at[i])) return false;
    return true;
}

static bool read_value(const ManifestField *field, const Json *value, void *object) {
    void *at = (char *)object + field->offset;
    int64_t whole = 0;
    double real = 0;
    switch (field->type) {
    case INT_FIELD:
    case INT64_FIELD:
        if (!json_int(value, &whole) || (double)whole < field->least || (double)whole > field->most)
            return false;
        if (field->type == INT_FIELD)
            *(int *)at = (int)whole;
        else
            *(int64_t *)at = whole;
        return true;
    case BOOL_FIELD: return json_flag(value, at);
    case WORD_FIELD: return read_word(field, value, at);
    case FACTORS_FIELD: return read_factors(field, value, at);
    case FLOAT_FIELD:
    case DOUBLE_FIELD:
        if (!read_real(field, value, &real)) return false;
        if (field->type == FLOAT_FIELD)
            *(float *)at = (float)real;
        else
            *(double *)at = real;
        return true;
    }
    return false;
}

static Status wrong_value(const ManifestField *field, const char *what) {
    if (field->type == WORD_FIELD || field->type == BOOL_FIELD)
        return fail(ERR_DATA, "%s: \"%s\" is missing or not one of its possible values", what, field->name);
    return fail(ERR_DATA, "%s: \"%s\" is missing or not a number from %g to %g", what, field->name,
                field->least, field->most);
}

static Status check_object(const Json *object, const char *what) {
    if (object && object->type == JSON_OBJECT) return OK;
    return fail(ERR_DATA, "%s: \"state\" or \"model\" is missing", what);
}

// A field that the program did not know yet that wrote the manifest is absent there: it is zero, where it may be.
static Status read_field(const ManifestField *field, const Json *object, const char *what, void *out) {
    const Json *value = json_member(object, field->name);
    if (!value && field->least <= 0) return OK;
    return read_value(field, value, out) ? OK : wrong_value(field, what);
}

// Checks the counts against each other: every step reads at least one sample.
Status state_read(const Json *object, const char *what, RunState *state) {
    TRY(check_object(object, what));
    for (int i = 0; i < NUM_STATE; i++) TRY(read_field(&state_fields[i], object, what, state));
    const struct {
        const char *small, *large;
        bool holds;
    } laws[] = {{"iteration", "consumed", state->iteration <= state->consumed},
                {"stepped", "consumed", state->stepped <= state->consumed},
                {"evaluated", "iteration", state->evaluated <= state->iteration},
                {"optimizer_steps", "iteration", state->optimizer_steps <= state->iteration},
                {"skipped_in_a_row", "iteration", state->skipped_in_a_row <= state->iteration},
                {"num_losses", "iteration", state->num_losses <= state->iteration}};
    for (size_t i = 0; i < sizeof laws / sizeof laws[0]; i++)
        if (!laws[i].holds)
            return fail(ERR_DATA, "%s: \"%s\" is larger than \"%s\", which is impossible", what,
                        laws[i].small, laws[i].large);
    return OK;
}

// Both ends of a range are in it.
static bool read_range(const Json *pair, Range *range) {
    if (pair->type != JSON_ARRAY || pair->count != 2) return false;
    if (!json_int(&pair->items[0], &range->first) || !json_int(&pair->items[1], &range->end)) return false;
    return range->first >= 0 && range->first <= range->end && (double)range->end++ <= 9e15;
}

// Ranges are written in rising order and apart from each other, so that any others are damage.
Status skipped_read(const Json *object, const char *what, RunState *state) {
    if (!object) return OK;
    const Json *samples = json_member(object, "samples");
    bool good = samples && samples->type == JSON_ARRAY && samples->count >= 1 && samples->count <= MAX_RANGES;
    int64_t before = -1;
    for (size_t i = 0; good && i < samples->count; i++) {
        Range range;
        good = read_range(&samples->items[i], &range) && range.first > before;
        if (good) before = range.end, state->skipped.items[state->skipped.count++] = range;
    }
    if (!good) return fail(ERR_DATA, "%s: the \"samples\" of \"skipped\" are no rising ranges", what);
    if (json_int(json_member(object, "rewinds"), &state->rewinds) && state->rewinds >= 0 &&
        state->rewinds <= MAX_RANGES)
        return OK;
    return fail(ERR_DATA, "%s: \"rewinds\" is missing or not a number up to %d", what, MAX_RANGES);
}

static bool has_factors(const ModelShape *s, const RopeFactors *factors) {
    int pairs = model_rotary_columns(s) / 2;
    for (int i = 0; i < pairs && i < factors->count; i++)
        if (!(factors->at[i] > 0)) return false;
    return factors->count == pairs;
}

static Status check_long_rotation(const ModelShape *s, const char *what) {
    const Rope *rope = &s->rope;
    bool is_long = rope->kind == ROPE_LONG;
    if (is_long ? rope->original > 1 && has_factors(s, &rope->shorter) && has_factors(s, &rope->longer)
                : !rope->shorter.count && !rope->longer.count)
        return OK;
    return fail(ERR_DATA,
                "%s: \"rope_short_factors\" and \"rope_long_factors\" are no two lists of %d numbers above "
                "zero, or \"rope_original_positions\" is below 2",
                what, is_long ? model_rotary_columns(s) / 2 : 0);
}

static Status check_rotation(const ModelShape *s, const char *what) {
    const Rope *rope = &s->rope;
    bool slowed = rope->kind != ROPE_PLAIN, shared = rope->kind == ROPE_LLAMA3 || rope->kind == ROPE_YARN;
    if (s->rotary_columns % 2 || s->rotary_columns > s->head_size)
        return fail(ERR_DATA,
                    "%s: \"rotary_columns\" is %d; it must be even and at most the \"head_size\" of %d", what,
                    s->rotary_columns, s->head_size);
    if (s->rotary_base < 1) return fail(ERR_DATA, "%s: \"rotary_base\" is below 1", what);
    if (slowed && rope->factor < 1) return fail(ERR_DATA, "%s: \"rope_factor\" is below 1", what);
    if (rope->kind == ROPE_DYNAMIC && !rope->original)
        return fail(ERR_DATA, "%s: \"rope_original_positions\" is 0", what);
    TRY(check_long_rotation(s, what));
    if (!shared || (rope->low > 0 && rope->high > rope->low && rope->original > 0)) return OK;
    return fail(
        ERR_DATA,
        "%s: \"rope_high_frequency\" is not above \"rope_low_frequency\", or \"rope_original_positions\" "
        "is 0",
        what);
}

static Status check_adapters(const ModelShape *s, const char *what) {
    int parts = LORA_Q | LORA_K | LORA_V, halves = LORA_GATE | LORA_UP, set = s->lora_targets;
    bool headless = model_is_latent(s) && set & LORA_HEADS;
    bool twice = (set & LORA_QKV && set & parts) || (set & LORA_FC1 && set & halves);
    if (!s->lora_rank ||
        (set && s->lora_alpha > 0 && !twice && !headless && (model_is_gated(s) || !(set & halves))))
        return OK;
    return fail(ERR_DATA, "%s: \"lora_targets\" or \"lora_alpha\" make no adapters of this model", what);
}

static Status check_experts(const ModelShape *s, const char *what) {
    uint64_t all = s->experts_period ? ((uint64_t)1 << s->experts_period) - 1 : 0;
    bool groups = !s->router_groups
                      ? !s->router_open_groups
                      : s->experts % s->router_groups == 0 && s->router_open_groups > 0 &&
                            s->router_open_groups <= s->router_groups &&
                            s->experts_topk <= s->router_open_groups * (s->experts / s->router_groups);
    if ((s->router_bias && !s->router_sigmoid) || (s->shared_gate && !s->shared_ffn)) groups = false;
    bool right = s->experts_topk > 0 && s->experts_topk <= s->experts && s->expert_ffn > 0 && groups &&
                 !(s->experts_layers & ~all) && (!s->experts_period || s->experts_layers);
    bool none =
        !s->experts_topk && !s->expert_ffn && !s->shared_ffn && !s->experts_period && !s->router_groups;
    bool biased_shared = s->shared_ffn && model_has_mlp_bias(s);
    if (s->experts ? right && !biased_shared : none) return OK;
    return fail(ERR_DATA, "%s: \"experts\" and what belongs to them make no layers of this model", what);
}

static Status check_latents(const ModelShape *s, const char *what) {
    bool rotary = s->position == POSITION_ROTARY && s->rotary_columns && s->rotary_columns < s->head_size,
         groups = s->groups && s->groups != s->heads;
    if (model_is_latent(s) ? rotary && !groups && s->qk_norm == QK_NORM_NONE : !s->q_rank && !s->value_size)
        return OK;
    return fail(ERR_DATA, "%s: \"kv_rank\", \"q_rank\" and \"value_size\" make no latents of this model",
                what);
}

Status shape_read(const Json *object, const char *what, ModelShape *s) {
    TRY(check_object(object, what));
    for (int i = 0; i < num_model_sizes; i++) TRY(read_field(&model_sizes[i].field, object, what, s));
    if (s->groups && s->heads % s->groups)
        return fail(ERR_DATA, "%s: %d heads cannot be divided into %d groups", what, s->heads, s->groups);
    if (s->position == POSITION_LEARNED && s->positions < s->sequence)
        return fail(ERR_DATA, "%s: %d \"positions\" for a \"sequence\" of %d", what, s->positions,
                    s->sequence);
    TRY(check_adapters(s, what));
    TRY(check_latents(s, what));
    TRY(check_experts(s, what));
    return s->position == POSITION_ROTARY ? check_rotation(s, what) : OK;
}
