// Formats of text files that cannot be read here, recognised by their first bytes.
#pragma once
#include "base/text.h"

typedef struct {
    size_t offset, size; // where `bytes` stand in the file
    const char *bytes;
    const char *name;   // "a Parquet file"
    const char *advice; // how to convert it to text; '$' stands for the file
} ForeignFormat;

// The format of a file that begins with `begin`; NULL: it is none of these formats.
const ForeignFormat *foreign_format(const char *begin, size_t size);
// Appends "PATH: this is a Parquet file, which is not read here; ADVICE". For standard input the command says FILE.
void foreign_describe(const ForeignFormat *format, const char *path, Text *out);
