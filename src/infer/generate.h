// Text out of a model, token by token: B samples that begin with one prompt and go on side by side until each
// has ended.
//
// The loop knows a model as a function that gives the next token's logits. These are the same bits on every
// rank, so every rank runs the same loop, draws the same tokens and finds the same ends; only rank 0 has a
// listener. What the listener gets is text: whole UTF-8 characters, and never a part of a stop string.
#pragma once
#include "infer/model_job.h"

// ---- the text of one sample ---------------------------------------------------------------------

// Bytes in, as tokens bring them; characters out. Zero-initialise but for `stops`.
typedef struct {
    const char *const *stops; // none is empty; borrowed
    int num_stops;
    Text held; // bytes that wait: the start of a character, or of a stop string
} TextStream;

// Appends to `out` what can be given now; bytes that are no UTF-8 become U+FFFD. True: a stop string has come
// (of several the one that begins first), what stood before it is given, and nothing follows.
bool text_stream_add(TextStream *stream, const void *bytes, size_t size, Text *out);
void text_stream_finish(TextStream *stream, Text *out); // appends what still waits: no more bytes come
void text_stream_free(TextStream *stream);

// ---- generating ---------------------------------------------------------------------------------

// A model as the loop sees it: see infer_next.
typedef struct {
    void *self;
    int batch;      // B
    int capacity;   // tokens of one sequence, at most
    int longest;    // tokens of one call, at most
    int vocabulary; // entries of a row of logits
    void (*next)(void *self, const int32_t *tokens, int n, float *logits);
    bool (*stopped)(void *self); // asked before each call of `next`; all ranks get one answer
} TokenModel;

typedef enum { END_TOKEN, END_STOP, END_COUNT, END_CAPACITY, END_SIGNAL, NUM_ENDINGS } Ending;

typedef struct {
    const Tokenizer *tokenizer;
    const int32_t *prompt;
    int prompt_tokens; // 1 ... capacity
    int max_new_tokens;
    const char *const *stops;
    int num_stops;
    SampleOptions sampling;
    // Receives the next piece of a sample's text, not empty. NULL: nobody listens on this rank.
    void (*give)(void *self, int sample, const char *text, size_t size);
    void *self;
} GenerateSpec;

typedef struct {
    int num_endings[NUM_ENDINGS]; // of the samples; their sum is B
    int64_t new_tokens;           // of all samples, end tokens included
    double prompt_s, new_s;       // spent on the prompt, and after it
} GenerateReport;

// A sample ends at the tokenizer's end token, before a stop string, after max_new_tokens, with the token that
// follows a full capacity, or on a signal; one that has ended stays in the batch and is ignored. Tokens that
// the tokenizer does not know are never drawn. The text of sample b is a function of the model, the prompt,
// the options and b.   Collective over the model's ranks.   ERR_OS without memory.
Status generate(const TokenModel *model, const GenerateSpec *spec, GenerateReport *report);

// The tokens that text is to follow: the prompt's own, or for an empty one text_start. ERR_CONFIG when the
// tokenizer has no such token.
Status prompt_encode(const Tokenizer *tokenizer, const char *text, size_t size, TokenList *out);

// ---- trireme generate ---------------------------------------------------------------------------

// One run: reads the prompt, generates, gives text to standard output (one sample as it comes, several one
// after the other under headings) and says on standard error how fast. A RankMain: `arg` is the ModelJob.
// Collective over the world.   INTERRUPTED after a signal, when what there was has been given.
Status generate_run(Comm *world, void *arg);
