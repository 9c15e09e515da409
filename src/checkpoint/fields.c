// The run's state and the model's shape as rows of a manifest: written, described, read and checked.
#include "checkpoint/manifest.h"
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

typedef enum { FIELD_INT, FIELD_INT64, FIELD_BOOL, FIELD_FLOAT, FIELD_DOUBLE, FIELD_WORD } FieldType;

typedef struct {
    const char *name;
    FieldType type;
    size_t offset;
    double least, most;       // of what is read
    const char *const *words; // of an enumeration, ended by NULL
} Field;

static const char *const activation_words[] = {"gelu", "swiglu", "gelu_erf", NULL};
static const char *const position_words[] = {"learned", "rotary", "none", NULL};
static const char *const rope_words[] = {"plain", "linear", "llama3", NULL};

_Static_assert(sizeof(Activation) == sizeof(int) && sizeof(Position) == sizeof(int) &&
                   sizeof(RopeScaling) == sizeof(int),
               "read as int");

#define X(TYPE, field, most) {#field, FIELD_##TYPE, offsetof(RunState, field), 0, most, NULL},
static const Field state_fields[] = {RUN_STATE(X)};
#undef X

#define SHAPE_AS(TYPE, name, field, least, most, words)                                                      \
    { #name, FIELD_##TYPE, offsetof(ModelShape, field), least, most, words }
#define SHAPE(TYPE, field, least, most, words) SHAPE_AS(TYPE, field, field, least, most, words)
static const Field shape_fields[] = {
    SHAPE(INT, layers, 1, 1e5, NULL),
    SHAPE(INT, hidden, 1, 1 << 20, NULL),
    SHAPE(INT, heads, 1, 1 << 16, NULL),
    SHAPE(INT, head_size, 1, 1 << 13, NULL),
    SHAPE(INT, ffn, 1, 1 << 24, NULL),
    SHAPE(INT, sequence, 1, 1 << 24, NULL),
    SHAPE(INT, groups, 0, 1 << 16, NULL),
    SHAPE(INT, positions, 0, 1 << 24, NULL),
    SHAPE(INT, vocabulary, 1, 1 << 30, NULL),
    SHAPE(WORD, activation, 0, 0, activation_words),
    SHAPE(WORD, position, 0, 0, position_words),
    SHAPE(DOUBLE, rotary_base, 0, 1e12, NULL),
    SHAPE(INT, rotary_columns, 0, 1 << 13, NULL),
    SHAPE_AS(WORD, rope_scaling, rope.kind, 0, 0, rope_words),
    SHAPE_AS(DOUBLE, rope_factor, rope.factor, 0, 1 << 16, NULL),
    SHAPE_AS(DOUBLE, rope_low_frequency, rope.low, 0, 1 << 16, NULL),
    SHAPE_AS(DOUBLE, rope_high_frequency, rope.high, 0, 1 << 16, NULL),
    SHAPE_AS(INT, rope_original_positions, rope.original, 0, 1 << 24, NULL),
    SHAPE(BOOL, rms_norm, 0, 1, NULL),
    SHAPE(BOOL, no_linear_bias, 0, 1, NULL),
    SHAPE(BOOL, qkv_bias, 0, 1, NULL),
    SHAPE(BOOL, proj_bias, 0, 1, NULL),
    SHAPE(BOOL, mlp_bias, 0, 1, NULL),
    SHAPE(BOOL, untied, 0, 1, NULL),
    SHAPE(FLOAT, hidden_dropout, 0, MOST_DROPOUT, NULL),
    SHAPE(FLOAT, attention_dropout, 0, MOST_DROPOUT, NULL),
    SHAPE(FLOAT, norm_epsilon, FLT_MIN, 1, NULL),
    SHAPE(FLOAT, init_std, 0, FLT_MAX, NULL),
    SHAPE(INT64, seed, -INFINITY, INFINITY, NULL),
};
enum {
    NUM_STATE = sizeof state_fields / sizeof state_fields[0],
    NUM_SHAPE = sizeof shape_fields / sizeof shape_fields[0],
};

// ---- writing ------------------------------------------------------------------------------------

static void add_value(const Field *field, const void *object, Text *out) {
    const void *at = (const char *)object + field->offset;
    switch (field->type) {
    case FIELD_INT: text_add(out, "%d", *(const int *)at); break;
    case FIELD_INT64: text_add(out, "%" PRId64, *(const int64_t *)at); break;
    case FIELD_BOOL: text_add(out, "%s", *(const bool *)at ? "true" : "false"); break;
    case FIELD_FLOAT: json_add_double(out, (double)*(const float *)at); break;
    case FIELD_DOUBLE: json_add_double(out, *(const double *)at); break;
    case FIELD_WORD: text_add(out, "\"%s\"", field->words[*(const int *)at]); break;
    }
}

static void write_fields(const Field *fields, int count, const void *object, Text *out) {
    for (int i = 0; i < count; i++) {
        text_add(out, "%s\"%s\": ", i ? ", " : "{", fields[i].name);
        add_value(&fields[i], object, out);
    }
    text_add(out, "}");
}

void state_write(const RunState *state, Text *out) { write_fields(state_fields, NUM_STATE, state, out); }
void shape_write(const ModelShape *shape, Text *out) { write_fields(shape_fields, NUM_SHAPE, shape, out); }

static void describe_fields(const Field *fields, int count, const void *object, Text *out) {
    for (int i = 0; i < count; i++) {
        text_add(out, "%-18s ", fields[i].name);
        add_value(&fields[i], object, out);
        text_add(out, "\n");
    }
}

void checkpoint_describe(const CheckpointInfo *info, Text *out) {
    describe_fields(state_fields, NUM_STATE, &info->state, out);
    describe_fields(shape_fields, NUM_SHAPE, &info->shape, out);
    text_add(out, "%-18s %s\n", "dtype", info->dtype);
    text_add(out, "%-18s %s\n", "optimizer", info->has_optimizer ? "true" : "false");
}

// ---- reading ------------------------------------------------------------------------------------

static bool read_word(const Field *field, const Json *value, int *out) {
    const char *word = json_string(value);
    for (int i = 0; word && field->words[i]; i++)
        if (!strcmp(field->words[i], word)) return *out = i, true;
    return false;
}

static bool read_real(const Field *field, const Json *value, double *out) {
    return json_double(value, out) && *out >= field->least && *out <= field->most;
}

static bool read_value(const Field *field, const Json *value, void *object) {
    void *at = (char *)object + field->offset;
    int64_t whole = 0;
    double real = 0;
    switch (field->type) {
    case FIELD_INT:
    case FIELD_INT64:
        if (!json_int(value, &whole) || (double)whole < field->least || (double)whole > field->most)
            return false;
        if (field->type == FIELD_INT)
            *(int *)at = (int)whole;
        else
            *(int64_t *)at = whole;
        return true;
    case FIELD_BOOL: return json_flag(value, at);
    case FIELD_WORD: return read_word(field, value, at);
    case FIELD_FLOAT:
    case FIELD_DOUBLE:
        if (!read_real(field, value, &real)) return false;
        if (field->type == FIELD_FLOAT)
            *(float *)at = (float)real;
        else
            *(double *)at = real;
        return true;
    }
    return false;
}

static Status wrong_value(const Field *field, const char *what) {
    if (field->type == FIELD_WORD || field->type == FIELD_BOOL)
        return fail(ERR_DATA, "%s: \"%s\" is missing or none of the values that it can have", what,
                    field->name);
    return fail(ERR_DATA, "%s: \"%s\" is missing or no number from %g to %g", what, field->name, field->least,
                field->most);
}

// What is absent was not known yet to the program that wrote it, and is zero where zero can be.
static Status read_fields(const Field *fields, int count, const Json *object, const char *what, void *out) {
    if (!object || object->type != JSON_OBJECT)
        return fail(ERR_DATA, "%s: \"state\" or \"model\" is missing", what);
    for (int i = 0; i < count; i++) {
        const Json *value = json_member(object, fields[i].name);
        if (!value && fields[i].least <= 0) continue;
        if (!read_value(&fields[i], value, out)) return wrong_value(&fields[i], what);
    }
    return OK;
}

// Every step reads a sample at least, and all else that is counted is counted in steps or samples.
Status state_read(const Json *object, const char *what, RunState *state) {
    TRY(read_fields(state_fields, NUM_STATE, object, what, state));
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
            return fail(ERR_DATA, "%s: \"%s\" is more than \"%s\", which cannot be", what, laws[i].small,
                        laws[i].large);
    return OK;
}

static Status check_rotation(const ModelShape *s, const char *what) {
    const Rope *rope = &s->rope;
    bool slowed = rope->kind != ROPE_PLAIN, shared = rope->kind == ROPE_LLAMA3;
    if (s->rotary_columns % 2 || s->rotary_columns > s->head_size)
        return fail(ERR_DATA, "%s: %d \"rotary_columns\" of a \"head_size\" of %d: not even, or more", what,
                    s->rotary_columns, s->head_size);
    if (s->rotary_base < 1) return fail(ERR_DATA, "%s: \"rotary_base\" is below 1", what);
    if (slowed && rope->factor < 1) return fail(ERR_DATA, "%s: \"rope_factor\" is below 1", what);
    if (!shared || (rope->low > 0 && rope->high > rope->low && rope->original > 0)) return OK;
    return fail(
        ERR_DATA,
        "%s: \"rope_high_frequency\" is not above \"rope_low_frequency\", or \"rope_original_positions\" "
        "is 0",
        what);
}

Status shape_read(const Json *object, const char *what, ModelShape *s) {
    TRY(read_fields(shape_fields, NUM_SHAPE, object, what, s));
    if (s->groups && s->heads % s->groups)
        return fail(ERR_DATA, "%s: %d heads do not make %d groups", what, s->heads, s->groups);
    if (s->position == POSITION_LEARNED && s->positions < s->sequence)
        return fail(ERR_DATA, "%s: %d \"positions\" for a \"sequence\" of %d", what, s->positions,
                    s->sequence);
    return s->position == POSITION_ROTARY ? check_rotation(s, what) : OK;
}
