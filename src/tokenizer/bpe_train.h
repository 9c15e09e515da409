// Byte-pair encoding from counted pieces: which pairs become tokens.
#pragma once
#include "tokenizer/bpe.h"

// Pieces and how often each occurs.
typedef struct {
    BytesMap pieces;
    int64_t *counts;
    size_t capacity;
} PieceCounts;

// Pieces longer than this have no vote: they are encoded runs, not words, and would make the training
// quadratic.
enum { MAX_TRAINED_PIECE_BYTES = 256 };

// Limits of memory: when a text has more distinct pieces (random letters; Chinese, where a clause is one
// piece), only those that came first are counted.
enum { MAX_DISTINCT_PIECES = 1 << 20, MAX_DISTINCT_BYTES = 32 << 20 };

void piece_counts_add(PieceCounts *counts, const char *piece, size_t bytes, int64_t times);

// Fills an empty model: at most `vocab_size` (> 256) tokens. The rule is tokenizer_train's.
void bpe_train(Bpe *bpe, const PieceCounts *counts, int vocab_size, bool (*tick)(void *self, int num_tokens),
               void *self);
