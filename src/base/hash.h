// Checksums of bytes: XXH3 with 64 and with 128 bits, by the library xxHash, or where a build has none by code of our
// own (no_xxhash.c), with the same bits.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t high, low;
} Hash; // XXH3-128
typedef struct {
    _Alignas(64) unsigned char state[576];
} Hasher;

// The checksum of bytes that come in parts.
void hasher_start(Hasher *hasher);
void hasher_add(Hasher *hasher, const void *data, size_t size);
Hash hasher_end(const Hasher *hasher);
uint64_t hasher_end64(const Hasher *hasher); // XXH3-64 of the same bytes
// The checksum of bytes that are all there.
Hash hash_of(const void *data, size_t size);
uint64_t hash64_of(const void *data, size_t size);                  // XXH3-64
uint64_t hash64_from(const void *data, size_t size, uint64_t seed); // the same with a seed
bool hash_same(Hash a, Hash b);
