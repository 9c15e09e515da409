// Makes a data set, and a tokenizer where asked, from text files: `trireme preprocess`, `trireme tokenizer`.
#pragma once
#include "tokenizer/tokenizer.h"
#include <stdatomic.h>
#include <stdio.h>

// The text to train a tokenizer on. It is read as preprocess reads it, up to PREPROCESS_TRAIN_BYTES.
typedef struct {
    const char *const *inputs; // files, folders, "-"
    int num_inputs;
    const char *const *json_keys; // to read of .jsonl and .json lines
    int num_json_keys;
    int64_t max_bytes;         // of whole documents; 0: all
    bool skip_bad_lines;       // leave bad lines of JSON out
    const atomic_int *stopped; // optional: the number of a signal that asked to stop, 0 before
} TrainingText;

// The lines that skip_bad_lines left out. Zero-initialise it; the caller frees `which`.
typedef struct {
    int64_t bad_lines;
    Text which; // one line about each of the first ones
} LeftOut;

// Trains a tokenizer on the current thread. Returns INTERRUPTED once `stopped` is set.
Status tokenizer_train_text(Tokenizer **tokenizer, TrainingText text, int vocab_size, LeftOut *left_out);

// What training data hold. Looks at the first document of a file or folder: JSON with a key of conversations (chat.h),
// or text, in a file of its own or under one of `keys`. Of a folder the .jsonl files decide, else a .json file that
// begins with a conversation, else all. Sets `place` to that of the document, "FILE:LINE" or "FILE". Fails
// with ERR_DATA, which names file and line, where it is neither, for an empty file, and for a list of conversations.
typedef enum { HOLDS_TEXT, HOLDS_CONVERSATIONS, HOLDS_PAIRS } CorpusContents; // PAIRS: of answers, for --dpo
Status corpus_look(const char *input, const char *const *keys, int num_keys, CorpusContents *contents,
                   Text *place);

// ---- trireme preprocess -------------------------------------------------------------------------------

// Reads text files, folders, JSON lines, archives of them and standard input, and writes a dataset and its
// tokenizer. docs/data.md has the rules. Memory does not grow with the input.
typedef struct {
    const char *const *inputs; // files, folders, "-"
    int num_inputs;
    const char *output_prefix;
    const char *const *json_keys; // to read of .jsonl and .json lines
    int num_json_keys;
    bool append_eod;
    bool skip_bad_lines;                 // leave bad lines of JSON out and count them
    int workers;                         // threads; the output does not depend on it
    int64_t max_bytes;                   // of input, in whole documents; 0: all
    const char *vocab_file, *merge_file; // a tokenizer to load,
    const char *tokenizer_path;          //   or one to load with tokenizer_open_path,
    int null_size;                       //   or > 0: the null tokenizer,
    int vocab_size;                      //   or one to train on the first PREPROCESS_TRAIN_BYTES of the input
    FILE *progress;                      // NULL: silent
    bool plain;                          // print progress as lines, also on a terminal
    int64_t log_documents;     // of lines: print at least one per so many documents; 0: by time alone
    const atomic_int *stopped; // optional: the number of a signal that asked to stop, 0 before
} PreprocessJob;

enum { PREPROCESS_TRAIN_BYTES = 128 << 20 };

typedef struct {
    int64_t files, skipped_binary; // files read; files left out because they contain a NUL
    int64_t bad_lines;             // left out with skip_bad_lines
    Text left_out; // one line about each of the first bad lines, and about the first binary file of a known
                   //   format; the caller frees it after a run that returned OK
    int64_t documents, tokens;
    int64_t bytes;      // of input, decompressed
    int64_t text_bytes; // of the documents, without the JSON around them
    int vocab_size;
    bool vocab_trained;
    double train_s, encode_s;
} PreprocessSummary;

// The first of these that is set decides: vocab_file with merge_file, tokenizer_path, null_size, vocab_size. Returns
// INTERRUPTED when `stopped` is set while text is read, counted or encoded; then nothing has been written.
Status preprocess_run(const PreprocessJob *job, PreprocessSummary *summary);
