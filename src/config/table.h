// The option table as data, and the functions that the files of this folder share: they find the option of a name, set
// its value, and print it. Internal to config/.
#pragma once
#include "config/config.h"
#include "config/defaults.h"
#include <stddef.h>

enum {
#define OPTION(verbs, section, TYPE, field, ...) OPT_##field,
#include "config/options.def"
#undef OPTION
    NUM_OPTIONS
};

typedef struct {
    unsigned verbs; // mask of Verb
    const char *section;
    OptionType type;
    const char *field;
    const char *default_value, *spellings, *value, *range, *help; // see options.def
    size_t offset;                                                // in Options
} OptionInfo;

extern const OptionInfo option_table[NUM_OPTIONS];

typedef enum { ACCEPTED, REFUSED, RENAMED, STANDS_FOR } AnswerKind;
typedef enum { NONE, ONE, MANY } Arity; // words that follow a name on the command line

// The answer to a name that is no option: see answers.def.
typedef struct {
    unsigned verbs; // mask of Verb
    AnswerKind kind;
    Arity arity;
    const char *spellings, *text;
} Answer;

// The meaning of a name to a verb: an option, an answer, or neither (both NULL).
typedef struct {
    const OptionInfo *option;
    bool negated; // the name is the `no-` form of a flag
    const Answer *answer;
} Meaning;

// The place of a name and its words, for messages: {FROM_COMMAND_LINE, "", "--lr", 0} or
// {FROM_FILE, "run.yaml:3:5: ", "lr", 3}.
typedef struct {
    Origin origin;
    const char *where, *name;
    int line;
} Source;

typedef struct OptionsStore {
    Verb verb;
    char **argv; // that was parsed; borrowed
    int argc;
    Origin origins[NUM_OPTIONS];
    int lines[NUM_OPTIONS]; // the line of the configuration file that sets the option; 0: none does
    void **blocks;          // memory that values point into
    int num_blocks;
    Text notes;
    Text refused;      // the first refusal, as a sentence
    Text also_refused; // the names of the others
} OptionsStore;

// ---- table.c: the meaning of names

const char *verb_name(unsigned verbs); // "train"; the first of several verbs
// Returns the answer of a verb to a name, or to "name=value"; NULL: it has none.
const Answer *answer_to(Verb verb, const char *key);
// `key` is a name without leading dashes; '_' and '-' are the same.
Meaning meaning_of(Verb verb, const char *key);
Arity meaning_arity(Meaning meaning);
// Writes to `nearest` the spelling nearest to `key` among the names that the verb understands; false: none is near.
bool nearest_spelling(Verb verb, const char *key, char *nearest, size_t size);

// ---- help.c: the first screen of a verb

const char *verb_examples(Verb verb);
// Adds what follows the verb on the command line in one of its forms, "RUN [options]", or nothing; false: it has fewer
// forms.
bool verb_form(Verb verb, int index, Text *words);

// ---- store.c: what the options own

// Returns memory that lives as long as the options.
void *options_block(Options *options, size_t bytes);
const char *options_string(Options *options, const char *string);
// Notes "NAME has no effect: WHY", once.
void note_idle(Options *options, const char *name, const char *why);

// ---- value.c: values from and to text

// Sets the value of an option, or fails with the values that are allowed: ERR_USAGE for the command line, ERR_CONFIG
// for a file. There is one word, for a LIST any number of words, and a FLAG without a word is on.
Status value_set(Options *options, const OptionInfo *option, const char *const *words, int num_words,
                 Source source);
void value_set_default(Options *options, const OptionInfo *option);
// Returns whether the option has a value; config.h says for each type how an unset one looks.
bool value_is_set(const Options *options, const OptionInfo *option);
// Adds the choices of a WORD, "a|b".
void option_choices(const OptionInfo *option, Text *out);
// Adds the value as a user would type it; "" when unset. Blanks separate the items of a LIST.
void value_print(const Options *options, const OptionInfo *option, Text *out);
bool parse_flag(const char *word, bool *value); // true, yes, on, 1 and their opposites
Status source_status(Source source);

// ---- names.c: acting on names

// Sets the option of a name, or adds a note, or refuses the name. A file's value of an option that the command line has
// set is checked and left out.
Status name_apply(Options *options, const char *key, const char *const *words, int num_words, Source source);
// Fails with the nearest option, or the verb that has an option of this name.
Status name_unknown(Verb verb, const char *key, Source source);

// ---- yaml.c

// Reads a configuration file: ERR_CONFIG naming file, line and column; ERR_NO_INPUT and others from
// file_read.
Status yaml_read(Options *options, const char *path);
