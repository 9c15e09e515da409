// Options: one table (options.def) gives the struct, the command line, the YAML file, `--help` and the saved
// copy.
//
// Names are Megatron-LM's, old and new spellings. Values come from, in rising precedence: the table's
// default, the checkpoint of `--load`, the model named by `--model`, the file of `--config`, the command line; each
// value remembers where it came from. Every combination is checked by options_resolve before any work starts, in one message: the
// rule, the values, a value that would work. Nothing is silently changed.
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
    FOR_MEMORY = 8,
    FOR_MODELS = 16,
    FOR_TOKENIZER = 32,
    FOR_DATA = 64,
    FOR_CHECKPOINT = 128,
    FOR_EXPORT = 256,
    FOR_IMPORT = 512,
    FOR_GENERATE = 1024,
    FOR_EVALUATE = 2048,
    FOR_PLAN = 4096,
    FOR_BENCH = 8192,
    FOR_RUN = FOR_TRAIN | FOR_MEMORY,          // a training run, done or only measured
    FOR_DESIGN = FOR_RUN | FOR_PLAN,           // ... or planned
    FOR_MODEL = FOR_GENERATE | FOR_EVALUATE,   // a trained model at work
    FOR_TEXT = FOR_PREPROCESS | FOR_TOKENIZER, // text on its way to tokens
    FOR_SOURCE = FOR_MODEL | FOR_EXPORT,       // what reads a model with --load
    EVERY_VERB = 16383,
    COMMAND_LINE_ONLY = 16384, // about this invocation alone: neither read from a file nor saved
    MAY_DIFFER = 32768, // between the ranks of one run; all other options must be the same on every rank
} Verb;

typedef enum { FROM_DEFAULT, FROM_MODEL, FROM_CHECKPOINT, FROM_FILE, FROM_COMMAND_LINE, DERIVED } Origin;

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

// Sizes that follow from several options together, computed by options_resolve and read by all layers. The
// value of a single option is read from Options.
typedef struct {
    int world_size;                // ranks: t * p * d
    int tp, pp, dp, vp;            // tensor, pipeline, data parallel sizes; chunks per pipeline rank
    int first_layers, last_layers; // of the first and last pipeline rank; 0: as many as the others
    int global_batch;              // samples of a full step: --global-batch-size, where need be rounded down
    int num_microbatches;          // m = global_batch / (d * micro-batch), per rank and step; of a full batch
    // --global-batch-size grows from the first by the second over so many samples; 0: it is full throughout.
    // With --decrease-batch-size-if-needed each step rounds what it has grown to down to a multiple of
    // d * micro-batch.
    int rampup_start, rampup_increment;
    int64_t rampup_samples;
    const char *schedule;     // name of a ScheduleKind
    int microbatch_group;     // of a schedule with such groups; else 0
    int receive_ahead;        // how many computations before its own a receive is posted
    double schedule_times[4]; // forward, input half, weight half, message; relative to each other
    int schedule_stash_limit; // 0: as many as pipeline ranks
    int query_groups;         // heads that have their own keys and values: all, or --num-query-groups
    int rotary_columns;       // of each head, that rope rotates; 0: none
    bool sequence_parallel;   // asked for, and t > 1
    bool keep_probabilities;  // attention keeps its S x S matrix
    const char *recompute;    // "nothing", "selective", "uniform", "block"
    int recompute_layers;     // of uniform and block
    bool dynamic_loss_scale;  // fp16 without --loss-scale
    int64_t train_iters;      // steps of the run
    int64_t train_samples;
    int64_t lr_decay_samples;
    double lr_warmup_samples; // a fraction of the decay need not be whole
    int64_t lr_wsd_samples;   // the last part of a WSD decay
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
// `--key value`, `--key=value`; booleans also `--key=false`; negative spellings clear. Words that are no
// option go to `positional`. On ERR_USAGE the message names the argument and, for an unknown option, the
// nearest one. --help is not handled here: see options_help. The Options own their strings until
// options_destroy.
Status options_parse(Options *options, Verb verb, int argc, char **argv);
void options_destroy(Options *options);
// Gives an option the value that it has in the model `from`, the path of what --load names, unless the user or
// --model sets it. `follows`: the value is what the rules would derive, so that it need not be told. `taken` (may be
// NULL) receives it as one would type it, where it is told and was not so before. Before options_resolve. ERR_CONFIG.
Status options_take(Options *options, const char *field, const char *value, bool follows, const char *from,
                    Text *taken);
// Adds a line to options_notes, once.
void options_note(Options *options, const char *note);
// Checks every rule for training on `world_size` ranks and fills what was left open (origin FROM_MODEL or
// DERIVED) and `shape`. FOR_MEMORY needs a vocabulary, but no data, length or learning rate: their rules and
// members of `shape` are left out. FOR_PLAN checks the rules of the model alone, as for one rank. ERR_CONFIG
// with one message: the rule, the values, a value that works.
Status options_resolve(Options *options, int world_size);
// --schedule-times as numbers (RunShape.schedule_times); part of options_resolve, for the verb schedule.
// ERR_CONFIG.
Status options_schedule_times(const Options *options, double times[4]);
// The rule of train (part of options_resolve) and preprocess for what names a tokenizer: both of --vocab-file
// and --merge-file or neither, one source, and for the null tokenizer its size alone. ERR_CONFIG.
Status options_check_tokenizer(const Options *options);
Origin options_origin(const Options *options, const char *field);
bool options_have_null_tokenizer(const Options *options); // --tokenizer-type NullTokenizer
int option_position(const char *field); // in options.def; help and saved configurations have this order
// Notes for the reader, collected while parsing and resolving: options that are accepted and have no effect,
// or another than written. One per line, or "".
const char *options_notes(const Options *options);

void options_help(Verb verb, bool all, Text *out); // by section, from the table
// Every option with its value and origin, as YAML that options_parse reads back (`--config`). The lines
// that the user chose are live; the others are comments, since the same rules choose them again when the file
// is read, and --model may choose others.
void options_save(const Options *options, Verb verb, Text *out);
// The verb and every option of it that must be the same on all ranks of a run, a line "NAME\tVALUE" each: also
// what is unset, so that two lists of one verb have the same names.
void options_list(const Options *options, Text *out);
// The block of dotted lines that Megatron-LM prints and people search in logs.
void options_print(const Options *options, Verb verb, Text *out);

// ---- published models ------------------------------------------------------------------------------------

// A row of models.def: what `--model NAME` sets.
typedef struct {
    const char *name, *family;
    int layers, hidden, heads;
    int groups, ffn; // 0: heads; by the rule of --ffn-hidden-size
    int sequence, vocabulary;
    const char *source; // author, year and table
} ModelPreset;

extern const ModelPreset model_presets[];
extern const int num_model_presets;
