// Two hash maps that number their keys 0, 1, 2 and so on. A key keeps its index, so that values can be kept in
// plain arrays beside the map. Open addressing, linear probing, at most half full. Running out of memory is a
// CHECK.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NOT_FOUND UINT32_MAX

uint32_t bytes_hash(const char *bytes, size_t size);

// A map of byte strings. Zero-initialise it.
typedef struct {
    char *pool; // all strings, each followed by a NUL
    size_t pool_bytes, pool_capacity;
    struct BytesEntry {
        size_t start;
        uint32_t bytes, hash;
    } * entries;
    size_t capacity;
    uint32_t count;
    uint32_t *slots;    // index + 1; 0: free
    uint32_t num_slots; // a power of two
} BytesMap;

uint32_t bytes_map_find(const BytesMap *map, const char *bytes, size_t size); // or NOT_FOUND
// Adds the string unless the map has it. Returns its index; *added says whether it is new.
uint32_t bytes_map_add(BytesMap *map, const char *bytes, size_t size, bool *added);
const char *bytes_map_at(const BytesMap *map, uint32_t index, size_t *size); // valid until the next add
void bytes_map_clear(BytesMap *map);                                         // keeps the memory
void bytes_map_free(BytesMap *map);

// A map of pairs of token ids. Zero-initialise it.
typedef struct {
    uint64_t *keys;
    size_t capacity;
    uint32_t count;
    uint32_t *slots;
    uint32_t num_slots;
} PairMap;

uint32_t pair_map_find(const PairMap *map, int32_t left, int32_t right); // or NOT_FOUND
uint32_t pair_map_add(PairMap *map, int32_t left, int32_t right, bool *added);
void pair_map_at(const PairMap *map, uint32_t index, int32_t *left, int32_t *right);
void pair_map_free(PairMap *map);
