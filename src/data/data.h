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

// Immutable once made: any number of threads may share one. Three kinds:
//
// - Byte-level BPE (Radford 2019; Sennrich 2016): GPT-2's two files, Hugging Face's tokenizer.json, tiktoken
//   ranks. Any byte string encodes, and decodes to the same bytes: a byte that is not part of valid UTF-8 is
//   a piece of its own. The "added tokens" of a tokenizer.json are recognised inside text, as Hugging Face
//   does; the special tokens of the others, such as <|endoftext|>, have no meaning inside a document. A
//   tokenizer.json may require Unicode's normal form C: it is not applied, text is expected to have it.
// - SentencePiece (Kudo 2018), through its own library: text is normalised as the model says, so it need not
//   come back byte for byte; invalid UTF-8 becomes U+FFFD.
// - Null: text is blank-separated integers, the vocabulary is 0 ... size, and `size` itself is EOD.
typedef struct Tokenizer Tokenizer;

typedef enum { TOKENIZER_NULL, TOKENIZER_BPE, TOKENIZER_SENTENCEPIECE } TokenizerKind;

// What a token is for. The numbers are those of SentencePiece and GGUF.
typedef enum {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,      // special: never made from text unless it is recognised as a whole
    TOKEN_USER_DEFINED = 4, // recognised as a whole, but part of the text
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6, // SentencePiece's "<0x0A>": a byte of a character without a token
} TokenType;

// Recognises by content a Hugging Face tokenizer.json, a SentencePiece model, a tiktoken file of ranks; a
// folder with tokenizer.json, tokenizer.model, or vocab.json and merges.txt (the first that is there); else
// takes `path` for a PREFIX as tokenizer_open_beside does. Where a tokenizer.json asks for something that is not
// supported and a tokenizer.model is there too, as in Llama 2's folder, that one is taken (tokenizer_tell).
// A tokenizer_config.json in the folder of the file
// names end and beginning of text; without it well-known names are looked for. ERR_NO_INPUT, ERR_DATA, and
// ERR_UNAVAILABLE with the name of what is asked for and not supported.
Status tokenizer_open_path(Tokenizer **tokenizer, const char *path);
// GPT-2's vocab.json and merges.txt. Every byte and <|endoftext|> must have a token and the ids must be 0 ...
// n-1; ERR_NO_INPUT or ERR_DATA with file and line otherwise.
Status tokenizer_open(Tokenizer **tokenizer, const char *vocab_file, const char *merge_file);
Status tokenizer_open_null(Tokenizer **tokenizer, int size);
// What lies beside a data set: PREFIX.tokenizer.json, PREFIX.tokenizer.model, or PREFIX.vocab.json and
// PREFIX.merges.txt; when `prefix` is a folder, as tokenizer_open_path.
Status tokenizer_open_beside(Tokenizer **tokenizer, const char *prefix);
// Writes PREFIX.tokenizer.json, or PREFIX.tokenizer.model of SentencePiece, and removes what an earlier run
// left under the names of other kinds. Opening gives the same tokenizer; what was opened from such a file is
// written byte for byte as it was.
Status tokenizer_save(const Tokenizer *tokenizer, const char *prefix);
// The same inside an existing folder, under the names that Hugging Face's libraries look for: tokenizer.json
// or tokenizer.model, and tokenizer_config.json.
Status tokenizer_save_folder(const Tokenizer *tokenizer, const char *folder);
void tokenizer_close(Tokenizer *tokenizer); // takes NULL
// Says on standard error, once for all processes of a job, which file was taken where the first could not be.
void tokenizer_tell(const Tokenizer *tokenizer);

TokenizerKind tokenizer_kind(const Tokenizer *tokenizer);
int tokenizer_vocab_size(const Tokenizer *tokenizer); // before padding
int tokenizer_eod(const Tokenizer *tokenizer);        // end of document
int tokenizer_bos(const Tokenizer *tokenizer);     // beginning of text, which encoding never adds; -1: none
int tokenizer_unknown(const Tokenizer *tokenizer); // -1: none
// A token as its vocabulary writes it, NUL-terminated: bytes in GPT-2's printable characters, blanks as
// SentencePiece's U+2581. Of the null tokenizer: "". 0 <= id < vocab_size.
const char *tokenizer_spelling(const Tokenizer *tokenizer, int id);
TokenType tokenizer_token_type(const Tokenizer *tokenizer, int id);
float tokenizer_score(const Tokenizer *tokenizer, int id); // SentencePiece's log-probability; else 0
uint64_t tokenizer_hash(const Tokenizer *tokenizer);       // of its kind and of the spellings of all tokens
int tokenizer_num_merges(const Tokenizer *tokenizer);      // of BPE; else 0
// Appends merge `rank` as merges.txt has it: two spellings with a blank between.
void tokenizer_merge(const Tokenizer *tokenizer, int rank, Text *out);
// The regular expressions that cut text into pieces, one after another: 0 <= i < tokenizer_num_patterns.
int tokenizer_num_patterns(const Tokenizer *tokenizer);
const char *tokenizer_pattern(const Tokenizer *tokenizer, int i);
// What other libraries do with it (tokenizer_use.c): whether they put the beginning of text before what they
// encode and its end behind it, as tokenizer_config.json or else the post-processor of tokenizer.json say; and
// the template of a conversation. None is used here.
typedef struct {
    bool adds_bos, adds_eos;
    char *chat_template; // NULL: none
} TokenizerUse;
Status tokenizer_use_read(TokenizerUse *use, const Tokenizer *tokenizer);
void tokenizer_use_free(TokenizerUse *use);
// The bytes of the tokens, appended to `out`. ERR_DATA for an id outside the vocabulary.
Status tokenizer_decode(const Tokenizer *tokenizer, const int32_t *ids, size_t count, Text *out);

// One thread's way into a tokenizer: scanner and cache of pieces. The tokenizer is borrowed until
// encoder_close.
typedef struct Encoder Encoder;

Status encoder_open(Encoder **encoder, const Tokenizer *tokenizer);
void encoder_close(Encoder *encoder);
// Appends the tokens of `text` to `out`. ERR_DATA: the null tokenizer, not an integer of its vocabulary; a
// pattern of a tokenizer.json that cannot be matched within PCRE2's limits; SentencePiece, 1 GiB or more.
Status encoder_encode(Encoder *encoder, const char *text, size_t bytes, TokenList *out);
// The same for a single text, such as a prompt: opens an Encoder and closes it.
Status tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t bytes, TokenList *out);

// Training a tokenizer needs only how often each piece (word) of the text occurs. A counter takes 100 MB at
// most: a million distinct pieces, then no new ones. So the order of what is added and merged counts.
typedef struct PieceCounter PieceCounter;

Status piece_counter_open(PieceCounter **counter);
void piece_counter_add(PieceCounter *counter, const char *text, size_t bytes);
void piece_counter_merge(PieceCounter *into, const PieceCounter *from);
void piece_counter_clear(PieceCounter *counter); // to count anew
void piece_counter_close(PieceCounter *counter);
// Byte-pair encoding: again and again the most frequent adjacent pair becomes a token; of equally frequent
// pairs the one with the smaller left id, then the smaller right id. Ids: 256 bytes in GPT-2's order, the
// merges, <|endoftext|> last. Gives fewer tokens than `vocab_size` (at least 257) when no pair occurs twice.
// The result depends on the counts alone. `tick` (may be NULL) is called now and then with the number of
// tokens made; when it returns false, no more are made.
Status tokenizer_train(Tokenizer **tokenizer, const PieceCounter *counts, int vocab_size,
                       bool (*tick)(void *self, int num_tokens), void *self);

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
