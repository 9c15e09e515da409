// The bytes of one input, decompressed as they are read: a plain file, gzip (any number of members),
// Zstandard (any number of frames), or standard input. A stream: memory does not grow with it.
#pragma once
#include "base/error.h"
#include "base/text.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum { PLAIN, GZIP, ZSTANDARD } Compression;

// Standard input can be read only once. Bytes that are read while `keep` is set are stored here, and the next
// source that opens it reads them first. Zero-initialise; text_free(&kept) when done.
typedef struct {
    Text kept;
    bool keep;
} StandardInput;

typedef struct Source Source;

// `path` is borrowed. Once *cancelled is set, a read that waits for a pipe gives up.
Status source_open(Source **source, const char *path, Compression compression, const atomic_bool *cancelled);
// Standard input: compressed when it begins like gzip or Zstandard.
Status source_open_standard(Source **source, StandardInput *input, const atomic_bool *cancelled);
// The next `size` bytes; fewer only at the end. ERR_DATA with file and byte for an archive that is damaged or
// ends too early.
Status source_read(Source *source, char *out, size_t size, size_t *got);
int64_t source_position(const Source *source); // bytes of the file that have been read, before decompression
void source_close(Source *source);             // takes NULL
