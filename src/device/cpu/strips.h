// Small matrix products for attention: tiles of STRIP rows whose sums stay in registers, and the packing of
// their factors.
//
// A factor is packed as terms of 32 bits. A term is one number in fp32; where the CPU multiplies bf16 by
// pairs (and E is BF16), it is two of them, neighbours along the sum, so that the same loops serve both. The
// left factor is read a term at a time, at any strides, and so needs no transposition; the right one a vector
// at a time. Where the CPU has registers for whole tiles (AMX), both are read 16 x 16 terms at a time: then a
// row of the left factor has its terms side by side, and both have TERMS of them or a multiple, the last ones
// zero. Sums are made in an order that their number fixes: they depend on nothing but the factors.
#pragma once
#include "device/cpu/vector.h"

typedef float Term;

#if defined(__AVX512BF16__)
enum { PAIR = CPU_ELEMENT == BF16 ? 2 : 1 }; // elements of a term
#else
enum { PAIR = 1 };
#endif

#ifdef CPU_TILES
#include "device/cpu/tiles.h"
enum { TILES = 1, STRIP = TILE, TERMS = TILE };
_Static_assert(PAIR == 2, "tiles are products of bf16");
#else
enum { TILES = 0, STRIP = 4, TERMS = 1 };
#endif
// Sums that fill the registers, 32 of AVX-512 and SVE, and leave some for the factors.
enum { VECTORS = LANES == 16 || SVE ? 4 : 2, PANEL = VECTORS * LANES };

typedef struct {
    const Term *data;
    int64_t row, term; // from a row to the next, and from a term to the next; 1 where there are TILES
} Left;

typedef struct {
    const Term *data;
    int64_t stride; // from a term's vectors to the next term's: whole vectors
} Right;

// ---- products ---------------------------------------------------------------------------------------------

#ifdef CPU_TILES

// Instructions name their registers: of sum v, of the left factor, and of the right one's vector v.
#define EACH_SUM(DO)                                                                                         \
    DO(0, 5);                                                                                                \
    if (vectors > 1) {                                                                                       \
        DO(1, 6);                                                                                            \
    }                                                                                                        \
    if (vectors > 2) {                                                                                       \
        DO(2, 7);                                                                                            \
    }                                                                                                        \
    if (vectors > 3) {                                                                                       \
        DO(3, 5);                                                                                            \
    }
#define FIRST_SUM(v, right)                                                                                  \
    if (adds)                                                                                                \
        _tile_loadd(v, c + (v)*LANES, stride * 4);                                                           \
    else                                                                                                     \
        _tile_zero(v)
#define NEXT_SUM(v, right)                                                                                   \
    _tile_loadd(right, b.data + t * b.stride + (v)*LANES, b.stride * 4);                                     \
    _tile_dpbf16ps(v, 4, right)
#define STORE_SUM(v, right) _tile_stored(v, c + (v)*LANES, stride * 4)

// c [STRIP, vectors * LANES] = a b, or with `adds` c + a b.
static inline __attribute__((always_inline)) void tile(int vectors, int64_t terms, Left a, Right b, bool adds,
                                                       float *c, int64_t stride) {
    tiles_meet_memory();
    EACH_SUM(FIRST_SUM)
    for (int64_t t = 0; t < terms; t += TERMS) {
        _tile_loadd(4, a.data + t, a.row * 4);
        EACH_SUM(NEXT_SUM)
    }
    EACH_SUM(STORE_SUM)
    tiles_meet_memory();
}

#else

static inline void tiles_open(void) {}
static inline void tiles_close(void) {}

static inline Floats add_product(Floats sum, const Term *a, Floats b) {
#if defined(__AVX512BF16__)
    int32_t pair;
    memcpy(&pair, a, sizeof pair);
    if (PAIR == 2)
        return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)b);
#endif
    return fused(splat(*a), b, sum);
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

#endif

// c [STRIP, cols] = a b, or with `adds` c + a b; cols up to a whole vector. Always inlined: gcc's call
// would pass both factors through memory, and the CPU would wait for them, on Zen 4 for a tenth of the product's time.
static inline __attribute__((always_inline)) void strip_product(int64_t cols, int64_t terms, Left a, Right b,
                                                                bool adds, float *c, int64_t stride) {
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

// Returns the number of terms of a row or column of so many elements.
static inline int64_t num_terms(int64_t elements) { return round_up(elements, PAIR * TERMS) / PAIR; }

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

// x [rows, size] with terms along its rows: a left factor, num_terms(size) from row to row.
static inline void pack_rows(Term *to, const Element *x, int64_t stride, int64_t rows, int64_t size) {
    int64_t terms = num_terms(size);
    for (int64_t row = 0; row < rows; row++, x += stride, to += terms)
        for (int64_t t = 0; t < terms; t += LANES) {
            if (row + AHEAD < rows) __builtin_prefetch(x + AHEAD * stride + t * PAIR);
            store(to + t, terms - t, load_terms(x + t * PAIR, size - t * PAIR));
        }
}

// to [cols, rows] = from [rows, cols] of terms, by four: their rows are so far apart.
static inline void transpose(Term *to, int64_t to_row, const Term *from, int64_t from_row, int64_t rows,
                             int64_t cols) {
    typedef float Quad __attribute__((vector_size(16)));
    for (int64_t row = 0; row < rows; row += 4)
        for (int64_t col = 0; col < cols; col += 4) {
            Quad x[4];
            for (int i = 0; i < 4; i++) memcpy(&x[i], from + (row + i) * from_row + col, sizeof x[i]);
            Quad low = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5);
            Quad low2 = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
            Quad high = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
            Quad high2 = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
            x[0] = __builtin_shufflevector(low, low2, 0, 1, 4, 5);
            x[1] = __builtin_shufflevector(low, low2, 2, 3, 6, 7);
            x[2] = __builtin_shufflevector(high, high2, 0, 1, 4, 5);
            x[3] = __builtin_shufflevector(high, high2, 2, 3, 6, 7);
            for (int i = 0; i < 4; i++) memcpy(to + (col + i) * to_row + row, &x[i], sizeof x[i]);
        }
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
            transpose(to + t * width, width, some[0], LANES, 4, LANES);
        }
}

// Neighbours along a column as one vector of terms; `second` may be absent.
static inline Floats load_pairs(const Element *first, const Element *second, int64_t left) {
    Halves low = load_halves(first, left), high = second ? load_halves(second, left) : (Halves){0};
    return (Floats)(words_of(low) | words_of(high) << 16);
}

// The next LANES terms along columns of x, of which only `rows` and `left` elements may exist.
static inline Floats load_columns(const Element *x, int64_t stride, int64_t rows, int64_t left) {
    if (rows <= 0) return (Floats){0};
    if (rows > AHEAD + 1)
        for (int i = 0; i < PAIR; i++) __builtin_prefetch(x + (AHEAD + i) * stride);
    return PAIR == 1 ? load_e(x, left) : load_pairs(x, rows > 1 ? x + stride : NULL, left);
}

// x [rows, size] with terms along its columns: a right factor of `terms` terms, at least num_terms(rows),
// `width` from one to the next.
static inline void pack_columns(Term *to, int64_t width, int64_t terms, const Element *x, int64_t stride,
                                int64_t rows, int64_t size) {
    for (int64_t t = 0; t < terms; t++, x += PAIR * stride, to += width)
        for (int64_t c = 0; c < size; c += LANES)
            store(to + c, LANES, load_columns(x + c, stride, rows - t * PAIR, size - c));
}

// The same transposed: a left factor of `width` rows, `terms` from one to the next.
static inline void pack_columns_transposed(Term *to, int64_t width, int64_t terms, const Element *x,
                                           int64_t stride, int64_t rows, int64_t size) {
    for (int64_t t = 0; t < terms; t += LANES)
        for (int64_t c = 0; c < width; c += LANES) {
            Term some[LANES][LANES];
            for (int64_t i = 0; i < LANES; i++) {
                int64_t row = (t + i) * PAIR;
                store(some[i], LANES, load_columns(x + row * stride + c, stride, rows - row, size - c));
            }
            transpose(to + c * terms + t, terms, some[0], LANES, LANES, LANES);
        }
}
