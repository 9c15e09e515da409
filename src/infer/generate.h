// Generates text token by token: B samples side by side, of one prompt or of several, until each has ended.
//
// The model is a function that returns the logits of the next token. They have the same bits on every rank, so every
// rank runs the same loop, draws the same tokens and finds the same ends; only rank 0 has a callback for text. The
// callback receives whole UTF-8 characters and never a part of a stop string.
#pragma once
#include "infer/model_job.h"

// ---- the text of one sample ---------------------------------------------------------------------

// Turns the bytes of tokens into characters. Zero-initialise all fields except `stops`.
typedef struct {
    const char *const *stops; // none is empty; borrowed
    int num_stops;
    Text held; // bytes that are held back: the start of a character or of a stop string
} TextStream;

// Adds bytes, and appends to `out` the characters that are complete; invalid UTF-8 becomes U+FFFD. Returns true at a
// stop string (the first of several): the text before it has been appended, and nothing follows.
bool text_stream_add(TextStream *stream, const void *bytes, size_t size, Text *out);
void text_stream_finish(TextStream *stream, Text *out); // appends what is held back, at the end
void text_stream_free(TextStream *stream);

// ---- generating ---------------------------------------------------------------------------------

// The model that generates: see infer_next.
typedef struct {
    void *self;
    int batch;      // B
    int capacity;   // tokens of one sequence, at most
    int longest;    // tokens of one call, at most
    int vocabulary; // entries of a row of logits
    // Appends n tokens to each sequence after `position` others, 0 at the start of a batch.
    void (*next)(void *self, int position, const int32_t *tokens, int n, float *logits);
    bool (*stopped)(void *self); // called before each `next`; the answer is the same on all ranks
} TokenModel;

typedef enum { END_TOKEN, END_STOP, END_COUNT, END_CAPACITY, END_SIGNAL, NUM_ENDINGS } Ending;

// What a sample continues, and where it ends.
typedef struct {
    const int32_t *prompt;
    int prompt_tokens; // 1 ... capacity
    int max_new_tokens;
    const char *const *stops;
    int num_stops;
} SampleSpec;

typedef struct {
    const Tokenizer *tokenizer;
    const int32_t *ends; // each of these tokens ends a sample
    size_t num_ends;
    const SampleSpec *samples; // [B]
    int known_tokens;          // the first ones of all prompts, which the model has been given already
    SampleOptions sampling;
    // Optional callback: receives the next piece of a sample's text, which is not empty.
    void (*give)(void *self, int sample, const char *text, size_t size);
    void *self;
} GenerateSpec;

typedef struct {
    int num_endings[NUM_ENDINGS]; // of the samples; their sum is B
    int64_t new_tokens;           // of all samples, including end tokens
    double prompt_s, new_s;       // time for the prompt, and after it
} GenerateReport;

// Generates B samples. The model sees the tokens that all prompts have at once, and then one token of every sample
// after the other: of its prompt as long as there are any, and its own. A sample ends at an end token,
// before a stop string, after max_new_tokens, with the token that follows a full capacity, or on a signal; after its
// end it stays in the batch and is ignored. Tokens that the tokenizer does not have are never drawn. The text of sample
// b is a function of the model, its prompt, the options and b.   Collective over the model's ranks.   ERR_OS without
// memory.
Status token_model_generate(const TokenModel *model, const GenerateSpec *spec, GenerateReport *report);

// The model of a job, opened to generate.
typedef struct {
    const ModelJob *job;
    Comm *world;
    Infer *infer;
    int batch, capacity, longest; // see TokenModel
    TokenList *seen;              // optional, of a batch of 1: receives the tokens that the model is given
} JobModel;

// What the options of `generate` say of a sample, and of all: the caller adds the callback.
SampleSpec job_sample(const ModelJob *job, const TokenList *prompt, int max_new_tokens);
GenerateSpec job_generate_spec(const ModelJob *job, const SampleSpec *samples);
// token_model_generate with the model of a job.   Collective over its world.
Status job_generate(JobModel *model, const GenerateSpec *spec, GenerateReport *report);

// Encodes a prompt. With `adds_bos` the beginning of text is put before it where the tokenizer does that to a text
// (TokenizerUse) and the prompt does not begin with it. An empty one becomes the token of text_start; fails with
// ERR_CONFIG when the tokenizer has none.
Status prompt_encode(const Tokenizer *tokenizer, const char *text, size_t size, bool adds_bos,
                     TokenList *out);

// ---- trireme generate ---------------------------------------------------------------------------

// Runs the verb: reads the prompt, generates, and prints the text (a single sample as it is made, several one after
// the other under headings); the speed goes to standard error. A RankMain: `arg` is the ModelJob.
// Collective over the world.   Returns INTERRUPTED after a signal, when the text so far has been printed.
Status generate_run(Comm *world, void *arg);
// Runs the verb with --prompts: JSON lines in, {"prompt": "...", "adapter": "NAME", "max_new_tokens": N}, of which the
// last two may be left out, and JSON lines out, {"adapter": "NAME" or null, "text": "..."}, in their order. Otherwise
// the same.
Status generate_prompts_run(Comm *world, void *arg);
// The same with --chat: reads messages from standard input, a line each, and prints an answer to each; or to --prompt
// alone. A line that is longer than the model can see is left out with a note. Fails with ERR_CONFIG where the model
// has no chat template, or --prompt or --system is longer than that; ERR_IO where standard input cannot be read.
// Collective over the world.
Status chat_run(Comm *world, void *arg);
