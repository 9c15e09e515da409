// Holds the tables of options and answers, and finds what a name means to a verb.
#include "config/table.h"
#include <string.h>

// finetune takes the options of train.
#define WITH_FINETUNE(verbs) ((verbs) | ((verbs)&FOR_TRAIN ? FOR_FINETUNE : 0))

const OptionInfo option_table[NUM_OPTIONS] = {
#define OPTION(verbs, section, TYPE, field, default_value, spellings, value, range, help)                    \
    {WITH_FINETUNE(verbs),    section, TYPE, #field, default_value, spellings, value, range, help,           \
     offsetof(Options, field)},
#include "config/options.def"
#undef OPTION
};

static const Answer answers[] = {
#define ANSWER(...)                                     ANSWER_FOR(EVERY_VERB, __VA_ARGS__)
#define ANSWER_FOR(verbs, kind, arity, spellings, text) {WITH_FINETUNE(verbs), kind, arity, spellings, text},
#include "config/answers.def"
#undef ANSWER_FOR
#undef ANSWER
};

enum { NUM_ANSWERS = sizeof answers / sizeof answers[0] };

const char *verb_name(unsigned verbs) {
    static const char *const names[] = {
        "train",          "preprocess",   "schedule", "memory",  "models",    "tokenizer",
        "data",           "checkpoint",   "export",   "import",  "generate",  "evaluate",
        "plan",           "bench",        "devices",  "goodput", "supervise", "selftest",
        "verify-machine", "prepare-chat", "finetune", "watch",   "report"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (verbs & 1u << i) return names[i];
    CHECK(false, "no verb is in %u", verbs);
    return NULL;
}

static char dashed(char c) { return c == '_' ? '-' : c; }

// Returns whether `key` is the word [word, word + length). With `endings` a '*' at the word's end stands for any ending
// without '='.
static bool same_name(const char *key, const char *word, size_t length, bool endings) {
    for (size_t i = 0; i < length; i++) {
        if (word[i] == '*') return endings && !strchr(key + i, '=');
        if (!key[i] || dashed(key[i]) != dashed(word[i])) return false;
    }
    return !key[length];
}

// Returns the next of the words that blanks separate, or NULL, and moves `rest` behind it.
static const char *next_word(const char **rest, size_t *length) {
    const char *word = *rest + strspn(*rest, " ");
    *length = strcspn(word, " ");
    *rest = word + *length;
    return *length ? word : NULL;
}

static bool spelled(const char *spellings, const char *key, bool endings) {
    size_t length;
    for (const char *word; (word = next_word(&spellings, &length));)
        if (same_name(key, word, length, endings)) return true;
    return false;
}

static const OptionInfo *find_option(Verb verb, const char *key) {
    for (int i = 0; i < NUM_OPTIONS; i++)
        if ((option_table[i].verbs & verb) && spelled(option_table[i].spellings, key, false))
            return &option_table[i];
    return NULL;
}

static bool starts_with_no(const char *key) {
    return key[0] == 'n' && key[1] == 'o' && dashed(key[2]) == '-';
}

// The option of a name, or none.
static Meaning option_of(Verb verb, const char *key) {
    const OptionInfo *option = find_option(verb, key);
    if (option) return (Meaning){.option = option};
    const OptionInfo *flag = starts_with_no(key) ? find_option(verb, key + 3) : NULL;
    if (flag && flag->type == FLAG) return (Meaning){.option = flag, .negated = true};
    return (Meaning){0};
}

// A name that some verb has as an option is not compared with patterns such as "moe-*".
const Answer *answer_to(Verb verb, const char *key) {
    bool endings = !option_of(EVERY_VERB, key).option;
    for (int i = 0; i < NUM_ANSWERS; i++)
        if ((answers[i].verbs & verb) && spelled(answers[i].spellings, key, endings)) return &answers[i];
    return NULL;
}

Meaning meaning_of(Verb verb, const char *key) {
    Meaning meaning = option_of(verb, key);
    if (!meaning.option) meaning.answer = answer_to(verb, key);
    return meaning;
}

Arity meaning_arity(Meaning meaning) {
    if (meaning.answer) return meaning.answer->arity;
    if (!meaning.option || meaning.option->type == FLAG) return NONE;
    return meaning.option->type == LIST ? MANY : ONE;
}

typedef struct {
    const char *key;
    char *nearest;
    size_t size;
    int distance;
} Search;

static void compare_spellings(Search *search, const char *spellings) {
    size_t length;
    for (const char *word; (word = next_word(&spellings, &length));) {
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)length, word);
        const char *candidate = name;
        int distance = text_distance(search->key, name);
        if (distance < search->distance && text_nearest(search->key, &candidate, 1)) {
            search->distance = distance;
            snprintf(search->nearest, search->size, "%s", name);
        }
    }
}

bool nearest_spelling(Verb verb, const char *key, char *nearest, size_t size) {
    char dashes[64];
    snprintf(dashes, sizeof dashes, "%s", key);
    for (char *c = dashes; *c; c++) *c = dashed(*c);
    Search search = {dashes, nearest, size, INT32_MAX};
    for (int i = 0; i < NUM_OPTIONS; i++)
        if (option_table[i].verbs & verb) compare_spellings(&search, option_table[i].spellings);
    return search.distance < INT32_MAX;
}
