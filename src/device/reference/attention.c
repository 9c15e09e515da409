// Defines self-attention: one head of one sample at a time. The gradients need whole matrices of all queries and keys,
// which lie in the workspace.
//   scores = c q k^T, of the keys that a query sees, with a cap C tanh(scores / C);  P = softmax(scores), with a
//   sink's exp(z) in the denominator;  A = P * mask / (1 - p);  out = A v
//   dA = dout v^T;  dv = A^T dout;  dP = dA * mask / (1 - p);  dscores = P (dP - sum_k P dP), with a cap times
//   1 - (scores / C)^2;  dq = c dscores k, dk = c dscores^T q;  dz = -exp(z - log-sum-exp) sum_k P dP
#include "device/reference/reference.h"
#include "device/visible.h"
#include <math.h>

// One query head of one sample; it shares keys and values with the other heads of its group.
typedef struct {
    const AttentionShape *shape;
    const AttentionRules *rules;
    Tensor first_key, sinks;
    const Dropout *dropout;
    Tensor qkv, kv; // kv: keys and values; absent: those of qkv
    Tensor stats;   // of keys of other calls, or absent
    int64_t b, h;
} Head;

// A query is a row of the call; it sees the keys from first_key up to end_of_keys.
static int64_t end_of_keys(const Head *head, int64_t query) {
    return attention_end_of_keys(head->shape, query);
}

static int64_t first_key(const Head *head, int64_t query) {
    return attention_first_key(head->first_key, head->rules->window, head->shape, head->b, query);
}

static double scale_of(const Head *head) {
    return head->rules->scale > 0 ? (double)head->rules->scale : 1 / sqrt((double)head->shape->head_size);
}

static bool has_sink(const Head *head) { return head->sinks.data || head->rules->off_by_one; }
static double sink_of(const Head *head) { return head->sinks.data ? load(head->sinks, head->h) : 0; }

// Returns the score of a product q.k.
static double score_of(const Head *head, double product) {
    double size = (double)head->shape->head_size, scale = (double)head->rules->scale;
    double score = scale > 0 ? product * scale : product / sqrt(size), cap = (double)head->rules->cap;
    return cap > 0 ? cap * tanh(score / cap) : score;
}

// Returns the derivative of the cap at a score.
static double slope_of(const Head *head, double score) {
    double share = head->rules->cap > 0 ? score / (double)head->rules->cap : 0;
    return 1 - share * share;
}

// Heads side by side in a group of qkv: its query heads, then its key (number per_group) and its value (+ 1).
static int64_t per_group(const AttentionShape *shape) { return shape->heads / shape->groups; }

// Returns the index in qkv of element (s, d) of head `part` of the group.
static int64_t group_at(const Head *head, int64_t part, int64_t s, int64_t d) {
    const AttentionShape *shape = head->shape;
    int64_t parts = per_group(shape) + 2, row = s * shape->batch + head->b;
    int64_t column = (head->h / per_group(shape) * parts + part) * shape->head_size + d;
    return row * shape->groups * parts * shape->head_size + column;
}

static int64_t query_at(const Head *head, int64_t s, int64_t d) {
    return group_at(head, head->h % per_group(head->shape), s, d);
}

static int64_t key_at(const Head *head, int64_t s, int64_t d) {
    return group_at(head, per_group(head->shape), s, d);
}

static int64_t value_at(const Head *head, int64_t s, int64_t d) {
    return group_at(head, per_group(head->shape) + 1, s, d);
}

// Returns the index in kv of element (s, d) of the group's key (part 0) or value (1).
static int64_t kv_at(const Head *head, int64_t part, int64_t s, int64_t d) {
    const AttentionShape *shape = head->shape;
    int64_t row = s * shape->batch + head->b, group = head->h / per_group(shape);
    return ((row * shape->groups + group) * 2 + part) * shape->head_size + d;
}

static double key_of(const Head *head, int64_t s, int64_t d) {
    return head->kv.data ? load(head->kv, kv_at(head, 0, s, d)) : load(head->qkv, key_at(head, s, d));
}

static double value_of(const Head *head, int64_t s, int64_t d) {
    return head->kv.data ? load(head->kv, kv_at(head, 1, s, d)) : load(head->qkv, value_at(head, s, d));
}

static int64_t out_at(const Head *head, int64_t s, int64_t d) {
    const AttentionShape *shape = head->shape;
    int64_t row = s * shape->batch + head->b;
    return (row * shape->heads + head->h) * shape->head_size + d;
}

// Returns the number of row `query` of the head's P among all rows; stats have an element for each.
static int64_t row_at(const Head *head, int64_t query) {
    return (head->b * head->shape->heads + head->h) * head->shape->sequence + query;
}

static double factor_at(const Head *head, int64_t query, int64_t key) {
    int64_t positions = attention_positions(head->shape), h = head->shape->first_head + head->h;
    return reference_dropout_factor(*head->dropout, head->dropout->first_sample + head->b,
                                    h * positions * positions + attention_element(head->shape, query, key));
}

// ---- rotary position embedding ----------------------------------------------------------------------------

static void rotate_head(const Rotary *p, const Head *head, int64_t part, int64_t s) {
    int64_t half = p->table.cols / 2;
    for (int64_t i = 0; i < half; i++) {
        double cosine = load(p->table, s * 2 * half + i), sine = load(p->table, s * 2 * half + half + i);
        if (p->inverse) sine = -sine;
        int64_t first = group_at(head, part, s, i), second = group_at(head, part, s, i + half);
        double x1 = load(p->qkv, first), x2 = load(p->qkv, second);
        store(p->qkv, first, x1 * cosine - x2 * sine);
        store(p->qkv, second, x2 * cosine + x1 * sine);
    }
}

void reference_rotary(const Exec *exec, const Rotary *p) {
    (void)exec;
    int64_t per = per_group(&p->shape);
    Head head = {.shape = &p->shape}; // the first of each group stands for it
    for (head.b = 0; head.b < p->shape.batch; head.b++)
        for (head.h = 0; head.h < p->shape.heads; head.h += per)
            for (int64_t i = 0; i < (per + 1) * p->shape.sequence; i++)
                rotate_head(p, &head, i % (per + 1), i / (per + 1));
}

// ---- forward ----------------------------------------------------------------------------------------------

// Row `query` of the scores.
static void score_row(const Head *head, int64_t query, double *row) {
    for (int64_t key = first_key(head, query); key < end_of_keys(head, query); key++) {
        double product = 0;
        for (int64_t d = 0; d < head->shape->head_size; d++)
            product += load(head->qkv, query_at(head, query, d)) * key_of(head, key, d);
        row[key] = score_of(head, product);
    }
}

// A row of scores of keys [first, end) becomes one of P. Returns the log of the sum of exp(scores), in which a term
// more is exp(other).
static double softmax(double other, double *row, int64_t first, int64_t end) {
    double max = other, sum = 0;
    for (int64_t key = first; key < end; key++) max = fmax(max, row[key]);
    if (other > -INFINITY) sum = exp(other - max);
    for (int64_t key = first; key < end; key++) sum += row[key] = exp(row[key] - max);
    for (int64_t key = first; key < end; key++) row[key] /= sum;
    return max + log(sum);
}

// The sink, or what other calls have found.
static double other_term(const Head *head, int64_t query) {
    if (head->stats.data) return load(head->stats, row_at(head, query));
    return has_sink(head) ? sink_of(head) : -INFINITY;
}

// Row `query` of P. Returns the log of the sum of exp(scores).
static double softmax_row(const Head *head, int64_t query, double *row) {
    score_row(head, query, row);
    return softmax(other_term(head, query), row, first_key(head, query), end_of_keys(head, query));
}

static void store_probabilities(const Head *head, Tensor probabilities, int64_t query, const double *row) {
    int64_t keys = attention_keys(head->shape), first = first_key(head, query);
    for (int64_t key = 0; key < keys; key++)
        store(probabilities, row_at(head, query) * keys + key,
              key >= first && key < end_of_keys(head, query) ? row[key] : 0);
}

static void head_forward(const Head *head, const AttentionForward *p, double *row) {
    for (int64_t query = 0; query < head->shape->sequence; query++) {
        int64_t first = first_key(head, query), end = end_of_keys(head, query);
        double before = other_term(head, query), now = softmax_row(head, query, row);
        store(p->stats, row_at(head, query), now);
        if (p->probabilities.data) store_probabilities(head, p->probabilities, query, row);
        for (int64_t key = first; key < end; key++) row[key] *= factor_at(head, query, key);
        for (int64_t d = 0; d < head->shape->head_size; d++) {
            double sum = p->continues ? exp(before - now) * load(p->out, out_at(head, query, d)) : 0;
            for (int64_t key = first; key < end; key++) sum += row[key] * value_of(head, key, d);
            store(p->out, out_at(head, query, d), sum);
        }
    }
}

// Other backends leave out whole blocks by what the first keys promise.
static void check_first_keys(const AttentionForward *p) {
    const int32_t *keys = p->first_key.data;
    int64_t batch = p->shape.batch;
    for (int64_t i = 0; keys && i < batch * p->shape.sequence; i++)
        CHECK(keys[i] >= (i < batch ? 0 : keys[i - batch]) && keys[i] <= p->shape.first_position + i / batch,
              "attention_forward: the first key of row %lld is %d", (long long)i, keys[i]);
}

void reference_attention_forward(const Exec *exec, const AttentionForward *p) {
    check_first_keys(p);
    Head head = {&p->shape, &p->rules, p->first_key, p->sinks, &p->dropout, p->qkv, p->kv, {0}, 0, 0};
    if (p->continues) head.stats = p->stats;
    for (head.b = 0; head.b < p->shape.batch; head.b++)
        for (head.h = 0; head.h < p->shape.heads; head.h++) head_forward(&head, p, exec->workspace);
}

// ---- forward with a cache ---------------------------------------------------------------------------------

// Returns the index in the cache of element (position, d) of the head's key or value.
static int64_t cache_at(const Head *head, int64_t position, int64_t d) {
    const AttentionShape *shape = head->shape;
    int64_t row = position * shape->batch + head->b;
    return (row * shape->groups + head->h / per_group(shape)) * shape->head_size + d;
}

// Every head of a group stores the same values.
static void remember_head(const Head *head, const AttentionCached *p) {
    int64_t size = head->shape->head_size;
    for (int64_t i = 0; i < head->shape->sequence * size; i++) {
        int64_t s = i / size, d = i % size, at = cache_at(head, p->position + s, d);
        store(p->keys, at, load(p->qkv, key_at(head, s, d)));
        store(p->values, at, load(p->qkv, value_at(head, s, d)));
    }
}

// The row of P of a new query at `position`.
static void cached_softmax_row(const Head *head, const AttentionCached *p, int64_t query, int64_t position,
                               double *row) {
    int64_t first = first_key(head, position);
    for (int64_t key = first; key <= position; key++) {
        double product = 0;
        for (int64_t d = 0; d < head->shape->head_size; d++)
            product += load(p->qkv, query_at(head, query, d)) * load(p->keys, cache_at(head, key, d));
        row[key] = score_of(head, product);
    }
    softmax(has_sink(head) ? sink_of(head) : -INFINITY, row, first, position + 1);
}

static void cached_head(const Head *head, const AttentionCached *p, double *row) {
    remember_head(head, p);
    for (int64_t query = 0; query < head->shape->sequence; query++) {
        int64_t position = p->position + query;
        cached_softmax_row(head, p, query, position, row);
        for (int64_t d = 0; d < head->shape->head_size; d++) {
            double sum = 0;
            for (int64_t key = first_key(head, position); key <= position; key++)
                sum += row[key] * load(p->values, cache_at(head, key, d));
            store(p->out, out_at(head, query, d), sum);
        }
    }
}

void reference_attention_cached(const Exec *exec, const AttentionCached *p) {
    Head head = {.shape = &p->shape, .rules = &p->rules, .sinks = p->sinks};
    for (head.b = 0; head.b < p->shape.batch; head.b++)
        for (head.h = 0; head.h < p->shape.heads; head.h++) cached_head(&head, p, exec->workspace);
}

// ---- backward ---------------------------------------------------------------------------------------------

// The backward of a group keeps these in the workspace. The gradients reach dqkv, which may be qkv, when they
// are complete: a key's is a sum over the group's heads, and each head still needs the keys. K: keys.
typedef struct {
    double *weights, *dscores; // [S, K] of one head: A and the gradient of the scores
    double *scores;            // a row of them, [K]
    double *gradients;         // of the group's queries, [heads of the group, S, D]
    double *key_gradients;     // of its key and its value, [2, K, D]
} Scratch;

static double *gradient_at(const Head *head, const Scratch *scratch, int64_t part, int64_t s, int64_t d) {
    return &scratch->gradients[(part * head->shape->sequence + s) * head->shape->head_size + d];
}

static double *key_gradient_at(const Head *head, const Scratch *scratch, int64_t part, int64_t s, int64_t d) {
    return &scratch->key_gradients[(part * attention_keys(head->shape) + s) * head->shape->head_size + d];
}

// Row `query` of P: computed again, read where it was stored, or found by the statistics of more keys than there are.
// Returns the log of the sum of exp(scores).
static double probability_row(const Head *head, const AttentionBackward *p, int64_t query, double *row) {
    double sum = load(p->stats, row_at(head, query));
    if (!p->probabilities.data && !p->shape.kept) return softmax_row(head, query, row);
    if (p->shape.kept) score_row(head, query, row);
    for (int64_t key = first_key(head, query); key < end_of_keys(head, query); key++)
        row[key] = p->shape.kept
                       ? exp(row[key] - sum)
                       : load(p->probabilities, row_at(head, query) * attention_keys(head->shape) + key);
    return sum;
}

// dout . out of a query, which is the sum of P dP over all keys, of other calls too.
static double gradient_of_out(const Head *head, const AttentionBackward *p, int64_t query) {
    double dot = 0;
    for (int64_t d = 0; d < head->shape->head_size; d++)
        dot += load(p->dout, out_at(head, query, d)) * load(p->out, out_at(head, query, d));
    return dot;
}

// Row `query` of A (over P, in place in `weights`) and of dscores. Returns the sum of P dP.
static double score_gradients(const Head *head, const AttentionBackward *p, int64_t query, double *weights,
                              double *dscores) {
    double dot = 0;
    int64_t first = first_key(head, query), end = end_of_keys(head, query);
    for (int64_t key = first; key < end; key++) {
        double sum = 0;
        for (int64_t d = 0; d < head->shape->head_size; d++)
            sum += load(p->dout, out_at(head, query, d)) * value_of(head, key, d);
        dscores[key] = sum * factor_at(head, query, key);
        dot += weights[key] * dscores[key];
    }
    if (p->shape.kept) dot = gradient_of_out(head, p, query);
    for (int64_t key = first; key < end; key++) {
        dscores[key] = weights[key] * (dscores[key] - dot);
        weights[key] *= factor_at(head, query, key);
    }
    return dot;
}

// Multiplies row `query` of dscores by the slopes of the cap. `scores` holds a row and is overwritten.
static void cap_gradients(const Head *head, int64_t query, double *scores, double *dscores) {
    if (head->rules->cap == 0) return;
    score_row(head, query, scores);
    for (int64_t key = first_key(head, query); key < end_of_keys(head, query); key++)
        dscores[key] *= slope_of(head, scores[key]);
}

// Adds the head's part to element d of the gradient of a query, a sum over the keys that it sees.
static void add_query_gradient(const Head *head, const Scratch *scratch, int64_t query, int64_t d) {
    double dq = 0;
    for (int64_t key = first_key(head, query); key < end_of_keys(head, query); key++)
        dq += scratch->dscores[query * attention_keys(head->shape) + key] * key_of(head, key, d);
    *gradient_at(head, scratch, head->h % per_group(head->shape), query, d) += scale_of(head) * dq;
}

// Adds the head's part to element d of the gradients of a key and its value, sums over the queries that see it.
static void add_key_gradients(const Head *head, const AttentionBackward *p, const Scratch *scratch,
                              int64_t key, int64_t d) {
    int64_t keys = attention_keys(head->shape), before = key - attention_first_position(head->shape);
    double dk = 0, dv = 0;
    for (int64_t query = before > 0 ? before : 0;
         query < head->shape->sequence && first_key(head, query) <= key; query++) {
        dk += scratch->dscores[query * keys + key] * load(p->qkv, query_at(head, query, d));
        dv += scratch->weights[query * keys + key] * load(p->dout, out_at(head, query, d));
    }
    *key_gradient_at(head, scratch, 0, key, d) += scale_of(head) * dk;
    *key_gradient_at(head, scratch, 1, key, d) += dv;
}

static void head_backward(const Head *head, const AttentionBackward *p, const Scratch *scratch) {
    int64_t sequence = head->shape->sequence, size = head->shape->head_size,
            keys = attention_keys(head->shape);
    double dz = 0;
    for (int64_t query = 0; query < sequence; query++) {
        double *weights = scratch->weights + query * keys, *dscores = scratch->dscores + query * keys;
        double sum = probability_row(head, p, query, weights);
        double dot = score_gradients(head, p, query, weights, dscores);
        cap_gradients(head, query, scratch->scores, dscores);
        if (p->dsinks.data) dz -= exp(sink_of(head) - sum) * dot;
    }
    if (p->dsinks.data) store(p->dsinks, head->h, load(p->dsinks, head->h) + dz);
    for (int64_t i = 0; i < sequence * size; i++) add_query_gradient(head, scratch, i / size, i % size);
    for (int64_t i = 0; i < keys * size; i++) add_key_gradients(head, p, scratch, i / size, i % size);
}

static void store_query_gradient(const Head *head, const AttentionBackward *p, int64_t s, int64_t d,
                                 double x) {
    int64_t at = p->dkv.data ? out_at(head, s, d) : query_at(head, s, d);
    store(p->dqkv, at, p->adds ? load(p->dqkv, at) + x : x);
}

static void store_key_gradient(const Head *head, const AttentionBackward *p, int64_t part, int64_t s,
                               int64_t d, double x) {
    int64_t at = kv_at(head, part, s, d);
    if (p->dkv.data)
        store(p->dkv, at, load(p->dkv, at) + x);
    else
        store(p->dqkv, group_at(head, per_group(head->shape) + part, s, d), x);
}

// `head` is the group's first.
static void group_backward(Head head, const AttentionBackward *p, const Scratch *scratch) {
    int64_t queries = p->shape.sequence * p->shape.head_size,
            keys = attention_keys(&p->shape) * p->shape.head_size;
    int64_t size = p->shape.head_size, per = per_group(&p->shape), first = head.h;
    for (int64_t i = 0; i < per * queries; i++) scratch->gradients[i] = 0;
    for (int64_t i = 0; i < 2 * keys; i++) scratch->key_gradients[i] = 0;
    for (; head.h < first + per; head.h++) head_backward(&head, p, scratch);
    for (int64_t i = 0; i < per * queries; i++) {
        head.h = first + i / queries;
        store_query_gradient(&head, p, i % queries / size, i % size, scratch->gradients[i]);
    }
    for (int64_t i = 0; i < 2 * keys; i++)
        store_key_gradient(&head, p, i / keys, i % keys / size, i % size, scratch->key_gradients[i]);
}

void reference_attention_backward(const Exec *exec, const AttentionBackward *p) {
    int64_t keys = attention_keys(&p->shape), all = p->shape.sequence * keys;
    double *workspace = exec->workspace;
    Scratch scratch = {.weights = workspace, .dscores = workspace + all, .scores = workspace + 2 * all};
    scratch.key_gradients = scratch.scores + keys;
    scratch.gradients = scratch.key_gradients + 2 * keys * p->shape.head_size;
    Head head = {&p->shape, &p->rules, p->first_key, p->sinks, &p->dropout, p->qkv, p->kv, {0}, 0, 0};
    for (head.b = 0; head.b < p->shape.batch; head.b++)
        for (head.h = 0; head.h < p->shape.heads; head.h += per_group(&p->shape))
            group_backward(head, p, &scratch);
}

// ---- workspace --------------------------------------------------------------------------------------------

size_t reference_attention_workspace_bytes(DeviceOp op, const void *args) {
    if (op == OP_ATTENTION_FORWARD)
        return (size_t)attention_keys(&((const AttentionForward *)args)->shape) * sizeof(double);
    if (op == OP_ATTENTION_CACHED) {
        const AttentionCached *cached = args;
        return (size_t)(cached->position + cached->shape.sequence) * sizeof(double);
    }
    if (op != OP_ATTENTION_BACKWARD) return 0;
    AttentionShape s = ((const AttentionBackward *)args)->shape;
    int64_t keys = attention_keys(&s), rows = per_group(&s) * s.sequence + 2 * keys;
    return (size_t)((2 * s.sequence + 1) * keys + rows * s.head_size) * sizeof(double);
}
