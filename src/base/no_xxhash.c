// Checksums without the library xxHash: XXH3 by code of our own, at half its speed. Inputs of up to 240 bytes are mixed
// 16 bytes at a time by products of 64 bits; of longer ones every stripe of 64 bytes goes into eight sums, which are
// stirred after each block of 16 stripes.
// Source: Yann Collet's xxHash specification, version 0.2.0. Constants and numbers of rounds are the definition.
#include "base/hash.h"
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are read as they lie in memory");

// The state of a Hasher. Bytes wait in the buffer until more come: the last ones of an input are treated differently.
typedef struct {
    uint64_t sums[8];
    unsigned char buffer[256];
    unsigned char before[64]; // the bytes ahead of the buffer, where there are any
    size_t filled;            // of the buffer
    uint64_t size;            // of all bytes so far
    int stripe;               // of its block, which the next bytes are
} State;

_Static_assert(sizeof(State) <= sizeof(Hasher), "a Hasher has room for the state");

static const uint64_t P32_1 = 0x9e3779b1, P32_2 = 0x85ebca77, P32_3 = 0xc2b2ae3d;
static const uint64_t P64_1 = 0x9e3779b185ebca87, P64_2 = 0xc2b2ae3d27d4eb4f, P64_3 = 0x165667b19e3779f9,
                      P64_4 = 0x85ebca77c2b2ae63, P64_5 = 0x27d4eb2f165667c5;
static const uint64_t MIX_1 = 0x165667919e3779f9, MIX_2 = 0x9fb21c651e98df25;

enum {
    STRIPE = 64,
    BUFFER = 4 * STRIPE,
    SECRET_BYTES = 192,
    MIDDLE = 240,         // the longest input without stripes
    LEAST_SECRET = 136,   // what medium inputs use of the secret
    BLOCK_STRIPES = 16,   // (192 - 64) / 8: the secret moves on by 8 bytes from stripe to stripe
    LAST_SECRET = 121,    // where the last stripe's begins: 7 bytes before that of a block's end
    MERGE_SECRET = 11,    // where the merging of the sums begins
    MERGE_SECRET_2 = 117, // of the high half
};

// The specification's default secret.
static const uint64_t default_secret[SECRET_BYTES / 8] = {
    0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072, 0x78e5c0cc4ee679cb,
    0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0, 0xcb00c391bb52283c, 0xa32e531b8b65d088,
    0x4ef90da297486471, 0xd8acdea946ef1938, 0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a,
    0x647378d9c97e9fc8, 0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
    0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af,
};

typedef const unsigned char *Bytes;

static uint64_t read64(Bytes at) {
    uint64_t x;
    memcpy(&x, at, sizeof x);
    return x;
}

static uint32_t read32(Bytes at) {
    uint32_t x;
    memcpy(&x, at, sizeof x);
    return x;
}

// The secret's number that begins at a byte.
static uint64_t secret64(int at) { return read64((Bytes)default_secret + at); }
static uint32_t secret32(int at) { return read32((Bytes)default_secret + at); }

static uint64_t rotate(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

static Hash product(uint64_t a, uint64_t b) {
    __extension__ typedef unsigned __int128 Wide;
    Wide all = (Wide)a * b;
    return (Hash){(uint64_t)(all >> 64), (uint64_t)all};
}

static uint64_t fold(uint64_t a, uint64_t b) {
    Hash all = product(a, b);
    return all.high ^ all.low;
}

// The final mixing of XXH3 and, for the shortest inputs, that of XXH64.
static uint64_t avalanche(uint64_t x) {
    x = (x ^ x >> 37) * MIX_1;
    return x ^ x >> 32;
}

static uint64_t avalanche64(uint64_t x) {
    x = (x ^ x >> 33) * P64_2;
    x = (x ^ x >> 29) * P64_3;
    return x ^ x >> 32;
}

static uint64_t mix16(Bytes in, int secret, uint64_t seed) {
    return fold(read64(in) ^ (secret64(secret) + seed), read64(in + 8) ^ (secret64(secret + 8) - seed));
}

// ---- short and medium inputs, 64 bits ---------------------------------------------------------------------

static uint32_t up_to_three(Bytes in, size_t size) {
    return (uint32_t)in[0] << 16 | (uint32_t)in[size / 2] << 24 | in[size - 1] | (uint32_t)size << 8;
}

static uint64_t short64(Bytes in, size_t size, uint64_t seed) {
    if (!size) return avalanche64(seed ^ secret64(56) ^ secret64(64));
    if (size <= 3) return avalanche64(up_to_three(in, size) ^ ((secret32(0) ^ secret32(4)) + seed));
    if (size <= 8) {
        seed ^= (uint64_t)__builtin_bswap32((uint32_t)seed) << 32;
        uint64_t x = read32(in + size - 4) + ((uint64_t)read32(in) << 32);
        x ^= (secret64(8) ^ secret64(16)) - seed;
        x = (x ^ rotate(x, 49) ^ rotate(x, 24)) * MIX_2;
        x = (x ^ ((x >> 35) + size)) * MIX_2;
        return x ^ x >> 28;
    }
    uint64_t low = read64(in) ^ ((secret64(24) ^ secret64(32)) + seed);
    uint64_t high = read64(in + size - 8) ^ ((secret64(40) ^ secret64(48)) - seed);
    return avalanche(size + __builtin_bswap64(low) + high + fold(low, high));
}

// From both ends towards the middle.
static uint64_t medium64(Bytes in, size_t size, uint64_t seed) {
    uint64_t sum = size * P64_1, end = 0;
    if (size <= 128) {
        for (int i = (int)(size - 1) / 32; i >= 0; i--) {
            sum += mix16(in + 16 * i, 32 * i, seed);
            sum += mix16(in + size - 16 * (i + 1), 32 * i + 16, seed);
        }
        return avalanche(sum);
    }
    int rounds = (int)size / 16;
    for (int i = 0; i < 8; i++) sum += mix16(in + 16 * i, 16 * i, seed);
    for (int i = 8; i < rounds; i++) end += mix16(in + 16 * i, 16 * (i - 8) + 3, seed);
    end += mix16(in + size - 16, LEAST_SECRET - 17, seed);
    return avalanche(avalanche(sum) + end);
}

// ---- short and medium inputs, 128 bits, without a seed ----------------------------------------------------

static Hash short128(Bytes in, size_t size) {
    if (!size)
        return (Hash){avalanche64(secret64(80) ^ secret64(88)), avalanche64(secret64(64) ^ secret64(72))};
    if (size <= 3) {
        uint32_t low = up_to_three(in, size), turned = __builtin_bswap32(low);
        uint32_t high = turned << 13 | turned >> 19;
        return (Hash){avalanche64(high ^ (uint64_t)(secret32(8) ^ secret32(12))),
                      avalanche64(low ^ (uint64_t)(secret32(0) ^ secret32(4)))};
    }
    if (size <= 8) {
        uint64_t x = read32(in) + ((uint64_t)read32(in + size - 4) << 32);
        Hash h = product(x ^ secret64(16) ^ secret64(24), P64_1 + (size << 2));
        h.high += h.low << 1;
        h.low ^= h.high >> 3;
        h.low = (h.low ^ h.low >> 35) * MIX_2;
        return (Hash){avalanche(h.high), h.low ^ h.low >> 28};
    }
    uint64_t low = read64(in), high = read64(in + size - 8);
    Hash m = product(low ^ high ^ secret64(32) ^ secret64(40), P64_1);
    m.low += (uint64_t)(size - 1) << 54;
    high ^= secret64(48) ^ secret64(56);
    m.high += high + (high & UINT32_MAX) * (P32_2 - 1);
    m.low ^= __builtin_bswap64(m.high);
    Hash h = product(m.low, P64_2);
    return (Hash){avalanche(h.high + m.high * P64_2), avalanche(h.low)};
}

static void mix32(Hash *h, Bytes a, Bytes b, int secret) {
    h->low = (h->low + mix16(a, secret, 0)) ^ (read64(b) + read64(b + 8));
    h->high = (h->high + mix16(b, secret + 16, 0)) ^ (read64(a) + read64(a + 8));
}

static Hash medium128(Bytes in, size_t size) {
    Hash h = {0, size * P64_1};
    if (size <= 128) {
        for (int i = (int)(size - 1) / 32; i >= 0; i--)
            mix32(&h, in + 16 * i, in + size - 16 * (i + 1), 32 * i);
    } else {
        for (int i = 0; i < 128; i += 32) mix32(&h, in + i, in + i + 16, i);
        h = (Hash){avalanche(h.high), avalanche(h.low)};
        for (int i = 128; i + 32 <= (int)size; i += 32) mix32(&h, in + i, in + i + 16, i - 128 + 3);
        mix32(&h, in + size - 16, in + size - 32, LEAST_SECRET - 17 - 16);
    }
    return (Hash){-avalanche(h.low * P64_1 + h.high * P64_4 + size * P64_2), avalanche(h.low + h.high)};
}

// ---- long inputs ------------------------------------------------------------------------------------------

static inline void add_stripe(uint64_t sums[8], Bytes in, Bytes secret) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        uint64_t x = read64(in + 8 * i), keyed = x ^ read64(secret + 8 * i);
        sums[i ^ 1] += x;
        sums[i] += (keyed & UINT32_MAX) * (keyed >> 32);
    }
}

static void stir(uint64_t sums[8], Bytes secret) {
    for (int i = 0; i < 8; i++)
        sums[i] = (sums[i] ^ sums[i] >> 47 ^ read64(secret + BLOCK_STRIPES * 8 + 8 * i)) * P32_1;
}

static void add_stripes(State *h, Bytes in, size_t stripes, Bytes secret) {
    uint64_t sums[8];
    memcpy(sums, h->sums, sizeof sums);
    for (size_t i = 0; i < stripes; i++, in += STRIPE) {
        add_stripe(sums, in, secret + 8 * h->stripe);
        if (++h->stripe < BLOCK_STRIPES) continue;
        stir(sums, secret);
        h->stripe = 0;
    }
    memcpy(h->sums, sums, sizeof sums);
}

static void start(State *h) {
    static const uint64_t sums[8] = {P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1};
    memcpy(h->sums, sums, sizeof sums);
    h->filled = 0, h->size = 0, h->stripe = 0;
}

static void add(State *h, Bytes in, size_t size, Bytes secret) {
    h->size += size;
    size_t room = BUFFER - h->filled, some = size < room ? size : room;
    if (some) memcpy(h->buffer + h->filled, in, some);
    h->filled += some, size -= some;
    if (!size) return;
    in += some;
    add_stripes(h, h->buffer, BUFFER / STRIPE, secret);
    memcpy(h->before, h->buffer + BUFFER - STRIPE, STRIPE);
    if (size > BUFFER) {
        size_t stripes = (size - 1) / STRIPE;
        add_stripes(h, in, stripes, secret);
        in += stripes * STRIPE, size -= stripes * STRIPE;
        memcpy(h->before, in - STRIPE, STRIPE);
    }
    memcpy(h->buffer, in, size);
    h->filled = size;
}

// All whole stripes before the last byte come first, then the last 64 bytes once more.
static void finish(State *h, Bytes secret) {
    unsigned char last[STRIPE];
    size_t here = h->filled < STRIPE ? h->filled : STRIPE;
    add_stripes(h, h->buffer, (h->filled - 1) / STRIPE, secret);
    memcpy(last, h->before + here, STRIPE - here);
    memcpy(last + STRIPE - here, h->buffer + h->filled - here, here);
    add_stripe(h->sums, last, secret + LAST_SECRET);
}

static uint64_t merge(const State *h, Bytes secret, uint64_t start) {
    for (int i = 0; i < 8; i += 2)
        start += fold(h->sums[i] ^ read64(secret + 8 * i), h->sums[i + 1] ^ read64(secret + 8 * i + 8));
    return avalanche(start);
}

// ---- the front --------------------------------------------------------------------------------------------

void hasher_start(Hasher *hasher) { start((State *)hasher->state); }

void hasher_add(Hasher *hasher, const void *data, size_t size) {
    add((State *)hasher->state, data, size, (Bytes)default_secret);
}

static Hash end128(State h) {
    if (h.size <= 16) return short128(h.buffer, h.size);
    if (h.size <= MIDDLE) return medium128(h.buffer, h.size);
    Bytes secret = (Bytes)default_secret;
    finish(&h, secret);
    return (Hash){merge(&h, secret + MERGE_SECRET_2, ~(h.size * P64_2)),
                  merge(&h, secret + MERGE_SECRET, h.size * P64_1)};
}

static uint64_t end64(State h, Bytes secret) {
    finish(&h, secret);
    return merge(&h, secret + MERGE_SECRET, h.size * P64_1);
}

Hash hasher_end(const Hasher *hasher) { return end128(*(const State *)hasher->state); }

uint64_t hasher_end64(const Hasher *hasher) {
    const State *h = (const State *)hasher->state;
    return h->size <= MIDDLE ? hash64_of(h->buffer, h->size) : end64(*h, (Bytes)default_secret);
}

Hash hash_of(const void *data, size_t size) {
    if (size <= 16) return short128(data, size);
    if (size <= MIDDLE) return medium128(data, size);
    State h;
    start(&h);
    add(&h, data, size, (Bytes)default_secret);
    return end128(h);
}

uint64_t hash64_of(const void *data, size_t size) { return hash64_from(data, size, 0); }

uint64_t hash64_from(const void *data, size_t size, uint64_t seed) {
    if (size <= 16) return short64(data, size, seed);
    if (size <= MIDDLE) return medium64(data, size, seed);
    uint64_t secret[SECRET_BYTES / 8];
    for (int i = 0; i < SECRET_BYTES / 8; i++) secret[i] = default_secret[i] + (i % 2 ? -seed : seed);
    State h;
    start(&h);
    add(&h, data, size, (Bytes)secret);
    return end64(h, (Bytes)secret);
}

bool hash_same(Hash a, Hash b) { return a.high == b.high && a.low == b.low; }
