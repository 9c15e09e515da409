// The option table as data, and what the files of this folder share: looking a name up, giving an option a
// value, and reading the value back as text. Internal to config/.
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

// A name that is no option but has an answer: see answers.def.
typedef struct {
    unsigned verbs; // mask of Verb
    AnswerKind kind;
    Arity arity;
    const char *spellings, *text;
} Answer;

// What a name means to a verb: an option, an answer, or (both NULL) nothing.
typedef struct {
    const OptionInfo *option;
    bool negated; // a flag by its `no-` name
    const Answer *answer;
} Meaning;

// Where a name and its words come from, for messages: {FROM_COMMAND_LINE, "", "--lr"} or
// {FROM_FILE, "run.yaml:3:5: ", "lr"}, line 3.
typedef struct {
    Origin origin;
    const char *where, *name;
    int line;
} Source;

typedef struct OptionsStore {
    Verb verb;
    Origin origins[NUM_OPTIONS];
    int lines[NUM_OPTIONS]; // of the configuration file; 0: not there
    void **blocks;          // all that values point into
    int num_blocks;
    Text notes;
    Text refused;      // the first refusal, as a sentence
    Text also_refused; // the names of the others
} OptionsStore;

// ---- table.c: what names mean

const char *verb_name(unsigned verbs); // "train"; of the first of several
// The answer of a verb to a name, or to "name=value"; NULL: none.
const Answer *answer_to(Verb verb, const char *key);
// `key` is a name without leading dashes; '_' and '-' are the same.
Meaning meaning_of(Verb verb, const char *key);
Arity meaning_arity(Meaning meaning);
// The spelling nearest to `key` among the names that the verb understands, written to `nearest`; false: none
// is near.
bool nearest_spelling(Verb verb, const char *key, char *nearest, size_t size);

// ---- store.c: what the options own

// Returns memory that lives as long as the options.
void *options_block(Options *options, size_t bytes);
const char *options_string(Options *options, const char *string);
// Notes "NAME has no effect: WHY", once.
void note_idle(Options *options, const char *name, const char *why);

// ---- value.c: values from and to text

// Gives the option a value, or fails with what is allowed: ERR_USAGE for the command line, ERR_CONFIG for a
// file. `words` are one, or any number for a LIST, or none for a FLAG, which is then on.
Status value_set(Options *options, const OptionInfo *option, const char *const *words, int num_words,
                 Source source);
void value_set_default(Options *options, const OptionInfo *option);
bool value_is_set(const Options *options,
                  const OptionInfo *option); // not unset, as config.h's table of types says
// Adds the choices of a WORD, "a|b".
void option_choices(const OptionInfo *option, Text *out);
// The value as one would type it; "" when unset. The items of a LIST are separated by blanks.
void value_print(const Options *options, const OptionInfo *option, Text *out);
bool parse_flag(const char *word, bool *value); // true, yes, on, 1 and their opposites
Status source_status(Source source);

// ---- names.c: acting on names

// Sets the option, or notes or refuses it. A value that the command line has set is checked, but not replaced
// by a file's.
Status name_apply(Options *options, const char *key, const char *const *words, int num_words, Source source);
// Fails with the nearest option, or the verb that has an option of this name.
Status name_unknown(Verb verb, const char *key, Source source);

// ---- yaml.c

// Reads a configuration file: ERR_CONFIG naming file, line and column; ERR_NO_INPUT and others from
// file_read.
Status yaml_read(Options *options, const char *path);
