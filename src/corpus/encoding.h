// The work of one thread of preprocess: encodes a batch of documents, with one list of tokens per JSON key, or
// counts their pieces while a tokenizer is trained.
#pragma once
#include "corpus/corpus.h"
#include "corpus/corpus_reader.h"
#include "corpus/json_line.h"
#include "dataset/dataset.h"

// Some tokens in a row: of a document, or of one sentence where a document is a list of sentences.
typedef struct {
    size_t tokens;
    bool sentence; // it begins a sequence of its own
    bool ends;     // the document ends with it
} TokenRun;

typedef struct {
    TokenList tokens; // of all runs, one after another
    TokenRun *parts;
    size_t num_parts, capacity;
    size_t good_tokens, good_parts; // those before the document that is being encoded
} Output;

enum { MAX_BAD_SHOWN = 5 };

typedef struct {
    DocumentBatch batch;
    Output *outputs;       // [num_outputs]
    PieceCounter *counter; // used instead of the outputs while a tokenizer is trained
    int64_t text_bytes;    // of all documents
    int64_t good_bytes;    // of those before the document that is being encoded
    int64_t num_bad;       // documents that were left out
    Text bad;              // one line about each of the first MAX_BAD_SHOWN
} BatchSlot;

// The tools of one thread.
typedef struct {
    Encoder *encoder;
    const Tokenizer *tokenizer; // of the encoder
    bool may_cut;               // the tokenizer allows to cut long texts
    bool skip_bad_lines;
    JsonLine json;
    const atomic_int *stopped;
} Worker;

void slot_open(BatchSlot *slot, int num_outputs);
void slot_close(BatchSlot *slot, int num_outputs);

void worker_open(Worker *worker, const char *const *json_keys, int num_json_keys, bool skip_bad_lines,
                 const atomic_int *stopped);
// From now on the worker encodes with this tokenizer; before, it counts pieces.
Status worker_encodes(Worker *worker, const Tokenizer *tokenizer, bool may_cut);
void worker_close(Worker *worker);

// Encodes or counts the batch. Returns INTERRUPTED once `stopped` is set. A line that is not a JSON object with
// all keys, or whose text cannot be encoded, ends it with ERR_DATA that names file and line; with skip_bad_lines
// the line is left out and counted instead.
Status encode_batch(Worker *worker, BatchSlot *slot);
// Adds the number of the slot's bad lines to a count, and their messages to a text while that has fewer than
// MAX_BAD_SHOWN.
void slot_note_bad(const BatchSlot *slot, int64_t *bad_lines, Text *left_out);
// Frees the memory that large documents took in a slot that has been consumed. Kept in many slots, it would fill
// the machine.
void slot_trim(BatchSlot *slot, int num_outputs);
// Gives the slot's tokens to the writers [num_outputs]. eod < 0: documents get no end token.
Status write_batch(const BatchSlot *slot, IndexedWriter *const *writers, int num_outputs, int32_t eod);

// Finds out whether a long text cut by cut_place has the same tokens as the whole. It tries some texts. The tokens
// differ for tokenizers that add a blank before every text or that join words.
Status may_be_cut(const Tokenizer *tokenizer, bool *may);
