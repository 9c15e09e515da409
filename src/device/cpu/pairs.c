// Products of BF16 factors by the instruction that adds products of pairs, neighbours along the sum, to 16 sums.
//
// A block of ROWS x COLS sums stays in the registers while it grows by a panel of the sum. The right factor is packed,
// a group of columns at a time: what a block takes of it stays in a near cache for all rows. The left one is read a
// pair at a time: where it is, or packed where its pairs are not neighbours. In a step of training most of all this
// waits in a third-level cache or in memory, so what comes next is fetched meanwhile (docs/performance.md).
#include "device/cpu/cpu.h"

#ifdef __AVX512BF16__
#include "device/cpu/bf16.h"

enum {
    ROWS = 8, // of a block: 24 sums, 3 registers for b and 1 for a
    VECTORS = 3,
    COLS = VECTORS * LANES,
    GROUP = 2 * COLS, // columns that are packed at a time: whole strips
    GROUP_TILES = GROUP / LANES,
    // Terms of a panel. Of a packed a all rows wait in a second-level cache; one in place has no need of that,
    // and a sum that is made in one go need not go to memory and back.
    MAX_TERMS_PACKED = 1024,
    MAX_TERMS_IN_PLACE = 4096
};
_Static_assert(GROUP % BLOCK == 0 && BLOCK % ROWS == 0, "a group is whole strips, a strip whole blocks");

static bool is_in_place(const Product *p) { return !p->a.transpose && p->inner % 2 == 0; }

static int64_t panel_depth(const Product *p) {
    return panel_terms(p->inner, is_in_place(p) ? MAX_TERMS_IN_PLACE : MAX_TERMS_PACKED);
}

CpuTileSizes cpu_pairs_sizes(const Product *p) {
    int64_t depth = panel_depth(p), strip = BLOCK * depth / 2;
    CpuTileSizes s = {.panel_a = strip * (is_in_place(p) ? 1 : strips(p->rows)),
                      .panel_b = GROUP / BLOCK * strip};
    if (p->dtype == BF16 && p->inner > depth) s.sum = p->rows * cpu_row_stride(p->cols);
    s.all = s.sum + s.panel_a + s.panel_b;
    return s;
}

// ---- a block ----------------------------------------------------------------------------------------------

// Cache lines to be fetched with each block of terms: some, `line` elements apart; from one block to the next, `block`.
typedef struct {
    const uint16_t *from;
    int64_t line, block;
} Ahead;

enum { AHEAD_OF_A = 8, AHEAD_OF_B = 2 }; // lines with each block of terms

typedef struct {
    const uint16_t *a; // the first pair of its first row
    int64_t row; // elements from row to row of an a in place, whose pairs follow each other; or packed: 0
    const uint16_t *b[VECTORS]; // tiles: pairs of 16 columns each, and so on every BLOCK_ELEMENTS
    int64_t pairs;
    Ahead of_a, of_b;
    void *d;
    DType dtype; // of d
    int64_t stride;
    const uint16_t *bias; // NULL: none
    bool adds, whole;     // not whole: the sums stay here
    float sums[ROWS][COLS];
} Sums;

static inline Ahead fetch(Ahead x, int lines) {
    for (int i = 0; i < lines; i++) _mm_prefetch((const char *)(x.from + i * x.line), _MM_HINT_T0);
    x.from += x.block;
    return x;
}

static inline __m512bh splat_pair(const uint16_t *from) {
    int32_t pair;
    memcpy(&pair, from, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

// Loops over the registers have to be unrolled for them to be registers.
#define EACH_ROW    _Pragma("GCC unroll 8") for (int r = 0; r < ROWS; r++)
#define EACH_VECTOR _Pragma("GCC unroll 3") for (int v = 0; v < vectors; v++)

static inline __attribute__((always_inline)) void multiply_block(int vectors, bool in_place, Sums *block) {
    const int64_t row = in_place ? block->row : 2, pair = in_place ? 2 : BLOCK,
                  far = in_place ? BLOCK : BLOCK_ELEMENTS; // from a row, a pair, a block of pairs to the next
    const uint16_t *a = block->a, *b = block->b[0];
    const int64_t second = block->b[1] - b, third = block->b[2] - b;
    const int64_t element = block->dtype == F32 ? 4 : 2, d_row = block->stride * element;
    const char *d_line = block->d;
    Ahead of_a = block->of_a, of_b = block->of_b;
    __m512 sum[ROWS][VECTORS];
    EACH_ROW {
        EACH_VECTOR {
            sum[r][v] = _mm512_setzero_ps();
            _mm_prefetch(d_line + v * LANES * element, _MM_HINT_T0);
        }
        d_line += d_row;
    }
    for (int64_t left = block->pairs; left > 0; left -= LANES, a += far, b += BLOCK_ELEMENTS) {
        of_a = fetch(of_a, AHEAD_OF_A), of_b = fetch(of_b, AHEAD_OF_B);
        const uint16_t *x = a, *y = b;
        for (int64_t i = at_most(left, LANES); i > 0; i--, x += pair, y += BLOCK) {
            __m512bh cols[VECTORS] = {(__m512bh)_mm512_loadu_si512(y),
                                      (__m512bh)_mm512_loadu_si512(y + second)};
            if (vectors > 2) cols[2] = (__m512bh)_mm512_loadu_si512(y + third);
            EACH_ROW {
                __m512bh terms = splat_pair(x + r * row);
                EACH_VECTOR sum[r][v] = _mm512_dpbf16_ps(sum[r][v], terms, cols[v]);
            }
        }
    }
    if (block->whole && block->dtype == BF16) {
        Floats bias[VECTORS] = {{0}};
        if (block->bias) EACH_VECTOR bias[v] = load_as(BF16, block->bias + v * LANES, LANES, 0);
        __mmask16 tiny = 0;
        EACH_ROW EACH_VECTOR {
            sum[r][v] = (__m512)((Floats)sum[r][v] + bias[v]);
            tiny |= not_rounded_by_bf16((Floats)sum[r][v]);
        }
        uint16_t *d = block->d;
        EACH_ROW EACH_VECTOR {
            Halves x = tiny ? narrow_bf16((Floats)sum[r][v]) : (Halves)_mm512_cvtneps_pbh(sum[r][v]);
            memcpy(d + r * block->stride + v * LANES, &x, sizeof x);
        }
    } else if (block->whole && block->adds) {
        float *d = block->d;
        EACH_ROW EACH_VECTOR {
            float *to = d + r * block->stride + v * LANES;
            _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), sum[r][v]));
        }
    } else {
        float *d = block->whole ? block->d : block->sums[0];
        int64_t stride = block->whole ? block->stride : COLS;
        EACH_ROW EACH_VECTOR _mm512_storeu_ps(d + r * stride + v * LANES, sum[r][v]);
    }
}

static void multiply_3_in_place(Sums *block) { multiply_block(3, true, block); }
static void multiply_2_in_place(Sums *block) { multiply_block(2, true, block); }
static void multiply_3_packed(Sums *block) { multiply_block(3, false, block); }
static void multiply_2_packed(Sums *block) { multiply_block(2, false, block); }

// ---- panels -----------------------------------------------------------------------------------------------

typedef struct {
    const Product *p;
    uint16_t *a, *b; // packed: strips of all rows, or of the last ones; strips of a group
    int64_t term, terms, depth;
    bool adds;
} Panel;

static Ahead nothing_ahead(const Sums *block) { return (Ahead){block->b[0], 0, 0}; }

// Rows of a transposed a that are a multiple of a page apart fall into the same sets of a cache: what is fetched of a
// strip ahead would push itself out. Such an a is packed at once, along its rows.
static bool is_packed_at_once(const Product *p) {
    return p->a.transpose && (size_t)p->a.stride * sizeof(uint16_t) % 4096 == 0;
}

static void pack_a_at_once(const Panel *panel) {
    const Product *p = panel->p;
    for (int64_t term = 0; term < panel->terms; term += BLOCK)
        for (int64_t row = 0; row < p->rows; row += BLOCK) {
            FactorStrip a =
                strip_of(p->a, false, row, p->rows, panel->term + term, at_most(panel->terms - term, BLOCK));
            pack(&a, false, panel->a + row * panel->depth + term * BLOCK);
        }
}

// The rows of a block, when the columns that came first are at work packed a strip at a time, while the next
// one is fetched.
static void take_a(const Panel *panel, int64_t row, bool first_cols, Sums *block) {
    const Product *p = panel->p;
    const uint16_t *from = p->a.data;
    int64_t in_strip = row % BLOCK, strip = row - in_strip, next = strip + BLOCK, stride = p->a.stride;
    block->of_a = nothing_ahead(block);
    if (is_in_place(p) && next <= p->rows) {
        block->a = from + row * stride + panel->term, block->row = stride;
        if (row + ROWS < p->rows) block->of_a = (Ahead){block->a + ROWS * stride, stride, BLOCK};
        return;
    }
    uint16_t *packed = panel->a + (is_in_place(p) ? 0 : strip * panel->depth);
    block->a = packed + in_strip / LANES * TILE_ELEMENTS + in_strip % LANES * 2, block->row = 0;
    if (!first_cols || is_packed_at_once(p)) return;
    if (in_strip == 0) {
        FactorStrip a = strip_of(p->a, !p->a.transpose, row, p->rows, panel->term, panel->terms);
        pack(&a, false, packed);
    }
    // The blocks of a strip fetch a part of the terms each.
    int64_t term = panel->term + in_strip / ROWS * AHEAD_OF_A * strips(panel->terms);
    if (p->a.transpose && next < p->rows)
        block->of_a = (Ahead){from + term * stride + next, stride, AHEAD_OF_A * stride};
}

// Returns what the i-th block of a group prefetches of the next group, which begins with column `col`.
static Ahead ahead_of_b(const Panel *panel, int64_t col, int64_t i, const Sums *block) {
    const Product *p = panel->p;
    const uint16_t *from = p->b.data;
    int64_t stride = p->b.stride;
    if (col >= p->cols || i >= GROUP / AHEAD_OF_B) return nothing_ahead(block);
    if (p->b.transpose) return (Ahead){from + (col + AHEAD_OF_B * i) * stride + panel->term, stride, BLOCK};
    enum { TIMES = BLOCK / AHEAD_OF_B }; // blocks that fetch all terms of a strip, before those of the next
    int64_t term = panel->term + i % TIMES * AHEAD_OF_B * strips(panel->terms);
    return (Ahead){from + term * stride + col + i / TIMES * BLOCK, stride, AHEAD_OF_B * stride};
}

// Sums that are not whole blocks, `sum_stride` from row to row.
static void put_edge(const Product *p, const float *sum, int64_t sum_stride, bool adds, int64_t row,
                     int64_t rows, int64_t col, int64_t cols) {
    int64_t at = row * p->stride + col;
    if (p->dtype == F32)
        add_edge(sum, sum_stride, adds, (float *)p->d + at, p->stride, rows, cols);
    else
        round_edge(sum, sum_stride, p->bias ? (const uint16_t *)p->bias + col : NULL, (uint16_t *)p->d + at,
                   p->stride, rows, cols);
}

static void multiply_at(const Panel *panel, int64_t row, int64_t col, int64_t cols, Sums *block) {
    const Product *p = panel->p;
    int64_t rows = at_most(p->rows - row, ROWS), at = row * p->stride + col;
    int vectors = cols > 2 * LANES ? 3 : 2;
    block->whole = rows == ROWS && cols == vectors * LANES;
    block->d = (char *)p->d + (size_t)at * dtype_bytes(p->dtype);
    block->bias = p->bias ? (const uint16_t *)p->bias + col : NULL;
    if (block->row)
        (vectors == 3 ? multiply_3_in_place : multiply_2_in_place)(block);
    else
        (vectors == 3 ? multiply_3_packed : multiply_2_packed)(block);
    if (!block->whole) put_edge(p, block->sums[0], COLS, panel->adds, row, rows, col, cols);
}

static void pack_group(const Panel *panel, int64_t group, int64_t cols) {
    const Product *p = panel->p;
    for (int64_t col = 0; col < cols; col += BLOCK) {
        FactorStrip b = strip_of(p->b, p->b.transpose, group + col, p->cols, panel->term, panel->terms);
        pack(&b, false, panel->b + col * panel->depth);
    }
}

// Tiles of a group from number `first` on, of which the last ones may not exist: then they are not looked at.
static void take_b(const Panel *panel, int64_t first, Sums *block) {
    for (int v = 0; v < VECTORS; v++) {
        int64_t tile = at_most(first + v, GROUP_TILES - 1);
        block->b[v] = panel->b + tile / 2 * BLOCK * panel->depth + tile % 2 * TILE_ELEMENTS;
    }
}

static void add_panel(const Panel *panel) {
    const Product *p = panel->p;
    Sums block = {
        .pairs = (panel->terms + 1) / 2, .dtype = p->dtype, .stride = p->stride, .adds = panel->adds};
    if (is_packed_at_once(p)) pack_a_at_once(panel);
    for (int64_t group = 0; group < p->cols; group += GROUP) {
        int64_t cols = at_most(p->cols - group, GROUP), tiles = cpu_num_blocks(cols, LANES), done = 0;
        int64_t together =
            tiles > VECTORS ? (tiles + 1) / 2 : tiles; // a block with one tile would wait for its sums
        pack_group(panel, group, cols);
        for (int64_t tile = 0; tile < tiles; tile += together) {
            take_b(panel, tile, &block);
            for (int64_t row = 0; row < p->rows; row += ROWS) {
                take_a(panel, row, group == 0 && tile == 0, &block);
                block.of_b = ahead_of_b(panel, group + GROUP, done++, &block);
                int64_t col = tile * LANES;
                multiply_at(panel, row, group + col, at_most(cols - col, together * LANES), &block);
            }
        }
    }
}

// ---- few rows ---------------------------------------------------------------------------------------------

// With few rows of a, as when a model generates text, a product takes hardly longer than reading b once, so b is not
// packed: each sum is that of a row of a and a row of the transposed b.
enum { FEW_ROWS = 4 };

static bool has_few_rows(const Product *p) {
    return p->rows <= FEW_ROWS && !p->a.transpose && p->b.transpose;
}

// To the sums of up to LANES columns, lane by lane, BLOCK terms from `term` on; `whole`: all of them exist.
static inline __attribute__((always_inline)) void add_terms(const uint16_t *a, const uint16_t *b,
                                                            int64_t stride, int64_t cols, __mmask32 mask,
                                                            bool whole, __m512 sum[LANES]) {
    __m512bh terms = (__m512bh)load_some(whole, mask, a);
#pragma GCC unroll 16
    for (int c = 0; c < LANES; c++)
        sum[c] = _mm512_dpbf16_ps(sum[c], terms,
                                  (__m512bh)load_some(whole, mask & only_if(c < cols), b + c * stride));
}

static Floats dots(const Product *p, int64_t row, int64_t col, int64_t cols) {
    const uint16_t *a = (const uint16_t *)p->a.data + row * p->a.stride;
    const uint16_t *b = (const uint16_t *)p->b.data + col * p->b.stride;
    __m512 sum[LANES];
#pragma GCC unroll 16
    for (int c = 0; c < LANES; c++) sum[c] = _mm512_setzero_ps();
    int64_t term = 0;
    for (; cols == LANES && p->inner - term >= BLOCK; term += BLOCK)
        add_terms(a + term, b + term, p->b.stride, cols, 0, true, sum);
    for (; term < p->inner; term += BLOCK)
        add_terms(a + term, b + term, p->b.stride, cols, first_lanes(p->inner - term), false, sum);
    __m512i lanes[LANES];
    for (int c = 0; c < LANES; c++) lanes[c] = _mm512_castps_si512(sum[c]);
    transpose_words(lanes);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] = (__m512i)((Floats)lanes[i] + (Floats)lanes[i + half]);
    return (Floats)lanes[0];
}

static void multiply_few_rows(const Product *p) {
    for (int64_t col = 0; col < p->cols; col += LANES) {
        int64_t cols = at_most(p->cols - col, LANES);
        for (int64_t row = 0; row < p->rows; row++) {
            Floats sum = dots(p, row, col, cols);
            put_edge(p, (const float *)&sum, LANES, p->adds, row, 1, col, cols);
        }
    }
}

// Sums of a BF16 d that grow by several panels wait in the workspace.
void cpu_pairs_product(const Product *p, float *workspace) {
    if (has_few_rows(p)) {
        multiply_few_rows(p);
        return;
    }
    const CpuTileSizes sizes = cpu_pairs_sizes(p);
    Product sum = *p;
    if (sizes.sum) sum.d = workspace, sum.dtype = F32, sum.stride = cpu_row_stride(p->cols), sum.bias = NULL;
    Panel panel = {.p = &sum, .depth = panel_depth(p)};
    panel.a = (uint16_t *)(workspace + sizes.sum), panel.b = panel.a + 2 * sizes.panel_a;
    for (int64_t term = 0; term == 0 || term < p->inner; term += panel.depth) {
        panel.term = term, panel.terms = at_most(p->inner - term, panel.depth),
        panel.adds = term > 0 || p->adds;
        add_panel(&panel);
    }
    if (sizes.sum) round_edge(workspace, sum.stride, p->bias, p->d, p->stride, p->rows, p->cols);
}

#else

CpuTileSizes cpu_pairs_sizes(const Product *tile) {
    (void)tile;
    return (CpuTileSizes){0};
}

void cpu_pairs_product(const Product *tile, float *workspace) {
    (void)tile, (void)workspace;
    CHECK(false, "this program was built without products of pairs");
}

#endif
