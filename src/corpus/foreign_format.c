// Recognises files of formats that cannot be read here, and says how to convert them to text.
#include "corpus/foreign_format.h"
#include <string.h>

#define FORMAT(offset, bytes, name, advice)                                                                  \
    { offset, sizeof(bytes) - 1, bytes, name, advice }
#define PANDAS(reader)                                                                                       \
    "make JSON lines of it: python3 -c \"import pandas; pandas." reader                                      \
    "('$').to_json('$.jsonl', orient='records', lines=True)\" (needs pandas and pyarrow)"
#define PIPE(command) "decompress it into a pipe: " command " '$' | trireme preprocess --input - ..."
#define STANDARD      "name it so, or give it as standard input: trireme preprocess --input - ... <'$'"

static const ForeignFormat formats[] = {
    FORMAT(0, "PAR1\x15", "a Parquet file", PANDAS("read_parquet")),
    FORMAT(0, "ARROW1\0\0", "an Arrow file", PANDAS("read_feather")),
    FORMAT(0, "\xff\xff\xff\xff", "an Arrow stream",
           "make JSON lines of it: python3 -c \"import datasets; "
           "datasets.Dataset.from_file('$').to_json('$.jsonl')\" (needs datasets)"),
    FORMAT(0, "PK\3\4", "a zip archive", "unpack it: unzip '$' -d FOLDER; then --input FOLDER"),
    FORMAT(257, "ustar", "a tar archive", "unpack it: tar -xf '$' -C FOLDER; then --input FOLDER"),
    FORMAT(0, "7z\xbc\xaf\x27\x1c", "a 7-Zip archive", "unpack it: 7z x '$' -oFOLDER; then --input FOLDER"),
    FORMAT(0, "\x1f\x8b\x08", "a gzip archive whose name does not end in .gz", STANDARD),
    FORMAT(0, "\x28\xb5\x2f\xfd", "a Zstandard archive whose name does not end in .zst", STANDARD),
    FORMAT(0, "BZh91AY&SY", "a bzip2 archive", PIPE("bzip2 -dc")),
    FORMAT(0, "\xfd\x37zXZ\0", "an xz archive", PIPE("xz -dc")),
    FORMAT(0, "\x04\x22\x4d\x18", "an LZ4 archive", PIPE("lz4 -dc")),
    FORMAT(0, "%PDF-", "a PDF file", "make text of it: pdftotext '$' '$.txt'"),
    FORMAT(0, "\xff\xfe", "text in UTF-16", "make UTF-8 of it: iconv -f UTF-16 -t UTF-8 '$' >'$.txt'"),
    FORMAT(0, "\xfe\xff", "text in UTF-16", "make UTF-8 of it: iconv -f UTF-16 -t UTF-8 '$' >'$.txt'"),
    FORMAT(0, "MMIDIDX\0\0", "the index of a data set that is ready",
           "train on it: trireme train --data-path PREFIX, its name without .idx"),
};

const ForeignFormat *foreign_format(const char *begin, size_t size) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        const ForeignFormat *f = &formats[i];
        if (size >= f->offset + f->size && !memcmp(begin + f->offset, f->bytes, f->size)) return f;
    }
    return NULL;
}

void foreign_describe(const ForeignFormat *format, const char *path, Text *out) {
    text_add(out, "%s: this is %s, which is not read here; ", path, format->name);
    const char *file = strcmp(path, "standard input") ? path : "FILE";
    for (const char *c = format->advice; *c; c++) {
        if (*c == '$')
            text_add(out, "%s", file);
        else
            text_add_bytes(out, c, 1);
    }
}
