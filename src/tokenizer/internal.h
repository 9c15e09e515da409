// The structure behind Tokenizer, and functions that the files of this folder share.
#pragma once
#include "tokenizer/bpe.h"
#include "tokenizer/pieces.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/tokenizer.h"

// A token that is recognised in text before the text is cut into pieces.
typedef struct {
    int32_t id;
    bool lstrip, rstrip; // it includes the blanks before it, after it
} AddedToken;

enum { ADDED_SETS = 2 }; // first all others, then, in the text between them, the "normalized" ones

// Added tokens that are searched for together. At each place the longest one wins.
typedef struct {
    BytesMap texts;
    AddedToken *tokens; // [texts]
    size_t capacity;
    bool starts[256];  // a token begins with this byte
    uint32_t *lengths; // the different lengths of tokens, descending
    size_t num_lengths;
} AddedSet;

struct Tokenizer {
    TokenizerKind kind;
    int null_size;
    Bpe bpe;
    char *patterns[MAX_PATTERNS];
    int num_patterns;
    bool add_prefix_space;      // add a blank before text that does not begin with one
    AddedSet added[ADDED_SETS]; // of SentencePiece the first has the control pieces, for tokenizer_control_at
    TokenType *types;           // [vocabulary]; NULL: of BPE all are TOKEN_NORMAL
    SentencePiece *sentencepiece;
    SentencePieceRules rules; // of `file`
    int32_t eod, bos;
    Text file;     // tokenizer.json or tokenizer.model as it was read; it is written unchanged
    Text config;   // the same of tokenizer_config.json
    Text template; // the same of chat_template.jinja
    Text note;     // says which file was opened in place of which; or empty
};

enum { MAX_TOKENIZER_BYTES = 256 << 20, MAX_VOCABULARY = 1 << 24 };

void tokenizer_add_pattern(Tokenizer *tokenizer, const char *pattern);
// Finds the tokens that end and begin a text: named by the configuration, or else by well-known names. Fails
// with ERR_DATA when none ends a text.
Status tokenizer_find_ends(Tokenizer *tokenizer, const char *path);

// Reads from the bytes of a SentencePiece model what its library does not tell: the types of the pieces, and the rules
// (sentencepiece_file.c). What is not as expected is left out: the library has accepted the file.
void sentencepiece_read_file(Tokenizer *tokenizer);

void added_set_add(AddedSet *set, const char *text, size_t size, AddedToken token);
void added_set_ready(AddedSet *set); // call it after the last added_set_add
void added_set_free(AddedSet *set);
// The bytes of the longest added token that begins at `text`, and its id; 0: there is none.
size_t added_set_at(const AddedSet *set, const char *text, size_t bytes, int32_t *id);
// Finds the first added token at or after `from`. The match includes the blanks that the token strips, but none
// before `from`. Returns false when there is no token.
typedef struct {
    size_t start, end;
    int32_t id;
} AddedMatch;
bool added_set_find(const AddedSet *set, const char *text, size_t bytes, size_t from, AddedMatch *match);

// Reads the tokenizer.json in tokenizer->file. Fails with ERR_DATA and the byte, or with ERR_UNAVAILABLE, which
// names the feature that is not supported.
Status tokenizer_read_json(Tokenizer *tokenizer, const char *path);
// Writes a tokenizer.json with which Hugging Face's library gives the same ids.
void tokenizer_write_json(const Tokenizer *tokenizer, Text *out);
// Writes a tokenizer_config.json: the class, and the tokens that begin and end a text.
void tokenizer_write_config(const Tokenizer *tokenizer, Text *out);
