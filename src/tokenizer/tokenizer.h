// Text to tokens and back: byte-level BPE, SentencePiece, and a tokenizer for text that is numbers already.
//
// Compatible with Megatron-LM and Hugging Face down to the id: GPT-2's byte-level BPE and its two files,
// tokenizer.json, tiktoken's ranks, SentencePiece models. BPE can be trained here, too.
#pragma once
#include "base/error.h"
#include "base/text.h"
#include "tokenizer/token_list.h"
#include <stdbool.h>
#include <stdint.h>

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
