// Causal self-attention on tensor cores, for bf16 and fp16: FlashAttention-2 (Dao 2023) with the gradient of the queries in
// a kernel of its own, so that every sum has a fixed order. Probabilities and gradients of scores stay in registers: the
// product that gives them holds them as the next product wants its left factor (mma.h).
//
// A block has four warps; a warp owns 16 rows or a multiple, and all warps meet the same tile of the other rows, which lies
// in shared memory. Rows there are SIZE elements wide, D rounded up, and zero from D on.
#include "device/cuda/attention.h"
#include "device/cuda/mma.h"

enum { WARPS = 4, THREADS = WARPS * WARP, LARGEST_SIZE = 128 };
#define LOG2_E 1.44269504f

// Of rows in shared memory, in elements: 16 bytes more than a row, so that eight rows lie in different banks.
template <int SIZE> constexpr int PITCH = SIZE + 8;

enum { VECTOR = 8 }; // elements that are copied at once, and where the rows' addresses lie

// Begins to load `COUNT` rows from row `first` on, those from S on and columns from D on as zeros.
template <int SIZE, int COUNT, class E>
DEVICE void load_tile(E *to, Rows<const E> from, int first, const AttentionCall &call) {
    constexpr int VECTORS = SIZE / VECTOR;
    static_assert(COUNT * VECTORS % THREADS == 0, "every thread copies as much");
    UNROLL
    for (int k = 0; k < COUNT * VECTORS / THREADS; k++) {
        const int i = thread_now() + k * THREADS, row = i / VECTORS, d = i % VECTORS * VECTOR;
        const bool is_there = first + row < call.sequence && d < call.size;
        const E *source = from.data + (is_there ? (first + row) * from.stride + d : 0);
        copy_begin<VECTOR * sizeof(E)>(to + row * PITCH<SIZE> + d, source, is_there);
    }
}

template <int TALL, int WIDE> DEVICE void clear(float (&c)[TALL][WIDE][4]) {
    UNROLL
    for (int i = 0; i < TALL; i++) {
        UNROLL
        for (int n = 0; n < WIDE; n++) {
            UNROLL
            for (int e = 0; e < 4; e++) c[i][n][e] = 0.0f;
        }
    }
}

// c = a b^T over SIZE columns: 16 TALL rows of a, 8 WIDE rows of b.
template <int SIZE, int TALL, int WIDE, class E>
DEVICE void multiply_rows(float (&c)[TALL][WIDE][4], const E *a, const E *b) {
    const int lane = lane_now();
    const E *own = a + lane % 16 * PITCH<SIZE> + lane / 16 * 8;
    const E *other = b + (lane / 16 * 8 + lane % 8) * PITCH<SIZE> + lane / 8 % 2 * 8;
    clear(c);
    UNROLL
    for (int k = 0; k < SIZE; k += 16) {
        uint32_t x[TALL][4], y[4];
        UNROLL
        for (int i = 0; i < TALL; i++) mma_load(x[i], own + 16 * i * PITCH<SIZE> + k);
        UNROLL
        for (int n = 0; n < WIDE; n += 2) {
            mma_load(y, other + 8 * n * PITCH<SIZE> + k);
            UNROLL
            for (int i = 0; i < TALL; i++) {
                mma_add<E>(c[i][n], x[i], y[0], y[1]);
                mma_add<E>(c[i][n + 1], x[i], y[2], y[3]);
            }
        }
    }
}

// c += a b: a [16 TALL, 8 LONG], rounded to E; b has 8 LONG rows of SIZE columns.
template <int SIZE, int TALL, int LONG, class E>
DEVICE void add_product(float (&c)[TALL][SIZE / 8][4], const float (&a)[TALL][LONG][4], const E *b) {
    const int lane = lane_now();
    const E *other = b + lane % 16 * PITCH<SIZE> + lane / 16 * 8;
    UNROLL
    for (int k = 0; k < LONG; k += 2) {
        uint32_t x[TALL][4], y[4];
        UNROLL
        for (int i = 0; i < TALL; i++) {
            UNROLL
            for (int e = 0; e < 4; e++)
                x[i][e] = mma_pair<E>(a[i][k + e / 2][e % 2 * 2], a[i][k + e / 2][e % 2 * 2 + 1]);
        }
        UNROLL
        for (int n = 0; n < SIZE / 8; n += 2) {
            mma_load_transposed(y, other + 8 * k * PITCH<SIZE> + 8 * n);
            UNROLL
            for (int i = 0; i < TALL; i++) {
                mma_add<E>(c[i][n], x[i], y[0], y[1]);
                mma_add<E>(c[i][n + 1], x[i], y[2], y[3]);
            }
        }
    }
}

// Stores 16 rows from row `first` on: c * factors, one factor for rows up to 7 and one for the others.
template <int SIZE, class E>
DEVICE void store_tile(Rows<E> to, int first, const float (&c)[SIZE / 8][4], const float (&factors)[2],
                       const AttentionCall &call) {
    const int lane = lane_now(), row = first + lane / 4, col = lane % 4 * 2;
    UNROLL
    for (int n = 0; n < SIZE / 8; n++) {
        UNROLL
        for (int half = 0; half < 2; half++)
            if (row + 8 * half < call.sequence && 8 * n < call.size)
                *(uint32_t *)(to.data + (row + 8 * half) * to.stride + 8 * n + col) =
                    mma_pair<E>(c[n][2 * half] * factors[half], c[n][2 * half + 1] * factors[half]);
    }
}

// ---- masks ------------------------------------------------------------------------------------------------

// The mask of one head, as a lane needs it.
struct HeadMask {
    RngKey key;
    uint64_t sample, begins;
    int sequence;
    // Four adjacent keys of a query have the four words of one Philox block; lanes compute each block once and trade words.
    bool trades;
};

DEVICE HeadMask head_mask(const AttentionCall &call, int head) {
    return {call.mask.key, sample_of(call, head), mask_begins(call, head), call.sequence,
            call.sequence % 4 == 0};
}

DEVICE uint64_t mask_element(const HeadMask &mask, int query, int key) {
    return mask.begins + (uint64_t)query * mask.sequence + key;
}

DEVICE uint32_t trade(uint32_t x, int lanes) { return __shfl_xor_sync(ALL_LANES, x, lanes); }

// The words of a lane's share of 16 queries and 8 keys: its first query, the first key of all.
DEVICE void words_of_queries(uint32_t (&words)[4], const HeadMask &mask, int query, int key) {
    const int lane = lane_now(), col = lane % 4 * 2;
    if (!mask.trades) {
        for (int e = 0; e < 4; e++)
            words[e] =
                philox_word(mask.key, mask.sample, mask_element(mask, query + e / 2 * 8, key + col + e % 2));
        return;
    }
    // Of two neighbours the first has the block of the first query.
    const bool second = lane % 2;
    uint32_t x[4];
    philox_block(mask.key, mask.sample, mask_element(mask, query + 8 * second, key + col / 4 * 4) / 4, x);
    const uint32_t got0 = trade(second ? x[0] : x[2], 1), got1 = trade(second ? x[1] : x[3], 1);
    words[0] = second ? got0 : x[0], words[1] = second ? got1 : x[1];
    words[2] = second ? x[2] : got0, words[3] = second ? x[3] : got1;
}

// The same of 16 keys and 8 queries: its first key, the first query of all.
DEVICE void words_of_keys(uint32_t (&words)[4], const HeadMask &mask, int key, int query) {
    const int lane = lane_now(), col = lane % 4 * 2;
    if (!mask.trades) {
        for (int e = 0; e < 4; e++)
            words[e] =
                philox_word(mask.key, mask.sample, mask_element(mask, query + col + e % 2, key + e / 2 * 8));
        return;
    }
    // Four lanes have the four blocks of four keys: block r has query r % 2, keys from 8 * (r / 2) on. Word r of all blocks
    // goes to lane r: a 4 x 4 transpose.
    const int r = lane / 4 % 4;
    uint32_t x[4];
    philox_block(mask.key, mask.sample, mask_element(mask, query + col + r % 2, key - r + r / 2 * 8) / 4, x);
    const bool high = r / 2, odd = r % 2;
    const uint32_t far0 = trade(high ? x[0] : x[2], 8), far1 = trade(high ? x[1] : x[3], 8);
    const uint32_t y[4] = {high ? far0 : x[0], high ? far1 : x[1], high ? x[2] : far0, high ? x[3] : far1};
    const uint32_t near0 = trade(odd ? y[0] : y[1], 4), near1 = trade(odd ? y[2] : y[3], 4);
    words[0] = odd ? near0 : y[0], words[1] = odd ? y[1] : near0;
    words[2] = odd ? near1 : y[2], words[3] = odd ? y[3] : near1;
}

// ---- tiles that lie in shared memory twice: one is worked on while the next one comes -----------------------

// Where tile `number` of a block lies: COUNT rows of two matrices.
template <int SIZE, int COUNT, class E> DEVICE E *tile_of(E *tiles, int number) {
    return tiles + number % 2 * 2 * COUNT * PITCH<SIZE>;
}

// The tile begun last is there for all threads, and none works on the one before any more.
DEVICE void tiles_are_there(void) {
    copy_wait();
    __syncthreads();
}

template <int SIZE, int KEYS, class E>
DEVICE void load_keys(E *tiles, const AttentionCall &call, const E *qkv, int group, int first) {
    const int per = call.heads / call.groups;
    E *keys = tile_of<SIZE, KEYS>(tiles, first / KEYS);
    load_tile<SIZE, KEYS>(keys, part_of(call, qkv, group, per), first, call);
    load_tile<SIZE, KEYS>(keys + KEYS * PITCH<SIZE>, part_of(call, qkv, group, per + 1), first, call);
}

// ---- forward ----------------------------------------------------------------------------------------------

// Takes the scores of a tile to exp(score - largest score so far of the row), and scales what was summed before.
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

// Hides the keys behind each query, of a tile whose first key is `first`; `query` is the lane's first.
template <int TALL, int WIDE> DEVICE void hide_later(float (&scores)[TALL][WIDE][4], int query, int first) {
    const int key = first + thread_now() % 4 * 2;
    UNROLL
    for (int i = 0; i < TALL; i++) {
        UNROLL
        for (int n = 0; n < WIDE; n++) {
            UNROLL
            for (int e = 0; e < 4; e++)
                if (key + 8 * n + e % 2 > query + 16 * i + e / 2 * 8) scores[i][n][e] = -INFINITY;
        }
    }
}

template <int TALL, int WIDE>
DEVICE void drop(float (&p)[TALL][WIDE][4], const AttentionCall &call, const HeadMask &mask, int query,
                 int first) {
    UNROLL
    for (int i = 0; i < TALL; i++) {
        UNROLL
        for (int n = 0; n < WIDE; n++) {
            uint32_t words[4];
            words_of_queries(words, mask, query + 16 * i, first + 8 * n);
            UNROLL
            for (int e = 0; e < 4; e++)
                if (words[e] < call.mask.threshold) p[i][n][e] = 0.0f;
        }
    }
}

// Blocks: a head, 64 * TALL queries of it, KEYS keys at a time; those with most keys begin first.
template <class E, int SIZE, int TALL, int KEYS>
__global__ void __launch_bounds__(THREADS)
    attention_forward_mma_kernel(AttentionCall call, const E *qkv, E *out, float *stats) {
    static_assert(KEYS % (16 * TALL) == 0,
                  "every row of a warp sees the first key of each tile that the warp meets");
    constexpr int QUERIES = 16 * TALL * WARPS;
    DYNAMIC_SHARED(E, queries);
    E *tiles = queries + QUERIES * PITCH<SIZE>;
    const int lane = lane_now(), warp = warp_now(), head = blockIdx.x;
    const int per = call.heads / call.groups, group = head / per;
    const int block = (gridDim.y - 1 - blockIdx.y) * QUERIES, own = block + warp * 16 * TALL;
    const int end = min(block + QUERIES, call.sequence);
    load_tile<SIZE, QUERIES>(queries, query_of(call, qkv, head), block, call);

    float sums[TALL][SIZE / 8][4], maxima[TALL][2], exponentials[TALL][2];
    clear(sums);
    for (int i = 0; i < TALL; i++)
        for (int half = 0; half < 2; half++) maxima[i][half] = -INFINITY, exponentials[i][half] = 0.0f;
    load_keys<SIZE, KEYS>(tiles, call, qkv, group, 0);
    for (int first = 0; first < end; first += KEYS) {
        const E *keys = tile_of<SIZE, KEYS>(tiles, first / KEYS), *values = keys + KEYS * PITCH<SIZE>;
        tiles_are_there();
        if (first + KEYS < end) load_keys<SIZE, KEYS>(tiles, call, qkv, group, first + KEYS);
        if (first < own + 16 * TALL) {
            float scores[TALL][KEYS / 8][4];
            multiply_rows<SIZE>(scores, queries + warp * 16 * TALL * PITCH<SIZE>, keys);
            if (first + KEYS > own) hide_later(scores, own + lane / 4, first);
            soften(scores, sums, maxima, exponentials, call.scale * LOG2_E);
            if (call.mask.threshold) drop(scores, call, head_mask(call, head), own + lane / 4, first);
            add_product<SIZE>(sums, scores, values);
        }
    }
    UNROLL
    for (int i = 0; i < TALL; i++) {
        float factors[2];
        UNROLL
        for (int half = 0; half < 2; half++) {
            const int query = own + 16 * i + lane / 4 + 8 * half;
            float sum = exponentials[i][half];
            sum += __shfl_xor_sync(ALL_LANES, sum, 1);
            sum += __shfl_xor_sync(ALL_LANES, sum, 2);
            factors[half] = (call.mask.threshold ? call.mask.factor : 1.0f) / sum;
            if (lane % 4 == 0 && query < call.sequence)
                stats[(int64_t)head * call.sequence + query] =
                    fmaf(maxima[i][half], call.scale, logarithm(sum));
        }
        store_tile<SIZE>(out_of(call, out, head), own + 16 * i, sums[i], factors, call);
    }
}

// ---- backward ---------------------------------------------------------------------------------------------

// Takes a score to its gradient, and the gradient of the key's weight (the probability that was multiplied with the value,
// after dropout) to that weight. `stat` is in units of log2; `factor` is the mask's.
DEVICE void gradient(float &score, float &change, float scale, float stat, float delta, float factor,
                     bool is_seen) {
    const float p = is_seen ? fast_exp2(fmaf(score, scale, -stat)) : 0.0f;
    score = p * (change * factor - delta);
    change = p * factor;
}

// The same of the rows of a warp, queries from `own` on, and keys from `first` on.
template <int TALL, int WIDE>
DEVICE void take_gradients(float (&scores)[TALL][WIDE][4], float (&changes)[TALL][WIDE][4],
                           const float (&stats)[TALL][2], const float (&deltas)[TALL][2],
                           const AttentionCall &call, int head, int own, int first) {
    const HeadMask mask = head_mask(call, head);
    UNROLL
    for (int i = 0; i < TALL; i++) {
        UNROLL
        for (int n = 0; n < WIDE; n++) {
            const int query = own + 16 * i + lane_now() / 4, key = first + 8 * n + lane_now() % 4 * 2;
            uint32_t words[4];
            if (call.mask.threshold) words_of_queries(words, mask, query, first + 8 * n);
            UNROLL
            for (int e = 0; e < 4; e++) {
                float factor = 1.0f;
                if (call.mask.threshold) factor = words[e] >= call.mask.threshold ? call.mask.factor : 0.0f;
                gradient(scores[i][n][e], changes[i][n][e], call.scale * LOG2_E, stats[i][e / 2],
                         deltas[i][e / 2], factor, key + e % 2 <= query + e / 2 * 8);
            }
        }
    }
}

// Blocks: a head, 64 * TALL queries of it, KEYS keys at a time. dq is dqkv's, or a tensor like out in the workspace
// (`apart`).
template <class E, int SIZE, int TALL, int KEYS>
__global__ void __launch_bounds__(THREADS)
    attention_dq_mma_kernel(AttentionCall call, const E *qkv, const E *dout, AttentionRows rows, E *dq,
                            bool apart) {
    constexpr int QUERIES = 16 * TALL * WARPS;
    DYNAMIC_SHARED(E, queries);
    E *gradients = queries + QUERIES * PITCH<SIZE>, *tiles = gradients + QUERIES * PITCH<SIZE>;
    const int lane = lane_now(), warp = warp_now(), head = blockIdx.x;
    const int per = call.heads / call.groups, group = head / per;
    const int block = (gridDim.y - 1 - blockIdx.y) * QUERIES, own = block + warp * 16 * TALL;
    const int end = min(block + QUERIES, call.sequence);
    load_tile<SIZE, QUERIES>(queries, query_of(call, qkv, head), block, call);
    load_tile<SIZE, QUERIES>(gradients, out_of(call, dout, head), block, call);

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
    load_keys<SIZE, KEYS>(tiles, call, qkv, group, 0);
    for (int first = 0; first < end; first += KEYS) {
        const E *keys = tile_of<SIZE, KEYS>(tiles, first / KEYS), *values = keys + KEYS * PITCH<SIZE>;
        tiles_are_there();
        if (first + KEYS < end) load_keys<SIZE, KEYS>(tiles, call, qkv, group, first + KEYS);
        if (first < own + 16 * TALL) {
            float scores[TALL][KEYS / 8][4], changes[TALL][KEYS / 8][4];
            multiply_rows<SIZE>(scores, queries + warp * 16 * TALL * PITCH<SIZE>, keys);
            multiply_rows<SIZE>(changes, gradients + warp * 16 * TALL * PITCH<SIZE>, values);
            take_gradients(scores, changes, stats, deltas, call, head, own, first);
            add_product<SIZE>(sums, scores, keys);
        }
    }
    const float factors[2] = {call.scale, call.scale};
    UNROLL
    for (int i = 0; i < TALL; i++)
        store_tile<SIZE>(apart ? out_of(call, dq, head) : query_of(call, dq, head), own + 16 * i, sums[i],
                         factors, call);
}

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
    load_tile<SIZE, QUERIES>(queries, query_of(call, qkv, head), first, call);
    load_tile<SIZE, QUERIES>(queries + QUERIES * PITCH<SIZE>, out_of(call, dout, head), first, call);
    const int query = first + thread_now();
    if (thread_now() < QUERIES) {
        const int64_t at = query < call.sequence ? (int64_t)head * call.sequence + query : 0;
        float *row = tile_rows + number % 2 * 2 * QUERIES + thread_now();
        copy_begin<4>(row, rows.stats + at, query < call.sequence);
        copy_begin<4>(row + QUERIES, rows.deltas + at, query < call.sequence);
    }
}

// Blocks: a group, 64 keys of it, QUERIES queries at a time; sums over the group's heads and their queries, in order. All is
// transposed: rows are keys. dqkv may be qkv: the rows of keys and values that a block writes are its own, read before.
template <class E, int SIZE, int QUERIES>
__global__ void __launch_bounds__(THREADS)
    attention_dkv_mma_kernel(AttentionCall call, const E *qkv, const E *dout, AttentionRows rows, E *dqkv) {
    constexpr int KEYS = 16 * WARPS;
    DYNAMIC_SHARED(E, keys);
    SHARED(float, tile_rows, 4 * QUERIES);
    E *values = keys + KEYS * PITCH<SIZE>, *tiles = values + KEYS * PITCH<SIZE>;
    const int lane = lane_now(), warp = warp_now(), group = blockIdx.x;
    const int per = call.heads / call.groups, block = blockIdx.y * KEYS, own = block + warp * 16;
    QueryTiles of = {group * per, block / QUERIES * QUERIES, 0, 0};
    of.of_head = (call.sequence - of.begin + QUERIES - 1) / QUERIES, of.count = of.of_head * per;
    load_tile<SIZE, KEYS>(keys, part_of(call, qkv, group, per), block, call);
    load_tile<SIZE, KEYS>(values, part_of(call, qkv, group, per + 1), block, call);
    load_queries<SIZE, QUERIES>(tiles, tile_rows, call, qkv, dout, rows, of, 0);

    float dk[1][SIZE / 8][4], dv[1][SIZE / 8][4];
    clear(dk), clear(dv);
    for (int number = 0; number < of.count; number++) {
        const E *queries = tile_of<SIZE, QUERIES>(tiles, number),
                *gradients = queries + QUERIES * PITCH<SIZE>;
        const float *stats = tile_rows + number % 2 * 2 * QUERIES, *deltas = stats + QUERIES;
        const int first = of.begin + number % of.of_head * QUERIES;
        tiles_are_there();
        if (number + 1 < of.count)
            load_queries<SIZE, QUERIES>(tiles, tile_rows, call, qkv, dout, rows, of, number + 1);
        if (first + QUERIES <= own) continue; // no query sees the warp's keys

        float scores[1][QUERIES / 8][4], changes[1][QUERIES / 8][4];
        multiply_rows<SIZE>(scores, keys + warp * 16 * PITCH<SIZE>, queries);
        multiply_rows<SIZE>(changes, values + warp * 16 * PITCH<SIZE>, gradients);
        const HeadMask mask = head_mask(call, of.first_head + number / of.of_head);
        UNROLL
        for (int n = 0; n < QUERIES / 8; n++) {
            const int key = own + lane / 4, col = 8 * n + lane % 4 * 2;
            uint32_t words[4];
            if (call.mask.threshold) words_of_keys(words, mask, key, first + 8 * n);
            UNROLL
            for (int e = 0; e < 4; e++) {
                float factor = 1.0f;
                if (call.mask.threshold) factor = words[e] >= call.mask.threshold ? call.mask.factor : 0.0f;
                gradient(scores[0][n][e], changes[0][n][e], call.scale * LOG2_E, stats[col + e % 2] * LOG2_E,
                         deltas[col + e % 2], factor, key + e / 2 * 8 <= first + col + e % 2);
            }
        }
        add_product<SIZE>(dv, changes, gradients);
        add_product<SIZE>(dk, scores, queries);
    }
    const float factors[2] = {call.scale, call.scale}, ones[2] = {1.0f, 1.0f};
    store_tile<SIZE>(part_of(call, dqkv, group, per), own, dk[0], factors, call);
    store_tile<SIZE>(part_of(call, dqkv, group, per + 1), own, dv[0], ones, call);
}

// ---- launches ---------------------------------------------------------------------------------------------

bool attention_mma_takes(const AttentionShape *shape, const Tensor *tensors, int num_tensors) {
    bool takes = tensors->dtype != F32 && shape->head_size % VECTOR == 0 && shape->head_size <= LARGEST_SIZE;
    for (int i = 0; i < num_tensors; i++)
        takes = takes && (uintptr_t)tensors[i].data % (VECTOR * sizeof(uint16_t)) == 0;
    return takes;
}

// Shared memory of so many rows.
template <int SIZE> constexpr size_t tile_bytes(int rows) {
    return (size_t)rows * PITCH<SIZE> * sizeof(uint16_t);
}

template <class E, int SIZE, int TALL, int KEYS>
static void forward(cudaStream_t stream, const AttentionCall *call, const AttentionForward *args) {
    constexpr int QUERIES = 16 * TALL * WARPS;
    const dim3 grid(call->batch * call->heads, num_blocks(call->sequence, QUERIES));
    LAUNCH((attention_forward_mma_kernel<E, SIZE, TALL, KEYS>), grid, THREADS,
           tile_bytes<SIZE>(QUERIES + 4 * KEYS), stream, *call, (const E *)args->qkv.data,
           (E *)args->out.data, (float *)args->stats.data);
}

template <class E, int SIZE, int TALL, int KEYS>
static void backward_queries(cudaStream_t stream, const AttentionCall *call, const AttentionBackward *args,
                             const AttentionRows *rows, void *dq) {
    constexpr int QUERIES = 16 * TALL * WARPS;
    const dim3 grid(call->batch * call->heads, num_blocks(call->sequence, QUERIES));
    LAUNCH((attention_dq_mma_kernel<E, SIZE, TALL, KEYS>), grid, THREADS,
           tile_bytes<SIZE>(2 * QUERIES + 4 * KEYS), stream, *call, (const E *)args->qkv.data,
           (const E *)args->dout.data, *rows, (E *)(dq ? dq : args->dqkv.data), dq != NULL);
}

template <class E, int SIZE, int QUERIES>
static void backward_keys(cudaStream_t stream, const AttentionCall *call, const AttentionBackward *args,
                          const AttentionRows *rows) {
    constexpr int KEYS = 16 * WARPS;
    const dim3 grid(call->batch * call->groups, num_blocks(call->sequence, KEYS));
    LAUNCH((attention_dkv_mma_kernel<E, SIZE, QUERIES>), grid, THREADS,
           tile_bytes<SIZE>(2 * KEYS + 4 * QUERIES), stream, *call, (const E *)args->qkv.data,
           (const E *)args->dout.data, *rows, (E *)args->dqkv.data);
}

template <class E>
static void forward_of(cudaStream_t stream, const AttentionCall *call, const AttentionForward *args) {
    if (call->size <= 64)
        forward<E, 64, 2, 64>(stream, call, args);
    else
        forward<E, 128, 2, 32>(stream, call, args);
}

template <class E>
static void backward_of(cudaStream_t stream, const AttentionCall *call, const AttentionBackward *args,
                        const AttentionRows *rows, void *dq) {
    if (call->size <= 64) {
        backward_queries<E, 64, 1, 64>(stream, call, args, rows, dq);
        backward_keys<E, 64, 64>(stream, call, args, rows);
    } else {
        backward_queries<E, 128, 1, 32>(stream, call, args, rows, dq);
        backward_keys<E, 128, 32>(stream, call, args, rows);
    }
}

void attention_mma_forward(cudaStream_t stream, const AttentionCall *call, const AttentionForward *args) {
    if (args->qkv.dtype == BF16)
        forward_of<Bf16>(stream, call, args);
    else
        forward_of<Fp16>(stream, call, args);
}

void attention_mma_backward(cudaStream_t stream, const AttentionCall *call, const AttentionBackward *args,
                            const AttentionRows *rows, void *dq) {
    if (args->qkv.dtype == BF16)
        backward_of<Bf16>(stream, call, args, rows, dq);
    else
        backward_of<Fp16>(stream, call, args, rows, dq);
}
