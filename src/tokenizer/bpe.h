// The byte-level BPE model: tokens, merges, and how a piece becomes tokens.
//
// A token is known by its GPT-2 *spelling*, the key of vocab.json: each byte is written as one printable
// character (33-126, 161-172, 174-255 as themselves, the other 68 bytes, ascending, as U+0100 ...). Spellings
// are unique; token bytes need not be, because a special token may be spelled with characters that stand for
// no byte.
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
    // How merging goes on when a merge makes a pair of a lower rank, which well-made lists do not contain:
    // GPT-2 first merges the present pair through the whole piece, later implementations take up the new
    // pair at once.
    bool in_passes;
    bool ignore_merges; // a piece that is a token is that token, whatever its merges give
} Bpe;

// The code point that spells a byte, and its UTF-8 (at most 2 bytes; returns how many).
unsigned bpe_byte_char(unsigned char byte);
size_t bpe_spell_byte(unsigned char byte, char utf8[2]);
// Appends a token; false when there is one of that spelling.
bool bpe_add_token(Bpe *bpe, const char *spelling, size_t size);
// The same for a token that is no product of merges: its bytes are its spelling.
bool bpe_add_literal(Bpe *bpe, const char *text, size_t size);
// The spelling of bytes.
void bpe_spell(Text *out, const char *bytes, size_t size);
int32_t bpe_find(const Bpe *bpe, const char *spelling, size_t size); // -1 when there is none
// Appends a merge; false when the pair has one already. result = the token spelled left + right, which must
// exist.
bool bpe_add_merge(Bpe *bpe, int32_t left, int32_t right, int32_t result);
// Appends a merge as merges.txt has it: "LEFT RIGHT".
void bpe_write_merge(const Bpe *bpe, uint32_t rank, Text *out);
void bpe_free(Bpe *bpe);

// A vocabulary as files have it, by id; the characters belong to the file. Spelling NULL: none yet.
typedef struct {
    const char *spelling;
    size_t size;
    bool literal;
} TokenSlot;

// Puts a token into its slot. ERR_DATA when the id is out of range or the slot is taken.
Status bpe_put_slot(TokenSlot *slots, size_t num_slots, int64_t id, TokenSlot token, const char *path);
// A JSON object from spelling to id.
Status bpe_put_vocabulary(TokenSlot *slots, size_t num_slots, const Json *vocabulary, const char *path);
// Makes the tokens: ids 0 ... n-1 without a gap, every byte has one.
Status bpe_take_slots(Bpe *bpe, const TokenSlot *slots, size_t num_slots, const char *path);
// Appends the merge of two spellings; `path` and `line` (or number in a list) are for messages.
Status bpe_take_merge(Bpe *bpe, const char *path, int64_t line, const char *left, size_t left_size,
                      const char *right, size_t right_size);
// The same for both in one text, with a blank between them.
Status bpe_split_merge(Bpe *bpe, const char *path, int64_t line, const char *text, size_t size);

// GPT-2's two files.
Status bpe_load(Bpe *bpe, const char *vocab_file, const char *merge_file);
Status bpe_save(const Bpe *bpe, const char *vocab_file, const char *merge_file);
// A tiktoken file: a line "BASE64 RANK" per token, ranks 0 ... n-1. The merge that makes a token is the last
// one that its bytes undergo with the tokens of lower ranks alone. <|endoftext|> is added as token n.
Status bpe_load_ranks(Bpe *bpe, const char *path, const char *text, size_t size);

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
