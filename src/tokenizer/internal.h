// Inside a Tokenizer: what the files that open, write and use one share.
#pragma once
#include "tokenizer/bpe.h"
#include "tokenizer/pieces.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/tokenizer.h"

// A token that is recognised inside text before it is cut into pieces.
typedef struct {
    int32_t id;
    bool lstrip, rstrip; // takes the blanks before it, behind it
} AddedToken;

enum { ADDED_SETS = 2 }; // those that are looked for first, and in what is left the "normalized" ones

// Added tokens to look for together: at each place the longest one wins.
typedef struct {
    BytesMap texts;
    AddedToken *tokens; // [texts]
    size_t capacity;
    bool starts[256];  // bytes that one begins with
    uint32_t *lengths; // that occur, each once, descending
    size_t num_lengths;
} AddedSet;

struct Tokenizer {
    TokenizerKind kind;
    int null_size;
    Bpe bpe;
    char *patterns[MAX_PATTERNS];
    int num_patterns;
    bool add_prefix_space; // before text that does not begin with one
    AddedSet added[ADDED_SETS];
    TokenType *types; // [vocabulary] of BPE, where there are others than TOKEN_NORMAL; else NULL
    SentencePiece *sentencepiece;
    int32_t eod, bos;
    Text file;   // tokenizer.json or tokenizer.model as it was read, to be written again
    Text config; // and tokenizer_config.json
    Text note;   // which file was taken instead of which, or empty
};

enum { MAX_TOKENIZER_BYTES = 256 << 20, MAX_VOCABULARY = 1 << 24 };

void tokenizer_add_pattern(Tokenizer *tokenizer, const char *pattern);
// Finds end and beginning of text: by name in the configuration, else among the names that are well known.
// ERR_DATA when no end is found.
Status tokenizer_find_ends(Tokenizer *tokenizer, const char *path);

void added_set_add(AddedSet *set, const char *text, size_t size, AddedToken token);
void added_set_ready(AddedSet *set); // after the last
void added_set_free(AddedSet *set);
// The first place at or behind `from` that is an added token, with the blanks it takes along but not those
// before `from`; false when there is none.
typedef struct {
    size_t start, end;
    int32_t id;
} AddedMatch;
bool added_set_find(const AddedSet *set, const char *text, size_t bytes, size_t from, AddedMatch *match);

// tokenizer.json, already in tokenizer->file. ERR_DATA with the byte; ERR_UNAVAILABLE names what it asks for
// and is not supported.
Status tokenizer_read_json(Tokenizer *tokenizer, const char *path);
// One that Hugging Face's library reads and that gives the same ids.
void tokenizer_write_json(const Tokenizer *tokenizer, Text *out);
// tokenizer_config.json: its class, its ends.
void tokenizer_write_config(const Tokenizer *tokenizer, Text *out);
