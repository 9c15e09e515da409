// The model of `generate` and `evaluate`: it is found and checked before any rank starts, then opened on all ranks.
#pragma once
#include "config/config.h"
#include "infer/infer.h"
#include <stdatomic.h>

typedef struct {
    const Options *options;
    const atomic_int *stopped; // optional: the number of a signal that asked to stop, 0 before
    int threads;               // per rank
    Grid grid;
    char *path;  // of the model
    char *files; // the folder of its chat template: with an adapter that of its base
    ModelShape shape;
    Tokenizer *tokenizer;        // NULL: the folder has none and no option names one
    TokenList ends;              // each of these tokens ends a text (model_source_ends)
    struct Perplexity *measured; // optional: receives what evaluate would print of a data set
} ModelJob;

// Opens a model with the adapters of the options, merged or, where prompts choose theirs, to be chosen; with its moving
// average and with values that are not finite where the options say so. `step` as in model_source_open, which says how
// it fails, with model_source_adapt and model_source_merge.
Status model_open(const Options *options, const char *path, int64_t step, ModelSource **source);

// Finds the model of --load and its tokenizer (--tokenizer-model, or else the one in the folder of the weights), and
// checks that `ranks` ranks can share it as the options say. Fails with ERR_USAGE, ERR_CONFIG, or as opening either
// fails.
Status model_job_open(ModelJob *job, const Options *options, int ranks);
void model_job_close(ModelJob *job); // takes one that was not opened
// Fails with ERR_CONFIG when there is no tokenizer or it has more tokens than the model.
Status model_job_needs_tokenizer(const ModelJob *job);

// The largest number of tokens of a text: the rows of a learned position table, else INT_MAX.
int model_job_positions(const ModelJob *job);
// The same, but without a table the length that the model was trained with.
int model_job_trained_positions(const ModelJob *job);

// Opens the model on the ranks and reads the weights.   Collective over the world; see infer_open.
Status model_job_infer(const ModelJob *job, Comm *world, InferSpec spec, Infer **infer);
// The two parts of it: opens the source, which the caller closes, also after a failure; and the model from it.
Status model_job_source(const ModelJob *job, Comm *world, ModelSource **source);
Status model_job_infer_from(const ModelJob *job, ModelSource *source, Comm *world, InferSpec spec,
                            Infer **infer);
// True on all ranks once a signal has reached any rank.   Collective over the world.
bool model_job_stopped(const ModelJob *job, Comm *world);

// The token before the first token of a text: the tokenizer's beginning of text, or else its end of document; -1: it
// has neither.
int32_t text_start(const Tokenizer *tokenizer);
// The token that the tokenizer puts before each text (TokenizerUse). *begin -1: it puts none there.
Status text_beginning(const Tokenizer *tokenizer, int32_t *begin);
// Appends a text of these tokens, after `begin` unless that is -1 or they begin with it.
void text_add_tokens(int32_t begin, const TokenList *tokens, TokenList *out);
// Reads a whole file, or standard input for "-". The data are NUL-terminated; the caller frees them.
Status input_read(const char *path, size_t max_bytes, char **data, size_t *size);
