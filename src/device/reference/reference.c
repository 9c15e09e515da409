// The reference backend: defines each operation by plain loops in fp64, on one thread, rounded once when stored. Read
// it beside ops.h; tests compare every other backend with it.
#include "device/reference/reference.h"
#include "base/float8.h"
#include "base/rank.h"
#include <math.h>

static const int32_t *i32(Tensor x) { return x.data; }

// ---- matrix products --------------------------------------------------------------------------------------

static double element(Tensor x, bool transpose, int64_t row, int64_t col) {
    return load(x, transpose ? col * x.cols + row : row * x.cols + col);
}

static void reference_matmul(const Exec *exec, const Matmul *p) {
    (void)exec;
    int64_t inner = p->transpose_a ? p->a.rows : p->a.cols;
    double scale = p->scale_a.data ? load(p->scale_a, 0) * load(p->scale_b, 0) : 1;
    for (int64_t i = 0; i < p->d.rows; i++)
        for (int64_t j = 0; j < p->d.cols; j++) {
            int64_t at = i * p->d.cols + j;
            double start = (p->accumulate ? load(p->d, at) : 0) + load_or_zero(p->bias, j), sum = 0;
            for (int64_t k = 0; k < inner; k++)
                sum += element(p->a, p->transpose_a, i, k) * element(p->b, p->transpose_b, k, j);
            store(p->d, at, start + scale * sum);
        }
}

static void reference_quantize(const Exec *exec, const Quantize *p) {
    (void)exec;
    float factor = float8_factor(p->q.dtype == E4M3 ? E4M3_MAX : E5M2_MAX, (float)load(p->max, 0));
    for (int64_t i = 0; i < p->x.rows; i++)
        for (int64_t j = 0; j < p->x.cols; j++)
            store(p->q, p->transpose ? j * p->x.rows + i : i * p->x.cols + j,
                  (double)((float)load(p->x, i * p->x.cols + j) * factor));
    store(p->scale, 0, (double)(1 / factor));
}

// ---- activations ------------------------------------------------------------------------------------------

static const double GELU_SCALE = 0.79788456080286535588, GELU_CUBE = 0.044715; // sqrt(2 / pi)

static double gelu(double u) { return 0.5 * u * (1 + tanh(GELU_SCALE * u * (1 + GELU_CUBE * u * u))); }

static double gelu_slope(double u) {
    double t = tanh(GELU_SCALE * u * (1 + GELU_CUBE * u * u));
    return 0.5 * (1 + t) + 0.5 * u * (1 - t * t) * GELU_SCALE * (1 + 3 * GELU_CUBE * u * u);
}

// The exact form of GELU. erfc, unlike 1 + erf, loses no digits in the negative tail.
static double normal_share(double u) { return 0.5 * erfc(-u * M_SQRT1_2); }

static double gelu_exact(double u) { return u * normal_share(u); }

static double gelu_exact_slope(double u) {
    double density = 0.39894228040143267794 * exp(-0.5 * u * u); // 1 / sqrt(2 pi)
    return normal_share(u) + u * density;
}

static double form_value(GeluForm form, double u) {
    if (form == RELU_SQUARED) return u > 0 ? u * u : 0 * u; // a NaN must not be lost
    return form == GELU_EXACT ? gelu_exact(u) : gelu(u);
}

static double form_slope(GeluForm form, double u) {
    if (form == RELU_SQUARED) return u > 0 ? 2 * u : 0 * u;
    return form == GELU_EXACT ? gelu_exact_slope(u) : gelu_slope(u);
}

static void reference_bias_gelu_forward(const Exec *exec, const BiasGeluForward *p) {
    (void)exec;
    for (int64_t i = 0; i < tensor_count(p->x); i++) {
        double u = load(p->x, i) + load_or_zero(p->bias, i % p->x.cols);
        store(p->y, i, form_value(p->form, u));
    }
}

static void reference_bias_gelu_backward(const Exec *exec, const BiasGeluBackward *p) {
    (void)exec;
    for (int64_t i = 0; i < tensor_count(p->x); i++) {
        double u = load(p->x, i) + load_or_zero(p->bias, i % p->x.cols);
        store(p->dx, i, load(p->dy, i) * form_slope(p->form, u));
    }
}

static double sigmoid(double g) { return 1 / (1 + exp(-g)); }

static const double QUICK = 1.702; // of GATE_QUICK

static double gate_of(GateForm form, double g) {
    if (form == GATE_GELU) return gelu(g);
    return g * sigmoid(form == GATE_QUICK ? QUICK * g : g);
}

static double gate_slope(GateForm form, double g) {
    double a = form == GATE_QUICK ? QUICK : 1, s = sigmoid(a * g);
    return form == GATE_GELU ? gelu_slope(g) : s * (1 + a * g * (1 - s));
}

// What the gate and the up column of GATE_QUICK become before they are used; they cut off nothing of others.
static double cut_gate(GateForm form, double g, float clamp) {
    return form == GATE_QUICK && g > (double)clamp ? (double)clamp : g;
}

static double cut_up(GateForm form, double u, float clamp) {
    double most = (double)clamp;
    return form != GATE_QUICK ? u : u > most ? most : u < -most ? -most : u;
}

static double factor_of_gate(GateForm form, double u, float clamp, float offset) {
    return cut_up(form, u, clamp) + (form == GATE_QUICK ? (double)offset : 0);
}

static void reference_swiglu_forward(const Exec *exec, const SwigluForward *p) {
    (void)exec;
    int64_t cols = p->y.cols;
    for (int64_t i = 0; i < tensor_count(p->y); i++) {
        int64_t c = i % cols, at = i / cols * 2 * cols + c;
        double g = load(p->x, at) + load_or_zero(p->bias, c);
        double u = load(p->x, at + cols) + load_or_zero(p->bias, c + cols);
        double gate = gate_of(p->form, cut_gate(p->form, g, p->clamp));
        store(p->y, i, gate * factor_of_gate(p->form, u, p->clamp, p->offset));
    }
}

static void reference_swiglu_backward(const Exec *exec, const SwigluBackward *p) {
    (void)exec;
    int64_t cols = p->dy.cols;
    for (int64_t i = 0; i < tensor_count(p->dy); i++) {
        int64_t c = i % cols, at = i / cols * 2 * cols + c;
        double g = load(p->x, at) + load_or_zero(p->bias, c);
        double u = load(p->x, at + cols) + load_or_zero(p->bias, c + cols);
        double dy = load(p->dy, i), cut = cut_gate(p->form, g, p->clamp);
        double factor = factor_of_gate(p->form, u, p->clamp, p->offset);
        bool cut_g = g > cut, cut_u = fabs(u) > fabs(cut_up(p->form, u, p->clamp));
        store(p->dx, at, cut_g ? 0 : dy * factor * gate_slope(p->form, g));
        store(p->dx, at + cols, cut_u ? 0 : dy * gate_of(p->form, cut));
    }
}

// ---- dropout, residual ------------------------------------------------------------------------------------

// Returns the dropout factor of element `i` of a tensor that holds rows first_row... of [S*B, H]: row s*B + b,
// column c is element s*H + c of sample b.
static double dropout_factor(Dropout dropout, int64_t i, int64_t cols) {
    if (dropout.probability == 0) return 1;
    int64_t row = dropout.first_row + i / cols, s = row / dropout.samples, b = row % dropout.samples;
    int64_t width = dropout.cols ? dropout.cols : cols;
    return reference_dropout_factor(dropout, dropout.first_sample + b,
                                    s * width + dropout.first_col + i % cols);
}

static void reference_bias_dropout_add(const Exec *exec, const BiasDropoutAdd *p) {
    (void)exec;
    for (int64_t i = 0; i < tensor_count(p->x); i++) {
        double u = load(p->x, i) + load_or_zero(p->bias, i % p->x.cols);
        store(p->y, i, load(p->residual, i) + u * dropout_factor(p->dropout, i, p->x.cols));
    }
}

static void reference_dropout_backward(const Exec *exec, const DropoutBackward *p) {
    (void)exec;
    for (int64_t i = 0; i < tensor_count(p->dy); i++)
        store(p->dx, i, load(p->dy, i) * dropout_factor(p->dropout, i, p->dy.cols));
}

static void reference_scale(const Exec *exec, const Scale *p) {
    (void)exec;
    for (int64_t i = 0; i < tensor_count(p->x); i++) store(p->y, i, (double)p->factor * load(p->x, i));
}

static void reference_soft_cap(const Exec *exec, const SoftCap *p) {
    (void)exec;
    double cap = (double)p->cap;
    for (int64_t i = 0; i < tensor_count(p->x); i++) store(p->y, i, cap * tanh(load(p->x, i) / cap));
}

static void reference_soft_cap_backward(const Exec *exec, const SoftCapBackward *p) {
    (void)exec;
    for (int64_t i = 0; i < tensor_count(p->dy); i++) {
        double share = load(p->y, i) / (double)p->cap;
        store(p->dx, i, load(p->dy, i) * (1 - share * share));
    }
}

static void reference_column_sum(const Exec *exec, const ColumnSum *p) {
    (void)exec;
    for (int64_t c = 0; c < p->x.cols; c++) {
        double sum = load(p->sum, c);
        for (int64_t r = 0; r < p->x.rows; r++) sum += load(p->x, r * p->x.cols + c);
        store(p->sum, c, sum);
    }
}

// ---- norms ------------------------------------------------------------------------------------------------

static void norm_row(const NormForward *p, int64_t row) {
    int64_t cols = p->x.cols, first = row * cols;
    double mean = 0, variance = 0;
    for (int64_t c = 0; c < cols && p->mean.data; c++) mean += load(p->x, first + c) / (double)cols;
    for (int64_t c = 0; c < cols; c++) {
        double centred = load(p->x, first + c) - mean;
        variance += centred * centred / (double)cols;
    }
    double rstd = 1 / sqrt(variance + (double)p->epsilon);
    for (int64_t c = 0; c < cols; c++) {
        double n = (load(p->x, first + c) - mean) * rstd;
        store(p->y, first + c, n * ((double)p->offset + load(p->gamma, c)) + load_or_zero(p->beta, c));
    }
    if (p->mean.data) store(p->mean, row, mean);
    store(p->rstd, row, rstd);
}

static void reference_norm_forward(const Exec *exec, const NormForward *p) {
    (void)exec;
    for (int64_t row = 0; row < p->x.rows; row++) norm_row(p, row);
}

static double normalized(Tensor x, Tensor mean, Tensor rstd, int64_t row, int64_t col) {
    return (load(x, row * x.cols + col) - load_or_zero(mean, row)) * load(rstd, row);
}

// With n = (x - mean) rstd and g = dy gamma:  dx = rstd (g - mean(g) - n mean(g n)), means over the row. RMS
// norm subtracts no mean in the forward, so no mean(g) either.
static void norm_backward_row(const NormBackwardInput *p, int64_t row) {
    int64_t cols = p->x.cols;
    double mean_g = 0, mean_gn = 0;
    for (int64_t c = 0; c < cols; c++) {
        double g = load(p->dy, row * cols + c) * ((double)p->offset + load(p->gamma, c));
        if (p->mean.data) mean_g += g / (double)cols;
        mean_gn += g * normalized(p->x, p->mean, p->rstd, row, c) / (double)cols;
    }
    for (int64_t c = 0; c < cols; c++) {
        int64_t i = row * cols + c;
        double g = load(p->dy, i) * ((double)p->offset + load(p->gamma, c));
        double n = normalized(p->x, p->mean, p->rstd, row, c);
        store(p->dx, i, load_or_zero(p->residual, i) + load(p->rstd, row) * (g - mean_g - n * mean_gn));
    }
}

static void reference_norm_backward_input(const Exec *exec, const NormBackwardInput *p) {
    (void)exec;
    for (int64_t row = 0; row < p->x.rows; row++) norm_backward_row(p, row);
}

static void reference_norm_backward_weight(const Exec *exec, const NormBackwardWeight *p) {
    (void)exec;
    for (int64_t c = 0; c < p->x.cols; c++) {
        double dgamma = load(p->dgamma, c), dbeta = load_or_zero(p->dbeta, c);
        for (int64_t row = 0; row < p->x.rows; row++) {
            double dy = load(p->dy, row * p->x.cols + c);
            dgamma += dy * normalized(p->x, p->mean, p->rstd, row, c);
            dbeta += dy;
        }
        store(p->dgamma, c, dgamma);
        if (p->dbeta.data) store(p->dbeta, c, dbeta);
    }
}

// ---- embedding --------------------------------------------------------------------------------------------

static bool local_row(int32_t token, int64_t first_row, Tensor table) {
    return token >= first_row && token < first_row + table.rows;
}

static void reference_embedding_forward(const Exec *exec, const EmbeddingForward *p) {
    (void)exec;
    int64_t cols = p->y.cols;
    for (int64_t i = 0; i < p->y.rows; i++) {
        int64_t row = i32(p->tokens)[i] - p->first_row;
        bool local = local_row(i32(p->tokens)[i], p->first_row, p->table);
        for (int64_t c = 0; c < cols; c++)
            store(p->y, i * cols + c, local ? load(p->table, row * cols + c) : 0);
    }
}

// Adds in fp32, row by row, as ops.h says.
static void reference_embedding_backward(const Exec *exec, const EmbeddingBackward *p) {
    (void)exec;
    int64_t cols = p->dy.cols;
    for (int64_t i = 0; i < p->dy.rows; i++) {
        int64_t row = i32(p->tokens)[i] - p->first_row;
        if (!local_row(i32(p->tokens)[i], p->first_row, p->dtable)) continue;
        for (int64_t c = 0; c < cols; c++)
            store(p->dtable, row * cols + c, load(p->dtable, row * cols + c) + load(p->dy, i * cols + c));
    }
}

static void reference_position_dropout(const Exec *exec, const PositionDropout *p) {
    (void)exec;
    int64_t cols = p->x.cols;
    for (int64_t i = 0; i < tensor_count(p->x); i++) {
        int64_t s = (p->dropout.first_row + i / cols) / p->dropout.samples;
        double sum = load(p->x, i) + load_or_zero(p->position, s * cols + i % cols);
        store(p->y, i, sum * dropout_factor(p->dropout, i, cols));
    }
}

static void reference_position_backward(const Exec *exec, const PositionBackward *p) {
    (void)exec;
    int64_t cols = p->dy.cols, sequence = p->dy.rows / p->samples, first = p->first_row / p->samples;
    for (int64_t i = 0; i < sequence * cols; i++) {
        int64_t s = i / cols, c = i % cols;
        double sum = load(p->dposition, first * cols + i);
        for (int64_t b = 0; b < p->samples; b++) sum += load(p->dy, (s * p->samples + b) * cols + c);
        store(p->dposition, first * cols + i, sum);
    }
}

// ---- loss -------------------------------------------------------------------------------------------------

// Returns how many of the local columns are vocabulary entries; the rest are padding.
static int64_t vocabulary_columns(int64_t first_col, int64_t vocabulary, int64_t cols) {
    int64_t left = vocabulary - first_col;
    return left < 0 ? 0 : left < cols ? left : cols;
}

static void reference_loss_max(const Exec *exec, const LossMax *p) {
    (void)exec;
    int64_t used = vocabulary_columns(p->first_col, p->vocabulary, p->logits.cols);
    for (int64_t i = 0; i < p->logits.rows; i++) {
        double max = -INFINITY;
        for (int64_t c = 0; c < used; c++) {
            double logit = load(p->logits, i * p->logits.cols + c);
            if (logit > max || isnan(logit)) max = logit; // a NaN must not be lost
        }
        store(p->max, i, max);
    }
}

static void reference_loss_sum(const Exec *exec, const LossSum *p) {
    (void)exec;
    int64_t used = vocabulary_columns(p->first_col, p->vocabulary, p->logits.cols);
    for (int64_t i = 0; i < p->logits.rows; i++) {
        int64_t first = i * p->logits.cols, label = i32(p->labels)[i] - p->first_col;
        double max = load(p->max, i), sum = 0;
        for (int64_t c = 0; c < used; c++) sum += exp(load(p->logits, first + c) - max);
        store(p->sum, i, sum);
        store(p->target, i, label >= 0 && label < used ? load(p->logits, first + label) - max : 0);
    }
}

static void reference_loss_finish(const Exec *exec, const LossFinish *p) {
    (void)exec;
    int64_t cols = p->logits.cols, used = vocabulary_columns(p->first_col, p->vocabulary, cols);
    for (int64_t i = 0; i < p->logits.rows; i++) {
        double max = load(p->max, i), sum = load(p->sum, i), mask = p->mask.data ? load(p->mask, i) : 1;
        int64_t label = i32(p->labels)[i] - p->first_col;
        store(p->loss, i, mask * (log(sum) - load(p->target, i)));
        for (int64_t c = 0; c < cols; c++) {
            double softmax = c < used ? exp(load(p->logits, i * cols + c) - max) / sum : 0;
            double one = c == label && c < used ? 1 : 0;
            store(p->dlogits, i * cols + c, (double)p->scale * mask * (softmax - one));
        }
    }
}

// ---- optimizer --------------------------------------------------------------------------------------------

static void reference_abs_max(const Exec *exec, const AbsMax *p) {
    (void)exec;
    double max = load(p->max, 0);
    for (int64_t i = 0; i < tensor_count(p->x); i++) {
        double x = fabs(load(p->x, i));
        if (isnan(x)) x = INFINITY;
        if (x > max) max = x;
    }
    store(p->max, 0, max);
}

static double round_down(double x, double quantum) { return quantum * floor(x / quantum); }

static void sum_squares_flat(const SumSquares *p) {
    double *sum = p->sum.data, scale = ldexp(1, -p->exponent);
    for (int64_t i = 0; i < tensor_count(p->x); i++) {
        double x = load(p->x, i) * scale; // exact, and so is its square
        bool fits = fabs(x) <= 1;
        CHECK(fits || p->max.data, "sum_squares: x[%lld] = %g is above 2^%d", (long long)i, load(p->x, i),
              p->exponent);
        if (!fits) continue;
        double q = x * x;
        double high = round_down(q, 0x1p-20), middle = round_down(q - high, 0x1p-40);
        sum[0] += high;
        sum[1] += middle;
        sum[2] += round_down(q - high - middle, 0x1p-60);
    }
}

static void reference_sum_squares(const Exec *exec, const SumSquares *p) {
    for (int i = 0; i < segments_or_one(p->num_segments); i++) {
        SumSquares one = sum_squares_segment(p, i);
        sum_squares_flat(&one);
        if (one.max.data) reference_abs_max(exec, &(AbsMax){one.x, one.max});
    }
}

static double load_parameter(Tensor parameter, Tensor value, int64_t i) {
    const uint16_t *high = value.data, *low = parameter.data;
    return parameter.dtype == U16 ? (double)bf16_join(high[i], low[i]) : load(parameter, i);
}

static void store_parameter(Tensor parameter, Tensor value, int64_t i, double x) {
    uint16_t *high = value.data, *low = parameter.data;
    if (parameter.dtype == U16) {
        high[i] = bf16_split((float)x, &low[i]);
        return;
    }
    store(parameter, i, x);
    if (value.data) store(value, i, load(parameter, i));
}

static void adamw_flat(const AdamW *p) {
    for (int64_t i = 0; i < tensor_count(p->parameter); i++) {
        double parameter = load_parameter(p->parameter, p->value, i),
               g = p->grad_scale * load(p->gradient, i);
        double m = p->beta1 * load(p->m, i) + (1 - p->beta1) * g;
        double v = p->beta2 * load(p->v, i) + (1 - p->beta2) * g * g;
        double step = m / p->correction1 / (sqrt(v / p->correction2) + p->epsilon);
        store_parameter(p->parameter, p->value, i, parameter - p->lr * (step + p->weight_decay * parameter));
        store(p->m, i, m);
        store(p->v, i, v);
    }
}

static void reference_adamw(const Exec *exec, const AdamW *p) {
    (void)exec;
    for (int i = 0; i < segments_or_one(p->num_segments); i++) {
        AdamW one = adamw_segment(p, i);
        adamw_flat(&one);
    }
}

static void reference_blend(const Exec *exec, const Blend *p) {
    (void)exec;
    for (int64_t i = 0; i < tensor_count(p->x); i++) {
        double x = load_parameter(p->x, p->x_value, i);
        double y = blend_reads(p) ? load_parameter(p->y, p->y_value, i) : 0;
        store_parameter(p->y, p->y_value, i, p->keep * y + p->factor * (x + p->own * y));
    }
}

static void reference_add(const Exec *exec, const Add *p) {
    (void)exec;
    for (int64_t i = 0; i < tensor_count(p->x); i++) store(p->y, i, load(p->y, i) + load(p->x, i));
}

// Element c of a row of the columns that a piece names.
static double piece_sum(const ArrangeColumns *p, const ColumnPiece *piece, int64_t row, int64_t c) {
    if (piece->source == SOURCE_ZEROS) return 0;
    Tensor x = (&p->a)[piece->source];
    double sum = load(x, row * x.cols + c);
    for (int64_t i = 1; i < piece->terms; i++) sum += load(x, row * x.cols + c + i * piece->stride);
    return sum;
}

static void reference_arrange_columns(const Exec *exec, const ArrangeColumns *p) {
    (void)exec;
    int64_t at = 0;
    for (int64_t row = 0; row < p->y.rows; row++)
        for (int64_t block = 0; block < p->blocks; block++)
            for (const ColumnPiece *piece = p->pieces; piece < p->pieces + MAX_PIECES; piece++)
                for (int64_t c = 0; c < piece->width; c++)
                    store(p->y, at++, piece_sum(p, piece, row, piece->first + block * piece->step + c));
}

// ---- the table --------------------------------------------------------------------------------------------

static size_t workspace_bytes(const DeviceOptions *options, DeviceOp op, const void *args) {
    (void)options;
    return reference_attention_workspace_bytes(op, args);
}

const Backend reference_backend = {
    .name = "reference",
#define X(NAME, function, Args, reads, writes) .function = reference_##function,
    BASIC_OPS(X)
#undef X
        .workspace_bytes = workspace_bytes,
};
