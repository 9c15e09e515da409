// Compressed input where a build has no zstd: it is refused by name.
#include "base/libraries.h"
#include "corpus/decompressor.h"

static Status refuse(void **decompressor, const char *path) {
    *decompressor = NULL;
    return fail_without(LIBRARY_ZSTD, path);
}

const Decompressor zstandard = {.open = refuse};
