// Columns of one tensor made of those of others. Where all pieces are whole packs, a thread makes a pack of a row, else
// an element.
#include "device/cuda/portable.h"

// An ArrangeColumns as the kernel reads it.
template <class E> struct Columns {
    const E *sources[SOURCE_ZEROS];
    int64_t source_cols[SOURCE_ZEROS];
    ColumnPiece pieces[MAX_PIECES];
    int64_t rows, cols, block; // of y; columns of a block
};

template <class E, bool WHOLE> struct Part {
    enum { WIDTH = WHOLE ? Pack<E>::WIDTH : 1 };
};

// Adds up the terms of a piece: WIDTH columns from x on.
template <class E, bool WHOLE>
DEVICE void sum_terms(const E *x, int terms, int64_t stride, float (&sum)[Part<E, WHOLE>::WIDTH]) {
    for (int i = 0; i < terms; i++, x += stride) {
        const Pack<E> more = load_pack<WHOLE>(x, 1);
        UNROLL
        for (int k = 0; k < Part<E, WHOLE>::WIDTH; k++)
            sum[k] = i ? sum[k] + to_float(more.e[k]) : to_float(more.e[k]);
    }
}

// At most 40 registers, 16 bytes a load.
template <class E, bool WHOLE>
__global__ void __launch_bounds__(ROW_THREADS) arrange_columns_kernel(const Columns<E> p, E *y) {
    enum { WIDTH = Part<E, WHOLE>::WIDTH };
    const int64_t row = row_of_thread(), c = pack_of_thread() * WIDTH;
    if (row >= p.rows || c >= p.cols) return;
    const int64_t block = c / p.block;
    int64_t within = c - block * p.block;
    int i = 0;
    for (; within >= p.pieces[i].width; i++) within -= p.pieces[i].width;
    float sum[WIDTH] = {};
    if (p.pieces[i].source != SOURCE_ZEROS) {
        const int64_t at = p.pieces[i].first + block * p.pieces[i].step + within;
        sum_terms<E, WHOLE>(p.sources[p.pieces[i].source] + row * p.source_cols[p.pieces[i].source] + at,
                            p.pieces[i].terms, p.pieces[i].stride, sum);
    }
    Pack<E> out = {};
    UNROLL
    for (int k = 0; k < WIDTH; k++) out.e[k] = from_float<E>(sum[k]);
    store_pack<WHOLE>(y + row * p.cols + c, 1, out);
}

static bool are_whole(const ArrangeColumns *p, int64_t pack) {
    for (int i = 0; i < MAX_PIECES; i++) {
        const ColumnPiece *piece = &p->pieces[i];
        if (piece->width % pack || piece->first % pack || piece->step % pack || piece->stride % pack)
            return false;
    }
    return has_whole_packs(p->a) && has_whole_packs(p->b) && has_whole_packs(p->c) && has_whole_packs(p->y);
}

template <class E, bool WHOLE>
static void launch_arrange(const Exec *exec, const ArrangeColumns *p, const Columns<E> &columns) {
    const RowLaunch l = row_launch(p->y.rows, p->y.cols / Part<E, WHOLE>::WIDTH);
    LAUNCH((arrange_columns_kernel<E, WHOLE>), l.grid, l.block, 0, stream_of(exec), columns, (E *)p->y.data);
}

template <class E> static void arrange_columns_of(const Exec *exec, const ArrangeColumns *p) {
    const Tensor sources[] = {p->a, p->b, p->c};
    Columns<E> columns = {};
    columns.rows = p->y.rows, columns.cols = p->y.cols, columns.block = p->y.cols / p->blocks;
    for (int i = 0; i < SOURCE_ZEROS; i++)
        columns.sources[i] = (const E *)sources[i].data, columns.source_cols[i] = sources[i].cols;
    for (int i = 0; i < MAX_PIECES; i++) columns.pieces[i] = p->pieces[i];
    if (are_whole(p, Pack<E>::WIDTH))
        launch_arrange<E, true>(exec, p, columns);
    else
        launch_arrange<E, false>(exec, p, columns);
}

extern "C" void cuda_arrange_columns(const Exec *exec, const ArrangeColumns *args) {
    if (tensor_count(args->y)) BY_ELEMENT(args->y.dtype, arrange_columns_of, exec, args);
}
