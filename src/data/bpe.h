// The byte-level BPE model: tokens, merges, and how a piece becomes tokens.
//
// A token is known by its GPT-2 *spelling*, the key of vocab.json: each byte is written as one printable
// character (33-126, 161-172, 174-255 as themselves, the other 68 bytes, ascending, as U+0100 ...). Spellings
// are unique; token bytes need not be, because a special token may be spelled with characters that stand for
// no byte.
#pragma once
#include "base/error.h"
#include "base/text.h"
#include "data/data.h"
#include "data/maps.h"

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
    int32_t eod;
} Bpe;

// The code point that spells a byte, and its UTF-8 (at most 2 bytes; returns how many).
unsigned bpe_byte_char(unsigned char byte);
size_t bpe_spell_byte(unsigned char byte, char utf8[2]);
// Appends a token; false when there is one of that spelling.
bool bpe_add_token(Bpe *bpe, const char *spelling, size_t size);
int32_t bpe_find(const Bpe *bpe, const char *spelling, size_t size); // -1 when there is none
// Appends a merge; false when the pair has one already. result = the token spelled left + right, which must
// exist.
bool bpe_add_merge(Bpe *bpe, int32_t left, int32_t right, int32_t result);
void bpe_free(Bpe *bpe);

Status bpe_load(Bpe *bpe, const char *vocab_file, const char *merge_file);
Status bpe_save(const Bpe *bpe, const char *vocab_file, const char *merge_file);

// Working memory of one thread. Zero-initialise.
typedef struct {
    struct BpeSymbol *symbols;
    size_t symbols_capacity;
    struct BpeCandidate *heap, *pending;
    size_t heap_count, heap_capacity, pending_count, pending_capacity;
} BpeScratch;

// Appends the tokens of one piece: the pair of lowest rank is merged wherever it occurs, left to right, until
// no pair has a rank. O(n log n) in the bytes of the piece.
void bpe_encode_piece(const Bpe *bpe, BpeScratch *scratch, const char *piece, size_t bytes, TokenList *out);
void bpe_scratch_free(BpeScratch *scratch);
