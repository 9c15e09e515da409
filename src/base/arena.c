// Allocates blocks one after the other in memory that is reserved once.
#include "base/arena.h"
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void *host_take(void *self, const char *name, size_t bytes, const char **why) {
    (void)self, (void)name;
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        *why = strerror(errno);
        return NULL;
    }
    madvise(base, bytes, MADV_HUGEPAGE); // first touch is 4x faster; a refusal does no harm
    return base;
}

static void host_give_back(void *self, void *base, size_t bytes) {
    (void)self;
    munmap(base, bytes);
}

Memory memory_host(void) { return (Memory){.take = host_take, .give_back = host_give_back}; }

Status arena_open(Arena *arena, const char *name, Memory memory, size_t capacity) {
    *arena = (Arena){.name = name, .memory = memory, .capacity = capacity};
    if (!capacity) return OK;
    const char *why = "";
    arena->base = memory.take(memory.self, name, capacity, &why);
    if (!arena->base)
        return fail(ERR_OS, "no memory for the %s arena: %.1f MiB wanted (%s)", name,
                    (double)capacity / 1048576.0, why);
    return OK;
}

void arena_open_measuring(Arena *arena, const char *name) {
    // Not NULL, so that an address can still be told from "absent".
    *arena = (Arena){.name = name, .measuring = true, .base = (char *)(uintptr_t)ARENA_ALIGNMENT};
}

void arena_close(Arena *arena) {
    if (arena->base && !arena->measuring)
        arena->memory.give_back(arena->memory.self, arena->base, arena->capacity);
    free(arena->blocks);
    *arena = (Arena){0};
}

static void remember_block(Arena *arena, const char *name, size_t offset, size_t bytes) {
    if (arena->num_blocks == arena->max_blocks) {
        int wanted = arena->max_blocks ? 2 * arena->max_blocks : 64;
        Block *grown = realloc(arena->blocks, (size_t)wanted * sizeof *grown);
        CHECK(grown, "no memory for %d block names", wanted);
        arena->blocks = grown;
        arena->max_blocks = wanted;
    }
    arena->blocks[arena->num_blocks++] = (Block){name, offset, bytes};
}

void *arena_take(Arena *arena, const char *block_name, size_t bytes) {
    size_t rounded = (bytes + ARENA_ALIGNMENT - 1) & ~(size_t)(ARENA_ALIGNMENT - 1);
    CHECK(rounded >= bytes, "block %s of %zu bytes overflows", block_name, bytes);
    CHECK(arena->measuring || rounded <= arena->capacity - arena->used,
          "arena %s: block %s of %zu bytes does not fit into the %zu left of %zu", arena->name, block_name,
          bytes, arena->capacity - arena->used, arena->capacity);
    remember_block(arena, block_name, arena->used, bytes);
    void *address = arena->base + arena->used;
    if (arena->memory.begins) arena->memory.begins(arena->memory.self, block_name, address, bytes);
    arena->used += rounded;
    if (arena->used > arena->peak) arena->peak = arena->used;
    return address;
}

ArenaMark arena_mark(const Arena *arena) { return (ArenaMark){arena->used, arena->num_blocks}; }

void arena_release(Arena *arena, ArenaMark mark) {
    CHECK(mark.used <= arena->used, "arena %s: released twice", arena->name);
    arena->used = mark.used;
    arena->num_blocks = mark.num_blocks;
}

// Returns the number of blocks with the name of block `i`, and their bytes; 0 where an earlier block has that name:
// they are counted there.
static int blocks_named(const Arena *arena, int i, size_t *bytes) {
    int count = 0;
    for (int j = 0; j < arena->num_blocks; j++) {
        if (strcmp(arena->blocks[j].name, arena->blocks[i].name)) continue;
        if (j < i) return 0;
        count++;
        *bytes += arena->blocks[j].bytes;
    }
    return count;
}

void arena_print(const Arena *arena, void (*line)(void *self, const char *text), void *self) {
    char text[160];
    for (int i = 0; i < arena->num_blocks; i++) {
        size_t bytes = 0;
        int count = blocks_named(arena, i, &bytes);
        if (!count) continue;
        snprintf(text, sizeof text, "  %-56s %6d x %12.3f MiB", arena->blocks[i].name, count,
                 (double)bytes / 1048576.0 / count);
        line(self, text);
    }
    snprintf(text, sizeof text, "%-42s %12.3f MiB (peak %.3f)", arena->name, (double)arena->used / 1048576.0,
             (double)arena->peak / 1048576.0);
    line(self, text);
}
