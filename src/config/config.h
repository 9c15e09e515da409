// Options: one table (options.def) defines the struct, the command line, the YAML file, `--help` and the saved copy.
//
// Names are Megatron-LM's, old and new spellings. Values come from, in rising precedence: the table's default, the
// checkpoint of `--load`, the model named by `--model`, the file of `--config`, the command line. Each value has an
// Origin. options_resolve checks every combination before any work starts, and fails with one message: the rule, the
// values, a value that would work. Nothing is changed silently.
#pragma once
#include "base/error.h"
#include "base/text.h"
#include "base/words.h"
#include "layout/placement.h"
#include <stdbool.h>
#include <stdint.h>

// The verbs of the program, as a mask. An option has the verbs that understand it.
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
    FOR_DEVICES = 16384,
    FOR_GOODPUT = 32768,
    FOR_SUPERVISE = 65536,
    FOR_SELFTEST = 131072,
    FOR_VERIFY_MACHINE = 262144,
    FOR_PREPARE_CHAT = 524288,
    FOR_FINETUNE = 1048576, // has every option of FOR_TRAIN (table.c)
    FOR_WATCH = 2097152,
    FOR_REPORT = 4194304,
    FOR_RUN = FOR_TRAIN | FOR_MEMORY | FOR_BENCH,     // verbs that describe a training run
    FOR_DESIGN = FOR_RUN | FOR_PLAN,                  // ... or plan one
    FOR_MODEL = FOR_GENERATE | FOR_EVALUATE,          // verbs that use a trained model
    FOR_TEXT = FOR_PREPROCESS | FOR_TOKENIZER,        // verbs that read text
    FOR_DATA_SET = FOR_PREPROCESS | FOR_PREPARE_CHAT, // verbs that make a data set
    FOR_SOURCE = FOR_MODEL | FOR_EXPORT,              // verbs that read a model with --load
    FOR_CHATS = FOR_PREPARE_CHAT | FOR_FINETUNE,      // verbs that read conversations
    COMMAND_LINE_ONLY = 1 << 29, // the option is about one invocation: neither read from a file nor saved
    // The ranks of one run may have different values; they must agree on every other option.
    MAY_DIFFER = 1 << 30,
    EVERY_VERB = 2 * FOR_REPORT - 1, // the last verb
} Verb;

typedef enum { FROM_DEFAULT, FROM_MODEL, FROM_CHECKPOINT, FROM_FILE, FROM_COMMAND_LINE, DERIVED } Origin;

// The type of an option's value. C type        unset
//   INT                          int           INT_UNSET
//   LONG                         int64_t       INT_UNSET
//   REAL                         double        NaN
//   FLAG                         bool          -
//   WORD (any, or one of choices) const char *  NULL
//   LIST                         StringList    count 0
typedef enum { INT, LONG, REAL, FLAG, WORD, LIST } OptionType;
enum { INT_UNSET = INT32_MIN };
enum { INT_AUTO = 0 }; // the word "auto" where the range of an INT or LONG ends in "|auto"

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

// The type of the field of OPTION(verbs, section, TYPE, field, default, spellings, value, range or choices, help).
#define FIELD_INT  OptionInt
#define FIELD_LONG OptionLong
#define FIELD_REAL OptionReal
#define FIELD_FLAG OptionFlag
#define FIELD_WORD OptionWord
#define FIELD_LIST OptionList

// Values that follow from several options together. options_resolve computes them, and all layers read them here. The
// value of a single option is read from Options.
typedef struct {
    int world_size;         // ranks: t * c * p * d
    int tp, cp, pp, dp, vp; // tensor, context, pipeline, data parallel sizes; chunks per pipeline rank
    int virtual_data; // leaves in whose tree the gradients of a step are added; 0: data-parallel ranks are added in order
    int first_layers, last_layers; // layers of the first and last pipeline rank; 0: as many as the others
    int global_batch;     // samples of a step with a full batch; it may be less than --global-batch-size
    int num_microbatches; // m = global_batch / (d * micro-batch): microbatches of a rank in such a step
    // The batch starts with rampup_start samples and grows in steps of rampup_increment over rampup_samples samples;
    // increment 0: it is full from the first step. With --decrease-batch-size-if-needed each step rounds its batch down
    // to a multiple of d * micro-batch.
    int rampup_start, rampup_increment;
    int64_t rampup_samples;
    const char *schedule;     // name of a ScheduleKind
    int microbatch_group;     // microbatches that a chunk takes in turn; 0: the schedule has no such groups
    int receive_ahead;        // how many computations before its own a receive is posted
    double schedule_times[4]; // relative times of a forward, an input half, a weight half, a message
    int schedule_stash_limit; // microbatches that a rank may hold; 0: as many as pipeline ranks
    int query_groups;   // groups of heads with their own keys and values: all heads, or --num-query-groups
    int rotary_columns; // columns of each head that rope rotates; 0: none
    int window; // keys that a query sees in layers that have a window, its own included; 0: no layer has one
    int window_period; // layer l has the window where bit l % window_period of window_layers is set; 0: all have it
    uint64_t window_layers;
    int expert_width,
        experts_period;      // columns of an expert; layer l has experts where bit l % experts_period of
    uint64_t experts_layers; // experts_layers is set; 0: all have them
    int lora_targets;        // bits of config/lora.h: the linear layers with an adapter; 0: there are none
    bool sequence_parallel;  // --sequence-parallel, and t > 1
    Sharding sharding;       // over the replicas of parameters
    bool keep_probabilities; // attention saves its S x S matrix for the backward
    const char *recompute;   // "nothing", "selective", "uniform", "block"
    int recompute_layers;    // --recompute-num-layers of uniform and block
    bool dynamic_loss_scale; // fp16 without --loss-scale
    int64_t train_iters;     // steps of the run
    int64_t train_samples;
    int64_t lr_decay_samples;
    double lr_warmup_samples; // a fraction of the decay need not be whole
    int64_t lr_wsd_samples;   // length of the last part of a WSD decay
    int64_t eval_iters;       // batches of one evaluation; 0: the run never evaluates
    double split[3];          // shares of training, validation and test data; their sum is 1
} RunShape;

typedef struct Options {
#define OPTION(verbs, section, TYPE, field, ...) FIELD_##TYPE field;
#include "config/options.def"
#undef OPTION
    StringList positional;      // words of the command line that belong to no option
    RunShape shape;             // set by options_resolve
    struct OptionsStore *store; // origins, notes, and the strings that the values point into
} Options;

// Sets the defaults, then the values of the file of --config and of the arguments (argv[0] is the first argument, not
// the program). It reads `--key value` and `--key=value`, for flags also `--key=false` and the negative spellings.
// Words that are no option go to `positional`. ERR_USAGE names the argument and the option nearest to an unknown
// one. It does not handle --help: see options_help. The Options own their strings until options_destroy.
Status options_parse(Options *options, Verb verb, int argc, char **argv);
// Parses the arguments that `from` was parsed of, which must still be there, and then `more`, which take precedence.
Status options_again(Options *options, const Options *from, int count, char **more);
// Returns how many words at the beginning of an argument list belong together: an option and its values, or one other
// word. `field` is set to the member of Options that they set; NULL: none.
int option_words(Verb verb, char **words, int count, const char **field);
void options_destroy(Options *options);
Verb options_verb(const Options *options); // for which they were parsed
// Sets an option to the value that it has in the model `from` (the path that --load names), unless the user or --model
// sets it. `follows`: the rules would derive the same value. Where the value is new and does not follow, adds it to
// `taken` (may be NULL) as a user would type it. To be called before options_resolve. ERR_CONFIG.
Status options_take(Options *options, const char *field, const char *value, bool follows, const char *from,
                    Text *taken);
// Adds a line to options_notes, once.
void options_note(Options *options, const char *note);
// Checks every rule for training on `world_size` ranks, sets the options that are unset (origin FROM_MODEL or DERIVED),
// and sets `shape`. FOR_MEMORY needs a vocabulary, but no data, length or learning rate: it skips their rules and
// members of `shape`. FOR_PLAN checks only the rules of the model, for one rank. ERR_CONFIG with one message: the rule,
// the values, a value that works.
Status options_resolve(Options *options, int world_size);
// Reads --schedule-times as numbers (RunShape.schedule_times). options_resolve does it, too; the verb schedule calls
// this alone.   ERR_CONFIG.
Status options_schedule_times(const Options *options, double times[4]);
// Checks the options that name a tokenizer: both of --vocab-file and --merge-file or neither, one source, and only a
// size for the null tokenizer. options_resolve does it, too; the verb preprocess calls this alone.   ERR_CONFIG.
Status options_check_tokenizer(const Options *options);
Origin options_origin(const Options *options, const char *field);
// Returns the first option given for which the token that ends a document must be known; NULL: there is none.
const char *needs_end_token(const Options *options);
bool options_have_null_tokenizer(const Options *options); // --tokenizer-type NullTokenizer
bool options_have_conversations(const Options *options);  // --sft, --dpo: a document is a sample
bool options_have_reference(const Options *options);      // --dpo with a loss that reads a reference model
// Checks that no option of --dpo is without effect, as options_resolve does.
Status options_check_preferences(const Options *options);
// An adapter of --adapter, "[NAME=]FOLDER". Without a name it has that of its folder.
typedef struct {
    char name[64];
    const char *folder;
} AdapterOption;
// Reads number i of them. Fails with ERR_CONFIG for one without a folder, and where two have one name.
Status options_adapter(const Options *options, int i, AdapterOption *adapter);
// Fails with ERR_CONFIG where there are several, for verbs that use one.
Status options_check_one_adapter(const Options *options);
// Returns how many ranks may share a GPU: --ranks-per-gpu; where that is unset 1, but 0, any number, on the simulated
// GPU.
int options_ranks_per_gpu(const Options *options);
// Returns the grid of a run, once options_resolve has completed its shape.
Grid options_grid(const Options *options);
Sharding options_sharding(const Options *options); // what replicas of parameters cut into shards
double options_offload(const Options *options);    // the share of optimizer state that a GPU's host keeps
// Returns the number whose multiples the sizes of products of few bits must be, for a recipe of --fp8-recipe or
// --fp4-recipe; 0: there is no such recipe.
int few_bits_unit(const char *recipe);
// Returns the field of the first option that the user has given and that is not among `fields`, which ends with NULL;
// NULL: there is none.
const char *options_given_beside(const Options *options, const char *const *fields);
int option_position(const char *field); // in options.def; help and saved configurations have this order
// Notes each option given that has no effect beside the others (idle.def). options_resolve does it, too; the verbs that
// use a trained model call this alone.
void options_note_idle(Options *options);
// Returns the notes that parsing and resolving have collected, one per line, or "": options without effect, or with
// another effect than written.
const char *options_notes(const Options *options);

// Adds the help of a verb: its first screen, or its usage and all its options by section.
void options_help(Verb verb, bool all, Text *out);
// Fails with ERR_USAGE: the usage of the verb in form number `form` (help.c), and `more`, "" or "; SOURCE is ...".
Status options_misused(Verb verb, int form, const char *more);
// Adds the words of which the verb takes one first, "encode decode", or nothing.
void options_first_words(Verb verb, Text *out);
// Fails with ERR_USAGE: `word`, or NULL, is none of these; names them and the nearest one.
Status options_no_word(Verb verb, const char *word);
// Adds the synopsis, examples and all options of a verb as sections of a manual page (troff with the macros of man).
void options_manual(Verb verb, Text *out);
void roff_add(const char *string, Text *out); // plain text of such a page
// A name of an option on the command line, "--tp".
typedef struct {
    const char *name, *help, *choices; // "a|b"; "" where there are none
    bool takes_value, is_path;
} OptionName;
typedef void SeeOption(void *self, const OptionName *name);
// Calls `see` for every name of every option of a verb.
void options_names(Verb verb, SeeOption *see, void *self);
// Adds every option with its value and origin, as YAML that options_parse reads back (`--config`). The values that the
// user chose are lines; all others are comments, since the same rules choose them again when the file is read, and
// --model may choose others.
void options_save(const Options *options, Verb verb, Text *out);
// Appends the options that the user has chosen, on the command line or in a file, and that `verb` has, as one would
// type them: --name value. Those about one invocation are left out, and those of the fields `without`, which ends with
// NULL.
void options_words(const Options *options, Verb verb, const char *const *without, CommandWords *out);
// Whether the user has given it, on the command line or in a file.
bool options_given(const Options *options, const char *field);
// Adds the verb and every option that must be the same on all ranks of a run, a line "NAME\tVALUE" each. It includes
// unset options, so that two lists of one verb have the same names.
void options_list(const Options *options, Text *out);
// Adds the block of dotted lines that Megatron-LM prints, which scripts search in logs.
void options_print(const Options *options, Verb verb, Text *out);

// ---- published models ------------------------------------------------------------------------------------

// A row of models.def: the sizes that `--model NAME` sets.
typedef struct {
    const char *name, *family;
    int layers, hidden, heads;
    int groups, ffn; // groups 0: as many as heads; ffn 0: by the rule of --ffn-hidden-size
    int sequence, vocabulary;
    const char *source; // author, year and table
} ModelPreset;

extern const ModelPreset model_presets[];
extern const int num_model_presets;
