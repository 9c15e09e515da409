// Reads the bytes of an input and decompresses them.
#include "corpus/input.h"
#include "corpus/decompressor.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { IN_BYTES = 256 << 10, WAIT_MS = 100 };

struct InputStream {
    const char *path; // for messages
    int fd;
    bool waits; // a pipe or a terminal: reading may have to wait
    const atomic_bool *cancelled;
    StandardInput *standard; // NULL: a file
    size_t replayed;         // bytes of standard->kept that were read again
    Compression compression;
    char *in; // [IN_BYTES] bytes as read, of which in_at of in_bytes are decompressed
    size_t in_bytes, in_at;
    int64_t position;         // of the end of `in` in the file
    bool inside;              // a member or frame of the archive has not ended yet
    const Decompressor *kind; // NULL: a plain file
    void *decompressor;
};

// ---- The bytes of the file --------------------------------------------------------------------------------

static Status wait_for_input(const InputStream *s) {
    struct pollfd input = {.fd = s->fd, .events = POLLIN};
    while (!atomic_load(s->cancelled))
        if (poll(&input, 1, WAIT_MS) > 0) return OK;
    return fail(INTERRUPTED, "%s: reading was cancelled", s->path);
}

static size_t replay(InputStream *s, char *out, size_t size) {
    const Text *kept = &s->standard->kept;
    size_t left = kept->size - s->replayed, count = left < size ? left : size;
    if (count) memcpy(out, kept->data + s->replayed, count);
    s->replayed += count;
    return count;
}

static void keep(InputStream *s, const char *bytes, size_t size) {
    if (s->standard->keep) {
        text_add_bytes(&s->standard->kept, bytes, size);
        s->replayed += size;
    } else {
        text_free(&s->standard->kept);
        s->replayed = 0;
    }
}

// Reads some bytes; none at the end.
static Status read_some(InputStream *s, char *out, size_t size, size_t *got) {
    *got = s->standard ? replay(s, out, size) : 0;
    if (*got) {
        s->position += (int64_t)*got;
        return OK;
    }
    ssize_t count;
    do {
        if (s->waits) TRY(wait_for_input(s));
        count = read(s->fd, out, size);
    } while (count < 0 && (errno == EINTR || errno == EAGAIN));
    if (count < 0)
        return fail(ERR_IO, "%s: byte %" PRId64 ": cannot read: %s", s->path, s->position, strerror(errno));
    *got = (size_t)count;
    s->position += count;
    if (s->standard) keep(s, out, *got);
    return OK;
}

static Status refill(InputStream *s) {
    if (s->in_at < s->in_bytes) return OK;
    s->in_at = s->in_bytes = 0;
    return read_some(s, s->in, IN_BYTES, &s->in_bytes);
}

static Status read_plain(InputStream *s, char *out, size_t size, size_t *got) {
    *got = s->in_bytes - s->in_at < size ? s->in_bytes - s->in_at : size;
    if (*got) memcpy(out, s->in + s->in_at, *got);
    s->in_at += *got;
    for (size_t more = 1; *got < size && more; *got += more)
        TRY(read_some(s, out + *got, size - *got, &more));
    return OK;
}

// ---- Archives ---------------------------------------------------------------------------------------------

static Status damaged(const InputStream *s, const char *why) {
    return fail(ERR_DATA, "%s: byte %" PRId64 ": %s", s->path, input_stream_position(s), why);
}

static Status decompress(InputStream *s, char *out, size_t size, size_t *made) {
    Stretch stretch = {.in = s->in + s->in_at,
                       .in_bytes = s->in_bytes - s->in_at,
                       .out = out,
                       .out_bytes = size,
                       .inside = s->inside};
    const char *problem = s->kind->decompress(s->decompressor, &stretch);
    s->in_at += stretch.taken;
    *made = stretch.made;
    s->inside = stretch.inside;
    return problem ? damaged(s, problem) : OK;
}

static Status read_archive(InputStream *s, char *out, size_t size, size_t *got) {
    for (size_t made = 0; *got < size; *got += made) {
        TRY(refill(s));
        bool end = s->in_at == s->in_bytes;
        if (end && !s->inside && s->position > 0) return OK;
        TRY(decompress(s, out + *got, size - *got, &made));
        if (end && !made) return damaged(s, "the archive ends too early");
    }
    return OK;
}

Status input_stream_read(InputStream *s, char *out, size_t size, size_t *got) {
    *got = 0;
    return s->compression == PLAIN ? read_plain(s, out, size, got) : read_archive(s, out, size, got);
}

int64_t input_stream_position(const InputStream *s) {
    return s->position - (int64_t)(s->in_bytes - s->in_at);
}

// ---- Open, close ------------------------------------------------------------------------------------------

static Status open_archive(InputStream *s, Compression compression) {
    s->compression = compression;
    if (compression == PLAIN) return OK;
    s->kind = compression == GZIP ? &gzip : &zstandard;
    return s->kind->open(&s->decompressor, s->path);
}

static Status open_input(InputStream *s, Compression compression) {
    struct stat st;
    s->fd = s->standard ? dup(STDIN_FILENO) : open(s->path, O_RDONLY | O_CLOEXEC);
    if (s->fd < 0) return fail(errno_status(), "%s: %s", s->path, strerror(errno));
    s->waits = fstat(s->fd, &st) || !S_ISREG(st.st_mode);
    if ((s->standard || compression != PLAIN) && !(s->in = malloc(IN_BYTES)))
        return fail(ERR_OS, "%s: no memory to read it", s->path);
    return open_archive(s, compression);
}

static Status source_new(InputStream **source, InputStream from, Compression compression) {
    *source = malloc(sizeof **source);
    if (!*source) return fail(ERR_OS, "%s: no memory to read it", from.path);
    **source = from;
    Status status = open_input(*source, compression);
    if (status == OK) return OK;
    input_stream_close(*source);
    *source = NULL;
    return status;
}

Status input_stream_open(InputStream **source, const char *path, Compression compression,
                         const atomic_bool *cancelled) {
    return source_new(source, (InputStream){.path = path, .fd = -1, .cancelled = cancelled}, compression);
}

static Compression compression_of(const char *bytes, size_t size) {
    if (size >= 3 && !memcmp(bytes, "\x1f\x8b\x08", 3)) return GZIP;
    return size >= 4 && !memcmp(bytes, "\x28\xb5\x2f\xfd", 4) ? ZSTANDARD : PLAIN;
}

static Status recognise(InputStream *s) {
    for (size_t more = 1; s->in_bytes < 4 && more; s->in_bytes += more)
        TRY(read_some(s, s->in + s->in_bytes, IN_BYTES - s->in_bytes, &more));
    return open_archive(s, compression_of(s->in, s->in_bytes));
}

Status input_stream_open_standard(InputStream **source, StandardInput *input, const atomic_bool *cancelled) {
    InputStream from = {.path = "standard input", .fd = -1, .cancelled = cancelled, .standard = input};
    TRY(source_new(source, from, PLAIN));
    Status status = recognise(*source);
    if (status == OK) return OK;
    input_stream_close(*source);
    *source = NULL;
    return status;
}

void input_stream_close(InputStream *source) {
    if (!source) return;
    if (source->decompressor) source->kind->close(source->decompressor);
    if (source->fd >= 0) close(source->fd);
    free(source->in);
    free(source);
}
