// Rotary position embedding, in place on the query and key heads of qkv. A thread turns a pack of pairs of one head.
#include "device/cuda/portable.h"

// As many floats as a pack of E has elements.
template <class E> struct alignas(16) Angles {
    enum { WIDTH = Pack<E>::WIDTH };
    float e[WIDTH];
};

// How a row of qkv is cut, see AttentionShape. `per` and `heads`: those that turn, of a group and of a row.
typedef struct {
    int batch, per, heads, head_size, half;
    int64_t row_size;
} Turns;

// sign: -1 turns back. At most 48 registers, 16 bytes a load.
template <class E, bool WHOLE>
__global__ void __launch_bounds__(ROW_THREADS)
    rotary_kernel(const float *table, E *qkv, int64_t rows, Turns turns, float sign) {
    const int packs = (turns.half + Pack<E>::WIDTH - 1) / Pack<E>::WIDTH, number = (int)pack_of_thread();
    const int head = number / packs, i = (number - head * packs) * Pack<E>::WIDTH, left = turns.half - i;
    const int64_t row = row_of_thread();
    if (row >= rows || head >= turns.heads) return;
    const int group = head / turns.per,
              column = (head + group) * turns.head_size; // behind each group its value
    const float *angles = table + (int64_t)((unsigned)row / (unsigned)turns.batch) * 2 * turns.half + i;
    E *low = qkv + row * turns.row_size + column + i, *high = low + turns.half;
    const Angles<E> cosines = load_some<WHOLE, Angles<E>>(angles, left);
    const Angles<E> sines = load_some<WHOLE, Angles<E>>(angles + turns.half, left);
    Pack<E> x1 = load_pack<WHOLE>(low, left), x2 = load_pack<WHOLE>(high, left);
    UNROLL
    for (int k = 0; k < Pack<E>::WIDTH; k++) {
        const float a = to_float(x1.e[k]), b = to_float(x2.e[k]), cosine = cosines.e[k],
                    sine = sign * sines.e[k];
        x1.e[k] = from_float<E>(fmaf(a, cosine, -(b * sine)));
        x2.e[k] = from_float<E>(fmaf(b, cosine, a * sine));
    }
    store_pack<WHOLE>(low, left, x1);
    store_pack<WHOLE>(high, left, x2);
}

template <class E, bool WHOLE> static void launch_rotary(const Exec *exec, const Rotary *p, Turns turns) {
    const RowLaunch l = row_launch(p->qkv.rows, turns.heads * blocks_of(turns.half, Pack<E>::WIDTH));
    LAUNCH((rotary_kernel<E, WHOLE>), l.grid, l.block, 0, stream_of(exec), (const float *)p->table.data,
           (E *)p->qkv.data, p->qkv.rows, turns, p->inverse ? -1.0f : 1.0f);
}

template <class E> static void rotary_of(const Exec *exec, const Rotary *p) {
    const AttentionShape *shape = &p->shape;
    const int64_t per = shape->heads / shape->groups + 1, half = p->table.cols / 2;
    CHECK(p->qkv.rows <= UINT32_MAX, "%lld rows", (long long)p->qkv.rows);
    const Turns turns = {(int)shape->batch,     (int)per,  (int)(shape->groups * per),
                         (int)shape->head_size, (int)half, p->qkv.cols};
    const bool are_whole = half % Pack<E>::WIDTH == 0 && shape->head_size % Pack<E>::WIDTH == 0;
    if (are_whole && has_whole_packs(p->table) && has_whole_packs(p->qkv))
        launch_rotary<E, true>(exec, p, turns);
    else
        launch_rotary<E, false>(exec, p, turns);
}

extern "C" void cuda_rotary(const Exec *exec, const Rotary *args) {
    if (args->qkv.rows && args->table.cols > 1) BY_ELEMENT(args->qkv.dtype, rotary_of, exec, args);
}
