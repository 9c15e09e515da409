// Measures how likely a model finds given text: the perplexity of a data set, and the log-likelihoods of continuations
// as lm-evaluation-harness uses them.
//
// Rank 0 reads the text and adds up the results; the others compute its batches. The model is a function that scores a
// batch of token rows, each padded after its end. A causal model does not see later tokens, so padding and other rows
// do not change a result beyond rounding.
#pragma once
#include "dataset/dataset.h"
#include "formats/formats.h"
#include "infer/model_job.h"

// The model that scores.
typedef struct {
    void *self;
    int batch;   // B: rows side by side
    int longest; // tokens of a row in one call, at most
    bool cache;  // it can go on after tokens that it has seen
    // Scores labels [n, B] after tokens [n, B] as infer_score does. Without a cache `position` is 0; with one the
    // tokens come after the first `position` tokens of earlier calls, and labels NULL mean that the tokens are only
    // seen. Returns false when a signal asked to stop; then nothing was computed.
    bool (*score)(void *self, int position, int32_t *tokens, int32_t *labels, int n, float *nll,
                  float *margin);
    void (*done)(void *self, int count); // optional callback: so many continuations more are scored
} ScoreModel;

// ---- perplexity ---------------------------------------------------------------------------------

// One text: the tokens of sequences [first, end) of a data set in their order.
typedef struct {
    const IndexedDataset *data;
    SplitRange range;
    const Tokenizer *tokenizer; // counts bytes; NULL: bytes are not counted
    int window;                 // S: tokens that the model sees at once
} ScoreText;

typedef struct Perplexity {
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
    Perplexity *each; // [sequences of the range], of each conversation; NULL: not wanted
} ScoreChats;

// Scores each conversation by itself, and adds up the tokens that are trained. Fails with ERR_DATA for a conversation
// longer than the model's rows, and where no token is trained; INTERRUPTED.
Status score_chats(const ScoreModel *model, const ScoreChats *chats, Perplexity *result);

// ---- continuations ------------------------------------------------------------------------------

// A continuation of a context, and its score.
typedef struct {
    TokenList tokens; // context and continuation, cut on the left to the length that the model can see
    int scored;       // tokens at the end that are the continuation
    int question;     // continuations of one context lie side by side and have the same number here
    bool cut;         // part of the context was left out
    bool blank;       // the continuation begins with a blank, which joins it to its context
    int64_t bytes, characters; // of the continuation; characters without that blank
    double log_likelihood;     // of the continuation, in nats
    bool greedy;               // each of its tokens was the most likely one
} Continuation;

typedef struct {
    Continuation *items;
    int count;
    int questions;
    int64_t num_cut;
    int longest; // the most tokens that the model must see at once
    size_t capacity;
} Continuations;

// Encodes texts as continuations.
typedef struct {
    Continuations *out;
    Encoder *encoder;
    const Tokenizer *tokenizer;
    int positions;     // tokens that the model can see
    int32_t begin;     // text_beginning
    const char *where; // file and line, for messages; the caller sets it
} PairEncoder;

// Opens an encoder that adds to `out`, which is zeroed or holds continuations of the same model.
Status pair_encoder_open(PairEncoder *pairs, Continuations *out, const Tokenizer *tokenizer, int positions);
void pair_encoder_close(PairEncoder *pairs);
// Adds a continuation of question `out->questions`. Context and continuation are encoded as one text; its tokens after
// as many as the context alone has are the continuation. Blanks at the end of the context belong to the continuation.
// An empty context becomes text_start. Fails with ERR_DATA, which says where.
// Source: lm-evaluation-harness, TemplateLM._encode_pair and HFLM._loglikelihood_tokens.
Status pair_encoder_add(PairEncoder *pairs, const char *context, size_t context_bytes,
                        const char *continuation, size_t bytes);
// Adds a whole text as windows, each a question of its own, in which every token is predicted exactly once; the last
// window begins earlier, so that its first tokens are only seen.
// Source: lm-evaluation-harness, get_rolling_token_windows and make_disjoint_window.
Status pair_encoder_add_text(PairEncoder *pairs, const char *text, size_t bytes);
// Encodes a prompt, with the beginning of text where the tokenizer puts one before it.
Status pair_encoder_prompt(PairEncoder *pairs, const char *text, size_t bytes, TokenList *out);

void continuations_free(Continuations *c);
// Scores all of them, long ones first. With a cache the tokens that the continuations of a question have in common at
// the beginning are computed once. May return INTERRUPTED.
Status continuations_score(const ScoreModel *model, Continuations *c);

// ---- JSON lines ---------------------------------------------------------------------------------

bool is_python_blank(char c); // an ASCII character that Python's str.strip removes
// Parses each line that is not blank and gives it to `take` with its place, "FILE:LINE". Fails with ERR_DATA, which
// says where, or as `take` does.
Status json_lines_read(const char *text, size_t size, const char *what,
                       Status (*take)(void *self, const Json *line, const char *where), void *self);

// ---- requests -----------------------------------------------------------------------------------

// A line of the file: one continuation, or several choices.
typedef struct {
    int first, count; // its continuations
    bool choices;     // they were written as a list
    int label;        // the right one; -1: unknown
} TextRequest;

typedef struct {
    TextRequest *items;
    int count;
    size_t capacity;
    Continuations continuations;
} Requests;

// Reads JSON lines, {"context": "...", "continuation": "..."} or {"context": "...", "continuations": ["...", ...],
// "label": 0}, and encodes them. `positions` is the number of tokens that the model can see. Fails with ERR_DATA, which
// names `what` and the line.
Status requests_parse(Requests *requests, const char *text, size_t size, const char *what,
                      const Tokenizer *tokenizer, int positions);
void requests_free(Requests *requests);
// Writes one line of JSON for each request, in their order.
void requests_write(const Requests *requests, Text *out);

// The requests with a label, and how many of them choose it by log-likelihood and by log-likelihood per character.
typedef struct {
    int labelled, right, right_by_length;
} Choices;
Choices requests_choices(const Requests *requests);

// The log-likelihood of a continuation: as it is, or per character or byte, of which the blank before it is none.
typedef enum { PER_CONTINUATION, PER_CHARACTER, PER_BYTE } Normalised;
// The number, from 0, of the best of `count` continuations; of equally good ones the first.
int best_continuation(const Continuation *c, int count, Normalised by);

// ---- trireme evaluate ---------------------------------------------------------------------------

// Runs the verb with --data-path, --requests or --task. A RankMain: `arg` is the ModelJob.   Collective over the world.
Status evaluate_run(Comm *world, void *arg);
