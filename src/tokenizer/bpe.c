// The byte-level BPE model: its tokens and merges, and the merging of one piece.
#include "tokenizer/bpe.h"
#include "base/array.h"
#include <stdlib.h>
#include <string.h>

unsigned bpe_byte_char(unsigned char byte) {
    bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    if (printable) return byte;
    unsigned before = byte < 33 ? byte : byte < 161 ? 33U + byte - 127U : 67U; // other bytes below this one
    return 256 + before;
}

size_t bpe_spell_byte(unsigned char byte, char utf8[2]) {
    unsigned code = bpe_byte_char(byte);
    if (code < 128) {
        utf8[0] = (char)code;
        return 1;
    }
    utf8[0] = (char)(0xc0 | code >> 6);
    utf8[1] = (char)(0x80 | (code & 63));
    return 2;
}

// The byte that the character at `utf8` spells, or -1. The inverse of bpe_byte_char.
static int spelled_byte(const char *utf8, size_t left, size_t *length) {
    unsigned char first = (unsigned char)utf8[0];
    *length = first < 128 ? 1 : 2;
    if (*length > left || first >= 0xe0) return -1;
    unsigned code = first < 128 ? first : (first & 31U) << 6 | ((unsigned char)utf8[1] & 63U);
    unsigned byte = code < 256 ? code : code - 256;
    if (code >= 256 + 33) byte = code < 256 + 67 ? 127 + (code - 289) : 173;
    return byte < 256 && bpe_byte_char((unsigned char)byte) == code ? (int)byte : -1;
}

void bpe_spell(Text *out, const char *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) {
        char utf8[2];
        text_add_bytes(out, utf8, bpe_spell_byte((unsigned char)bytes[i], utf8));
    }
}

// A token with a character that spells no byte is a special token: its bytes are its spelling.
static void add_token_bytes(Bpe *bpe, const char *spelling, size_t size) {
    size_t start = bpe->bytes.size, length;
    for (size_t at = 0; at < size; at += length) {
        int byte = spelled_byte(spelling + at, size - at, &length);
        if (byte < 0) {
            bpe->bytes.size = start;
            text_add_bytes(&bpe->bytes, spelling, size);
            return;
        }
        char c = (char)byte;
        text_add_bytes(&bpe->bytes, &c, 1);
    }
}

static bool add_token(Bpe *bpe, const char *spelling, size_t size, bool literal) {
    bool added;
    uint32_t id = bytes_map_add(&bpe->spellings, spelling, size, &added);
    if (!added) return false;
    array_grow(&bpe->starts, sizeof *bpe->starts, (size_t)id + 2, &bpe->starts_capacity);
    bpe->starts[id] = bpe->bytes.size;
    if (literal)
        text_add_bytes(&bpe->bytes, spelling, size);
    else
        add_token_bytes(bpe, spelling, size);
    bpe->starts[id + 1] = bpe->bytes.size;
    return true;
}

bool bpe_add_token(Bpe *bpe, const char *spelling, size_t size) {
    return add_token(bpe, spelling, size, false);
}

bool bpe_add_literal(Bpe *bpe, const char *text, size_t size) { return add_token(bpe, text, size, true); }

int32_t bpe_find(const Bpe *bpe, const char *spelling, size_t size) {
    uint32_t id = bytes_map_find(&bpe->spellings, spelling, size);
    return id == NOT_FOUND ? -1 : (int32_t)id;
}

bool bpe_add_merge(Bpe *bpe, int32_t left, int32_t right, int32_t result) {
    bool added;
    uint32_t rank = pair_map_add(&bpe->pairs, left, right, &added);
    if (!added) return false;
    array_grow(&bpe->merges, sizeof *bpe->merges, (size_t)rank + 1, &bpe->merges_capacity);
    bpe->merges[rank] = (Merge){left, right, result};
    return true;
}

void bpe_write_merge(const Bpe *bpe, uint32_t rank, Text *out) {
    size_t size;
    const Merge *merge = &bpe->merges[rank];
    const char *left = bytes_map_at(&bpe->spellings, (uint32_t)merge->left, &size);
    text_add_bytes(out, left, size);
    text_add_bytes(out, " ", 1);
    const char *right = bytes_map_at(&bpe->spellings, (uint32_t)merge->right, &size);
    text_add_bytes(out, right, size);
}

void bpe_free(Bpe *bpe) {
    bytes_map_free(&bpe->spellings);
    text_free(&bpe->bytes);
    free(bpe->starts);
    pair_map_free(&bpe->pairs);
    free(bpe->merges);
    *bpe = (Bpe){0};
}

// ---- Merging one piece: a linked list of symbols, a heap of mergeable pairs ---------------------------

enum { NONE = -1 };

struct BpeSymbol {
    int32_t id; // NONE: merged into its left neighbour
    int32_t previous, next;
};

struct BpeCandidate {
    uint32_t rank;
    int32_t at; // the left symbol
};

static bool before(struct BpeCandidate a, struct BpeCandidate b) {
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static void heap_push(BpeScratch *s, struct BpeCandidate candidate) {
    array_grow(&s->heap, sizeof *s->heap, s->heap_count + 1, &s->heap_capacity);
    size_t i = s->heap_count++;
    for (; i && before(candidate, s->heap[(i - 1) / 2]); i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = candidate;
}

static struct BpeCandidate heap_pop(BpeScratch *s) {
    struct BpeCandidate top = s->heap[0], last = s->heap[--s->heap_count];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < s->heap_count) {
        if (child + 1 < s->heap_count && before(s->heap[child + 1], s->heap[child])) child++;
        if (!before(s->heap[child], last)) break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

static uint32_t rank_at(const Bpe *bpe, const BpeScratch *s, int32_t at) {
    if (at == NONE || s->symbols[at].id == NONE || s->symbols[at].next == NONE) return NOT_FOUND;
    return pair_map_find(&bpe->pairs, s->symbols[at].id, s->symbols[s->symbols[at].next].id);
}

static void add_pending(const Bpe *bpe, BpeScratch *s, int32_t at) {
    uint32_t rank = rank_at(bpe, s, at);
    if (rank == NOT_FOUND) return;
    array_grow(&s->pending, sizeof *s->pending, s->pending_count + 1, &s->pending_capacity);
    s->pending[s->pending_count++] = (struct BpeCandidate){rank, at};
}

static void flush_pending(BpeScratch *s) {
    for (size_t i = 0; i < s->pending_count; i++) heap_push(s, s->pending[i]);
    s->pending_count = 0;
}

static void merge_at(const Bpe *bpe, BpeScratch *s, struct BpeCandidate c) {
    struct BpeSymbol *left = &s->symbols[c.at], *right = &s->symbols[left->next];
    left->id = bpe->merges[c.rank].result;
    left->next = right->next;
    right->id = NONE;
    if (left->next != NONE) s->symbols[left->next].previous = c.at;
    add_pending(bpe, s, left->previous);
    add_pending(bpe, s, c.at);
}

// Merges one rank at a time, the leftmost pair first. In passes, new pairs wait until the rank is done.
static void merge_lowest_rank(const Bpe *bpe, BpeScratch *s) {
    uint32_t rank = s->heap[0].rank;
    while (s->heap_count && s->heap[0].rank == rank) {
        struct BpeCandidate c = heap_pop(s);
        if (rank_at(bpe, s, c.at) == c.rank) merge_at(bpe, s, c); // else it was consumed meanwhile
        if (!bpe->in_passes) flush_pending(s);
    }
    flush_pending(s);
}

void bpe_encode_piece(const Bpe *bpe, BpeScratch *s, const char *piece, size_t bytes, TokenList *out) {
    CHECK(bytes < INT32_MAX, "a piece of %zu bytes", bytes);
    array_grow(&s->symbols, sizeof *s->symbols, bytes, &s->symbols_capacity);
    int32_t count = (int32_t)bytes;
    for (int32_t i = 0; i < count; i++)
        s->symbols[i] =
            (struct BpeSymbol){bpe->byte_ids[(unsigned char)piece[i]], i - 1, i + 1 < count ? i + 1 : NONE};
    for (int32_t i = 0; i < count; i++) add_pending(bpe, s, i);
    flush_pending(s);
    while (s->heap_count) merge_lowest_rank(bpe, s);
    for (int32_t i = 0; i < count && i != NONE; i = s->symbols[i].next)
        token_list_add(out, &s->symbols[i].id, 1);
}

void bpe_scratch_free(BpeScratch *scratch) {
    free(scratch->symbols);
    free(scratch->heap);
    free(scratch->pending);
    *scratch = (BpeScratch){0};
}
