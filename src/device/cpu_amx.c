// Products of BF16 factors in the tiles of AMX: 16 rows of 64 bytes each, of which an instruction multiplies
// two and adds to a third. Both factors are copied to blocks of such tiles, a panel of the sum at a time, b for
// all rows, a for a strip of them: the first stays in a second-level cache, the other in a first-level one.
// oneDNN 2.6, of which a call packs both anew, reaches less of this unit (docs/performance.md).
#include "device/cpu.h"

#ifdef CPU_TILES
#include "device/cpu_tiles.h"
#include "device/cpu_vector.h"

enum {
    BLOCK = 2 * TILE,               // rows of a, columns of b and terms that two tiles hold
    BLOCK_ELEMENTS = BLOCK * BLOCK, // elements of two tiles
    MOST_TERMS = 8 * BLOCK          // of the sum in a panel
};

static int64_t strips(int64_t count) { return cpu_num_blocks(count, BLOCK); }

// Terms in a panel: all panels but the last are equally deep.
static int64_t panel_terms(int64_t inner) {
    int64_t some = inner > 0 ? inner : 1;
    return BLOCK * cpu_num_blocks(strips(some), cpu_num_blocks(some, MOST_TERMS));
}

CpuTileSizes cpu_amx_sizes(const Product *p) {
    CpuTileSizes s = {.panel_a = BLOCK * panel_terms(p->inner) / 2};
    s.panel_b = strips(p->cols) * s.panel_a;
    s.sum = BLOCK * BLOCK;
    if (p->dtype == BF16 && p->inner > panel_terms(p->inner)) s.sum *= strips(p->rows) * strips(p->cols);
    s.all = s.sum + s.panel_a + s.panel_b;
    return s;
}

// ---- copies of the factors --------------------------------------------------------------------------------

// Up to BLOCK rows of a or columns of b, `lines`, and their terms. `along`: the terms of a line are neighbours.
typedef struct {
    const uint16_t *from;
    int64_t stride, lines, terms;
    bool along;
} Strip;

static __mmask32 first_lanes(int64_t count) {
    return count >= BLOCK ? 0xFFFFFFFFu : count <= 0 ? 0 : (__mmask32)((1u << count) - 1);
}

static inline __mmask32 only_if(bool condition) { return (__mmask32)(0u - condition); }

// The words of 16 lines: line i becomes the i-th word of each.
static inline void transpose_words(__m512i x[TILE]) {
    __m512i t[TILE];
    for (int i = 0; i < TILE; i += 2) {
        t[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    for (int i = 0; i < TILE; i += 4)
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
    for (int i = 0; i < TILE; i++) x[i] = t[i];
}

static inline void store_tile(uint16_t *to, const __m512i x[TILE]) {
    for (int i = 0; i < TILE; i++) _mm512_storeu_si512(to + i * BLOCK, x[i]);
}

// A tile of TILE lines from `line` on, BLOCK terms each from `term` on.
static inline void pack_lines(const Strip *s, int64_t line, int64_t term, bool turn, uint16_t *to) {
    __m512i x[TILE];
    const uint16_t *from = s->from + line * s->stride + term;
    __mmask32 mask = first_lanes(s->terms - term);
    for (int i = 0; i < TILE; i++)
        x[i] = _mm512_maskz_loadu_epi16(mask & only_if(line + i < s->lines), from + i * s->stride);
    if (turn) transpose_words(x);
    store_tile(to, x);
}

static inline void turn_tile(uint16_t *tile) {
    __m512i x[TILE];
    for (int i = 0; i < TILE; i++) x[i] = _mm512_loadu_si512(tile + i * BLOCK);
    transpose_words(x);
    store_tile(tile, x);
}

// Two tiles: of each pair of terms all lines, half of them in each tile.
static inline void pack_pairs(const Strip *s, int64_t term, bool turn, uint16_t *to) {
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    const uint16_t *from = s->from + term * s->stride;
    __mmask32 mask = first_lanes(s->lines);
    int64_t left = s->terms - term;
    for (int i = 0; i < TILE; i++, from += 2 * s->stride) {
        __m512i even = _mm512_maskz_loadu_epi16(mask & only_if(2 * i < left), from);
        __m512i odd = _mm512_maskz_loadu_epi16(mask & only_if(2 * i + 1 < left), from + s->stride);
        __m512i low = _mm512_unpacklo_epi16(even, odd), high = _mm512_unpackhi_epi16(even, odd);
        _mm512_storeu_si512(to + i * BLOCK, _mm512_permutex2var_epi64(low, first, high));
        _mm512_storeu_si512(to + BLOCK_ELEMENTS / 2 + i * BLOCK,
                            _mm512_permutex2var_epi64(low, second, high));
    }
    if (turn) turn_tile(to), turn_tile(to + BLOCK_ELEMENTS / 2);
}

// Rows of tiles are lines, of a, or pairs of terms, of b.
static void pack(const Strip *s, bool rows_are_lines, uint16_t *to) {
    bool turn = s->along != rows_are_lines;
    for (int64_t term = 0; term < s->terms; term += BLOCK, to += BLOCK_ELEMENTS)
        if (s->along) {
            pack_lines(s, 0, term, turn, to);
            pack_lines(s, TILE, term, turn, to + BLOCK_ELEMENTS / 2);
        } else
            pack_pairs(s, term, turn, to);
}

// Of the lines from `line` on, of which there are `lines` in all, and of so many terms from `term` on.
static Strip strip_of(Factor x, bool along, int64_t line, int64_t lines, int64_t term, int64_t terms) {
    const uint16_t *from = x.data;
    from += along ? line * x.stride + term : term * x.stride + line;
    return (Strip){from, x.stride, at_most(lines - line, BLOCK), terms, along};
}

// ---- blocks of d ------------------------------------------------------------------------------------------

// A block [BLOCK, BLOCK] of sums and what it grows from; NULL: from 0.
typedef struct {
    const float *from;
    float *to;
    int64_t stride;
} Sums;

// Adds the product of two packed strips. The numbers of tiles are part of the instructions.
static inline void multiply_strips(const uint16_t *a, const uint16_t *b, int64_t terms, Sums d) {
    enum { HALF = BLOCK_ELEMENTS / 2, BYTES = 4 * TILE };
    const size_t stride = (size_t)d.stride * sizeof(float);
    tiles_meet_memory();
    if (d.from) {
        _tile_loadd(0, d.from, stride);
        _tile_loadd(1, d.from + TILE, stride);
        _tile_loadd(2, d.from + TILE * d.stride, stride);
        _tile_loadd(3, d.from + TILE * d.stride + TILE, stride);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t term = 0; term < terms; term += BLOCK, a += BLOCK_ELEMENTS, b += BLOCK_ELEMENTS) {
        _tile_loadd(4, a, BYTES);
        _tile_loadd(6, b, BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + HALF, BYTES);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + HALF, BYTES);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, d.to, stride);
    _tile_stored(1, d.to + TILE, stride);
    _tile_stored(2, d.to + TILE * d.stride, stride);
    _tile_stored(3, d.to + TILE * d.stride + TILE, stride);
    tiles_meet_memory();
}

// Sums of a block at the edge of d, which is F32.
static void add_edge(const float *sum, bool adds, float *d, int64_t stride, int64_t rows, int64_t cols) {
    for (int64_t row = 0; row < rows; row++, sum += BLOCK, d += stride)
        for (int64_t col = 0; col < cols; col += LANES) {
            Floats x = load(sum + col, LANES);
            store(d + col, cols - col, adds ? x + load(d + col, cols - col) : x);
        }
}

// A whole block goes to d, which is BF16.
static void round_block(const float *sum, const uint16_t *bias, uint16_t *d, int64_t stride, int64_t rows,
                        int64_t cols) {
    const __mmask16 low = (__mmask16)first_lanes(at_most(cols, TILE)),
                    high = (__mmask16)first_lanes(cols - TILE);
    const Floats low_bias = bias ? load_as(BF16, bias, cols, 0) : (Floats){0};
    const Floats high_bias = bias && cols > TILE ? load_as(BF16, bias + TILE, cols - TILE, 0) : (Floats){0};
    for (int64_t row = 0; row < rows; row++, sum += BLOCK, d += stride) {
        Floats x = (Floats)_mm512_load_ps(sum) + low_bias, y = (Floats)_mm512_load_ps(sum + TILE) + high_bias;
        _mm256_mask_storeu_epi16(d, low, (__m256i)narrow_bf16(x));
        _mm256_mask_storeu_epi16(d + TILE, high, (__m256i)narrow_bf16(y));
    }
}

// ---- panels -----------------------------------------------------------------------------------------------

// What the panels of a product share. The sums of a BF16 d wait in the workspace, block by block, until the last
// panel; if that is the only one, a single block serves for all.
typedef struct {
    const Product *p;
    float *sums;
    uint16_t *a, *b;
    int64_t term, terms; // of the panel at hand
    bool first, last;
} Panel;

static void multiply_block(const Panel *panel, int64_t row, int64_t col, const uint16_t *b, float *sums) {
    const Product *p = panel->p;
    int64_t rows = at_most(p->rows - row, BLOCK), cols = at_most(p->cols - col, BLOCK);
    bool grows = !panel->first || p->adds;
    if (p->dtype == BF16) {
        multiply_strips(panel->a, b, panel->terms, (Sums){panel->first ? NULL : sums, sums, BLOCK});
        const uint16_t *bias = p->bias ? (const uint16_t *)p->bias + col : NULL;
        if (panel->last)
            round_block(sums, bias, (uint16_t *)p->d + row * p->stride + col, p->stride, rows, cols);
        return;
    }
    float *d = (float *)p->d + row * p->stride + col;
    if (rows == BLOCK && cols == BLOCK)
        multiply_strips(panel->a, b, panel->terms, (Sums){grows ? d : NULL, d, p->stride});
    else {
        multiply_strips(panel->a, b, panel->terms, (Sums){NULL, sums, BLOCK});
        add_edge(sums, grows, d, p->stride, rows, cols);
    }
}

static void add_panel(const Panel *panel) {
    const Product *p = panel->p;
    int64_t depth = strips(panel->terms) * BLOCK;
    float *sums = panel->sums;
    for (int64_t row = 0; row < p->rows; row += BLOCK) {
        Strip a = strip_of(p->a, !p->a.transpose, row, p->rows, panel->term, panel->terms);
        pack(&a, true, panel->a);
        for (int64_t col = 0; col < p->cols; col += BLOCK) {
            if (row == 0) {
                Strip b = strip_of(p->b, p->b.transpose, col, p->cols, panel->term, panel->terms);
                pack(&b, false, panel->b + col * depth);
            }
            multiply_block(panel, row, col, panel->b + col * depth, sums);
            if (p->dtype == BF16 && !(panel->first && panel->last)) sums += BLOCK * BLOCK;
        }
    }
}

void cpu_amx_product(const Product *p, float *workspace) {
    const CpuTileSizes sizes = cpu_amx_sizes(p);
    int64_t depth = panel_terms(p->inner);
    Panel panel = {.p = p, .sums = workspace};
    panel.a = (uint16_t *)(workspace + sizes.sum), panel.b = panel.a + 2 * sizes.panel_a;
    tiles_open();
    for (int64_t term = 0; term == 0 || term < p->inner; term += depth) {
        panel.term = term, panel.terms = at_most(p->inner - term, depth);
        panel.first = term == 0, panel.last = term + depth >= p->inner;
        add_panel(&panel);
    }
    tiles_close();
}

#else

CpuTileSizes cpu_amx_sizes(const Product *tile) {
    (void)tile;
    return (CpuTileSizes){0};
}

void cpu_amx_product(const Product *tile, float *workspace) {
    (void)tile, (void)workspace;
    CHECK(false, "this program was built without AMX");
}

#endif
