// Small matrix products for attention: tiles of STRIP rows whose sums stay in registers, and the packing of
// their factors.
//
// A factor is packed as terms of 32 bits. A term is one number in fp32; where the CPU multiplies bf16 by
// pairs (and E is BF16), it is two of them, neighbours along the sum, so that the same loops serve both. The
// left factor is read a term at a time, at any strides, and so needs no transposition; the right one a vector
// at a time. Sums are made in the order of the terms, one after the other: they depend on nothing but the
// factors.
#pragma once
#include "device/cpu_vector.h"

typedef float Term;

#if defined(__AVX512BF16__)
enum { PAIR = CPU_ELEMENT == BF16 ? 2 : 1 }; // elements of a term
#else
enum { PAIR = 1 };
#endif

// Sums that fill the registers and leave some for the factors.
enum { STRIP = 4, VECTORS = LANES == 16 ? 4 : 2, PANEL = VECTORS * LANES };

typedef struct {
    const Term *data;
    int64_t row, term; // from a row to the next, and from a term to the next
} Left;

typedef struct {
    const Term *data;
    int64_t stride; // from a term's vectors to the next term's: whole vectors
} Right;

// ---- products ---------------------------------------------------------------------------------------------

static inline Floats add_product(Floats sum, const Term *a, Floats b) {
#if defined(__AVX512BF16__)
    int32_t pair;
    memcpy(&pair, a, sizeof pair);
    if (PAIR == 2)
        return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)b);
#endif
    return sum + *a * b;
}

// c [STRIP, vectors * LANES] = a b, or with `adds` c + a b.
static inline __attribute__((always_inline)) void tile(int vectors, int64_t terms, Left a, Right b, bool adds,
                                                       float *c, int64_t stride) {
    Floats sum[STRIP][VECTORS];
    for (int r = 0; r < STRIP; r++)
        for (int v = 0; v < vectors; v++)
            sum[r][v] = adds ? load(c + r * stride + v * LANES, LANES) : (Floats){0};
    for (int64_t t = 0; t < terms; t++)
        for (int r = 0; r < STRIP; r++)
            for (int v = 0; v < vectors; v++)
                sum[r][v] = add_product(sum[r][v], a.data + r * a.row + t * a.term,
                                        load(b.data + t * b.stride + v * LANES, LANES));
    for (int r = 0; r < STRIP; r++)
        for (int v = 0; v < vectors; v++) store(c + r * stride + v * LANES, LANES, sum[r][v]);
}

// c [STRIP, cols] = a b, or with `adds` c + a b; cols up to a whole vector.
static inline void strip_product(int64_t cols, int64_t terms, Left a, Right b, bool adds, float *c,
                                 int64_t stride) {
    for (int64_t col = 0; col < cols; col += PANEL, b.data += PANEL, c += PANEL) {
        int64_t vectors = (cols - col + LANES - 1) / LANES;
        if (vectors >= VECTORS)
            tile(VECTORS, terms, a, b, adds, c, stride);
        else if (vectors == 3)
            tile(VECTORS < 3 ? VECTORS : 3, terms, a, b, adds, c, stride);
        else if (vectors == 2)
            tile(2, terms, a, b, adds, c, stride);
        else
            tile(1, terms, a, b, adds, c, stride);
    }
}

// ---- packing ----------------------------------------------------------------------------------------------

static inline int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }
enum { AHEAD = 8 }; // rows to be packed lie far apart: too far for the CPU to guess the next ones

static inline int64_t num_terms(int64_t elements) { return (elements + PAIR - 1) / PAIR; }

// The next LANES terms along a row, of which only `left` elements may exist.
static inline Floats load_terms(const Element *from, int64_t left) {
    if (PAIR == 1) return load_e(from, left);
    Floats x = {0};
    if (left >= PAIR * LANES)
        memcpy(&x, from, sizeof x);
    else
        memcpy(&x, from, (size_t)left * sizeof *from);
    return x;
}

static inline Halves load_halves(const Element *from, int64_t left) {
    Halves x = {0};
    if (left >= LANES)
        memcpy(&x, from, sizeof x);
    else
        memcpy(&x, from, (size_t)left * sizeof *from);
    return x;
}

// x [rows, size] with terms along its rows: a left factor, num_terms(size) from row to row.
static inline void pack_rows(Term *to, const Element *x, int64_t stride, int64_t rows, int64_t size) {
    int64_t terms = num_terms(size);
    for (int64_t row = 0; row < rows; row++, x += stride, to += terms)
        for (int64_t t = 0; t < terms; t += LANES) {
            if (row + AHEAD < rows) __builtin_prefetch(x + AHEAD * stride + t * PAIR);
            store(to + t, terms - t, load_terms(x + t * PAIR, size - t * PAIR));
        }
}

// Four rows of four terms, transposed; a row of them is `stride` from the next.
static inline void transpose_quad(Term *to, int64_t stride, const Term *from) {
    typedef float Quad __attribute__((vector_size(16)));
    Quad x[4];
    for (int i = 0; i < 4; i++) memcpy(&x[i], from + i * LANES, sizeof x[i]);
    Quad low = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5);
    Quad low2 = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
    Quad high = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
    Quad high2 = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
    x[0] = __builtin_shufflevector(low, low2, 0, 1, 4, 5);
    x[1] = __builtin_shufflevector(low, low2, 2, 3, 6, 7);
    x[2] = __builtin_shufflevector(high, high2, 0, 1, 4, 5);
    x[3] = __builtin_shufflevector(high, high2, 2, 3, 6, 7);
    for (int i = 0; i < 4; i++) memcpy(to + i * stride, &x[i], sizeof x[i]);
}

// x [rows, size] with terms along its rows, transposed: a right factor of num_terms(size) terms, `width` from
// one to the next and zero beyond the rows. Writes whole vectors of terms.
static inline void pack_transposed(Term *to, int64_t width, const Element *x, int64_t stride, int64_t rows,
                                   int64_t size) {
    for (int64_t row = 0; row < width; row += 4, x += 4 * stride, to += 4)
        for (int64_t t = 0; t < num_terms(size); t += LANES) {
            Term some[4][LANES];
            for (int i = 0; i < 4; i++) {
                const Element *from = x + i * stride + t * PAIR;
                if (row + i + AHEAD < rows) __builtin_prefetch(from + AHEAD * stride);
                store(some[i], LANES, row + i < rows ? load_terms(from, size - t * PAIR) : (Floats){0});
            }
            for (int i = 0; i < LANES; i += 4) transpose_quad(to + (t + i) * width, width, some[0] + i);
        }
}

// Neighbours along a column as one vector of terms; `second` may be absent.
static inline Floats load_pairs(const Element *first, const Element *second, int64_t left) {
    Halves low = load_halves(first, left), high = second ? load_halves(second, left) : (Halves){0};
    return (Floats)(__builtin_convertvector(low, Words) | __builtin_convertvector(high, Words) << 16);
}

// x [rows, size] with terms along its columns: a right factor of num_terms(rows) terms, `width` from one to
// the next.
static inline void pack_columns(Term *to, int64_t width, const Element *x, int64_t stride, int64_t rows,
                                int64_t size) {
    for (int64_t row = 0; row < rows; row += PAIR, x += PAIR * stride, to += width)
        for (int64_t c = 0; c < size; c += LANES) {
            const Element *next = row + 1 < rows ? x + stride + c : NULL;
            if (row + AHEAD + 1 < rows)
                for (int i = 0; i < PAIR; i++) __builtin_prefetch(x + (AHEAD + i) * stride + c);
            store(to + c, LANES, PAIR == 1 ? load_e(x + c, size - c) : load_pairs(x + c, next, size - c));
        }
}
