// Measures how likely a model finds given text: the perplexity of a data set, and the log-likelihoods of continuations
// as lm-evaluation-harness uses them.
//
// Rank 0 reads the text and adds up the results; the others compute its batches. The model is a function that scores a
// batch of token rows, each padded after its end. A causal model does not see later tokens, so padding and other rows
// do not change a result beyond rounding.
#pragma once
#include "dataset/dataset.h"
#include "infer/model_job.h"

// The model that scores: see infer_score.
typedef struct {
    void *self;
    int batch;   // B: rows side by side
    int longest; // tokens of a row, at most
    // Returns false when a signal asked to stop; then nothing was computed.
    bool (*score)(void *self, int32_t *tokens, int32_t *labels, int n, float *nll, float *margin);
} ScoreModel;

// ---- perplexity ---------------------------------------------------------------------------------

// One text: the tokens of sequences [first, end) of a data set in their order.
typedef struct {
    const IndexedDataset *data;
    SplitRange range;
    const Tokenizer *tokenizer; // counts bytes; NULL: bytes are not counted
    int window;                 // S: tokens that the model sees at once
} ScoreText;

typedef struct {
    int64_t tokens; // predicted tokens: all except the first
    int64_t bytes;  // of their text; end tokens have none
    double nats;    // their negative log-likelihood
} Perplexity;

// Scores the text in windows of S tokens that do not overlap, so that every token except the first is predicted
// exactly once. Fails with ERR_DATA for less than two tokens or a token outside the vocabulary; INTERRUPTED.
Status score_text(const ScoreModel *model, const ScoreText *text, Perplexity *result);

// ---- conversations ------------------------------------------------------------------------------

// Conversations that were prepared for training on the answers: sequences [first, end) of a data set with its loss
// mask.
typedef struct {
    const IndexedDataset *data, *mask;
    SplitRange range;
} ScoreChats;

// Scores each conversation by itself, and adds up the tokens that are trained. Fails with ERR_DATA for a conversation
// longer than the model's rows, and where no token is trained; INTERRUPTED.
Status score_chats(const ScoreModel *model, const ScoreChats *chats, Perplexity *result);

// ---- requests -----------------------------------------------------------------------------------

// A continuation of a context, and its score.
typedef struct {
    TokenList tokens; // context and continuation, cut on the left to the length that the model can see
    int scored;       // tokens at the end that are the continuation
    bool cut;         // part of the context was left out
    int64_t bytes, characters; // of the continuation; characters without the blank before it
    double log_likelihood;     // of the continuation, in nats
    bool greedy;               // each of its tokens was the most likely one
} Continuation;

// A line of the file: one continuation, or several choices.
typedef struct {
    int first, count; // its continuations
    bool choices;     // they were written as a list
    int label;        // the right one; -1: unknown
} TextRequest;

typedef struct {
    TextRequest *items;
    int count;
    Continuation *continuations;
    int num_continuations;
    int64_t num_cut;
    int longest; // the most tokens that the model must see at once
} Requests;

// Reads JSON lines, {"context": "...", "continuation": "..."} or {"context": "...", "continuations": ["...", ...],
// "label": 0}, and encodes them. Context and continuation are encoded as one text; its tokens after as many as the
// context alone has are the continuation. Blanks at the end of the context belong to the continuation. An empty context
// becomes text_start. `positions` is the number of tokens that the model can see. Fails with ERR_DATA, which names
// `what` and the line.
// Source: lm-evaluation-harness, TemplateLM._encode_pair and HFLM._loglikelihood_tokens.
Status requests_parse(Requests *requests, const char *text, size_t size, const char *what,
                      const Tokenizer *tokenizer, int positions);
void requests_free(Requests *requests);
// Scores all continuations, long ones first. May return INTERRUPTED.
Status requests_score(const ScoreModel *model, Requests *requests);
// Writes one line of JSON for each request, in their order.
void requests_write(const Requests *requests, Text *out);

// The requests with a label, and how many of them choose it by log-likelihood and by log-likelihood per character.
typedef struct {
    int labelled, right, right_by_length;
} Choices;
Choices requests_choices(const Requests *requests);

// ---- trireme evaluate ---------------------------------------------------------------------------

// Runs the verb with --data-path or --requests. A RankMain: `arg` is the ModelJob.   Collective over the world.
Status evaluate_run(Comm *world, void *arg);
