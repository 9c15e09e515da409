// A tokenizer of any kind: opening, properties, decoding, and training.
#include "base/hash.h"
#include "tokenizer/bpe_train.h"
#include "tokenizer/internal.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct PieceCounter {
    PieceScanner *scanner;
    PieceCounts counts;
};

// ---- Open, close --------------------------------------------------------------------------------------

static Status tokenizer_new(Tokenizer **tokenizer, TokenizerKind kind) {
    Tokenizer *t = *tokenizer = calloc(1, sizeof **tokenizer);
    if (!t) return fail(ERR_OS, "no memory for a tokenizer");
    t->kind = kind;
    t->bos = -1;
    return OK;
}

void tokenizer_add_pattern(Tokenizer *t, const char *pattern) {
    CHECK(t->num_patterns < MAX_PATTERNS, "more than %d patterns", MAX_PATTERNS);
    char *copy = t->patterns[t->num_patterns++] = strdup(pattern);
    CHECK(copy, "no memory for a pattern of %zu bytes", strlen(pattern));
}

Status tokenizer_open(Tokenizer **tokenizer, const char *vocab_file, const char *merge_file) {
    TRY(tokenizer_new(tokenizer, TOKENIZER_BPE));
    tokenizer_add_pattern(*tokenizer, gpt2_pattern);
    Status status = bpe_load(&(*tokenizer)->bpe, vocab_file, merge_file);
    (*tokenizer)->eod = bpe_find(&(*tokenizer)->bpe, EOD_SPELLING, strlen(EOD_SPELLING));
    if (status == OK) return OK;
    tokenizer_close(*tokenizer);
    *tokenizer = NULL;
    return status;
}

Status tokenizer_open_null(Tokenizer **tokenizer, int size) {
    if (size < 1 || size == INT_MAX)
        return fail(ERR_CONFIG, "--vocab-size %d: the null tokenizer needs 1 to %d", size, INT_MAX - 1);
    TRY(tokenizer_new(tokenizer, TOKENIZER_NULL));
    (*tokenizer)->null_size = (*tokenizer)->eod = size;
    return OK;
}

void tokenizer_close(Tokenizer *t) {
    if (!t) return;
    bpe_free(&t->bpe);
    for (int i = 0; i < t->num_patterns; i++) free(t->patterns[i]);
    for (int i = 0; i < ADDED_SETS; i++) added_set_free(&t->added[i]);
    free(t->types);
    sentencepiece_close(t->sentencepiece);
    text_free(&t->file);
    text_free(&t->config);
    text_free(&t->template);
    text_free(&t->note);
    free(t);
}

// ---- What it knows ------------------------------------------------------------------------------------

TokenizerKind tokenizer_kind(const Tokenizer *t) { return t->kind; }
int tokenizer_eod(const Tokenizer *t) { return t->eod; }
int tokenizer_bos(const Tokenizer *t) { return t->bos; }

int tokenizer_vocab_size(const Tokenizer *t) {
    switch (t->kind) {
    case TOKENIZER_NULL: return t->null_size + 1;
    case TOKENIZER_SENTENCEPIECE: return sentencepiece_size(t->sentencepiece);
    case TOKENIZER_BPE: break;
    }
    return (int)t->bpe.spellings.count;
}

int tokenizer_unknown(const Tokenizer *t) {
    return t->kind == TOKENIZER_SENTENCEPIECE ? sentencepiece_unknown(t->sentencepiece) : -1;
}

static void check_id(const Tokenizer *t, int id) {
    CHECK(id >= 0 && id < tokenizer_vocab_size(t), "token %d of %d", id, tokenizer_vocab_size(t));
}

const char *tokenizer_spelling(const Tokenizer *t, int id) {
    check_id(t, id);
    size_t size;
    switch (t->kind) {
    case TOKENIZER_NULL: return "";
    case TOKENIZER_SENTENCEPIECE: return sentencepiece_piece(t->sentencepiece, id);
    case TOKENIZER_BPE: break;
    }
    return bytes_map_at(&t->bpe.spellings, (uint32_t)id, &size);
}

uint64_t tokenizer_hash(const Tokenizer *t) {
    uint64_t hash = (uint64_t)t->kind + 1;
    for (int id = 0; t->kind != TOKENIZER_NULL && id < tokenizer_vocab_size(t); id++) {
        const char *spelling = tokenizer_spelling(t, id);
        hash = hash64_from(spelling, strlen(spelling), hash);
    }
    return hash;
}

static TokenType sentencepiece_type(const SentencePiece *model, int id) {
    if (id == sentencepiece_unknown(model)) return TOKEN_UNKNOWN;
    if (sentencepiece_is_control(model, id)) return TOKEN_CONTROL;
    if (sentencepiece_is_unused(model, id)) return TOKEN_UNUSED;
    return sentencepiece_is_byte(model, id) ? TOKEN_BYTE : TOKEN_NORMAL;
}

TokenType tokenizer_token_type(const Tokenizer *t, int id) {
    check_id(t, id);
    if (t->kind == TOKENIZER_SENTENCEPIECE)
        return t->types ? t->types[id] : sentencepiece_type(t->sentencepiece, id);
    if (id == t->eod || id == t->bos) return TOKEN_CONTROL;
    return t->types ? t->types[id] : TOKEN_NORMAL;
}

float tokenizer_score(const Tokenizer *t, int id) {
    check_id(t, id);
    return t->kind == TOKENIZER_SENTENCEPIECE ? sentencepiece_score(t->sentencepiece, id) : 0.0F;
}

int tokenizer_num_merges(const Tokenizer *t) { return (int)t->bpe.pairs.count; }

void tokenizer_merge(const Tokenizer *t, int rank, Text *out) {
    CHECK(rank >= 0 && rank < tokenizer_num_merges(t), "merge %d of %d", rank, tokenizer_num_merges(t));
    bpe_write_merge(&t->bpe, (uint32_t)rank, out);
}

bool tokenizer_takes_whole(const Tokenizer *t) { return t->bpe.ignore_merges; }

SentencePieceRules tokenizer_rules(const Tokenizer *t) { return t->rules; }

int tokenizer_num_patterns(const Tokenizer *t) { return t->num_patterns; }

const char *tokenizer_pattern(const Tokenizer *t, int i) {
    CHECK(i >= 0 && i < t->num_patterns, "pattern %d of %d", i, t->num_patterns);
    return t->patterns[i];
}

size_t tokenizer_control_at(const Tokenizer *t, const char *text, size_t bytes, int32_t *id) {
    return t->kind == TOKENIZER_SENTENCEPIECE ? added_set_at(&t->added[0], text, bytes, id) : 0;
}

// ---- Decode -------------------------------------------------------------------------------------------

static void take_text(void *self, const char *text, size_t bytes) { text_add_bytes(self, text, bytes); }

static Status decode_sentencepiece(const Tokenizer *t, const int32_t *ids, size_t count, Text *out) {
    char message[SENTENCEPIECE_MESSAGE];
    if (!count || sentencepiece_decode(t->sentencepiece, ids, count, take_text, out, message)) return OK;
    return fail(ERR_DATA, "SentencePiece: %s", message);
}

Status tokenizer_decode(const Tokenizer *t, const int32_t *ids, size_t count, Text *out) {
    int vocab_size = tokenizer_vocab_size(t);
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= vocab_size)
            return fail(ERR_DATA, "token %d at position %zu is not in the vocabulary of %d", ids[i], i,
                        vocab_size);
    if (t->kind == TOKENIZER_SENTENCEPIECE) return decode_sentencepiece(t, ids, count, out);
    for (size_t i = 0; i < count; i++) {
        if (t->kind == TOKENIZER_NULL)
            text_add(out, i ? " %d" : "%d", ids[i]);
        else
            text_add_bytes(out, t->bpe.bytes.data + t->bpe.starts[ids[i]],
                           t->bpe.starts[ids[i] + 1] - t->bpe.starts[ids[i]]);
    }
    return OK;
}

// ---- Train --------------------------------------------------------------------------------------------

Status piece_counter_open(PieceCounter **counter) {
    PieceCounter *c = *counter = calloc(1, sizeof *c);
    if (!c) return fail(ERR_OS, "no memory for a piece counter");
    Status status = piece_scanner_open(&c->scanner, &(const char *){gpt2_pattern}, 1);
    if (status == OK) return OK;
    piece_counter_close(c);
    *counter = NULL;
    return status;
}

Status piece_counter_add(PieceCounter *counter, const char *text, size_t bytes) {
    piece_scanner_start(counter->scanner, text, bytes);
    const char *piece;
    size_t size;
    while (piece_scanner_next(counter->scanner, &piece, &size))
        piece_counts_add(&counter->counts, piece, size, 1);
    return piece_scanner_status(counter->scanner);
}

void piece_counter_merge(PieceCounter *into, const PieceCounter *from) {
    for (uint32_t i = 0; i < from->counts.pieces.count; i++) {
        size_t size;
        const char *piece = bytes_map_at(&from->counts.pieces, i, &size);
        piece_counts_add(&into->counts, piece, size, from->counts.counts[i]);
    }
}

static void free_counts(PieceCounts *counts) {
    bytes_map_free(&counts->pieces);
    free(counts->counts);
    *counts = (PieceCounts){0};
}

void piece_counter_clear(PieceCounter *counter) {
    enum { LARGE_BYTES = 1 << 20 };
    if (counter->counts.pieces.pool_capacity > LARGE_BYTES) free_counts(&counter->counts);
    bytes_map_clear(&counter->counts.pieces);
}

void piece_counter_close(PieceCounter *counter) {
    if (!counter) return;
    piece_scanner_close(counter->scanner);
    free_counts(&counter->counts);
    free(counter);
}

Status tokenizer_train(Tokenizer **tokenizer, const PieceCounter *counts, int vocab_size,
                       bool (*tick)(void *self, int num_tokens), void *self) {
    enum { LEAST = 257 };
    if (vocab_size < LEAST || vocab_size > MAX_VOCABULARY)
        return fail(ERR_CONFIG,
                    "--vocab-size %d: a byte-level vocabulary has %d to %d tokens (256 bytes and %s)",
                    vocab_size, LEAST, MAX_VOCABULARY, EOD_SPELLING);
    TRY(tokenizer_new(tokenizer, TOKENIZER_BPE));
    tokenizer_add_pattern(*tokenizer, gpt2_pattern);
    bpe_train(&(*tokenizer)->bpe, &counts->counts, vocab_size, tick, self);
    (*tokenizer)->eod = (int32_t)(*tokenizer)->bpe.spellings.count - 1;
    return OK;
}
