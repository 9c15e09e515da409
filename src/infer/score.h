// How likely a model finds given text: the perplexity of a data set, and the log-likelihood of continuations,
// as lm-evaluation-harness asks for them.
//
// Rank 0 reads, asks and adds up; the others follow it from batch to batch. The work knows a model as a
// function that scores a batch of token rows, each padded behind its end: in a causal model what follows a
// token changes nothing about it, so neighbours in a batch do not change a result beyond rounding.
#pragma once
#include "dataset/dataset.h"
#include "infer/model_job.h"

// A model as the work sees it: see infer_score.
typedef struct {
    void *self;
    int batch;   // B: rows side by side
    int longest; // tokens of a row, at most
    // False: a signal asked for an end, and nothing was computed.
    bool (*score)(void *self, int32_t *tokens, int32_t *labels, int n, float *nll, float *margin);
} ScoreModel;

// ---- perplexity ---------------------------------------------------------------------------------

// The tokens of sequences [first, end) of a data set as one text, in their order.
typedef struct {
    const IndexedDataset *data;
    SplitRange range;
    const Tokenizer *tokenizer; // to count bytes; NULL: they are not counted
    int window;                 // S: tokens that the model sees at once
} ScoreText;

typedef struct {
    int64_t tokens; // that were predicted: all but the first
    int64_t bytes;  // of their text; ends of documents have none
    double nats;    // their negative log-likelihood
} Perplexity;

// Windows of S tokens that do not overlap, each from its own start: every token but the first is predicted
// exactly once. ERR_DATA for less than two tokens, or one outside the vocabulary; INTERRUPTED.
Status score_text(const ScoreModel *model, const ScoreText *text, Perplexity *result);

// ---- requests -----------------------------------------------------------------------------------

// A continuation of a context: asked, then answered.
typedef struct {
    TokenList tokens;          // context and continuation, cut on the left to what the model can see
    int scored;                // how many of them, at the end, are the continuation
    bool cut;                  // part of the context was left out
    int64_t bytes, characters; // of the continuation; characters without the blank in front of it
    double log_likelihood;     // of the continuation, in nats
    bool greedy;               // each of its tokens was the most likely one
} Continuation;

// A line of the file: one continuation, or several to choose from.
typedef struct {
    int first, count; // its continuations
    bool choices;     // they were written as a list
    int label;        // the right one; -1: not said
} TextRequest;

typedef struct {
    TextRequest *items;
    int count;
    Continuation *continuations;
    int num_continuations;
    int64_t num_cut;
    int longest; // tokens that a model must be able to see at once
} Requests;

// JSON lines, {"context": "...", "continuation": "..."} or {"context": "...", "continuations": ["...", ...],
// "label": 0}, encoded at once: context and continuation as one text, of which the tokens that the context
// alone does not have are the continuation; blanks at the end of the context belong to the continuation; an
// empty context is text_start. `positions`: tokens that the model can see. ERR_DATA with `what` and the line.
// Source: lm-evaluation-harness, TemplateLM._encode_pair and HFLM._loglikelihood_tokens.
Status requests_parse(Requests *requests, const char *text, size_t size, const char *what,
                      const Tokenizer *tokenizer, int positions);
void requests_free(Requests *requests);
// Answers all, long ones first. INTERRUPTED.
Status requests_score(const ScoreModel *model, Requests *requests);
// One line of JSON for each request, in their order.
void requests_write(const Requests *requests, Text *out);

// Of the requests with a label: how many chose it by log-likelihood, and by log-likelihood per character.
typedef struct {
    int labelled, right, right_by_length;
} Choices;
Choices requests_choices(const Requests *requests);

// ---- trireme evaluate ---------------------------------------------------------------------------

// One run: --data-path or --requests. A RankMain: `arg` is the ModelJob.   Collective over the world.
Status evaluate_run(Comm *world, void *arg);
