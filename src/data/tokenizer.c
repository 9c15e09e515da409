#include "data/bpe_train.h"
#include "data/data.h"
#include "data/pieces.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct Tokenizer {
    Bpe bpe;
    int null_size; // > 0: the null tokenizer
};

struct PieceCounter {
    PieceScanner *scanner;
    PieceCounts counts;
};

enum {
    MAX_CACHED_PIECE_BYTES = 64,
    MAX_CACHED_PIECES = 1 << 17, // then the cache starts anew
};

// Piece i of the cache has tokens [starts[i], starts[i+1]).
struct Encoder {
    const Tokenizer *tokenizer;
    PieceScanner *scanner;
    BpeScratch scratch;
    BytesMap cache;
    size_t *starts;
    size_t starts_capacity;
    TokenList tokens;
};

void token_list_add(TokenList *list, const int32_t *ids, size_t count) {
    grow_array(&list->ids, sizeof *list->ids, list->count + count, &list->capacity);
    for (size_t i = 0; i < count; i++) list->ids[list->count + i] = ids[i];
    list->count += count;
}

void token_list_free(TokenList *list) {
    free(list->ids);
    *list = (TokenList){0};
}

// ---- Open, save, close --------------------------------------------------------------------------------

static Status tokenizer_new(Tokenizer **tokenizer) {
    *tokenizer = calloc(1, sizeof **tokenizer);
    return *tokenizer ? OK : fail(ERR_OS, "no memory for a tokenizer");
}

Status tokenizer_open(Tokenizer **tokenizer, const char *vocab_file, const char *merge_file) {
    TRY(tokenizer_new(tokenizer));
    Status status = bpe_load(&(*tokenizer)->bpe, vocab_file, merge_file);
    if (status == OK) return OK;
    tokenizer_close(*tokenizer);
    *tokenizer = NULL;
    return status;
}

Status tokenizer_open_null(Tokenizer **tokenizer, int size) {
    if (size < 1 || size == INT_MAX)
        return fail(ERR_CONFIG, "--vocab-size %d: the null tokenizer needs 1 to %d", size, INT_MAX - 1);
    TRY(tokenizer_new(tokenizer));
    (*tokenizer)->null_size = size;
    return OK;
}

static Status beside(char path[PATH_MAX], const char *prefix, const char *separator, const char *name) {
    if (snprintf(path, PATH_MAX, "%s%s%s", prefix, separator, name) >= PATH_MAX)
        return fail(ERR_CONFIG, "%s: the name is too long", prefix);
    return OK;
}

Status tokenizer_open_beside(Tokenizer **tokenizer, const char *prefix) {
    struct stat st;
    const char *separator = stat(prefix, &st) == 0 && S_ISDIR(st.st_mode) ? "/" : ".";
    char vocab[PATH_MAX], merges[PATH_MAX];
    TRY(beside(vocab, prefix, separator, "vocab.json"));
    TRY(beside(merges, prefix, separator, "merges.txt"));
    return tokenizer_open(tokenizer, vocab, merges);
}

static Status remove_stale(const char *path) {
    if (unlink(path) == 0 || errno == ENOENT) return OK;
    return fail(create_status(), "%s: cannot remove the tokenizer of an earlier run: %s", path,
                strerror(errno));
}

Status tokenizer_save(const Tokenizer *tokenizer, const char *prefix) {
    char vocab[PATH_MAX], merges[PATH_MAX];
    TRY(beside(vocab, prefix, ".", "vocab.json"));
    TRY(beside(merges, prefix, ".", "merges.txt"));
    if (tokenizer->null_size) {
        TRY(remove_stale(vocab));
        return remove_stale(merges);
    }
    return bpe_save(&tokenizer->bpe, vocab, merges);
}

void tokenizer_close(Tokenizer *tokenizer) {
    if (!tokenizer) return;
    bpe_free(&tokenizer->bpe);
    free(tokenizer);
}

int tokenizer_vocab_size(const Tokenizer *t) {
    return t->null_size ? t->null_size + 1 : (int)t->bpe.spellings.count;
}

int tokenizer_eod(const Tokenizer *t) { return t->null_size ? t->null_size : t->bpe.eod; }

Status tokenizer_decode(const Tokenizer *t, const int32_t *ids, size_t count, Text *out) {
    int vocab_size = tokenizer_vocab_size(t);
    for (size_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= vocab_size)
            return fail(ERR_DATA, "token %d at position %zu is not in the vocabulary of %d", ids[i], i,
                        vocab_size);
        if (t->null_size)
            text_add(out, i ? " %d" : "%d", ids[i]);
        else
            text_add_bytes(out, t->bpe.bytes.data + t->bpe.starts[ids[i]],
                           t->bpe.starts[ids[i] + 1] - t->bpe.starts[ids[i]]);
    }
    return OK;
}

// ---- Encode -------------------------------------------------------------------------------------------

Status encoder_open(Encoder **encoder, const Tokenizer *tokenizer) {
    Encoder *e = *encoder = calloc(1, sizeof *e);
    if (!e) return fail(ERR_OS, "no memory for an encoder");
    e->tokenizer = tokenizer;
    Status status = tokenizer->null_size ? OK : piece_scanner_open(&e->scanner);
    if (status == OK) return OK;
    encoder_close(e);
    *encoder = NULL;
    return status;
}

void encoder_close(Encoder *encoder) {
    if (!encoder) return;
    piece_scanner_close(encoder->scanner);
    bpe_scratch_free(&encoder->scratch);
    bytes_map_free(&encoder->cache);
    free(encoder->starts);
    token_list_free(&encoder->tokens);
    free(encoder);
}

static void cache_piece(Encoder *e, const char *piece, size_t bytes) {
    if (e->cache.count == MAX_CACHED_PIECES) {
        bytes_map_clear(&e->cache);
        e->tokens.count = 0;
    }
    bool added;
    uint32_t i = bytes_map_add(&e->cache, piece, bytes, &added);
    grow_array(&e->starts, sizeof *e->starts, (size_t)i + 2, &e->starts_capacity);
    e->starts[i] = e->tokens.count;
    bpe_encode_piece(&e->tokenizer->bpe, &e->scratch, piece, bytes, &e->tokens);
    e->starts[i + 1] = e->tokens.count;
}

static void encode_piece(Encoder *e, const char *piece, size_t bytes, TokenList *out) {
    if (bytes > MAX_CACHED_PIECE_BYTES) {
        bpe_encode_piece(&e->tokenizer->bpe, &e->scratch, piece, bytes, out);
        return;
    }
    uint32_t i = bytes_map_find(&e->cache, piece, bytes);
    if (i == NOT_FOUND) {
        cache_piece(e, piece, bytes);
        i = e->cache.count - 1;
    }
    token_list_add(out, e->tokens.ids + e->starts[i], e->starts[i + 1] - e->starts[i]);
}

static bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Decimal digits only; the largest id is the size itself (EOD).
static Status encode_null(const Tokenizer *t, const char *text, size_t bytes, TokenList *out) {
    for (size_t at = 0; at < bytes;) {
        if (is_blank(text[at])) {
            at++;
            continue;
        }
        size_t start = at;
        int64_t id = 0;
        for (; at < bytes && text[at] >= '0' && text[at] <= '9' && id <= t->null_size; at++)
            id = 10 * id + (text[at] - '0');
        if (at == start || id > t->null_size || (at < bytes && !is_blank(text[at])))
            return fail(ERR_DATA,
                        "byte %zu: \"%.*s\" is not a token: blank-separated integers 0 to %d are expected",
                        start, (int)(bytes - start < 20 ? bytes - start : 20), text + start, t->null_size);
        token_list_add(out, &(int32_t){(int32_t)id}, 1);
    }
    return OK;
}

Status encoder_encode(Encoder *e, const char *text, size_t bytes, TokenList *out) {
    if (e->tokenizer->null_size) return encode_null(e->tokenizer, text, bytes, out);
    piece_scanner_start(e->scanner, text, bytes);
    const char *piece;
    size_t size;
    while (piece_scanner_next(e->scanner, &piece, &size)) encode_piece(e, piece, size, out);
    return OK;
}

Status tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t bytes, TokenList *out) {
    Encoder *encoder;
    TRY(encoder_open(&encoder, tokenizer));
    Status status = encoder_encode(encoder, text, bytes, out);
    encoder_close(encoder);
    return status;
}

// ---- Train --------------------------------------------------------------------------------------------

Status piece_counter_open(PieceCounter **counter) {
    PieceCounter *c = *counter = calloc(1, sizeof *c);
    if (!c) return fail(ERR_OS, "no memory for a piece counter");
    Status status = piece_scanner_open(&c->scanner);
    if (status == OK) return OK;
    piece_counter_close(c);
    *counter = NULL;
    return status;
}

void piece_counter_add(PieceCounter *counter, const char *text, size_t bytes) {
    piece_scanner_start(counter->scanner, text, bytes);
    const char *piece;
    size_t size;
    while (piece_scanner_next(counter->scanner, &piece, &size))
        piece_counts_add(&counter->counts, piece, size, 1);
}

void piece_counter_merge(PieceCounter *into, const PieceCounter *from) {
    for (uint32_t i = 0; i < from->counts.pieces.count; i++) {
        size_t size;
        const char *piece = bytes_map_at(&from->counts.pieces, i, &size);
        piece_counts_add(&into->counts, piece, size, from->counts.counts[i]);
    }
}

void piece_counter_close(PieceCounter *counter) {
    if (!counter) return;
    piece_scanner_close(counter->scanner);
    bytes_map_free(&counter->counts.pieces);
    free(counter->counts.counts);
    free(counter);
}

Status tokenizer_train(Tokenizer **tokenizer, const PieceCounter *counts, int vocab_size,
                       bool (*tick)(void *self, int num_tokens), void *self) {
    enum { LEAST = 257, MOST = 1 << 24 };
    if (vocab_size < LEAST || vocab_size > MOST)
        return fail(ERR_CONFIG,
                    "--vocab-size %d: a byte-level vocabulary has %d to %d tokens (256 bytes and %s)",
                    vocab_size, LEAST, MOST, EOD_SPELLING);
    TRY(tokenizer_new(tokenizer));
    bpe_train(&(*tokenizer)->bpe, &counts->counts, vocab_size, tick, self);
    return OK;
}
