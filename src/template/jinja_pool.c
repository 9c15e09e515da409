// Memory of templates: blocks that are freed together.
#include "template/internal.h"
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 16 << 10, ALIGNMENT = 16 };

struct JinjaChunk {
    JinjaChunk *next;
    size_t size, used; // of the bytes that follow
};
_Static_assert(sizeof(JinjaChunk) % 8 == 0, "blocks follow the head of a chunk");

static JinjaChunk *add_chunk(JinjaPool *pool, size_t bytes) {
    size_t size = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
    JinjaChunk *chunk = calloc(1, sizeof *chunk + ALIGNMENT + size);
    CHECK(chunk, "no memory for %zu bytes of a template", size);
    *chunk = (JinjaChunk){.next = pool->chunks, .size = size};
    pool->chunks = chunk;
    return chunk;
}

void *jinja_pool_take(JinjaPool *pool, size_t bytes) {
    bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    JinjaChunk *chunk = pool->chunks;
    if (!chunk || chunk->size - chunk->used < bytes) chunk = add_chunk(pool, bytes);
    char *first = (char *)(chunk + 1);
    first += (ALIGNMENT - (uintptr_t)first % ALIGNMENT) % ALIGNMENT;
    char *block = first + chunk->used;
    chunk->used += bytes;
    pool->used += bytes;
    return block;
}

char *jinja_pool_copy(JinjaPool *pool, const char *bytes, size_t size) {
    char *copy = jinja_pool_take(pool, size + 1);
    if (size) memcpy(copy, bytes, size);
    return copy;
}

void jinja_pool_free(JinjaPool *pool) {
    for (JinjaChunk *next, *chunk = pool->chunks; chunk; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    *pool = (JinjaPool){0};
}
