// Routers, and rows ordered by experts, of one instruction set and element type. A thread treats whole rows of tokens
// or pairs, or whole samples, in one order.
#include "device/choice.h"
#include "device/cpu/cpu.h"
#include "device/cpu/vector.h"
#include <omp.h>

static Element *row_of(Tensor x, int64_t row) { return (Element *)x.data + row * x.cols; }
static float *floats_of(Tensor x, int64_t row) { return (float *)x.data + row * x.cols; }
static int32_t *ints_of(Tensor x, int64_t row) { return (int32_t *)x.data + row * x.cols; }

// ---- the router -------------------------------------------------------------------------------------------

// Of one token.
typedef struct {
    int n;               // E
    const float *logits; //
    float log_sum;       // log of the sum of exp(logits)
    float sum;           // of the scores
    float softmax[MAX_EXPERTS], scores[MAX_EXPERTS];
} Scores;

static float sum_of(const float *x, int64_t n) {
    Floats sum = {0};
    for (int64_t i = 0; i < n; i += LANES) sum = sum + load(x + i, n - i);
    return sum_lanes(sum);
}

// exp(logits - max), not divided by their sum, which is returned.
static float exponentials(const float *logits, int64_t n, float max, float *to) {
    for (int64_t i = 0; i < n; i += LANES) store(to + i, n - i, exponential(load(logits + i, n - i) - max));
    return sum_of(to, n);
}

static float largest_of(const float *x, int64_t n) {
    float max = -INFINITY;
    for (int64_t i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
    return max;
}

static bool uses_scores(const RouterRules *rules) { return rules->sigmoid || rules->pre_softmax; }

// The logits, and where they are needed the rest.
static void find_scores(const RouterRules *rules, Tensor logits, int64_t row, bool needed, Scores *s) {
    s->n = (int)logits.cols;
    s->logits = floats_of(logits, row);
    if (!needed) return;
    float max = largest_of(s->logits, s->n), sum = exponentials(s->logits, s->n, max, s->softmax);
    s->log_sum = max + logf(sum);
    for (int64_t i = 0; i < s->n; i += LANES) {
        int64_t left = s->n - i;
        Floats x = load(s->logits + i, left), share = load(s->softmax + i, left) / sum;
        Floats low = choose(x < -88.0f, splat(-88.0f), x);
        store(s->softmax + i, left, share);
        store(s->scores + i, left, rules->sigmoid ? 1.0f / (1.0f + exponential(-low)) : share);
    }
    s->sum = sum_of(s->scores, s->n);
}

static void choose_by(const RouterForward *p, const Scores *s, int32_t *chosen) {
    const RouterRules *rules = &p->rules;
    const float *bias = p->bias.data;
    double values[MAX_EXPERTS];
    bool by_score = rules->sigmoid ? bias || rules->groups : rules->pre_softmax && rules->groups;
    for (int i = 0; i < s->n; i++)
        values[i] = (double)(by_score ? s->scores[i] + (bias ? bias[i] : 0) : s->logits[i]);
    choose_experts(rules, s->n, values, chosen);
}

// The weights of the chosen experts, without the factor; returns the sum of their scores.
static float find_weights(const RouterRules *rules, const Scores *s, const int32_t *chosen,
                          float weights[MAX_TOPK]) {
    float own[MAX_TOPK] = {0}, sum = 0;
    int k = rules->topk;
    bool by_score = uses_scores(rules);
    for (int j = 0; j < k; j++) own[j] = (by_score ? s->scores : s->logits)[chosen[j]];
    if (by_score) memcpy(weights, own, (size_t)k * sizeof *own);
    if (!by_score) exponentials(own, k, largest_of(own, k), weights);
    for (int j = 0; j < k; j++) sum += weights[j];
    if (rules->sigmoid ? k == 1 : rules->pre_softmax) return sum;
    if (rules->sigmoid) sum += 1e-20f;
    for (int j = 0; j < k; j++) weights[j] /= sum;
    return sum;
}

void CPU_NAME(cpu_router_forward)(const Exec *exec, const RouterForward *p) {
    int k = p->rules.topk;
    float factor = router_scale(&p->rules);
#pragma omp parallel for num_threads(cpu_team(exec, k *tensor_count(p->logits))) schedule(static)
    for (int64_t row = 0; row < p->logits.rows; row++) {
        Scores s;
        float weights[MAX_TOPK];
        find_scores(&p->rules, p->logits, row, uses_scores(&p->rules), &s);
        choose_by(p, &s, ints_of(p->experts, row));
        find_weights(&p->rules, &s, ints_of(p->experts, row), weights);
        for (int j = 0; j < k; j++) floats_of(p->weights, row)[j] = factor * weights[j];
    }
}

static void add_row(const RouterSums *p, int64_t row, int64_t sample) {
    float *counts = floats_of(p->counts, sample), *sums = floats_of(p->sums, sample);
    double values[MAX_EXPERTS];
    int32_t chosen[MAX_TOPK];
    Scores s;
    find_scores(&p->rules, p->logits, row, true, &s);
    for (int i = 0; i < s.n; i++) values[i] = (double)s.logits[i];
    choose_largest(values, s.n, p->rules.topk, chosen);
    for (int j = 0; j < p->rules.topk; j++) counts[chosen[j]] += 1;
    for (int64_t i = 0; i < s.n; i += LANES) {
        Floats share = load(s.scores + i, s.n - i) / s.sum;
        store(sums + i, s.n - i, load(sums + i, s.n - i) + share);
    }
    sums[s.n] += s.log_sum * s.log_sum;
}

void CPU_NAME(cpu_router_sums)(const Exec *exec, const RouterSums *p) {
    int64_t samples = p->counts.rows;
    memset(p->counts.data, 0, tensor_bytes(p->counts));
    memset(p->sums.data, 0, tensor_bytes(p->sums));
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->logits))) schedule(static)
    for (int64_t b = 0; b < samples; b++)
        for (int64_t row = b; row < p->logits.rows; row += samples) add_row(p, row, b);
}

static void weights_gradient(const RouterBackward *p, const Scores *s, int64_t row, float *dlogits) {
    const RouterRules *rules = &p->rules;
    const int32_t *chosen = ints_of(p->experts, row);
    const float *dweights = floats_of(p->dweights, row);
    float weights[MAX_TOPK], inner = 0, factor = router_scale(rules);
    float sum = find_weights(rules, s, chosen, weights);
    bool single = rules->sigmoid && rules->topk == 1;
    for (int j = 0; j < rules->topk; j++) inner += factor * dweights[j] * weights[j];
    if (!rules->sigmoid && rules->pre_softmax) {
        for (int i = 0; i < s->n; i++) dlogits[i] -= s->scores[i] * inner;
        for (int j = 0; j < rules->topk; j++) dlogits[chosen[j]] += weights[j] * (factor * dweights[j]);
        return;
    }
    for (int j = 0; j < rules->topk; j++) {
        float score = s->scores[chosen[j]], d = factor * dweights[j];
        if (rules->sigmoid)
            dlogits[chosen[j]] += (single ? d : (d - inner) / sum) * (score * (1 - score));
        else
            dlogits[chosen[j]] += weights[j] * (d - inner);
    }
}

static void balance_gradient(const RouterBackward *p, const Scores *s, int64_t row, float *dlogits) {
    const float *counts = floats_of(p->counts, row % p->counts.rows);
    float inner = 0;
    for (int i = 0; i < s->n; i++) inner += p->balance * counts[i] * (s->scores[i] / s->sum);
    for (int i = 0; i < s->n; i++) {
        float d = (p->balance * counts[i] - inner) / s->sum;
        dlogits[i] += p->rules.sigmoid ? d * (s->scores[i] * (1 - s->scores[i])) : d * s->scores[i];
    }
}

void CPU_NAME(cpu_router_backward)(const Exec *exec, const RouterBackward *p) {
    bool has_losses = p->counts.data || p->z != 0;
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->logits))) schedule(static)
    for (int64_t row = 0; row < p->logits.rows; row++) {
        Scores s;
        float dlogits[MAX_EXPERTS];
        find_scores(&p->rules, p->logits, row, has_losses || uses_scores(&p->rules), &s);
        for (int i = 0; i < s.n; i++) dlogits[i] = p->z != 0 ? 2 * p->z * s.log_sum * s.softmax[i] : 0;
        weights_gradient(p, &s, row, dlogits);
        if (p->counts.data) balance_gradient(p, &s, row, dlogits);
        for (int64_t i = 0; i < s.n; i += LANES)
            store_e(row_of(p->dlogits, row) + i, s.n - i, load(dlogits + i, s.n - i));
    }
}

// ---- pairs ------------------------------------------------------------------------------------------------

// Drops the pairs of an expert and a sample that are too many. `weights` and `pairs` have room for all pairs of a
// sample.
static void drop_of(const RouterDrop *p, int64_t sample, int32_t expert, float *weights, int32_t *pairs) {
    int64_t k = p->experts.cols, count = 0;
    int32_t *kept = p->kept.data;
    for (int64_t row = sample; row < p->experts.rows; row += p->samples)
        for (int64_t j = 0; j < k; j++) {
            if (ints_of(p->experts, row)[j] != expert) continue;
            weights[count] = floats_of(p->weights, row)[j];
            pairs[count++] = (int32_t)(row * k + j);
        }
    for (int64_t i = 0; i < count && count > p->capacity; i++) {
        int64_t rank = i;
        if (!p->by_position) {
            rank = 0;
            for (int64_t o = 0; o < count; o++)
                rank += weights[o] > weights[i] || (weights[o] == weights[i] && o < i);
        }
        if (rank >= p->capacity) kept[pairs[i]] = -1;
    }
}

void CPU_NAME(cpu_router_drop)(const Exec *exec, const RouterDrop *p) {
    int64_t pairs = tensor_count(p->experts), used = 0;
    const int32_t *experts = p->experts.data;
    memcpy(p->kept.data, experts, tensor_bytes(p->experts));
    for (int64_t i = 0; i < pairs; i++) used = experts[i] >= used ? experts[i] + 1 : used;
#pragma omp parallel for num_threads(exec->threads) schedule(static)
    for (int64_t i = 0; i < p->samples * used; i++) {
        float *weights = (float *)exec->workspace + omp_get_thread_num() * cpu_drop_floats(p);
        drop_of(p, i / used, (int32_t)(i % used), weights, (int32_t *)(weights + pairs / p->samples));
    }
}

void CPU_NAME(cpu_sort_pairs)(const Exec *exec, const SortPairs *p) {
    (void)exec;
    int64_t pairs = tensor_count(p->experts), at = 0, n = p->counts.cols;
    int32_t *counts = p->counts.data, *order = p->order.data, *positions = p->positions.data;
    const int32_t *experts = p->experts.data;
    int32_t next[MAX_EXPERTS + 1] = {0};
    for (int64_t i = 0; i < pairs; i++) next[experts[i] < 0 ? n : experts[i]]++;
    for (int64_t e = 0; e <= n; e++) {
        int32_t count = next[e];
        if (e < n) counts[e] = count;
        next[e] = (int32_t)at, at += count;
    }
    for (int64_t i = 0; i < pairs; i++) {
        int32_t place = next[experts[i] < 0 ? n : experts[i]]++;
        order[place] = (int32_t)i;
        positions[i] = experts[i] < 0 ? -1 : place;
    }
}

// ---- rows -------------------------------------------------------------------------------------------------

void CPU_NAME(cpu_gather_rows)(const Exec *exec, const GatherRows *p) {
    const int32_t *order = p->order.data;
    size_t bytes = (size_t)p->y.cols * sizeof(Element);
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->y))) schedule(static)
    for (int64_t i = 0; i < p->y.rows; i++) {
        if (order[i] < 0)
            memset(row_of(p->y, i), 0, bytes);
        else
            memcpy(row_of(p->y, i), row_of(p->x, order[i] / p->divisor), bytes);
    }
}

// A weight of 1 leaves a sum as it is without one.
static void combine_row(const CombineRows *p, int64_t row) {
    const int32_t *positions = ints_of(p->positions, row);
    const Element *from[MAX_TOPK];
    float weights[MAX_TOPK];
    int count = 0;
    for (int64_t j = 0; j < p->positions.cols; j++) {
        if (positions[j] < 0) continue;
        from[count] = row_of(p->x, positions[j]);
        weights[count++] = p->weights.data ? floats_of(p->weights, row)[j] : 1;
    }
    for (int64_t c = 0, cols = p->y.cols; c < cols; c += LANES) {
        Floats sum = {0};
        for (int j = 0; j < count; j++) sum = fused(splat(weights[j]), load_e(from[j] + c, cols - c), sum);
        store_e(row_of(p->y, row) + c, cols - c, sum);
    }
}

void CPU_NAME(cpu_combine_rows)(const Exec *exec, const CombineRows *p) {
    int64_t pairs = tensor_count(p->positions);
#pragma omp parallel for num_threads(cpu_team(exec, pairs * p->y.cols)) schedule(static)
    for (int64_t row = 0; row < p->y.rows; row++) combine_row(p, row);
}

// Returns the gradient of the weight. dx may be x.
static float backward_pair(const CombineBackward *p, int64_t row, int64_t to, float weight) {
    int64_t cols = p->dy.cols;
    const Element *dy = row_of(p->dy, row), *x = row_of(p->x, to);
    Element *dx = row_of(p->dx, to);
    Floats sum = {0};
    for (int64_t c = 0; c < cols; c += LANES) {
        Floats d = load_e(dy + c, cols - c);
        sum = fused(d, load_e(x + c, cols - c), sum);
        store_e(dx + c, cols - c, weight * d);
    }
    return sum_lanes(sum);
}

void CPU_NAME(cpu_combine_backward)(const Exec *exec, const CombineBackward *p) {
    const int32_t *positions = p->positions.data;
    const float *weights = p->weights.data;
    float *dweights = p->dweights.data;
    int64_t pairs = tensor_count(p->positions), k = p->positions.cols;
#pragma omp parallel for num_threads(cpu_team(exec, pairs * p->dy.cols)) schedule(static)
    for (int64_t i = 0; i < pairs; i++)
        dweights[i] = positions[i] < 0 ? 0 : backward_pair(p, i / k, positions[i], weights[i]);
}

static void jitter_row(const Jitter *p, int64_t row) {
    int64_t cols = p->x.cols, all = p->place.first_row + row;
    uint64_t sample = (uint64_t)(p->place.first_sample + all % p->place.samples),
             first = (uint64_t)(all / p->place.samples * cols);
    for (int64_t c = 0; c < cols; c++) {
        uint32_t word = rng_word(p->place.key, sample, first + (uint64_t)c);
        float factor = (float)(1 + (double)p->epsilon * (((double)word + 0.5) * 0x1p-31 - 1));
        store_e(row_of(p->y, row) + c, 1, load_e(row_of(p->x, row) + c, 1) * factor);
    }
}

void CPU_NAME(cpu_jitter)(const Exec *exec, const Jitter *p) {
#pragma omp parallel for num_threads(cpu_team(exec, 8 * tensor_count(p->x))) schedule(static)
    for (int64_t row = 0; row < p->x.rows; row++) jitter_row(p, row);
}
