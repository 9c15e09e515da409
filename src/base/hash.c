// Checksums, by the library xxHash.
#include "base/hash.h"
#define XXH_INLINE_ALL
#include <xxhash.h>

_Static_assert(sizeof(XXH3_state_t) <= sizeof(Hasher), "a Hasher has room for the state");

static Hash hash_from(XXH128_hash_t hash) { return (Hash){hash.high64, hash.low64}; }

// Before the first start the state must not look like one with a seed of its own.
void hasher_start(Hasher *hasher) {
    XXH3_state_t *state = (XXH3_state_t *)hasher->state;
    XXH3_INITSTATE(state);
    XXH3_128bits_reset(state);
}

void hasher_add(Hasher *hasher, const void *data, size_t size) {
    XXH3_128bits_update((XXH3_state_t *)hasher->state, data, size);
}

Hash hasher_end(const Hasher *hasher) {
    return hash_from(XXH3_128bits_digest((const XXH3_state_t *)hasher->state));
}

uint64_t hasher_end64(const Hasher *hasher) {
    return XXH3_64bits_digest((const XXH3_state_t *)hasher->state);
}

Hash hash_of(const void *data, size_t size) { return hash_from(XXH3_128bits(data, size)); }

uint64_t hash64_of(const void *data, size_t size) { return XXH3_64bits(data, size); }

uint64_t hash64_from(const void *data, size_t size, uint64_t seed) {
    return XXH3_64bits_withSeed(data, size, seed);
}

bool hash_same(Hash a, Hash b) { return a.high == b.high && a.low == b.low; }
