// Trains byte-pair encoding on counted pieces: chooses the pairs that become tokens.
#pragma once
#include "tokenizer/bpe.h"

// Pieces, and how often each occurs.
typedef struct {
    BytesMap pieces;
    int64_t *counts;
    size_t capacity;
} PieceCounts;

// Longer pieces are not counted: they are runs of encoded data, not words, and would make the time of training
// quadratic.
enum { MAX_TRAINED_PIECE_BYTES = 256 };

// Limits of memory. When a text has more distinct pieces (random letters; Chinese, where a clause is one piece),
// only the first ones are counted.
enum { MAX_DISTINCT_PIECES = 1 << 20, MAX_DISTINCT_BYTES = 32 << 20 };

void piece_counts_add(PieceCounts *counts, const char *piece, size_t bytes, int64_t times);

// Fills an empty model: at most `vocab_size` (> 256) tokens. The rule is tokenizer_train's.
void bpe_train(Bpe *bpe, const PieceCounts *counts, int vocab_size, bool (*tick)(void *self, int num_tokens),
               void *self);
