// The kernels of one instruction set: every operation but matrix products and attention, as loops over rows,
// panels of columns or blocks that OpenMP hands out. Each piece is computed by one thread in one order.
#include "device/cpu.h"
#include "device/cpu_vector.h"

static float *row_of(Tensor x, int64_t row) { return (float *)x.data + row * x.cols; }
static float *vector(Tensor x) { return x.data; }
static int64_t at_most(int64_t x, int64_t limit) { return x < limit ? x : limit; }

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
    const float *x = row_of(p->x, row), *bias = vector(p->bias);
    float *y = row_of(p->y, row);
    int64_t cols = p->x.cols;
    for (int64_t c = 0; c < cols; c += LANES) {
        Floats u = load(x + c, cols - c) + load(bias + c, cols - c);
        store(y + c, cols - c, u * gelu_gate(u));
    }
}

static void cpu_bias_gelu_forward(const Exec *exec, const BiasGeluForward *p) {
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->x))) schedule(static)
    for (int64_t row = 0; row < p->x.rows; row++) bias_gelu_row(p, row);
}

static void bias_gelu_backward_row(const BiasGeluBackward *p, int64_t row) {
    const float *dy = row_of(p->dy, row), *x = row_of(p->x, row), *bias = vector(p->bias);
    float *dx = row_of(p->dx, row);
    int64_t cols = p->x.cols;
    for (int64_t c = 0; c < cols; c += LANES) {
        Floats u = load(x + c, cols - c) + load(bias + c, cols - c);
        store(dx + c, cols - c, load(dy + c, cols - c) * gelu_slope(u));
    }
}

static void cpu_bias_gelu_backward(const Exec *exec, const BiasGeluBackward *p) {
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->x))) schedule(static)
    for (int64_t row = 0; row < p->x.rows; row++) bias_gelu_backward_row(p, row);
}

// ---- dropout, residual ------------------------------------------------------------------------------------

// The mask of row s*B + b is that of sample first_sample + b; its column 0 is element s*H, which is returned.
static uint64_t mask_open_row(Mask *mask, const Dropout *dropout, int64_t row, int64_t cols) {
    mask_open(mask, dropout);
    mask->sample = (uint64_t)(dropout->first_sample + row % dropout->samples);
    return (uint64_t)(row / dropout->samples * cols);
}

static void bias_dropout_add_row(const BiasDropoutAdd *p, int64_t row) {
    const float *x = row_of(p->x, row), *bias = vector(p->bias), *residual = row_of(p->residual, row);
    float *y = row_of(p->y, row);
    int64_t cols = p->x.cols;
    Mask mask;
    uint64_t index = mask_open_row(&mask, &p->dropout, row, cols);
    for (int64_t first = 0; first < cols; first += MASK_SPAN) {
        int64_t end = at_most(first + MASK_SPAN, cols);
        const uint32_t *words = mask_span(&mask, index + (uint64_t)first, end - first);
        for (int64_t c = first; c < end; c += LANES) {
            Floats u = load(x + c, end - c) + load(bias + c, end - c);
            Floats sum = load(residual + c, end - c) + mask_apply(&mask, words + (c - first), u);
            store(y + c, end - c, sum);
        }
    }
}

static void cpu_bias_dropout_add(const Exec *exec, const BiasDropoutAdd *p) {
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->x))) schedule(static)
    for (int64_t row = 0; row < p->x.rows; row++) bias_dropout_add_row(p, row);
}

static void dropout_backward_row(const DropoutBackward *p, int64_t row) {
    const float *dy = row_of(p->dy, row);
    float *dx = row_of(p->dx, row);
    int64_t cols = p->dy.cols;
    Mask mask;
    uint64_t index = mask_open_row(&mask, &p->dropout, row, cols);
    for (int64_t first = 0; first < cols; first += MASK_SPAN) {
        int64_t end = at_most(first + MASK_SPAN, cols);
        const uint32_t *words = mask_span(&mask, index + (uint64_t)first, end - first);
        for (int64_t c = first; c < end; c += LANES)
            store(dx + c, end - c, mask_apply(&mask, words + (c - first), load(dy + c, end - c)));
    }
}

static void cpu_dropout_backward(const Exec *exec, const DropoutBackward *p) {
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->dy))) schedule(static)
    for (int64_t row = 0; row < p->dy.rows; row++) dropout_backward_row(p, row);
}

static void position_dropout_row(const PositionDropout *p, int64_t row) {
    const float *x = row_of(p->x, row), *position = row_of(p->position, row / p->dropout.samples);
    float *y = row_of(p->y, row);
    int64_t cols = p->x.cols;
    Mask mask;
    uint64_t index = mask_open_row(&mask, &p->dropout, row, cols);
    for (int64_t first = 0; first < cols; first += MASK_SPAN) {
        int64_t end = at_most(first + MASK_SPAN, cols);
        const uint32_t *words = mask_span(&mask, index + (uint64_t)first, end - first);
        for (int64_t c = first; c < end; c += LANES) {
            Floats u = load(x + c, end - c) + load(position + c, end - c);
            store(y + c, end - c, mask_apply(&mask, words + (c - first), u));
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
            for (int64_t r = 0; r < count; r++) part += load(row_of(p->x, row + r) + c, end - c);
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
    for (int64_t row = 0; row < p->x.rows; row += ROWS_TOGETHER) {
        int64_t count = at_most(ROWS_TOGETHER, p->x.rows - row);
        for (int64_t c = first; c < end; c += LANES) {
            Floats gamma = {0}, beta = {0};
            for (int64_t r = row; r < row + count; r++) {
                Floats g = load(row_of(p->dy, r) + c, end - c), x = load(row_of(p->x, r) + c, end - c);
                gamma += g * ((x - vector(p->mean)[r]) * vector(p->rstd)[r]);
                beta += g;
            }
            store(dgamma + c, end - c, load(dgamma + c, end - c) + gamma);
            store(dbeta + c, end - c, load(dbeta + c, end - c) + beta);
        }
    }
}

static void cpu_norm_backward_weight(const Exec *exec, const NormBackwardWeight *p) {
    int team = cpu_team(exec, tensor_count(p->x));
    int64_t cols = p->x.cols, width = panel_width(team, cols);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t c = 0; c < cols; c += width) norm_weight_panel(p, c, at_most(c + width, cols));
}

// ---- layer norm -------------------------------------------------------------------------------------------

static void norm_row(const NormForward *p, int64_t row) {
    const float *x = row_of(p->x, row), *gamma = vector(p->gamma), *beta = vector(p->beta);
    float *y = row_of(p->y, row);
    int64_t cols = p->x.cols;
    Floats sum = {0}, squares = {0};
    for (int64_t c = 0; c < cols; c += LANES) sum += load(x + c, cols - c);
    float mean = sum_lanes(sum) / (float)cols;
    for (int64_t c = 0; c < cols; c += LANES) {
        Floats centred = load_padded(x + c, cols - c, mean) - mean;
        squares += centred * centred;
    }
    float rstd = 1.0f / sqrtf(sum_lanes(squares) / (float)cols + p->epsilon);
    for (int64_t c = 0; c < cols; c += LANES) {
        Floats normal = (load(x + c, cols - c) - mean) * rstd;
        store(y + c, cols - c, normal * load(gamma + c, cols - c) + load(beta + c, cols - c));
    }
    vector(p->mean)[row] = mean;
    vector(p->rstd)[row] = rstd;
}

static void cpu_norm_forward(const Exec *exec, const NormForward *p) {
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->x))) schedule(static)
    for (int64_t row = 0; row < p->x.rows; row++) norm_row(p, row);
}

// With n = (x - mean) rstd and g = dy gamma:  dx = rstd (g - mean(g) - n mean(g n)), means over the row.
static void norm_backward_row(const NormBackwardInput *p, int64_t row) {
    const float *dy = row_of(p->dy, row), *x = row_of(p->x, row), *gamma = vector(p->gamma);
    const float *residual = p->residual.data ? row_of(p->residual, row) : NULL;
    float *dx = row_of(p->dx, row), mean = vector(p->mean)[row], rstd = vector(p->rstd)[row];
    int64_t cols = p->x.cols;
    Floats sum_g = {0}, sum_gn = {0};
    for (int64_t c = 0; c < cols; c += LANES) {
        Floats g = load(dy + c, cols - c) * load(gamma + c, cols - c);
        sum_g += g;
        sum_gn += g * ((load(x + c, cols - c) - mean) * rstd);
    }
    float mean_g = sum_lanes(sum_g) / (float)cols, mean_gn = sum_lanes(sum_gn) / (float)cols;
    for (int64_t c = 0; c < cols; c += LANES) {
        Floats g = load(dy + c, cols - c) * load(gamma + c, cols - c);
        Floats normal = (load(x + c, cols - c) - mean) * rstd,
               change = rstd * (g - mean_g - normal * mean_gn);
        store(dx + c, cols - c, residual ? load(residual + c, cols - c) + change : change);
    }
}

static void cpu_norm_backward_input(const Exec *exec, const NormBackwardInput *p) {
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->x))) schedule(static)
    for (int64_t row = 0; row < p->x.rows; row++) norm_backward_row(p, row);
}

// ---- embedding --------------------------------------------------------------------------------------------

// The row of a table that starts at `first_row`, or -1 when the token's row lies elsewhere.
static int64_t local_row(Tensor tokens, int64_t i, int64_t first_row, Tensor table) {
    int64_t row = ((const int32_t *)tokens.data)[i] - first_row;
    return row >= 0 && row < table.rows ? row : -1;
}

static void cpu_embedding_forward(const Exec *exec, const EmbeddingForward *p) {
    size_t bytes = (size_t)p->y.cols * sizeof(float);
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->y))) schedule(static)
    for (int64_t i = 0; i < p->y.rows; i++) {
        int64_t row = local_row(p->tokens, i, p->first_row, p->table);
        if (row < 0)
            memset(row_of(p->y, i), 0, bytes);
        else
            memcpy(row_of(p->y, i), row_of(p->table, row), bytes);
    }
}

static void add_floats(float *to, const float *from, int64_t count) {
    for (int64_t i = 0; i < count; i += LANES)
        store(to + i, count - i, load(to + i, count - i) + load(from + i, count - i));
}

static void embedding_backward_panel(const EmbeddingBackward *p, int64_t first, int64_t end) {
    for (int64_t i = 0; i < p->dy.rows; i++) {
        int64_t row = local_row(p->tokens, i, p->first_row, p->dtable);
        if (row >= 0) add_floats(row_of(p->dtable, row) + first, row_of(p->dy, i) + first, end - first);
    }
}

static void cpu_embedding_backward(const Exec *exec, const EmbeddingBackward *p) {
    int team = cpu_team(exec, tensor_count(p->dy));
    int64_t cols = p->dy.cols, width = panel_width(team, cols);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t c = 0; c < cols; c += width) embedding_backward_panel(p, c, at_most(c + width, cols));
}

static void cpu_position_backward(const Exec *exec, const PositionBackward *p) {
    int64_t cols = p->dy.cols, sequence = p->dy.rows / p->samples;
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->dy))) schedule(static)
    for (int64_t s = 0; s < sequence; s++)
        for (int64_t b = 0; b < p->samples; b++)
            add_floats(row_of(p->dposition, s), row_of(p->dy, s * p->samples + b), cols);
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
        const float *logits = row_of(p->logits, row);
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
        const float *logits = row_of(p->logits, row);
        float max = vector(p->max)[row];
        Floats sum = {0};
        for (int64_t c = 0; c < used; c += LANES)
            sum += exponential(load_padded(logits + c, used - c, -INFINITY) - max);
        int64_t label = ((const int32_t *)p->labels.data)[row] - p->first_col;
        vector(p->sum)[row] = sum_lanes(sum);
        vector(p->target)[row] = label >= 0 && label < used ? logits[label] - max : 0;
    }
}

static void loss_finish_row(const LossFinish *p, int64_t row, int64_t used) {
    float *logits = row_of(p->logits, row);
    float max = vector(p->max)[row], sum = vector(p->sum)[row];
    float mask = p->mask.data ? vector(p->mask)[row] : 1;
    float weight = p->scale * mask, factor = weight / sum;
    for (int64_t c = 0; c < used; c += LANES)
        store(logits + c, used - c, exponential(load(logits + c, used - c) - max) * factor);
    memset(logits + used, 0, (size_t)(p->logits.cols - used) * sizeof(float));
    int64_t label = ((const int32_t *)p->labels.data)[row] - p->first_col;
    if (label >= 0 && label < used) logits[label] -= weight;
    vector(p->loss)[row] = mask * (logf(sum) - vector(p->target)[row]);
}

static void cpu_loss_finish(const Exec *exec, const LossFinish *p) {
    int64_t used = vocabulary_columns(p->first_col, p->vocabulary, p->logits.cols);
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->logits))) schedule(static)
    for (int64_t row = 0; row < p->logits.rows; row++) loss_finish_row(p, row, used);
}

// ---- optimizer --------------------------------------------------------------------------------------------

static double sum_squares_of(const float *x, int64_t count) {
    double lanes[LANES] = {0}, sum = 0;
    for (int64_t i = 0; i < count; i += LANES) {
        Floats v = load(x + i, count - i);
        for (int lane = 0; lane < LANES; lane++) lanes[lane] += (double)v[lane] * (double)v[lane];
    }
    for (int lane = 0; lane < LANES; lane++) sum += lanes[lane];
    return sum;
}

// One partial sum per block in the workspace, added in the order of the blocks.
static void cpu_sum_squares(const Exec *exec, const SumSquares *p) {
    int64_t count = tensor_count(p->x), num_blocks = cpu_num_blocks(count, FLAT_BLOCK);
    double *partial = exec->workspace, sum = 0;
#pragma omp parallel for num_threads(cpu_team(exec, count)) schedule(static)
    for (int64_t block = 0; block < num_blocks; block++) {
        int64_t first = block * FLAT_BLOCK;
        partial[block] = sum_squares_of(vector(p->x) + first, at_most(FLAT_BLOCK, count - first));
    }
    for (int64_t block = 0; block < num_blocks; block++) sum += partial[block];
    *(double *)p->sum.data = sum;
}

static void adamw_block(const AdamW *p, int64_t first, int64_t count) {
    const float *gradient = vector(p->gradient) + first;
    float *parameter = vector(p->parameter) + first, *m = vector(p->m) + first, *v = vector(p->v) + first;
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
        store(parameter + i, left, old - lr * (step + decay * old));
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
#pragma omp parallel for num_threads(cpu_team(exec, count)) schedule(static)
    for (int64_t first = 0; first < count; first += FLAT_BLOCK)
        add_floats(vector(p->y) + first, vector(p->x) + first, at_most(FLAT_BLOCK, count - first));
}

// ---- the table --------------------------------------------------------------------------------------------

const Backend CPU_NAME(cpu_backend) = {
    .name = "cpu",
    .matmul = cpu_matmul,
    .bias_gelu_forward = cpu_bias_gelu_forward,
    .bias_gelu_backward = cpu_bias_gelu_backward,
    .bias_dropout_add = cpu_bias_dropout_add,
    .dropout_backward = cpu_dropout_backward,
    .column_sum = cpu_column_sum,
    .norm_forward = cpu_norm_forward,
    .norm_backward_input = cpu_norm_backward_input,
    .norm_backward_weight = cpu_norm_backward_weight,
    .attention_forward = CPU_NAME(cpu_attention_forward),
    .attention_backward = CPU_NAME(cpu_attention_backward),
    .embedding_forward = cpu_embedding_forward,
    .embedding_backward = cpu_embedding_backward,
    .position_dropout = cpu_position_dropout,
    .position_backward = cpu_position_backward,
    .loss_max = cpu_loss_max,
    .loss_sum = cpu_loss_sum,
    .loss_finish = cpu_loss_finish,
    .sum_squares = cpu_sum_squares,
    .adamw = cpu_adamw,
    .add = cpu_add,
    .workspace_bytes = cpu_workspace_bytes,
};
