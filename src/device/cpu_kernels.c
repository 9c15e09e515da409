// The kernels of one instruction set and element type: every operation but matrix products and attention,
// as loops over rows, panels of columns or blocks that OpenMP hands out. Each piece is computed by one
// thread in one order.
#include "device/cpu.h"
#include "device/cpu_vector.h"

static Element *row_of(Tensor x, int64_t row) { return (Element *)x.data + row * x.cols; }
static float *floats_of(Tensor x, int64_t row) { return (float *)x.data + row * x.cols; }
static float *vector(Tensor x) { return x.data; } // of F32
static int64_t at_most(int64_t x, int64_t limit) { return x < limit ? x : limit; }

// Elements from `c` on of a row that may be absent: then zeros.
static inline Floats load_optional(const Element *row, int64_t c, int64_t left) {
    return row ? load_e(row + c, left) : (Floats){0};
}

// ---- activations ------------------------------------------------------------------------------------------

// gelu(u) = u * sigmoid(2 z) with z = 0.79788456 u (1 + 0.044715 u^2), since (1 + tanh z) / 2 = sigmoid(2 z):
// exact to the last places in the negative tail too, where 1 + tanh cancels.
static inline Floats gelu_gate(Floats u) {
    Floats twice_z = u * (1.595769122f + 0.0713548162f * (u * u));
    return 1.0f / (1.0f + exponential(-twice_z));
}

// gate + u gate (1 - gate) d(2z)/du. From e = exp(-|2z|) both gate and 1 - gate come without cancellation.
static inline Floats gelu_slope(Floats u) {
    Floats twice_z = u * (1.595769122f + 0.0713548162f * (u * u));
    Ints negative = twice_z < 0;
    Floats e = exponential(choose(negative, twice_z, -twice_z));
    Floats large = 1.0f / (1.0f + e), small = e * large;
    Floats slope_of_twice_z = 1.595769122f + 0.2140644488f * (u * u);
    return choose(negative, small, large) + u * (small * large) * slope_of_twice_z;
}

static void bias_gelu_row(const BiasGeluForward *p, int64_t row) {
    const Element *x = row_of(p->x, row), *bias = p->bias.data;
    Element *y = row_of(p->y, row);
    int64_t cols = p->x.cols;
    for (int64_t c = 0; c < cols; c += LANES) {
        Floats u = load_e(x + c, cols - c) + load_optional(bias, c, cols - c);
        store_e(y + c, cols - c, u * gelu_gate(u));
    }
}

static void cpu_bias_gelu_forward(const Exec *exec, const BiasGeluForward *p) {
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->x))) schedule(static)
    for (int64_t row = 0; row < p->x.rows; row++) bias_gelu_row(p, row);
}

static void bias_gelu_backward_row(const BiasGeluBackward *p, int64_t row) {
    const Element *dy = row_of(p->dy, row), *x = row_of(p->x, row), *bias = p->bias.data;
    Element *dx = row_of(p->dx, row);
    int64_t cols = p->x.cols;
    for (int64_t c = 0; c < cols; c += LANES) {
        Floats u = load_e(x + c, cols - c) + load_optional(bias, c, cols - c);
        store_e(dx + c, cols - c, load_e(dy + c, cols - c) * gelu_slope(u));
    }
}

static void cpu_bias_gelu_backward(const Exec *exec, const BiasGeluBackward *p) {
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->x))) schedule(static)
    for (int64_t row = 0; row < p->x.rows; row++) bias_gelu_backward_row(p, row);
}

static void swiglu_row(const SwigluForward *p, int64_t row) {
    int64_t cols = p->y.cols;
    const Element *gate = row_of(p->x, row), *up = gate + cols;
    const Element *gate_bias = p->bias.data, *up_bias = gate_bias ? gate_bias + cols : NULL;
    Element *y = row_of(p->y, row);
    for (int64_t c = 0; c < cols; c += LANES) {
        Floats g = load_e(gate + c, cols - c) + load_optional(gate_bias, c, cols - c);
        Floats u = load_e(up + c, cols - c) + load_optional(up_bias, c, cols - c);
        store_e(y + c, cols - c, g / (1.0f + exponential(-g)) * u);
    }
}

static void cpu_swiglu_forward(const Exec *exec, const SwigluForward *p) {
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->x))) schedule(static)
    for (int64_t row = 0; row < p->x.rows; row++) swiglu_row(p, row);
}

// With s = sigmoid(g): dg = dy u (s + g s (1 - s)), du = dy g s. As for gelu, e = exp(-|g|) gives both s
// and 1 - s.
static void swiglu_backward_row(const SwigluBackward *p, int64_t row) {
    int64_t cols = p->dy.cols;
    const Element *gate = row_of(p->x, row), *up = gate + cols, *dy = row_of(p->dy, row);
    const Element *gate_bias = p->bias.data, *up_bias = gate_bias ? gate_bias + cols : NULL;
    Element *dgate = row_of(p->dx, row), *dup = dgate + cols;
    for (int64_t c = 0; c < cols; c += LANES) {
        Floats g = load_e(gate + c, cols - c) + load_optional(gate_bias, c, cols - c);
        Floats u = load_e(up + c, cols - c) + load_optional(up_bias, c, cols - c);
        Floats d = load_e(dy + c, cols - c);
        Ints negative = g < 0;
        Floats e = exponential(choose(negative, g, -g));
        Floats large = 1.0f / (1.0f + e), small = e * large, s = choose(negative, small, large);
        store_e(dgate + c, cols - c, d * u * (s + g * (small * large)));
        store_e(dup + c, cols - c, d * (g * s));
    }
}

static void cpu_swiglu_backward(const Exec *exec, const SwigluBackward *p) {
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->x))) schedule(static)
    for (int64_t row = 0; row < p->x.rows; row++) swiglu_backward_row(p, row);
}

// ---- dropout, residual ------------------------------------------------------------------------------------

// The mask of row s*B + b is that of sample first_sample + b; its column 0 is element s*H, which is returned.
static uint64_t mask_open_row(Mask *mask, const Dropout *dropout, int64_t row, int64_t cols) {
    row += dropout->first_row;
    mask_open(mask, dropout);
    mask->sample = (uint64_t)(dropout->first_sample + row % dropout->samples);
    return (uint64_t)(row / dropout->samples * cols);
}

static void bias_dropout_add_row(const BiasDropoutAdd *p, int64_t row) {
    const Element *x = row_of(p->x, row), *bias = p->bias.data, *residual = row_of(p->residual, row);
    Element *y = row_of(p->y, row);
    int64_t cols = p->x.cols;
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

static void column_sum_panel(const ColumnSum *p, int64_t first, int64_t end) {
    float *sum = vector(p->sum);
    for (int64_t row = 0; row < p->x.rows; row += ROWS_TOGETHER) {
        int64_t count = at_most(ROWS_TOGETHER, p->x.rows - row);
        for (int64_t c = first; c < end; c += LANES) {
            Floats part = {0};
            for (int64_t r = 0; r < count; r++) part += load_e(row_of(p->x, row + r) + c, end - c);
            store(sum + c, end - c, load(sum + c, end - c) + part);
        }
    }
}

static void cpu_column_sum(const Exec *exec, const ColumnSum *p) {
    int team = cpu_team(exec, tensor_count(p->x));
    int64_t cols = p->x.cols, width = panel_width(team, cols);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t c = 0; c < cols; c += width) column_sum_panel(p, c, at_most(c + width, cols));
}

static void norm_weight_panel(const NormBackwardWeight *p, int64_t first, int64_t end) {
    float *dgamma = vector(p->dgamma), *dbeta = vector(p->dbeta);
    const float *mean = vector(p->mean), *rstd = vector(p->rstd);
    for (int64_t row = 0; row < p->x.rows; row += ROWS_TOGETHER) {
        int64_t count = at_most(ROWS_TOGETHER, p->x.rows - row);
        for (int64_t c = first; c < end; c += LANES) {
            Floats gamma = {0}, beta = {0};
            for (int64_t r = row; r < row + count; r++) {
                Floats g = load_e(row_of(p->dy, r) + c, end - c), x = load_e(row_of(p->x, r) + c, end - c);
                gamma += g * ((x - (mean ? mean[r] : 0)) * rstd[r]);
                beta += g;
            }
            store(dgamma + c, end - c, load(dgamma + c, end - c) + gamma);
            if (dbeta) store(dbeta + c, end - c, load(dbeta + c, end - c) + beta);
        }
    }
}

static void cpu_norm_backward_weight(const Exec *exec, const NormBackwardWeight *p) {
    int team = cpu_team(exec, tensor_count(p->x));
    int64_t cols = p->x.cols, width = panel_width(team, cols);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t c = 0; c < cols; c += width) norm_weight_panel(p, c, at_most(c + width, cols));
}

// ---- norms ------------------------------------------------------------------------------------------------

// RMS norm is layer norm with a mean of zero.
static float mean_of(const Element *x, int64_t cols) {
    Floats sum = {0};
    for (int64_t c = 0; c < cols; c += LANES) sum += load_e(x + c, cols - c);
    return sum_lanes(sum) / (float)cols;
}

static void norm_row(const NormForward *p, int64_t row) {
    const Element *x = row_of(p->x, row), *gamma = p->gamma.data, *beta = p->beta.data;
    Element *y = row_of(p->y, row);
    int64_t cols = p->x.cols;
    float mean = p->mean.data ? mean_of(x, cols) : 0;
    Floats squares = {0};
    for (int64_t c = 0; c < cols; c += LANES) {
        Floats centred = load_e_padded(x + c, cols - c, mean) - mean;
        squares += centred * centred;
    }
    float rstd = 1.0f / sqrtf(sum_lanes(squares) / (float)cols + p->epsilon);
    for (int64_t c = 0; c < cols; c += LANES) {
        Floats scale = load_e(gamma + c, cols - c), offset = load_optional(beta, c, cols - c);
        store_e(y + c, cols - c, (load_e(x + c, cols - c) - mean) * rstd * scale + offset);
    }
    if (p->mean.data) vector(p->mean)[row] = mean;
    vector(p->rstd)[row] = rstd;
}

static void cpu_norm_forward(const Exec *exec, const NormForward *p) {
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->x))) schedule(static)
    for (int64_t row = 0; row < p->x.rows; row++) norm_row(p, row);
}

// With n = (x - mean) rstd and g = dy gamma:  dx = rstd (g - mean(g) - n mean(g n)), means over the row. RMS
// norm has no mean(g).
static void norm_backward_row(const NormBackwardInput *p, int64_t row) {
    const Element *dy = row_of(p->dy, row), *x = row_of(p->x, row), *gamma = p->gamma.data;
    const Element *residual = p->residual.data ? row_of(p->residual, row) : NULL;
    Element *dx = row_of(p->dx, row);
    bool centres = p->mean.data;
    float mean = centres ? vector(p->mean)[row] : 0, rstd = vector(p->rstd)[row];
    int64_t cols = p->x.cols;
    Floats sum_g = {0}, sum_gn = {0};
    for (int64_t c = 0; c < cols; c += LANES) {
        Floats g = load_e(dy + c, cols - c) * load_e(gamma + c, cols - c);
        sum_g += g;
        sum_gn += g * ((load_e(x + c, cols - c) - mean) * rstd);
    }
    float mean_g = centres ? sum_lanes(sum_g) / (float)cols : 0, mean_gn = sum_lanes(sum_gn) / (float)cols;
    for (int64_t c = 0; c < cols; c += LANES) {
        Floats g = load_e(dy + c, cols - c) * load_e(gamma + c, cols - c);
        Floats normal = (load_e(x + c, cols - c) - mean) * rstd,
               change = rstd * (g - mean_g - normal * mean_gn);
        store_e(dx + c, cols - c, residual ? load_e(residual + c, cols - c) + change : change);
    }
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
        store_e(x + c, half - c, first * cosine - second * sine);
        store_e(x + half + c, half - c, second * cosine + first * sine);
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

// How many of the local columns are vocabulary entries; the rest are padding.
static int64_t vocabulary_columns(int64_t first_col, int64_t vocabulary, int64_t cols) {
    int64_t left = vocabulary - first_col;
    return left < 0 ? 0 : at_most(left, cols);
}

static void cpu_loss_max(const Exec *exec, const LossMax *p) {
    int64_t used = vocabulary_columns(p->first_col, p->vocabulary, p->logits.cols);
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->logits))) schedule(static)
    for (int64_t row = 0; row < p->logits.rows; row++) {
        const float *logits = floats_of(p->logits, row);
        Floats max = splat(-INFINITY);
        for (int64_t c = 0; c < used; c += LANES)
            max = larger(max, load_padded(logits + c, used - c, -INFINITY));
        vector(p->max)[row] = max_lanes(max);
    }
}

static void cpu_loss_sum(const Exec *exec, const LossSum *p) {
    int64_t used = vocabulary_columns(p->first_col, p->vocabulary, p->logits.cols);
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->logits))) schedule(static)
    for (int64_t row = 0; row < p->logits.rows; row++) {
        const float *logits = floats_of(p->logits, row);
        float max = vector(p->max)[row];
        Floats sum = {0};
        for (int64_t c = 0; c < used; c += LANES)
            sum += exponential(load_padded(logits + c, used - c, -INFINITY) - max);
        int64_t label = ((const int32_t *)p->labels.data)[row] - p->first_col;
        vector(p->sum)[row] = sum_lanes(sum);
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
    int64_t label = ((const int32_t *)p->labels.data)[row] - p->first_col;
    bool local = label >= 0 && label < used;
    Floats at_label = local ? exponential(load(logits + label, 1) - max) * factor : (Floats){0};
    for (int64_t c = 0; c < used; c += LANES)
        store_e(dlogits + c, used - c, exponential(load(logits + c, used - c) - max) * factor);
    memset(dlogits + used, 0, (size_t)(p->logits.cols - used) * sizeof *dlogits);
    if (local) store_e(dlogits + label, 1, splat(at_label[0] - weight));
    vector(p->loss)[row] = mask * (logf(sum) - vector(p->target)[row]);
}

static void cpu_loss_finish(const Exec *exec, const LossFinish *p) {
    int64_t used = vocabulary_columns(p->first_col, p->vocabulary, p->logits.cols);
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->logits))) schedule(static)
    for (int64_t row = 0; row < p->logits.rows; row++) loss_finish_row(p, row, used);
}

// ---- optimizer --------------------------------------------------------------------------------------------

// Comparisons with NaN are false, so whatever is not finite becomes infinity.
static float abs_max_of(const float *x, int64_t count) {
    Floats most = {0};
    for (int64_t i = 0; i < count; i += LANES) {
        Floats size = (Floats)((Ints)load(x + i, count - i) & 0x7fffffff);
        size = choose(size <= 0x1.fffffep127f, size, splat(INFINITY));
        most = choose(size > most, size, most);
    }
    return max_lanes(most);
}

static void cpu_abs_max(const Exec *exec, const AbsMax *p) {
    int64_t count = tensor_count(p->x);
    float max = vector(p->max)[0];
#pragma omp parallel for num_threads(cpu_team(exec, count)) schedule(static) reduction(max : max)
    for (int64_t first = 0; first < count; first += FLAT_BLOCK) {
        float found = abs_max_of(vector(p->x) + first, at_most(FLAT_BLOCK, count - first));
        max = found > max ? found : max;
    }
    vector(p->max)[0] = max;
}

// The three parts of a number that are multiples of 2^-20, 2^-40 and 2^-60: adding 1.5 * 2^52 quanta and
// taking them away again rounds to a quantum, and the rest is exact.
typedef struct {
    Doubles of[3];
} Parts;

static inline void add_parts(Parts *sum, Doubles q) {
    const double shift[3] = {0x1.8p32, 0x1.8p12, 0x1.8p-8};
    for (int i = 0; i < 3; i++) {
        Doubles part = (q + shift[i]) - shift[i];
        sum->of[i] += part;
        q -= part;
    }
}

static inline Doubles load_doubles(const float *from, int64_t left) {
    FloatsOfDoubles x = {0};
    if (left >= DOUBLE_LANES)
        memcpy(&x, from, sizeof x);
    else
        memcpy(&x, from, (size_t)left * sizeof(float));
    return __builtin_convertvector(x, Doubles);
}

static Parts sum_squares_of(const float *x, int64_t count, double scale) {
    Parts sum = {0};
    for (int64_t i = 0; i < count; i += DOUBLE_LANES) {
        Doubles v = load_doubles(x + i, count - i) * scale;
        add_parts(&sum, v * v);
    }
    return sum;
}

// All additions are exact, so their order is of no interest.
static void cpu_sum_squares(const Exec *exec, const SumSquares *p) {
    int64_t count = tensor_count(p->x);
    double sum0 = 0, sum1 = 0, sum2 = 0, scale = ldexp(1, -p->exponent), *sums = p->sum.data;
#pragma omp parallel for num_threads(cpu_team(exec, count)) schedule(static) reduction(+ : sum0, sum1, sum2)
    for (int64_t first = 0; first < count; first += FLAT_BLOCK) {
        Parts sum = sum_squares_of(vector(p->x) + first, at_most(FLAT_BLOCK, count - first), scale);
        for (int lane = 0; lane < DOUBLE_LANES; lane++)
            sum0 += sum.of[0][lane], sum1 += sum.of[1][lane], sum2 += sum.of[2][lane];
    }
    sums[0] += sum0, sums[1] += sum1, sums[2] += sum2;
}

static void adamw_block(const AdamW *p, int64_t first, int64_t count) {
    const float *gradient = vector(p->gradient) + first;
    float *parameter = vector(p->parameter) + first, *m = vector(p->m) + first, *v = vector(p->v) + first;
    Element *value = p->value.data ? (Element *)p->value.data + first : NULL;
    float beta1 = (float)p->beta1, rest1 = (float)(1 - p->beta1), correct1 = (float)(1 / p->correction1);
    float beta2 = (float)p->beta2, rest2 = (float)(1 - p->beta2), correct2 = (float)(1 / p->correction2);
    float scale = (float)p->grad_scale, epsilon = (float)p->epsilon;
    float lr = (float)p->lr, decay = (float)p->weight_decay;
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t left = count - i;
        Floats g = load(gradient + i, left) * scale, old = load(parameter + i, left);
        Floats new_m = load(m + i, left) * beta1 + g * rest1;
        Floats new_v = load(v + i, left) * beta2 + g * g * rest2;
        Floats step = new_m * correct1 / (square_root(new_v * correct2) + epsilon);
        store(m + i, left, new_m);
        store(v + i, left, new_v);
        Floats updated = old - lr * (step + decay * old);
        store(parameter + i, left, updated);
        if (value) store_e(value + i, left, updated);
    }
}

static void cpu_adamw(const Exec *exec, const AdamW *p) {
    int64_t count = tensor_count(p->parameter);
#pragma omp parallel for num_threads(cpu_team(exec, count)) schedule(static)
    for (int64_t first = 0; first < count; first += FLAT_BLOCK)
        adamw_block(p, first, at_most(FLAT_BLOCK, count - first));
}

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

// ---- the table --------------------------------------------------------------------------------------------

const Backend CPU_NAME(cpu_backend) = {
    .name = "cpu",
    .matmul = CPU_NAME(cpu_matmul),
    .bias_gelu_forward = cpu_bias_gelu_forward,
    .bias_gelu_backward = cpu_bias_gelu_backward,
    .swiglu_forward = cpu_swiglu_forward,
    .swiglu_backward = cpu_swiglu_backward,
    .bias_dropout_add = cpu_bias_dropout_add,
    .dropout_backward = cpu_dropout_backward,
    .column_sum = cpu_column_sum,
    .norm_forward = cpu_norm_forward,
    .norm_backward_input = cpu_norm_backward_input,
    .norm_backward_weight = cpu_norm_backward_weight,
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
    .abs_max = cpu_abs_max,
    .sum_squares = cpu_sum_squares,
    .adamw = cpu_adamw,
    .add = cpu_add,
    .workspace_bytes = cpu_workspace_bytes,
};
