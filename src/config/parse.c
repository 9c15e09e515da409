// Reads the command line: gives options their values, answers names that are no options, collects notes.
#include "config/table.h"
#include <stdlib.h>
#include <string.h>

void *options_block(Options *options, size_t bytes) {
    OptionsStore *store = options->store;
    void **blocks = realloc(store->blocks, (size_t)(store->num_blocks + 1) * sizeof *blocks);
    CHECK(blocks, "no memory for options");
    store->blocks = blocks;
    void *block = calloc(1, bytes ? bytes : 1);
    CHECK(block, "no memory for %zu bytes of options", bytes);
    return blocks[store->num_blocks++] = block;
}

const char *options_string(Options *options, const char *string) {
    size_t size = strlen(string) + 1;
    return memcpy(options_block(options, size), string, size);
}

static void options_create(Options *options, Verb verb) {
    *options = (Options){.store = calloc(1, sizeof *options->store)};
    CHECK(options->store, "no memory for options");
    options->store->verb = verb;
    for (int i = 0; i < NUM_OPTIONS; i++) value_set_default(options, &option_table[i]);
}

void options_destroy(Options *options) {
    OptionsStore *store = options->store;
    if (!store) return;
    for (int i = 0; i < store->num_blocks; i++) free(store->blocks[i]);
    free(store->blocks);
    text_free(&store->notes);
    text_free(&store->refused);
    text_free(&store->also_refused);
    free(store);
    *options = (Options){0};
}

// ---- acting on names --------------------------------------------------------------------------------------

static Status unknown_name(Verb verb, const char *key, Source source) {
    Status status = source_status(source);
    const OptionInfo *elsewhere = meaning_of(EVERY_VERB, key).option;
    if (elsewhere)
        return fail(status,
                    "%s%s is an option of `trireme %s`, not of `trireme %s`; `trireme %s --help` shows "
                    "what it takes",
                    source.where, source.name, verb_name(elsewhere->verbs), verb_name(verb), verb_name(verb));
    char nearest[64];
    if (strlen(key) > 2 && nearest_spelling(verb, key, nearest, sizeof nearest))
        return fail(status, "%sunknown option %s; did you mean %s%s?", source.where, source.name,
                    source.origin == FROM_COMMAND_LINE ? "--" : "", nearest);
    return fail(status, "%sunknown option %s; `trireme %s --help-all` lists all", source.where, source.name,
                verb_name(verb));
}

void options_note(Options *options, const char *note) {
    OptionsStore *store = options->store;
    Text line = {0};
    text_add(&line, "%s\n", note);
    if (!strstr(text_string(&store->notes), line.data)) text_add(&store->notes, "%s", line.data);
    text_free(&line);
}

void note_idle(Options *options, const char *name, const char *why) {
    Text note = {0};
    text_add(&note, "%s has no effect: %s", name, why);
    options_note(options, note.data);
    text_free(&note);
}

// Refusals are collected, so that one message names everything that has to go from a launch script.
static void refuse(OptionsStore *store, Source source, const char *value, const char *text) {
    if (!store->refused.size)
        text_add(&store->refused, "%s%s%s%s is not supported: %s", source.where, source.name,
                 *value ? " " : "", value, text);
    else
        text_add(&store->also_refused, "%s%s", store->also_refused.size ? ", " : "", source.name);
}

// Each `name=value` of the text, as if it had been given; '$' is the word that was. The messages name what
// was given.
static Status apply_other_names(Options *options, const char *text, const char *const *words, int num_words,
                                Source source) {
    for (size_t length; length = strcspn(text, " "), length > 0; text += length + (text[length] == ' ')) {
        char pair[96];
        snprintf(pair, sizeof pair, "%.*s", (int)length, text);
        char *value = strchr(pair, '=');
        *value++ = 0;
        bool given = !strcmp(value, "$");
        const char *word = value;
        TRY(name_apply(options, pair, given ? words : &word, given ? num_words : 1, source));
    }
    return OK;
}

static Status give_answer(Options *options, const Answer *answer, const char *const *words, int num_words,
                          Source source) {
    bool wanted = true;
    if (answer->arity == NONE && num_words == 1 && !parse_flag(words[0], &wanted))
        return fail(source_status(source), "%s%s: '%s' is neither true nor false", source.where, source.name,
                    words[0]);
    if (!wanted) return OK;
    if (answer->kind == RENAMED)
        return fail(source_status(source), "%s%s is not an option of `trireme %s`; use %s", source.where,
                    source.name, verb_name(options->store->verb), answer->text);
    if (answer->kind == STANDS_FOR) return apply_other_names(options, answer->text, words, num_words, source);
    if (answer->kind == REFUSED)
        refuse(options->store, source, num_words == 1 ? words[0] : "", answer->text);
    else
        note_idle(options, source.name, answer->text);
    return OK;
}

// The answer that is about this value alone, such as `lr-decay-style=WSD`.
static const Answer *answer_to_value(Verb verb, Meaning meaning, const char *key, const char *const *words,
                                     int num_words) {
    if (num_words != 1 || !(meaning.option || meaning.answer)) return NULL;
    char pair[128];
    int length = snprintf(pair, sizeof pair, "%s=%s", key, words[0]);
    return length < (int)sizeof pair ? answer_to(verb, pair) : NULL;
}

static Status set_option(Options *options, Meaning meaning, const char *const *words, int num_words,
                         Source source) {
    int index = (int)(meaning.option - option_table);
    Origin *origin = &options->store->origins[index];
    if (source.origin == FROM_FILE && *origin == FROM_COMMAND_LINE) {
        Options checked = {.store = options->store};
        return value_set(&checked, meaning.option, words, num_words, source);
    }
    const char *word = num_words ? words[0] : "true";
    bool value;
    if (meaning.negated && parse_flag(word, &value)) word = value ? "false" : "true";
    if (meaning.negated) words = &word, num_words = 1;
    TRY(value_set(options, meaning.option, words, num_words, source));
    *origin = source.origin;
    return OK;
}

// The file's own laws: an option once, and none that is about the invocation.
static Status check_place(OptionsStore *store, const OptionInfo *option, Source source) {
    if (source.origin != FROM_FILE) return OK;
    if (option->verbs & COMMAND_LINE_ONLY)
        return fail(ERR_CONFIG, "%s%s belongs on the command line, not into a file", source.where,
                    source.name);
    int *line = &store->lines[option - option_table];
    if (*line)
        return fail(ERR_CONFIG, "%s%s is given twice; the first is in line %d", source.where, source.name,
                    *line);
    *line = source.line;
    return OK;
}

Status name_apply(Options *options, const char *key, const char *const *words, int num_words, Source source) {
    OptionsStore *store = options->store;
    Meaning meaning = meaning_of(store->verb, key);
    if (meaning.option) TRY(check_place(store, meaning.option, source));
    const Answer *answer = answer_to_value(store->verb, meaning, key, words, num_words);
    if (!answer) answer = meaning.answer;
    if (answer) return give_answer(options, answer, words, num_words, source);
    if (!meaning.option) return unknown_name(store->verb, key, source);
    return set_option(options, meaning, words, num_words, source);
}

// ---- the command line -------------------------------------------------------------------------------------

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// "--name", "--name=value", "-n", and the mistake "-name". A lone "-", a negative number and a path are
// values.
static bool is_option(const char *word) { return word[0] == '-' && (word[1] == '-' || is_letter(word[1])); }

static Status one_dash_missing(Verb verb, const char *key, Source source) {
    Meaning meaning = meaning_of(verb, key);
    if (!meaning.option && !meaning.answer) return unknown_name(verb, key, source);
    return fail(ERR_USAGE, "unknown option %s; did you mean -%s?", source.name, source.name);
}

typedef struct {
    int argc, next;
    char **argv;
} Arguments;

static int count_values(const Arguments *arguments, Arity arity) {
    int most = arity == MANY ? arguments->argc : arity == ONE ? 1 : 0, count = 0;
    while (count < most && arguments->next + count < arguments->argc &&
           !is_option(arguments->argv[arguments->next + count]))
        count++;
    return count;
}

static Status apply_argument(Options *options, Arguments *arguments) {
    const char *argument = arguments->argv[arguments->next++];
    size_t length = strcspn(argument, "=");
    char name[80];
    if (length >= sizeof name) return fail(ERR_USAGE, "unknown option %.60s...", argument);
    snprintf(name, sizeof name, "%.*s", (int)length, argument);
    const char *key = name + strspn(name, "-");
    Source source = {FROM_COMMAND_LINE, "", name, 0};
    if (name[1] != '-' && name[2]) return one_dash_missing(options->store->verb, key, source);
    if (argument[length] == '=')
        return name_apply(options, key, (const char *[]){argument + length + 1}, 1, source);
    Arity arity = meaning_arity(meaning_of(options->store->verb, key));
    const char *const *words = (const char *const *)(arguments->argv + arguments->next);
    int num_words = count_values(arguments, arity);
    arguments->next += num_words;
    return name_apply(options, key, words, num_words, source);
}

static Status parse_all(Options *options, Arguments arguments) {
    const char **items = options_block(options, (size_t)arguments.argc * sizeof *items);
    options->positional = (StringList){items, 0};
    while (arguments.next < arguments.argc) {
        char *word = arguments.argv[arguments.next];
        if (is_option(word)) {
            TRY(apply_argument(options, &arguments));
        } else {
            items[options->positional.count++] = options_string(options, word);
            arguments.next++;
        }
    }
    if (options->config) TRY(yaml_read(options, options->config));
    OptionsStore *store = options->store;
    if (!store->refused.size) return OK;
    const char *also = text_string(&store->also_refused);
    return fail(ERR_CONFIG, "%s%s%s", text_string(&store->refused), *also ? "; likewise not supported: " : "",
                also);
}

Status options_parse(Options *options, Verb verb, int argc, char **argv) {
    options_create(options, verb);
    Status status = parse_all(options, (Arguments){argc, 0, argv});
    if (status != OK) options_destroy(options);
    return status;
}

static int option_index(const char *field) {
    for (int i = 0; i < NUM_OPTIONS; i++)
        if (!strcmp(option_table[i].field, field)) return i;
    return -1;
}

int option_position(const char *field) {
    int index = option_index(field);
    CHECK(index >= 0, "no option has the field %s", field);
    return index;
}

Origin options_origin(const Options *options, const char *field) {
    return options->store->origins[option_position(field)];
}

bool option_given(const Options *options, int index) {
    Origin origin = options->store->origins[index];
    return (origin == FROM_FILE || origin == FROM_COMMAND_LINE) &&
           value_is_set(options, &option_table[index]);
}

const char *options_notes(const Options *options) { return text_string(&options->store->notes); }
