// Published models as data; what `--model NAME` and the checkpoint of --load set: options that the user has not given.
#include "config/rules.h"
#include <string.h>

typedef struct {
    const char *name, *like, *options; // see models.def
} Family;

#define MODEL(...)
#define FAMILY(name, like, options) {name, like, options},
static const Family families[] = {
#include "config/models.def"
};
#undef FAMILY
#undef MODEL

#define FAMILY(...)
#define MODEL(...) {__VA_ARGS__},
const ModelPreset model_presets[] = {
#include "config/models.def"
};
#undef FAMILY
#undef MODEL

enum { NUM_PRESETS = sizeof model_presets / sizeof model_presets[0] };
const int num_model_presets = NUM_PRESETS;

static const Family *find_family(const char *name) {
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (!strcmp(families[i].name, name)) return &families[i];
    CHECK(false, "no family is named %s", name);
    return NULL;
}

static void preset(Options *o, const OptionInfo *option, const char *word) {
    Origin *origin = &o->store->origins[option - option_table];
    if (*origin != FROM_DEFAULT) return;
    *origin = FROM_MODEL;
    Status status = value_set(o, option, &word, 1, (Source){FROM_MODEL, "", option->field, 0});
    CHECK(status == OK, "--model %s: %s", o->model, fail_message());
}

static void preset_number(Options *o, int index, int value) {
    char word[16];
    snprintf(word, sizeof word, "%d", value);
    if (value) preset(o, &option_table[index], word);
}

// Sets the options of a family that no earlier family has set.
static void preset_family(Options *o, const char *name) {
    if (!*name) return;
    const Family *family = find_family(name);
    char words[1024], *rest = NULL;
    int length = snprintf(words, sizeof words, "%s", family->options);
    CHECK(length < (int)sizeof words, "the options of %s are too long", name);
    for (char *key = strtok_r(words, " ", &rest); key; key = strtok_r(NULL, " ", &rest)) {
        const OptionInfo *option = meaning_of(FOR_RUN, key).option;
        CHECK(option, "%s of the family %s is no option", key, name);
        preset(o, option, strtok_r(NULL, " ", &rest));
    }
    preset_family(o, family->like);
}

static const ModelPreset *find_preset(const char *name) {
    for (int i = 0; i < NUM_PRESETS; i++)
        if (!strcmp(model_presets[i].name, name)) return &model_presets[i];
    return NULL;
}

// Returns the first model whose name begins with `name`, such as llama2-7b for llama2.
static const char *first_of_family(const char *name) {
    for (int i = 0; i < NUM_PRESETS; i++)
        if (!strncmp(model_presets[i].name, name, strlen(name))) return model_presets[i].name;
    return NULL;
}

static Status unknown_model(const char *name) {
    const char *names[NUM_PRESETS], *nearest = first_of_family(name);
    for (int i = 0; i < NUM_PRESETS; i++) names[i] = model_presets[i].name;
    if (!nearest) nearest = text_nearest(name, names, NUM_PRESETS);
    if (nearest)
        return fail(ERR_CONFIG, "--model %s is not known; did you mean %s? `trireme models` lists all", name,
                    nearest);
    return fail(ERR_CONFIG, "--model %s is not known; `trireme models` lists those that are", name);
}

Status resolve_model(Options *o) {
    if (!o->model) return OK;
    const ModelPreset *model = find_preset(o->model);
    if (!model) return unknown_model(o->model);
    preset_family(o, model->family);
    preset_number(o, OPT_num_layers, model->layers);
    preset_number(o, OPT_hidden_size, model->hidden);
    preset_number(o, OPT_num_attention_heads, model->heads);
    preset_number(o, OPT_ffn_hidden_size, model->ffn);
    preset_number(o, OPT_group_query_attention, model->groups > 0);
    preset_number(o, OPT_num_query_groups, model->groups);
    preset_number(o, OPT_seq_length, model->sequence);
    if (!strcmp(o->position_embedding_type, "learned_absolute"))
        preset_number(o, OPT_max_position_embeddings, model->sequence);
    bool is_null = options_have_null_tokenizer(o); // its size is one less
    if ((o->store->verb & (FOR_MEMORY | FOR_PLAN | FOR_BENCH) || (o->mock_data && !is_null)) &&
        !names_tokenizer_files(o))
        preset_number(o, OPT_vocab_size, model->vocabulary);
    return OK;
}

// ---- the model of --load ------------------------------------------------------------------------------------

static const OptionInfo *find_field(const char *field) {
    for (int i = 0; i < NUM_OPTIONS; i++)
        if (!strcmp(option_table[i].field, field)) return &option_table[i];
    CHECK(false, "no option has the field %s", field);
    return NULL;
}

// Adds the option as a user would type it: "--num-layers 4", "--swiglu", "--no-bias-gelu-fusion".
static void add_as_typed(const Options *o, const OptionInfo *option, Text *out) {
    int length = (int)strcspn(option->spellings, " ");
    Text value = {0};
    value_print(o, option, &value);
    if (option->type == FLAG)
        text_add(out, " --%s%.*s", !strcmp(value.data, "true") ? "" : "no-", length, option->spellings);
    else
        text_add(out, " --%.*s %s", length, option->spellings, value.data);
    text_free(&value);
}

Status options_take(Options *o, const char *field, const char *value, bool follows, const char *from,
                    Text *taken) {
    const OptionInfo *option = find_field(field);
    Origin *origin = &o->store->origins[option - option_table];
    TRY(resolve_model(o));
    if (*origin != FROM_DEFAULT || !(option->verbs & o->store->verb)) return OK;
    Text where = {0}, before = {0}, after = {0};
    text_add(&where, "%s: ", from);
    value_print(o, option, &before);
    Status status = value_set(o, option, &value, 1, (Source){FROM_CHECKPOINT, where.data, option->field, 0});
    value_print(o, option, &after);
    bool same = !strcmp(text_string(&before), text_string(&after));
    if (status == OK && !same) *origin = follows ? DERIVED : FROM_CHECKPOINT;
    if (status == OK && !same && !follows && taken) add_as_typed(o, option, taken);
    text_free(&where);
    text_free(&before);
    text_free(&after);
    return status;
}
