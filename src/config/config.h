// Options: one table (options.def) gives the struct, the command line, the YAML file, `--help` and the saved copy.
//
// Names are Megatron-LM's, old and new spellings. Values come from, in rising precedence: the table's default, the file of
// `--config`, the command line; each value remembers where it came from. Every combination is checked by options_resolve
// before any work starts, in one message: the rule, the values, a value that would work. Nothing is silently changed.
#pragma once
#include "base/error.h"
#include "base/text.h"
#include <stdbool.h>
#include <stdint.h>

// The verbs of the program, as a mask: which options each understands.
typedef enum {
    FOR_TRAIN = 1,
    FOR_PREPROCESS = 2,
    FOR_SCHEDULE = 4,
    EVERY_VERB = 7,
    COMMAND_LINE_ONLY = 8, // about this invocation alone: neither read from a file nor saved
} Verb;

typedef enum { FROM_DEFAULT, FROM_FILE, FROM_COMMAND_LINE, DERIVED } Origin;

// What an option's value is.     C type        unset
//   INT                          int           INT_UNSET
//   LONG                         int64_t       INT_UNSET
//   REAL                         double        NaN
//   FLAG                         bool          -
//   WORD (any, or one of choices) const char *  NULL
//   LIST                         StringList    count 0
typedef enum { INT, LONG, REAL, FLAG, WORD, LIST } OptionType;
enum { INT_UNSET = INT32_MIN };

typedef struct {
    const char **items;
    int count;
} StringList;

typedef int OptionInt;
typedef int64_t OptionLong;
typedef double OptionReal;
typedef bool OptionFlag;
typedef const char *OptionWord;
typedef StringList OptionList;

// A row: OPTION(verbs, section, TYPE, field, default, spellings, value, range or choices, help)
// Field types are spelled out here so that the table stays a table.
#define FIELD_INT  OptionInt
#define FIELD_LONG OptionLong
#define FIELD_REAL OptionReal
#define FIELD_FLAG OptionFlag
#define FIELD_WORD OptionWord
#define FIELD_LIST OptionList

// What follows from the options once they are resolved: the sizes every layer asks for.
typedef struct {
    int world_size;                // ranks: t * p * d
    int tp, pp, dp, vp;            // tensor, pipeline, data parallel sizes; chunks per pipeline rank
    int first_layers, last_layers; // of the first and last pipeline rank; 0: as many as the others
    int num_microbatches;          // m = global batch / (d * micro-batch), per rank and step
    const char *schedule;          // "gpipe", "1f1b", "interleaved"
    int64_t train_iters;           // steps of the run
    int64_t train_samples;
    int64_t lr_decay_samples;
    double lr_warmup_samples; // a fraction of the decay need not be whole
    int64_t eval_iters;       // batches of one evaluation; 0: never evaluate
    double split[3];          // shares of training, validation and test; their sum is 1
} RunShape;

typedef struct Options {
#define OPTION(verbs, section, TYPE, field, ...) FIELD_##TYPE field;
#include "config/options.def"
#undef OPTION
    StringList positional;      // the words that belong to no option
    RunShape shape;             // after options_resolve
    struct OptionsStore *store; // origins and the strings that the values point into
} Options;

// Defaults, then the file of --config, then the arguments (argv[0] is the first argument, not the program).
// `--key value`, `--key=value`; booleans also `--key=false`; negative spellings clear. Words that are no option go to
// `positional`. On ERR_USAGE the message names the argument and, for an unknown option, the nearest one.
// --help is not handled here: see options_help. The Options own their strings until options_destroy.
Status options_parse(Options *options, Verb verb, int argc, char **argv);
void options_destroy(Options *options);
// Checks every rule for training on `world_size` ranks and fills what was left open (origin DERIVED) and `shape`.
// ERR_CONFIG with one message: the rule, the values, a value that would work.
Status options_resolve(Options *options, int world_size);
// The rule of train (part of options_resolve) and preprocess for what names a tokenizer: both of --vocab-file and
// --merge-file or neither, one source, and for the null tokenizer its size alone. ERR_CONFIG.
Status options_check_tokenizer(const Options *options);
Origin options_origin(const Options *options, const char *field);
// Notes for the reader collected while parsing: options that are accepted and have no effect here. One per line, or "".
const char *options_notes(const Options *options);

void options_help(Verb verb, bool all, Text *out); // by section, from the table
// Every option with its value and origin, as YAML that options_parse reads back (`--config`).
void options_save(const Options *options, Verb verb, Text *out);
// The block of dotted lines that Megatron-LM prints and people search in logs.
void options_print(const Options *options, Verb verb, Text *out);
