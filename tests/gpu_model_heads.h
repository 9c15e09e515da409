// Models of the GPU's norms of queries and keys, as in gpu_models.h: a warp treats a head, its lanes every 32nd column.
#pragma once
#include "gpu_models.h"

typedef struct {
    int64_t at, gamma; // of its first element in the row, and in the gammas
    bool is_key;
} ModelHead;

static inline ModelHead model_head(const AttentionShape *s, int64_t i, Tensor query, Tensor key) {
    const int64_t per = s->heads / s->groups, group = i / (per + 1), within = i % (per + 1);
    const bool is_key = within == per, shared = (is_key ? key : query).cols == s->head_size;
    const int64_t number = is_key ? group : group * per + within;
    return (ModelHead){(i + group) * s->head_size, shared ? 0 : number * s->head_size, is_key};
}

// The sum of x^2, or with dy of dy (gamma + offset) x, over a head from element `at` on.
static inline float model_head_sum(Tensor x, Tensor dy, Tensor gamma, float offset, int64_t at, int64_t first,
                                   int64_t size) {
    float lanes[MODEL_LANES] = {0};
    for (int64_t c = 0; c < size; c++) {
        const float own = value(x, at + c), so_far = lanes[c % MODEL_LANES];
        const float factor = dy.data ? value(dy, at + c) * (value(gamma, first + c) + offset) : own;
        lanes[c % MODEL_LANES] = fmaf(factor, own, so_far);
    }
    return team_sum(lanes, MODEL_LANES);
}

static inline float model_head_share(const AttentionShape *s, bool is_key, bool all, int ranks) {
    return 1.0f / (float)(s->head_size * (all ? (is_key ? s->groups : s->heads) * ranks : 1));
}

static void model_qk_sums(const QkSums *p) {
    const AttentionShape *s = &p->shape;
    for (int64_t row = 0; row < p->qkv.rows; row++) {
        float sums[2] = {0, 0};
        for (int64_t i = 0; i < s->heads + s->groups; i++) {
            const ModelHead head = model_head(s, i, p->query_gamma, p->key_gamma);
            const float own =
                model_head_sum(p->qkv, p->dy, head.is_key ? p->key_gamma : p->query_gamma, p->offset,
                               row * p->qkv.cols + head.at, head.gamma, s->head_size);
            sums[head.is_key] += p->dy.data ? value(p->rstd, row * p->rstd.cols + i) * own : own;
        }
        for (int kind = 0; kind < 2; kind++) put(p->sums, row * 2 + kind, sums[kind]);
    }
}

static void model_qk_norm_forward(const QkNormForward *p) {
    const AttentionShape *s = &p->shape;
    for (int64_t row = 0; row < p->qkv.rows; row++)
        for (int64_t i = 0; i < s->heads + s->groups; i++) {
            const ModelHead head = model_head(s, i, p->query_gamma, p->key_gamma);
            const Tensor gamma = head.is_key ? p->key_gamma : p->query_gamma;
            const int64_t at = row * p->qkv.cols + head.at;
            const float squares = p->sums.data
                                      ? value(p->sums, row * 2 + head.is_key)
                                      : model_head_sum(p->qkv, (Tensor){0}, gamma, 0, at, 0, s->head_size);
            const float share = model_head_share(s, head.is_key, p->sums.data, p->ranks);
            const float rstd = 1.0f / sqrtf(squares * share + p->epsilon);
            for (int64_t c = 0; c < s->head_size; c++)
                put(p->y, at + c, value(p->qkv, at + c) * rstd * (value(gamma, head.gamma + c) + p->offset));
            for (int64_t c = s->head_size; head.is_key && c < 2 * s->head_size; c++)
                put(p->y, at + c, value(p->qkv, at + c));
            put(p->rstd, row * p->rstd.cols + i, rstd);
        }
}

static void model_qk_norm_backward_input(const QkNormBackwardInput *p) {
    const AttentionShape *s = &p->shape;
    for (int64_t row = 0; row < p->qkv.rows; row++)
        for (int64_t i = 0; i < s->heads + s->groups; i++) {
            const ModelHead head = model_head(s, i, p->query_gamma, p->key_gamma);
            const Tensor gamma = head.is_key ? p->key_gamma : p->query_gamma;
            const int64_t at = row * p->qkv.cols + head.at;
            const float rstd = value(p->rstd, row * p->rstd.cols + i);
            const float sum = p->sums.data ? value(p->sums, row * 2 + head.is_key)
                                           : rstd * model_head_sum(p->qkv, p->dy, gamma, p->offset, at,
                                                                   head.gamma, s->head_size);
            const float mean = -sum * model_head_share(s, head.is_key, p->sums.data, p->ranks);
            for (int64_t c = 0; c < s->head_size; c++) {
                const float g = value(p->dy, at + c) * (value(gamma, head.gamma + c) + p->offset);
                put(p->dx, at + c, rstd * fmaf(value(p->qkv, at + c) * rstd, mean, g));
            }
            for (int64_t c = s->head_size; head.is_key && c < 2 * s->head_size; c++)
                put(p->dx, at + c, value(p->dy, at + c));
        }
}

// Rows are cut into parts of 16, or into 256; the parts are added in their order.
static void model_qk_norm_backward_weight(const QkNormBackwardWeight *p) {
    const AttentionShape *s = &p->shape;
    const int64_t rows = p->qkv.rows, part = larger_of(16, parts_at_least(rows, 256));
    for (int kind = 0; kind < 2; kind++) {
        const Tensor dgamma = kind ? p->dkey_gamma : p->dquery_gamma;
        for (int64_t column = 0; column < dgamma.cols; column++) {
            const int64_t c = column % s->head_size;
            float total = value(dgamma, column);
            for (int64_t first = 0; first < rows; first += part) {
                float sum = 0;
                for (int64_t row = first; row < smaller_of(first + part, rows); row++)
                    for (int64_t i = 0; i < s->heads + s->groups; i++) {
                        const ModelHead head = model_head(s, i, p->dquery_gamma, p->dkey_gamma);
                        if (head.is_key != (kind == 1) || head.gamma != column - c) continue;
                        const int64_t at = row * p->qkv.cols + head.at + c;
                        sum = fmaf(value(p->dy, at),
                                   value(p->qkv, at) * value(p->rstd, row * p->rstd.cols + i), sum);
                    }
                total += sum;
            }
            put(dgamma, column, total);
        }
    }
}
