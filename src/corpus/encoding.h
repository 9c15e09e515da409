// One worker's part: a batch of documents in, their tokens out, one list for each JSON key; or, while a
// tokenizer is trained, their pieces counted.
#pragma once
#include "corpus/corpus.h"
#include "corpus/corpus_reader.h"
#include "corpus/json_line.h"
#include "dataset/dataset.h"

// A stretch of tokens: of a document, or of one sentence where a document is a list of them.
typedef struct {
    size_t tokens;
    bool sentence; // begins a sequence of its own
    bool ends;     // the document
} Part;

typedef struct {
    TokenList tokens; // of all parts, one after another
    Part *parts;
    size_t num_parts, capacity;
    size_t good_tokens, good_parts; // of the documents before the one that is being encoded
} Output;

enum { MOST_BAD_SHOWN = 5 };

typedef struct {
    Batch batch;
    Output *outputs;       // [num_outputs]
    PieceCounter *counter; // in the pass that trains a tokenizer, instead
    int64_t text_bytes;    // of all documents,
    int64_t good_bytes;    //   of those before the one that is being encoded
    int64_t num_bad;       // documents that were left out
    Text bad;              // a line on each of the first MOST_BAD_SHOWN
} Slot;

// One thread's tools.
typedef struct {
    Encoder *encoder;
    const Tokenizer *tokenizer; // the encoder's
    bool may_cut;               // long texts, for it
    bool skip_bad_lines;
    JsonLine json;
    const atomic_int *stopped;
} Worker;

void slot_open(Slot *slot, int num_outputs);
void slot_close(Slot *slot, int num_outputs);

void worker_open(Worker *worker, const char *const *json_keys, int num_json_keys, bool skip_bad_lines,
                 const atomic_int *stopped);
Status worker_encodes(Worker *worker, const Tokenizer *tokenizer, bool may_cut); // from now on
void worker_close(Worker *worker);

// INTERRUPTED once `stopped` is set; ERR_DATA with file and line for what is not a JSON object with all
// keys, or has a text that cannot be encoded; with skip_bad_lines such a line leaves nothing and is counted.
Status encode_batch(Worker *worker, Slot *slot);
// Adds the slot's bad lines to a count, and those among the first MOST_BAD_SHOWN of all to a text.
void slot_note_bad(const Slot *slot, int64_t *bad_lines, Text *left_out);
// Gives back what large documents took of a slot that has been consumed: kept until it is used again, that of
// many slots would fill memory.
void slot_trim(Slot *slot, int num_outputs);
// Hands the slot's tokens to the writers, [num_outputs]; eod < 0: no end of document is written.
Status write_batch(const Slot *slot, IndexedWriter *const *writers, int num_outputs, int32_t eod);

// Finds out whether a long text may be cut where cut_place says, so that the tokens of its parts are those of
// the whole. It tries some texts: tokenizers that put a blank before every text, or join words, forbid it.
Status may_be_cut(const Tokenizer *tokenizer, bool *may);
