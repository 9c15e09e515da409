// The optimizer's kernels of one instruction set and element type: one pass over flat memory each, in blocks
// that OpenMP hands out.
#include "device/cpu/cpu.h"
#include "device/cpu/vector.h"
#include "device/op_table.h"

static float *vector(Tensor x) { return x.data; } // of F32

// Comparisons with NaN are false, so whatever is not finite becomes infinity.
static float abs_max_of(const Element *x, int64_t count) {
    Floats most = {0};
    for (int64_t i = 0; i < count; i += LANES) {
        Floats size = (Floats)((Ints)load_e(x + i, count - i) & 0x7fffffff);
        size = choose(size <= 0x1.fffffep127f, size, splat(INFINITY));
        most = choose(size > most, size, most);
    }
    return max_lanes(most);
}

void CPU_NAME(cpu_abs_max)(const Exec *exec, const AbsMax *p) {
    int64_t count = tensor_count(p->x);
    float max = vector(p->max)[0];
#pragma omp parallel for num_threads(cpu_team(exec, count)) schedule(static) reduction(max : max)
    for (int64_t first = 0; first < count; first += FLAT_BLOCK) {
        float found = abs_max_of((const Element *)p->x.data + first, at_most(FLAT_BLOCK, count - first));
        max = found > max ? found : max;
    }
    vector(p->max)[0] = max;
}

// Sums, modulo 2^64, of whole numbers n, of n / 2^20 and of n / 2^40, both rounded down: what they say of the
// digits of n to the base 2^20 is exact as long as the sums of those fit.
typedef struct {
    uint64_t all, middle, high;
    double most; // the largest |x|; of infinities and NaNs not finite
} DigitSums;

typedef struct {
    Wides all, middle, high;
    Longs most; // bits of positive doubles, which grow with them; those of a NaN are above all others
} DigitLanes;

static inline void add_squares(DigitLanes *sums, Doubles x, double scale) {
    Longs size = (Longs)x & INT64_MAX, larger = size > sums->most;
    sums->most = (size & larger) | (sums->most & ~larger);
    Doubles v = x * scale;
    Wides n = (Wides) __builtin_convertvector(v * v, Longs);
    sums->all += n;
    sums->middle += n >> 20;
    sums->high += n >> 40;
}

// Sums the squares of x / 2^exponent, in units of 2^-60; `scale` is 2^(30 - exponent).
static DigitSums sum_squares_of(const float *x, int64_t count, double scale) {
    DigitLanes lanes = {0};
    int64_t whole = count - count % DOUBLE_LANES;
    for (int64_t i = 0; i < whole; i += DOUBLE_LANES)
        add_squares(&lanes, load_doubles(x + i, DOUBLE_LANES), scale);
    if (whole < count) add_squares(&lanes, load_doubles(x + whole, count - whole), scale);
    DigitSums sums = {0};
    Doubles most = (Doubles)lanes.most;
    for (int lane = 0; lane < DOUBLE_LANES; lane++) {
        sums.all += lanes.all[lane], sums.middle += lanes.middle[lane], sums.high += lanes.high[lane];
        if (!(most[lane] <= sums.most)) sums.most = isfinite(most[lane]) ? most[lane] : INFINITY;
    }
    return sums;
}

// All additions are exact, so they may be made in any order. Where x is above
// 2^exponent the sums mean nothing, and `most` alone is right.
static void sum_squares_flat(const Exec *exec, const SumSquares *p) {
    int64_t count = tensor_count(p->x);
    double scale = ldexp(1, 30 - p->exponent), *sums = p->sum.data, most = 0;
    uint64_t all = 0, middle = 0, high = 0;
#pragma omp parallel for num_threads(cpu_team(exec, count)) schedule(static) \
    reduction(+ : all, middle, high) reduction(max : most)
    for (int64_t first = 0; first < count; first += FLAT_BLOCK) {
        DigitSums one = sum_squares_of(vector(p->x) + first, at_most(FLAT_BLOCK, count - first), scale);
        all += one.all, middle += one.middle, high += one.high;
        most = one.most > most ? one.most : most;
    }
    sums[0] += 0x1p-20 * (double)high;
    sums[1] += 0x1p-40 * (double)(middle - (high << 20));
    sums[2] += 0x1p-60 * (double)(all - (middle << 20));
    if (p->max.data && most > (double)vector(p->max)[0]) vector(p->max)[0] = (float)most;
}

void CPU_NAME(cpu_sum_squares)(const Exec *exec, const SumSquares *p) {
    for (int i = 0; i < segments_or_one(p->num_segments); i++) {
        SumSquares one = sum_squares_segment(p, i);
        sum_squares_flat(exec, &one);
    }
}

// ---- AdamW ------------------------------------------------------------------------------------------------

// The factors of a step, each rounded to fp32 once.
typedef struct {
    float scale, beta1, rest1, correct1, beta2, rest2, correct2, epsilon, lr, decay;
} Factors;

static Factors factors_of(const AdamW *p) {
    return (Factors){.scale = (float)p->grad_scale,
                     .beta1 = (float)p->beta1,
                     .rest1 = (float)(1 - p->beta1),
                     .correct1 = (float)(1 / p->correction1),
                     .beta2 = (float)p->beta2,
                     .rest2 = (float)(1 - p->beta2),
                     .correct2 = (float)(1 / p->correction2),
                     .epsilon = (float)p->epsilon,
                     .lr = (float)p->lr,
                     .decay = (float)p->weight_decay};
}

// The fp32 parameters from element `at` on; where they are `split`, bf16_join of half.h.
static inline Floats load_parameter(Tensor parameter, Tensor halves, bool split, int64_t at, int64_t left) {
    if (!split) return load(vector(parameter) + at, left);
    Words value = (Words)load_as(BF16, (const uint16_t *)halves.data + at, left, 0);
    Ints remainder = (Ints)load_as(BF16, (const uint16_t *)parameter.data + at, left, 0) >> 16;
    return (Floats)(value + (Words)remainder);
}

static inline void store_parameter(Tensor parameter, Tensor value, bool split, int64_t at, int64_t left,
                                   Floats x) {
    if (split) {
        Words bits = (Words)choose(x == x, x, splat(NAN));
        store_halves((uint16_t *)value.data + at, left, high_halves(bits + 0x8000));
        store_halves((uint16_t *)parameter.data + at, left, high_halves(bits << 16));
        return;
    }
    store(vector(parameter) + at, left, x);
    if (value.data) store_e((Element *)value.data + at, left, x);
}

static inline void adamw_vector(const AdamW *p, const Factors *f, bool split, int64_t at, int64_t left) {
    float *m = vector(p->m) + at, *v = vector(p->v) + at;
    Floats g = load(vector(p->gradient) + at, left) * f->scale,
           old = load_parameter(p->parameter, p->value, split, at, left);
    Floats new_m = load(m, left) * f->beta1 + g * f->rest1;
    Floats new_v = load(v, left) * f->beta2 + g * g * f->rest2;
    Floats step = new_m * f->correct1 / (square_root(new_v * f->correct2) + f->epsilon);
    store(m, left, new_m);
    store(v, left, new_v);
    store_parameter(p->parameter, p->value, split, at, left, old - f->lr * (step + f->decay * old));
}

static inline void adamw_block(const AdamW *p, bool split, int64_t first, int64_t end) {
    const AdamW own = *p; // nothing that is stored can change it
    const Factors factors = factors_of(p);
    int64_t at = first;
    for (; at + LANES <= end; at += LANES) adamw_vector(&own, &factors, split, at, LANES);
    if (at < end) adamw_vector(&own, &factors, split, at, end - at);
}

static void adamw_flat(const Exec *exec, const AdamW *p) {
    int64_t count = tensor_count(p->parameter);
    bool split = p->parameter.dtype == U16;
#pragma omp parallel for num_threads(cpu_team(exec, count)) schedule(static)
    for (int64_t first = 0; first < count; first += FLAT_BLOCK) {
        int64_t end = at_most(first + FLAT_BLOCK, count);
        if (split)
            adamw_block(p, true, first, end);
        else
            adamw_block(p, false, first, end);
    }
}

void CPU_NAME(cpu_adamw)(const Exec *exec, const AdamW *p) {
    for (int i = 0; i < segments_or_one(p->num_segments); i++) {
        AdamW one = adamw_segment(p, i);
        adamw_flat(exec, &one);
    }
}

// ---- blend ------------------------------------------------------------------------------------------------

static inline void blend_vector(const Blend *p, bool reads, int64_t at, int64_t left) {
    bool split = p->y.dtype == U16;
    Floats x = load_parameter(p->x, p->x_value, p->x.dtype == U16, at, left), y = {0};
    if (reads) y = load_parameter(p->y, p->y_value, split, at, left);
    y = y * (float)p->keep + (x + y * (float)p->own) * (float)p->factor;
    store_parameter(p->y, p->y_value, split, at, left, y);
}

void CPU_NAME(cpu_blend)(const Exec *exec, const Blend *p) {
    int64_t count = tensor_count(p->x);
    bool reads = blend_reads(p);
#pragma omp parallel for num_threads(cpu_team(exec, count)) schedule(static)
    for (int64_t first = 0; first < count; first += FLAT_BLOCK) {
        const Blend own = *p; // nothing that is stored can change it
        int64_t end = at_most(first + FLAT_BLOCK, count), at = first;
        for (; at + LANES <= end; at += LANES) blend_vector(&own, reads, at, LANES);
        if (at < end) blend_vector(&own, reads, at, end - at);
    }
}
