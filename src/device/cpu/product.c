// Matrix products in fp32 of one instruction set, for arm64 and for builds without oneDNN. Sums of ROWS x COLS elements
// of d stay in registers along a panel of the sum, then go to d, which keeps the rounding of long sums small. The right
// factor is packed strip by strip, the left one is read where it lies. An element of d is added up in the order of the
// sum alone: neither its place nor the size of d changes a bit.
#include "device/cpu/cpu.h"
#include "device/cpu/vector.h"

#if defined(__aarch64__) // 32 registers of any width
enum { ROWS = 8, VECTORS = 3 };
#else
enum { ROWS = LANES == 16 ? 12 : LANES == 8 ? 6 : 4, VECTORS = 2 };
#endif
enum { COLS = VECTORS * LANES, DEPTH = 256 };

// Elements [k, k + depth) x [col, col + cols) of the right factor: COLS of each row, the missing ones zero.
static void pack(float *packed, const Factor *b, int64_t k, int64_t depth, int64_t col, int64_t cols) {
    const float *from = b->data;
    if (b->transpose) {
        memset(packed, 0, (size_t)(depth * COLS) * sizeof(float));
        for (int64_t c = 0; c < cols; c++)
            for (int64_t i = 0; i < depth; i++) packed[i * COLS + c] = from[(col + c) * b->stride + k + i];
        return;
    }
    for (int64_t i = 0; i < depth; i++, packed += COLS)
        for (int v = 0; v < VECTORS; v++) {
            int64_t left = cols - v * LANES;
            Floats x = left > 0 ? load(from + (k + i) * b->stride + col + v * LANES, left) : (Floats){0};
            memcpy(packed + v * LANES, &x, sizeof x);
        }
}

// ROWS rows of the left factor, from one number of the sum to the next.
typedef struct {
    const float *row[ROWS];
    int64_t step;
} Left;

// The rows beyond the last one are the last one: their sums are not stored.
static Left left_rows(const Factor *a, int64_t row, int64_t rows, int64_t k) {
    Left left = {.step = a->transpose ? a->stride : 1};
    const float *from = a->data;
    for (int64_t r = 0; r < ROWS; r++) {
        int64_t at = row + (r < rows ? r : rows - 1);
        left.row[r] = a->transpose ? from + k * a->stride + at : from + at * a->stride + k;
    }
    return left;
}

static void add_products(Floats sums[ROWS][VECTORS], const Left *left, const float *packed, int64_t depth) {
    Floats s[ROWS][VECTORS];
    memcpy(s, sums, sizeof s);
    for (int64_t i = 0; i < depth; i++, packed += COLS) {
        Floats b[VECTORS];
#pragma GCC unroll 3
        for (int v = 0; v < VECTORS; v++) b[v] = load(packed + v * LANES, LANES);
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
            Floats a = splat(left->row[r][i * left->step]);
#pragma GCC unroll 3
            for (int v = 0; v < VECTORS; v++) s[r][v] = fused(a, b[v], s[r][v]);
        }
    }
    memcpy(sums, s, sizeof s);
}

static void multiply_block(const Product *p, const float *packed, int64_t row, int64_t col, int64_t k,
                           int64_t depth) {
    int64_t rows = at_most(p->rows - row, ROWS), cols = p->cols - col;
    Left left = left_rows(&p->a, row, rows, k);
    Floats sums[ROWS][VECTORS] = {0};
    add_products(sums, &left, packed, depth);
    float *d = (float *)p->d + row * p->stride + col;
    for (int64_t r = 0; r < rows; r++, d += p->stride)
        for (int v = 0; v < VECTORS && cols > v * LANES; v++) {
            float *at = d + v * LANES;
            int64_t left_over = cols - v * LANES;
            store(at, left_over, p->adds || k ? load(at, left_over) + sums[r][v] : sums[r][v]);
        }
}

// A sum of no numbers is zero, too.
void CPU_NAME(cpu_product)(const Product *p) {
    float packed[DEPTH * COLS];
    int64_t k = 0;
    do {
        int64_t depth = at_most(p->inner - k, DEPTH);
        for (int64_t col = 0; col < p->cols; col += COLS) {
            pack(packed, &p->b, k, depth, col, at_most(p->cols - col, COLS));
            for (int64_t row = 0; row < p->rows; row += ROWS) multiply_block(p, packed, row, col, k, depth);
        }
        k += depth;
    } while (k < p->inner);
}
