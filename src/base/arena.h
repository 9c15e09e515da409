// Arenas: memory by lifetime, every block named, nothing freed one by one.
//
// There are three lifetimes: `run` (parameters, gradients, optimizer state, batches), `stash` (one per slot:
// what a microbatch keeps from its forward to its backward) and `scratch` (within one instruction; released
// by mark). An arena never grows: a first pass over the same code with *measuring* arenas (no memory behind
// them) gives every capacity, so the memory that is taken equals the memory that was predicted, byte for
// byte.
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>

enum { ARENA_ALIGNMENT = 256 }; // bytes; every block starts on it

// The source of an arena's bytes: the host's heap, or a device.
typedef struct {
    // Allocates memory for the arena or buffer `name`. NULL: there is none, and *why (a literal, or alive until the
    // next call) says for what reason.
    void *(*take)(void *self, const char *name, size_t bytes, const char **why);
    void (*give_back)(void *self, void *base, size_t bytes);
    // Optional callback: the block `name` begins here with undefined contents. `name` lives as long as the arena.
    void (*begins)(void *self, const char *name, void *address, size_t bytes);
    void *self;
} Memory;

typedef struct {
    const char *name; // a literal, or alive as long as the arena
    size_t offset, bytes;
} Block;

typedef struct {
    const char *name;
    Memory memory;
    char *base;
    size_t capacity, used, peak; // bytes
    bool measuring;
    Block *blocks; // those in use, in order
    int num_blocks, max_blocks;
} Arena;

typedef struct {
    size_t used;
    int num_blocks;
} ArenaMark;

Memory memory_host(void); // huge-page friendly, zero filled
// Fails with ERR_OS (naming arena and size) when the memory cannot be had. The arena owns its bytes until
// arena_close.
Status arena_open(Arena *arena, const char *name, Memory memory, size_t capacity);
// No memory and no limit: addresses are distinct and aligned but must never be followed.
void arena_open_measuring(Arena *arena, const char *name);
void arena_close(Arena *arena); // takes a zeroed arena too

// `bytes` may be 0. Taking more than the capacity is a bug (CHECK): the measuring pass ran other code.
void *arena_take(Arena *arena, const char *block_name, size_t bytes);
ArenaMark arena_mark(const Arena *arena);
void arena_release(Arena *arena, ArenaMark mark); // everything taken since
// One line per block name: how many, of which size; then the sum. For `--dry-run`.
void arena_print(const Arena *arena, void (*line)(void *self, const char *text), void *self);
