// Checksums of a stream of bytes, block by block: they find which bytes of a file on the disk differ from what
// was written to it.
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>

typedef struct FileSums FileSums;

FileSums *file_sums_create(void);    // NULL: no memory
void file_sums_free(FileSums *sums); // takes NULL
// The next bytes of the stream. Out of memory (8 bytes for each MiB of the stream) is a CHECK.
void file_sums_add(FileSums *sums, const void *data, size_t size);
// Ends the stream, reads the file `path` and compares. The file is to be synced: its pages are dropped from the
// page cache and it is read with O_DIRECT, where the file system allows either, so that the bytes come from the
// device. ERR_IO names the first block that differs.
Status file_sums_compare(FileSums *sums, const char *path);
