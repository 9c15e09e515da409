// Causal attention of one instruction set and element type, without the S x S matrix: a block of query
// rows at a time against the keys up to the block's end, so nothing is computed beyond the blocks on the
// diagonal. Matrix products read q, k and v where they lie in qkv, or F32 copies where they do not take
// their type. One thread works on one head of one sample; backward on the heads of one group, whose key
// and value gradients it sums in fp32. Source: exact softmax by blocks with a stored log-sum-exp, Dao
// 2022 (FlashAttention), algorithms 1 and 4.
#include "device/cpu.h"
#include "device/cpu_vector.h"
#include <omp.h>

// One head of one sample. Rows of E lie `qkv_stride` or `out_stride` elements apart.
typedef struct {
    int64_t sequence, size, qkv_stride, out_stride;
    Factor q, k, v, g;            // [S, D] each, as products take them; g is dout: backward only
    Element *out, *probabilities; // probabilities [S, S] or NULL
    Element *dq, *dk, *dv;        // backward only
    const Element *dout;          // backward only
    float *stats;
    float scale;           // of the scores
    uint64_t mask_element; // of the sample's mask where the head's S x S elements begin
    Mask mask;
    DType factor;                // of products: E, or F32 for copies
    int64_t block, score_stride; // queries at a time, and from a row of their scores to the next
    // Of the calling thread. Scores and their gradients become, in place, factors of products of that type.
    float *scores, *gradients, *row, *rows, *sum_dk, *sum_dv;
    bool sums; // sum_dk and sum_dv hold something already
} Head;

// ---- opening a head ---------------------------------------------------------------------------------------

// [S, D] of E as products take it; copies use up memory from `free_copies` on.
static Factor factor_of(const Head *head, const Element *data, int64_t stride, float **free_copies) {
    if (head->factor == CPU_ELEMENT) return (Factor){data, CPU_ELEMENT, stride, false};
    float *copy = *free_copies;
    *free_copies += head->sequence * head->size;
    for (int64_t s = 0; s < head->sequence; s++)
        for (int64_t c = 0; c < head->size; c += LANES)
            store(copy + s * head->size + c, head->size - c, load_e(data + s * stride + c, head->size - c));
    return (Factor){copy, F32, head->size, false};
}

static void open_workspace(Head *head, const AttentionBackward *p, float *workspace) {
    bool backward = p->dout.data;
    const CpuHeadSizes sizes = cpu_head_sizes(CPU_ELEMENT, p->shape, backward);
    head->factor = cpu_factor_type(CPU_ELEMENT);
    head->block = cpu_query_block(head->factor);
    head->score_stride = cpu_row_stride(head->sequence);
    head->scores = workspace;
    head->gradients = head->scores + (backward ? sizes.scores : 0);
    head->row = head->gradients + sizes.scores;
    head->rows = head->row + sizes.row;
    head->sum_dk = head->rows + sizes.rows;
    head->sum_dv = head->sum_dk + sizes.sums / 2;
}

// Opens local head h of sample b; forward is backward without dout and dqkv. `workspace` is the thread's.
static void head_open(Head *head, const AttentionBackward *p, float *workspace, int64_t b, int64_t h) {
    const AttentionShape *shape = &p->shape;
    int64_t size = shape->head_size, per_group = shape->heads / shape->groups, piece = b * shape->heads + h;
    int64_t width = (shape->heads + 2 * shape->groups) * size;
    int64_t group = b * width + h / per_group * (per_group + 2) * size;
    int64_t q = group + h % per_group * size, k = group + per_group * size, out = piece * size;
    const Element *qkv = p->qkv.data;
    *head = (Head){.sequence = shape->sequence, .size = size};
    head->qkv_stride = shape->batch * width;
    head->out_stride = shape->batch * shape->heads * size;
    open_workspace(head, p, workspace);
    float *copies = head->sum_dk + cpu_head_sizes(CPU_ELEMENT, *shape, p->dout.data).sums;
    head->q = factor_of(head, qkv + q, head->qkv_stride, &copies);
    head->k = factor_of(head, qkv + k, head->qkv_stride, &copies);
    head->v = factor_of(head, qkv + k + size, head->qkv_stride, &copies);
    head->out = (Element *)p->out.data + out;
    head->stats = (float *)p->stats.data + piece * shape->sequence;
    if (p->probabilities.data)
        head->probabilities = (Element *)p->probabilities.data + piece * shape->sequence * shape->sequence;
    if (p->dout.data) {
        head->dout = (const Element *)p->dout.data + out;
        head->g = factor_of(head, head->dout, head->out_stride, &copies);
        head->dq = (Element *)p->dqkv.data + q;
        head->dk = (Element *)p->dqkv.data + k;
        head->dv = head->dk + size;
    }
    head->scale = 1.0f / sqrtf((float)size);
    head->mask_element = (uint64_t)((shape->first_head + h) * shape->sequence * shape->sequence);
    mask_open(&head->mask, &p->dropout);
    head->mask.sample = (uint64_t)(p->dropout.first_sample + b);
}

// ---- one row of scores ------------------------------------------------------------------------------------

// Whole vectors that cover keys 0..query. Those beyond the query become -inf, whose exponential is 0.
static int64_t cover_keys(float *row, int64_t query) {
    int64_t used = (query + LANES) / LANES * LANES;
    for (int64_t key = query + 1; key < used; key++) row[key] = -INFINITY;
    return used;
}

// A row of fp32 is rewritten from its start as a row of factors, which are no wider.
static inline DType row_type(const Head *head) { return CPU_ELEMENT == BF16 ? head->factor : F32; }

static inline void store_factor(const Head *head, float *row, int64_t key, Floats x) {
    if (row_type(head) == F32)
        store(row + key, LANES, x);
    else
        store_as(BF16, (uint16_t *)row + key, LANES, x);
}

static void clear_factors(const Head *head, float *row, int64_t from, int64_t keys) {
    size_t bytes = row_type(head) == F32 ? sizeof(float) : sizeof(uint16_t);
    if (from < keys) memset((char *)row + (size_t)from * bytes, 0, (size_t)(keys - from) * bytes);
}

// The words of the mask for keys [first, first + count) of a query.
static const uint32_t *mask_of(Head *head, int64_t query, int64_t first, int64_t count) {
    return mask_span(&head->mask, head->mask_element + (uint64_t)(query * head->sequence + first), count);
}

// The exponentials of a row, divided by their sum.
static void keep_probabilities(const Head *head, int64_t query, float sum) {
    Element *row = head->probabilities + query * head->sequence;
    for (int64_t key = 0; key <= query; key += LANES)
        store_e(row + key, query + 1 - key, load(head->row + key, LANES) / sum);
    memset(row + query + 1, 0, (size_t)(head->sequence - query - 1) * sizeof *row);
}

// Scores of a query become dropout(exp(score - max)), zero beyond the diagonal. Returns the sum of the
// exponentials.
static float softmax_row(Head *head, float *row, int64_t query, int64_t keys) {
    int64_t used = cover_keys(row, query);
    Floats most = splat(-INFINITY), sum = {0};
    for (int64_t key = 0; key < used; key += LANES) most = larger(most, load(row + key, LANES));
    float max = max_lanes(most);
    for (int64_t first = 0; first < used; first += MASK_SPAN) {
        int64_t end = used - first < MASK_SPAN ? used : first + MASK_SPAN;
        const uint32_t *words = mask_of(head, query, first, end - first);
        for (int64_t key = first; key < end; key += LANES) {
            Floats e = exponential(load(row + key, LANES) - max);
            sum += e;
            if (head->probabilities) store(head->row + key, LANES, e);
            store_factor(head, row, key, mask_apply(&head->mask, words + (key - first), e));
        }
    }
    clear_factors(head, row, used, keys);
    float total = sum_lanes(sum);
    head->stats[query] = max + logf(total);
    if (head->probabilities) keep_probabilities(head, query, total);
    return total;
}

// With P = exp(score - stats), its dropout factor f, and dA in `gradients`: scores become P f, gradients the
// gradient of q k^T, scale P (f dA - delta). `delta` is the sum over keys of P f dA, which is dout . out.
static void softmax_backward_row(Head *head, float *scores, float *gradients, int64_t query, int64_t keys,
                                 float delta) {
    int64_t used = cover_keys(scores, query);
    float log_sum = head->stats[query];
    const Element *kept = head->probabilities ? head->probabilities + query * head->sequence : NULL;
    for (int64_t first = 0; first < used; first += MASK_SPAN) {
        int64_t end = used - first < MASK_SPAN ? used : first + MASK_SPAN;
        const uint32_t *words = mask_of(head, query, first, end - first);
        for (int64_t key = first; key < end; key += LANES) {
            Floats p =
                kept ? load_e(kept + key, query + 1 - key) : exponential(load(scores + key, LANES) - log_sum);
            Floats f = mask_apply(&head->mask, words + (key - first), splat(1));
            Floats d = load(gradients + key, LANES);
            store_factor(head, scores, key, p * f);
            store_factor(head, gradients, key, head->scale * p * (f * d - delta));
        }
    }
    clear_factors(head, scores, used, keys);
    clear_factors(head, gradients, used, keys);
}

static float dot(const Element *a, const Element *b, int64_t count) {
    Floats sum = {0};
    for (int64_t i = 0; i < count; i += LANES) sum += load_e(a + i, count - i) * load_e(b + i, count - i);
    return sum_lanes(sum);
}

// ---- one block of queries ---------------------------------------------------------------------------------

static int64_t block_rows(const Head *head, int64_t first) {
    int64_t left = head->sequence - first;
    return left < head->block ? left : head->block;
}

static Factor rows_from(Factor x, int64_t first) {
    x.data = (const char *)x.data + (size_t)(first * x.stride) * dtype_bytes(x.dtype);
    return x;
}

static Factor transposed(Factor x) {
    x.transpose = true;
    return x;
}

// A block of scores, or of their gradients, once its rows are factors.
static Factor rewritten(const Head *head, const float *scores) {
    int64_t stride = head->score_stride;
    return (Factor){scores, row_type(head), row_type(head) == F32 ? stride : 2 * stride, false};
}

// scores = scale q k^T of a block of queries.
static void block_scores(const Head *head, int64_t first, int64_t rows, int64_t keys) {
    cpu_product(rows, keys, head->size, head->scale, rows_from(head->q, first), transposed(head->k), 0,
                head->scores, head->score_stride);
}

static void round_row(Element *to, const float *from, int64_t count) {
    for (int64_t i = 0; i < count; i += LANES) store_e(to + i, count - i, load(from + i, count - i));
}

static void divide_row(Element *to, const float *from, int64_t count, float by) {
    for (int64_t i = 0; i < count; i += LANES) store_e(to + i, count - i, load(from + i, count - i) / by);
}

static void block_forward(Head *head, int64_t first) {
    int64_t rows = block_rows(head, first), keys = first + rows, size = head->size;
    float sums[MOST_QUERIES];
    block_scores(head, first, rows, keys);
    for (int64_t r = 0; r < rows; r++)
        sums[r] = softmax_row(head, head->scores + r * head->score_stride, first + r, keys);
    cpu_product(rows, size, keys, 1, rewritten(head, head->scores), head->v, 0, head->rows, size);
    for (int64_t r = 0; r < rows; r++)
        divide_row(head->out + (first + r) * head->out_stride, head->rows + r * size, size, sums[r]);
}

// Adds to the sums of dk and dv of all keys that the block sees. The first block to come is the last one,
// which sees all keys. dq may lie where q was: it is written when q is no longer needed.
static void block_backward(Head *head, int64_t first) {
    int64_t rows = block_rows(head, first), keys = first + rows, size = head->size;
    Factor q = rows_from(head->q, first), g = rows_from(head->g, first);
    float beta = head->sums ? 1 : 0;
    if (!head->probabilities) block_scores(head, first, rows, keys);
    cpu_product(rows, keys, size, 1, g, transposed(head->v), 0, head->gradients, head->score_stride);
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = r * head->score_stride, out = (first + r) * head->out_stride;
        float delta = dot(head->dout + out, head->out + out, size);
        softmax_backward_row(head, head->scores + at, head->gradients + at, first + r, keys, delta);
    }
    Factor p = rewritten(head, head->scores), d = rewritten(head, head->gradients);
    cpu_product(rows, size, keys, 1, d, head->k, 0, head->rows, size);
    cpu_product(keys, size, rows, 1, transposed(d), q, beta, head->sum_dk, size);
    cpu_product(keys, size, rows, 1, transposed(p), g, beta, head->sum_dv, size);
    head->sums = true;
    for (int64_t r = 0; r < rows; r++)
        round_row(head->dq + (first + r) * head->qkv_stride, head->rows + r * size, size);
}

// ---- all heads --------------------------------------------------------------------------------------------

static float *workspace_of_thread(const Exec *exec, const AttentionBackward *p) {
    int64_t floats = cpu_head_sizes(CPU_ELEMENT, p->shape, p->dout.data).all;
    return (float *)exec->workspace + omp_get_thread_num() * floats;
}

void CPU_NAME(cpu_attention_forward)(const Exec *exec, const AttentionForward *forward) {
    AttentionBackward p = {.qkv = forward->qkv, .out = forward->out, .stats = forward->stats};
    p.probabilities = forward->probabilities, p.shape = forward->shape, p.dropout = forward->dropout;
    int64_t heads = p.shape.heads;
#pragma omp parallel num_threads(exec->threads)
    {
        Head head;
        cpu_products_alone();
#pragma omp for schedule(dynamic)
        for (int64_t piece = 0; piece < p.shape.batch * heads; piece++) {
            head_open(&head, &p, workspace_of_thread(exec, &p), piece / heads, piece % heads);
            for (int64_t first = 0; first < head.sequence; first += head.block) block_forward(&head, first);
        }
    }
}

// The heads of a group add to one dk and dv, one after the other.
static void group_backward(const AttentionBackward *p, float *workspace, int64_t b, int64_t group) {
    int64_t per_group = p->shape.heads / p->shape.groups, size = p->shape.head_size;
    Head head;
    for (int64_t h = 0; h < per_group; h++) {
        head_open(&head, p, workspace, b, group * per_group + h);
        head.sums = h > 0;
        int64_t last = (head.sequence - 1) / head.block * head.block;
        for (int64_t first = last; first >= 0; first -= head.block) block_backward(&head, first);
    }
    for (int64_t s = 0; s < p->shape.sequence; s++) {
        round_row(head.dk + s * head.qkv_stride, head.sum_dk + s * size, size);
        round_row(head.dv + s * head.qkv_stride, head.sum_dv + s * size, size);
    }
}

void CPU_NAME(cpu_attention_backward)(const Exec *exec, const AttentionBackward *p) {
    int64_t groups = p->shape.groups;
#pragma omp parallel num_threads(exec->threads)
    {
        cpu_products_alone();
#pragma omp for schedule(dynamic)
        for (int64_t piece = 0; piece < p->shape.batch * groups; piece++)
            group_backward(p, workspace_of_thread(exec, p), piece / groups, piece % groups);
    }
}
