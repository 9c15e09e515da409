// Acts on a name and its words, from the command line or a file: sets an option, or gives the answer to a name that is
// none.
#include "config/table.h"
#include <string.h>

Status name_unknown(Verb verb, const char *key, Source source) {
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

// Collects refusals, so that one message names everything that a launch script must leave out.
static void refuse(OptionsStore *store, Source source, const char *value, const char *text) {
    if (!store->refused.size)
        text_add(&store->refused, "%s%s%s%s is not supported: %s", source.where, source.name,
                 *value ? " " : "", value, text);
    else
        text_add(&store->also_refused, "%s%s", store->also_refused.size ? ", " : "", source.name);
}

// Applies each `name=value` of the text as if the user had written it; '$' is the user's own word. Messages name what
// the user has written.
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

// Returns the answer to a name with this value, such as `lr-decay-style=WSD`; NULL: there is none.
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

// Checks the rules of a file: it sets an option once, and no option that is about the invocation.
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
    if (!meaning.option) return name_unknown(store->verb, key, source);
    return set_option(options, meaning, words, num_words, source);
}
