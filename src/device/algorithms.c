// Tables of algorithms: their envelope. Rows are the backend's.
#include "device/algorithms.h"
#include "base/file.h"
#include "base/hash.h"
#include "device/front.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char CHECKSUM[] = "checksum ";
enum { CHECKSUM_LINE = sizeof CHECKSUM - 1 + 16 + 1 }; // bytes, with the end of the line

// ---- writing ----------------------------------------------------------------------------------------------

Status algorithms_begin(Device *device, Text *table) {
    const Backend *backend = &device->backend;
    if (!backend->algorithms_about)
        return fail(ERR_CONFIG, "the device %s has no algorithms of matrix products to choose from: cuda has",
                    backend->name);
    text_add(table, "%s\n", ALGORITHMS_TITLE);
    backend->algorithms_about(device->state, table);
    return OK;
}

Status algorithms_time(Device *device, Stream *stream, JoinedProduct product, Text *table) {
    const Backend *backend = &device->backend;
    CHECK(backend->algorithms_time, "the device %s times no algorithms", backend->name);
    return backend->algorithms_time(&stream->exec, &product, table);
}

void algorithms_end(Text *table) {
    uint64_t sum = hash64_of(table->data, table->size);
    text_add(table, "%s%016" PRIx64 "\n", CHECKSUM, sum);
}

// ---- reading ----------------------------------------------------------------------------------------------

static int count_lines(const char *text, size_t size) {
    int lines = 0;
    for (size_t i = 0; i < size; i++) lines += text[i] == '\n';
    return lines;
}

static Status check_envelope(const char *file, char *text, size_t size) {
    const size_t title = strlen(ALGORITHMS_TITLE);
    if (size <= title || memcmp(text, ALGORITHMS_TITLE, title) != 0 || text[title] != '\n')
        return fail(ERR_DATA,
                    "%s:1: the first line is not '%s': the file is no table that `trireme bench` has written",
                    file, ALGORITHMS_TITLE);
    const size_t end = size > title + CHECKSUM_LINE ? size - CHECKSUM_LINE : 0;
    char last[CHECKSUM_LINE + 1];
    snprintf(last, sizeof last, "%s%016" PRIx64 "\n", CHECKSUM, hash64_of(text, end));
    if (strlen(text) != size || !end || text[end - 1] != '\n' || memcmp(text + end, last, CHECKSUM_LINE) != 0)
        return fail(
            ERR_DATA,
            "%s:%d: the last line is not the checksum of the others: the file was cut or changed after "
            "`trireme bench` wrote it; measure again",
            file, count_lines(text, size));
    text[end] = 0;
    return OK;
}

Status algorithms_read(const char *file, char **text) {
    const size_t most = (size_t)4 << 20;
    size_t size;
    *text = NULL;
    TRY(file_read(file, most, text, &size));
    Status status = check_envelope(file, *text, size);
    if (status == OK) return OK;
    free(*text);
    *text = NULL;
    return status;
}

void algorithms_describe(const char *file, Text *out) {
    char *text;
    if (algorithms_read(file, &text) != OK) {
        text_add(out, "a file that is no table");
        return;
    }
    text_add(out, "checksum %016" PRIx64, hash64_of(text, strlen(text)));
    free(text);
}
