// Compressed input where a build has no zlib: it is refused by name.
#include "base/libraries.h"
#include "corpus/decompressor.h"

static Status refuse(void **decompressor, const char *path) {
    *decompressor = NULL;
    return fail_without(LIBRARY_ZLIB, path);
}

const Decompressor gzip = {.open = refuse};
