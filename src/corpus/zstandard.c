// Decompresses Zstandard by its library: any number of frames.
#include "corpus/decompressor.h"
#include <zstd.h>

static Status open_zstandard(void **decompressor, const char *path) {
    *decompressor = ZSTD_createDStream();
    return *decompressor ? OK : fail(ERR_OS, "%s: zstd: no memory", path);
}

static const char *unzstd(void *decompressor, Stretch *s) {
    ZSTD_inBuffer in = {s->in, s->in_bytes, 0};
    ZSTD_outBuffer room = {s->out, s->out_bytes, 0};
    size_t result = ZSTD_decompressStream(decompressor, &room, &in);
    s->taken = in.pos;
    s->made = room.pos;
    s->inside = result != 0;
    return ZSTD_isError(result) ? ZSTD_getErrorName(result) : NULL;
}

static void close_zstandard(void *decompressor) { ZSTD_freeDStream(decompressor); }

const Decompressor zstandard = {open_zstandard, unzstd, close_zstandard};
