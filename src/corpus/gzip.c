// Decompresses gzip by zlib: any number of members.
#include "corpus/decompressor.h"
#include <stdint.h>
#include <stdlib.h>
#include <zlib.h>

static Status open_gzip(void **decompressor, const char *path) {
    z_stream *z = calloc(1, sizeof *z);
    if (!z || inflateInit2(z, 15 + 16) != Z_OK) {
        free(z);
        return fail(ERR_OS, "%s: zlib: no memory", path);
    }
    *decompressor = z;
    return OK;
}

static const char *gunzip(void *decompressor, Stretch *s) {
    z_stream *z = decompressor;
    if (!s->inside) inflateReset(z);
    z->next_in = (unsigned char *)(uintptr_t)s->in;
    z->avail_in = (unsigned)s->in_bytes;
    z->next_out = (unsigned char *)s->out;
    z->avail_out = s->out_bytes < 1 << 30 ? (unsigned)s->out_bytes : 1U << 30;
    size_t room = z->avail_out;
    int result = inflate(z, Z_NO_FLUSH);
    s->taken = s->in_bytes - z->avail_in;
    s->made = room - z->avail_out;
    s->inside = result != Z_STREAM_END;
    if (result == Z_OK || result == Z_STREAM_END || result == Z_BUF_ERROR) return NULL;
    return z->msg ? z->msg : "damaged gzip data";
}

static void close_gzip(void *decompressor) {
    inflateEnd(decompressor);
    free(decompressor);
}

const Decompressor gzip = {open_gzip, gunzip, close_gzip};
