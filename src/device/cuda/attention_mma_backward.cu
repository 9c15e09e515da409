// Computes self-attention on tensor cores: the backward pass. Powers of 2 are approximate instructions.
#include "device/cuda/attention_mma.h"

// Replaces the score and the gradient of the key's weight by the gradient of the score and that weight. The weight is
// what the value was multiplied with: the probability after dropout. `stat` is in units of log2; `factor` is the
// mask's. A score that is hidden is minus infinity.
template <bool LIMITED>
DEVICE void gradient(float &score, float &change, const AttentionCall &call, float stat, float delta,
                     float factor) {
    const float scale = call.scale * LOG2_E;
    CappedScore capped = {score, 1.0f};
    if (LIMITED && call.limits.cap > 0 && score > -INFINITY) {
        capped = capped_score(call, score);
        capped.score /= call.scale;
    }
    const float p = fast_exp2(fmaf(capped.score, scale, -stat));
    score = p * (change * factor - delta);
    if (LIMITED) score *= capped.slope;
    change = p * factor;
}

// ---- the gradient of the queries --------------------------------------------------------------------------

// Does this for the tile of a warp: its queries from `own` on, and the keys from `first` on.
template <bool LIMITED, int TALL, int WIDE>
DEVICE void take_gradients(float (&scores)[TALL][WIDE][4], float (&changes)[TALL][WIDE][4],
                           const float (&stats)[TALL][2], const float (&deltas)[TALL][2],
                           const AttentionCall &call, const HeadMask &mask, int query, int first) {
    UNROLL
    for (int i = 0; i < TALL; i++) {
        const uint32_t kept = kept_of_queries<WIDE>(mask, query + 16 * i, first);
        UNROLL
        for (int n = 0; n < WIDE; n++) {
            UNROLL
            for (int e = 0; e < 4; e++) {
                const float factor = kept >> (4 * n + e) & 1 ? call.mask.factor : 0.0f;
                gradient<LIMITED>(scores[i][n][e], changes[i][n][e], call, stats[i][e / 2], deltas[i][e / 2],
                                  factor);
            }
        }
    }
}

// Blocks: a head, 64 TALL queries of it; they meet KEYS keys at a time. dq is dqkv's, or a tensor like out in the
// workspace (`apart`). At most 255 registers.
template <class E, int SIZE, int TALL, int KEYS, bool LIMITED>
__global__ void __launch_bounds__(THREADS, LIMITED ? 2 : 3)
    attention_dq_mma_kernel(AttentionCall call, const E *qkv, const E *kv, const E *dout, AttentionRows rows,
                            E *dq, bool apart) {
    constexpr int QUERIES = 16 * TALL * WARPS;
    DYNAMIC_SHARED(E, queries);
    E *gradients = queries + QUERIES * PITCH<SIZE>;
    const OwnQueries of = own_queries<TALL, KEYS, LIMITED>(call);
    const int lane = lane_now(), head = of.head, own = of.own, at_own = warp_now() * 16 * TALL * PITCH<SIZE>;
    load_tile<SIZE, QUERIES>(queries, query_of(call, qkv, head), of.first, call.sequence, call);
    load_tile<SIZE, QUERIES>(gradients, out_of(call, dout, head), of.first, call.sequence, call);

    float sums[TALL][SIZE / 8][4], stats[TALL][2], deltas[TALL][2];
    clear(sums);
    UNROLL
    for (int i = 0; i < TALL; i++) {
        UNROLL
        for (int half = 0; half < 2; half++) {
            const int query = own + 16 * i + lane / 4 + 8 * half;
            const int64_t at = (int64_t)head * call.sequence + query;
            stats[i][half] = query < call.sequence ? rows.stats[at] * LOG2_E : 0.0f;
            deltas[i][half] = query < call.sequence ? rows.deltas[at] : 0.0f;
        }
    }
    for_tiles_of_keys<SIZE, TALL, KEYS>(
        gradients + QUERIES * PITCH<SIZE>, call, kv, of, [&](int first, const E *keys, const E *values) {
            float scores[TALL][KEYS / 8][4], changes[TALL][KEYS / 8][4];
            multiply_rows<SIZE>(scores, queries + at_own, keys);
            multiply_rows<SIZE>(changes, gradients + at_own, values);
            if (LIMITED) hide_earlier(scores, call, head / call.heads, own + lane / 4, first);
            if (hides_later<KEYS>(call, own, first))
                hide_later(scores, call, call.position + own + lane / 4, first);
            take_gradients<LIMITED>(scores, changes, stats, deltas, call, head_mask(call, head),
                                    own + lane / 4, first);
            add_product<SIZE>(sums, scores, keys);
        });
    const float factors[2] = {call.scale, call.scale};
    UNROLL
    for (int i = 0; i < TALL; i++)
        store_tile<SIZE>(apart ? out_of(call, dq, head) : query_of(call, dq, head), own + 16 * i,
                         call.sequence, call.adds, sums[i], factors, call);
}

// ---- the gradients of the keys and values -----------------------------------------------------------------

// The tiles that meet the keys of a block: those of each head of the group, from query `begin` on.
struct QueryTiles {
    int first_head, begin, of_head, count;
};

// A tile of queries with the gradients of out, and in `tile_rows` their log-sum-exps and deltas.
template <int SIZE, int QUERIES, class E>
DEVICE void load_queries(E *tiles, float *tile_rows, const AttentionCall &call, const E *qkv, const E *dout,
                         const AttentionRows &rows, const QueryTiles &of, int number) {
    const int head = of.first_head + number / of.of_head, first = of.begin + number % of.of_head * QUERIES;
    E *queries = tile_of<SIZE, QUERIES>(tiles, number);
    load_tile<SIZE, QUERIES>(queries, query_of(call, qkv, head), first, call.sequence, call);
    load_tile<SIZE, QUERIES>(queries + QUERIES * PITCH<SIZE>, out_of(call, dout, head), first, call.sequence,
                             call);
    const int query = first + thread_now();
    if (thread_now() < QUERIES) {
        const int64_t at = query < call.sequence ? (int64_t)head * call.sequence + query : 0;
        float *row = tile_rows + number % 2 * 2 * QUERIES + thread_now();
        copy_begin<4>(row, rows.stats + at, query < call.sequence);
        copy_begin<4>(row + QUERIES, rows.deltas + at, query < call.sequence);
    }
}

// Blocks: a group, 64 keys of it, QUERIES queries at a time; sums over the group's heads and their queries, in order.
// All is transposed: rows are keys. dkv may be kv, in qkv: the rows of keys and values that a block writes are its own,
// read before. At most 255 registers.
template <class E, int SIZE, int QUERIES, bool LIMITED>
__global__ void __launch_bounds__(THREADS)
    attention_dkv_mma_kernel(AttentionCall call, const E *qkv, const E *kv, const E *dout, AttentionRows rows,
                             E *dkv) {
    constexpr int KEYS = 16 * WARPS;
    DYNAMIC_SHARED(E, keys);
    SHARED(float, tile_rows, 4 * QUERIES);
    E *values = keys + KEYS * PITCH<SIZE>, *tiles = values + KEYS * PITCH<SIZE>;
    const int lane = lane_now(), warp = warp_now(), group = blockIdx.x;
    const int per = call.heads / call.groups, block = blockIdx.y * KEYS, own = block + warp * 16;
    const int b = group / call.groups, begin = max(block - call.position, 0);
    const int end = LIMITED ? end_of_queries(call, b, begin, block + KEYS) : call.sequence;
    QueryTiles of = {group * per, begin / QUERIES * QUERIES, 0, 0};
    if (begin >= end) return; // no query sees a key of the block; its sums stay
    of.of_head = (end - of.begin + QUERIES - 1) / QUERIES, of.count = of.of_head * per;
    load_tile<SIZE, KEYS>(keys, key_of(call, kv, group, 0), block, call.keys, call);
    load_tile<SIZE, KEYS>(values, key_of(call, kv, group, 1), block, call.keys, call);
    load_queries<SIZE, QUERIES>(tiles, tile_rows, call, qkv, dout, rows, of, 0);

    float dk[1][SIZE / 8][4], dv[1][SIZE / 8][4];
    clear(dk), clear(dv);
    for (int number = 0; number < of.count; number++) {
        const E *queries = tile_of<SIZE, QUERIES>(tiles, number),
                *gradients = queries + QUERIES * PITCH<SIZE>;
        const float *stats = tile_rows + number % 2 * 2 * QUERIES, *deltas = stats + QUERIES;
        const int first = of.begin + number % of.of_head * QUERIES;
        wait_for_tile();
        if (number + 1 < of.count)
            load_queries<SIZE, QUERIES>(tiles, tile_rows, call, qkv, dout, rows, of, number + 1);
        if (call.position + first + QUERIES <= own) continue; // no query sees the warp's keys

        float scores[1][QUERIES / 8][4], changes[1][QUERIES / 8][4];
        multiply_rows<SIZE>(scores, keys + warp * 16 * PITCH<SIZE>, queries);
        multiply_rows<SIZE>(changes, values + warp * 16 * PITCH<SIZE>, gradients);
        const HeadMask mask = head_mask(call, of.first_head + number / of.of_head);
        const uint32_t kept = kept_of_keys<QUERIES / 8>(mask, own + lane / 4, first);
        UNROLL
        for (int n = 0; n < QUERIES / 8; n++) {
            const int key = own + lane / 4, col = 8 * n + lane % 4 * 2;
            UNROLL
            for (int e = 0; e < 4; e++) {
                const float factor = kept >> (4 * n + e) & 1 ? call.mask.factor : 0.0f;
                if (key + e / 2 * 8 > call.position + first + col + e % 2) scores[0][n][e] = -INFINITY;
                if (LIMITED && key + e / 2 * 8 < first_key(call, b, first + col + e % 2))
                    scores[0][n][e] = -INFINITY;
                gradient<LIMITED>(scores[0][n][e], changes[0][n][e], call, stats[col + e % 2] * LOG2_E,
                                  deltas[col + e % 2], factor);
            }
        }
        add_product<SIZE>(dv, changes, gradients);
        add_product<SIZE>(dk, scores, queries);
    }
    const float factors[2] = {call.scale, call.scale}, ones[2] = {1.0f, 1.0f};
    store_tile<SIZE>(key_of(call, dkv, group, 0), own, call.keys, call.apart, dk[0], factors, call);
    store_tile<SIZE>(key_of(call, dkv, group, 1), own, call.keys, call.apart, dv[0], ones, call);
}

// ---- launches ---------------------------------------------------------------------------------------------

template <class E, int SIZE, int TALL, int KEYS, bool LIMITED>
static void backward_queries(cudaStream_t stream, const AttentionCall *call, const AttentionBackward *args,
                             const AttentionRows *rows, void *dq) {
    constexpr int QUERIES = 16 * TALL * WARPS;
    const dim3 grid(call->batch * call->heads, num_blocks(call->sequence, QUERIES));
    LAUNCH((attention_dq_mma_kernel<E, SIZE, TALL, KEYS, LIMITED>), grid, THREADS,
           tile_bytes<SIZE>(2 * QUERIES + 4 * KEYS), stream, *call, (const E *)args->qkv.data,
           (const E *)keys_of(args->qkv, args->kv).data, (const E *)args->dout.data, *rows,
           (E *)(dq ? dq : args->dqkv.data), dq || call->apart);
}

template <class E, int SIZE, int QUERIES, bool LIMITED>
static void backward_keys(cudaStream_t stream, const AttentionCall *call, const AttentionBackward *args,
                          const AttentionRows *rows) {
    constexpr int KEYS = 16 * WARPS;
    const dim3 grid(call->batch * call->groups, num_blocks(call->keys, KEYS));
    LAUNCH((attention_dkv_mma_kernel<E, SIZE, QUERIES, LIMITED>), grid, THREADS,
           tile_bytes<SIZE>(2 * KEYS + 4 * QUERIES), stream, *call, (const E *)args->qkv.data,
           (const E *)keys_of(args->qkv, args->kv).data, (const E *)args->dout.data, *rows,
           (E *)keys_of(args->dqkv, args->dkv).data);
}

template <class E, bool LIMITED>
static void backward_of(cudaStream_t stream, const AttentionCall *call, const AttentionBackward *args,
                        const AttentionRows *rows, void *dq) {
    if (call->size <= 64) {
        backward_queries<E, 64, 1, 64, LIMITED>(stream, call, args, rows, dq);
        backward_keys<E, 64, 64, LIMITED>(stream, call, args, rows);
    } else {
        backward_queries<E, 128, 1, 32, LIMITED>(stream, call, args, rows, dq);
        backward_keys<E, 128, 32, LIMITED>(stream, call, args, rows);
    }
}

template <class E>
static void backward_by(cudaStream_t stream, const AttentionCall *call, const AttentionBackward *args,
                        const AttentionRows *rows, void *dq) {
    if (is_limited(call))
        backward_of<E, true>(stream, call, args, rows, dq);
    else
        backward_of<E, false>(stream, call, args, rows, dq);
}

void attention_mma_backward(cudaStream_t stream, const AttentionCall *call, const AttentionBackward *args,
                            const AttentionRows *rows, void *dq) {
    if (args->qkv.dtype == BF16)
        backward_by<Bf16>(stream, call, args, rows, dq);
    else
        backward_by<Fp16>(stream, call, args, rows, dq);
}
