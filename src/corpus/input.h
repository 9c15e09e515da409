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
// stream that opens it reads them first. Zero-initialise it; free `kept` with text_free.
typedef struct {
    Text kept;
    bool keep;
} StandardInput;

typedef struct InputStream InputStream;

// `path` is borrowed. Once *cancelled is set, a read that waits for a pipe returns INTERRUPTED.
Status input_stream_open(InputStream **source, const char *path, Compression compression,
                         const atomic_bool *cancelled);
// Opens standard input. It is decompressed when it begins like gzip or Zstandard.
Status input_stream_open_standard(InputStream **source, StandardInput *input, const atomic_bool *cancelled);
// Reads the next `size` bytes; fewer only at the end. Fails with ERR_DATA that names file and byte for an archive
// that is damaged or ends too early.
Status input_stream_read(InputStream *source, char *out, size_t size, size_t *got);
// Returns how many bytes of the file have been read, before decompression.
int64_t input_stream_position(const InputStream *source);
void input_stream_close(InputStream *source); // takes NULL
