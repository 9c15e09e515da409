// Text to tokens and back: byte-level BPE, SentencePiece, and a tokenizer for text that is numbers already.
//
// The ids are those of Megatron-LM and Hugging Face. It reads GPT-2's two files, tokenizer.json, tiktoken's
// ranks and SentencePiece models, and it can train a BPE.
#pragma once
#include "base/error.h"
#include "base/text.h"
#include "tokenizer/token_list.h"
#include <stdbool.h>
#include <stdint.h>

// A tokenizer does not change once it is open, so any number of threads may share one. There are three kinds:
//
// - Byte-level BPE (Radford 2019; Sennrich 2016). Every byte string can be encoded and decodes to the same
//   bytes: a byte that is not part of valid UTF-8 is a piece of its own. The "added tokens" of a tokenizer.json
//   are recognised inside text, as Hugging Face does it. The special tokens of other files, such as
//   <|endoftext|>, are not: inside a document they are text. A tokenizer.json may require Unicode's normal
//   form C. It is not applied here; the text must already be in that form.
// - SentencePiece (Kudo 2018), by its own library. The text is normalised as the model says, so decoding may
//   give other bytes; invalid UTF-8 becomes U+FFFD.
// - Null: the text is integers between blanks, the vocabulary is 0 ... size, and `size` itself ends a document.
typedef struct Tokenizer Tokenizer;

typedef enum { TOKENIZER_NULL, TOKENIZER_BPE, TOKENIZER_SENTENCEPIECE } TokenizerKind;

// The type of a token. The numbers are those of SentencePiece and GGUF.
typedef enum {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,      // special: text becomes this token only where it is recognised as a whole
    TOKEN_USER_DEFINED = 4, // recognised as a whole, but part of the text
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6, // SentencePiece's "<0x0A>": one byte of a character that has no token
} TokenType;

// ---- open, save, close ----------------------------------------------------------------------------

// Opens the tokenizer at `path`. A file may be a Hugging Face tokenizer.json, a SentencePiece model or a tiktoken file
// of ranks; its content decides. In a folder the first of these is opened: tokenizer.json, tokenizer.model, vocab.json
// with merges.txt. A model in Hugging Face's cache may be named as there (formats/hub_cache.h). Anything else is taken
// for a PREFIX, as tokenizer_open_beside does. Where a tokenizer.json needs something that is not supported and the
// folder has a tokenizer.model, as Llama 2's has, that one is opened instead (see tokenizer_print_note). A
// tokenizer_config.json in the folder names the tokens that begin and end a text; without it well-known names are
// searched for. A chat_template.jinja beside it is a part of the tokenizer, too, and saved with it. Fails with
// ERR_NO_INPUT, ERR_DATA, or ERR_UNAVAILABLE, which names the feature that is not supported.
Status tokenizer_open_path(Tokenizer **tokenizer, const char *path);
// Opens GPT-2's vocab.json and merges.txt. Every byte and <|endoftext|> must have a token, and the ids must be
// 0 ... n-1. Otherwise fails with ERR_NO_INPUT, or with ERR_DATA that names file and line.
Status tokenizer_open(Tokenizer **tokenizer, const char *vocab_file, const char *merge_file);
Status tokenizer_open_null(Tokenizer **tokenizer, int size);
// Opens the tokenizer that was saved with a data set: PREFIX.tokenizer.json, PREFIX.tokenizer.model, or
// PREFIX.vocab.json with PREFIX.merges.txt. Where `prefix` is a folder it does what tokenizer_open_path does.
Status tokenizer_open_beside(Tokenizer **tokenizer, const char *prefix);
// Writes PREFIX.tokenizer.json, or PREFIX.tokenizer.model for SentencePiece, the configuration and the chat template
// beside it, and removes files of the other
// kinds that an earlier run left. Opening what was saved gives the same tokenizer; a tokenizer that was opened
// from such a file is written byte for byte as it was.
Status tokenizer_save(const Tokenizer *tokenizer, const char *prefix);
// The same inside an existing folder, under the names that Hugging Face's libraries look for: tokenizer.json
// or tokenizer.model, tokenizer_config.json, and chat_template.jinja where it was opened with one.
Status tokenizer_save_folder(const Tokenizer *tokenizer, const char *folder);
// The content of the files of a tokenizer, for one that another file describes.
typedef struct {
    Text file;             // a tokenizer.json or a SentencePiece model
    Text config, template; // tokenizer_config.json and chat_template.jinja; empty: there is none
} TokenizerTexts;
// Opens a tokenizer from texts, which it takes, also where it fails. Messages begin with `path`.
Status tokenizer_open_texts(Tokenizer **tokenizer, TokenizerTexts *texts, const char *path);
void tokenizer_texts_free(TokenizerTexts *texts);
void tokenizer_close(Tokenizer *tokenizer); // takes NULL
// The text of the chat_template.jinja that it was opened with; empty: there was none.
const Text *tokenizer_template(const Tokenizer *tokenizer);
// Gives it another one.
void tokenizer_set_template(Tokenizer *tokenizer, const char *text, size_t size);
// Prints a note on standard error where tokenizer_open_path opened another file than its first choice. Of the
// processes of a job only the first prints it.
void tokenizer_print_note(const Tokenizer *tokenizer);

// ---- properties -----------------------------------------------------------------------------------

TokenizerKind tokenizer_kind(const Tokenizer *tokenizer);
int tokenizer_vocab_size(const Tokenizer *tokenizer); // without padding
int tokenizer_eod(const Tokenizer *tokenizer);        // the token that ends a document; -1: none
// Returns the token that begins a text, or -1. Encoding never adds it.
int tokenizer_bos(const Tokenizer *tokenizer);
int tokenizer_unknown(const Tokenizer *tokenizer); // -1: none
// A token as its vocabulary writes it, NUL-terminated: bytes in GPT-2's printable characters, blanks as
// SentencePiece's U+2581. The null tokenizer has "" for all. 0 <= id < vocab_size.
const char *tokenizer_spelling(const Tokenizer *tokenizer, int id);
TokenType tokenizer_token_type(const Tokenizer *tokenizer, int id);
float tokenizer_score(const Tokenizer *tokenizer, int id); // SentencePiece's log-probability; else 0
uint64_t tokenizer_hash(const Tokenizer *tokenizer);       // a checksum of the kind and the spellings
int tokenizer_num_merges(const Tokenizer *tokenizer);      // of BPE; else 0
// Appends merge `rank` as merges.txt writes it: two spellings with a blank between.
void tokenizer_merge(const Tokenizer *tokenizer, int rank, Text *out);
// The regular expressions that cut text into pieces, one after another: 0 <= i < tokenizer_num_patterns.
int tokenizer_num_patterns(const Tokenizer *tokenizer);
const char *tokenizer_pattern(const Tokenizer *tokenizer, int i);
// Whether a piece that is spelled like a token becomes that token without any merging (ignore_merges).
bool tokenizer_takes_whole(const Tokenizer *tokenizer);
// Whether merges make each token of its bytes. Then taking pieces whole, or not, makes no difference.
bool tokenizer_merges_suffice(const Tokenizer *tokenizer);
// What a SentencePiece model does beside cutting text into pieces; all zeros for other tokenizers.
typedef struct {
    bool unigram;         // it takes the most likely pieces; else it joins pairs, as BPE
    bool adds_blank;      // before a text
    bool removes_blanks;  // at both ends of a text, and all but one of several
    const char *charsmap; // the table of its normalisation, as in its file; borrowed
    size_t charsmap_bytes;
} SentencePieceRules;
SentencePieceRules tokenizer_rules(const Tokenizer *tokenizer);

// A token that tokenizer_config.json adds behind the vocabulary.
typedef struct {
    int id;
    char *text;
    bool special;
} AddedWord;

// The settings by which other libraries use the tokenizer. `adds_bos` and `adds_eos` say whether they put the beginning
// of text before what they encode and its end after it; tokenizer_config.json decides, or else the post-processor of
// tokenizer.json. Nothing here uses these values: they are passed on when a model is exported.
typedef struct {
    bool adds_bos, adds_eos;
    // Of a conversation: chat_template.jinja, or else the one of tokenizer_config.json, of several there the one named
    // "default"; NULL: none. `template_file` is the name of the file.
    char *chat_template;
    const char *template_file;
    // The texts by which chat templates write these tokens: of tokenizer_config.json, or where the tokenizer has none
    // the spellings of its own; NULL: none.
    char *bos_token, *eos_token, *pad_token, *unk_token;
    AddedWord *added; // [num_added]
    int num_added;
} TokenizerUse;
// It is the one place where a model's template is read.
Status tokenizer_use_read(TokenizerUse *use, const Tokenizer *tokenizer);
void tokenizer_use_free(TokenizerUse *use);

// ---- encode, decode -------------------------------------------------------------------------------

// Appends the bytes of the tokens to `out`. Fails with ERR_DATA for an id outside the vocabulary.
Status tokenizer_decode(const Tokenizer *tokenizer, const int32_t *ids, size_t count, Text *out);

// The tools of one thread that encodes: a scanner and a cache of pieces. The tokenizer is borrowed until
// encoder_close.
typedef struct Encoder Encoder;

Status encoder_open(Encoder **encoder, const Tokenizer *tokenizer);
void encoder_close(Encoder *encoder);
// Appends the tokens of `text` to `out`. Fails with ERR_DATA where the null tokenizer finds something that is
// not an integer of its vocabulary, where a pattern of a tokenizer.json exceeds PCRE2's limits, and where
// SentencePiece gets 1 GiB or more.
Status encoder_encode(Encoder *encoder, const char *text, size_t bytes, TokenList *out);
// The bytes of the control piece of SentencePiece, such as <s> or <start_of_turn>, that begins at `text`, and its id;
// 0: there is none. encoder_encode takes it for characters, other libraries for the token.
size_t tokenizer_control_at(const Tokenizer *tokenizer, const char *text, size_t bytes, int32_t *id);
// Encodes a single text, such as a prompt, with an encoder of its own.
Status tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t bytes, TokenList *out);

// Finds where the tokens that encoder_encode made of `text` lie: token i ends before byte ends[i] (ends [count]) and
// begins where the one before it ends; a token with a part of a character ends within it. Fails with ERR_UNAVAILABLE
// for a tokenizer that changes text before it cuts it, and for the null tokenizer.
Status tokenizer_locate(const Tokenizer *tokenizer, const char *text, size_t bytes, const int32_t *ids,
                        size_t count, size_t *ends);

// ---- train ----------------------------------------------------------------------------------------

// Counts how often each piece (word) of a text occurs, which is all that training needs. A counter takes at
// most 100 MB: after a million distinct pieces it counts no new ones. So the order of texts and of merges
// matters.
typedef struct PieceCounter PieceCounter;

Status piece_counter_open(PieceCounter **counter);
Status piece_counter_add(PieceCounter *counter, const char *text, size_t bytes);
void piece_counter_merge(PieceCounter *into, const PieceCounter *from);
void piece_counter_clear(PieceCounter *counter); // removes all pieces
void piece_counter_close(PieceCounter *counter); // takes NULL
// Trains byte-pair encoding: the most frequent adjacent pair becomes a token, again and again. Of equally
// frequent pairs it takes the one with the smaller left id, then the smaller right id. The ids are the 256
// bytes in GPT-2's order, the merges, and <|endoftext|> last. It makes fewer tokens than `vocab_size` (at least
// 257) when no pair occurs twice. The result depends on the counts alone. `tick` is an optional callback: it is
// called now and then with the number of tokens so far, and training ends early when it returns false.
Status tokenizer_train(Tokenizer **tokenizer, const PieceCounter *counts, int vocab_size,
                       bool (*tick)(void *self, int num_tokens), void *self);
