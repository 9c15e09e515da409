// The byte-level BPE model: tokens, merges, and how a piece becomes tokens.
//
// The GPT-2 *spelling* identifies a token; it is the key of vocab.json. Each byte is written as one printable
// character: 33-126, 161-172 and 174-255 as themselves, the other 68 bytes, ascending, as U+0100 and so on.
// Spellings are unique. The bytes of tokens need not be, because a special token may contain characters that
// spell no byte.
#pragma once
#include "base/error.h"
#include "base/text.h"
#include "formats/formats.h"
#include "tokenizer/hash_map.h"
#include "tokenizer/token_list.h"

#define EOD_SPELLING "<|endoftext|>"

typedef struct {
    int32_t left, right, result; // token ids
} Merge;

typedef struct {
    BytesMap spellings; // index = id
    Text bytes;         // of all tokens, one after another,
    size_t *starts;     //   token i is [starts[i], starts[i+1])
    size_t starts_capacity;
    int32_t byte_ids[256];
    PairMap pairs; // index = rank
    Merge *merges; // [rank]
    size_t merges_capacity;
    // A merge may create a pair of a lower rank; well-made lists have no such merge. When it happens, GPT-2
    // first merges the current pair throughout the piece (true); later implementations merge the new pair
    // next (false).
    bool in_passes;
    bool ignore_merges; // a piece that is spelled like a token becomes that token without any merging
} Bpe;

// The code point that spells a byte. The second function writes it as UTF-8 and returns its 1 or 2 bytes.
unsigned bpe_byte_char(unsigned char byte);
size_t bpe_spell_byte(unsigned char byte, char utf8[2]);
// Appends a token. Returns false when a token has that spelling already.
bool bpe_add_token(Bpe *bpe, const char *spelling, size_t size);
// The same for a special token, which no merge produces: its bytes are its spelling.
bool bpe_add_literal(Bpe *bpe, const char *text, size_t size);
// Appends the spelling of the bytes.
void bpe_spell(Text *out, const char *bytes, size_t size);
int32_t bpe_find(const Bpe *bpe, const char *spelling, size_t size); // -1 when there is none
// Appends a merge. `result` is the token spelled left + right, which must exist. Returns false when the pair has
// a merge already.
bool bpe_add_merge(Bpe *bpe, int32_t left, int32_t right, int32_t result);
// Appends a merge to a text as merges.txt writes it: "LEFT RIGHT".
void bpe_write_merge(const Bpe *bpe, uint32_t rank, Text *out);
void bpe_free(Bpe *bpe);

// One id of a vocabulary that is being read. The characters belong to the file. NULL: no token has this id so far.
typedef struct {
    const char *spelling;
    size_t size;
    bool literal;
} TokenSlot;

// Puts a token into its slot. Fails with ERR_DATA when the id is out of range or the slot is taken.
Status bpe_put_slot(TokenSlot *slots, size_t num_slots, int64_t id, TokenSlot token, const char *path);
// Puts all tokens of a JSON object, from spelling to id, into their slots.
Status bpe_put_vocabulary(TokenSlot *slots, size_t num_slots, const Json *vocabulary, const char *path);
// Makes the tokens from the slots. Fails with ERR_DATA unless the ids are 0 ... n-1 without a gap and every byte
// has a token.
Status bpe_take_slots(Bpe *bpe, const TokenSlot *slots, size_t num_slots, const char *path);
// Appends the merge of two spellings. Messages name `path` and `line` (a line or the number of an item).
Status bpe_take_merge(Bpe *bpe, const char *path, int64_t line, const char *left, size_t left_size,
                      const char *right, size_t right_size);
// The same for a text that holds both, with a blank between.
Status bpe_split_merge(Bpe *bpe, const char *path, int64_t line, const char *text, size_t size);

// GPT-2's two files.
Status bpe_load(Bpe *bpe, const char *vocab_file, const char *merge_file);
Status bpe_save(const Bpe *bpe, const char *vocab_file, const char *merge_file);
// Reads a tiktoken file: one line "BASE64 RANK" per token, ranks 0 ... n-1. The file has no merges: a token's
// merge joins the two parts that remain when its bytes are merged with the tokens of lower ranks alone.
// <|endoftext|> is added as token n.
Status bpe_load_ranks(Bpe *bpe, const char *path, const char *text, size_t size);

// Scratch memory of one thread. Zero-initialise it.
typedef struct {
    struct BpeSymbol *symbols;
    size_t symbols_capacity;
    struct BpeCandidate *heap, *pending;
    size_t heap_count, heap_capacity, pending_count, pending_capacity;
} BpeScratch;

// Appends the tokens of one piece. The pair of lowest rank is merged wherever it occurs, from left to right,
// until no pair has a rank. Takes O(n log n) time for n bytes.
void bpe_encode_piece(const Bpe *bpe, BpeScratch *scratch, const char *piece, size_t bytes, TokenList *out);
void bpe_scratch_free(BpeScratch *scratch);
