// Encodes text: finds added tokens, cuts the text between them into pieces, and merges the pieces or finds them
// in a cache.
#include "tokenizer/internal.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

// A piece and its tokens, in one cache line.
enum { CACHED_BYTES = 31, CACHED_TOKENS = 7, NUM_CACHED = 1 << 16 };

typedef struct {
    char piece[CACHED_BYTES];
    uint8_t bytes; // 0: none
    int32_t ids[CACHED_TOKENS];
    uint32_t count;
} CachedPiece;

struct Encoder {
    const Tokenizer *tokenizer;
    PieceScanner *scanner;
    BpeScratch scratch;
    CachedPiece *cache; // [NUM_CACHED], by hash; the newest stays
    Text prefixed, spelling;
};

Status encoder_open(Encoder **encoder, const Tokenizer *t) {
    Encoder *e = *encoder = calloc(1, sizeof *e);
    if (!e) return fail(ERR_OS, "no memory for an encoder");
    e->tokenizer = t;
    if (t->kind != TOKENIZER_BPE) return OK;
    e->cache = aligned_alloc(sizeof *e->cache, NUM_CACHED * sizeof *e->cache);
    if (e->cache) memset(e->cache, 0, NUM_CACHED * sizeof *e->cache);
    Status status = e->cache
                        ? piece_scanner_open(&e->scanner, (const char *const *)t->patterns, t->num_patterns)
                        : fail(ERR_OS, "no memory for an encoder");
    if (status == OK) return OK;
    encoder_close(e);
    *encoder = NULL;
    return status;
}

void encoder_close(Encoder *encoder) {
    if (!encoder) return;
    piece_scanner_close(encoder->scanner);
    bpe_scratch_free(&encoder->scratch);
    free(encoder->cache);
    text_free(&encoder->prefixed);
    text_free(&encoder->spelling);
    free(encoder);
}

// ---- Pieces -------------------------------------------------------------------------------------------

// The token that the whole piece spells, or -1. Added tokens have been found before.
static int32_t whole_token(Encoder *e, const char *piece, size_t bytes) {
    const Tokenizer *t = e->tokenizer;
    e->spelling.size = 0;
    bpe_spell(&e->spelling, piece, bytes);
    int32_t id = bpe_find(&t->bpe, e->spelling.data, e->spelling.size);
    return id >= 0 && tokenizer_token_type(t, id) == TOKEN_NORMAL ? id : -1;
}

static void merge_piece(Encoder *e, const char *piece, size_t bytes, TokenList *out) {
    const Bpe *bpe = &e->tokenizer->bpe;
    int32_t whole = bpe->ignore_merges ? whole_token(e, piece, bytes) : -1;
    if (whole >= 0)
        token_list_add(out, &whole, 1);
    else
        bpe_encode_piece(bpe, &e->scratch, piece, bytes, out);
}

static void cache_piece(CachedPiece *cached, const char *piece, size_t bytes, const int32_t *ids,
                        size_t count) {
    if (count > CACHED_TOKENS) return;
    memcpy(cached->piece, piece, bytes);
    cached->bytes = (uint8_t)bytes;
    for (size_t i = 0; i < count; i++) cached->ids[i] = ids[i];
    cached->count = (uint32_t)count;
}

static void encode_piece(Encoder *e, const char *piece, size_t bytes, TokenList *out) {
    if (bytes > CACHED_BYTES) {
        merge_piece(e, piece, bytes, out);
        return;
    }
    CachedPiece *cached = &e->cache[bytes_hash(piece, bytes) % NUM_CACHED];
    if (cached->bytes == bytes && memcmp(cached->piece, piece, bytes) == 0) {
        token_list_add(out, cached->ids, cached->count);
        return;
    }
    size_t before = out->count;
    merge_piece(e, piece, bytes, out);
    cache_piece(cached, piece, bytes, out->ids + before, out->count - before);
}

bool tokenizer_merges_suffice(const Tokenizer *t) {
    const Bpe *bpe = &t->bpe;
    BpeScratch scratch = {0};
    TokenList made = {0};
    bool suffice = t->kind == TOKENIZER_BPE;
    for (int id = 0; suffice && id < tokenizer_vocab_size(t); id++) {
        if (tokenizer_token_type(t, id) != TOKEN_NORMAL) continue;
        size_t start = bpe->starts[id];
        made.count = 0;
        bpe_encode_piece(bpe, &scratch, bpe->bytes.data + start, bpe->starts[id + 1] - start, &made);
        suffice = made.count == 1 && made.ids[0] == id;
    }
    bpe_scratch_free(&scratch);
    token_list_free(&made);
    return suffice;
}

// ---- Text between added tokens ------------------------------------------------------------------------

static Status encode_span(Encoder *e, const char *text, size_t bytes, TokenList *out) {
    if (!bytes) return OK;
    if (e->tokenizer->add_prefix_space && text[0] != ' ') {
        e->prefixed.size = 0;
        text_add_bytes(&e->prefixed, " ", 1);
        text_add_bytes(&e->prefixed, text, bytes);
        text = e->prefixed.data;
        bytes++;
    }
    const char *piece;
    size_t size;
    piece_scanner_start(e->scanner, text, bytes);
    while (piece_scanner_next(e->scanner, &piece, &size)) encode_piece(e, piece, size, out);
    return piece_scanner_status(e->scanner);
}

// Cuts the text at the added tokens of one set, and the text between them at those of the next.
static Status encode_around(Encoder *e, int level, const char *text, size_t bytes, TokenList *out) {
    if (level == ADDED_SETS) return encode_span(e, text, bytes, out);
    const AddedSet *set = &e->tokenizer->added[level];
    size_t done = 0;
    for (AddedMatch match; added_set_find(set, text, bytes, done, &match); done = match.end) {
        TRY(encode_around(e, level + 1, text + done, match.start - done, out));
        token_list_add(out, &match.id, 1);
    }
    return encode_around(e, level + 1, text + done, bytes - done, out);
}

// ---- The other kinds ----------------------------------------------------------------------------------

static void take_ids(void *self, const int *ids, size_t count) { token_list_add(self, ids, count); }

static Status encode_sentencepiece(const Tokenizer *t, const char *text, size_t bytes, TokenList *out) {
    enum { MAX_BYTES = 1 << 30 };
    char message[SENTENCEPIECE_MESSAGE];
    if (bytes >= MAX_BYTES)
        return fail(ERR_DATA, "a text of %zu bytes: SentencePiece takes less than 1 GiB", bytes);
    if (!bytes || sentencepiece_encode(t->sentencepiece, text, bytes, take_ids, out, message)) return OK;
    return fail(ERR_DATA, "SentencePiece: %s", message);
}

static bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Reads integers of decimal digits. The largest id is the size itself, which ends a document.
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
    switch (e->tokenizer->kind) {
    case TOKENIZER_NULL: return encode_null(e->tokenizer, text, bytes, out);
    case TOKENIZER_SENTENCEPIECE: return encode_sentencepiece(e->tokenizer, text, bytes, out);
    case TOKENIZER_BPE: break;
    }
    return encode_around(e, 0, text, bytes, out);
}

Status tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t bytes, TokenList *out) {
    Encoder *encoder;
    TRY(encoder_open(&encoder, tokenizer));
    Status status = encoder_encode(encoder, text, bytes, out);
    encoder_close(encoder);
    return status;
}
