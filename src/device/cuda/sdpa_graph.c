// Builds cuDNN's graphs for attention, and says what workspace they take.
#include "device/cuda/sdpa_graph.h"
#include <stdio.h>

void sdpa_describe(const SdpaKey *key, char *text, size_t bytes) {
    snprintf(text, bytes,
             "attention %s in %s, %lld samples and groups, %lld query heads each, S %lld, D %lld",
             key->backward ? "backward" : "forward", dtype_name(key->dtype), (long long)key->samples,
             (long long)key->heads, (long long)key->sequence, (long long)key->size);
}

// ---- workspace --------------------------------------------------------------------------------------------

static size_t take(size_t *end, int64_t bytes) {
    const size_t begin = *end, alignment = 256;
    *end += ((size_t)bytes + alignment - 1) / alignment * alignment;
    return begin;
}

// cuDNN's own workspace: some bytes to begin with; where sums have an order, the gradients of the scores in 16 bits,
// whose sides it rounds up to tiles; else, before Hopper, dq in fp32 once more.
static int64_t engine_bytes(const SdpaKey *key) {
    const int64_t some = 64 << 10, tile = 128, side = (key->sequence + tile - 1) / tile * tile;
    const int64_t heads = key->samples * key->heads;
    if (!key->backward) return some;
    return some + (key->any_order ? 4 * heads * key->sequence * key->size : 2 * heads * side * side);
}

SdpaRoom sdpa_room(const SdpaKey *key, bool in_place) {
    const int64_t rows = key->samples * key->heads * key->sequence, elements = rows * key->size;
    const int64_t shared = key->backward && key->heads > 1 ? (key->any_order ? 2 : 4) * elements : 0;
    SdpaRoom room = {.engine_bytes = (size_t)engine_bytes(key)};
    room.sums = take(&room.all, key->backward ? 4 * rows : 0);
    room.dkeys = take(&room.all, shared);
    room.dvalues = take(&room.all, shared);
    room.dqueries = take(&room.all, key->any_order ? 4 * elements : 0);
    room.dqkv =
        take(&room.all, in_place ? 2 * key->samples * key->sequence * (key->heads + 2) * key->size : 0);
    room.engine = take(&room.all, (int64_t)room.engine_bytes);
    return room;
}

// ---- graphs -----------------------------------------------------------------------------------------------

// The tensors that both passes share.
typedef struct {
    const SdpaKey *key;
    CudnnShape query, key_head, key_across, out, scores, scores_across, row, packed;
    cudnnDataType_t element;
    CudnnNode q, k_across, stats, scale;
} Sdpa;

static CudnnShape shape_of(int64_t d0, int64_t d1, int64_t d2, int64_t d3, int64_t s0, int64_t s1, int64_t s2,
                           int64_t s3) {
    return (CudnnShape){{d0, d1, d2, d3}, {s0, s1, s2, s3}};
}

static Sdpa sdpa_of(CudnnGraph *g, const SdpaKey *key) {
    const int64_t samples = key->samples, heads = key->heads, s = key->sequence, d = key->size;
    const int64_t part = (heads + 2) * d, row = samples * part, width = heads * d;
    Sdpa a = {
        .key = key,
        .query = shape_of(samples, heads, s, d, part, d, row, 1),
        .key_head = shape_of(samples, 1, s, d, part, part, row, 1),
        .key_across = shape_of(samples, 1, d, s, part, part, 1, row),
        .out = shape_of(samples, heads, s, d, width, d, samples * width, 1),
        .scores = shape_of(samples, heads, s, s, heads * s * s, s * s, s, 1),
        .scores_across = shape_of(samples, heads, s, s, heads * s * s, s * s, 1, s),
        .row = shape_of(samples, heads, s, 1, heads * s, s, 1, 1),
        .packed = shape_of(samples, heads, s, d, heads * s * d, s * d, d, 1),
        .element = key->dtype == BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF,
    };
    a.q = cudnn_tensor(g, a.element, a.query, SDPA_QUERIES);
    a.k_across = cudnn_tensor(g, a.element, a.key_across, SDPA_KEYS);
    a.stats = cudnn_tensor(g, CUDNN_DATA_FLOAT, a.row, SDPA_STATS);
    a.scale = cudnn_scalar(g, SDPA_SCALE);
    return a;
}

static CudnnNode scores_of(CudnnGraph *g, const Sdpa *a) {
    return cudnn_virtual(g, CUDNN_DATA_FLOAT, a->scores);
}

// A new tensor of scores: x `mode` b.
static CudnnNode pointwise(CudnnGraph *g, const Sdpa *a, cudnnPointwiseMode_t mode, CudnnNode x,
                           CudnnNode b) {
    CudnnNode y = scores_of(g, a);
    cudnn_pointwise(g, mode, x, b, y);
    return y;
}

static CudnnNode product(CudnnGraph *g, const Sdpa *a, CudnnNode x, CudnnNode across) {
    CudnnNode y = scores_of(g, a);
    cudnn_matmul(g, x, across, y);
    return y;
}

static CudnnNode scaled_scores(CudnnGraph *g, const Sdpa *a) {
    return pointwise(g, a, CUDNN_POINTWISE_MUL, product(g, a, a->q, a->k_across), a->scale);
}

// Scores of keys behind the query become SDPA_MASKED.
static CudnnNode causal(CudnnGraph *g, const Sdpa *a, CudnnNode scores) {
    CudnnNode queries = cudnn_virtual(g, CUDNN_DATA_INT32, a->scores);
    CudnnNode keys = cudnn_virtual(g, CUDNN_DATA_INT32, a->scores);
    CudnnNode seen = cudnn_virtual(g, CUDNN_DATA_BOOLEAN, a->scores);
    CudnnNode y = scores_of(g, a);
    cudnn_index(g, 2, scores, queries);
    cudnn_index(g, 3, scores, keys);
    cudnn_not_below(g, queries, keys, seen);
    cudnn_select(g, scores, cudnn_scalar(g, SDPA_MASKED), seen, y);
    return y;
}

static CudnnNode row_of(CudnnGraph *g, const Sdpa *a) { return cudnn_virtual(g, CUDNN_DATA_FLOAT, a->row); }

static void build_forward(CudnnGraph *g, const SdpaKey *key) {
    const Sdpa a = sdpa_of(g, key);
    CudnnNode scores = causal(g, &a, scaled_scores(g, &a));
    CudnnNode maximum = row_of(g, &a), sum = row_of(g, &a), logarithm = row_of(g, &a);
    cudnn_reduce(g, CUDNN_REDUCE_TENSOR_MAX, scores, maximum);
    CudnnNode below = pointwise(g, &a, CUDNN_POINTWISE_SUB, scores, maximum);
    CudnnNode exponentials = pointwise(g, &a, CUDNN_POINTWISE_EXP, below, NULL);
    cudnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, exponentials, sum);
    cudnn_pointwise(g, CUDNN_POINTWISE_LOG, sum, NULL, logarithm);
    cudnn_pointwise(g, CUDNN_POINTWISE_ADD, maximum, logarithm, a.stats);
    CudnnNode probabilities = cudnn_virtual(g, a.element, a.scores);
    cudnn_pointwise(g, CUDNN_POINTWISE_DIV, exponentials, sum, probabilities);
    cudnn_matmul(g, probabilities, cudnn_tensor(g, a.element, a.key_head, SDPA_VALUES),
                 cudnn_tensor(g, a.element, a.out, SDPA_OUT));
}

// The gradient of the group's keys or values: the transposed weights times rows. Where several heads share it, each
// head's lies in memory before they are added: in fp32, so that it is rounded once; in any order rounded, too, as cuDNN
// 9.19 has nothing else for Blackwell.
static void shared_gradient(CudnnGraph *g, const Sdpa *a, CudnnNode weights, CudnnNode rows, SdpaTensor heads,
                            SdpaTensor shared) {
    CudnnNode across = cudnn_virtual(g, a->element, a->scores_across);
    CudnnNode gradient = cudnn_tensor(g, a->element, a->key_head, shared);
    cudnn_reshape(g, weights, across);
    if (a->key->heads == 1) {
        cudnn_matmul(g, across, rows, gradient);
        return;
    }
    CudnnNode of_heads = cudnn_tensor(g, a->key->any_order ? a->element : CUDNN_DATA_FLOAT, a->packed, heads);
    cudnn_matmul(g, across, rows, of_heads);
    cudnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, of_heads, gradient);
}

// sums = the products dout . out of each query.
static CudnnNode output_sums(CudnnGraph *g, const Sdpa *a, CudnnNode dout) {
    const int64_t s = a->key->sequence, d = a->key->size, heads = a->key->heads;
    const CudnnShape by_row = shape_of(a->key->samples, heads, s, d, heads * s * d, s * d, heads * d, 1);
    CudnnNode products = cudnn_virtual(g, CUDNN_DATA_FLOAT, by_row), sum = row_of(g, a);
    CudnnNode sums = cudnn_tensor(g, CUDNN_DATA_FLOAT, a->row, SDPA_SUMS);
    cudnn_pointwise(g, CUDNN_POINTWISE_MUL, dout, cudnn_tensor(g, a->element, a->out, SDPA_OUT), products);
    cudnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, products, sum);
    cudnn_pointwise(g, CUDNN_POINTWISE_MUL, sum, cudnn_scalar(g, SDPA_ONE), sums);
    return sums;
}

static void query_gradient(CudnnGraph *g, const Sdpa *a, CudnnNode dscores) {
    const int64_t s = a->key->sequence, d = a->key->size;
    CudnnNode keys =
        cudnn_virtual(g, CUDNN_DATA_FLOAT, shape_of(a->key->samples, 1, s, d, s * d, s * d, d, 1));
    CudnnNode dq = cudnn_tensor(g, a->element, a->query, SDPA_DQUERIES);
    cudnn_reshape(g, a->k_across, keys);
    if (!a->key->any_order) {
        cudnn_matmul(g, dscores, keys, dq);
        return;
    }
    CudnnNode added = cudnn_tensor(g, CUDNN_DATA_FLOAT, a->packed, SDPA_ADDED_DQUERIES);
    cudnn_matmul(g, dscores, keys, added);
    cudnn_pointwise(g, CUDNN_POINTWISE_IDENTITY, added, NULL, dq);
}

static void build_backward(CudnnGraph *g, const SdpaKey *key) {
    const Sdpa a = sdpa_of(g, key);
    CudnnNode dout = cudnn_tensor(g, a.element, a.out, SDPA_DOUT);
    CudnnNode sums = output_sums(g, &a, dout);
    CudnnNode below = pointwise(g, &a, CUDNN_POINTWISE_SUB, scaled_scores(g, &a), a.stats);
    CudnnNode probabilities = pointwise(g, &a, CUDNN_POINTWISE_EXP, causal(g, &a, below), NULL);
    shared_gradient(g, &a, probabilities, dout, SDPA_HEADS_DVALUES, SDPA_DVALUES);
    CudnnNode values_across = cudnn_tensor(g, a.element, a.key_across, SDPA_VALUES);
    CudnnNode change = pointwise(g, &a, CUDNN_POINTWISE_SUB, product(g, &a, dout, values_across), sums);
    CudnnNode weighted = pointwise(g, &a, CUDNN_POINTWISE_MUL, change, probabilities);
    CudnnNode dscores = pointwise(g, &a, CUDNN_POINTWISE_MUL, weighted, a.scale);
    shared_gradient(g, &a, dscores, a.q, SDPA_HEADS_DKEYS, SDPA_DKEYS);
    query_gradient(g, &a, dscores);
}

void sdpa_build(CudnnGraph *graph, const SdpaKey *key) {
    (key->backward ? build_backward : build_forward)(graph, key);
}
