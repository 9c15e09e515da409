// What `generate` and `evaluate` have in common: a trained model, found and checked before any rank starts,
// then opened on all of them.
#pragma once
#include "config/config.h"
#include "infer/infer.h"
#include <stdatomic.h>

typedef struct {
    const Options *options;
    const atomic_int *stopped; // a signal asked for a clean end; NULL: none can
    int threads;               // per rank
    Grid grid;
    char *path; // of the model that was chosen
    ModelShape shape;
    Tokenizer *tokenizer; // NULL: none lies beside the weights and none is named
} ModelJob;

// Finds the model of --load, its tokenizer (--tokenizer-model before the one beside the weights), and whether
// `ranks` ranks can share it as the options say. ERR_USAGE, ERR_CONFIG, and what opening either says.
Status model_job_open(ModelJob *job, const Options *options, int ranks);
void model_job_close(ModelJob *job); // takes one that was not opened
// ERR_CONFIG when there is no tokenizer or it has more tokens than the model.
Status model_job_needs_tokenizer(const ModelJob *job);

// Tokens of one text: with a learned position table its rows, else INT_MAX.
int model_job_positions(const ModelJob *job);
// The same, but where nothing else limits it the length that the model was trained with.
int model_job_trained_positions(const ModelJob *job);

// Takes memory and reads the weights.   Collective over the world; see infer_open.
Status model_job_infer(const ModelJob *job, Comm *world, InferSpec spec, Infer **infer);
// Whether a signal has reached any rank.   Collective over the world.
bool model_job_stopped(const ModelJob *job, Comm *world);

// The token that stands before the first of a text: the tokenizer's beginning of text, or else its end of
// document; -1: it has neither.
int32_t text_start(const Tokenizer *tokenizer);
// A whole file, or with "-" standard input, NUL-terminated; the caller frees.
Status input_read(const char *path, size_t max_bytes, char **data, size_t *size);
