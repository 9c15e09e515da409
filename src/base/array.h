// Arrays that grow as elements are added to them.
#pragma once
#include <stddef.h>

// Reallocates `*array`, whose elements have `size` bytes, so that `need` of them fit; the capacity at least
// doubles. `array` is the address of the pointer. Out of memory is a CHECK.
void array_grow(void *array, size_t size, size_t need, size_t *capacity);
