// Small data sets for the tests of data/.
#pragma once
#include "data/data.h"
#include "harness.h"
#include <stdio.h>
#include <string.h>

// A path in the test's folder; four at a time stay valid.
static inline const char *path_of(const char *name) {
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", harness_folder(), name);
    return path;
}

// Document i holds first + 100*i, first + 100*i + 1, ...
static inline const char *write_set(const char *name, int first, const int *lengths, int count) {
    const char *prefix = path_of(name);
    IndexedWriter *writer;
    EXPECT_OK(indexed_writer_open(&writer, prefix, 70000));
    for (int i = 0; i < count; i++) {
        int32_t tokens[100];
        for (int k = 0; k < lengths[i]; k++) tokens[k] = first + 100 * i + k;
        EXPECT_OK(indexed_writer_add(writer, tokens, (size_t)lengths[i]));
    }
    EXPECT_OK(indexed_writer_finish(writer));
    indexed_writer_close(writer);
    return prefix;
}
