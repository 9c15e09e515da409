// The indexed dataset on disk, and the samples that each rank reads at each step.
//
// Everything here equals Megatron-LM's to the bit: the MMIDIDX dataset (.bin and .idx), the split, the three
// shuffled indices, and the order in which data-parallel ranks read samples. The position in the data is a pure
// function of the number of samples consumed. So a resumed run needs no other state, and no grid changes the
// order.
#pragma once
#include "base/error.h"
#include "base/ranges.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// ---- Indexed dataset: PREFIX.bin and PREFIX.idx (MMIDIDX, version 1) ----------------------------------

// Writes documents one after another. A token takes 16 bits when the vocabulary has less than 65500, else 32.
// Memory does not grow with the number of documents: their lengths go to a third file until the index is written.
// Both files get their names in indexed_writer_finish; an .idx that exists describes a complete .bin. Temporary
// files have fixed names and are locked while they are written. Those of a run that was killed are overwritten;
// where a live run holds the lock, opening fails with ERR_CREATE.
typedef struct IndexedWriter IndexedWriter;

Status indexed_writer_open(IndexedWriter **writer, const char *prefix, int vocab_size);
// Adds a document of one sequence. A document without tokens counts as a document but has no sequence.
Status indexed_writer_add(IndexedWriter *writer, const int32_t *ids, size_t count);
// The same in parts: extend adds tokens to the open sequence, the others end the sequence and the document. A
// sequence without tokens is not written. `eod` becomes the last token of a document that has any; negative: none.
Status indexed_writer_extend(IndexedWriter *writer, const int32_t *ids, size_t count);
Status indexed_writer_end_sequence(IndexedWriter *writer);
Status indexed_writer_end_document(IndexedWriter *writer, int32_t eod);
int64_t indexed_writer_num_tokens(const IndexedWriter *writer); // so far
// Writes everything to disk under temporary names and removes the .idx of an earlier run. From here until
// indexed_writer_finish PREFIX has no dataset, so that other files with this prefix, such as the tokenizer, can
// be replaced.
Status indexed_writer_retire_old(IndexedWriter *writer);
Status indexed_writer_finish(IndexedWriter *writer); // calls indexed_writer_retire_old where that is missing
void indexed_writer_close(IndexedWriter *writer);    // discards a dataset that is not finished

// A mapped dataset. It does not change, and any number of threads may share it. The files must not change while
// it is open.
typedef struct IndexedDataset IndexedDataset;

// Opens a dataset and checks everything but its tokens: magic, version, type, counts against the sizes of the
// files, lengths, offsets, documents. Fails with ERR_DATA that names file and byte. With vocab_size > 0 every
// token is checked when it is read.
Status indexed_dataset_open(IndexedDataset **dataset, const char *prefix, int vocab_size);
// Opens a synthetic dataset, which has no files: 100000 sequences of 1 to 4095 tokens. A sequence of length n is
// 1, 2, ... n - 1 (modulo vocab_size where that is above 0) and `eod`.
// Source: Megatron-LM, MockGPTLowLevelDataset.
Status indexed_dataset_open_mock(IndexedDataset **dataset, int vocab_size, int eod);
void indexed_dataset_close(IndexedDataset *dataset);             // takes NULL
const char *indexed_dataset_name(const IndexedDataset *dataset); // its .idx file, or "mock data"
int indexed_dataset_token_bytes(const IndexedDataset *dataset);  // on disk: 2 or 4; synthetic: 0
int64_t indexed_dataset_num_sequences(const IndexedDataset *dataset);
int64_t indexed_dataset_num_documents(const IndexedDataset *dataset);
int64_t indexed_dataset_num_tokens(const IndexedDataset *dataset);
// A checksum of the whole index and of blocks spread over the tokens. It differs between datasets that differ in
// the length of a document or in their tokenizer. 0 for synthetic data.
uint64_t indexed_dataset_hash(const IndexedDataset *dataset);
int32_t indexed_dataset_length(const IndexedDataset *dataset, int64_t sequence); // in tokens
// The first sequence of a document: 0 <= document <= num_documents; of the last one, the number of all sequences.
int64_t indexed_dataset_document(const IndexedDataset *dataset, int64_t document);
// Copies tokens [offset, offset + count) of a sequence to out[0], out[stride], and so on. Fails with ERR_DATA,
// which names sequence and position, for a token outside the vocabulary: another tokenizer made the data.
Status indexed_dataset_read(const IndexedDataset *dataset, int64_t sequence, int64_t offset, int64_t count,
                            int32_t *out, size_t stride);

// ---- Split: which sequences train ---------------------------------------------------------------------

typedef enum { SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST, NUM_SPLITS } Split;
const char *split_name(Split split); // "train", "valid", "test"

typedef struct {
    int64_t first, end; // sequences [first, end)
} SplitRange;

// Computes the ranges of --split: up to three weights, such as "969, 30, 1". Split k has sequences
// [bounds[k], bounds[k+1]): the sums of the fractions times N, rounded half to even. Fails with ERR_CONFIG when the
// text is not a split.
Status split_bounds(const char *split, int64_t num_sequences, int64_t bounds[NUM_SPLITS + 1]);
// The range of one split. It is empty when its weight is 0; ERR_CONFIG when it is empty with a weight above 0.
Status split_range(const char *split, int64_t num_sequences, Split which, SplitRange *range);

// ---- GPT samples --------------------------------------------------------------------------------------

// Samples of s + 1 tokens. The sequences of a split are shuffled and laid end to end, once per epoch, for as many
// epochs as the wanted number of samples needs; samples are cut from this line, and neighbours share one token. A
// blend mixes the samples of several datasets, each shuffled by itself. A GptDataset does not change, and any
// number of threads may share it. It takes 4 bytes per sequence and epoch, 12 per sample and 10 more in a blend;
// twice that above 2^31. Source: Megatron-LM, GPTDataset, BlendedDataset.
typedef struct GptDataset GptDataset;

// Has at least `num_samples` samples; 0: those of one epoch. The dataset is borrowed until gpt_dataset_close. Fails
// with ERR_DATA when the split has no token or too few for one sample, and with ERR_UNAVAILABLE when the indices do
// not fit into the memory of this machine.
Status gpt_dataset_open(GptDataset **set, const IndexedDataset *data, SplitRange range, int64_t num_samples,
                        int seq_length, int seed);

// The endings of the names of the masks beside PREFIX, of conversations and of pairs.
#define LOSS_MASK       "_loss_mask"
#define PREFERENCE_MASK "_preference_mask"

// The datasets of one split of a run.
typedef struct {
    // A prefix; WEIGHT PREFIX WEIGHT PREFIX ...; or PREFIX PREFIX ..., which gives each at most one epoch, in
    // proportion to their sizes. Without words: the synthetic dataset.
    const char *const *words;
    int num_words;
    const char *named; // the option that gave the words, for messages: "--data-path"
    const char *split; // --split, which cuts each dataset; NULL: each dataset is of this split as a whole
    Split which;
    int64_t num_samples; // at least
    int seq_length, seed;
    int vocab_size, eod; // as for indexed_dataset_open and, `eod`, indexed_dataset_open_mock
    const char *cache;   // a folder for files with the indices (cache.h); NULL: they are computed in memory
    // Data sets of conversations, as `trireme prepare-chat` makes them: a document is a sample, which is padded with
    // `eod`; --split cuts documents, and each epoch is shuffled by itself. PREFIX_loss_mask has to be beside PREFIX.
    bool conversations;
    // They are pairs: each document is two sequences, and PREFIX_preference_mask is beside PREFIX. Needs conversations.
    bool preferences;
} GptSource;

// Opens the mask beside PREFIX, a data set of conversations or `preferences`: it has a 1 for each token of PREFIX that
// is trained. Fails with ERR_NO_INPUT where there is none, and ERR_DATA where it is that of other data.
Status loss_mask_open(IndexedDataset **mask, const IndexedDataset *data, const char *prefix,
                      bool preferences);

// Opens the datasets as well, and owns them. Members and their order are Megatron-LM's: weights are scaled to a
// sum of 1, and the next sample comes from the member that is furthest behind its share. A blend without weights
// has one epoch of each member; when more samples are wanted, it starts again. Fails like gpt_dataset_open, and
// with ERR_CONFIG when the words are not a blend or a split is empty (split_range).
Status gpt_dataset_open_source(GptDataset **set, const GptSource *source);
void gpt_dataset_close(GptDataset *set); // takes NULL
int64_t gpt_dataset_num_samples(const GptDataset *set);
int64_t gpt_dataset_num_distinct(const GptDataset *set); // before a blend without weights starts again
int64_t gpt_dataset_num_epochs(const GptDataset *set);   // of a blend: the most of any member
// Reads tokens [s+1] of a sample: [0, s) are the inputs, [1, s] the labels. 0 <= index < num_samples.
Status gpt_dataset_sample(const GptDataset *set, int64_t index, int32_t *tokens);

// A part of a sample: tokens [offset, offset + count) of a sequence.
typedef struct {
    int member; // the number of the dataset in a blend, in the order of the words
    int64_t sequence, offset, count;
} SamplePiece;

// The parts of sample `index`, in order. Writes at most `most` of them and returns how many there are.
int gpt_dataset_pieces(const GptDataset *set, int64_t index, SamplePiece *pieces, int most);

// The words of a blend, one after another. Zero-initialise it; free it with blend_words_free.
typedef struct {
    char *text;         // owned; `words` point into it
    const char **words; // owned
    int count;
} BlendWords;

// Checks the words of a blend without opening anything. Returns the number of datasets, or -1 after
// fail(ERR_CONFIG). prefixes [num_words] receives their names, borrowed from the words. weights [num_words]
// receives the weights as they are written, all above 0, or all 0 when there are none.
int blend_parse(const char *const *words, int num_words, const char *named, const char **prefixes,
                double *weights);
// Reads --data-args-path: a file with the words between blanks and line ends.
Status blend_words_read(BlendWords *words, const char *file);
// Reads --per-split-data-args-path: JSON, {"train": [words] or "words", "valid": ..., "test": ...}. There are no
// words when the file has none for the split.
Status blend_words_read_split(BlendWords *words, const char *file, Split which);
void blend_words_free(BlendWords *words);

// The place of a microbatch in the data: its column j is sample
// consumed + microbatch*micro_batch*leaves + leaf*micro_batch + j. Without --virtual-data-parallel a leaf is a
// data-parallel rank.
typedef struct {
    int64_t consumed; // samples of the run before this step
    int micro_batch;  // B
    int leaves, leaf;
    int microbatch; // k, within the step and leaf
} BatchPlace;

// Leaves samples out of the batches of batch_fill: in place of each it and all later ones read the next sample that is
// not left out. At the end of the data set they start again with its first. An empty `skipped` leaves out nothing.
void gpt_dataset_skip(GptDataset *set, const Ranges *skipped);
// Fills tokens [S, B] and labels [S, B]; row s*B + j has sample j's token s and the token that follows it. Either
// may be NULL for a stage that needs only the other. Allocates nothing.
Status batch_fill(const GptDataset *set, BatchPlace place, int32_t *tokens, int32_t *labels);

// Of data sets of conversations (GptSource.conversations).
int gpt_dataset_num_members(const GptDataset *set);
const IndexedDataset *gpt_dataset_member(const GptDataset *set, int member,
                                         bool mask); // the tokens, or the mask
// Of preferences: the number of the pair that batches read as the sample with so many before it (gpt_dataset_skip), in
// the data set of `member`.
int64_t gpt_dataset_pair(const GptDataset *set, int64_t sample, int *member);
// Fills mask [S, B]: 1 where the label of batch_fill is trained, else 0. Fails with ERR_DATA. Allocates nothing.
Status batch_fill_mask(const GptDataset *set, BatchPlace place, float *mask);
// Fills starts [S, B]: the place in the sample, from 0, at which the conversation of each token begins; padding is a
// conversation of its own. What is before is not to be attended to.
void batch_fill_starts(const GptDataset *set, BatchPlace place, int32_t *starts);
