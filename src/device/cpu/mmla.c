// Products of BF16 factors by arm64's instruction for matrices: to 2 x 2 sums it adds the products of two rows with two
// columns, two pairs of terms of each.
//
// A block of ROWS x COLS sums stays in the registers while it grows by a panel of the sum. Both factors are packed: the
// left one for all columns, where a second-level cache holds it, the right one a group of columns at a time, of which
// what a block takes stays in a first-level cache for all rows.
#include "device/cpu/cpu.h"
#include "device/cpu/vector.h"

enum {
    ROWS = 8, // of a block: 24 registers of sums, 4 for a
    COLS = 12,
    GROUP = 8 * COLS, // columns that are packed at a time
    TERMS = 4,        // of a row or column that an instruction takes
    MAX_TERMS = 384   // of a panel
};

// All panels but the last are equally deep.
static int64_t panel_depth(const Product *p) {
    int64_t some = p->inner > 0 ? p->inner : 1, panels = cpu_num_blocks(some, MAX_TERMS);
    return cpu_num_blocks(cpu_num_blocks(some, panels), TERMS) * TERMS;
}

CpuTileSizes cpu_pairs_sizes(const Product *p) {
    int64_t depth = panel_depth(p);
    CpuTileSizes s = {.panel_a = cpu_num_blocks(p->rows, ROWS) * ROWS * depth / 2,
                      .panel_b = GROUP * depth / 2};
    if (p->dtype == BF16 && p->inner > depth) s.sum = p->rows * cpu_row_stride(p->cols);
    s.all = s.sum + s.panel_a + s.panel_b;
    return s;
}

// ---- copies of the factors --------------------------------------------------------------------------------

// Rows of a or columns of b, `lines`, and their terms. `along`: the terms of a line are neighbours.
typedef struct {
    const uint16_t *from;
    int64_t stride, lines, terms;
    bool along;
} Lines;

static Lines lines_of(Factor x, bool along, int64_t line, int64_t lines, int64_t term, int64_t terms) {
    const uint16_t *from = x.data;
    return (Lines){from + (along ? line * x.stride + term : term * x.stride + line), x.stride, lines, terms,
                   along};
}

// To TERMS numbers of each line: those of one line ...
static void pack_line(const uint16_t *from, int64_t terms, int64_t width, uint16_t *to) {
    int64_t t = 0;
    for (; terms - t >= TERMS; t += TERMS) memcpy(to + t * width, from + t, TERMS * sizeof *to);
    if (t < terms) memcpy(to + t * width, from + t, (size_t)(terms - t) * sizeof *to);
}

// ... or those of up to TERMS lines, whose terms lie `stride` apart.
static void turn_square(const uint16_t *from, int64_t stride, int64_t lines, int64_t terms, uint16_t *to) {
    if (lines >= TERMS && terms >= TERMS) {
        vst4_u16(to, ((uint16x4x4_t){{vld1_u16(from), vld1_u16(from + stride), vld1_u16(from + 2 * stride),
                                      vld1_u16(from + 3 * stride)}}));
        return;
    }
    for (int64_t i = 0; i < at_most(terms, TERMS); i++)
        for (int64_t line = 0; line < at_most(lines, TERMS); line++)
            to[line * TERMS + i] = from[i * stride + line];
}

// Strips of `width` lines, `strip` elements apart: TERMS terms of each line, then the next ones. What is missing of the
// last lines and terms is zero.
static void pack(const Lines *x, int64_t width, int64_t strip, uint16_t *to) {
    if (x->lines % width || x->terms % TERMS)
        for (int64_t line = 0; line < x->lines; line += width)
            memset(to + line / width * strip, 0, (size_t)strip * sizeof *to);
    for (int64_t line = 0; x->along && line < x->lines; line++)
        pack_line(x->from + line * x->stride, x->terms, width,
                  to + line / width * strip + line % width * TERMS);
    for (int64_t term = 0; !x->along && term < x->terms; term += TERMS)
        for (int64_t line = 0; line < x->lines; line += TERMS)
            turn_square(x->from + term * x->stride + line, x->stride, x->lines - line, x->terms - term,
                        to + line / width * strip + term * width + line % width * TERMS);
}

// ---- a block ----------------------------------------------------------------------------------------------

typedef struct {
    const Product *p;
    uint16_t *a, *b;
    float *sum; // [rows, sum_stride], where d is BF16 and there are several panels
    int64_t term, terms, depth, sum_stride;
    bool first, last;
} Panel;

// The sums of LANES columns of a row; d has them when they are whole.
static void put(const Panel *panel, int64_t row, int64_t col, Floats x) {
    const Product *p = panel->p;
    int64_t left = p->cols - col, at = row * p->stride + col;
    bool rounds = p->dtype == BF16;
    float *sum = rounds ? panel->sum + row * panel->sum_stride + col : (float *)p->d + at;
    if (!panel->first || p->adds) x += load(sum, left);
    if (!rounds || !panel->last) {
        store(sum, left, x);
        return;
    }
    if (p->bias) x += load_as(BF16, (const uint16_t *)p->bias + col, left, 0);
    store_as(BF16, (uint16_t *)p->d + at, left, x);
}

static bfloat16x8_t two_lines(const uint16_t *packed) { return vreinterpretq_bf16_u16(vld1q_u16(packed)); }

// Loops over the registers have to be unrolled for them to be registers.
#define EACH_TWO_ROWS _Pragma("GCC unroll 4") for (int r = 0; r < ROWS / 2; r++)
#define EACH_TWO_COLS _Pragma("GCC unroll 6") for (int c = 0; c < COLS / 2; c++)

// Two columns of one row, then of the next.
typedef float32x4_t Sums[ROWS / 2][COLS / 2];

// Apart from what becomes of the sums, or gcc would keep a part of them in memory.
static __attribute__((noinline)) void add_terms(const uint16_t *a, const uint16_t *b, int64_t terms,
                                                Sums result) {
    Sums sums;
    EACH_TWO_ROWS EACH_TWO_COLS sums[r][c] = vdupq_n_f32(0);
    for (; terms > 0; terms -= TERMS, a += ROWS * TERMS, b += COLS * TERMS) {
        bfloat16x8_t rows[ROWS / 2];
        EACH_TWO_ROWS rows[r] = two_lines(a + 2 * r * TERMS);
        EACH_TWO_COLS {
            bfloat16x8_t cols = two_lines(b + 2 * c * TERMS);
            EACH_TWO_ROWS sums[r][c] = vbfmmlaq_f32(sums[r][c], rows[r], cols);
        }
    }
    EACH_TWO_ROWS EACH_TWO_COLS result[r][c] = sums[r][c];
}

static void multiply_block(const Panel *panel, const uint16_t *b, int64_t row, int64_t col) {
    Sums sums;
    add_terms(panel->a + row * panel->depth, b, panel->terms, sums);
    const int64_t rows = panel->p->rows - row, cols = panel->p->cols - col;
    EACH_TWO_ROWS
    for (int c = 0; c < COLS && c < cols; c += LANES) {
        float64x2_t left = (float64x2_t)sums[r][c / 2], right = (float64x2_t)sums[r][c / 2 + 1];
        if (2 * r < rows) put(panel, row + 2 * r, col + c, (Floats)vzip1q_f64(left, right));
        if (2 * r + 1 < rows) put(panel, row + 2 * r + 1, col + c, (Floats)vzip2q_f64(left, right));
    }
}

static void add_panel(const Panel *panel) {
    const Product *p = panel->p;
    const Lines a = lines_of(p->a, !p->a.transpose, 0, p->rows, panel->term, panel->terms);
    pack(&a, ROWS, ROWS * panel->depth, panel->a);
    for (int64_t group = 0; group < p->cols; group += GROUP) {
        int64_t cols = at_most(p->cols - group, GROUP);
        const Lines b = lines_of(p->b, p->b.transpose, group, cols, panel->term, panel->terms);
        pack(&b, COLS, COLS * panel->depth, panel->b);
        for (int64_t col = 0; col < cols; col += COLS)
            for (int64_t row = 0; row < p->rows; row += ROWS)
                multiply_block(panel, panel->b + col * panel->depth, row, group + col);
    }
}

void cpu_pairs_product(const Product *p, float *workspace) {
    const CpuTileSizes sizes = cpu_pairs_sizes(p);
    Panel panel = {.p = p, .sum = workspace, .sum_stride = cpu_row_stride(p->cols), .depth = panel_depth(p)};
    panel.a = (uint16_t *)(workspace + sizes.sum), panel.b = panel.a + 2 * sizes.panel_a;
    for (int64_t term = 0; term == 0 || term < p->inner; term += panel.depth) {
        panel.term = term, panel.terms = at_most(p->inner - term, panel.depth);
        panel.first = term == 0, panel.last = term + panel.depth >= p->inner;
        add_panel(&panel);
    }
}
