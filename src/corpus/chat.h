// Makes a data set of conversations, of which a model is trained on the answers alone: `trireme prepare-chat`.
//
// The data set is two indexed ones of the same shape: PREFIX has the tokens, PREFIX_loss_mask a 1 for each token that
// is trained and a 0 for every other. A sequence is a conversation, and a document is a sample: the conversations that
// are packed into one window. In a data set of preferences a sample is a pair, of two sequences, and the mask is
// PREFIX_preference_mask. docs/finetune.md has the rules.
#pragma once
#include "corpus/corpus.h"

typedef enum { CHAT_REFUSE, CHAT_TRUNCATE, CHAT_DROP } ChatTooLong;

// A conversation as it is trained on. Borrowed for the call.
typedef struct {
    const char *path;
    int64_t line;
    const char *answer; // of a pair, "chosen" or "rejected"; else NULL
    const Tokenizer *tokenizer;
    const int32_t *tokens, *mask; // [count]
    size_t count;
    int64_t whole; // tokens before it was truncated
} ChatSample;

typedef struct {
    const char *const *inputs; // files and folders of JSON lines, "-"
    int num_inputs;
    const char *output_prefix;  // NULL: nothing is written, and reading ends after `num_shown`
    const char *tokenizer_path; // for tokenizer_open_path
    const char *template;       // a file, or the name of a built-in one; NULL: the model's own
    int seq_length;             // a sample has at most seq_length + 1 tokens
    bool preferences;           // lines are pairs, and so are samples
    bool pack;                  // several conversations to a sample
    bool last_answer_only;      // earlier answers are not trained
    ChatTooLong too_long;       // what becomes of a longer conversation
    int window;                 // of the model, for messages; 0: unknown
    bool skip_bad_lines;
    int workers;
    int64_t max_bytes; // of input; 0: all
    // Optional callback: gets each of the first `num_shown` conversations, in order, on the caller's thread.
    Status (*show)(void *self, const ChatSample *sample);
    void *self;
    int64_t num_shown;
    FILE *progress; // NULL: silent
    bool plain;
    const atomic_int *stopped; // optional
} ChatJob;

typedef struct {
    int64_t conversations, samples; // written; of preferences both are pairs
    int64_t tokens, trained;        // of these
    int64_t truncated, dropped; // longer than a sample; dropped also where truncation left nothing to train
    int64_t longest;            // tokens of the longest conversation that was read
    int64_t bad_lines;          // left out with skip_bad_lines
    Text left_out;              // one line about each of the first; the caller frees it after OK
    int64_t other_files;        // of folders, left out beside JSON lines
    int64_t bytes;              // read
    int vocab_size;
} ChatSummary;

// Returns INTERRUPTED when `stopped` is set; then nothing has been written. Fails with ERR_DATA that names file and
// line.
Status chat_prepare(const ChatJob *job, ChatSummary *summary);
// Returns the text of a built-in template, or NULL; `names` receives all names.
const char *chat_template_source(const char *name, Text *names);
