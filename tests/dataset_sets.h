// Small data sets for the tests of data/.
#pragma once
#include "base/text.h"
#include "dataset/dataset.h"
#include "harness.h"
#include <stdio.h>
#include <string.h>

// Document i holds first + 100*i, first + 100*i + 1, ...
static inline const char *write_set(const char *name, int first, const int *lengths, int count) {
    const char *prefix = harness_path(name);
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
