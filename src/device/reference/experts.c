// The reference of routers and of rows ordered by experts: plain loops in fp64.
#include "device/choice.h"
#include "device/reference/reference.h"
#include <math.h>

static const int32_t *ints(Tensor x) { return x.data; }
static int32_t *ints_out(Tensor x) { return x.data; }

// ---- the router -------------------------------------------------------------------------------------------

// Of one token.
typedef struct {
    int n;                      // E
    double logits[MAX_EXPERTS]; //
    double scores[MAX_EXPERTS]; // softmax or sigmoid
    double shares[MAX_EXPERTS]; // scores that add up to 1
    double log_sum;             // log of the sum of exp(logits)
    double sum;                 // of the scores
} Scores;

static void find_scores(const RouterRules *rules, Tensor logits, int64_t row, Scores *s) {
    double max = -INFINITY, sum = 0;
    s->n = (int)logits.cols;
    for (int i = 0; i < s->n; i++) {
        s->logits[i] = load(logits, row * s->n + i);
        max = fmax(max, s->logits[i]);
    }
    for (int i = 0; i < s->n; i++) sum += exp(s->logits[i] - max);
    s->log_sum = max + log(sum);
    s->sum = 0;
    for (int i = 0; i < s->n; i++) {
        s->scores[i] = rules->sigmoid ? 1 / (1 + exp(-s->logits[i])) : exp(s->logits[i] - s->log_sum);
        s->sum += s->scores[i];
    }
    for (int i = 0; i < s->n; i++) s->shares[i] = s->scores[i] / s->sum;
}

static void choose(const RouterForward *p, const Scores *s, int32_t *chosen) {
    const RouterRules *rules = &p->rules;
    double values[MAX_EXPERTS];
    bool by_score = rules->sigmoid ? p->bias.data || rules->groups : rules->pre_softmax && rules->groups;
    for (int i = 0; i < s->n; i++)
        values[i] = by_score ? s->scores[i] + load_or_zero(p->bias, i) : s->logits[i];
    choose_experts(rules, s->n, values, chosen);
}

// The weights of the chosen experts, without the factor.
static void find_weights(const RouterRules *rules, const Scores *s, const int32_t *chosen, double *weights) {
    double sum = 0, max = s->logits[chosen[0]];
    bool plain = rules->sigmoid ? rules->topk == 1 : rules->pre_softmax;
    for (int j = 0; j < rules->topk; j++) max = fmax(max, s->logits[chosen[j]]);
    for (int j = 0; j < rules->topk; j++) {
        weights[j] =
            rules->sigmoid || rules->pre_softmax ? s->scores[chosen[j]] : exp(s->logits[chosen[j]] - max);
        sum += weights[j];
    }
    for (int j = 0; j < rules->topk && !plain; j++) weights[j] /= rules->sigmoid ? sum + 1e-20 : sum;
}

void reference_router_forward(const Exec *exec, const RouterForward *p) {
    (void)exec;
    int k = p->rules.topk;
    for (int64_t row = 0; row < p->logits.rows; row++) {
        Scores s;
        int32_t *chosen = ints_out(p->experts) + row * k;
        double weights[MAX_TOPK];
        find_scores(&p->rules, p->logits, row, &s);
        choose(p, &s, chosen);
        find_weights(&p->rules, &s, chosen, weights);
        for (int j = 0; j < k; j++)
            store(p->weights, row * k + j, weights[j] * (double)router_scale(&p->rules));
    }
}

void reference_router_sums(const Exec *exec, const RouterSums *p) {
    (void)exec;
    int64_t samples = p->counts.rows, n = p->logits.cols;
    for (int64_t b = 0; b < samples; b++) {
        double counts[MAX_EXPERTS] = {0}, sums[MAX_EXPERTS + 1] = {0};
        for (int64_t row = b; row < p->logits.rows; row += samples) {
            Scores s;
            int32_t chosen[MAX_TOPK];
            find_scores(&p->rules, p->logits, row, &s);
            choose_largest(s.logits, s.n, p->rules.topk, chosen);
            for (int j = 0; j < p->rules.topk; j++) counts[chosen[j]]++;
            for (int64_t i = 0; i < n; i++) sums[i] += s.shares[i];
            sums[n] += s.log_sum * s.log_sum;
        }
        for (int64_t i = 0; i < n; i++) store(p->counts, b * n + i, counts[i]);
        for (int64_t i = 0; i <= n; i++) store(p->sums, b * (n + 1) + i, sums[i]);
    }
}

// Adds the gradient that comes through the weights to that of the logits.
static void weights_gradient(const RouterBackward *p, const Scores *s, int64_t row, double *dlogits) {
    const RouterRules *rules = &p->rules;
    const int32_t *chosen = ints(p->experts) + row * rules->topk;
    double dweights[MAX_TOPK], weights[MAX_TOPK], inner = 0, sum = 1e-20;
    bool single = rules->sigmoid && rules->topk == 1;
    find_weights(rules, s, chosen, weights);
    for (int j = 0; j < rules->topk; j++) {
        dweights[j] = load(p->dweights, row * rules->topk + j) * (double)router_scale(rules);
        inner += dweights[j] * weights[j];
        sum += s->scores[chosen[j]];
    }
    if (!rules->sigmoid && rules->pre_softmax) {
        for (int i = 0; i < s->n; i++) dlogits[i] -= s->scores[i] * inner;
        for (int j = 0; j < rules->topk; j++) dlogits[chosen[j]] += weights[j] * dweights[j];
        return;
    }
    for (int j = 0; j < rules->topk; j++) {
        double score = s->scores[chosen[j]];
        if (rules->sigmoid)
            dlogits[chosen[j]] += (single ? dweights[j] : (dweights[j] - inner) / sum) * score * (1 - score);
        else
            dlogits[chosen[j]] += weights[j] * (dweights[j] - inner);
    }
}

// The gradient of the losses that balance experts.
static void balance_gradient(const RouterBackward *p, const Scores *s, int64_t row, double *dlogits) {
    int64_t first = row % p->counts.rows * s->n;
    double inner = 0;
    for (int i = 0; i < s->n; i++) inner += (double)p->balance * load(p->counts, first + i) * s->shares[i];
    for (int i = 0; i < s->n; i++) {
        double d = (double)p->balance * load(p->counts, first + i) - inner;
        dlogits[i] += p->rules.sigmoid ? d / s->sum * s->scores[i] * (1 - s->scores[i]) : d * s->shares[i];
    }
}

void reference_router_backward(const Exec *exec, const RouterBackward *p) {
    (void)exec;
    for (int64_t row = 0; row < p->logits.rows; row++) {
        Scores s;
        double dlogits[MAX_EXPERTS] = {0};
        find_scores(&p->rules, p->logits, row, &s);
        weights_gradient(p, &s, row, dlogits);
        if (p->counts.data) balance_gradient(p, &s, row, dlogits);
        for (int i = 0; i < s.n; i++) {
            dlogits[i] += 2 * (double)p->z * s.log_sum * exp(s.logits[i] - s.log_sum);
            store(p->dlogits, row * s.n + i, dlogits[i]);
        }
    }
}

// ---- pairs ------------------------------------------------------------------------------------------------

// How many pairs of the same sample and expert come before this one.
static int64_t rank_of_pair(const RouterDrop *p, int64_t pair) {
    int64_t k = p->experts.cols, row = pair / k, rank = 0;
    const float *weights = p->weights.data;
    for (int64_t other = row % p->samples; other < p->experts.rows; other += p->samples)
        for (int64_t j = other * k; j < other * k + k; j++) {
            if (ints(p->experts)[j] != ints(p->experts)[pair] || j == pair) continue;
            bool first =
                p->by_position || weights[j] == weights[pair] ? j < pair : weights[j] > weights[pair];
            rank += first;
        }
    return rank;
}

void reference_router_drop(const Exec *exec, const RouterDrop *p) {
    (void)exec;
    for (int64_t i = 0; i < tensor_count(p->experts); i++)
        ints_out(p->kept)[i] = rank_of_pair(p, i) < p->capacity ? ints(p->experts)[i] : -1;
}

void reference_sort_pairs(const Exec *exec, const SortPairs *p) {
    (void)exec;
    int64_t at = 0, pairs = tensor_count(p->experts);
    for (int64_t e = 0; e <= p->counts.cols; e++) {
        int64_t first = at, wanted = e < p->counts.cols ? e : -1;
        for (int64_t i = 0; i < pairs; i++) {
            if (ints(p->experts)[i] != wanted) continue;
            ints_out(p->positions)[i] = wanted < 0 ? -1 : (int32_t)at;
            ints_out(p->order)[at++] = (int32_t)i;
        }
        if (wanted >= 0) ints_out(p->counts)[e] = (int32_t)(at - first);
    }
}

void reference_gather_rows(const Exec *exec, const GatherRows *p) {
    (void)exec;
    for (int64_t i = 0; i < p->y.rows; i++) {
        int64_t from = ints(p->order)[i];
        for (int64_t c = 0; c < p->y.cols; c++)
            store(p->y, i * p->y.cols + c, from < 0 ? 0 : load(p->x, from / p->divisor * p->x.cols + c));
    }
}

void reference_combine_rows(const Exec *exec, const CombineRows *p) {
    (void)exec;
    int64_t k = p->positions.cols, cols = p->y.cols;
    for (int64_t i = 0; i < tensor_count(p->y); i++) {
        int64_t row = i / cols;
        double sum = 0;
        for (int64_t j = row * k; j < row * k + k; j++) {
            int64_t from = ints(p->positions)[j];
            double weight = p->weights.data ? load(p->weights, j) : 1;
            if (from >= 0) sum += weight * load(p->x, from * cols + i % cols);
        }
        store(p->y, i, sum);
    }
}

void reference_combine_backward(const Exec *exec, const CombineBackward *p) {
    (void)exec;
    int64_t k = p->positions.cols, cols = p->dy.cols;
    for (int64_t j = 0; j < tensor_count(p->positions); j++) {
        int64_t to = ints(p->positions)[j], row = j / k;
        double sum = 0;
        for (int64_t c = 0; c < cols && to >= 0; c++) {
            double dy = load(p->dy, row * cols + c);
            sum += dy * load(p->x, to * cols + c);
            store(p->dx, to * cols + c, load(p->weights, j) * dy);
        }
        store(p->dweights, j, sum);
    }
}

void reference_jitter(const Exec *exec, const Jitter *p) {
    (void)exec;
    for (int64_t i = 0; i < tensor_count(p->x); i++) {
        int64_t row = p->place.first_row + i / p->x.cols, s = row / p->place.samples;
        uint32_t word = rng_word(p->place.key, (uint64_t)(p->place.first_sample + row % p->place.samples),
                                 (uint64_t)(s * p->x.cols + i % p->x.cols));
        double factor = 1 + (double)p->epsilon * (((double)word + 0.5) * 0x1p-31 - 1);
        store(p->y, i, load(p->x, i) * factor);
    }
}
