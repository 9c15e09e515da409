// Activations: GELU in its two forms, squared ReLU, SwiGLU and other gates, soft caps, each with the gradient of its
// input. A thread treats a pack of columns.
#include "device/cuda/portable.h"

// ---- functions: as cpu/kernels.c has them -----------------------------------------------------------------

enum { QUAD = 4 };
static __device__ constexpr float LOG2_E = 1.44269504f;

DEVICE float reciprocal(float x) { return 1.0f / x; }

// gelu(u) = u sigmoid(2 z) with z = 0.79788456 u (1 + 0.044715 u^2), since (1 + tanh z) / 2 = sigmoid(2 z): exact to
// the last places in the negative tail too, where 1 + tanh cancels. With powers of 2, z in units of ln 2 / 2, sigmoid
// is 2^x / (1 + 2^x), which is 1 long before x = 110.
DEVICE float gelu_exponent(float u) { return u * fmaf(0.1029432396f, u * u, 2.302208198f); }

DEVICE float tanh_gelu(float u) {
    const float x = gelu_exponent(u), e = exponential_of_base_2(x > 110.0f ? 110.0f : x);
    return u * (e * reciprocal(1.0f + e)); // u e would overflow long before u does
}

// gate + u gate (1 - gate) d(2z)/du. From e = exp(-|2z|) both gate and 1 - gate come without cancellation.
DEVICE float tanh_gelu_slope(float u) {
    const float x = gelu_exponent(u);
    const bool negative = x < 0;
    const float e = exponential_of_base_2(negative ? x : -x), large = reciprocal(1.0f + e), small = e * large;
    const float slope_of_twice_z = fmaf(0.2140644488f, u * u, 1.595769122f);
    return fmaf(u * (small * large), slope_of_twice_z, negative ? small : large);
}

// The exact form, u times the share of the normal distribution below u, from exp(-u^2 / 2), which its slope needs
// too. The tail beyond |u| is that times t P(t), t = 1 / (1 + 0.265 |u|); the polynomial is a minimax fit over |u| <
// 13.3, error 1.1e-8 of the tail. Beyond 14 the tail is 0.
typedef struct {
    float below, exponential; // the share below u; exp(-u^2 / 2)
} Normal;

DEVICE Normal normal_of(float u) {
    const float size = u < 0 ? -u : u, x = size > 14.0f ? 14.0f : size;
    const float t = reciprocal(fmaf(0.265f, x, 1.0f)), e = exponential(-0.5f * (x * x));
    const float coefficients[] = {-0x1.284520p-3f, 0x1.bfdfbcp-3f, -0x1.e09c56p-4f, 0x1.1bdfd6p-3f,
                                  0x1.ebd60ap-5f,  0x1.a4f246p-4f, 0x1.af0d14p-4f,  0x1.b11ea8p-4f};
    float p = 0x1.fa79b8p-6f;
    UNROLL
    for (int i = 0; i < 8; i++) p = fmaf(p, t, coefficients[i]);
    const float tail = e * (p * t);
    return Normal{u < 0 ? tail : 1.0f - tail, e};
}

// max(u, 0), and NaN where u is NaN.
DEVICE float positive_part(float u) { return u < 0 ? 0 : u; }

template <GeluForm FORM> DEVICE float gelu(float u) {
    if constexpr (FORM == GELU_EXACT) return u * normal_of(u).below;
    if constexpr (FORM == RELU_SQUARED) return positive_part(u) * positive_part(u);
    return tanh_gelu(u);
}

template <GeluForm FORM> DEVICE float gelu_slope(float u) {
    if constexpr (FORM == GELU_EXACT) {
        const Normal normal = normal_of(u);
        return fmaf(u, normal.exponential * 0.3989422804f, normal.below); // 1 / sqrt(2 pi)
    }
    if constexpr (FORM == RELU_SQUARED) return 2.0f * positive_part(u);
    return tanh_gelu_slope(u);
}

// silu(g) = g e^g / (1 + e^g).
DEVICE float silu(float g) {
    const float e = exponential_of_base_2((g > 80.0f ? 80.0f : g) * LOG2_E);
    return g * (e * reciprocal(1.0f + e));
}

// ---- GELU -------------------------------------------------------------------------------------------------

// The next pack of a row that may be absent: then zeros.
template <bool WHOLE, class E> DEVICE Pack<E> load_optional(const E *row, int64_t at, int64_t left) {
    return row ? load_pack<WHOLE>(row + at, left) : Pack<E>{};
}

// At most 40 registers, 16 bytes a load.
template <class E, bool WHOLE, GeluForm FORM>
__global__ void __launch_bounds__(ROW_THREADS)
    bias_gelu_forward_kernel(const E *x, const E *bias, E *y, int64_t rows, int64_t cols) {
    const int64_t row = row_of_thread(), c = pack_of_thread() * Pack<E>::WIDTH, left = cols - c;
    if (row >= rows || left <= 0) return;
    const Pack<E> in = load_pack<WHOLE>(x + row * cols + c, left),
                  offset = load_optional<WHOLE>(bias, c, left);
    Pack<E> out;
    UNROLL
    for (int i = 0; i < Pack<E>::WIDTH; i++)
        out.e[i] = from_float<E>(gelu<FORM>(to_float(in.e[i]) + to_float(offset.e[i])));
    store_pack<WHOLE>(y + row * cols + c, left, out);
}

// dx may be dy or x: a thread reads what it writes. At most 48 registers, 16 bytes a load.
template <class E, bool WHOLE, GeluForm FORM>
__global__ void __launch_bounds__(ROW_THREADS)
    bias_gelu_backward_kernel(const E *dy, const E *x, const E *bias, E *dx, int64_t rows, int64_t cols) {
    const int64_t row = row_of_thread(), c = pack_of_thread() * Pack<E>::WIDTH, left = cols - c;
    if (row >= rows || left <= 0) return;
    const Pack<E> in = load_pack<WHOLE>(x + row * cols + c, left),
                  offset = load_optional<WHOLE>(bias, c, left);
    Pack<E> d = load_pack<WHOLE>(dy + row * cols + c, left);
    UNROLL
    for (int i = 0; i < Pack<E>::WIDTH; i++) {
        const float slope = gelu_slope<FORM>(to_float(in.e[i]) + to_float(offset.e[i]));
        d.e[i] = from_float<E>(to_float(d.e[i]) * slope);
    }
    store_pack<WHOLE>(dx + row * cols + c, left, d);
}

template <class E, bool WHOLE, GeluForm FORM>
static void launch_gelu(const Exec *exec, const BiasGeluForward *p) {
    const RowLaunch l = row_launch(p->x.rows, blocks_of(p->x.cols, Pack<E>::WIDTH));
    LAUNCH((bias_gelu_forward_kernel<E, WHOLE, FORM>), l.grid, l.block, 0, stream_of(exec),
           (const E *)p->x.data, (const E *)p->bias.data, (E *)p->y.data, p->x.rows, p->x.cols);
}

template <class E, bool WHOLE, GeluForm FORM>
static void launch_gelu_backward(const Exec *exec, const BiasGeluBackward *p) {
    const RowLaunch l = row_launch(p->x.rows, blocks_of(p->x.cols, Pack<E>::WIDTH));
    LAUNCH((bias_gelu_backward_kernel<E, WHOLE, FORM>), l.grid, l.block, 0, stream_of(exec),
           (const E *)p->dy.data, (const E *)p->x.data, (const E *)p->bias.data, (E *)p->dx.data, p->x.rows,
           p->x.cols);
}

template <class E, bool WHOLE> static void launch_form(const Exec *exec, const BiasGeluForward *p) {
    switch (p->form) {
    case GELU_TANH: launch_gelu<E, WHOLE, GELU_TANH>(exec, p); break;
    case GELU_EXACT: launch_gelu<E, WHOLE, GELU_EXACT>(exec, p); break;
    case RELU_SQUARED: launch_gelu<E, WHOLE, RELU_SQUARED>(exec, p); break;
    }
}

template <class E, bool WHOLE> static void launch_form_backward(const Exec *exec, const BiasGeluBackward *p) {
    switch (p->form) {
    case GELU_TANH: launch_gelu_backward<E, WHOLE, GELU_TANH>(exec, p); break;
    case GELU_EXACT: launch_gelu_backward<E, WHOLE, GELU_EXACT>(exec, p); break;
    case RELU_SQUARED: launch_gelu_backward<E, WHOLE, RELU_SQUARED>(exec, p); break;
    }
}

template <class E> static void bias_gelu_forward_of(const Exec *exec, const BiasGeluForward *p) {
    const bool whole = has_whole_packs(p->x) && has_whole_packs(p->bias) && has_whole_packs(p->y);
    whole ? launch_form<E, true>(exec, p) : launch_form<E, false>(exec, p);
}

template <class E> static void bias_gelu_backward_of(const Exec *exec, const BiasGeluBackward *p) {
    const bool whole =
        has_whole_packs(p->dy) && has_whole_packs(p->x) && has_whole_packs(p->bias) && has_whole_packs(p->dx);
    whole ? launch_form_backward<E, true>(exec, p) : launch_form_backward<E, false>(exec, p);
}

extern "C" void cuda_bias_gelu_forward(const Exec *exec, const BiasGeluForward *args) {
    if (tensor_count(args->x)) BY_ELEMENT(args->x.dtype, bias_gelu_forward_of, exec, args);
}

extern "C" void cuda_bias_gelu_backward(const Exec *exec, const BiasGeluBackward *args) {
    if (tensor_count(args->x)) BY_ELEMENT(args->x.dtype, bias_gelu_backward_of, exec, args);
}

// ---- SwiGLU -----------------------------------------------------------------------------------------------

static __device__ constexpr float QUICK = 1.702f; // of GATE_QUICK

// What is left of a column that nothing may be above, or beyond on both sides. A NaN stays one.
DEVICE float cut_above(float x, float most) { return x > most ? most : x; }
DEVICE float cut_both(float x, float most) { return x > most ? most : x < -most ? -most : x; }

// y of a gate and an up column.
template <GateForm FORM> DEVICE float gated(float g, float u, float offset, float clamp) {
    if constexpr (FORM == GATE_SILU) return silu(g) * u;
    if constexpr (FORM == GATE_GELU) return tanh_gelu(g) * u;
    g = cut_above(g, clamp);
    const float z = g * QUICK, e = exponential_of_base_2((z > 80.0f ? 80.0f : z) * LOG2_E);
    return g * (e * reciprocal(1.0f + e)) * (cut_both(u, clamp) + offset);
}

// `cols` of y; x has twice as many, the gates first. At most 56 registers, 16 bytes a load.
template <class E, bool WHOLE, GateForm FORM>
__global__ void __launch_bounds__(ROW_THREADS)
    swiglu_forward_kernel(const E *x, const E *bias, E *y, int64_t rows, int64_t cols, float offset,
                          float clamp) {
    const int64_t row = row_of_thread(), c = pack_of_thread() * Pack<E>::WIDTH, left = cols - c;
    if (row >= rows || left <= 0) return;
    const E *gates = x + row * 2 * cols + c;
    const Pack<E> gate = load_pack<WHOLE>(gates, left), up = load_pack<WHOLE>(gates + cols, left);
    const Pack<E> gate_offset = load_optional<WHOLE>(bias, c, left);
    const Pack<E> up_offset = load_optional<WHOLE>(bias, cols + c, left);
    Pack<E> out;
    UNROLL
    for (int i = 0; i < Pack<E>::WIDTH; i++) {
        const float g = to_float(gate.e[i]) + to_float(gate_offset.e[i]);
        const float u = to_float(up.e[i]) + to_float(up_offset.e[i]);
        out.e[i] = from_float<E>(gated<FORM>(g, u, offset, clamp));
    }
    store_pack<WHOLE>(y + row * cols + c, left, out);
}

typedef struct {
    float gate, up;
} GateSlopes;

// With s = sigmoid(z), z = g or for GATE_QUICK 1.702 g: dg = dy u (s + z s (1 - s)), du = dy g s. From e = exp(-|z|)
// both s and 1 - s come without cancellation. What the clamp cuts off has no gradient.
template <GateForm FORM>
DEVICE GateSlopes slopes_of_gate(float dy, float g, float u, float offset, float clamp) {
    if constexpr (FORM == GATE_GELU) return GateSlopes{dy * u * tanh_gelu_slope(g), dy * tanh_gelu(g)};
    const bool quick = FORM == GATE_QUICK, cut_g = quick && g > clamp;
    const bool cut_u = quick && (u > clamp || u < -clamp);
    if (quick) g = cut_above(g, clamp), u = cut_both(u, clamp) + offset;
    const float z = quick ? g * QUICK : g;
    const bool negative = z < 0;
    const float e = exponential_of_base_2((negative ? z : -z) * LOG2_E);
    const float large = reciprocal(1.0f + e), small = e * large, s = negative ? small : large;
    return GateSlopes{cut_g ? 0 : dy * u * fmaf(z, small * large, s), cut_u ? 0 : dy * (g * s)};
}

// dx may be x. At most 64 registers, 16 bytes a load.
template <class E, bool WHOLE, GateForm FORM>
__global__ void __launch_bounds__(ROW_THREADS)
    swiglu_backward_kernel(const E *dy, const E *x, const E *bias, E *dx, int64_t rows, int64_t cols,
                           float offset, float clamp) {
    const int64_t row = row_of_thread(), c = pack_of_thread() * Pack<E>::WIDTH, left = cols - c;
    if (row >= rows || left <= 0) return;
    const int64_t at = row * 2 * cols + c;
    const Pack<E> d = load_pack<WHOLE>(dy + row * cols + c, left);
    const Pack<E> gate_offset = load_optional<WHOLE>(bias, c, left);
    const Pack<E> up_offset = load_optional<WHOLE>(bias, cols + c, left);
    Pack<E> gate = load_pack<WHOLE>(x + at, left), up = load_pack<WHOLE>(x + at + cols, left);
    UNROLL
    for (int i = 0; i < Pack<E>::WIDTH; i++) {
        const float g = to_float(gate.e[i]) + to_float(gate_offset.e[i]);
        const float u = to_float(up.e[i]) + to_float(up_offset.e[i]);
        const GateSlopes slopes = slopes_of_gate<FORM>(to_float(d.e[i]), g, u, offset, clamp);
        gate.e[i] = from_float<E>(slopes.gate);
        up.e[i] = from_float<E>(slopes.up);
    }
    store_pack<WHOLE>(dx + at, left, gate);
    store_pack<WHOLE>(dx + at + cols, left, up);
}

template <class E, bool WHOLE, GateForm FORM>
static void launch_swiglu(const Exec *exec, const SwigluForward *p) {
    const RowLaunch l = row_launch(p->y.rows, blocks_of(p->y.cols, Pack<E>::WIDTH));
    LAUNCH((swiglu_forward_kernel<E, WHOLE, FORM>), l.grid, l.block, 0, stream_of(exec), (const E *)p->x.data,
           (const E *)p->bias.data, (E *)p->y.data, p->y.rows, p->y.cols, p->offset, p->clamp);
}

template <class E, bool WHOLE, GateForm FORM>
static void launch_swiglu_backward(const Exec *exec, const SwigluBackward *p) {
    const RowLaunch l = row_launch(p->dy.rows, blocks_of(p->dy.cols, Pack<E>::WIDTH));
    LAUNCH((swiglu_backward_kernel<E, WHOLE, FORM>), l.grid, l.block, 0, stream_of(exec),
           (const E *)p->dy.data, (const E *)p->x.data, (const E *)p->bias.data, (E *)p->dx.data, p->dy.rows,
           p->dy.cols, p->offset, p->clamp);
}

template <class E, bool WHOLE> static void launch_gate(const Exec *exec, const SwigluForward *p) {
    switch (p->form) {
    case GATE_SILU: launch_swiglu<E, WHOLE, GATE_SILU>(exec, p); break;
    case GATE_GELU: launch_swiglu<E, WHOLE, GATE_GELU>(exec, p); break;
    case GATE_QUICK: launch_swiglu<E, WHOLE, GATE_QUICK>(exec, p); break;
    }
}

template <class E, bool WHOLE> static void launch_gate_backward(const Exec *exec, const SwigluBackward *p) {
    switch (p->form) {
    case GATE_SILU: launch_swiglu_backward<E, WHOLE, GATE_SILU>(exec, p); break;
    case GATE_GELU: launch_swiglu_backward<E, WHOLE, GATE_GELU>(exec, p); break;
    case GATE_QUICK: launch_swiglu_backward<E, WHOLE, GATE_QUICK>(exec, p); break;
    }
}

// Rows of y that are whole packs make halves of x that are.
template <class E> static void swiglu_forward_of(const Exec *exec, const SwigluForward *p) {
    const bool whole = has_whole_packs(p->x) && has_whole_packs(p->bias) && has_whole_packs(p->y);
    whole ? launch_gate<E, true>(exec, p) : launch_gate<E, false>(exec, p);
}

template <class E> static void swiglu_backward_of(const Exec *exec, const SwigluBackward *p) {
    const bool whole =
        has_whole_packs(p->dy) && has_whole_packs(p->x) && has_whole_packs(p->bias) && has_whole_packs(p->dx);
    whole ? launch_gate_backward<E, true>(exec, p) : launch_gate_backward<E, false>(exec, p);
}

extern "C" void cuda_swiglu_forward(const Exec *exec, const SwigluForward *args) {
    if (tensor_count(args->y)) BY_ELEMENT(args->x.dtype, swiglu_forward_of, exec, args);
}

extern "C" void cuda_swiglu_backward(const Exec *exec, const SwigluBackward *args) {
    if (tensor_count(args->dy)) BY_ELEMENT(args->x.dtype, swiglu_backward_of, exec, args);
}

// ---- soft caps --------------------------------------------------------------------------------------------

// tanh z by e = exp(-2 |z|); where that cancels by the first terms of its series.
DEVICE float tanh_of(float z) {
    const float size = z < 0 ? -z : z, square = z * z;
    const float e = exponential_of_base_2(-2.0f * LOG2_E * (size > 20.0f ? 20.0f : size));
    const float large = (1.0f - e) * reciprocal(1.0f + e);
    const float two = fmaf(square, 0.0218694885f, -0.0539682540f);
    const float series = fmaf(square, fmaf(square, two, 0.1333333333f), -0.3333333333f);
    return size < 0.25f ? fmaf(z * square, series, z) : z < 0 ? -large : large;
}

// y may be x. At most 32 registers, 16 bytes a load.
template <bool WHOLE>
__global__ void __launch_bounds__(ROW_THREADS)
    soft_cap_kernel(const float *x, float *y, int64_t rows, int64_t cols, float cap, float inverse) {
    const int64_t row = row_of_thread(), c = pack_of_thread() * Pack<float>::WIDTH, left = cols - c;
    if (row >= rows || left <= 0) return;
    Pack<float> own = load_pack<WHOLE>(x + row * cols + c, left);
    UNROLL
    for (int i = 0; i < Pack<float>::WIDTH; i++) own.e[i] = cap * tanh_of(own.e[i] * inverse);
    store_pack<WHOLE>(y + row * cols + c, left, own);
}

// dx may be dy. At most 32 registers, 16 bytes a load.
template <class E, bool WHOLE>
__global__ void __launch_bounds__(ROW_THREADS)
    soft_cap_backward_kernel(const E *dy, const float *y, E *dx, int64_t rows, int64_t cols, float inverse) {
    const int64_t row = row_of_thread(), c = pack_of_thread() * QUAD, left = cols - c;
    if (row >= rows || left <= 0) return;
    Quad<E> d = load_quad<WHOLE>(dy + row * cols + c, left);
    const Quad<float> own = load_quad<WHOLE>(y + row * cols + c, left);
    UNROLL
    for (int i = 0; i < QUAD; i++) {
        const float share = own.e[i] * inverse;
        d.e[i] = from_float<E>(to_float(d.e[i]) * fmaf(-share, share, 1.0f));
    }
    store_quad<WHOLE>(dx + row * cols + c, left, d);
}

extern "C" void cuda_soft_cap(const Exec *exec, const SoftCap *p) {
    if (!tensor_count(p->x)) return;
    const RowLaunch l = row_launch(p->x.rows, blocks_of(p->x.cols, Pack<float>::WIDTH));
    const float *x = (const float *)p->x.data;
    if (has_whole_packs(p->x) && has_whole_packs(p->y))
        LAUNCH((soft_cap_kernel<true>), l.grid, l.block, 0, stream_of(exec), x, (float *)p->y.data, p->x.rows,
               p->x.cols, p->cap, 1.0f / p->cap);
    else
        LAUNCH((soft_cap_kernel<false>), l.grid, l.block, 0, stream_of(exec), x, (float *)p->y.data,
               p->x.rows, p->x.cols, p->cap, 1.0f / p->cap);
}

template <class E, bool WHOLE>
static void launch_soft_cap_backward(const Exec *exec, const SoftCapBackward *p) {
    const RowLaunch l = row_launch(p->dy.rows, blocks_of(p->dy.cols, QUAD));
    LAUNCH((soft_cap_backward_kernel<E, WHOLE>), l.grid, l.block, 0, stream_of(exec), (const E *)p->dy.data,
           (const float *)p->y.data, (E *)p->dx.data, p->dy.rows, p->dy.cols, 1.0f / p->cap);
}

// Rows of y that are whole packs make rows of dy that are whole quads.
template <class E> static void soft_cap_backward_of(const Exec *exec, const SoftCapBackward *p) {
    if (has_whole_packs(p->dy) && has_whole_packs(p->y) && has_whole_packs(p->dx))
        launch_soft_cap_backward<E, true>(exec, p);
    else
        launch_soft_cap_backward<E, false>(exec, p);
}

extern "C" void cuda_soft_cap_backward(const Exec *exec, const SoftCapBackward *args) {
    if (tensor_count(args->dy)) BY_ELEMENT(args->dy.dtype, soft_cap_backward_of, exec, args);
}
