// What the CUDA device's kernels give, as plain loops of C: the operations of IEEE 754 and the order of every sum, from what
// the comments of src/device/cuda/*.cu say. A model reads and writes tensors in memory of the host; all of them are copies, so
// in-place calls need no care. Products alone and attention have none: libraries and tensor cores add in orders of their own.
// gpu_model_products.h has the products that join other operations.
#pragma once
#include "device/element.h"
#include <math.h>
#include <string.h>

enum { MODEL_LANES = 32, MODEL_THREADS = 256 };

static inline float value(Tensor x, int64_t i) { return (float)load(x, i); }
static inline float value_or_zero(Tensor x, int64_t i) { return x.data ? value(x, i) : 0; }
static inline void put(Tensor x, int64_t i, float y) { store(x, i, (double)y); }
static inline int64_t parts_at_least(int64_t count, int64_t per_part) {
    return (count + per_part - 1) / per_part;
}
static inline int64_t larger_of(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t smaller_of(int64_t a, int64_t b) { return a < b ? a : b; }

// The elements that one instruction loads: 16 bytes.
static inline int64_t pack_of(Tensor x) { return 16 / (int64_t)dtype_bytes(x.dtype); }

// Adds what the threads of a team have: the lanes of each warp by halves, then the warps in their order.
static inline float team_sum(const float *threads, int count) {
    float total = 0;
    for (int warp = 0; warp < count / MODEL_LANES; warp++) {
        float lanes[MODEL_LANES], next[MODEL_LANES];
        memcpy(lanes, threads + warp * MODEL_LANES, sizeof lanes);
        for (int distance = MODEL_LANES / 2; distance; distance /= 2) {
            for (int i = 0; i < MODEL_LANES; i++) next[i] = lanes[i] + lanes[i ^ distance];
            memcpy(lanes, next, sizeof lanes);
        }
        total = warp ? total + lanes[0] : lanes[0];
    }
    return total;
}

// ---- functions --------------------------------------------------------------------------------------------

// Scales by a power of 2 that is a normal number, as does its exponent alone.
static inline float power_of_2(float whole) { return float_of_bits((uint32_t)((int)whole + 127) << 23); }

static inline float model_exp(float x) {
    if (x < -87.33f) return 0;
    const float n = fmaf(x, 1.44269504f, 0x1.8p23f) - 0x1.8p23f;
    const float r = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, x)), r2 = r * r;
    const float high = fmaf(r, 0x1.123b02p-7f, 0x1.5558f8p-5f), low = fmaf(r, 0x1.555490p-3f, 0x1.fffffcp-2f);
    const float y = fmaf(fmaf(fmaf(r2, 0x1.6a2256p-10f, high), r2, low), r2, r) + 1.0f;
    return y * power_of_2(n);
}

static inline float model_exp2(float x) {
    if (x < -126.0f) return 0;
    const float n = x + 0x1.8p23f - 0x1.8p23f, r = x - n, r2 = r * r;
    const float high = fmaf(r, 0x1.5bba16p-10f, 0x1.3cea8ap-7f),
                low = fmaf(r, 0x1.c6b752p-5f, 0x1.ebf9bcp-3f);
    return fmaf(fmaf(high, r2, low), r2, fmaf(r, 0x1.62e42ap-1f, 1.0f)) * power_of_2(n);
}

// Of a normal number above 0.
static inline float model_log(float x) {
    const uint32_t root = bits_of_float(0x1.6a09e6p-1f), bits = bits_of_float(x) - root;
    const float n = (float)((int32_t)bits >> 23), f = float_of_bits((bits & 0x7fffffu) + root) - 1.0f;
    const float s = f / (2.0f + f), z = s * s, w = z * z;
    const float r =
        fmaf(z, fmaf(w, 0.28498786688f, 0.66666662693f), w * fmaf(w, 0.24279078841f, 0.40000972152f));
    const float half = 0.5f * f * f;
    return fmaf(n, 0.69313812256f, fmaf(s, half + r, n * 9.0580006145e-06f) - half + f);
}

// ---- activations ------------------------------------------------------------------------------------------

static inline float model_gelu_exponent(float u) { return u * fmaf(0.1029432396f, u * u, 2.302208198f); }

static inline float model_gelu(float u) {
    const float e = model_exp2(fminf(model_gelu_exponent(u), 110.0f));
    return u * (e * (1.0f / (1.0f + e)));
}

static inline float model_gelu_slope(float u) {
    const float x = model_gelu_exponent(u), e = model_exp2(-fabsf(x)), large = 1.0f / (1.0f + e),
                small = e * large;
    return fmaf(u * (small * large), fmaf(0.2140644488f, u * u, 1.595769122f), x < 0 ? small : large);
}

// The share of the normal distribution below u; `e` gets exp(-u^2 / 2).
static inline float model_normal(float u, float *e) {
    static const float c[] = {0x1.fa79b8p-6f,  -0x1.284520p-3f, 0x1.bfdfbcp-3f,
                              -0x1.e09c56p-4f, 0x1.1bdfd6p-3f,  0x1.ebd60ap-5f,
                              0x1.a4f246p-4f,  0x1.af0d14p-4f,  0x1.b11ea8p-4f};
    const float x = fminf(fabsf(u), 14.0f), t = 1.0f / fmaf(0.265f, x, 1.0f);
    float p = c[0];
    for (int i = 1; i < 9; i++) p = fmaf(p, t, c[i]);
    *e = model_exp(-0.5f * (x * x));
    const float tail = *e * (p * t);
    return u < 0 ? tail : 1.0f - tail;
}

static inline float model_exact_gelu(float u) {
    float e;
    return u * model_normal(u, &e);
}

static inline float model_exact_gelu_slope(float u) {
    float e, below = model_normal(u, &e);
    return fmaf(u, e * 0.3989422804f, below);
}

static inline float model_form(GeluForm form, float u) {
    float positive = u < 0 ? 0 : u;
    if (form == RELU_SQUARED) return positive * positive;
    return form == GELU_EXACT ? model_exact_gelu(u) : model_gelu(u);
}

static inline float model_form_slope(GeluForm form, float u) {
    if (form == RELU_SQUARED) return 2.0f * (u < 0 ? 0 : u);
    return form == GELU_EXACT ? model_exact_gelu_slope(u) : model_gelu_slope(u);
}

static void model_bias_gelu_forward(const BiasGeluForward *p) {
    for (int64_t i = 0; i < tensor_count(p->x); i++) {
        float u = value(p->x, i) + value_or_zero(p->bias, i % p->x.cols);
        put(p->y, i, model_form(p->form, u));
    }
}

static void model_bias_gelu_backward(const BiasGeluBackward *p) {
    for (int64_t i = 0; i < tensor_count(p->x); i++) {
        float u = value(p->x, i) + value_or_zero(p->bias, i % p->x.cols);
        put(p->dx, i, value(p->dy, i) * model_form_slope(p->form, u));
    }
}

// The gate and the up column as GATE_QUICK uses them, and whether it cuts them off.
typedef struct {
    float g, u;
    bool cut_g, cut_u;
} QuickInputs;

static inline QuickInputs model_quick_inputs(float g, float u, float clamp) {
    return (QuickInputs){g > clamp ? clamp : g,
                         u > clamp    ? clamp
                         : u < -clamp ? -clamp
                                      : u,
                         g > clamp, fabsf(u) > clamp};
}

static inline float model_silu(float g, float z) {
    const float e = model_exp2(fminf(z, 80.0f) * 1.44269504f);
    return g * (e * (1.0f / (1.0f + e)));
}

static void model_swiglu_forward(const SwigluForward *p) {
    const int64_t cols = p->y.cols;
    for (int64_t i = 0; i < tensor_count(p->y); i++) {
        const int64_t c = i % cols, gate = i / cols * 2 * cols + c;
        const float g = value(p->x, gate) + value_or_zero(p->bias, c);
        const float u = value(p->x, gate + cols) + value_or_zero(p->bias, cols + c);
        const QuickInputs quick = model_quick_inputs(g, u, p->clamp);
        if (p->form == GATE_QUICK)
            put(p->y, i, model_silu(quick.g, quick.g * 1.702f) * (quick.u + p->offset));
        else
            put(p->y, i, (p->form == GATE_GELU ? model_gelu(g) : model_silu(g, g)) * u);
    }
}

static void model_swiglu_backward(const SwigluBackward *p) {
    const int64_t cols = p->dy.cols;
    for (int64_t i = 0; i < tensor_count(p->dy); i++) {
        const int64_t c = i % cols, gate = i / cols * 2 * cols + c;
        float g = value(p->x, gate) + value_or_zero(p->bias, c), dy = value(p->dy, i);
        float u = value(p->x, gate + cols) + value_or_zero(p->bias, cols + c);
        const QuickInputs quick = model_quick_inputs(g, u, p->clamp);
        const bool is_quick = p->form == GATE_QUICK, is_gelu = p->form == GATE_GELU;
        if (is_quick) g = quick.g, u = quick.u + p->offset;
        const float z = is_quick ? g * 1.702f : g;
        const float e = model_exp2(-fabsf(z) * 1.44269504f), large = 1.0f / (1.0f + e), small = e * large;
        const float s = z < 0 ? small : large;
        put(p->dx, gate,
            is_quick && quick.cut_g ? 0
                                    : dy * u * (is_gelu ? model_gelu_slope(g) : fmaf(z, small * large, s)));
        put(p->dx, gate + cols, is_quick && quick.cut_u ? 0 : dy * (is_gelu ? model_gelu(g) : g * s));
    }
}

// ---- dropout, positions -----------------------------------------------------------------------------------

// What is left of x at an element; rows are those of a tensor with `cols` columns.
static inline float model_dropped(Dropout d, int64_t row, int64_t cols, int64_t c, float x) {
    if (d.probability == 0) return x;
    const int64_t s = (d.first_row + row) / d.samples, b = (d.first_row + row) % d.samples;
    const uint32_t word = rng_word(d.key, (uint64_t)(d.first_sample + b), (uint64_t)(s * cols + c));
    return word >= rng_dropout_threshold(d.probability) ? x * (1.0f / (1.0f - d.probability)) : 0;
}

static void model_bias_dropout_add(const BiasDropoutAdd *p) {
    const int64_t cols = p->x.cols;
    for (int64_t i = 0; i < tensor_count(p->x); i++) {
        const float sum = value(p->x, i) + value_or_zero(p->bias, i % cols);
        put(p->y, i, value(p->residual, i) + model_dropped(p->dropout, i / cols, cols, i % cols, sum));
    }
}

static void model_dropout_backward(const DropoutBackward *p) {
    const int64_t cols = p->dy.cols;
    for (int64_t i = 0; i < tensor_count(p->dy); i++)
        put(p->dx, i, model_dropped(p->dropout, i / cols, cols, i % cols, value(p->dy, i)));
}

static void model_position_dropout(const PositionDropout *p) {
    const int64_t cols = p->x.cols;
    for (int64_t i = 0; i < tensor_count(p->x); i++) {
        const int64_t row = i / cols, c = i % cols, s = (p->dropout.first_row + row) / p->dropout.samples;
        put(p->y, i,
            model_dropped(p->dropout, row, cols, c,
                          value(p->x, i) + value_or_zero(p->position, s * cols + c)));
    }
}

// In the order of the rows.
static void model_position_backward(const PositionBackward *p) {
    const int64_t cols = p->dy.cols;
    for (int64_t i = 0; i < tensor_count(p->dy); i++) {
        const int64_t at = (p->first_row + i / cols) / p->samples * cols + i % cols;
        put(p->dposition, at, value(p->dposition, at) + value(p->dy, i));
    }
}

// ---- sums, norms ------------------------------------------------------------------------------------------

static void model_scale(const Scale *p) {
    for (int64_t i = 0; i < tensor_count(p->x); i++) put(p->y, i, p->factor * value(p->x, i));
}

static inline float model_tanh(float z) {
    const float size = fabsf(z), square = z * z;
    const float e = model_exp2(-2.0f * 1.44269504f * fminf(size, 20.0f)),
                large = (1.0f - e) * (1.0f / (1.0f + e));
    const float two = fmaf(square, 0.0218694885f, -0.0539682540f);
    const float series = fmaf(square, fmaf(square, two, 0.1333333333f), -0.3333333333f);
    return size < 0.25f ? fmaf(z * square, series, z) : z < 0 ? -large : large;
}

static void model_scale_product(const ScaleProduct *p) {
    for (int64_t i = 0; i < tensor_count(p->d); i++) {
        float x = value(p->x, i) * value(p->scale_a, 0) * value(p->scale_b, 0);
        if (p->bias.data) x += value(p->bias, i % p->d.cols);
        put(p->d, i, p->accumulate ? x + value(p->d, i) : x);
    }
}

static void model_soft_cap(const SoftCap *p) {
    const float inverse = 1.0f / p->cap;
    for (int64_t i = 0; i < tensor_count(p->x); i++)
        put(p->y, i, p->cap * model_tanh(value(p->x, i) * inverse));
}

static void model_soft_cap_backward(const SoftCapBackward *p) {
    const float inverse = 1.0f / p->cap;
    for (int64_t i = 0; i < tensor_count(p->dy); i++) {
        const float share = value(p->y, i) * inverse;
        put(p->dx, i, value(p->dy, i) * fmaf(-share, share, 1.0f));
    }
}

static void model_add(const Add *p) {
    for (int64_t i = 0; i < tensor_count(p->x); i++) put(p->y, i, value(p->y, i) + value(p->x, i));
}

static void model_arrange_columns(const ArrangeColumns *p) {
    int64_t at = 0;
    for (int64_t row = 0; row < p->y.rows; row++)
        for (int64_t block = 0; block < p->blocks; block++)
            for (int i = 0; i < MAX_PIECES; i++)
                for (int64_t c = 0; c < p->pieces[i].width; c++) {
                    const ColumnPiece *piece = &p->pieces[i];
                    const Tensor x = piece->source == SOURCE_ZEROS ? (Tensor){0} : (&p->a)[piece->source];
                    const int64_t from = row * x.cols + piece->first + block * piece->step + c;
                    float sum = value_or_zero(x, from);
                    for (int64_t k = 1; k < piece->terms; k++) sum += value(x, from + k * piece->stride);
                    put(p->y, at++, sum);
                }
}

// Of every `step`-th row of a column from `first` on, before `end`: terms of dy n where there are statistics, else of x.
static inline float model_column(Tensor x, const NormBackwardWeight *norm, int64_t c, int64_t first,
                                 int64_t end, int64_t step) {
    float sum = 0;
    for (int64_t row = first; row < end; row += step) {
        const int64_t at = row * x.cols + c;
        if (norm)
            sum = fmaf(value(norm->dy, at),
                       (value(norm->x, at) - value_or_zero(norm->mean, row)) * value(norm->rstd, row), sum);
        else
            sum += value(x, at);
    }
    return sum;
}

enum { MODEL_GROUPS = 8, MODEL_FINISH_GROUPS = 16, MODEL_MOST_PARTS = 256 };

// How rows are cut: parts of so many, the rows of each dealt out to so many groups in turn.
typedef struct {
    int64_t part_rows;
    int groups;
} RowCut;

static inline RowCut model_cut(int64_t rows, int64_t most_parts, int64_t least_rows, int groups) {
    return (RowCut){larger_of(parts_at_least(rows, most_parts), least_rows), groups};
}

// The sum of a column: of each part the groups in their order; then sixteen groups take every sixteenth part, and are added in
// their order to `start`, if `joined` is false; otherwise to each other first.
static float model_column_sum_of(Tensor x, const NormBackwardWeight *norm, int64_t c, RowCut cut, float start,
                                 bool joined) {
    float groups[MODEL_FINISH_GROUPS] = {0};
    for (int64_t part = 0; part * cut.part_rows < x.rows; part++) {
        const int64_t begin = part * cut.part_rows, end = smaller_of(begin + cut.part_rows, x.rows);
        float sum = 0;
        for (int g = 0; g < cut.groups; g++) sum += model_column(x, norm, c, begin + g, end, cut.groups);
        groups[part % MODEL_FINISH_GROUPS] += sum;
    }
    float total = joined ? 0 : start;
    for (int g = 0; g < MODEL_FINISH_GROUPS; g++) total += groups[g];
    return joined ? start + total : total;
}

// The sums of the columns of x, added to what `sum` holds or to zeros.
static void model_column_sums(Tensor x, Tensor sum, bool accumulate) {
    const RowCut cut = model_cut(x.rows, MODEL_MOST_PARTS, 32, MODEL_GROUPS);
    for (int64_t c = 0; c < x.cols; c++)
        put(sum, c, model_column_sum_of(x, NULL, c, cut, accumulate ? value(sum, c) : 0, false));
}

static void model_column_sum(const ColumnSum *p) { model_column_sums(p->x, p->sum, true); }

static void model_norm_weights(const NormBackwardWeight *p, RowCut cut, bool accumulate) {
    for (int64_t c = 0; c < p->x.cols; c++) {
        const float gamma = accumulate ? value(p->dgamma, c) : 0;
        put(p->dgamma, c, model_column_sum_of(p->x, p, c, cut, gamma, true));
        if (!p->dbeta.data) continue;
        const float beta = accumulate ? value(p->dbeta, c) : 0;
        put(p->dbeta, c, model_column_sum_of(p->dy, NULL, c, cut, beta, true));
    }
}

static inline RowCut model_norm_cut(Tensor x) {
    return model_cut(x.rows, MODEL_MOST_PARTS, 64, MODEL_GROUPS);
}

static void model_norm_backward_weight(const NormBackwardWeight *p) {
    model_norm_weights(p, model_norm_cut(p->x), true);
}

// The threads that share a row: a warp, 128 or 256, so that each has up to four packs, if they can.
static inline int model_team(Tensor x) {
    const int64_t packs = parts_at_least(x.cols, pack_of(x));
    return packs <= 4 * 32 ? 32 : packs <= 4 * 128 ? 128 : 256;
}

// The thread of a team that has column c.
static inline int model_owner(Tensor x, int64_t c) { return (int)(c / pack_of(x) % model_team(x)); }

static void model_norm_forward(const NormForward *p) {
    const int team = model_team(p->x);
    const int64_t cols = p->x.cols;
    for (int64_t row = 0; row < p->x.rows; row++) {
        float sums[MODEL_THREADS] = {0}, squares[MODEL_THREADS] = {0};
        for (int64_t c = 0; c < cols; c++) sums[model_owner(p->x, c)] += value(p->x, row * cols + c);
        const float mean = p->mean.data ? team_sum(sums, team) / (float)cols : 0;
        for (int64_t c = 0; c < cols; c++) {
            const float centred = value(p->x, row * cols + c) - mean, so_far = squares[model_owner(p->x, c)];
            squares[model_owner(p->x, c)] = fmaf(centred, centred, so_far);
        }
        const float rstd = 1.0f / sqrtf(team_sum(squares, team) / (float)cols + p->epsilon);
        for (int64_t c = 0; c < cols; c++)
            put(p->y, row * cols + c,
                fmaf((value(p->x, row * cols + c) - mean) * rstd, value(p->gamma, c) + p->offset,
                     value_or_zero(p->beta, c)));
        put(p->rstd, row, rstd);
        if (p->mean.data) put(p->mean, row, mean);
    }
}

static void model_norm_backward_input(const NormBackwardInput *p) {
    const int team = model_team(p->x);
    const int64_t cols = p->x.cols;
    for (int64_t row = 0; row < p->x.rows; row++) {
        const float mean = value_or_zero(p->mean, row), rstd = value(p->rstd, row);
        float sums[MODEL_THREADS] = {0}, products[MODEL_THREADS] = {0};
        for (int64_t c = 0; c < cols; c++) {
            const int64_t at = row * cols + c;
            const int owner = model_owner(p->x, c);
            const float g = value(p->dy, at) * (value(p->gamma, c) + p->offset);
            sums[owner] += g;
            products[owner] = fmaf(g, (value(p->x, at) - mean) * rstd, products[owner]);
        }
        const float mean_g = p->mean.data ? team_sum(sums, team) / (float)cols : 0;
        const float mean_gn = team_sum(products, team) / (float)cols;
        for (int64_t c = 0; c < cols; c++) {
            const int64_t at = row * cols + c;
            const float centred = fmaf(value(p->dy, at), value(p->gamma, c) + p->offset, -mean_g);
            const float normal = (value(p->x, at) - mean) * rstd;
            put(p->dx, at, fmaf(rstd, fmaf(normal, -mean_gn, centred), value_or_zero(p->residual, at)));
        }
    }
}

// Rows of whole packs, up to four for each of 256 threads, are read once: a part of the rows has a block, and each of its teams
// (four of a warp, or one) every num_teams-th row of it. Other rows are read as by the two operations that this joins.
static void model_norm_backward(const NormBackward *p) {
    const NormBackwardWeight weight = {p->dy, p->x, p->mean, p->rstd, p->dgamma, p->dbeta};
    const bool small = model_team(p->x) == MODEL_LANES;
    RowCut cut = model_norm_cut(p->x);
    if (p->x.cols % pack_of(p->x) == 0 && p->x.cols / pack_of(p->x) <= 4 * MODEL_THREADS)
        cut = model_cut(p->x.rows, small ? 528 : 264, 8, small ? 4 : 1);
    model_norm_weights(&weight, cut, p->accumulate);
    model_norm_backward_input(
        &(NormBackwardInput){p->dy, p->x, p->gamma, p->mean, p->rstd, p->residual, p->dx, p->offset});
}

// ---- rotary embedding, tables -----------------------------------------------------------------------------

static void model_rotary(const Rotary *p) {
    const AttentionShape s = p->shape;
    const int64_t per = s.heads / s.groups + 2,
                  half = p->table.cols / 2; // heads of a group, its value the last
    for (int64_t row = 0; row < p->qkv.rows; row++)
        for (int64_t head = 0; head < s.groups * per; head++)
            for (int64_t i = 0; i < half && head % per < per - 1; i++) {
                const int64_t low = row * p->qkv.cols + head * s.head_size + i,
                              angle = row / s.batch * 2 * half + i;
                const float a = value(p->qkv, low), b = value(p->qkv, low + half),
                            cosine = value(p->table, angle);
                const float sine = (p->inverse ? -1.0f : 1.0f) * value(p->table, angle + half);
                put(p->qkv, low, fmaf(a, cosine, -(b * sine)));
                put(p->qkv, low + half, fmaf(b, cosine, a * sine));
            }
}

static inline int64_t token_row(Tensor tokens, int64_t i, int64_t first_row, int64_t rows) {
    const int64_t row = ((const int32_t *)tokens.data)[i] - first_row;
    return row >= 0 && row < rows ? row : -1;
}

static void model_embedding_forward(const EmbeddingForward *p) {
    for (int64_t i = 0; i < tensor_count(p->y); i++) {
        const int64_t row = token_row(p->tokens, i / p->y.cols, p->first_row, p->table.rows);
        put(p->y, i, row < 0 ? 0 : value(p->table, row * p->y.cols + i % p->y.cols));
    }
}

// In the order of the rows.
static void model_embedding_backward(const EmbeddingBackward *p) {
    for (int64_t i = 0; i < tensor_count(p->dy); i++) {
        const int64_t row = token_row(p->tokens, i / p->dy.cols, p->first_row, p->dtable.rows);
        const int64_t at = row * p->dy.cols + i % p->dy.cols;
        if (row >= 0) put(p->dtable, at, value(p->dtable, at) + value(p->dy, i));
    }
}
