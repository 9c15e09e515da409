// Products of BF16 factors in the tiles of AMX: 16 rows of 64 bytes each, of which an instruction multiplies
// two and adds to a third. Both factors are copied to blocks of such tiles, a panel of the sum at a time, b for
// all rows, a for a strip of them: the first stays in a second-level cache, the other in a first-level one.
// oneDNN 2.6, of which a call packs both anew, reaches less of this unit (docs/performance.md).
#include "device/cpu/cpu.h"

#ifdef CPU_TILES
#include "device/cpu/bf16.h"
#include "device/cpu/tiles.h"

enum { MAX_TERMS = 8 * BLOCK }; // of the sum in a panel

CpuTileSizes cpu_amx_sizes(const Product *p) {
    int64_t depth = panel_terms(p->inner, MAX_TERMS);
    CpuTileSizes s = {.panel_a = BLOCK * depth / 2};
    s.panel_b = strips(p->cols) * s.panel_a;
    s.sum = BLOCK * BLOCK;
    if (p->dtype == BF16 && p->inner > depth) s.sum *= strips(p->rows) * strips(p->cols);
    s.all = s.sum + s.panel_a + s.panel_b;
    return s;
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
    enum { HALF = TILE_ELEMENTS, BYTES = 4 * TILE };
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

// The panels of a product share this state. The sums of a BF16 d wait in the workspace, block by block, until the last
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
        add_edge(sums, BLOCK, grows, d, p->stride, rows, cols);
    }
}

static void add_panel(const Panel *panel) {
    const Product *p = panel->p;
    int64_t depth = strips(panel->terms) * BLOCK;
    float *sums = panel->sums;
    for (int64_t row = 0; row < p->rows; row += BLOCK) {
        FactorStrip a = strip_of(p->a, !p->a.transpose, row, p->rows, panel->term, panel->terms);
        pack(&a, true, panel->a);
        for (int64_t col = 0; col < p->cols; col += BLOCK) {
            if (row == 0) {
                FactorStrip b = strip_of(p->b, p->b.transpose, col, p->cols, panel->term, panel->terms);
                pack(&b, false, panel->b + col * depth);
            }
            multiply_block(panel, row, col, panel->b + col * depth, sums);
            if (p->dtype == BF16 && !(panel->first && panel->last)) sums += BLOCK * BLOCK;
        }
    }
}

void cpu_amx_product(const Product *p, float *workspace) {
    const CpuTileSizes sizes = cpu_amx_sizes(p);
    int64_t depth = panel_terms(p->inner, MAX_TERMS);
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
