// Text in, token batches out: the tokenizer, the indexed dataset on disk, and which sample each rank reads at
// each step.
//
// Everything here is compatible with Megatron-LM down to the bit: GPT-2's byte-level BPE and its two files,
// the MMIDIDX dataset (.bin and .idx), the split, the three shuffled indices, the order in which
// data-parallel ranks consume. The position in the data is a pure function of the number of samples consumed:
// nothing else needs to be saved to resume, and no grid changes it.
#pragma once
#include "base/error.h"
#include "base/text.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

// ---- Tokenizer ----------------------------------------------------------------------------------------

// A growing list of token ids. Zero-initialise; token_list_free when done. Out of memory is a CHECK.
typedef struct {
    int32_t *ids;
    size_t count, capacity;
} TokenList;

void token_list_add(TokenList *list, const int32_t *ids, size_t count);
void token_list_free(TokenList *list);

// Immutable once made: any number of threads may share one. Two kinds:
// - GPT-2's byte-level BPE (Radford 2019; Sennrich 2016). Any byte string encodes, and decodes to the same
//   bytes: a byte that is not part of valid UTF-8 is a piece of its own. The text "<|endoftext|>" has no
//   special meaning inside a document.
// - Null: text is blank-separated integers, the vocabulary is 0 ... size, and `size` itself is EOD.
typedef struct Tokenizer Tokenizer;

// GPT-2's vocab.json and merges.txt. Every byte and <|endoftext|> must have a token and the ids must be 0 ...
// n-1; ERR_NO_INPUT or ERR_DATA with file and line otherwise.
Status tokenizer_open(Tokenizer **tokenizer, const char *vocab_file, const char *merge_file);
Status tokenizer_open_null(Tokenizer **tokenizer, int size);
// The files that tokenizer_save(prefix) wrote; or, when `prefix` is a folder, its vocab.json and merges.txt.
Status tokenizer_open_beside(Tokenizer **tokenizer, const char *prefix);
// Writes PREFIX.vocab.json and PREFIX.merges.txt; opening them gives the same ids. The null tokenizer has
// none: it removes those of an earlier run.
Status tokenizer_save(const Tokenizer *tokenizer, const char *prefix);
void tokenizer_close(Tokenizer *tokenizer);

int tokenizer_vocab_size(const Tokenizer *tokenizer); // before padding
int tokenizer_eod(const Tokenizer *tokenizer);        // end of document
// The bytes of the tokens, appended to `out`. ERR_DATA for an id outside the vocabulary.
Status tokenizer_decode(const Tokenizer *tokenizer, const int32_t *ids, size_t count, Text *out);

// One thread's way into a tokenizer: scanner and cache of pieces. The tokenizer is borrowed until
// encoder_close.
typedef struct Encoder Encoder;

Status encoder_open(Encoder **encoder, const Tokenizer *tokenizer);
void encoder_close(Encoder *encoder);
// Appends the tokens of `text` to `out`. Only the null tokenizer can fail (ERR_DATA: not an integer of its
// vocabulary).
Status encoder_encode(Encoder *encoder, const char *text, size_t bytes, TokenList *out);
// The same for a single text, such as a prompt: opens an Encoder and closes it.
Status tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t bytes, TokenList *out);

// Training a tokenizer needs only how often each piece (word) of the text occurs. One counter per thread,
// then merge.
typedef struct PieceCounter PieceCounter;

Status piece_counter_open(PieceCounter **counter);
void piece_counter_add(PieceCounter *counter, const char *text, size_t bytes);
void piece_counter_merge(PieceCounter *into, const PieceCounter *from);
void piece_counter_close(PieceCounter *counter);
// Byte-pair encoding: again and again the most frequent adjacent pair becomes a token; of equally frequent
// pairs the one with the smaller left id, then the smaller right id. Ids: 256 bytes in GPT-2's order, the
// merges, <|endoftext|> last. Gives fewer tokens than `vocab_size` (at least 257) when no pair occurs twice.
// The result depends on the counts alone. `tick` (may be NULL) is called now and then with the number of
// tokens made; when it returns false, no more are made.
Status tokenizer_train(Tokenizer **tokenizer, const PieceCounter *counts, int vocab_size,
                       bool (*tick)(void *self, int num_tokens), void *self);

// ---- Indexed dataset: PREFIX.bin and PREFIX.idx (MMIDIDX, version 1) ----------------------------------

// Streams documents out. Tokens are 16 bits when the vocabulary has less than 65500, else 32. Memory: 12
// bytes per document. Both files appear under their names in indexed_writer_finish; an .idx that exists
// describes a whole .bin.
typedef struct IndexedWriter IndexedWriter;

Status indexed_writer_open(IndexedWriter **writer, const char *prefix, int vocab_size);
// One document, one sequence. A document of no tokens counts as a document but has no sequence.
Status indexed_writer_add(IndexedWriter *writer, const int32_t *ids, size_t count);
// Puts everything on disk under temporary names, then removes the .idx of an earlier run: from here until
// indexed_writer_finish PREFIX has no dataset, and what belongs to it, its tokenizer, can be replaced.
Status indexed_writer_retire_old(IndexedWriter *writer);
Status indexed_writer_finish(IndexedWriter *writer); // retires an old one first, if that has not been done
void indexed_writer_close(IndexedWriter *writer);    // what is unfinished is discarded

// A mapped dataset. Immutable, shared by any number of threads; the files must not be changed while it is
// open.
typedef struct IndexedDataset IndexedDataset;

// Checks everything but the tokens: magic, version, type, counts against file sizes, lengths, offsets,
// documents. ERR_DATA names file and byte. With vocab_size > 0 every token is checked when it is read.
Status indexed_dataset_open(IndexedDataset **dataset, const char *prefix, int vocab_size);
void indexed_dataset_close(IndexedDataset *dataset);
int64_t indexed_dataset_num_sequences(const IndexedDataset *dataset);
int64_t indexed_dataset_num_documents(const IndexedDataset *dataset);
int64_t indexed_dataset_num_tokens(const IndexedDataset *dataset);
int32_t indexed_dataset_length(const IndexedDataset *dataset, int64_t sequence); // tokens
// Tokens [offset, offset + count) of a sequence to out[0], out[stride], ... ERR_DATA names sequence and
// position of a token outside the vocabulary: the data were made with another tokenizer.
Status indexed_dataset_read(const IndexedDataset *dataset, int64_t sequence, int64_t offset, int64_t count,
                            int32_t *out, size_t stride);

// ---- Which sequences train ----------------------------------------------------------------------------

typedef enum { SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST, NUM_SPLITS } Split;

typedef struct {
    int64_t first, end; // sequences [first, end)
} SplitRange;

// --split: up to three weights, such as "969, 30, 1". Split k is sequences [bounds[k], bounds[k+1]): the
// accumulated fractions times N, rounded half to even. ERR_CONFIG when the text is not that.
Status split_bounds(const char *split, int64_t num_sequences, int64_t bounds[NUM_SPLITS + 1]);
// One split's range: empty when its weight is zero. ERR_CONFIG when it is empty with a weight above zero.
Status split_range(const char *split, int64_t num_sequences, Split which, SplitRange *range);

// ---- GPT samples --------------------------------------------------------------------------------------

// Samples of s + 1 tokens cut from the shuffled, concatenated sequences of a split, as often repeated as the
// wanted number of samples needs. Neighbours share one token. Immutable and safe to share. Memory: 4 bytes
// per sequence and epoch, 12 per sample. Source: Megatron-LM, GPTDataset.
typedef struct GptDataset GptDataset;

// At least `num_samples` samples (0: what one epoch gives). The dataset is borrowed until gpt_dataset_close.
// ERR_DATA when the split has no token or too few for one sample; ERR_UNAVAILABLE when an index would pass
// 2^31 entries.
Status gpt_dataset_open(GptDataset **set, const IndexedDataset *data, SplitRange range, int64_t num_samples,
                        int seq_length, int seed);
void gpt_dataset_close(GptDataset *set);
int64_t gpt_dataset_num_samples(const GptDataset *set);
int64_t gpt_dataset_num_epochs(const GptDataset *set);
// tokens [s+1]: inputs are [0, s), labels [1, s]. 0 <= index < num_samples.
Status gpt_dataset_sample(const GptDataset *set, int64_t index, int32_t *tokens);

// Where a microbatch stands: sample consumed + microbatch*micro_batch*dp + dp_rank*micro_batch + j is its
// column j.
typedef struct {
    int64_t consumed; // samples of the run before this step
    int micro_batch;  // B
    int dp, dp_rank;
    int microbatch; // k, within the step and rank
} BatchPlace;

// tokens [S, B], labels [S, B], row s*B + j: sample j's inputs and the tokens that follow them. Either may be
// NULL (a stage that needs only the other). Allocates nothing.
Status batch_fill(const GptDataset *set, BatchPlace place, int32_t *tokens, int32_t *labels);

// ---- trireme preprocess -------------------------------------------------------------------------------

// Text files, folders and JSON lines -> dataset and tokenizer. docs/data.md has the rules.
typedef struct {
    const char *const *inputs; // files and folders
    int num_inputs;
    const char *output_prefix;
    const char *const *json_keys; // of .jsonl and .json lines
    int num_json_keys;
    bool append_eod;
    int workers;                         // threads; the output does not depend on it
    int64_t max_bytes;                   // of input, whole documents; 0: all
    const char *vocab_file, *merge_file; // a tokenizer to load,
    const char *tokenizer_prefix;        //   or one to load with tokenizer_open_beside,
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
    int64_t documents, tokens;
    int64_t bytes;      // of input
    int64_t text_bytes; // of the documents: without the JSON around them
    int vocab_size;
    bool vocab_trained;
    double train_s, encode_s;
} PreprocessSummary;

// Exactly the first that is given of: vocab_file with merge_file, tokenizer_prefix, null_size, vocab_size.
// INTERRUPTED when `stopped` is set while text is read, counted or encoded: then nothing has been written.
Status preprocess_run(const PreprocessJob *job, PreprocessSummary *summary);
