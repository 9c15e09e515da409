// Text files in, a data set and its tokenizer out: what `trireme preprocess` does.
#pragma once
#include "tokenizer/tokenizer.h"
#include <stdatomic.h>
#include <stdio.h>

// What a tokenizer is trained on: as preprocess reads it, the first PREPROCESS_TRAIN_BYTES.
typedef struct {
    const char *const *inputs; // files, folders, "-"
    int num_inputs;
    const char *const *json_keys; // of .jsonl and .json lines
    int num_json_keys;
    int64_t max_bytes;         // whole documents; 0: all
    bool skip_bad_lines;       // of JSON: they are left out
    const atomic_int *stopped; // not 0: a signal asks for an end; NULL: none can
} TrainingText;

// What skip_bad_lines left out. Zero-initialise; the caller frees `which`.
typedef struct {
    int64_t bad_lines;
    Text which; // a line on each of the first
} LeftOut;

// On this thread. INTERRUPTED when `stopped` is set.
Status tokenizer_train_text(Tokenizer **tokenizer, TrainingText text, int vocab_size, LeftOut *left_out);

// ---- trireme preprocess -------------------------------------------------------------------------------

// Text files, folders, JSON lines, archives of them, standard input -> dataset and tokenizer. docs/data.md
// has the rules. Memory does not grow with the input.
typedef struct {
    const char *const *inputs; // files, folders, "-"
    int num_inputs;
    const char *output_prefix;
    const char *const *json_keys; // of .jsonl and .json lines
    int num_json_keys;
    bool append_eod;
    bool skip_bad_lines;                 // of JSON: they are left out and counted
    int workers;                         // threads; the output does not depend on it
    int64_t max_bytes;                   // of input, whole documents; 0: all
    const char *vocab_file, *merge_file; // a tokenizer to load,
    const char *tokenizer_path;          //   or one to load with tokenizer_open_path,
    int null_size;                       //   or > 0: the null tokenizer,
    int vocab_size;                      //   or one to train on the first PREPROCESS_TRAIN_BYTES of the input
    FILE *progress;                      // NULL: silent
    bool plain;                          // lines only, also on a terminal
    int64_t log_documents;     // where there are lines: one at least every so many documents; 0: by time
    const atomic_int *stopped; // not 0: a signal asks for an end; NULL: none can
} PreprocessJob;

enum { PREPROCESS_TRAIN_BYTES = 128 << 20 };

typedef struct {
    int64_t files, skipped_binary; // read; left out because they contain a NUL
    int64_t bad_lines;             // left out with skip_bad_lines
    Text left_out; // on the first of them, and on the first binary file of a known format, a line each;
                   //   the caller's to free when the run was OK
    int64_t documents, tokens;
    int64_t bytes;      // of input, decompressed
    int64_t text_bytes; // of the documents: without the JSON around them
    int vocab_size;
    bool vocab_trained;
    double train_s, encode_s;
} PreprocessSummary;

// Exactly the first that is given of: vocab_file with merge_file, tokenizer_path, null_size, vocab_size.
// INTERRUPTED when `stopped` is set while text is read, counted or encoded: then nothing has been written.
Status preprocess_run(const PreprocessJob *job, PreprocessSummary *summary);
