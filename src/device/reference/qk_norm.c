// The reference of norms of queries and keys: plain loops in fp64.
#include "device/reference/reference.h"
#include <math.h>

// A query or key head of a row of qkv.
typedef struct {
    int64_t at;     // of its first element in the row
    int64_t number; // among the query heads, or the key heads, of this rank
    int64_t rstd;   // the column of its 1/deviation
    bool is_key;
} Head;

static int64_t per_group(const AttentionShape *s) { return s->heads / s->groups; }

// Head i of a row, 0 <= i < heads + groups: those of a group are its queries, then its key.
static Head head_of(const AttentionShape *s, int64_t i) {
    int64_t group = i / (per_group(s) + 1), within = i % (per_group(s) + 1);
    bool is_key = within == per_group(s);
    return (Head){.at = (i + group) * s->head_size, // behind each group its value
                  .number = is_key ? group : group * per_group(s) + within,
                  .rstd = i,
                  .is_key = is_key};
}

static int64_t first_gamma(const AttentionShape *s, const Head *head, Tensor gamma) {
    return gamma.cols == s->head_size ? 0 : head->number * s->head_size;
}

// The number of columns over which a mean is taken.
static double width_of(const AttentionShape *s, const Head *head, bool all, int ranks) {
    return (double)s->head_size * (all ? (double)(head->is_key ? s->groups : s->heads) * ranks : 1);
}

void reference_qk_sums(const Exec *exec, const QkSums *p) {
    (void)exec;
    const AttentionShape *s = &p->shape;
    for (int64_t row = 0; row < p->qkv.rows; row++) {
        double sums[2] = {0, 0};
        for (int64_t i = 0; i < s->heads + s->groups; i++) {
            Head head = head_of(s, i);
            Tensor gamma = head.is_key ? p->key_gamma : p->query_gamma;
            for (int64_t c = 0; c < s->head_size; c++) {
                double x = load(p->qkv, row * p->qkv.cols + head.at + c), factor = x;
                if (p->dy.data)
                    factor = load(p->dy, row * p->qkv.cols + head.at + c) *
                             load(p->rstd, row * p->rstd.cols + i) *
                             ((double)p->offset + load(gamma, first_gamma(s, &head, gamma) + c));
                sums[head.is_key] += x * factor;
            }
        }
        for (int kind = 0; kind < 2; kind++) store(p->sums, row * 2 + kind, sums[kind]);
    }
}

void reference_qk_norm_forward(const Exec *exec, const QkNormForward *p) {
    (void)exec;
    const AttentionShape *s = &p->shape;
    for (int64_t row = 0; row < p->qkv.rows; row++) {
        int64_t first = row * p->qkv.cols;
        for (int64_t c = 0; c < p->qkv.cols; c++) store(p->y, first + c, load(p->qkv, first + c));
        for (int64_t i = 0; i < s->heads + s->groups; i++) {
            Head head = head_of(s, i);
            Tensor gamma = head.is_key ? p->key_gamma : p->query_gamma;
            double squares = 0;
            for (int64_t c = 0; c < s->head_size; c++) {
                double x = load(p->qkv, first + head.at + c);
                squares += x * x;
            }
            if (p->sums.data) squares = load(p->sums, row * 2 + head.is_key);
            double mean = squares / width_of(s, &head, p->sums.data, p->ranks);
            double rstd = 1 / sqrt(mean + (double)p->epsilon);
            store(p->rstd, row * p->rstd.cols + i, rstd);
            for (int64_t c = 0; c < s->head_size; c++)
                store(p->y, first + head.at + c,
                      load(p->qkv, first + head.at + c) * rstd *
                          ((double)p->offset + load(gamma, first_gamma(s, &head, gamma) + c)));
        }
    }
}

// With n = x rstd and g = dy gamma:  dx = rstd (g - n mean(g n)).
void reference_qk_norm_backward_input(const Exec *exec, const QkNormBackwardInput *p) {
    (void)exec;
    const AttentionShape *s = &p->shape;
    for (int64_t row = 0; row < p->qkv.rows; row++)
        for (int64_t i = 0; i < s->heads + 2 * s->groups; i++) {
            int64_t group = i / (per_group(s) + 2), first = row * p->qkv.cols + i * s->head_size;
            if (i % (per_group(s) + 2) > per_group(s)) { // a value
                for (int64_t c = 0; c < s->head_size; c++) store(p->dx, first + c, load(p->dy, first + c));
                continue;
            }
            Head head = head_of(s, i - group);
            Tensor gamma = head.is_key ? p->key_gamma : p->query_gamma;
            int64_t from = first_gamma(s, &head, gamma);
            double rstd = load(p->rstd, row * p->rstd.cols + head.rstd), sum = 0;
            for (int64_t c = 0; c < s->head_size; c++)
                sum += load(p->dy, first + c) * ((double)p->offset + load(gamma, from + c)) *
                       load(p->qkv, first + c) * rstd;
            if (p->sums.data) sum = load(p->sums, row * 2 + head.is_key);
            double mean = sum / width_of(s, &head, p->sums.data, p->ranks);
            for (int64_t c = 0; c < s->head_size; c++) {
                double g = load(p->dy, first + c) * ((double)p->offset + load(gamma, from + c));
                store(p->dx, first + c, rstd * (g - load(p->qkv, first + c) * rstd * mean));
            }
        }
}

void reference_qk_norm_backward_weight(const Exec *exec, const QkNormBackwardWeight *p) {
    (void)exec;
    const AttentionShape *s = &p->shape;
    for (int kind = 0; kind < 2; kind++) {
        Tensor dgamma = kind ? p->dkey_gamma : p->dquery_gamma;
        for (int64_t column = 0; column < dgamma.cols; column++) {
            double sum = load(dgamma, column);
            for (int64_t row = 0; row < p->qkv.rows; row++)
                for (int64_t i = 0; i < s->heads + s->groups; i++) {
                    Head head = head_of(s, i);
                    int64_t c = column - first_gamma(s, &head, dgamma);
                    if (head.is_key != (kind == 1) || c < 0 || c >= s->head_size) continue;
                    int64_t at = row * p->qkv.cols + head.at + c;
                    sum += load(p->dy, at) * load(p->qkv, at) * load(p->rstd, row * p->rstd.cols + i);
                }
            store(dgamma, column, sum);
        }
    }
}
