// The formats of compressed input, a stretch at a time. A build that lacks the library of one opens none of it.
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>

typedef struct {
    const char *in;
    size_t in_bytes;
    char *out;
    size_t out_bytes;
    bool inside; // before and after: a member or frame has begun and not ended
    size_t taken, made;
} Stretch;

typedef struct {
    // `path` is for messages. ERR_UNAVAILABLE: this build cannot read the format.
    Status (*open)(void **decompressor, const char *path);
    // Decompresses as much as there are bytes and room for. Returns what is wrong with the data, or NULL.
    const char *(*decompress)(void *decompressor, Stretch *stretch);
    void (*close)(void *decompressor);
} Decompressor;

extern const Decompressor gzip, zstandard;
