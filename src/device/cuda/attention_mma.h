// The kernels of self-attention on tensor cores share this header: tiles in shared memory, products of tiles, and
// masks. Those that are LIMITED take AttentionLimits; the others are plain causal attention. They serve bf16 and fp16.
//
// The method is FlashAttention-2 (Dao 2023), with the gradient of the queries in a kernel of its own, so that every sum
// has a fixed order. Probabilities and gradients of scores stay in registers: the product that computes them leaves
// them where the next product reads its left factor (mma.h).
//
// A block has four warps. Each warp owns 16 rows or a multiple of 16, and all warps multiply them with the same tile of
// the other rows, which lies in shared memory. A row in shared memory has SIZE elements: D, rounded up, and zeros from
// D on.
#pragma once
#include "device/cuda/attention.h"
#include "device/cuda/mma.h"

enum { WARPS = 4, THREADS = WARPS * WARP, LARGEST_SIZE = 128 };
#define LOG2_E 1.44269504f

// The distance of two rows in shared memory, in elements. It is 16 bytes more than a row, so that the rows that one
// instruction reads lie in different banks.
template <int SIZE> constexpr int PITCH = SIZE + 8;

enum { VECTOR = 8 }; // elements that one copy takes; addresses of rows are a multiple of its size

// ---- tiles in shared memory -------------------------------------------------------------------------------

// Begins to load COUNT rows from row `first` on. Rows from `end` on and columns from D on become zeros.
template <int SIZE, int COUNT, class E>
DEVICE void load_tile(E *to, Rows<const E> from, int first, int end, const AttentionCall &call) {
    constexpr int VECTORS = SIZE / VECTOR, STEP = THREADS / VECTORS;
    static_assert(COUNT % STEP == 0, "every thread copies as much");
    const int row = thread_now() / VECTORS, d = thread_now() % VECTORS * VECTOR;
    const E *source = from.data + (first + row) * from.stride + d;
    UNROLL
    for (int k = 0; k < COUNT; k += STEP) {
        const bool is_there = first + row + k < end && d < call.size;
        copy_begin<VECTOR * sizeof(E)>(to + (row + k) * PITCH<SIZE> + d,
                                       is_there ? source + k * from.stride : from.data, is_there);
    }
}

// Each tile of the loop of a kernel is COUNT rows of two matrices. Two of them fit into shared memory: the block works
// on one of them while the next one is loaded. Returns where tile `number` lies.
template <int SIZE, int COUNT, class E> DEVICE E *tile_of(E *tiles, int number) {
    return tiles + number % 2 * 2 * COUNT * PITCH<SIZE>;
}

// Waits until all threads see the tile that was begun last, and no thread works on the one before it any more.
DEVICE void wait_for_tile(void) {
    copy_wait();
    __syncthreads();
}

// Stores c * factors as 16 rows from row `first` on, of `end`, or adds them to what is there. The first factor is that
// of the first 8 rows.
template <int SIZE, class E>
DEVICE void store_tile(Rows<E> to, int first, int end, bool adds, const float (&c)[SIZE / 8][4],
                       const float (&factors)[2], const AttentionCall &call) {
    const int lane = lane_now(), row = first + lane / 4, col = lane % 4 * 2;
    UNROLL
    for (int n = 0; n < SIZE / 8; n++) {
        UNROLL
        for (int half = 0; half < 2; half++)
            if (row + 8 * half < end && 8 * n < call.size) {
                E *at = to.data + (row + 8 * half) * to.stride + 8 * n + col;
                const float left = adds ? to_float(at[0]) : 0.0f, right = adds ? to_float(at[1]) : 0.0f;
                *(uint32_t *)at = mma_pair<E>(c[n][2 * half] * factors[half] + left,
                                              c[n][2 * half + 1] * factors[half] + right);
            }
    }
}

// ---- products of tiles -------------------------------------------------------------------------------------

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

// c = a b^T, summed over SIZE columns: a has 16 TALL rows, b has 8 WIDE rows.
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

// c += a b: a is [16 TALL, 8 LONG] and is rounded to E; b has 8 LONG rows of SIZE columns.
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

// ---- masks ------------------------------------------------------------------------------------------------

// The dropout mask of one head. A lane keeps its share of a tile as bits: bit 4 n + e says whether element e of its
// share of the n-th product (mma.h) is kept.
struct HeadMask {
    RngKey key;
    uint32_t threshold; // 0: every element is kept
    uint64_t sample, begins;
    int keys, position; // of the sequence; of query 0 among the call's keys
    // Four adjacent keys of a query have the four words of one Philox block: lanes compute each block once and trade
    // bits.
    bool trades;
};

DEVICE HeadMask head_mask(const AttentionCall &call, int head) {
    return {call.mask.key,
            call.mask.threshold,
            sample_of(call, head),
            mask_begins(call, head),
            call.positions,
            call.position,
            call.positions % 4 == 0 && call.first_kept % 4 == 0};
}

DEVICE uint64_t mask_element(const HeadMask &mask, int query, int key) {
    return mask.begins + (uint64_t)(mask.position + query) * mask.keys + key;
}

// Bit 4 n + i is whether word i of the Philox block of element `first` + n `step` is kept.
template <int WIDE> DEVICE uint32_t kept_of_blocks(const HeadMask &mask, uint64_t first, uint64_t step) {
    uint32_t kept = 0;
    UNROLL_BY(1)
    for (int n = 0; n < WIDE; n++) {
        uint32_t words[4];
        philox_block(mask.key, mask.sample, (first + n * step) / 4, words);
        UNROLL
        for (int i = 0; i < 4; i++) kept |= (uint32_t)(words[i] >= mask.threshold) << (4 * n + i);
    }
    return kept;
}

// Bit 4 n + e is whether element `first` + n `step` + e % 2 `right` + e / 2 `down` is kept.
template <int WIDE>
DEVICE uint32_t kept_of_elements(const HeadMask &mask, uint64_t first, uint64_t step, uint64_t right,
                                 uint64_t down) {
    uint32_t kept = 0;
    UNROLL_BY(1)
    for (int i = 0; i < 4 * WIDE; i++) {
        const uint64_t element = first + i / 4 * step + i % 2 * right + i / 2 % 2 * down;
        kept |= (uint32_t)(philox_word(mask.key, mask.sample, element) >= mask.threshold) << i;
    }
    return kept;
}

// Lanes that differ in the bit `lanes` of their number trade half of their bits: the lower lane keeps those of `low`,
// and gets the other lane's, which go `places` higher.
DEVICE uint32_t trade(uint32_t bits, int lanes, uint32_t low, int places) {
    const uint32_t other = __shfl_xor_sync(ALL_LANES, bits, lanes);
    return lane_now() & lanes ? (bits & ~low) | (other & ~low) >> places
                              : (bits & low) | (other & low) << places;
}

// The bits of a lane's share of 16 queries and 8 WIDE keys: its first query, the first key of all.
template <int WIDE> DEVICE uint32_t kept_of_queries(const HeadMask &mask, int query, int key) {
    static_assert(WIDE <= 8, "the bits of a tile fit into 32");
    const int lane = lane_now(), col = lane % 4 * 2;
    if (mask.threshold == 0) return ~0u;
    if (!mask.trades)
        return kept_of_elements<WIDE>(mask, mask_element(mask, query, key + col), 8, 1,
                                      8 * (uint64_t)mask.keys);
    // A lane has two adjacent keys of two queries, and its neighbour the other two keys of the same blocks. The first
    // of the two lanes computes the block of the first query, the second one that of the second query.
    const uint64_t block = mask_element(mask, query + lane % 2 * 8, key + col / 4 * 4);
    return trade(kept_of_blocks<WIDE>(mask, block, 8), 1, 0x33333333, 2);
}

// The bits of a lane's share of 16 keys and 8 WIDE queries: its first key, the first query of all.
template <int WIDE> DEVICE uint32_t kept_of_keys(const HeadMask &mask, int key, int query) {
    static_assert(WIDE <= 8, "the bits of a tile fit into 32");
    const int lane = lane_now(), col = lane % 4 * 2, r = lane / 4 % 4;
    const uint64_t step = 8 * (uint64_t)mask.keys;
    if (mask.threshold == 0) return ~0u;
    if (!mask.trades)
        return kept_of_elements<WIDE>(mask, mask_element(mask, query + col, key), step, mask.keys, 8);
    // Four lanes need the four blocks of four keys, one word of each. Lane r computes the block of query r % 2 and of
    // the keys from 8 (r / 2) on; then bit i of lane r becomes bit r of lane i: the transpose of a 4 x 4 matrix.
    const uint64_t block = mask_element(mask, query + col + r % 2, key - r + r / 2 * 8);
    return trade(trade(kept_of_blocks<WIDE>(mask, block, step), 8, 0x33333333, 2), 4, 0x55555555, 1);
}

// ---- kernels that own queries: forward, and the gradient of the queries -----------------------------------

// The queries of a block, 16 TALL for each warp, of one head. Blocks whose queries see most keys begin first.
struct OwnQueries {
    int head, group;
    int first, own; // the first query of the block, and of the warp
    int begin, end; // from the tile of the first key that a query of the block sees to behind the last one
    int begin_own;  // the first key that a query of the warp sees
};

template <int TALL, int KEYS, bool LIMITED> DEVICE OwnQueries own_queries(const AttentionCall &call) {
    constexpr int QUERIES = 16 * TALL * WARPS;
    const int head = blockIdx.x, first = (gridDim.y - 1 - blockIdx.y) * QUERIES;
    const int own = first + warp_now() * 16 * TALL, b = head / call.heads;
    return {head,
            head / (call.heads / call.groups),
            first,
            own,
            LIMITED ? first_key(call, b, first) / KEYS * KEYS : 0,
            min(call.position + first + QUERIES, call.keys),
            LIMITED ? first_key(call, b, own) : 0};
}

// Begins to load the tile of KEYS keys and values from key `first` on.
template <int SIZE, int KEYS, class E>
DEVICE void load_keys(E *tiles, const AttentionCall &call, const E *kv, int group, int first) {
    E *keys = tile_of<SIZE, KEYS>(tiles, first / KEYS);
    load_tile<SIZE, KEYS>(keys, key_of(call, kv, group, 0), first, call.keys, call);
    load_tile<SIZE, KEYS>(keys + KEYS * PITCH<SIZE>, key_of(call, kv, group, 1), first, call.keys, call);
}

// Calls work(first, keys, values) for each tile of KEYS keys that a query of the warp sees, from key `first` on.
template <int SIZE, int TALL, int KEYS, class E, class Work>
DEVICE void for_tiles_of_keys(E *tiles, const AttentionCall &call, const E *kv, const OwnQueries &of,
                              Work work) {
    load_keys<SIZE, KEYS>(tiles, call, kv, of.group, of.begin);
    for (int first = of.begin; first < of.end; first += KEYS) {
        const E *keys = tile_of<SIZE, KEYS>(tiles, first / KEYS);
        wait_for_tile();
        if (first + KEYS < of.end) load_keys<SIZE, KEYS>(tiles, call, kv, of.group, first + KEYS);
        if (first < call.position + of.own + 16 * TALL && first + KEYS > of.begin_own)
            work(first, keys, keys + KEYS * PITCH<SIZE>);
    }
}

// Whether some query of the warp, from `own` on, does not see all keys of the tile from `first` on.
template <int KEYS> DEVICE bool hides_later(const AttentionCall &call, int own, int first) {
    return first + KEYS > min(call.position + own, call.keys);
}

// Hides the keys that lie behind each query, and what lies behind the keys. The first key of the tile is `first`;
// `query` is the position of the first query of the lane.
template <int TALL, int WIDE>
DEVICE void hide_later(float (&scores)[TALL][WIDE][4], const AttentionCall &call, int query, int first) {
    const int key = first + thread_now() % 4 * 2, last = call.keys - 1;
    UNROLL
    for (int i = 0; i < TALL; i++) {
        UNROLL
        for (int n = 0; n < WIDE; n++) {
            UNROLL
            for (int e = 0; e < 4; e++)
                if (key + 8 * n + e % 2 > min(query + 16 * i + e / 2 * 8, last)) scores[i][n][e] = -INFINITY;
        }
    }
}

// Hides the keys that lie before the first one that a query of sample b sees.
template <int TALL, int WIDE>
DEVICE void hide_earlier(float (&scores)[TALL][WIDE][4], const AttentionCall &call, int b, int query,
                         int first) {
    const int key = first + thread_now() % 4 * 2;
    UNROLL
    for (int i = 0; i < TALL; i++) {
        UNROLL
        for (int half = 0; half < 2; half++) {
            const int seen = first_key(call, b, query + 16 * i + half * 8);
            UNROLL
            for (int n = 0; n < WIDE; n++) {
                UNROLL
                for (int e = 2 * half; e < 2 * half + 2; e++)
                    if (key + 8 * n + e % 2 < seen) scores[i][n][e] = -INFINITY;
            }
        }
    }
}

// The size of `rows` rows in shared memory.
template <int SIZE> constexpr size_t tile_bytes(int rows) {
    return (size_t)rows * PITCH<SIZE> * sizeof(uint16_t);
}
