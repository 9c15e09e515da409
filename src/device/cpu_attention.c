// Causal attention of one instruction set, without the S x S matrix: a block of QUERY_BLOCK query rows at a
// time against the keys up to the block's end, so nothing is computed beyond the blocks on the diagonal.
// Matrix products read q, k and v where they lie in qkv. One thread works on one head of one sample. Source:
// exact softmax by blocks with a stored log-sum-exp, Dao 2022 (FlashAttention), algorithms 1 and 4.
#include "device/cpu.h"
#include "device/cpu_vector.h"
#include <omp.h>

// One head of one sample. Rows of q, k, v and their gradients lie `qkv_stride` floats apart, rows of out
// `out_stride`.
typedef struct {
    const float *q, *k, *v;
    float *dq, *dk, *dv; // backward only
    const float *dout;   // backward only
    float *out, *stats;
    int64_t sequence, size, qkv_stride, out_stride;
    float scale;           // of the scores
    uint64_t mask_element; // of the sample's mask where the head's S x S elements begin
    Mask mask;
    float *scores,
        *gradients; // [QUERY_BLOCK, score_stride] each, of the calling thread; gradients: backward only
    int64_t score_stride;
} Head;

static void head_open(Head *head, const AttentionShape *shape, const Dropout *dropout, float *scores,
                      int64_t b, int64_t h) {
    head->sequence = shape->sequence;
    head->size = shape->head_size;
    head->out_stride = shape->batch * shape->heads * shape->head_size;
    head->qkv_stride = 3 * head->out_stride;
    head->scale = 1.0f / sqrtf((float)shape->head_size);
    head->mask_element = (uint64_t)((shape->first_head + h) * shape->sequence * shape->sequence);
    mask_open(&head->mask, dropout);
    head->mask.sample = (uint64_t)(dropout->first_sample + b);
    head->score_stride = cpu_score_stride(shape->sequence);
    head->scores = scores;
    head->gradients = scores + QUERY_BLOCK * head->score_stride;
}

// Where a head of a sample begins in its row of out; in qkv three times as far.
static int64_t head_offset(const AttentionShape *shape, int64_t b, int64_t h) {
    return (b * shape->heads + h) * shape->head_size;
}

// ---- one row of scores ------------------------------------------------------------------------------------

// Whole vectors that cover keys 0..query. Those beyond the query become -inf, whose exponential is 0.
static int64_t cover_keys(float *row, int64_t query) {
    int64_t used = (query + LANES) / LANES * LANES;
    for (int64_t key = query + 1; key < used; key++) row[key] = -INFINITY;
    return used;
}

static void clear_keys(float *row, int64_t from, int64_t keys) {
    if (from < keys) memset(row + from, 0, (size_t)(keys - from) * sizeof(float));
}

// The words of the mask for keys [first, first + count) of a query.
static const uint32_t *mask_of(Head *head, int64_t query, int64_t first, int64_t count) {
    return mask_span(&head->mask, head->mask_element + (uint64_t)(query * head->sequence + first), count);
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
            store(row + key, LANES, mask_apply(&head->mask, words + (key - first), e));
        }
    }
    clear_keys(row, used, keys);
    float total = sum_lanes(sum);
    head->stats[query] = max + logf(total);
    return total;
}

// With P = exp(score - stats), its dropout factor f, and dA in `gradients`: scores become P f, gradients the
// gradient of q k^T, scale P (f dA - delta). `delta` is the sum over keys of P f dA, which is dout . out.
static void softmax_backward_row(Head *head, float *scores, float *gradients, int64_t query, int64_t keys,
                                 float delta) {
    int64_t used = cover_keys(scores, query);
    float log_sum = head->stats[query];
    for (int64_t first = 0; first < used; first += MASK_SPAN) {
        int64_t end = used - first < MASK_SPAN ? used : first + MASK_SPAN;
        const uint32_t *words = mask_of(head, query, first, end - first);
        for (int64_t key = first; key < end; key += LANES) {
            Floats p = exponential(load(scores + key, LANES) - log_sum);
            Floats f = mask_apply(&head->mask, words + (key - first), splat(1));
            Floats d = load(gradients + key, LANES);
            store(scores + key, LANES, p * f);
            store(gradients + key, LANES, head->scale * p * (f * d - delta));
        }
    }
    clear_keys(scores, used, keys);
    clear_keys(gradients, used, keys);
}

static float dot(const float *a, const float *b, int64_t count) {
    Floats sum = {0};
    for (int64_t i = 0; i < count; i += LANES) sum += load(a + i, count - i) * load(b + i, count - i);
    return sum_lanes(sum);
}

static void divide(float *x, int64_t count, float by) {
    for (int64_t i = 0; i < count; i += LANES) store(x + i, count - i, load(x + i, count - i) / by);
}

// ---- one block of queries ---------------------------------------------------------------------------------

static int64_t block_rows(const Head *head, int64_t first) {
    int64_t left = head->sequence - first;
    return left < QUERY_BLOCK ? left : QUERY_BLOCK;
}

// scores = scale q k^T of a block of queries.
static void block_scores(const Head *head, int64_t first, int64_t rows, int64_t keys) {
    cpu_product(rows, keys, head->size, head->scale, //
                (Factor){head->q + first * head->qkv_stride, head->qkv_stride, false},
                (Factor){head->k, head->qkv_stride, true}, //
                0, head->scores, head->score_stride);
}

static void block_forward(Head *head, int64_t first) {
    int64_t rows = block_rows(head, first), keys = first + rows;
    float sums[QUERY_BLOCK], *out = head->out + first * head->out_stride;
    block_scores(head, first, rows, keys);
    for (int64_t r = 0; r < rows; r++)
        sums[r] = softmax_row(head, head->scores + r * head->score_stride, first + r, keys);
    cpu_product(rows, head->size, keys, 1, (Factor){head->scores, head->score_stride, false},
                (Factor){head->v, head->qkv_stride, false}, 0, out, head->out_stride);
    for (int64_t r = 0; r < rows; r++) divide(out + r * head->out_stride, head->size, sums[r]);
}

// Adds to dk and dv of all keys that the block sees, unless it is the last block, which sees all keys and
// comes first.
static void block_backward(Head *head, int64_t first) {
    int64_t rows = block_rows(head, first), keys = first + rows;
    float beta = keys == head->sequence ? 0 : 1;
    const float *dout = head->dout + first * head->out_stride, *out = head->out + first * head->out_stride;
    Factor by_q = {head->q + first * head->qkv_stride, head->qkv_stride, false};
    Factor by_k = {head->k, head->qkv_stride, false}, by_v = {head->v, head->qkv_stride, true};
    Factor by_dout = {dout, head->out_stride, false};
    block_scores(head, first, rows, keys);
    cpu_product(rows, keys, head->size, 1, by_dout, by_v, 0, head->gradients, head->score_stride);
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = r * head->score_stride;
        float delta = dot(dout + r * head->out_stride, out + r * head->out_stride, head->size);
        softmax_backward_row(head, head->scores + at, head->gradients + at, first + r, keys, delta);
    }
    cpu_product(rows, head->size, keys, 1, (Factor){head->gradients, head->score_stride, false}, by_k, 0,
                head->dq + first * head->qkv_stride, head->qkv_stride);
    cpu_product(keys, head->size, rows, 1, (Factor){head->gradients, head->score_stride, true}, by_q, beta,
                head->dk, head->qkv_stride);
    cpu_product(keys, head->size, rows, 1, (Factor){head->scores, head->score_stride, true}, by_dout, beta,
                head->dv, head->qkv_stride);
}

// ---- all heads --------------------------------------------------------------------------------------------

void CPU_NAME(cpu_attention_forward)(const Exec *exec, const AttentionForward *p) {
    const AttentionShape *shape = &p->shape;
#pragma omp parallel num_threads(cpu_attention_team(exec->threads, *shape))
    {
        float *scores =
            (float *)exec->workspace + omp_get_thread_num() * QUERY_BLOCK * cpu_score_stride(shape->sequence);
        cpu_products_alone();
#pragma omp for schedule(dynamic)
        for (int64_t piece = 0; piece < shape->batch * shape->heads; piece++) {
            int64_t b = piece / shape->heads, h = piece % shape->heads, offset = head_offset(shape, b, h);
            Head head = {.q = (const float *)p->qkv.data + 3 * offset,
                         .out = (float *)p->out.data + offset,
                         .stats = (float *)p->stats.data + piece * shape->sequence};
            head.k = head.q + shape->head_size, head.v = head.k + shape->head_size;
            head_open(&head, shape, &p->dropout, scores, b, h);
            for (int64_t first = 0; first < head.sequence; first += QUERY_BLOCK) block_forward(&head, first);
        }
    }
}

void CPU_NAME(cpu_attention_backward)(const Exec *exec, const AttentionBackward *p) {
    const AttentionShape *shape = &p->shape;
#pragma omp parallel num_threads(cpu_attention_team(exec->threads, *shape))
    {
        float *scores = (float *)exec->workspace +
                        omp_get_thread_num() * 2 * QUERY_BLOCK * cpu_score_stride(shape->sequence);
        cpu_products_alone();
#pragma omp for schedule(dynamic)
        for (int64_t piece = 0; piece < shape->batch * shape->heads; piece++) {
            int64_t b = piece / shape->heads, h = piece % shape->heads, offset = head_offset(shape, b, h);
            Head head = {.q = (const float *)p->qkv.data + 3 * offset,
                         .dq = (float *)p->dqkv.data + 3 * offset,
                         .dout = (const float *)p->dout.data + offset,
                         .out = (float *)p->out.data + offset,
                         .stats = (float *)p->stats.data + piece * shape->sequence};
            head.k = head.q + shape->head_size, head.v = head.k + shape->head_size;
            head.dk = head.dq + shape->head_size, head.dv = head.dk + shape->head_size;
            head_open(&head, shape, &p->dropout, scores, b, h);
            int64_t last = (head.sequence - 1) / QUERY_BLOCK * QUERY_BLOCK;
            for (int64_t first = last; first >= 0; first -= QUERY_BLOCK) block_backward(&head, first);
        }
    }
}
