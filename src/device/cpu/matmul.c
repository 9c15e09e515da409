// Matrix products of one element type: cut into tiles, each a product of BF16 by this CPU's units for it, or one in
// fp32 by oneDNN that is rounded here when it is whole.
#include "device/cpu/cpu.h"
#include "device/cpu/vector.h"
#include <omp.h>

// A tile of d. A sum in fp32 lies in d itself, or, where d is narrower than F32, in the workspace.
typedef struct {
    const Matmul *p;
    int64_t row, rows, col, cols;
    void *d;
    float *sum;
    int64_t stride;           // of the rows of the sum
    float *panel_a, *panel_b; // copies of the factors; NULL: they are read where they are
} Tile;

static const Element *bias_of(const Tile *tile) {
    const Element *bias = tile->p->bias.data;
    return bias ? bias + tile->col : NULL;
}

// The bias becomes the start of the sum.
static void start_with_bias(const Tile *tile) {
    const Element *bias = bias_of(tile);
    float *sum = tile->sum;
    for (int64_t r = 0; r < tile->rows; r++, sum += tile->stride)
        for (int64_t c = 0; c < tile->cols; c += LANES) {
            Floats b = load_e(bias + c, tile->cols - c);
            store(sum + c, tile->cols - c, tile->p->accumulate ? load(sum + c, tile->cols - c) + b : b);
        }
}

static void round_sum(const Tile *tile) {
    const Element *bias = bias_of(tile);
    Element *d = tile->d;
    const float *sum = tile->sum;
    for (int64_t r = 0; r < tile->rows; r++, sum += tile->stride, d += tile->p->d.cols)
        for (int64_t c = 0; c < tile->cols; c += LANES) {
            int64_t left = tile->cols - c;
            Floats x = load(sum + c, left);
            store_e(d + c, left, bias ? x + load_e(bias + c, left) : x);
        }
}

static void tile_open(Tile *tile) {
    Tensor d = tile->p->d;
    tile->d = (char *)d.data + (size_t)(tile->row * d.cols + tile->col) * dtype_bytes(d.dtype);
    tile->sum = tile->d, tile->stride = d.cols;
}

// The workspace of a thread, for the largest tile of d: its sum, then a copy of a and one of b.
static void take_workspace(Tile *tile, const CpuTileSizes *sizes, float *workspace) {
    if (sizes->sum) tile->sum = workspace, tile->stride = cpu_row_stride(tile->cols);
    if (sizes->panel_a) tile->panel_a = workspace + sizes->sum;
    if (sizes->panel_b) tile->panel_b = workspace + sizes->sum + sizes->panel_a;
}

static void copy_row(float *to, const Element *from, int64_t count) {
    for (int64_t c = 0; c < count; c += LANES) store(to + c, count - c, load_e(from + c, count - c));
}

// Rows and columns [row, row + rows) x [col, col + cols) of x: where they are, or copied to a panel of floats.
static Factor factor_of(float *panel, Tensor x, bool transpose, int64_t row, int64_t rows, int64_t col,
                        int64_t cols) {
    const Element *from = (const Element *)x.data + row * x.cols + col;
    if (!panel) return (Factor){from, CPU_ELEMENT, x.cols, transpose};
    int64_t stride = cpu_row_stride(cols);
    for (int64_t r = 0; r < rows; r++) copy_row(panel + r * stride, from + r * x.cols, cols);
    return (Factor){panel, F32, stride, transpose};
}

// Both factors of a tile, of [k, k + depth) along the sum.
static void take_factors(const Tile *tile, int64_t k, int64_t depth, Product *product) {
    const Matmul *p = tile->p;
    product->inner = depth;
    product->a = p->transpose_a ? factor_of(tile->panel_a, p->a, true, k, depth, tile->row, tile->rows)
                                : factor_of(tile->panel_a, p->a, false, tile->row, tile->rows, k, depth);
    product->b = p->transpose_b ? factor_of(tile->panel_b, p->b, true, tile->col, tile->cols, k, depth)
                                : factor_of(tile->panel_b, p->b, false, k, depth, tile->col, tile->cols);
}

// The tile's sum; of copies it grows a panel at a time.
static void add_up(const Tile *tile, int64_t inner, Product product) {
    bool copies = tile->panel_a || tile->panel_b;
    int64_t k = 0;
    do {
        take_factors(tile, k, copies ? at_most(inner - k, PANEL_INNER) : inner, &product);
        cpu_product_f32(&product);
        product.adds = true;
        k += product.inner;
    } while (k < inner);
}

static void multiply_tile(Tile *tile, const CpuTileSizes *sizes, float *workspace) {
    const Matmul *p = tile->p;
    int64_t inner = p->transpose_a ? p->a.rows : p->a.cols;
    bool rounds = p->d.dtype != F32, starts = p->bias.data && !rounds;
    tile_open(tile);
    if (starts) start_with_bias(tile);
    Product product = {.rows = tile->rows, .cols = tile->cols, .adds = p->accumulate || starts};
    if (cpu_factor_type(CPU_ELEMENT) == BF16) {
        product.d = tile->d, product.dtype = p->d.dtype, product.stride = p->d.cols;
        product.bias = rounds ? bias_of(tile) : NULL;
        take_factors(tile, 0, inner, &product);
        (cpu_by_amx(p) ? cpu_amx_product : cpu_pairs_product)(&product, workspace);
        return;
    }
    take_workspace(tile, sizes, workspace);
    product.d = tile->sum, product.dtype = F32, product.stride = tile->stride;
    add_up(tile, inner, product);
    if (rounds) round_sum(tile);
}

// A product of several, and the number of its first tile among those of all.
typedef struct {
    const Matmul *p;
    CpuCut cut;
    CpuTileSizes sizes;
    int64_t first;
} CutProduct;

typedef struct {
    CutProduct products[MATMULS_AT_ONCE];
    int count;
    int64_t tiles;
    int64_t elements;  // the work, as cpu_team has it
    int64_t workspace; // floats of a thread
} CutProducts;

static void cut_product(CutProducts *all, const Matmul *p) {
    CutProduct one = {p, cpu_cut(p), cpu_tile_sizes(p), all->tiles};
    all->tiles += one.cut.down * one.cut.across;
    all->elements += cpu_product_elements(p);
    if (one.sizes.all > all->workspace) all->workspace = one.sizes.all;
    all->products[all->count++] = one;
}

static void multiply_nth_tile(const CutProducts *all, int64_t n, float *workspace) {
    int last = all->count - 1;
    while (all->products[last].first > n) last--;
    const CutProduct *one = &all->products[last];
    int64_t i = n - one->first;
    Tile tile = {
        .p = one->p, .row = i % one->cut.down * one->cut.rows, .col = i / one->cut.down * one->cut.cols};
    tile.rows = at_most(one->p->d.rows - tile.row, one->cut.rows);
    tile.cols = at_most(one->p->d.cols - tile.col, one->cut.cols);
    if (tile.rows > 0 && tile.cols > 0) multiply_tile(&tile, &one->sizes, workspace);
}

void CPU_NAME(cpu_matmuls)(const Exec *exec, const Matmul *calls, int count) {
    CutProducts all = {.count = 0};
    for (int i = 0; i < count; i++) cut_product(&all, &calls[i]);
#pragma omp parallel num_threads(at_most(cpu_team(exec, all.elements), all.tiles))
    {
        float *workspace = exec->workspace;
        if (workspace) workspace += omp_get_thread_num() * all.workspace;
        cpu_products_alone();
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < all.tiles; i++) multiply_nth_tile(&all, i, workspace);
    }
}

void CPU_NAME(cpu_matmul)(const Exec *exec, const Matmul *p) { CPU_NAME(cpu_matmuls)(exec, p, 1); }
