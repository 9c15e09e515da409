// Norms of queries and keys, of one instruction set and element type. A thread treats whole rows, or panels of columns
// of the gradients of weights, in one order.
#include "device/cpu/cpu.h"
#include "device/cpu/vector.h"

// A query or key head of a row.
typedef struct {
    int64_t at, gamma; // of its first element in the row, and in the gammas
    bool is_key;
} Head;

static Head head_of(const AttentionShape *s, int64_t i, Tensor query_gamma, Tensor key_gamma) {
    int64_t per = s->heads / s->groups, group = i / (per + 1), within = i % (per + 1);
    bool is_key = within == per;
    int64_t number = is_key ? group : group * per + within;
    bool shared = (is_key ? key_gamma : query_gamma).cols == s->head_size;
    return (Head){(i + group) * s->head_size, shared ? 0 : number * s->head_size, is_key};
}

static const Element *row_of(Tensor x, int64_t row) { return (const Element *)x.data + row * x.cols; }
static float *floats_of(Tensor x, int64_t row) { return (float *)x.data + row * x.cols; }
static const Element *gamma_of(Tensor query_gamma, Tensor key_gamma, const Head *head) {
    return (const Element *)(head->is_key ? key_gamma : query_gamma).data + head->gamma;
}

// The reciprocal of the number of columns over which a mean is taken.
static float share_of(const AttentionShape *s, const Head *head, bool all, int ranks) {
    return 1.0f / (float)(s->head_size * (all ? (head->is_key ? s->groups : s->heads) * ranks : 1));
}

static inline Floats squares_at(const Element *x, int64_t left, Floats sum) {
    Floats own = load_e(x, left);
    return fused(own, own, sum);
}

static float squares_of(const Element *x, int64_t size) {
    Floats sum = {0};
    for (int64_t c = 0; c < size; c += LANES) sum = squares_at(x + c, size - c, sum);
    return sum_lanes(sum);
}

// The sum of dy (offset + gamma) x.
static float products_of(const Element *dy, const Element *x, const Element *gamma, float offset,
                         int64_t size) {
    Floats sum = {0};
    for (int64_t c = 0; c < size; c += LANES) {
        int64_t left = size - c;
        Floats g = load_e(dy + c, left) * (load_e(gamma + c, left) + offset);
        sum = fused(g, load_e(x + c, left), sum);
    }
    return sum_lanes(sum);
}

static void sums_row(const QkSums *p, int64_t row) {
    const AttentionShape *s = &p->shape;
    const Element *x = row_of(p->qkv, row);
    float sums[2] = {0, 0};
    for (int64_t i = 0; i < s->heads + s->groups; i++) {
        Head head = head_of(s, i, p->query_gamma, p->key_gamma);
        if (p->dy.data)
            sums[head.is_key] +=
                floats_of(p->rstd, row)[i] * products_of(row_of(p->dy, row) + head.at, x + head.at,
                                                         gamma_of(p->query_gamma, p->key_gamma, &head),
                                                         p->offset, s->head_size);
        else
            sums[head.is_key] += squares_of(x + head.at, s->head_size);
    }
    memcpy(floats_of(p->sums, row), sums, sizeof sums);
}

void CPU_NAME(cpu_qk_sums)(const Exec *exec, const QkSums *p) {
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->qkv))) schedule(static)
    for (int64_t row = 0; row < p->qkv.rows; row++) sums_row(p, row);
}

static void forward_row(const QkNormForward *p, int64_t row) {
    const AttentionShape *s = &p->shape;
    int64_t size = s->head_size;
    const Element *x = row_of(p->qkv, row);
    Element *y = (Element *)p->y.data + row * p->y.cols;
    for (int64_t i = 0; i < s->heads + s->groups; i++) {
        Head head = head_of(s, i, p->query_gamma, p->key_gamma);
        const Element *gamma = gamma_of(p->query_gamma, p->key_gamma, &head), *own = x + head.at;
        float squares = p->sums.data ? floats_of(p->sums, row)[head.is_key] : squares_of(own, size);
        float rstd = 1.0f / sqrtf(squares * share_of(s, &head, p->sums.data, p->ranks) + p->epsilon);
        floats_of(p->rstd, row)[i] = rstd;
        for (int64_t c = 0; c < size; c += LANES)
            store_e(y + head.at + c, size - c,
                    load_e(own + c, size - c) * rstd * (load_e(gamma + c, size - c) + p->offset));
        if (head.is_key) memcpy(y + head.at + size, own + size, (size_t)size * sizeof *y); // the value
    }
}

void CPU_NAME(cpu_qk_norm_forward)(const Exec *exec, const QkNormForward *p) {
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->qkv))) schedule(static)
    for (int64_t row = 0; row < p->qkv.rows; row++) forward_row(p, row);
}

// With n = x rstd and g = dy gamma:  dx = rstd (g - n mean(g n)).
static void backward_row(const QkNormBackwardInput *p, int64_t row) {
    const AttentionShape *s = &p->shape;
    int64_t size = s->head_size;
    Element *dx = (Element *)p->dx.data + row * p->dx.cols;
    for (int64_t i = 0; i < s->heads + s->groups; i++) {
        Head head = head_of(s, i, p->query_gamma, p->key_gamma);
        const Element *gamma = gamma_of(p->query_gamma, p->key_gamma, &head);
        const Element *x = row_of(p->qkv, row) + head.at, *dy = row_of(p->dy, row) + head.at;
        float rstd = floats_of(p->rstd, row)[i];
        float sum = p->sums.data ? floats_of(p->sums, row)[head.is_key]
                                 : rstd * products_of(dy, x, gamma, p->offset, size);
        Floats mean = splat(-sum * share_of(s, &head, p->sums.data, p->ranks));
        for (int64_t c = 0; c < size; c += LANES) {
            Floats g = load_e(dy + c, size - c) * (load_e(gamma + c, size - c) + p->offset);
            store_e(dx + head.at + c, size - c, rstd * fused(load_e(x + c, size - c) * rstd, mean, g));
        }
        if (head.is_key && dx + head.at != dy)
            memcpy(dx + head.at + size, dy + size, (size_t)size * sizeof *dx); // of the value
    }
}

void CPU_NAME(cpu_qk_norm_backward_input)(const Exec *exec, const QkNormBackwardInput *p) {
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->qkv))) schedule(static)
    for (int64_t row = 0; row < p->qkv.rows; row++) backward_row(p, row);
}

// Adds up one vector of columns of dgamma, from column c of a head on: of one head, or of all heads of a kind.
static Floats weight_panel(const QkNormBackwardWeight *p, bool is_key, int64_t number, int64_t c) {
    const AttentionShape *s = &p->shape;
    int64_t left = s->head_size - c;
    Floats sum = {0};
    for (int64_t row = 0; row < p->qkv.rows; row++) {
        const Element *x = row_of(p->qkv, row), *dy = row_of(p->dy, row);
        for (int64_t i = 0; i < s->heads + s->groups; i++) {
            Head head = head_of(s, i, p->dquery_gamma, p->dkey_gamma);
            if (head.is_key != is_key || head.gamma != number * s->head_size) continue;
            Floats normal = load_e(x + head.at + c, left) * floats_of(p->rstd, row)[i];
            sum = fused(load_e(dy + head.at + c, left), normal, sum);
        }
    }
    return sum;
}

void CPU_NAME(cpu_qk_norm_backward_weight)(const Exec *exec, const QkNormBackwardWeight *p) {
    int64_t size = p->shape.head_size, panels = cpu_num_blocks(size, LANES);
    int64_t query = p->dquery_gamma.cols / size * panels, key = p->dkey_gamma.cols / size * panels;
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->qkv))) schedule(static)
    for (int64_t n = 0; n < query + key; n++) {
        bool is_key = n >= query;
        int64_t panel = is_key ? n - query : n, number = panel / panels, c = panel % panels * LANES;
        float *to = (float *)(is_key ? p->dkey_gamma : p->dquery_gamma).data + number * size + c;
        store(to, size - c, load(to, size - c) + weight_panel(p, is_key, number, c));
    }
}
