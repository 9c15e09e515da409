// Causal self-attention as its definition: one head of one sample at a time, with the whole S x S matrices
// in the workspace.
//   scores = q k^T / sqrt(D), causal;  P = softmax(scores);  A = P * mask / (1 - p);  out = A v
//   dA = dout v^T;  dv = A^T dout;  dP = dA * mask / (1 - p);  dscores = P (dP - sum_k P dP);  dq = dscores
//   k, dk = dscores^T q
#include "device/reference.h"
#include <math.h>

// One head of one sample.
typedef struct {
    const AttentionShape *shape;
    const Dropout *dropout;
    int64_t b, h;
} Head;

// Where element (s, d) of its q (part 0), k (1) or v (2) lies.
static int64_t qkv_at(const Head *head, int part, int64_t s, int64_t d) {
    const AttentionShape *shape = head->shape;
    int64_t row = s * shape->batch + head->b, width = 3 * shape->heads * shape->head_size;
    return row * width + (head->h * 3 + part) * shape->head_size + d;
}

static int64_t out_at(const Head *head, int64_t s, int64_t d) {
    const AttentionShape *shape = head->shape;
    int64_t row = s * shape->batch + head->b;
    return (row * shape->heads + head->h) * shape->head_size + d;
}

static double factor_at(const Head *head, int64_t query, int64_t key) {
    int64_t sequence = head->shape->sequence, h = head->shape->first_head + head->h;
    return reference_dropout_factor(*head->dropout, head->dropout->first_sample + head->b,
                                    (h * sequence + query) * sequence + key);
}

// Row `query` of P, over keys 0..query. Returns the log of the sum of exp(scores).
static double softmax_row(const Head *head, const float *qkv, int64_t query, double *row) {
    int64_t size = head->shape->head_size;
    double max = -INFINITY, sum = 0;
    for (int64_t key = 0; key <= query; key++) {
        double score = 0;
        for (int64_t d = 0; d < size; d++)
            score += (double)qkv[qkv_at(head, 0, query, d)] * (double)qkv[qkv_at(head, 1, key, d)];
        row[key] = score / sqrt((double)size);
        max = fmax(max, row[key]);
    }
    for (int64_t key = 0; key <= query; key++) sum += row[key] = exp(row[key] - max);
    for (int64_t key = 0; key <= query; key++) row[key] /= sum;
    return max + log(sum);
}

static void head_forward(const Head *head, const AttentionForward *p, double *probabilities) {
    int64_t sequence = head->shape->sequence;
    float *out = p->out.data,
          *stats = (float *)p->stats.data + (head->b * head->shape->heads + head->h) * sequence;
    for (int64_t query = 0; query < sequence; query++) {
        double *row = probabilities + query * sequence;
        stats[query] = (float)softmax_row(head, p->qkv.data, query, row);
        for (int64_t key = 0; key <= query; key++) row[key] *= factor_at(head, query, key);
        for (int64_t d = 0; d < head->shape->head_size; d++) {
            double sum = 0;
            for (int64_t key = 0; key <= query; key++)
                sum += row[key] * (double)((float *)p->qkv.data)[qkv_at(head, 2, key, d)];
            out[out_at(head, query, d)] = (float)sum;
        }
    }
}

void reference_attention_forward(const Exec *exec, const AttentionForward *p) {
    Head head = {&p->shape, &p->dropout, 0, 0};
    for (head.b = 0; head.b < p->shape.batch; head.b++)
        for (head.h = 0; head.h < p->shape.heads; head.h++) head_forward(&head, p, exec->workspace);
}

// Row `query` of A (over P, in place in `weights`) and of dscores.
static void score_gradients(const Head *head, const AttentionBackward *p, int64_t query, double *weights,
                            double *dscores) {
    const float *qkv = p->qkv.data, *dout = p->dout.data;
    double dot = 0;
    for (int64_t key = 0; key <= query; key++) {
        double sum = 0;
        for (int64_t d = 0; d < head->shape->head_size; d++)
            sum += (double)dout[out_at(head, query, d)] * (double)qkv[qkv_at(head, 2, key, d)];
        dscores[key] = sum * factor_at(head, query, key);
        dot += weights[key] * dscores[key];
    }
    for (int64_t key = 0; key <= query; key++) {
        dscores[key] = weights[key] * (dscores[key] - dot);
        weights[key] *= factor_at(head, query, key);
    }
}

// Row s, column d of dq, dk and dv, each a sum over the queries or keys that causality lets row s meet.
static void store_gradients(const Head *head, const AttentionBackward *p, const double *weights,
                            const double *dscores, int64_t s, int64_t d) {
    const float *qkv = p->qkv.data, *dout = p->dout.data;
    int64_t sequence = head->shape->sequence;
    double scale = 1 / sqrt((double)head->shape->head_size), dq = 0, dk = 0, dv = 0;
    for (int64_t key = 0; key <= s; key++)
        dq += dscores[s * sequence + key] * (double)qkv[qkv_at(head, 1, key, d)];
    for (int64_t query = s; query < sequence; query++) {
        dk += dscores[query * sequence + s] * (double)qkv[qkv_at(head, 0, query, d)];
        dv += weights[query * sequence + s] * (double)dout[out_at(head, query, d)];
    }
    float *dqkv = p->dqkv.data;
    dqkv[qkv_at(head, 0, s, d)] = (float)(scale * dq);
    dqkv[qkv_at(head, 1, s, d)] = (float)(scale * dk);
    dqkv[qkv_at(head, 2, s, d)] = (float)dv;
}

// Recomputes P from qkv; `out` and `stats` are for backends that would rather not.
static void head_backward(const Head *head, const AttentionBackward *p, double *weights, double *dscores) {
    int64_t sequence = head->shape->sequence;
    for (int64_t query = 0; query < sequence; query++) {
        softmax_row(head, p->qkv.data, query, weights + query * sequence);
        score_gradients(head, p, query, weights + query * sequence, dscores + query * sequence);
    }
    for (int64_t s = 0; s < sequence; s++)
        for (int64_t d = 0; d < head->shape->head_size; d++) store_gradients(head, p, weights, dscores, s, d);
}

void reference_attention_backward(const Exec *exec, const AttentionBackward *p) {
    double *weights = exec->workspace, *dscores = weights + p->shape.sequence * p->shape.sequence;
    Head head = {&p->shape, &p->dropout, 0, 0};
    for (head.b = 0; head.b < p->shape.batch; head.b++)
        for (head.h = 0; head.h < p->shape.heads; head.h++) head_backward(&head, p, weights, dscores);
}

static size_t square_bytes(AttentionShape shape) {
    return (size_t)(shape.sequence * shape.sequence) * sizeof(double);
}

size_t reference_attention_workspace_bytes(DeviceOp op, const void *args) {
    if (op == OP_ATTENTION_FORWARD) return square_bytes(((const AttentionForward *)args)->shape);
    if (op == OP_ATTENTION_BACKWARD) return 2 * square_bytes(((const AttentionBackward *)args)->shape);
    return 0;
}
