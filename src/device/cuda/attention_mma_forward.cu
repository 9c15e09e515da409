// Computes self-attention on tensor cores: the forward pass. Powers of 2 are approximate instructions.
#include "device/cuda/attention_mma.h"

// Replaces the scores of a tile by exp(score - largest score so far of the row), and scales the sums over earlier
// tiles.
template <int TALL, int WIDE, int SUMS>
DEVICE void soften(float (&scores)[TALL][WIDE][4], float (&sums)[TALL][SUMS][4], float (&maxima)[TALL][2],
                   float (&exponentials)[TALL][2], float scale) {
    UNROLL
    for (int i = 0; i < TALL; i++) {
        UNROLL
        for (int half = 0; half < 2; half++) {
            float maximum = maxima[i][half];
            UNROLL
            for (int n = 0; n < WIDE; n++)
                maximum = fmaxf(maximum, fmaxf(scores[i][n][2 * half], scores[i][n][2 * half + 1]));
            maximum = fmaxf(maximum, __shfl_xor_sync(ALL_LANES, maximum, 1));
            maximum = fmaxf(maximum, __shfl_xor_sync(ALL_LANES, maximum, 2));
            const float base = maximum * scale, shrink = fast_exp2((maxima[i][half] - maximum) * scale);
            float sum = exponentials[i][half] * shrink;
            maxima[i][half] = maximum;
            UNROLL
            for (int n = 0; n < WIDE; n++) {
                UNROLL
                for (int e = 2 * half; e < 2 * half + 2; e++) {
                    scores[i][n][e] = fast_exp2(fmaf(scores[i][n][e], scale, -base));
                    sum += scores[i][n][e];
                }
            }
            exponentials[i][half] = sum;
            UNROLL
            for (int n = 0; n < SUMS; n++) sums[i][n][2 * half] *= shrink, sums[i][n][2 * half + 1] *= shrink;
        }
    }
}

// Replaces products by capped scores before scaling.
template <int TALL, int WIDE>
DEVICE void cap_scores(float (&scores)[TALL][WIDE][4], const AttentionCall &call) {
    UNROLL
    for (int i = 0; i < TALL; i++) {
        UNROLL
        for (int n = 0; n < WIDE; n++) {
            UNROLL
            for (int e = 0; e < 4; e++)
                scores[i][n][e] = capped_score(call, scores[i][n][e]).score / call.scale;
        }
    }
}

// Makes those probabilities zero that the mask drops. `query` is the first one of the lane, `first` the first key of
// the tile.
template <int TALL, int WIDE>
DEVICE void drop(float (&p)[TALL][WIDE][4], const HeadMask &mask, int query, int first) {
    UNROLL
    for (int i = 0; i < TALL; i++) {
        const uint32_t kept = kept_of_queries<WIDE>(mask, query + 16 * i, first);
        UNROLL
        for (int n = 0; n < WIDE; n++) {
            UNROLL
            for (int e = 0; e < 4; e++)
                if (!(kept >> (4 * n + e) & 1)) p[i][n][e] = 0.0f;
        }
    }
}

// 16 rows of results for other keys, from row `first` on, as sums before the mask's factor.
template <int SIZE, class E>
DEVICE void load_sums(float (&sums)[SIZE / 8][4], Rows<const E> from, int first, const AttentionCall &call) {
    const int lane = lane_now(), row = first + lane / 4, col = lane % 4 * 2;
    UNROLL
    for (int n = 0; n < SIZE / 8; n++) {
        UNROLL
        for (int e = 0; e < 4; e++)
            if (row + e / 2 * 8 < call.sequence && 8 * n < call.size)
                sums[n][e] = to_float(from.data[(row + e / 2 * 8) * from.stride + 8 * n + col + e % 2]) /
                             call.mask.factor;
    }
}

// Blocks: a head, 64 TALL queries of it; they meet KEYS keys at a time. At most 255 registers.
template <class E, int SIZE, int TALL, int KEYS, bool LIMITED>
__global__ void __launch_bounds__(THREADS)
    attention_forward_mma_kernel(AttentionCall call, const E *qkv, const E *kv, E *out, float *stats) {
    static_assert(KEYS % (16 * TALL) == 0,
                  "every row of a warp sees the first key of each tile that the warp meets");
    constexpr int QUERIES = 16 * TALL * WARPS;
    DYNAMIC_SHARED(E, queries);
    const OwnQueries of = own_queries<TALL, KEYS, LIMITED>(call);
    const int lane = lane_now(), head = of.head, own = of.own;
    const E *rows = queries + warp_now() * 16 * TALL * PITCH<SIZE>;
    load_tile<SIZE, QUERIES>(queries, query_of(call, qkv, head), of.first, call.sequence, call);

    float sums[TALL][SIZE / 8][4], maxima[TALL][2], exponentials[TALL][2];
    clear(sums);
    for (int i = 0; i < TALL; i++)
        for (int half = 0; half < 2; half++) maxima[i][half] = -INFINITY, exponentials[i][half] = 0.0f;
    for (int i = 0; LIMITED && i < TALL; i++)
        for (int half = 0; half < 2; half++) {
            maxima[i][half] = call.limits.has_sink ? sink_of(call, head) / call.scale : NO_SCORE;
            exponentials[i][half] = call.limits.has_sink && lane % 4 == 0 ? 1.0f : 0.0f;
        }
    for (int i = 0; call.adds && i < TALL; i++) {
        load_sums<SIZE>(sums[i], out_of(call, (const E *)out, head), own + 16 * i, call);
        for (int half = 0; half < 2; half++) {
            const int query = own + 16 * i + lane / 4 + 8 * half;
            maxima[i][half] =
                query < call.sequence ? stats[(int64_t)head * call.sequence + query] / call.scale : 0.0f;
            exponentials[i][half] = lane % 4 == 0 ? 1.0f : 0.0f;
        }
    }
    for_tiles_of_keys<SIZE, TALL, KEYS>(
        queries + QUERIES * PITCH<SIZE>, call, kv, of, [&](int first, const E *keys, const E *values) {
            float scores[TALL][KEYS / 8][4];
            multiply_rows<SIZE>(scores, rows, keys);
            if (LIMITED && call.limits.cap > 0) cap_scores(scores, call);
            if (LIMITED) hide_earlier(scores, call, head / call.heads, own + lane / 4, first);
            if (hides_later<KEYS>(call, own, first))
                hide_later(scores, call, call.position + own + lane / 4, first);
            soften(scores, sums, maxima, exponentials, call.scale * LOG2_E);
            if (call.mask.threshold) drop(scores, head_mask(call, head), own + lane / 4, first);
            add_product<SIZE>(sums, scores, values);
        });
    UNROLL
    for (int i = 0; i < TALL; i++) {
        float factors[2];
        UNROLL
        for (int half = 0; half < 2; half++) {
            const int query = own + 16 * i + lane / 4 + 8 * half;
            float sum = exponentials[i][half];
            sum += __shfl_xor_sync(ALL_LANES, sum, 1);
            sum += __shfl_xor_sync(ALL_LANES, sum, 2);
            factors[half] = call.mask.factor / sum;
            if (lane % 4 == 0 && query < call.sequence)
                stats[(int64_t)head * call.sequence + query] =
                    fmaf(maxima[i][half], call.scale, logarithm(sum));
        }
        store_tile<SIZE>(out_of(call, out, head), own + 16 * i, call.sequence, false, sums[i], factors, call);
    }
}

// ---- launches ---------------------------------------------------------------------------------------------

bool attention_mma_takes(const AttentionShape *shape, const Tensor *tensors, int num_tensors) {
    bool takes = tensors->dtype != F32 && shape->head_size % VECTOR == 0 && shape->head_size <= LARGEST_SIZE;
    for (int i = 0; i < num_tensors; i++)
        takes = takes && (uintptr_t)tensors[i].data % (VECTOR * sizeof(uint16_t)) == 0;
    return takes;
}

template <class E, int SIZE, int TALL, int KEYS, bool LIMITED>
static void forward(cudaStream_t stream, const AttentionCall *call, const AttentionForward *args) {
    constexpr int QUERIES = 16 * TALL * WARPS;
    const dim3 grid(call->batch * call->heads, num_blocks(call->sequence, QUERIES));
    LAUNCH((attention_forward_mma_kernel<E, SIZE, TALL, KEYS, LIMITED>), grid, THREADS,
           tile_bytes<SIZE>(QUERIES + 4 * KEYS), stream, *call, (const E *)args->qkv.data,
           (const E *)keys_of(args->qkv, args->kv).data, (E *)args->out.data, (float *)args->stats.data);
}

template <class E, bool LIMITED>
static void forward_of(cudaStream_t stream, const AttentionCall *call, const AttentionForward *args) {
    if (call->size <= 64)
        forward<E, 64, 2, 64, LIMITED>(stream, call, args);
    else
        forward<E, 128, 2, 32, LIMITED>(stream, call, args);
}

template <class E>
static void forward_by(cudaStream_t stream, const AttentionCall *call, const AttentionForward *args) {
    if (is_limited(call))
        forward_of<E, true>(stream, call, args);
    else
        forward_of<E, false>(stream, call, args);
}

void attention_mma_forward(cudaStream_t stream, const AttentionCall *call, const AttentionForward *args) {
    if (args->qkv.dtype == BF16)
        forward_by<Bf16>(stream, call, args);
    else
        forward_by<Fp16>(stream, call, args);
}
