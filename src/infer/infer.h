// A trained model at work: the next token's logits with a cache of keys and values, and the log-likelihood of
// given text, on any grid of tensor and pipeline parallel ranks.
//
// A pipeline of one stage per pipeline rank, forward only: the trainer's own layers with a key-value cache
// in place of a stash. Everything a rank answers is the same bits on every rank, so all of them can sample
// alike and nobody has to be told.
#pragma once
#include "checkpoint/checkpoint.h"
#include "layout/topology.h"
#include "model/model.h"

typedef struct {
    Grid grid;          // dp is 1
    const char *device; // kind
    int threads;        // per rank
    DType dtype;
    int batch;    // B: sequences side by side
    int capacity; // positions of a sequence, prompt and answer together
    int longest;  // positions of one call at most; 1 <= longest <= capacity
    bool cache;   // false: infer_next computes everything anew each time (to compare)
} InferSpec;

typedef struct Infer Infer;

// Takes memory and reads the weights, this rank's share of each, from a source of its own; nothing is
// allocated after this.   Collective over the world.   ERR_CONFIG when the grid does not divide the model
// (any number of layers will do) or the capacity passes a learned position table.
Status infer_open(Infer **infer, ModelSource *source, const InferSpec *spec, Comm *world);
void infer_close(Infer *infer);
const ModelShape *infer_shape(const Infer *infer);

// Appends n tokens to each sequence, tokens [n, B] (row s*B + b), and gives the logits of the token that
// follows the last of them: logits [B, vocabulary] on every rank.   Collective over the world.
void infer_next(Infer *infer, const int32_t *tokens, int n, float *logits);
int infer_position(const Infer *infer);        // tokens of each sequence so far
void infer_rewind(Infer *infer, int position); // forgets those from `position` on
// The negative log-likelihood of labels [n, B] after tokens [n, B], in nats: nll [n, B] on every rank, n <=
// longest. On its own: what was appended before is neither seen nor forgotten. `margin` [n, B] (may be NULL):
// the label's logit less the largest one, 0 where the label is the most likely token.   Collective over the
// world.
void infer_score(Infer *infer, const int32_t *tokens, const int32_t *labels, int n, float *nll,
                 float *margin);

// ---- sampling -----------------------------------------------------------------------------------

typedef struct {
    double temperature; // 0: the largest logit, of equal ones the first
    int top_k;          // 0: all
    double top_p;       // 1: all; after top_k
    uint64_t seed;
} SampleOptions;

// A token, as a function of the logits, the options, the sample's number and the position alone: one uniform
// number of the counter-based generator each. `scratch` [vocabulary] is used up.
typedef struct {
    float logit;
    int32_t token;
} Candidate;
int32_t sample_token(const float *logits, int vocabulary, const SampleOptions *options, int sample,
                     int position, Candidate *scratch);
