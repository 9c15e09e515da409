// The embedding table: rows looked up by tokens, and their gradients.
//
// The gradient of a row is what it was plus the rows of dy with that token, one after another, as in ops.h. So that
// all tokens are treated at once, the rows are sorted by (token, row); these pairs are all different, so any way to
// sort them gives the same order. Then one thread for some columns of a token adds up all of its rows.
#include "device/cuda/portable.h"

// ---- forward ----------------------------------------------------------------------------------------------

// A row of a token of another rank is zeros. At most 32 registers, 16 bytes a load.
template <class E, bool WHOLE>
__global__ void __launch_bounds__(ROW_THREADS)
    embedding_forward_kernel(const int32_t *tokens, const E *table, E *y, int64_t rows, int64_t cols,
                             int64_t first_row, int64_t table_rows) {
    const int64_t row = row_of_thread(), c = pack_of_thread() * Pack<E>::WIDTH, left = cols - c;
    if (row >= rows || left <= 0) return;
    const int64_t local = tokens[row] - first_row;
    Pack<E> x = {};
    if (local >= 0 && local < table_rows) x = load_pack<WHOLE>(table + local * cols + c, left);
    store_pack<WHOLE>(y + row * cols + c, left, x);
}

template <class E, bool WHOLE> static void launch_forward(const Exec *exec, const EmbeddingForward *p) {
    const RowLaunch l = row_launch(p->y.rows, blocks_of(p->y.cols, Pack<E>::WIDTH));
    LAUNCH((embedding_forward_kernel<E, WHOLE>), l.grid, l.block, 0, stream_of(exec),
           (const int32_t *)p->tokens.data, (const E *)p->table.data, (E *)p->y.data, p->y.rows, p->y.cols,
           p->first_row, p->table.rows);
}

template <class E> static void embedding_forward_of(const Exec *exec, const EmbeddingForward *p) {
    if (has_whole_packs(p->table) && has_whole_packs(p->y))
        launch_forward<E, true>(exec, p);
    else
        launch_forward<E, false>(exec, p);
}

extern "C" void cuda_embedding_forward(const Exec *exec, const EmbeddingForward *args) {
    if (tensor_count(args->y)) BY_ELEMENT(args->y.dtype, embedding_forward_of, exec, args);
}

// ---- rows in the order of their tokens --------------------------------------------------------------------

// A bitonic sort (Batcher 1968): for each size 2, 4, ..., each run of that size, in turns of both directions, is
// merged by comparing what lies size/2, size/4, ..., 1 apart. Steps within TILE keys are made in shared memory.
enum { SORT_THREADS = 256, TILE = 2048 };

// The row of the table, then the row of dy; of a row that is none of this rank's, and to fill up, what sorts last.
typedef unsigned long long Key;
#define NO_KEY (~(Key)0)
DEVICE Key key_of(int64_t local, int64_t row) { return (Key)local << 32 | (Key)row; }
DEVICE int64_t table_row_of(Key key) { return (int64_t)(key >> 32); }
DEVICE int64_t row_of(Key key) { return (int64_t)(uint32_t)key; }

// Pair number `pair` of those that lie `distance` apart; `at` is the number of keys[0] in the whole sort.
DEVICE void sort_pair(Key *keys, int64_t at, int64_t pair, int64_t size, int64_t distance) {
    const int64_t i = 2 * pair - (pair & (distance - 1)), k = i + distance;
    const Key a = keys[i], b = keys[k];
    const bool ascends = ((at + i) & size) == 0;
    if ((a > b) == ascends) keys[i] = b, keys[k] = a;
}

// Merges the runs of `size` keys of a tile, from the steps on that fit into it.
DEVICE void merge_tile(Key *keys, int tile, int64_t at, int64_t size) {
    const int64_t largest = size < tile ? size : tile;
    for (int64_t distance = largest / 2; distance > 0; distance /= 2) {
        __syncthreads();
        for (int pair = (int)threadIdx.x; pair < tile / 2; pair += SORT_THREADS)
            sort_pair(keys, at, pair, size, distance);
    }
    __syncthreads();
}

// Makes the keys, and sorts each tile. At most 32 registers.
__global__ void __launch_bounds__(SORT_THREADS)
    embedding_keys_kernel(const int32_t *tokens, Key *keys, int64_t rows, int tile, int64_t first_row,
                          int64_t table_rows) {
    SHARED(Key, own, TILE);
    const int64_t at = (int64_t)blockIdx.x * tile;
    for (int i = (int)threadIdx.x; i < tile; i += SORT_THREADS) {
        const int64_t row = at + i, local = row < rows ? tokens[row] - first_row : -1;
        own[i] = local >= 0 && local < table_rows ? key_of(local, row) : NO_KEY;
    }
    for (int size = 2; size <= tile; size *= 2) merge_tile(own, tile, at, size);
    for (int i = (int)threadIdx.x; i < tile; i += SORT_THREADS) keys[at + i] = own[i];
}

// One step between tiles. At most 32 registers.
__global__ void __launch_bounds__(SORT_THREADS)
    embedding_sort_kernel(Key *keys, int64_t size, int64_t distance) {
    sort_pair(keys, 0, (int64_t)blockIdx.x * SORT_THREADS + threadIdx.x, size, distance);
}

// The steps that follow, within tiles. At most 32 registers.
__global__ void __launch_bounds__(SORT_THREADS) embedding_merge_kernel(Key *keys, int64_t size) {
    SHARED(Key, own, TILE);
    const int64_t at = (int64_t)blockIdx.x * TILE;
    for (int i = (int)threadIdx.x; i < TILE; i += SORT_THREADS) own[i] = keys[at + i];
    merge_tile(own, TILE, at, size);
    for (int i = (int)threadIdx.x; i < TILE; i += SORT_THREADS) keys[at + i] = own[i];
}

static int64_t num_keys(int64_t rows) {
    int64_t count = 2;
    while (count < rows) count *= 2;
    return count;
}

extern "C" size_t cuda_embedding_backward_workspace(const EmbeddingBackward *args) {
    return (size_t)num_keys(args->dy.rows) * sizeof(Key);
}

static void sort_rows(const Exec *exec, const EmbeddingBackward *p, Key *keys) {
    const int64_t count = num_keys(p->dy.rows), most = TILE, tile = count < most ? count : most;
    LAUNCH(embedding_keys_kernel, count / tile, SORT_THREADS, 0, stream_of(exec),
           (const int32_t *)p->tokens.data, keys, p->dy.rows, (int)tile, p->first_row, p->dtable.rows);
    for (int64_t size = 2 * TILE; size <= count; size *= 2) {
        for (int64_t distance = size / 2; distance >= TILE; distance /= 2)
            LAUNCH(embedding_sort_kernel, count / 2 / SORT_THREADS, SORT_THREADS, 0, stream_of(exec), keys,
                   size, distance);
        LAUNCH(embedding_merge_kernel, count / TILE, SORT_THREADS, 0, stream_of(exec), keys, size);
    }
}

// ---- backward ---------------------------------------------------------------------------------------------

enum { ROWS_AHEAD = 8 }; // loaded before they are added

// A thread for each key; that of a token's first row treats all of them. At most 80 registers, 16 bytes a load.
template <class E, bool WHOLE>
__global__ void __launch_bounds__(ROW_THREADS)
    embedding_backward_kernel(const Key *keys, const E *dy, float *dtable, int64_t rows, int64_t cols) {
    const int64_t first = row_of_thread(), c = pack_of_thread() * Quad<E>::WIDTH, left = cols - c;
    if (first >= rows || left <= 0 || keys[first] == NO_KEY) return;
    const int64_t table_row = table_row_of(keys[first]);
    if (first > 0 && table_row_of(keys[first - 1]) == table_row) return;
    float *sum = dtable + table_row * cols + c;
    Quad<float> total = load_quad<WHOLE>(sum, left);
    for (int64_t at = first; at < rows && table_row_of(keys[at]) == table_row; at += ROWS_AHEAD) {
        Quad<E> d[ROWS_AHEAD];
        bool is_own[ROWS_AHEAD];
        UNROLL
        for (int k = 0; k < ROWS_AHEAD; k++) {
            is_own[k] = at + k < rows && table_row_of(keys[at + k]) == table_row;
            d[k] = is_own[k] ? load_quad<WHOLE>(dy + row_of(keys[at + k]) * cols + c, left) : Quad<E>();
        }
        UNROLL
        for (int k = 0; k < ROWS_AHEAD; k++) UNROLL
        for (int i = 0; i < Quad<E>::WIDTH; i++)
            if (is_own[k]) total.e[i] += to_float(d[k].e[i]);
    }
    store_quad<WHOLE>(sum, left, total);
}

template <class E, bool WHOLE>
static void launch_backward(const Exec *exec, const EmbeddingBackward *p, const Key *keys) {
    const RowLaunch l = row_launch(p->dy.rows, blocks_of(p->dy.cols, Quad<E>::WIDTH));
    LAUNCH((embedding_backward_kernel<E, WHOLE>), l.grid, l.block, 0, stream_of(exec), keys,
           (const E *)p->dy.data, (float *)p->dtable.data, p->dy.rows, p->dy.cols);
}

template <class E> static void embedding_backward_of(const Exec *exec, const EmbeddingBackward *p) {
    Key *keys = (Key *)exec->workspace;
    sort_rows(exec, p, keys);
    if (has_whole_packs(p->dy) && has_whole_packs(p->dtable))
        launch_backward<E, true>(exec, p, keys);
    else
        launch_backward<E, false>(exec, p, keys);
}

extern "C" void cuda_embedding_backward(const Exec *exec, const EmbeddingBackward *args) {
    CHECK(args->dy.rows <= INT32_MAX, "%lld rows", (long long)args->dy.rows);
    if (tensor_count(args->dy)) BY_ELEMENT(args->dy.dtype, embedding_backward_of, exec, args);
}
