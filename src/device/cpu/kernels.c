// The kernels of one instruction set and element type: every operation but matrix products and attention,
// as loops over rows, panels of columns or blocks that OpenMP hands out. Each piece is computed by one
// thread in one order.
#include "device/cpu/cpu.h"
#include "device/cpu/mask.h"
#include "device/cpu/vector.h"

static Element *row_of(Tensor x, int64_t row) { return (Element *)x.data + row * x.cols; }
static float *floats_of(Tensor x, int64_t row) { return (float *)x.data + row * x.cols; }
static float *vector(Tensor x) { return x.data; } // of F32

// Elements from `c` on of a row that may be absent: then zeros.
static inline Floats load_optional(const Element *row, int64_t c, int64_t left) {
    return row ? load_e(row + c, left) : (Floats){0};
}

// One addition waits for the one before: a sum over a row, or a maximum, grows in several vectors.
enum { SUMS = 4 };

// ---- activations ------------------------------------------------------------------------------------------

// Rows are worked through in whole vectors, then what is left of them: the same instructions, but without
// `left` to look at. Each kernel has them in a function named _at.

// gelu(u) = u * sigmoid(2 z) with z = 0.79788456 u (1 + 0.044715 u^2), since (1 + tanh z) / 2 = sigmoid(2 z):
// exact to the last places in the negative tail too, where 1 + tanh cancels. With powers of 2, z in units of
// ln 2 / 2, sigmoid = 2^x / (1 + 2^x), which is 1 long before x = 110.
static inline Floats gelu_exponent(Floats u) {
    return u * fused(splat(0.1029432396f), u * u, splat(2.302208198f));
}

static inline Floats gelu(Floats u) {
    Floats x = gelu_exponent(u), e = exponential_of_base_2(choose(x > 110.0f, splat(110.0f), x));
    return u * (e * reciprocal(1.0f + e)); // u e would overflow long before u does
}

// gate + u gate (1 - gate) d(2z)/du. From e = exp(-|2z|) both gate and 1 - gate come without cancellation.
static inline Floats gelu_slope(Floats u) {
    Floats x = gelu_exponent(u);
    Ints negative = x < 0;
    Floats e = exponential_of_base_2(choose(negative, x, -x));
    Floats large = reciprocal(1.0f + e), small = e * large;
    Floats slope_of_twice_z = fused(splat(0.2140644488f), u * u, splat(1.595769122f));
    return fused(u * (small * large), slope_of_twice_z, choose(negative, small, large));
}

// The exact form, u times the share of the normal distribution below u, from exp(-u^2 / 2), which its slope
// needs too. The tail beyond |u| is that times t P(t), t = 1 / (1 + 0.265 |u|); the polynomial is a minimax
// fit over |u| < 13.3, error 1.1e-8 of the tail. Beyond 14 the tail is 0.
typedef struct {
    Floats below, exponential; // the share below u; exp(-u^2 / 2)
} Normal;

static inline Normal normal_of(Floats u) {
    Ints negative = u < 0;
    Floats x = choose(negative, -u, u);
    x = choose(x > 14.0f, splat(14.0f), x);
    Floats t = reciprocal(fused(splat(0.265f), x, splat(1.0f))), e = exponential(-0.5f * (x * x));
    static const float coefficients[] = {-0x1.284520p-3f, 0x1.bfdfbcp-3f, -0x1.e09c56p-4f, 0x1.1bdfd6p-3f,
                                         0x1.ebd60ap-5f,  0x1.a4f246p-4f, 0x1.af0d14p-4f,  0x1.b11ea8p-4f};
    Floats p = splat(0x1.fa79b8p-6f);
    for (size_t i = 0; i < sizeof coefficients / sizeof *coefficients; i++)
        p = fused(p, t, splat(coefficients[i]));
    Floats tail = e * (p * t);
    return (Normal){choose(negative, tail, 1.0f - tail), e};
}

static inline Floats gelu_exact(Floats u) { return u * normal_of(u).below; }

static inline Floats gelu_exact_slope(Floats u) {
    Normal normal = normal_of(u);
    return fused(u, normal.exponential * 0.3989422804f, normal.below); // 1 / sqrt(2 pi)
}

// max(u, 0), and NaN where u is NaN.
static inline Floats positive_part(Floats u) { return choose(u < 0, splat(0), u); }

static inline Floats form_value(GeluForm form, Floats u) {
    Floats positive = positive_part(u);
    return form == RELU_SQUARED ? positive * positive : form == GELU_EXACT ? gelu_exact(u) : gelu(u);
}

static inline Floats form_slope(GeluForm form, Floats u) {
    if (form == RELU_SQUARED) return 2.0f * positive_part(u);
    return form == GELU_EXACT ? gelu_exact_slope(u) : gelu_slope(u);
}

static inline void gelu_at(const Element *x, const Element *bias, Element *y, GeluForm form, int64_t c,
                           int64_t left) {
    Floats u = load_e(x + c, left) + load_optional(bias, c, left);
    store_e(y + c, left, form_value(form, u));
}

static inline void bias_gelu_row(const BiasGeluForward *p, GeluForm form, int64_t row) {
    const Element *x = row_of(p->x, row), *bias = p->bias.data;
    Element *y = row_of(p->y, row);
    int64_t cols = p->x.cols, c = 0;
    for (; c + LANES <= cols; c += LANES) gelu_at(x, bias, y, form, c, LANES);
    if (c < cols) gelu_at(x, bias, y, form, c, cols - c);
}

static void cpu_bias_gelu_forward(const Exec *exec, const BiasGeluForward *p) {
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->x))) schedule(static)
    for (int64_t row = 0; row < p->x.rows; row++) switch (p->form) {
        case GELU_TANH: bias_gelu_row(p, GELU_TANH, row); break;
        case GELU_EXACT: bias_gelu_row(p, GELU_EXACT, row); break;
        case RELU_SQUARED: bias_gelu_row(p, RELU_SQUARED, row); break;
        }
}

static inline void gelu_backward_at(const Element *dy, const Element *x, const Element *bias, Element *dx,
                                    GeluForm form, int64_t c, int64_t left) {
    Floats u = load_e(x + c, left) + load_optional(bias, c, left);
    store_e(dx + c, left, load_e(dy + c, left) * form_slope(form, u));
}

static inline void bias_gelu_backward_row(const BiasGeluBackward *p, GeluForm form, int64_t row) {
    const Element *dy = row_of(p->dy, row), *x = row_of(p->x, row), *bias = p->bias.data;
    Element *dx = row_of(p->dx, row);
    int64_t cols = p->x.cols, c = 0;
    for (; c + LANES <= cols; c += LANES) gelu_backward_at(dy, x, bias, dx, form, c, LANES);
    if (c < cols) gelu_backward_at(dy, x, bias, dx, form, c, cols - c);
}

static void cpu_bias_gelu_backward(const Exec *exec, const BiasGeluBackward *p) {
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->x))) schedule(static)
    for (int64_t row = 0; row < p->x.rows; row++) switch (p->form) {
        case GELU_TANH: bias_gelu_backward_row(p, GELU_TANH, row); break;
        case GELU_EXACT: bias_gelu_backward_row(p, GELU_EXACT, row); break;
        case RELU_SQUARED: bias_gelu_backward_row(p, RELU_SQUARED, row); break;
        }
}

// silu(g) = g e^g / (1 + e^g), with the exponent limited as in gelu.
static inline Floats silu(Floats g) {
    Floats e = exponential_of_base_2(choose(g > 80.0f, splat(80.0f), g) * LOG2_E);
    return g * (e * reciprocal(1.0f + e));
}

static inline void swiglu_at(const Element *gate, const Element *up, const Element *bias, Element *y,
                             bool is_gelu, int64_t cols, int64_t c, int64_t left) {
    Floats g = load_e(gate + c, left) + load_optional(bias, c, left);
    Floats u = load_e(up + c, left) + load_optional(bias, cols + c, left);
    store_e(y + c, left, (is_gelu ? gelu(g) : silu(g)) * u);
}

static inline void swiglu_row(const SwigluForward *p, bool is_gelu, int64_t row) {
    int64_t cols = p->y.cols, c = 0;
    const Element *gate = row_of(p->x, row), *up = gate + cols, *bias = p->bias.data;
    Element *y = row_of(p->y, row);
    for (; c + LANES <= cols; c += LANES) swiglu_at(gate, up, bias, y, is_gelu, cols, c, LANES);
    if (c < cols) swiglu_at(gate, up, bias, y, is_gelu, cols, c, cols - c);
}

static const float QUICK = 1.702f;

// GATE_QUICK: g sigmoid(1.702 g) (u + offset), of what the clamp leaves of g and u. A NaN stays one.
static inline void quick_at(const SwigluForward *p, const Element *gate, Element *y, int64_t c,
                            int64_t left) {
    const Element *bias = p->bias.data;
    int64_t cols = p->y.cols;
    Floats g = load_e(gate + c, left) + load_optional(bias, c, left);
    Floats u = load_e(gate + cols + c, left) + load_optional(bias, cols + c, left), most = splat(p->clamp);
    g = choose(g > most, most, g);
    u = choose(u > most, most, choose(u < -most, -most, u));
    Floats z = g * QUICK, e = exponential_of_base_2(choose(z > 80.0f, splat(80.0f), z) * LOG2_E);
    store_e(y + c, left, g * (e * reciprocal(1.0f + e)) * (u + p->offset));
}

static void quick_row(const SwigluForward *p, int64_t row) {
    int64_t cols = p->y.cols, c = 0;
    const Element *gate = row_of(p->x, row);
    Element *y = row_of(p->y, row);
    for (; c + LANES <= cols; c += LANES) quick_at(p, gate, y, c, LANES);
    if (c < cols) quick_at(p, gate, y, c, cols - c);
}

static void cpu_swiglu_forward(const Exec *exec, const SwigluForward *p) {
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->x))) schedule(static)
    for (int64_t row = 0; row < p->x.rows; row++) switch (p->form) {
        case GATE_SILU: swiglu_row(p, false, row); break;
        case GATE_GELU: swiglu_row(p, true, row); break;
        case GATE_QUICK: quick_row(p, row); break;
        }
}

// With s = sigmoid(g): dg = dy u (s + g s (1 - s)), du = dy g s. As for gelu, e = exp(-|g|) gives both s
// and 1 - s.
static inline void swiglu_backward_at(const Element *dy, const Element *x, const Element *bias, Element *dx,
                                      int64_t cols, int64_t c, int64_t left) {
    Floats g = load_e(x + c, left) + load_optional(bias, c, left);
    Floats u = load_e(x + cols + c, left) + load_optional(bias, cols + c, left), d = load_e(dy + c, left);
    Ints negative = g < 0;
    Floats e = exponential_of_base_2(choose(negative, g, -g) * LOG2_E);
    Floats large = reciprocal(1.0f + e), small = e * large, s = choose(negative, small, large);
    store_e(dx + c, left, d * u * fused(g, small * large, s));
    store_e(dx + cols + c, left, d * (g * s));
}

// dg = dy u gelu'(g), du = dy gelu(g).
static inline void geglu_backward_at(const Element *dy, const Element *x, const Element *bias, Element *dx,
                                     int64_t cols, int64_t c, int64_t left) {
    Floats g = load_e(x + c, left) + load_optional(bias, c, left);
    Floats u = load_e(x + cols + c, left) + load_optional(bias, cols + c, left), d = load_e(dy + c, left);
    store_e(dx + c, left, d * u * gelu_slope(g));
    store_e(dx + cols + c, left, d * gelu(g));
}

// With s = sigmoid(1.702 g), of what the clamp leaves of g and u: dg = dy (u + offset) (s + 1.702 g s (1 - s)), and
// du = dy g s; of what it cuts off both are 0.
static inline void quick_backward_at(const SwigluBackward *p, const Element *dy, const Element *x,
                                     Element *dx, int64_t c, int64_t left) {
    const Element *bias = p->bias.data;
    int64_t cols = p->dy.cols;
    Floats g = load_e(x + c, left) + load_optional(bias, c, left);
    Floats u = load_e(x + cols + c, left) + load_optional(bias, cols + c, left), d = load_e(dy + c, left);
    Floats most = splat(p->clamp), none = splat(0.0f);
    Ints cut_g = g > most, above = u > most, below = u < -most;
    g = choose(cut_g, most, g);
    u = choose(above, most, choose(below, -most, u));
    Floats z = g * QUICK;
    Ints negative = z < 0;
    Floats e = exponential_of_base_2(choose(negative, z, -z) * LOG2_E);
    Floats large = reciprocal(1.0f + e), small = e * large, s = choose(negative, small, large);
    store_e(dx + c, left, choose(cut_g, none, d * (u + p->offset) * fused(z, small * large, s)));
    store_e(dx + cols + c, left, choose(above | below, none, d * (g * s)));
}

static void quick_backward_row(const SwigluBackward *p, int64_t row) {
    int64_t cols = p->dy.cols, c = 0;
    const Element *dy = row_of(p->dy, row), *x = row_of(p->x, row);
    Element *dx = row_of(p->dx, row);
    for (; c + LANES <= cols; c += LANES) quick_backward_at(p, dy, x, dx, c, LANES);
    if (c < cols) quick_backward_at(p, dy, x, dx, c, cols - c);
}

static void geglu_backward_row(const SwigluBackward *p, int64_t row) {
    const Element *dy = row_of(p->dy, row), *x = row_of(p->x, row), *bias = p->bias.data;
    Element *dx = row_of(p->dx, row);
    int64_t cols = p->dy.cols, c = 0;
    for (; c + LANES <= cols; c += LANES) geglu_backward_at(dy, x, bias, dx, cols, c, LANES);
    if (c < cols) geglu_backward_at(dy, x, bias, dx, cols, c, cols - c);
}

static void swiglu_backward_row(const SwigluBackward *p, int64_t row) {
    const Element *dy = row_of(p->dy, row), *x = row_of(p->x, row), *bias = p->bias.data;
    Element *dx = row_of(p->dx, row);
    int64_t cols = p->dy.cols, c = 0;
    for (; c + LANES <= cols; c += LANES) swiglu_backward_at(dy, x, bias, dx, cols, c, LANES);
    if (c < cols) swiglu_backward_at(dy, x, bias, dx, cols, c, cols - c);
}

static void cpu_swiglu_backward(const Exec *exec, const SwigluBackward *p) {
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->x))) schedule(static)
    for (int64_t row = 0; row < p->x.rows; row++) switch (p->form) {
        case GATE_SILU: swiglu_backward_row(p, row); break;
        case GATE_GELU: geglu_backward_row(p, row); break;
        case GATE_QUICK: quick_backward_row(p, row); break;
        }
}

// ---- dropout, residual ------------------------------------------------------------------------------------

// The mask of row s*B + b is that of sample first_sample + b; its column 0 is element s*H + first_col, which is
// returned.
static uint64_t mask_open_row(Mask *mask, const Dropout *dropout, int64_t row, int64_t cols) {
    row += dropout->first_row;
    mask_open(mask, dropout);
    mask->sample = (uint64_t)(dropout->first_sample + row % dropout->samples);
    int64_t width = dropout->cols ? dropout->cols : cols;
    return (uint64_t)(row / dropout->samples * width + dropout->first_col);
}

static inline void bias_add_at(const Element *x, const Element *bias, const Element *residual, Element *y,
                               int64_t c, int64_t left) {
    Floats u = load_e(x + c, left) + load_optional(bias, c, left);
    store_e(y + c, left, load_e(residual + c, left) + u);
}

static void bias_dropout_add_row(const BiasDropoutAdd *p, int64_t row) {
    const Element *x = row_of(p->x, row), *bias = p->bias.data, *residual = row_of(p->residual, row);
    Element *y = row_of(p->y, row);
    int64_t cols = p->x.cols, at = 0;
    if (p->dropout.probability == 0) {
        for (; at + LANES <= cols; at += LANES) bias_add_at(x, bias, residual, y, at, LANES);
        if (at < cols) bias_add_at(x, bias, residual, y, at, cols - at);
        return;
    }
    Mask mask;
    uint64_t index = mask_open_row(&mask, &p->dropout, row, cols);
    for (int64_t first = 0; first < cols; first += MASK_SPAN) {
        int64_t end = at_most(first + MASK_SPAN, cols);
        const uint32_t *words = mask_span(&mask, index + (uint64_t)first, end - first);
        for (int64_t c = first; c < end; c += LANES) {
            Floats u = load_e(x + c, end - c) + load_optional(bias, c, end - c);
            Floats sum = load_e(residual + c, end - c) + mask_apply(&mask, words + (c - first), u);
            store_e(y + c, end - c, sum);
        }
    }
}

static void cpu_bias_dropout_add(const Exec *exec, const BiasDropoutAdd *p) {
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->x))) schedule(static)
    for (int64_t row = 0; row < p->x.rows; row++) bias_dropout_add_row(p, row);
}

static void dropout_backward_row(const DropoutBackward *p, int64_t row) {
    const Element *dy = row_of(p->dy, row);
    Element *dx = row_of(p->dx, row);
    int64_t cols = p->dy.cols;
    if (p->dropout.probability == 0) {
        if (dx != dy) memcpy(dx, dy, (size_t)cols * sizeof *dx);
        return;
    }
    Mask mask;
    uint64_t index = mask_open_row(&mask, &p->dropout, row, cols);
    for (int64_t first = 0; first < cols; first += MASK_SPAN) {
        int64_t end = at_most(first + MASK_SPAN, cols);
        const uint32_t *words = mask_span(&mask, index + (uint64_t)first, end - first);
        for (int64_t c = first; c < end; c += LANES)
            store_e(dx + c, end - c, mask_apply(&mask, words + (c - first), load_e(dy + c, end - c)));
    }
}

static void cpu_dropout_backward(const Exec *exec, const DropoutBackward *p) {
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->dy))) schedule(static)
    for (int64_t row = 0; row < p->dy.rows; row++) dropout_backward_row(p, row);
}

static void position_dropout_row(const PositionDropout *p, int64_t row) {
    const Element *x = row_of(p->x, row), *position = NULL;
    if (p->position.data) position = row_of(p->position, (p->dropout.first_row + row) / p->dropout.samples);
    Element *y = row_of(p->y, row);
    int64_t cols = p->x.cols;
    Mask mask;
    uint64_t index = mask_open_row(&mask, &p->dropout, row, cols);
    for (int64_t first = 0; first < cols; first += MASK_SPAN) {
        int64_t end = at_most(first + MASK_SPAN, cols);
        const uint32_t *words = mask_span(&mask, index + (uint64_t)first, end - first);
        for (int64_t c = first; c < end; c += LANES) {
            Floats u = load_e(x + c, end - c) + load_optional(position, c, end - c);
            store_e(y + c, end - c, mask_apply(&mask, words + (c - first), u));
        }
    }
}

static void cpu_position_dropout(const Exec *exec, const PositionDropout *p) {
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->x))) schedule(static)
    for (int64_t row = 0; row < p->x.rows; row++) position_dropout_row(p, row);
}

// ---- sums over rows ---------------------------------------------------------------------------------------

// Every thread has its own columns, so no two ever add to the same place; and since a column's sum does not
// depend on its neighbours, the width may follow the number of threads. Whole cache lines: 16 floats.
static int64_t panel_width(int team, int64_t cols) {
    return cpu_num_blocks(cpu_num_blocks(cols, team), 16) * 16;
}

enum { ROWS_TOGETHER = 8 }; // per pass over the sums, which lie in the cache

// `x` is that of the first of `count` rows.
static inline void column_sum_at(const Element *x, int64_t cols, int64_t count, float *sum, int64_t left) {
    Floats part = {0};
    for (int64_t r = 0; r < count; r++) part += load_e(x + r * cols, left);
    store(sum, left, load(sum, left) + part);
}

static void column_sum_panel(const ColumnSum *p, int64_t first, int64_t end) {
    float *sum = vector(p->sum);
    int64_t cols = p->x.cols, rows = p->x.rows;
    for (int64_t row = 0; row < rows; row += ROWS_TOGETHER) {
        int64_t count = at_most(ROWS_TOGETHER, rows - row), c = first;
        const Element *x = row_of(p->x, row);
        for (; count == ROWS_TOGETHER && c + LANES <= end; c += LANES)
            column_sum_at(x + c, cols, ROWS_TOGETHER, sum + c, LANES);
        for (; c < end; c += LANES) column_sum_at(x + c, cols, count, sum + c, end - c);
    }
}

static void cpu_column_sum(const Exec *exec, const ColumnSum *p) {
    int team = cpu_team(exec, tensor_count(p->x));
    int64_t cols = p->x.cols, width = panel_width(team, cols);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t c = 0; c < cols; c += width) column_sum_panel(p, c, at_most(c + width, cols));
}

// Some rows of a norm's output gradient and input, with their statistics, and the sums that they add to.
typedef struct {
    const Element *dy, *x;
    int64_t cols;
    float mean[ROWS_TOGETHER], rstd[ROWS_TOGETHER]; // mean 0 for RMS norm
    float *dgamma, *dbeta;                          // dbeta may be NULL
} NormRows;

static inline void norm_weight_at(const NormRows *n, int64_t count, int64_t c, int64_t left) {
    Floats gamma = {0}, beta = {0};
    for (int64_t r = 0; r < count; r++) {
        Floats g = load_e(n->dy + r * n->cols + c, left), x = load_e(n->x + r * n->cols + c, left);
        gamma = fused(g, (x - n->mean[r]) * n->rstd[r], gamma);
        beta += g;
    }
    store(n->dgamma + c, left, load(n->dgamma + c, left) + gamma);
    if (n->dbeta) store(n->dbeta + c, left, load(n->dbeta + c, left) + beta);
}

static void norm_weight_panel(const NormBackwardWeight *p, int64_t first, int64_t end) {
    NormRows n = {.cols = p->x.cols, .dgamma = vector(p->dgamma), .dbeta = vector(p->dbeta)};
    for (int64_t row = 0; row < p->x.rows; row += ROWS_TOGETHER) {
        int64_t count = at_most(ROWS_TOGETHER, p->x.rows - row), c = first;
        n.dy = row_of(p->dy, row), n.x = row_of(p->x, row);
        if (p->mean.data) memcpy(n.mean, vector(p->mean) + row, (size_t)count * sizeof(float));
        memcpy(n.rstd, vector(p->rstd) + row, (size_t)count * sizeof(float));
        for (; count == ROWS_TOGETHER && c + LANES <= end; c += LANES)
            norm_weight_at(&n, ROWS_TOGETHER, c, LANES);
        for (; c < end; c += LANES) norm_weight_at(&n, count, c, end - c);
    }
}

static void cpu_norm_backward_weight(const Exec *exec, const NormBackwardWeight *p) {
    int team = cpu_team(exec, tensor_count(p->x));
    int64_t cols = p->x.cols, width = panel_width(team, cols);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t c = 0; c < cols; c += width) norm_weight_panel(p, c, at_most(c + width, cols));
}

// ---- norms ------------------------------------------------------------------------------------------------

static float sum_of(const Floats part[SUMS]) { return sum_lanes((part[0] + part[1]) + (part[2] + part[3])); }

// RMS norm is layer norm with a mean of zero.
static float mean_of(const Element *x, int64_t cols) {
    Floats sum[SUMS] = {0};
    int64_t c = 0;
    for (; c + SUMS * LANES <= cols; c += SUMS * LANES)
        for (int i = 0; i < SUMS; i++) sum[i] += load_e(x + c + i * LANES, LANES);
    for (; c < cols; c += LANES) sum[0] += load_e(x + c, cols - c);
    return sum_of(sum) / (float)cols;
}

static inline Floats add_square_at(const Element *x, int64_t left, float mean, Floats sum) {
    Floats centred = load_e_padded(x, left, mean) - mean;
    return fused(centred, centred, sum);
}

static float variance_of(const Element *x, int64_t cols, float mean) {
    Floats sum[SUMS] = {0};
    int64_t c = 0;
    for (; c + SUMS * LANES <= cols; c += SUMS * LANES)
        for (int i = 0; i < SUMS; i++) sum[i] = add_square_at(x + c + i * LANES, LANES, mean, sum[i]);
    for (; c < cols; c += LANES) sum[0] = add_square_at(x + c, cols - c, mean, sum[0]);
    return sum_of(sum) / (float)cols;
}

static inline void norm_at(const Element *x, const Element *gamma, const Element *beta, Element *y,
                           float plus, float mean, float rstd, int64_t c, int64_t left) {
    Floats scale = load_e(gamma + c, left) + plus, offset = load_optional(beta, c, left);
    store_e(y + c, left, fused((load_e(x + c, left) - mean) * rstd, scale, offset));
}

static void norm_row(const NormForward *p, int64_t row) {
    const Element *x = row_of(p->x, row), *gamma = p->gamma.data, *beta = p->beta.data;
    Element *y = row_of(p->y, row);
    int64_t cols = p->x.cols, c = 0;
    float mean = p->mean.data ? mean_of(x, cols) : 0;
    float rstd = 1.0f / sqrtf(variance_of(x, cols, mean) + p->epsilon);
    for (; c + LANES <= cols; c += LANES) norm_at(x, gamma, beta, y, p->offset, mean, rstd, c, LANES);
    if (c < cols) norm_at(x, gamma, beta, y, p->offset, mean, rstd, c, cols - c);
    if (p->mean.data) vector(p->mean)[row] = mean;
    vector(p->rstd)[row] = rstd;
}

static void cpu_norm_forward(const Exec *exec, const NormForward *p) {
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->x))) schedule(static)
    for (int64_t row = 0; row < p->x.rows; row++) norm_row(p, row);
}

// One row of the gradient of a norm. `residual` may be NULL.
typedef struct {
    const Element *dy, *x, *gamma, *residual;
    Element *dx;
    float mean, rstd;
    float mean_g, mean_gn; // see below
    float offset;          // of gamma
} NormGradient;

static inline void norm_sums_at(const NormGradient *n, int64_t c, int64_t left, Floats *g_sum,
                                Floats *gn_sum) {
    Floats g = load_e(n->dy + c, left) * (load_e(n->gamma + c, left) + n->offset);
    *g_sum += g;
    *gn_sum = fused(g, (load_e(n->x + c, left) - n->mean) * n->rstd, *gn_sum);
}

static inline void norm_gradient_at(const NormGradient *n, int64_t c, int64_t left) {
    Floats gamma = load_e(n->gamma + c, left) + n->offset;
    Floats centred_g = fused(load_e(n->dy + c, left), gamma, splat(-n->mean_g));
    Floats normal = (load_e(n->x + c, left) - n->mean) * n->rstd;
    Floats inner = fused(normal, splat(-n->mean_gn), centred_g), rstd = splat(n->rstd);
    store_e(n->dx + c, left, n->residual ? fused(rstd, inner, load_e(n->residual + c, left)) : rstd * inner);
}

// With n = (x - mean) rstd and g = dy gamma:  dx = rstd (g - mean(g) - n mean(g n)), means over the row. RMS
// norm has no mean(g).
static void norm_backward_row(const NormBackwardInput *p, int64_t row) {
    int64_t cols = p->x.cols, c = 0;
    bool centres = p->mean.data;
    NormGradient n = {row_of(p->dy, row),
                      row_of(p->x, row),
                      p->gamma.data,
                      NULL,
                      row_of(p->dx, row),
                      centres ? vector(p->mean)[row] : 0,
                      vector(p->rstd)[row],
                      0,
                      0,
                      p->offset};
    if (p->residual.data) n.residual = row_of(p->residual, row);
    Floats sum_g[SUMS] = {0}, sum_gn[SUMS] = {0};
    for (; c + SUMS * LANES <= cols; c += SUMS * LANES)
        for (int i = 0; i < SUMS; i++) norm_sums_at(&n, c + i * LANES, LANES, &sum_g[i], &sum_gn[i]);
    for (; c < cols; c += LANES) norm_sums_at(&n, c, cols - c, &sum_g[0], &sum_gn[0]);
    n.mean_g = centres ? sum_of(sum_g) / (float)cols : 0, n.mean_gn = sum_of(sum_gn) / (float)cols;
    for (c = 0; c + LANES <= cols; c += LANES) norm_gradient_at(&n, c, LANES);
    if (c < cols) norm_gradient_at(&n, c, cols - c);
}

static void cpu_norm_backward_input(const Exec *exec, const NormBackwardInput *p) {
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->x))) schedule(static)
    for (int64_t row = 0; row < p->x.rows; row++) norm_backward_row(p, row);
}

// ---- rotary position embedding ----------------------------------------------------------------------------

static void rotate_head(Element *x, const float *cosines, const float *sines, int64_t half, bool inverse) {
    Floats sign = splat(inverse ? -1.0f : 1.0f);
    for (int64_t c = 0; c < half; c += LANES) {
        Floats cosine = load(cosines + c, half - c), sine = load(sines + c, half - c) * sign;
        Floats first = load_e(x + c, half - c), second = load_e(x + half + c, half - c);
        store_e(x + c, half - c, fused(first, cosine, -(second * sine)));
        store_e(x + half + c, half - c, fused(second, cosine, first * sine));
    }
}

// A group's query heads and its key head lie side by side; its value head follows.
static void rotary_row(const Rotary *p, int64_t row) {
    const AttentionShape *shape = &p->shape;
    const float *table = floats_of(p->table, row / shape->batch);
    int64_t half = p->table.cols / 2, turning = shape->heads / shape->groups + 1;
    Element *x = row_of(p->qkv, row);
    for (int64_t group = 0; group < shape->groups; group++, x += shape->head_size)
        for (int64_t h = 0; h < turning; h++, x += shape->head_size)
            rotate_head(x, table, table + half, half, p->inverse);
}

static void cpu_rotary(const Exec *exec, const Rotary *p) {
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->qkv))) schedule(static)
    for (int64_t row = 0; row < p->qkv.rows; row++) rotary_row(p, row);
}

// ---- embedding --------------------------------------------------------------------------------------------

// The row of a table that starts at `first_row`, or -1 when the token's row lies elsewhere.
static int64_t local_row(Tensor tokens, int64_t i, int64_t first_row, Tensor table) {
    int64_t row = ((const int32_t *)tokens.data)[i] - first_row;
    return row >= 0 && row < table.rows ? row : -1;
}

static void cpu_embedding_forward(const Exec *exec, const EmbeddingForward *p) {
    size_t bytes = (size_t)p->y.cols * sizeof(Element);
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->y))) schedule(static)
    for (int64_t i = 0; i < p->y.rows; i++) {
        int64_t row = local_row(p->tokens, i, p->first_row, p->table);
        if (row < 0)
            memset(row_of(p->y, i), 0, bytes);
        else
            memcpy(row_of(p->y, i), row_of(p->table, row), bytes);
    }
}

static void add_elements(float *to, const Element *from, int64_t count) {
    for (int64_t i = 0; i < count; i += LANES)
        store(to + i, count - i, load(to + i, count - i) + load_e(from + i, count - i));
}

static void embedding_backward_panel(const EmbeddingBackward *p, int64_t first, int64_t end) {
    for (int64_t i = 0; i < p->dy.rows; i++) {
        int64_t row = local_row(p->tokens, i, p->first_row, p->dtable);
        if (row >= 0) add_elements(floats_of(p->dtable, row) + first, row_of(p->dy, i) + first, end - first);
    }
}

static void cpu_embedding_backward(const Exec *exec, const EmbeddingBackward *p) {
    int team = cpu_team(exec, tensor_count(p->dy));
    int64_t cols = p->dy.cols, width = panel_width(team, cols);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t c = 0; c < cols; c += width) embedding_backward_panel(p, c, at_most(c + width, cols));
}

static void cpu_position_backward(const Exec *exec, const PositionBackward *p) {
    int64_t cols = p->dy.cols, sequence = p->dy.rows / p->samples, first = p->first_row / p->samples;
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->dy))) schedule(static)
    for (int64_t s = 0; s < sequence; s++)
        for (int64_t b = 0; b < p->samples; b++)
            add_elements(floats_of(p->dposition, first + s), row_of(p->dy, s * p->samples + b), cols);
}

// ---- loss -------------------------------------------------------------------------------------------------

// Returns how many of the local columns are vocabulary entries; the rest are padding.
static int64_t vocabulary_columns(int64_t first_col, int64_t vocabulary, int64_t cols) {
    int64_t left = vocabulary - first_col;
    return left < 0 ? 0 : at_most(left, cols);
}

static float max_of(const float *x, int64_t count) {
    Floats max[SUMS];
    int64_t c = 0;
    for (int i = 0; i < SUMS; i++) max[i] = splat(-INFINITY);
    for (; c + SUMS * LANES <= count; c += SUMS * LANES)
        for (int i = 0; i < SUMS; i++) max[i] = larger(max[i], load(x + c + i * LANES, LANES));
    for (; c < count; c += LANES) max[0] = larger(max[0], load_padded(x + c, count - c, -INFINITY));
    return max_lanes(larger(larger(max[0], max[1]), larger(max[2], max[3])));
}

static void cpu_loss_max(const Exec *exec, const LossMax *p) {
    int64_t used = vocabulary_columns(p->first_col, p->vocabulary, p->logits.cols);
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->logits))) schedule(static)
    for (int64_t row = 0; row < p->logits.rows; row++)
        vector(p->max)[row] = max_of(floats_of(p->logits, row), used);
}

static float sum_of_exponentials(const float *x, int64_t count, float max) {
    Floats sum = {0};
    int64_t c = 0;
    for (; c + LANES <= count; c += LANES) sum += exponential(load(x + c, LANES) - max);
    if (c < count) sum += exponential(load_padded(x + c, count - c, -INFINITY) - max);
    return sum_lanes(sum);
}

static void cpu_loss_sum(const Exec *exec, const LossSum *p) {
    int64_t used = vocabulary_columns(p->first_col, p->vocabulary, p->logits.cols);
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->logits))) schedule(static)
    for (int64_t row = 0; row < p->logits.rows; row++) {
        const float *logits = floats_of(p->logits, row);
        float max = vector(p->max)[row];
        int64_t label = ((const int32_t *)p->labels.data)[row] - p->first_col;
        vector(p->sum)[row] = sum_of_exponentials(logits, used, max);
        vector(p->target)[row] = label >= 0 && label < used ? logits[label] - max : 0;
    }
}

// dlogits may be the logits: the label's gradient is found before any is written.
static void loss_finish_row(const LossFinish *p, int64_t row, int64_t used) {
    const float *logits = floats_of(p->logits, row);
    Element *dlogits = row_of(p->dlogits, row);
    float max = vector(p->max)[row], sum = vector(p->sum)[row];
    float mask = p->mask.data ? vector(p->mask)[row] : 1;
    float weight = p->scale * mask, factor = weight / sum;
    int64_t label = ((const int32_t *)p->labels.data)[row] - p->first_col, c = 0;
    bool local = label >= 0 && label < used;
    Floats at_label = local ? exponential(load(logits + label, 1) - max) * factor : (Floats){0};
    for (; c + LANES <= used; c += LANES)
        store_e(dlogits + c, LANES, exponential(load(logits + c, LANES) - max) * factor);
    if (c < used) {
        Floats last = exponential(load_padded(logits + c, used - c, max) - max);
        store_e(dlogits + c, used - c, last * factor);
    }
    memset(dlogits + used, 0, (size_t)(p->logits.cols - used) * sizeof *dlogits);
    if (local) store_e(dlogits + label, 1, splat(at_label[0] - weight));
    vector(p->loss)[row] = mask * (logf(sum) - vector(p->target)[row]);
}

static void cpu_loss_finish(const Exec *exec, const LossFinish *p) {
    int64_t used = vocabulary_columns(p->first_col, p->vocabulary, p->logits.cols);
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->logits))) schedule(static)
    for (int64_t row = 0; row < p->logits.rows; row++) loss_finish_row(p, row, used);
}

// ---- sums -------------------------------------------------------------------------------------------------

static void cpu_add(const Exec *exec, const Add *p) {
    int64_t count = tensor_count(p->x);
    const Element *x = p->x.data;
    Element *y = p->y.data;
#pragma omp parallel for num_threads(cpu_team(exec, count)) schedule(static)
    for (int64_t block = 0; block < count; block += FLAT_BLOCK) {
        int64_t end = at_most(block + FLAT_BLOCK, count);
        for (int64_t i = block; i < end; i += LANES)
            store_e(y + i, end - i, load_e(y + i, end - i) + load_e(x + i, end - i));
    }
}

static void cpu_scale(const Exec *exec, const Scale *p) {
    const Element *x = p->x.data;
    Element *y = p->y.data;
    int64_t count = tensor_count(p->x);
#pragma omp parallel for num_threads(cpu_team(exec, count)) schedule(static)
    for (int64_t block = 0; block < count; block += FLAT_BLOCK) {
        int64_t end = at_most(block + FLAT_BLOCK, count);
        for (int64_t i = block; i < end; i += LANES)
            store_e(y + i, end - i, p->factor * load_e(x + i, end - i));
    }
}

static void sum_pieces(const Element *x, const ColumnPiece *piece, Element *y) {
    for (int64_t c = 0; c < piece->width; c += LANES) {
        int64_t left = piece->width - c;
        Floats sum = load_e(x + c, left);
        for (int64_t i = 1; i < piece->terms; i++) sum += load_e(x + i * piece->stride + c, left);
        store_e(y + c, left, sum);
    }
}

static void arrange_row(const ArrangeColumns *p, int64_t row) {
    const Tensor *sources = &p->a;
    Element *y = row_of(p->y, row);
    for (int64_t block = 0; block < p->blocks; block++)
        for (const ColumnPiece *piece = p->pieces; piece < p->pieces + MAX_PIECES; piece++) {
            size_t bytes = (size_t)piece->width * sizeof *y;
            int64_t from = piece->first + block * piece->step;
            if (piece->source == SOURCE_ZEROS)
                memset(y, 0, bytes);
            else if (piece->terms > 1)
                sum_pieces((const Element *)row_of(sources[piece->source], row) + from, piece, y);
            else if (piece->width)
                memcpy(y, (const Element *)row_of(sources[piece->source], row) + from, bytes);
            y += piece->width;
        }
}

static void cpu_arrange_columns(const Exec *exec, const ArrangeColumns *p) {
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->y))) schedule(static)
    for (int64_t row = 0; row < p->y.rows; row++) arrange_row(p, row);
}

// tanh z by e = exp(-2 |z|); where that cancels by the first terms of its series.
static inline Floats tanh_of(Floats z) {
    Ints negative = z < 0;
    Floats size = choose(negative, -z, z), square = z * z;
    Floats e = exponential_of_base_2(-2.0f * LOG2_E * choose(size > 20.0f, splat(20.0f), size));
    Floats large = (1.0f - e) * reciprocal(1.0f + e);
    Floats series = fused(square, splat(0.0218694885f), splat(-0.0539682540f));
    series = fused(square, fused(square, series, splat(0.1333333333f)), splat(-0.3333333333f));
    return choose(size < 0.25f, fused(z * square, series, z), choose(negative, -large, large));
}

static void cpu_soft_cap(const Exec *exec, const SoftCap *p) {
    const float *x = p->x.data;
    float *y = p->y.data, inverse = 1.0f / p->cap;
    int64_t count = tensor_count(p->x);
#pragma omp parallel for num_threads(cpu_team(exec, count)) schedule(static)
    for (int64_t block = 0; block < count; block += FLAT_BLOCK) {
        int64_t end = at_most(block + FLAT_BLOCK, count);
        for (int64_t i = block; i < end; i += LANES)
            store(y + i, end - i, p->cap * tanh_of(load(x + i, end - i) * inverse));
    }
}

static void cpu_soft_cap_backward(const Exec *exec, const SoftCapBackward *p) {
    const Element *dy = p->dy.data;
    const float *y = p->y.data;
    Element *dx = p->dx.data;
    float inverse = 1.0f / p->cap;
    int64_t count = tensor_count(p->dy);
#pragma omp parallel for num_threads(cpu_team(exec, count)) schedule(static)
    for (int64_t block = 0; block < count; block += FLAT_BLOCK) {
        int64_t end = at_most(block + FLAT_BLOCK, count);
        for (int64_t i = block; i < end; i += LANES) {
            Floats share = load(y + i, end - i) * inverse;
            store_e(dx + i, end - i, load_e(dy + i, end - i) * fused(-share, share, splat(1.0f)));
        }
    }
}

// ---- the table --------------------------------------------------------------------------------------------

const Backend CPU_NAME(cpu_backend) = {
    .name = "cpu",
    .matmul = CPU_NAME(cpu_matmul),
    .matmuls = CPU_NAME(cpu_matmuls),
    .bias_gelu_forward = cpu_bias_gelu_forward,
    .bias_gelu_backward = cpu_bias_gelu_backward,
    .swiglu_forward = cpu_swiglu_forward,
    .swiglu_backward = cpu_swiglu_backward,
    .bias_dropout_add = cpu_bias_dropout_add,
    .dropout_backward = cpu_dropout_backward,
    .scale = cpu_scale,
    .soft_cap = cpu_soft_cap,
    .soft_cap_backward = cpu_soft_cap_backward,
    .column_sum = cpu_column_sum,
    .norm_forward = cpu_norm_forward,
    .norm_backward_input = cpu_norm_backward_input,
    .norm_backward_weight = cpu_norm_backward_weight,
    .qk_sums = CPU_NAME(cpu_qk_sums),
    .qk_norm_forward = CPU_NAME(cpu_qk_norm_forward),
    .qk_norm_backward_input = CPU_NAME(cpu_qk_norm_backward_input),
    .qk_norm_backward_weight = CPU_NAME(cpu_qk_norm_backward_weight),
    .rotary = cpu_rotary,
    .attention_forward = CPU_NAME(cpu_attention_forward),
    .attention_backward = CPU_NAME(cpu_attention_backward),
    .attention_cached = CPU_NAME(cpu_attention_cached),
    .embedding_forward = cpu_embedding_forward,
    .embedding_backward = cpu_embedding_backward,
    .position_dropout = cpu_position_dropout,
    .position_backward = cpu_position_backward,
    .loss_max = cpu_loss_max,
    .loss_sum = cpu_loss_sum,
    .loss_finish = cpu_loss_finish,
    .router_forward = CPU_NAME(cpu_router_forward),
    .router_sums = CPU_NAME(cpu_router_sums),
    .router_backward = CPU_NAME(cpu_router_backward),
    .router_drop = CPU_NAME(cpu_router_drop),
    .sort_pairs = CPU_NAME(cpu_sort_pairs),
    .gather_rows = CPU_NAME(cpu_gather_rows),
    .combine_rows = CPU_NAME(cpu_combine_rows),
    .combine_backward = CPU_NAME(cpu_combine_backward),
    .jitter = CPU_NAME(cpu_jitter),
    .abs_max = CPU_NAME(cpu_abs_max),
    .sum_squares = CPU_NAME(cpu_sum_squares),
    .adamw = CPU_NAME(cpu_adamw),
    .blend = CPU_NAME(cpu_blend),
    .add = cpu_add,
    .arrange_columns = cpu_arrange_columns,
    .workspace_bytes = cpu_workspace_bytes,
};
