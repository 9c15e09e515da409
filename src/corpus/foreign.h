// Files that hold text in a form that is not read here, recognised by how they begin.
#pragma once
#include "base/text.h"

typedef struct {
    size_t offset, size; // of `bytes`, in the file
    const char *bytes;
    const char *name;   // "a Parquet file"
    const char *advice; // what makes text of it; '$' is the file
} ForeignFormat;

// The format of a file that begins with `begin`; NULL: none of them.
const ForeignFormat *foreign_format(const char *begin, size_t size);
// "PATH: this is a Parquet file, which is not read here; ADVICE". In commands "standard input" is FILE.
void foreign_describe(const ForeignFormat *format, const char *path, Text *out);
