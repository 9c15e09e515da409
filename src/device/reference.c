// The reference backend: each operation as the plain loops that define it, in fp64, rounded to fp32 when
// stored. One
// thread. It is written to be read beside device.h; every other backend is compared with it.
#include "device/reference.h"
#include <math.h>

static float *f32(Tensor x) { return x.data; }
static const int32_t *i32(Tensor x) { return x.data; }

// ---- matrix products
// ---------------------------------------------------------------------------------------------

static double element(Tensor x, bool transpose, int64_t row, int64_t col) {
    return f32(x)[transpose ? col * x.cols + row : row * x.cols + col];
}

static void reference_matmul(const Exec *exec, const Matmul *p) {
    (void)exec;
    int64_t inner = p->transpose_a ? p->a.rows : p->a.cols;
    for (int64_t i = 0; i < p->d.rows; i++)
        for (int64_t j = 0; j < p->d.cols; j++) {
            float *d = &f32(p->d)[i * p->d.cols + j];
            double sum = (p->accumulate ? (double)*d : 0) + (p->bias.data ? (double)f32(p->bias)[j] : 0);
            for (int64_t k = 0; k < inner; k++)
                sum += element(p->a, p->transpose_a, i, k) * element(p->b, p->transpose_b, k, j);
            *d = (float)sum;
        }
}

// ---- activations, dropout, residual
// ------------------------------------------------------------------------------

static const double GELU_SCALE = 0.79788456080286535588, GELU_CUBE = 0.044715; // sqrt(2 / pi)

static double gelu(double u) { return 0.5 * u * (1 + tanh(GELU_SCALE * u * (1 + GELU_CUBE * u * u))); }

static double gelu_slope(double u) {
    double t = tanh(GELU_SCALE * u * (1 + GELU_CUBE * u * u));
    return 0.5 * (1 + t) + 0.5 * u * (1 - t * t) * GELU_SCALE * (1 + 3 * GELU_CUBE * u * u);
}

static void reference_bias_gelu_forward(const Exec *exec, const BiasGeluForward *p) {
    (void)exec;
    for (int64_t i = 0; i < tensor_count(p->x); i++)
        f32(p->y)[i] = (float)gelu((double)f32(p->x)[i] + (double)f32(p->bias)[i % p->x.cols]);
}

static void reference_bias_gelu_backward(const Exec *exec, const BiasGeluBackward *p) {
    (void)exec;
    for (int64_t i = 0; i < tensor_count(p->x); i++) {
        double u = (double)f32(p->x)[i] + (double)f32(p->bias)[i % p->x.cols];
        f32(p->dx)[i] = (float)((double)f32(p->dy)[i] * gelu_slope(u));
    }
}

double reference_dropout_factor(Dropout dropout, int64_t sample, int64_t index) {
    if (dropout.probability == 0) return 1;
    uint32_t word = rng_word(dropout.key, (uint64_t)sample, (uint64_t)index);
    bool kept = word >= rng_dropout_threshold(dropout.probability);
    return kept ? (double)(1.0f / (1.0f - dropout.probability)) : 0;
}

// Of element `i` of a [S*B, H] tensor: row s*B + b, column c is element s*H + c of sample b.
static double dropout_factor(Dropout dropout, int64_t i, int64_t cols) {
    if (dropout.probability == 0) return 1;
    int64_t row = i / cols, s = row / dropout.samples, b = row % dropout.samples;
    return reference_dropout_factor(dropout, dropout.first_sample + b, s * cols + i % cols);
}

static void reference_bias_dropout_add(const Exec *exec, const BiasDropoutAdd *p) {
    (void)exec;
    for (int64_t i = 0; i < tensor_count(p->x); i++) {
        double u = (double)f32(p->x)[i] + (double)f32(p->bias)[i % p->x.cols];
        f32(p->y)[i] = (float)((double)f32(p->residual)[i] + u * dropout_factor(p->dropout, i, p->x.cols));
    }
}

static void reference_dropout_backward(const Exec *exec, const DropoutBackward *p) {
    (void)exec;
    for (int64_t i = 0; i < tensor_count(p->dy); i++)
        f32(p->dx)[i] = (float)((double)f32(p->dy)[i] * dropout_factor(p->dropout, i, p->dy.cols));
}

static void reference_column_sum(const Exec *exec, const ColumnSum *p) {
    (void)exec;
    for (int64_t c = 0; c < p->x.cols; c++) {
        double sum = f32(p->sum)[c];
        for (int64_t r = 0; r < p->x.rows; r++) sum += (double)f32(p->x)[r * p->x.cols + c];
        f32(p->sum)[c] = (float)sum;
    }
}

// ---- layer norm
// --------------------------------------------------------------------------------------------------

static void norm_row(const NormForward *p, int64_t row) {
    int64_t cols = p->x.cols;
    const float *x = f32(p->x) + row * cols;
    double mean = 0, variance = 0;
    for (int64_t c = 0; c < cols; c++) mean += (double)x[c];
    mean /= (double)cols;
    for (int64_t c = 0; c < cols; c++) variance += ((double)x[c] - mean) * ((double)x[c] - mean);
    variance /= (double)cols;
    double rstd = 1 / sqrt(variance + (double)p->epsilon);
    for (int64_t c = 0; c < cols; c++)
        f32(p->y)[row * cols + c] =
            (float)(((double)x[c] - mean) * rstd * (double)f32(p->gamma)[c] + (double)f32(p->beta)[c]);
    f32(p->mean)[row] = (float)mean;
    f32(p->rstd)[row] = (float)rstd;
}

static void reference_norm_forward(const Exec *exec, const NormForward *p) {
    (void)exec;
    for (int64_t row = 0; row < p->x.rows; row++) norm_row(p, row);
}

static double normalized(Tensor x, Tensor mean, Tensor rstd, int64_t row, int64_t col) {
    return ((double)f32(x)[row * x.cols + col] - (double)f32(mean)[row]) * (double)f32(rstd)[row];
}

// With n = (x - mean) rstd and g = dy gamma:  dx = rstd (g - mean(g) - n mean(g n)), means over the row.
static void norm_backward_row(const NormBackwardInput *p, int64_t row) {
    int64_t cols = p->x.cols;
    double mean_g = 0, mean_gn = 0;
    for (int64_t c = 0; c < cols; c++) {
        double g = (double)f32(p->dy)[row * cols + c] * (double)f32(p->gamma)[c];
        mean_g += g / (double)cols;
        mean_gn += g * normalized(p->x, p->mean, p->rstd, row, c) / (double)cols;
    }
    for (int64_t c = 0; c < cols; c++) {
        int64_t i = row * cols + c;
        double g = (double)f32(p->dy)[i] * (double)f32(p->gamma)[c];
        double n = normalized(p->x, p->mean, p->rstd, row, c);
        double dx = (double)f32(p->rstd)[row] * (g - mean_g - n * mean_gn);
        f32(p->dx)[i] = (float)((p->residual.data ? (double)f32(p->residual)[i] : 0) + dx);
    }
}

static void reference_norm_backward_input(const Exec *exec, const NormBackwardInput *p) {
    (void)exec;
    for (int64_t row = 0; row < p->x.rows; row++) norm_backward_row(p, row);
}

static void reference_norm_backward_weight(const Exec *exec, const NormBackwardWeight *p) {
    (void)exec;
    for (int64_t c = 0; c < p->x.cols; c++) {
        double dgamma = f32(p->dgamma)[c], dbeta = f32(p->dbeta)[c];
        for (int64_t row = 0; row < p->x.rows; row++) {
            double dy = f32(p->dy)[row * p->x.cols + c];
            dgamma += dy * normalized(p->x, p->mean, p->rstd, row, c);
            dbeta += dy;
        }
        f32(p->dgamma)[c] = (float)dgamma;
        f32(p->dbeta)[c] = (float)dbeta;
    }
}

// ---- embedding
// ---------------------------------------------------------------------------------------------------

static bool local_row(int32_t token, int64_t first_row, Tensor table) {
    return token >= first_row && token < first_row + table.rows;
}

static void reference_embedding_forward(const Exec *exec, const EmbeddingForward *p) {
    (void)exec;
    for (int64_t i = 0; i < p->y.rows; i++) {
        int32_t token = i32(p->tokens)[i];
        bool local = local_row(token, p->first_row, p->table);
        for (int64_t c = 0; c < p->y.cols; c++)
            f32(p->y)[i * p->y.cols + c] = local ? f32(p->table)[(token - p->first_row) * p->y.cols + c] : 0;
    }
}

// Added in fp32, row by row, as the contract says.
static void reference_embedding_backward(const Exec *exec, const EmbeddingBackward *p) {
    (void)exec;
    for (int64_t i = 0; i < p->dy.rows; i++) {
        int32_t token = i32(p->tokens)[i];
        if (!local_row(token, p->first_row, p->dtable)) continue;
        float *row = f32(p->dtable) + (token - p->first_row) * p->dy.cols;
        for (int64_t c = 0; c < p->dy.cols; c++) row[c] += f32(p->dy)[i * p->dy.cols + c];
    }
}

static void reference_position_dropout(const Exec *exec, const PositionDropout *p) {
    (void)exec;
    int64_t cols = p->x.cols;
    for (int64_t i = 0; i < tensor_count(p->x); i++) {
        int64_t s = i / cols / p->dropout.samples;
        double sum = (double)f32(p->x)[i] + (double)f32(p->position)[s * cols + i % cols];
        f32(p->y)[i] = (float)(sum * dropout_factor(p->dropout, i, cols));
    }
}

static void reference_position_backward(const Exec *exec, const PositionBackward *p) {
    (void)exec;
    int64_t cols = p->dy.cols, sequence = p->dy.rows / p->samples;
    for (int64_t i = 0; i < sequence * cols; i++) {
        int64_t s = i / cols, c = i % cols;
        double sum = f32(p->dposition)[i];
        for (int64_t b = 0; b < p->samples; b++) sum += (double)f32(p->dy)[(s * p->samples + b) * cols + c];
        f32(p->dposition)[i] = (float)sum;
    }
}

// ---- loss
// --------------------------------------------------------------------------------------------------------

// How many of the local columns are vocabulary entries; the rest are padding.
static int64_t vocabulary_columns(int64_t first_col, int64_t vocabulary, int64_t cols) {
    int64_t left = vocabulary - first_col;
    return left < 0 ? 0 : left < cols ? left : cols;
}

static void reference_loss_max(const Exec *exec, const LossMax *p) {
    (void)exec;
    int64_t used = vocabulary_columns(p->first_col, p->vocabulary, p->logits.cols);
    for (int64_t i = 0; i < p->logits.rows; i++) {
        float max = -INFINITY;
        for (int64_t c = 0; c < used; c++) {
            float logit = f32(p->logits)[i * p->logits.cols + c];
            if (logit > max || isnan(logit)) max = logit; // a NaN must not be lost
        }
        f32(p->max)[i] = max;
    }
}

static void reference_loss_sum(const Exec *exec, const LossSum *p) {
    (void)exec;
    int64_t used = vocabulary_columns(p->first_col, p->vocabulary, p->logits.cols);
    for (int64_t i = 0; i < p->logits.rows; i++) {
        const float *logits = f32(p->logits) + i * p->logits.cols;
        double max = f32(p->max)[i], sum = 0;
        for (int64_t c = 0; c < used; c++) sum += exp((double)logits[c] - max);
        int64_t label = i32(p->labels)[i] - p->first_col;
        f32(p->sum)[i] = (float)sum;
        f32(p->target)[i] = label >= 0 && label < used ? (float)((double)logits[label] - max) : 0;
    }
}

static void reference_loss_finish(const Exec *exec, const LossFinish *p) {
    (void)exec;
    int64_t used = vocabulary_columns(p->first_col, p->vocabulary, p->logits.cols);
    for (int64_t i = 0; i < p->logits.rows; i++) {
        float *logits = f32(p->logits) + i * p->logits.cols;
        double max = f32(p->max)[i], sum = f32(p->sum)[i], mask = p->mask.data ? (double)f32(p->mask)[i] : 1;
        int64_t label = i32(p->labels)[i] - p->first_col;
        f32(p->loss)[i] = (float)(mask * (log(sum) - (double)f32(p->target)[i]));
        for (int64_t c = 0; c < p->logits.cols; c++) {
            double gradient = c < used ? exp((double)logits[c] - max) / sum - (c == label ? 1 : 0) : 0;
            logits[c] = (float)((double)p->scale * mask * gradient);
        }
    }
}

// ---- optimizer
// ---------------------------------------------------------------------------------------------------

static void reference_sum_squares(const Exec *exec, const SumSquares *p) {
    (void)exec;
    double sum = 0;
    for (int64_t i = 0; i < tensor_count(p->x); i++) sum += (double)f32(p->x)[i] * (double)f32(p->x)[i];
    *(double *)p->sum.data = sum;
}

static void reference_adamw(const Exec *exec, const AdamW *p) {
    (void)exec;
    for (int64_t i = 0; i < tensor_count(p->parameter); i++) {
        float *parameter = &f32(p->parameter)[i], *m = &f32(p->m)[i], *v = &f32(p->v)[i];
        double g = p->grad_scale * (double)f32(p->gradient)[i];
        double new_m = p->beta1 * (double)*m + (1 - p->beta1) * g;
        double new_v = p->beta2 * (double)*v + (1 - p->beta2) * g * g;
        double step = new_m / p->correction1 / (sqrt(new_v / p->correction2) + p->epsilon);
        *parameter = (float)((double)*parameter - p->lr * (step + p->weight_decay * (double)*parameter));
        *m = (float)new_m;
        *v = (float)new_v;
    }
}

static void reference_add(const Exec *exec, const Add *p) {
    (void)exec;
    for (int64_t i = 0; i < tensor_count(p->x); i++) f32(p->y)[i] += f32(p->x)[i];
}

// ---- the table
// ---------------------------------------------------------------------------------------------------

static size_t workspace_bytes(int threads, DeviceOp op, const void *args) {
    (void)threads;
    return reference_attention_workspace_bytes(op, args);
}

const Backend reference_backend = {
    .name = "reference",
#define X(NAME, function, Args, reads, writes) .function = reference_##function,
    DEVICE_OPS(X)
#undef X
        .workspace_bytes = workspace_bytes,
};
