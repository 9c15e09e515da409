// Hash maps of byte strings and of pairs of tokens.
#include "tokenizer/hash_map.h"
#include "base/array.h"
#include "base/error.h"
#include <stdlib.h>
#include <string.h>

// The 128-bit product of two odd-ish words, folded: every input bit reaches every output bit.
static uint64_t mix(uint64_t a, uint64_t b) {
    __extension__ unsigned __int128 product =
        (unsigned __int128)(a ^ 0x9e3779b97f4a7c15U) * (b ^ 0xd1b54a32d192ed03U);
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

uint32_t bytes_hash(const char *bytes, size_t size) {
    uint64_t hash = size, word = 0;
    for (; size >= 8; bytes += 8, size -= 8) {
        memcpy(&word, bytes, 8);
        hash = mix(hash, word);
    }
    word = 0;
    memcpy(&word, bytes, size);
    return (uint32_t)mix(hash, word);
}

static uint32_t *new_slots(uint32_t *old, uint32_t num_slots) {
    free(old);
    uint32_t *slots = calloc(num_slots, sizeof *slots);
    CHECK(slots, "no memory for %u hash slots", num_slots);
    return slots;
}

static uint32_t more_slots(uint32_t num_slots) {
    CHECK(num_slots < 1U << 31, "a map of more than 2^30 entries");
    return num_slots ? 2 * num_slots : 64;
}

// The slot that holds the string, or the free one where it belongs.
static uint32_t *bytes_slot(const BytesMap *map, const char *bytes, size_t size, uint32_t hash) {
    uint32_t mask = map->num_slots - 1, at = hash & mask;
    for (; map->slots[at]; at = (at + 1) & mask) {
        const struct BytesEntry *e = &map->entries[map->slots[at] - 1];
        if (e->hash == hash && e->bytes == size && memcmp(map->pool + e->start, bytes, size) == 0) break;
    }
    return &map->slots[at];
}

static void bytes_rehash(BytesMap *map) {
    map->num_slots = more_slots(map->num_slots);
    map->slots = new_slots(map->slots, map->num_slots);
    for (uint32_t i = 0; i < map->count; i++) {
        uint32_t at = map->entries[i].hash & (map->num_slots - 1);
        while (map->slots[at]) at = (at + 1) & (map->num_slots - 1);
        map->slots[at] = i + 1;
    }
}

uint32_t bytes_map_find(const BytesMap *map, const char *bytes, size_t size) {
    if (!map->count) return NOT_FOUND;
    return *bytes_slot(map, bytes, size, bytes_hash(bytes, size)) - 1; // a free slot is 0: 0 - 1 is NOT_FOUND
}

uint32_t bytes_map_add(BytesMap *map, const char *bytes, size_t size, bool *added) {
    if (map->count >= map->num_slots / 2) bytes_rehash(map);
    uint32_t hash = bytes_hash(bytes, size), *slot = bytes_slot(map, bytes, size, hash);
    *added = *slot == 0;
    if (!*added) return *slot - 1;
    CHECK(size < UINT32_MAX, "a string of %zu bytes as a key", size);
    array_grow(&map->entries, sizeof *map->entries, (size_t)map->count + 1, &map->capacity);
    array_grow(&map->pool, 1, map->pool_bytes + size + 1, &map->pool_capacity);
    if (size) memcpy(map->pool + map->pool_bytes, bytes, size);
    map->entries[map->count] = (struct BytesEntry){map->pool_bytes, (uint32_t)size, hash};
    map->pool[map->pool_bytes + size] = '\0';
    map->pool_bytes += size + 1;
    *slot = ++map->count;
    return map->count - 1;
}

const char *bytes_map_at(const BytesMap *map, uint32_t index, size_t *size) {
    CHECK(index < map->count, "entry %u of %u", index, map->count);
    *size = map->entries[index].bytes;
    return map->pool + map->entries[index].start;
}

void bytes_map_clear(BytesMap *map) {
    if (map->num_slots) memset(map->slots, 0, map->num_slots * sizeof *map->slots);
    map->count = 0;
    map->pool_bytes = 0;
}

void bytes_map_free(BytesMap *map) {
    free(map->pool);
    free(map->entries);
    free(map->slots);
    *map = (BytesMap){0};
}

static uint64_t pair_key(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static uint32_t *pair_slot(const PairMap *map, uint64_t key) {
    uint32_t mask = map->num_slots - 1, at = (uint32_t)mix(key, 0) & mask;
    while (map->slots[at] && map->keys[map->slots[at] - 1] != key) at = (at + 1) & mask;
    return &map->slots[at];
}

uint32_t pair_map_find(const PairMap *map, int32_t left, int32_t right) {
    return map->count ? *pair_slot(map, pair_key(left, right)) - 1 : NOT_FOUND;
}

uint32_t pair_map_add(PairMap *map, int32_t left, int32_t right, bool *added) {
    if (map->count >= map->num_slots / 2) {
        map->num_slots = more_slots(map->num_slots);
        map->slots = new_slots(map->slots, map->num_slots);
        for (uint32_t i = 0; i < map->count; i++) *pair_slot(map, map->keys[i]) = i + 1;
    }
    uint64_t key = pair_key(left, right);
    uint32_t *slot = pair_slot(map, key);
    *added = *slot == 0;
    if (!*added) return *slot - 1;
    array_grow(&map->keys, sizeof *map->keys, (size_t)map->count + 1, &map->capacity);
    map->keys[map->count] = key;
    *slot = ++map->count;
    return map->count - 1;
}

void pair_map_at(const PairMap *map, uint32_t index, int32_t *left, int32_t *right) {
    CHECK(index < map->count, "pair %u of %u", index, map->count);
    *left = (int32_t)(map->keys[index] >> 32);
    *right = (int32_t)(uint32_t)map->keys[index];
}

void pair_map_free(PairMap *map) {
    free(map->keys);
    free(map->slots);
    *map = (PairMap){0};
}
