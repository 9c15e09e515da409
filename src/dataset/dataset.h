// The indexed dataset on disk, and which sample each rank reads at each step.
//
// Everything here is compatible with Megatron-LM down to the bit: the MMIDIDX dataset (.bin and .idx), the
// split, the three shuffled indices, the order in which data-parallel ranks consume. The position in the data
// is a pure function of the number of samples consumed: nothing else needs to be saved to resume, and no grid
// changes it.
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// ---- Indexed dataset: PREFIX.bin and PREFIX.idx (MMIDIDX, version 1) ----------------------------------

// Streams documents out. Tokens are 16 bits when the vocabulary has less than 65500, else 32. Memory does not
// grow with their number: lengths are spooled to a third file until the index is written. Both files appear
// under their names in indexed_writer_finish; an .idx that exists describes a whole .bin. Temporary files
// have fixed names and are locked while they are written: those of a run that was killed are used again,
// those of a run that lives are left alone (ERR_CREATE).
typedef struct IndexedWriter IndexedWriter;

Status indexed_writer_open(IndexedWriter **writer, const char *prefix, int vocab_size);
// One document, one sequence. A document of no tokens counts as a document but has no sequence.
Status indexed_writer_add(IndexedWriter *writer, const int32_t *ids, size_t count);
// The same in parts: more tokens of the open sequence, its end, the end of the document. A sequence of no
// tokens is none. `eod` becomes the last token of a document that has any; negative: there is no such token.
Status indexed_writer_extend(IndexedWriter *writer, const int32_t *ids, size_t count);
Status indexed_writer_end_sequence(IndexedWriter *writer);
Status indexed_writer_end_document(IndexedWriter *writer, int32_t eod);
int64_t indexed_writer_num_tokens(const IndexedWriter *writer); // so far
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
// Synthetic: 100000 sequences of 1 to 4095 tokens; one of length n is 1, 2, ... n - 1 (modulo vocab_size, if
// that is above 0) and `eod`. Nothing is read. Source: Megatron-LM, MockGPTLowLevelDataset.
Status indexed_dataset_open_mock(IndexedDataset **dataset, int vocab_size, int eod);
void indexed_dataset_close(IndexedDataset *dataset);             // takes NULL
const char *indexed_dataset_name(const IndexedDataset *dataset); // its .idx file; "mock data"
int indexed_dataset_token_bytes(const IndexedDataset *dataset);  // on disk: 2 or 4; of synthetic data 0
int64_t indexed_dataset_num_sequences(const IndexedDataset *dataset);
int64_t indexed_dataset_num_documents(const IndexedDataset *dataset);
int64_t indexed_dataset_num_tokens(const IndexedDataset *dataset);
// Of the whole index and of blocks spread over the tokens: two data sets that differ in a document's length, or
// were made with another tokenizer, have different hashes. 0 for synthetic data.
uint64_t indexed_dataset_hash(const IndexedDataset *dataset);
int32_t indexed_dataset_length(const IndexedDataset *dataset, int64_t sequence); // tokens
// Tokens [offset, offset + count) of a sequence to out[0], out[stride], ... ERR_DATA names sequence and
// position of a token outside the vocabulary: the data were made with another tokenizer.
Status indexed_dataset_read(const IndexedDataset *dataset, int64_t sequence, int64_t offset, int64_t count,
                            int32_t *out, size_t stride);

// ---- Which sequences train ----------------------------------------------------------------------------

typedef enum { SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST, NUM_SPLITS } Split;
const char *split_name(Split split); // "train", "valid", "test"

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
// wanted number of samples needs. Neighbours share one token. A blend mixes the samples of several data sets,
// each shuffled by itself. Immutable and safe to share. Memory: 4 bytes per sequence and epoch, 12 per
// sample, 10 more in a blend; twice that above 2^31. Source: Megatron-LM, GPTDataset, BlendedDataset.
typedef struct GptDataset GptDataset;

// At least `num_samples` samples (0: what one epoch gives). The dataset is borrowed until gpt_dataset_close.
// ERR_DATA when the split has no token or too few for one sample; ERR_UNAVAILABLE when the indices do not fit
// into this machine's memory.
Status gpt_dataset_open(GptDataset **set, const IndexedDataset *data, SplitRange range, int64_t num_samples,
                        int seq_length, int seed);

// What a split of a run is made of.
typedef struct {
    // A prefix; WEIGHT PREFIX WEIGHT PREFIX ...; or PREFIX PREFIX ..., which gives each at most one epoch, in
    // proportion to their sizes. None: the synthetic data set.
    const char *const *words;
    int num_words;
    const char *named; // where the words are from, for messages: "--data-path"
    const char *split; // as --split cuts each data set; NULL: the data sets are of this split as a whole
    Split which;
    int64_t num_samples; // at least
    int seq_length, seed;
    int vocab_size, eod; // see indexed_dataset_open; `eod` is for the synthetic data set
    const char *cache;   // a folder that keeps the indices in files (cache.h); NULL: made here, in memory
} GptSource;

// Opens the data sets too, and owns them. The order of a blend is Megatron-LM's, and so are the members':
// weights sum to 1, and the next sample comes from the member that is furthest behind its share. A blend
// without weights has one epoch of each member; when more samples are wanted, they begin again.
// Fails as above, and with ERR_CONFIG when the words are no blend or a split is empty (split_range).
Status gpt_dataset_open_source(GptDataset **set, const GptSource *source);
void gpt_dataset_close(GptDataset *set); // takes NULL
int64_t gpt_dataset_num_samples(const GptDataset *set);
int64_t gpt_dataset_num_distinct(const GptDataset *set); // of these, before they begin again
int64_t gpt_dataset_num_epochs(const GptDataset *set);   // of a blend: of the member with most
// tokens [s+1]: inputs are [0, s), labels [1, s]. 0 <= index < num_samples.
Status gpt_dataset_sample(const GptDataset *set, int64_t index, int32_t *tokens);

// A part of a sample: tokens [offset, offset + count) of a sequence.
typedef struct {
    int member; // which data set of a blend, in the order of the words
    int64_t sequence, offset, count;
} SamplePiece;

// What sample `index` is put together from, in order: fills at most `most` pieces, returns how many there
// are.
int gpt_dataset_pieces(const GptDataset *set, int64_t index, SamplePiece *pieces, int most);

// The words of a blend, one after another. Zero-initialise; blend_words_free when done.
typedef struct {
    char *text;         // owned: what `words` point into
    const char **words; // owned
    int count;
} BlendWords;

// Checks words and opens nothing: the number of data sets, or -1 after fail(ERR_CONFIG). prefixes [num_words]
// gets their names, borrowed from the words; weights [num_words], all above 0 and as they are written, or all
// 0 when there are none.
int blend_parse(const char *const *words, int num_words, const char *named, const char **prefixes,
                double *weights);
// --data-args-path: a file with the words, between blanks and line ends.
Status blend_words_read(BlendWords *words, const char *file);
// --per-split-data-args-path: JSON, {"train": [words] or "words", "valid": ..., "test": ...}. No words when
// the file has none for the split.
Status blend_words_read_split(BlendWords *words, const char *file, Split which);
void blend_words_free(BlendWords *words);

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
