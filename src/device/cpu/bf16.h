// Code for products of BF16 factors, shared by AMX (amx.c) and the instruction for pairs (pairs.c): copies of the
// factors as those instructions take them, and the edges of d.
//
// Lines are rows of the left factor and columns of the right one; terms are their places along the sum. A strip is
// BLOCK lines; of each BLOCK terms it holds two tiles of 16 rows of 64 bytes. Rows of a tile are lines, 16 pairs of
// terms each, or pairs of terms, of 16 lines each. What is missing of a block is zero.
#pragma once
#include "device/cpu/vector.h"

enum {
    BLOCK = 2 * LANES,              // lines of a strip, and terms of a block
    BLOCK_ELEMENTS = BLOCK * BLOCK, // two tiles
    TILE_ELEMENTS = BLOCK_ELEMENTS / 2
};

static inline int64_t strips(int64_t count) { return cpu_num_blocks(count, BLOCK); }

// Terms in a panel of at most `most`, whole blocks: all panels but the last are equally deep.
static inline int64_t panel_terms(int64_t inner, int64_t most) {
    int64_t some = inner > 0 ? inner : 1;
    return BLOCK * cpu_num_blocks(strips(some), cpu_num_blocks(some, most));
}

// ---- copies of the factors --------------------------------------------------------------------------------

// Up to BLOCK rows of a or columns of b, `lines`, and their terms. `along`: the terms of a line are neighbours.
typedef struct {
    const uint16_t *from;
    int64_t stride, lines, terms;
    bool along;
} FactorStrip;

// Returns a strip of `terms` terms from `term` on, with up to BLOCK lines from `line` on; x has `lines` lines.
static inline FactorStrip strip_of(Factor x, bool along, int64_t line, int64_t lines, int64_t term,
                                   int64_t terms) {
    const uint16_t *from = x.data;
    from += along ? line * x.stride + term : term * x.stride + line;
    return (FactorStrip){from, x.stride, at_most(lines - line, BLOCK), terms, along};
}

static inline __mmask32 first_lanes(int64_t count) {
    return count >= BLOCK ? 0xFFFFFFFFu : count <= 0 ? 0 : (__mmask32)((1u << count) - 1);
}

static inline __mmask32 only_if(bool condition) { return (__mmask32)(0u - condition); }

static inline __m512i load_some(bool whole, __mmask32 mask, const uint16_t *from) {
    return whole ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi16(mask, from);
}

// The words of 16 lines: line i becomes the i-th word of each.
static inline void transpose_words(__m512i x[LANES]) {
    __m512i t[LANES];
    for (int i = 0; i < LANES; i += 2) {
        t[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    for (int i = 0; i < LANES; i += 4)
        for (int j = 0; j < 2; j++) {
            x[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
            x[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
        }
    for (int i = 0; i < 4; i++) {
        __m512i low = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x44);
        __m512i high = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xEE);
        __m512i next_low = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x44);
        __m512i next_high = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xEE);
        t[i] = _mm512_shuffle_i32x4(low, next_low, 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(low, next_low, 0xDD);
        t[i + 8] = _mm512_shuffle_i32x4(high, next_high, 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(high, next_high, 0xDD);
    }
    for (int i = 0; i < LANES; i++) x[i] = t[i];
}

static inline void store_tile(uint16_t *to, const __m512i x[LANES]) {
    for (int i = 0; i < LANES; i++) _mm512_storeu_si512(to + i * BLOCK, x[i]);
}

// A tile of LANES lines from `line` on, BLOCK terms each from `term` on; `whole`: all of them exist.
static inline __attribute__((always_inline)) void pack_lines(const FactorStrip *s, int64_t line, int64_t term,
                                                             bool turn, bool whole, uint16_t *to) {
    __m512i x[LANES];
    const uint16_t *from = s->from + line * s->stride + term;
    __mmask32 mask = first_lanes(s->terms - term);
    for (int i = 0; i < LANES; i++, from += s->stride)
        x[i] = load_some(whole, mask & only_if(line + i < s->lines), from);
    if (turn) transpose_words(x);
    store_tile(to, x);
}

static inline void turn_tile(uint16_t *tile) {
    __m512i x[LANES];
    for (int i = 0; i < LANES; i++) x[i] = _mm512_loadu_si512(tile + i * BLOCK);
    transpose_words(x);
    store_tile(tile, x);
}

// Two tiles: of each pair of terms all lines, half of them in each tile.
static inline __attribute__((always_inline)) void pack_pairs(const FactorStrip *s, int64_t term, bool turn,
                                                             bool whole, uint16_t *to) {
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    const uint16_t *from = s->from + term * s->stride;
    __mmask32 mask = first_lanes(s->lines);
    int64_t left = s->terms - term;
    for (int i = 0; i < LANES; i++, from += 2 * s->stride) {
        __m512i even = load_some(whole, mask & only_if(2 * i < left), from);
        __m512i odd = load_some(whole, mask & only_if(2 * i + 1 < left), from + s->stride);
        __m512i low = _mm512_unpacklo_epi16(even, odd), high = _mm512_unpackhi_epi16(even, odd);
        _mm512_storeu_si512(to + i * BLOCK, _mm512_permutex2var_epi64(low, first, high));
        _mm512_storeu_si512(to + TILE_ELEMENTS + i * BLOCK, _mm512_permutex2var_epi64(low, second, high));
    }
    if (turn) turn_tile(to), turn_tile(to + TILE_ELEMENTS);
}

static inline __attribute__((always_inline)) void pack_block(const FactorStrip *s, int64_t term, bool turn,
                                                             bool whole, uint16_t *to) {
    if (s->along) {
        pack_lines(s, 0, term, turn, whole, to);
        pack_lines(s, LANES, term, turn, whole, to + TILE_ELEMENTS);
    } else
        pack_pairs(s, term, turn, whole, to);
}

// Rows of tiles are lines, of a, or pairs of terms, of b.
static inline void pack(const FactorStrip *s, bool rows_are_lines, uint16_t *to) {
    bool turn = s->along != rows_are_lines;
    for (int64_t term = 0; term < s->terms; term += BLOCK, to += BLOCK_ELEMENTS)
        if (s->lines == BLOCK && s->terms - term >= BLOCK)
            pack_block(s, term, turn, true, to);
        else
            pack_block(s, term, turn, false, to);
}

// ---- edges of d -------------------------------------------------------------------------------------------

// Sums, `sum_stride` from row to row in whole vectors, go to d, which is F32 ...
static inline void add_edge(const float *sum, int64_t sum_stride, bool adds, float *d, int64_t stride,
                            int64_t rows, int64_t cols) {
    for (int64_t row = 0; row < rows; row++, sum += sum_stride, d += stride)
        for (int64_t col = 0; col < cols; col += LANES) {
            Floats x = load(sum + col, LANES);
            store(d + col, cols - col, adds ? x + load(d + col, cols - col) : x);
        }
}

// ... or BF16; of the bias all columns, or NULL.
static inline void round_edge(const float *sum, int64_t sum_stride, const uint16_t *bias, uint16_t *d,
                              int64_t stride, int64_t rows, int64_t cols) {
    for (int64_t row = 0; row < rows; row++, sum += sum_stride, d += stride)
        for (int64_t col = 0; col < cols; col += LANES) {
            Floats x = load(sum + col, LANES);
            if (bias) x += load_as(BF16, bias + col, cols - col, 0);
            store_as(BF16, d + col, cols - col, x);
        }
}
