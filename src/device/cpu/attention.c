// Attention of one instruction set and element type, without the S x S matrix: a block of query rows against a
// block of keys at a time, with a running maximum and sum of every row, so that what is worked on stays in the
// caches whatever S is. A strip of a block's queries goes through scores, softmax and the product with values
// (backward: with keys) before the next one does, so that its scores stay in the first-level cache; only sums of dk
// and dv take a whole block. Pairs of blocks are left out in which no query sees a key, and so are strips; on the
// diagonal strips take only the keys that they see. One thread works on one head of one sample; backward on the
// heads of one group, whose key and value gradients it sums in fp32. Sources: Dao 2022 (FlashAttention), algorithms
// 1 and 4; Dao 2023 (FlashAttention-2), for queries in the outer loop and the division at the end.
#include "device/cpu/mask.h"
#include "device/cpu/strips.h"
#include "device/visible.h"
#include <omp.h>

enum { KEYS = ATTENTION_KEYS, QUERIES = ATTENTION_QUERIES };
// A multiple of WHOLE queries or keys is whole strips, and whole terms of a left factor's rows.
enum { TERM_ELEMENTS = PAIR * TERMS, WHOLE = STRIP > TERM_ELEMENTS ? STRIP : TERM_ELEMENTS };
// A running maximum does until a score exceeds it by this much, in units of log2: sums stay small.
static const float HEADROOM = 8;

// One head of one sample. Rows of E lie `qkv_stride` or `out_stride` elements apart.
typedef struct {
    int64_t sequence, size, qkv_stride, out_stride;
    int64_t keys_count, kv_stride, dq_stride; // of keys and values, and of dq
    int64_t position;                         // of query 0 among the keys
    bool continues, adds;                     // AttentionForward, AttentionBackward
    const Element *q, *k, *v;
    Element *out, *probabilities; // probabilities [S, keys] or NULL
    Element *dq, *dk, *dv;        // backward only
    const Element *dout;          // backward only
    float *stats;
    float scale, cap; // of the scores
    float unit;       // makes scores, capped where there is a cap, units of log2
    bool has_sink;    // a term more in the sum of a row, of this logarithm to base 2:
    float sink;
    // Which keys queries see (visible.h). `restricted`: some query may not see key 0, or rows go on with earlier sums.
    const AttentionShape *shape;
    Tensor first_keys;
    int64_t window, sample;
    bool restricted;
    uint64_t
        mask_element; // of the sample's mask where the head's elements, one for each two positions, begin
    Mask masks[PAIR]; // of the sample, one for each row at a time
    bool sums;        // sum_dk and sum_dv hold something already

    // These belong to the calling thread. Keys and values of the whole head, by columns (terms along the sequence) or,
    // a block at a time, transposed (terms along D).
    int64_t terms, stride, width; // of a row of D elements; these and D in whole vectors
    Term *keys, *keys_transposed, *values, *values_transposed;
    float *sum_dk, *sum_dv; // [keys, width], in TILES transposed a block of keys at a time
    // A block of queries: rows have terms along D, columns along the queries.
    Term *q_rows, *q_columns, *dout_rows, *dout_columns;
    float *scores, *gradients; // [QUERIES, KEYS], then in place terms along the queries
    Term *gradient_rows;       // terms along the keys; may be the gradients themselves
    float *rows;               // out or dq, [QUERIES, width]
    // For each query, in units of log2: its largest score so far, or (backward) log-sum-exp; and dout . out.
    float maxima[QUERIES], deltas[QUERIES];
    int64_t first[QUERIES];     // for each query the first key that it sees, where `restricted`
    float sum[QUERIES * LANES]; // of exponentials, a vector per query
} Head;

// ---- opening a head ---------------------------------------------------------------------------------------

static float *take(float **free_space, int64_t floats) {
    float *start = *free_space;
    *free_space += floats;
    return start;
}

static void open_workspace(Head *head, const AttentionBackward *p, float *space) {
    bool backward = p->dout.data;
    const CpuHeadSizes sizes = cpu_head_sizes(p->shape, backward);
    head->terms = num_terms(head->size);
    head->stride = round_up(head->terms, LANES);
    head->width = round_up(head->size, LANES);
    head->keys_transposed = take(&space, sizes.head);
    head->q_rows = take(&space, sizes.rows);
    head->scores = take(&space, sizes.scores);
    head->rows = take(&space, sizes.rows);
    if (!backward) {
        head->values = take(&space, sizes.head);
        return;
    }
    head->values_transposed = take(&space, sizes.head);
    head->keys = take(&space, sizes.head);
    head->sum_dk = take(&space, sizes.head);
    head->sum_dv = take(&space, sizes.head);
    head->q_columns = take(&space, sizes.rows);
    head->dout_rows = take(&space, sizes.rows);
    head->dout_columns = take(&space, sizes.rows);
    head->gradients = take(&space, sizes.scores);
    head->gradient_rows = PAIR == 1 ? head->gradients : take(&space, sizes.scores);
}

static void open_rules(Head *head, const AttentionBackward *p, int64_t b, int64_t h) {
    const AttentionRules *rules = &p->rules;
    head->scale = attention_scale(&p->shape, rules);
    head->cap = rules->cap;
    head->unit = rules->cap > 0 ? LOG2_E : head->scale * LOG2_E;
    head->has_sink = !head->continues && (p->sinks.data || rules->off_by_one);
    head->sink = p->sinks.data ? load_e((const Element *)p->sinks.data + h, 1)[0] * LOG2_E : 0;
    head->first_keys = p->first_key, head->shape = &p->shape, head->sample = b;
    head->window = rules->window < attention_positions(&p->shape) ? rules->window : 0;
    head->restricted = p->first_key.data || head->window || head->continues;
}

// Finds the keys and values of a call that has them in a tensor of their own.
static void open_kv(Head *head, const AttentionBackward *p, int64_t b, int64_t h) {
    const AttentionShape *shape = &p->shape;
    int64_t size = shape->head_size, group = h / (shape->heads / shape->groups);
    int64_t k = (b * shape->groups + group) * 2 * size, q = (b * shape->heads + h) * size;
    head->kv_stride = shape->batch * shape->groups * 2 * size;
    head->k = (const Element *)p->kv.data + k, head->v = head->k + size;
    if (!p->dout.data) return;
    head->dk = (Element *)p->dkv.data + k, head->dv = head->dk + size;
    head->dq = (Element *)p->dqkv.data + q, head->dq_stride = head->out_stride;
}

// Opens local head h of sample b; forward is backward without dout and dqkv, and `continues` is `adds`. `workspace` is
// the thread's.
static void head_open(Head *head, const AttentionBackward *p, float *workspace, int64_t b, int64_t h) {
    const AttentionShape *shape = &p->shape;
    int64_t size = shape->head_size, per_group = shape->heads / shape->groups, piece = b * shape->heads + h;
    int64_t width = (shape->heads + 2 * shape->groups) * size;
    int64_t group = b * width + h / per_group * (per_group + 2) * size;
    int64_t q = group + h % per_group * size, k = group + per_group * size, out = piece * size;
    const Element *qkv = p->qkv.data;
    head->sequence = shape->sequence, head->size = size;
    head->keys_count = attention_keys(shape), head->position = attention_first_position(shape);
    head->continues = p->adds && !p->dout.data, head->adds = p->adds && p->dout.data;
    head->qkv_stride = head->kv_stride = head->dq_stride = shape->batch * width;
    head->out_stride = shape->batch * shape->heads * size;
    head->q = qkv + q, head->k = qkv + k, head->v = head->k + size;
    head->out = (Element *)p->out.data + out;
    head->stats = (float *)p->stats.data + piece * shape->sequence;
    head->probabilities = NULL;
    if (p->probabilities.data)
        head->probabilities = (Element *)p->probabilities.data + piece * shape->sequence * head->keys_count;
    if (p->dout.data) {
        head->dout = (const Element *)p->dout.data + out;
        head->dq = (Element *)p->dqkv.data + q;
        head->dk = (Element *)p->dqkv.data + k;
        head->dv = head->dk + size;
    }
    if (p->kv.data) open_kv(head, p, b, h);
    open_rules(head, p, b, h);
    int64_t positions = attention_positions(shape);
    head->mask_element = (uint64_t)((shape->first_head + h) * positions * positions);
    for (int place = 0; place < PAIR; place++) {
        mask_open(&head->masks[place], &p->dropout);
        head->masks[place].sample = (uint64_t)(p->dropout.first_sample + b);
    }
    open_workspace(head, p, workspace);
}

// The keys from this one on are seen by no query of the call.
static int64_t keys_needed(const Head *head) {
    return at_most(head->position + head->sequence, head->keys_count);
}

static void pack_head_transposed(const Head *head, Term *to, const Element *x) {
    for (int64_t s = 0; s < keys_needed(head); s += KEYS) {
        int64_t rows = at_most(keys_needed(head) - s, KEYS);
        Term *block = to + s * head->stride;
        pack_transposed(block, KEYS, x + s * head->kv_stride, head->kv_stride, rows, head->size);
    }
}

static void pack_head_columns(const Head *head, Term *to, const Element *x) {
    int64_t terms = round_up(keys_needed(head), KEYS) / PAIR;
    pack_columns(to, head->width, terms, x, head->kv_stride, keys_needed(head), head->size);
}

// ---- a pair of blocks -------------------------------------------------------------------------------------

// Queries from `query` on, of which `rows` exist, in whole strips `strips` rows, against keys from `key` on. The first
// `end` rows are computed: first keys never fall along the queries, so that the other rows see none of these keys.
// `position` is that of the first query among the keys, of which there are `keys`.
typedef struct {
    int64_t query, position, key, rows, strips, end, keys;
} Blocks;

static void restrict_rows(const Head *head, Blocks *at) {
    int64_t rows = at->rows;
    while (rows > 0 && head->first[rows - 1] >= at->key + KEYS) rows--;
    at->end = rows == at->rows ? at->strips : round_up(rows, WHOLE);
}

static Blocks blocks_at(Head *head, int64_t query) {
    int64_t rows = at_most(head->sequence - query, QUERIES), strips = round_up(rows, WHOLE);
    Blocks at = {.query = query,
                 .position = head->position + query,
                 .rows = rows,
                 .strips = strips,
                 .end = strips,
                 .keys = head->keys_count};
    if (!head->restricted) return at;
    for (int64_t row = 0; row < rows; row++)
        head->first[row] =
            attention_first_key(head->first_keys, head->window, head->shape, head->sample, query + row);
    at.key = head->first[0] / KEYS * KEYS;
    restrict_rows(head, &at);
    return at;
}

// Returns false behind the last keys that the block of queries sees.
static bool sees_keys(const Blocks *at) { return at->key < at_most(at->position + at->rows, at->keys); }

static void next_keys(const Head *head, Blocks *at) {
    at->key += KEYS;
    if (head->restricted && sees_keys(at)) restrict_rows(head, at);
}

// The first row of the block of queries that sees any of the keys, or rows before it of the same strip.
static inline int64_t first_row(Blocks at) {
    return at.key > at.position ? (at.key - at.position) / WHOLE * WHOLE : 0;
}

// Returns the number of keys of the block that row `row` of the block of queries sees.
static inline int64_t keys_seen(Blocks at, int64_t row) {
    int64_t seen = at_most(at_most(at.position + row + 1, at.keys) - at.key, KEYS);
    return seen > 0 ? seen : 0;
}
// Returns the number of keys that its strip takes.
static inline int64_t keys_taken(Blocks at, int64_t strip) {
    int64_t seen = keys_seen(at, strip + STRIP - 1);
    return at_most(round_up(seen > 0 ? seen : 1, WHOLE), KEYS);
}

// scores [STRIP, KEYS] from row `strip` on = rows of queries times a transposed block.
static void strip_scores(const Head *head, Blocks at, int64_t strip, const Term *rows, const Term *transposed,
                         float *scores) {
    Left a = {rows + strip * head->terms, head->terms, 1};
    Right b = {transposed + at.key * head->stride, KEYS};
    strip_product(keys_taken(at, strip), head->terms, a, b, false, scores + strip * KEYS, KEYS);
}

// Rows [STRIP, width] of out or dq, from row `strip` on, (+)= terms along the keys, times keys or values.
static void add_strip(const Head *head, Blocks at, int64_t strip, const Term *left, int64_t stride,
                      const Term *columns) {
    Left a = {left + strip * stride, stride, 1};
    Right b = {columns + at.key / PAIR * head->width, head->width};
    strip_product(head->width, num_terms(keys_taken(at, strip)), a, b, head->restricted || at.key > 0,
                  head->rows + strip * head->width, head->width);
}

// ---- one row of scores ------------------------------------------------------------------------------------

// The greater; b where either is NaN.
static inline Floats greater(Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif __ARM_FEATURE_SVE_BITS
    return svsel_f32(svcmpgt_f32(svptrue_b32(), a, b), a, b);
#else
    return choose(a > b, a, b);
#endif
}

static inline bool any_exceeds(Floats x, float limit) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(limit), _CMP_GT_OQ);
#elif __ARM_FEATURE_SVE_BITS
    return svptest_any(svptrue_b32(), svcmpgt_n_f32(svptrue_b32(), x, limit));
#else
    Ints exceeds = x > limit;
    int32_t any = 0;
    for (int lane = 0; lane < LANES; lane++) any |= exceeds[lane];
    return any;
#endif
}

static inline Halves nearest_bf16(Floats x) {
#if defined(__AVX512BF16__)
    return (Halves)_mm512_cvtneps_pbh((__m512)x);
#else
    return narrow_bf16(x);
#endif
}

static void cap_scores(const Head *head, float *row, int64_t used) {
    float by = head->scale / head->cap;
    for (int64_t key = 0; key < used; key += LANES)
        store(row + key, LANES, hyperbolic_tangent(load(row + key, LANES) * by) * head->cap);
}

// Scores are capped, and those that the query does not see, up to the vectors that its strip takes, become -inf.
// Returns the end of those vectors.
static int64_t cover_keys(const Head *head, Blocks at, int64_t row, float *scores, int64_t taken) {
    int64_t used = round_up(taken, LANES);
    if (head->cap > 0) cap_scores(head, scores, used);
    for (int64_t key = keys_seen(at, row); key < used; key++) scores[key] = -INFINITY;
    if (!head->restricted || row >= at.rows) return used;
    int64_t unseen = at_most(head->first[row] - at.key, used);
    for (int64_t key = 0; key < unseen; key++) scores[key] = -INFINITY;
    return used;
}

// The words of mask `place` for `count` keys of a query from `key` on.
static const uint32_t *mask_of(Head *head, int place, int64_t query, int64_t key, int64_t count) {
    uint64_t index = head->mask_element + (uint64_t)attention_element(head->shape, query, key);
    return mask_span(&head->masks[place], index, count);
}

static inline Floats mask_keep(const Mask *mask, const uint32_t *words, Floats x) {
    Words w;
    memcpy(&w, words, sizeof w);
    return (Floats)((Ints)(w >= mask->threshold) & (Ints)x);
}

static void scale_row(float *row, int64_t count, float by) {
    for (int64_t i = 0; i < count; i += LANES) store(row + i, LANES, load(row + i, LANES) * by);
}

// Terms along a row that replace it from its start.
static inline void store_terms(float *row, int64_t at, Floats x) {
    if (PAIR == 1)
        store(row + at, LANES, x);
    else
        store_halves((uint16_t *)row + at, LANES, nearest_bf16(x));
}

static float greatest_lane(Floats x) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)x);
#elif __ARM_FEATURE_SVE_BITS
    return svmaxnmv_f32(svptrue_b32(), x);
#else
    float greatest[LANES];
    memcpy(greatest, &x, sizeof x);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++)
            if (greatest[lane + half] > greatest[lane]) greatest[lane] = greatest[lane + half];
    return greatest[0];
#endif
}

// exp(score - log), of scores that become units of log2 when they are multiplied by `unit`, as `log` is.
static inline Floats exponential_of_scores(const float *scores, float unit, float log) {
    return exponential_of_base_2(fused(load(scores, LANES), splat(unit), splat(-log)));
}

// Makes room for scores far above those before: what was added up under the old maximum shrinks.
static void raise_maximum(Head *head, int64_t row, float max) {
    float before = head->maxima[row];
    head->maxima[row] = max;
    if (before == -INFINITY) return;
    float factor = exponential_of_base_2(splat(before - max))[0];
    scale_row(head->sum + row * LANES, LANES, factor);
    scale_row(head->rows + row * head->width, head->width, factor);
}

// Scores of a query become dropout(exp(score - max)) but for dropout's scale, zero for keys that it does not see.
static void softmax_row(Head *head, Blocks at, int64_t row, int64_t taken) {
    float *scores = head->scores + row * KEYS, unit = head->unit;
    int64_t used = cover_keys(head, at, row, scores, taken);
    if (head->restricted && head->first[row] >= at.key + used) {
        memset(scores, 0, (size_t)used * sizeof *scores);
        return;
    }
    Floats most = load(scores, LANES);
    for (int64_t key = LANES; key < used; key += LANES) most = greater(most, load(scores + key, LANES));
    if (any_exceeds(most * unit, head->maxima[row] + HEADROOM))
        raise_maximum(head, row, unit * greatest_lane(most));
    float max = head->maxima[row];
    const uint32_t *words = mask_of(head, 0, at.query + row, at.key, used);
    Floats sum = load(head->sum + row * LANES, LANES);
    for (int64_t key = 0; key < used; key += LANES) {
        Floats e = exponential_of_scores(scores + key, unit, max);
        sum += e;
        store_terms(scores, key, mask_keep(head->masks, words + key, e));
    }
    store(head->sum + row * LANES, LANES, sum);
}

// ---- forward ----------------------------------------------------------------------------------------------

// Computes for the block's row its sum of exponentials, out, and the log of the sum.
static void finish_row(Head *head, Blocks at, int64_t row) {
    float total = sum_lanes(load(head->sum + row * LANES, LANES)), by = head->masks->scale / total;
    const float *from = head->rows + row * head->width;
    Element *to = head->out + (at.query + row) * head->out_stride;
    for (int64_t c = 0; c < head->size; c += LANES)
        store_e(to + c, head->size - c, load(from + c, LANES) * by);
    head->stats[at.query + row] = (head->maxima[row] + log2f(total)) / LOG2_E;
}

// A block of probabilities, from its scores once more.
static void keep_probabilities(const Head *head, Blocks at) {
    for (int64_t strip = first_row(at); strip < at.end; strip += STRIP)
        strip_scores(head, at, strip, head->q_rows, head->keys_transposed, head->scores);
    for (int64_t row = first_row(at); row < at_most(at.rows, at.end); row++) {
        int64_t query = at.query + row, seen = keys_seen(at, row);
        float unit = head->unit, log = head->stats[query] * LOG2_E, *scores = head->scores + row * KEYS;
        if (head->restricted || head->cap > 0)
            cover_keys(head, at, row, scores, keys_taken(at, row / STRIP * STRIP));
        Element *to = head->probabilities + query * head->keys_count + at.key;
        for (int64_t key = 0; key < seen; key += LANES)
            store_e(to + key, seen - key, exponential_of_scores(scores + key, unit, log));
    }
}

static void clear_unseen(const Head *head, Blocks at) {
    for (int64_t row = 0; row < at.rows; row++) {
        int64_t end = at.position + row + 1; // of the keys that it sees
        Element *to = head->probabilities + (at.query + row) * head->keys_count;
        memset(to + end, 0, (size_t)(head->keys_count - end) * sizeof(Element));
        if (head->restricted) memset(to, 0, (size_t)head->first[row] * sizeof(Element));
    }
}

static void pack_queries(const Head *head, Blocks at, Term *to, const Element *x, int64_t stride) {
    pack_rows(to, x + at.query * stride, stride, at.rows, head->size);
    memset(to + at.rows * head->terms, 0, (size_t)((at.strips - at.rows) * head->terms) * sizeof *to);
}

// Begins the rows and sums of a block of queries. Queries that do not see the first keys add to zeros. Those that go on
// have the result for other keys as if it were that of one.
static void open_sums(Head *head, Blocks at) {
    memset(head->sum, 0, sizeof head->sum);
    if (head->restricted) memset(head->rows, 0, (size_t)(at.strips * head->width) * sizeof *head->rows);
    for (int64_t row = 0; row < at.rows; row++) {
        head->maxima[row] = head->has_sink ? head->sink : -INFINITY;
        head->sum[row * LANES] = head->has_sink || head->continues;
        if (head->continues) head->maxima[row] = head->stats[at.query + row] * LOG2_E;
    }
    for (int64_t row = 0; row < (head->continues ? at.rows : 0); row++) {
        const Element *from = head->out + (at.query + row) * head->out_stride;
        for (int64_t c = 0; c < head->size; c += LANES)
            store(head->rows + row * head->width + c, LANES,
                  load_e(from + c, head->size - c) / head->masks->scale);
    }
}

static void block_forward(Head *head, int64_t query) {
    Blocks at = blocks_at(head, query);
    pack_queries(head, at, head->q_rows, head->q, head->qkv_stride);
    open_sums(head, at);
    for (; sees_keys(&at); next_keys(head, &at)) {
        for (int64_t strip = first_row(at); strip < at.end; strip += STRIP) {
            strip_scores(head, at, strip, head->q_rows, head->keys_transposed, head->scores);
            for (int64_t row = strip; row < at_most(at.rows, strip + STRIP); row++)
                softmax_row(head, at, row, keys_taken(at, strip));
            add_strip(head, at, strip, head->scores, KEYS, head->values);
        }
    }
    for (int64_t row = 0; row < at.rows; row++) finish_row(head, at, row);
    if (!head->probabilities) return;
    for (at = blocks_at(head, query); sees_keys(&at); next_keys(head, &at)) keep_probabilities(head, at);
    clear_unseen(head, at);
}

static float *workspace_of_thread(const Exec *exec, const AttentionBackward *p) {
    int64_t floats = cpu_head_sizes(p->shape, p->dout.data).all;
    return (float *)exec->workspace + omp_get_thread_num() * floats;
}

void CPU_NAME(cpu_attention_forward)(const Exec *exec, const AttentionForward *forward) {
    AttentionBackward p = {
        .qkv = forward->qkv, .kv = forward->kv, .out = forward->out, .stats = forward->stats};
    p.probabilities = forward->probabilities, p.shape = forward->shape, p.dropout = forward->dropout;
    p.first_key = forward->first_key, p.sinks = forward->sinks, p.rules = forward->rules;
    p.adds = forward->continues;
    int64_t heads = p.shape.heads;
#pragma omp parallel num_threads(exec->threads)
    {
        Head head;
#pragma omp for schedule(dynamic)
        for (int64_t piece = 0; piece < p.shape.batch * heads; piece++) {
            tiles_open();
            head_open(&head, &p, workspace_of_thread(exec, &p), piece / heads, piece % heads);
            pack_head_transposed(&head, head.keys_transposed, head.k);
            pack_head_columns(&head, head.values, head.v);
            for (int64_t query = 0; query < head.sequence; query += QUERIES) block_forward(&head, query);
            tiles_close();
        }
    }
}

// ---- backward ---------------------------------------------------------------------------------------------

// Loads what the rows need of the forward pass. A row beyond the sequence gets probabilities of 0.
static void open_rows(Head *head, Blocks at) {
    for (int64_t row = 0; row < at.strips; row++) {
        int64_t query = at.query + row, out = query * head->out_stride;
        bool exists = row < at.rows;
        head->maxima[row] = exists ? head->stats[query] * LOG2_E : INFINITY;
        head->deltas[row] =
            exists ? dot(head->dout + out, head->out + out, head->size) / head->masks->scale : 0;
    }
}

// Neighbours along the queries as one vector of terms.
static inline Floats pair_rows(Floats first, Floats second) {
    return (Floats)(words_of(nearest_bf16(first)) | words_of(nearest_bf16(second)) << 16);
}

static Floats kept_probabilities(const Head *head, Blocks at, int64_t row, int64_t key) {
    int64_t left = keys_seen(at, row) - key;
    if (left <= 0 || row >= at.rows) return (Floats){0};
    return load_e(head->probabilities + (at.query + row) * head->keys_count + at.key + key, left);
}

// The derivative of the cap at scores; 0 at -inf.
static inline Floats cap_slope(Floats scores, float cap) {
    Floats share = greater(scores / cap, splat(-1.0f));
    return 1.0f - share * share;
}

// With P = exp(score - stats), its dropout mask f, and dA in `gradients`: scores become P f, gradients the
// gradient of q k^T, P (f dA - delta); all but for scales, which follow at the end. PAIR rows at a time.
static void softmax_backward_rows(Head *head, Blocks at, int64_t row, int64_t taken) {
    float *scores = head->scores + row * KEYS, *gradients = head->gradients + row * KEYS;
    float unit = head->unit, cap = head->cap;
    const uint32_t *words[PAIR];
    int64_t used = 0;
    for (int i = 0; i < PAIR; i++) {
        used = cover_keys(head, at, row + i, scores + i * KEYS, taken);
        words[i] = mask_of(head, i, at.query + row + i, at.key, used);
    }
    for (int64_t key = 0; key < used; key += LANES) {
        Floats p[PAIR], d[PAIR];
        for (int i = 0; i < PAIR; i++) {
            p[i] = head->probabilities
                       ? kept_probabilities(head, at, row + i, key)
                       : exponential_of_scores(scores + i * KEYS + key, unit, head->maxima[row + i]);
            Floats dp = mask_keep(head->masks, words[i] + key, load(gradients + i * KEYS + key, LANES));
            d[i] = p[i] * (dp - head->deltas[row + i]);
            if (cap > 0) d[i] *= cap_slope(load(scores + i * KEYS + key, LANES), cap);
            p[i] = mask_keep(head->masks, words[i] + key, p[i]);
            store_terms(head->gradient_rows + (row + i) * (KEYS / PAIR), key, d[i]);
        }
        store(scores + key, LANES, PAIR == 1 ? p[0] : pair_rows(p[0], p[PAIR - 1]));
        store(gradients + key, LANES, PAIR == 1 ? d[0] : pair_rows(d[0], d[PAIR - 1]));
    }
    for (int64_t key = used; TILES && key < KEYS; key += LANES) { // columns of a right factor
        store(scores + key, LANES, (Floats){0});
        store(gradients + key, LANES, (Floats){0});
    }
}

// sums [keys, width] += the transposed of `left`, which has terms along the queries, times rows of queries. A
// tile's left factor needs its terms side by side: there it is the transposed of all this that is added.
static void add_keys(const Head *head, Blocks at, const Term *left, const Term *columns, float *sums) {
    int64_t keys = keys_taken(at, at.end - STRIP);
    for (int64_t strip = 0; !TILES && strip < keys; strip += STRIP) {
        int64_t key = at.key + strip,
                first =
                    key > at.position ? (key - at.position) / STRIP * STRIP : 0; // query that sees these keys
        Left a = {left + first * KEYS + strip, 1, PAIR * KEYS};
        Right b = {columns + first / PAIR * head->width, head->width};
        strip_product(head->width, (at.end - first) / PAIR, a, b, head->sums, sums + key * head->width,
                      head->width);
    }
    for (int64_t strip = 0; TILES && strip < head->width; strip += STRIP) {
        int64_t first = first_row(at), terms = at.strips / PAIR;
        Left a = {columns + strip * terms + first / PAIR, terms, 1};
        Right b = {left + first * KEYS, PAIR * KEYS};
        strip_product(keys, (at.end - first) / PAIR, a, b, head->sums,
                      sums + at.key * head->width + strip * KEYS, KEYS);
    }
}

static void round_rows(Element *to, int64_t stride, const float *from, const Head *head, int64_t rows,
                       float by) {
    for (int64_t row = 0; row < rows; row++, to += stride, from += head->width)
        for (int64_t c = 0; c < head->size; c += LANES)
            store_e(to + c, head->size - c, load(from + c, LANES) * by);
}

// to += the sums times `by`.
static void add_sums(Element *to, int64_t stride, const float *from, const Head *head, int64_t rows,
                     float by) {
    for (int64_t row = 0; row < rows; row++, to += stride, from += head->width)
        for (int64_t c = 0; c < head->size; c += LANES) {
            Floats before = load_e(to + c, head->size - c);
            store_e(to + c, head->size - c, before + load(from + c, LANES) * by);
        }
}

// to [S, D] = the sums times `by`; in a tensor of its own they are added to it.
static void round_sums(Element *to, const float *sums, const Head *head, float by, bool adds) {
    for (int64_t key = 0; key < keys_needed(head); key += KEYS, sums += KEYS * head->width) {
        if (TILES) transpose(head->rows, head->width, sums, KEYS, head->width, KEYS);
        (adds ? add_sums : round_rows)(to + key * head->kv_stride, head->kv_stride, TILES ? head->rows : sums,
                                       head, at_most(keys_needed(head) - key, KEYS), by);
    }
}

static void pack_query_columns(const Head *head, Blocks at, Term *to, const Element *x, int64_t stride) {
    (TILES ? pack_columns_transposed : pack_columns)(to, head->width, at.strips / PAIR, x + at.query * stride,
                                                     stride, at.rows, head->size);
}

// Adds to the sums of dk and dv of all keys that the block sees. The first block to come is the last one,
// which sees all keys unless they are restricted. dq may lie where q was: it is written when q is no longer needed.
static void block_backward(Head *head, int64_t query) {
    Blocks at = blocks_at(head, query);
    pack_queries(head, at, head->q_rows, head->q, head->qkv_stride);
    pack_queries(head, at, head->dout_rows, head->dout, head->out_stride);
    pack_query_columns(head, at, head->q_columns, head->q, head->qkv_stride);
    pack_query_columns(head, at, head->dout_columns, head->dout, head->out_stride);
    open_rows(head, at);
    if (head->restricted) memset(head->rows, 0, (size_t)(at.strips * head->width) * sizeof *head->rows);
    for (; sees_keys(&at); next_keys(head, &at)) {
        for (int64_t strip = first_row(at); strip < at.end; strip += STRIP) {
            if (!head->probabilities || head->cap > 0)
                strip_scores(head, at, strip, head->q_rows, head->keys_transposed, head->scores);
            strip_scores(head, at, strip, head->dout_rows, head->values_transposed, head->gradients);
            for (int64_t row = strip; row < strip + STRIP; row += PAIR)
                softmax_backward_rows(head, at, row, keys_taken(at, strip));
            add_strip(head, at, strip, head->gradient_rows, KEYS / PAIR, head->keys);
        }
        add_keys(head, at, head->scores, head->dout_columns, head->sum_dv);
        add_keys(head, at, head->gradients, head->q_columns, head->sum_dk);
    }
    head->sums = true;
    (head->adds ? add_sums : round_rows)(head->dq + query * head->dq_stride, head->dq_stride, head->rows,
                                         head, at.rows, head->scale * head->masks->scale);
}

static void clear_key_sums(const Head *head) {
    size_t bytes = (size_t)(round_up(keys_needed(head), KEYS) * head->width) * sizeof(float);
    memset(head->sum_dk, 0, bytes);
    memset(head->sum_dv, 0, bytes);
}

// The gradient of a head's sink: the sum over queries of -exp(sink - log-sum-exp) dout . out.
static void sink_backward(const AttentionBackward *p, int64_t h) {
    const AttentionShape *s = &p->shape;
    const Element *dout = p->dout.data, *out = p->out.data;
    float sink = load_e((const Element *)p->sinks.data + h, 1)[0];
    double sum = 0;
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t query = 0; query < s->sequence; query++) {
            int64_t at = ((query * s->batch + b) * s->heads + h) * s->head_size;
            float stats = ((const float *)p->stats.data)[(b * s->heads + h) * s->sequence + query];
            float share = exponential(splat(sink - stats))[0];
            sum -= (double)share * (double)dot(dout + at, out + at, s->head_size);
        }
    ((float *)p->dsinks.data)[h] += (float)sum;
}

// The heads of a group add to one dk and dv, one after the other.
static void group_backward(const AttentionBackward *p, float *workspace, int64_t b, int64_t group) {
    int64_t per_group = p->shape.heads / p->shape.groups;
    Head head;
    tiles_open();
    for (int64_t h = 0; h < per_group; h++) {
        head_open(&head, p, workspace, b, group * per_group + h);
        head.sums = h > 0 || head.restricted;
        if (h == 0 && head.restricted) clear_key_sums(&head);
        if (h == 0) {
            pack_head_transposed(&head, head.keys_transposed, head.k);
            pack_head_transposed(&head, head.values_transposed, head.v);
            pack_head_columns(&head, head.keys, head.k);
        }
        for (int64_t query = (head.sequence - 1) / QUERIES * QUERIES; query >= 0; query -= QUERIES)
            block_backward(&head, query);
    }
    tiles_close();
    round_sums(head.dk, head.sum_dk, &head, head.scale * head.masks->scale, p->dkv.data);
    round_sums(head.dv, head.sum_dv, &head, head.masks->scale, p->dkv.data);
}

void CPU_NAME(cpu_attention_backward)(const Exec *exec, const AttentionBackward *p) {
    int64_t groups = p->shape.groups;
#pragma omp parallel num_threads(exec->threads)
    {
#pragma omp for schedule(dynamic)
        for (int64_t piece = 0; piece < p->shape.batch * groups; piece++)
            group_backward(p, workspace_of_thread(exec, p), piece / groups, piece % groups);
#pragma omp for
        for (int64_t h = 0; h < (p->dsinks.data ? p->shape.heads : 0); h++) sink_backward(p, h);
    }
}
