// Inference: the logits of the next token, with a cache of keys and values, and the log-likelihood of given text,
// on any grid of tensor and pipeline parallel ranks.
//
// It runs the trainer's own layers, forward only, one stage per pipeline rank, with a key-value cache in place of the
// stash. Results have the same bits on every rank, so all ranks sample the same tokens without a message.
#pragma once
#include "checkpoint/checkpoint.h"
#include "layout/topology.h"
#include "model/model.h"

typedef struct {
    Grid grid;              // with one replica
    const char *device;     // kind
    int threads;            // per rank
    int ranks_per_gpu;      // see RuntimeSpec
    const char *algorithms; // see RuntimeSpec; borrowed
    DType dtype;
    int batch;    // B: sequences side by side
    int capacity; // positions of a sequence, prompt and answer together
    int longest;  // the most positions of one call; 1 <= longest <= capacity
    bool cache;   // false: infer_next computes all positions again each time (for comparison)
} InferSpec;

typedef struct Infer Infer;

// Allocates memory and reads this rank's share of each weight from the source that this rank has opened. Nothing is
// allocated later.   Collective over the world.   ERR_CONFIG when the grid does not divide the model (the number of
// layers need not be divisible) or the capacity exceeds a learned position table.
Status infer_open(Infer **infer, ModelSource *source, const InferSpec *spec, Comm *world);
void infer_close(Infer *infer);
const ModelShape *infer_shape(const Infer *infer);

// Appends n tokens to each sequence, tokens [n, B] (row s*B + b), and computes the logits of the token after them:
// logits [B, vocabulary] on every rank; NULL: this rank needs none.   Collective over the world.
void infer_next(Infer *infer, const int32_t *tokens, int n, float *logits);
// Has the model compute with another of the adapters that `source`, from which it was opened and which is served, has;
// -1: as the base does. At first it computes with the first one. Call infer_rewind(0) before what follows.   Collective
// over the world; reads A and B.
Status infer_choose(Infer *infer, ModelSource *source, int adapter, Comm *world);
int infer_position(const Infer *infer);        // tokens of each sequence so far
void infer_rewind(Infer *infer, int position); // removes the tokens from `position` on
// Appends n tokens like infer_next, and computes what infer_score does of labels [n, B] after them, of which each sees
// all tokens before it. Without labels (NULL) it only appends. Needs a cache.   Collective over the world.
void infer_append(Infer *infer, const int32_t *tokens, const int32_t *labels, int n, float *nll,
                  float *margin);
// Computes the negative log-likelihood of labels [n, B] after tokens [n, B], in nats: nll [n, B] on every rank, n
// <= longest. The tokens that were appended before are neither used nor changed. `margin` [n, B] (may be NULL)
// receives the label's logit minus the largest one: 0 where the label is the most likely token.   Collective over
// the world.
void infer_score(Infer *infer, const int32_t *tokens, const int32_t *labels, int n, float *nll,
                 float *margin);

// ---- sampling -----------------------------------------------------------------------------------

typedef struct {
    double temperature; // 0: the largest logit, of equal ones the first
    int top_k;          // 0: all
    double top_p;       // 1: all; after top_k
    uint64_t seed;
} SampleOptions;

// Draws a token with one uniform number of the counter-based generator. The token is a function of the logits, the
// options, the number of the sample and the position. `scratch` [vocabulary] is overwritten.
typedef struct {
    float logit;
    int32_t token;
} TokenLogit;
int32_t sample_token(const float *logits, int vocabulary, const SampleOptions *options, int sample,
                     int position, TokenLogit *scratch);
