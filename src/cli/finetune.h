// `trireme finetune MODEL DATA`: chooses the options of prepare-chat or preprocess, train, evaluate and export, and
// runs these verbs one after another. It decides and shows; all work is theirs.
#pragma once
#include "base/words.h"
#include "cli/verb_parts.h"
#include "nn/shape.h"

typedef struct {
    const Options *options; // as given
    const char *model, *data;
    char folder[3000];     // DIR: of --save
    char version[64];      // of the data: size and hash of a file
    const char *tokenizer; // --tokenizer-model, or `files`

    // The model and the data.
    char model_path[4096]; // of what was opened: of a folder of checkpoints the newest
    char files[4096];      // the folder of its tokenizer: of an adapter of PEFT that of its base
    ModelShape shape;
    Text place;         // of the document that says what the data hold; empty where they were prepared before
    bool conversations; // the data hold conversations; else text
    int64_t count, tokens;   // conversations or documents, and their tokens
    int64_t trained;         // tokens of answers
    int64_t longest;         // tokens of the longest conversation
    int64_t units, held_out; // what --split cuts, samples of conversations or documents, and those held out
    int64_t samples;         // that one epoch trains on

    // What is decided.
    CommandWords import;  // the command that makes a checkpoint of a GGUF file; else none
    CommandWords prepare; // the command that made the data set
    CommandWords train;   // `trireme train` with its options, but --load
    Text why;             // lines for the user

    // How far it is; NaN: not yet.
    double before, after; // nats per token of the held-out share
    int64_t scored;       // of so many tokens
} Finetune;

void finetune_free(Finetune *f);
// Parses the words of a command, after its verb, as options of that verb.
Status finetune_parse(const CommandWords *words, Verb verb, Options *options);

// ---- finetune_data.c ----------------------------------------------------------------------------

// Writes the data set DIR/data, and counts it. ERR_DATA names file and line.
Status finetune_prepare(Finetune *f);

// ---- finetune_plan.c ----------------------------------------------------------------------------

// The tokens of a sample: --seq-length, or what the longest conversation needs, or of texts up to 1024; at most the
// model's own window.
int finetune_window(const Finetune *f); // the model's
int finetune_seq_length(const Finetune *f);
// Chooses what is left of the options of train, so that its memory and its files fit on this machine, and fills `train`
// and `why`. ERR_UNAVAILABLE, ERR_CREATE say what would fit.
Status finetune_plan(Finetune *f);

// ---- finetune_record.c: DIR/finetune.json -------------------------------------------------------

// Reads the record of a fine-tuning that goes on, or begins a new one in a folder that is new or empty, and where
// another model, other data or other options are asked for before any step was saved. Fails with ERR_CREATE where the
// folder holds other files, ERR_CONFIG, which names the difference, where a step was saved, and ERR_UNAVAILABLE where a
// run is training there.
Status finetune_record_open(Finetune *f);
Status finetune_record_save(const Finetune *f);
void finetune_checkpoints(const Finetune *f, char path[4096]); // DIR/checkpoints
int64_t finetune_newest_step(const Finetune *f);               // of the checkpoints there; -1: there is none
