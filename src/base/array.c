// Arrays that grow as elements are added to them.
#include "base/array.h"
#include "base/error.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

void array_grow(void *array, size_t size, size_t need, size_t *capacity) {
    if (need <= *capacity) return;
    size_t grown = *capacity ? *capacity : 16, bytes;
    while (grown < need)
        CHECK(!__builtin_mul_overflow(grown, (size_t)2, &grown), "%zu elements overflow", need);
    CHECK(!__builtin_mul_overflow(grown, size, &bytes), "%zu elements overflow", need);
    void *old;
    memcpy(&old, array, sizeof old);
    void *moved = realloc(old, bytes);
    CHECK(moved, "no memory for %zu bytes", bytes);
    memcpy(array, &moved, sizeof moved);
    *capacity = grown;
}
