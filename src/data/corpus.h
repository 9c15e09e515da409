// The text to preprocess: which files, in which order, cut into documents.
//
// A file whose name ends in .jsonl (or .json, when it is named itself) holds one JSON document per line,
// blank lines aside; any other file is one document of text. Folders are read recursively, without hidden
// entries and links, sorted by path. Files that contain a NUL are no text: they are left out and counted.
#pragma once
#include "base/error.h"
#include "base/text.h"
#include <stdint.h>

enum { MAX_DOCUMENT_BYTES = 1 << 30, BATCH_BYTES = 256 << 10 };

typedef struct {
    char *path;
    bool json;
    int64_t bytes;
} CorpusFile;

typedef struct {
    CorpusFile *files;
    size_t num_files, capacity;
    int64_t bytes;
} Corpus;

// ERR_NO_INPUT when an input does not exist.
Status corpus_open(Corpus *corpus, const char *const *inputs, int num_inputs);
void corpus_close(Corpus *corpus);

typedef struct {
    size_t start, bytes; // in Batch.raw
    const char *path;    // of the corpus
    int64_t line;        // 0: a text file
} Document;

// Some documents in a row, as read. Zero-initialise.
typedef struct {
    Text raw;
    Document *documents;
    size_t count, capacity;
    int64_t bytes_read; // by the reader up to the end of this batch
} Batch;

void batch_free(Batch *batch);

typedef struct {
    const Corpus *corpus;
    int64_t max_bytes; // 0: all
    size_t next_file;
    FILE *lines; // the JSON lines file being read
    char *line;  // getline's
    size_t line_capacity;
    int64_t line_number, bytes;
    int64_t num_files, skipped_binary; // read; left out
    bool full;                         // the next document would pass max_bytes
} CorpusReader;

void corpus_reader_open(CorpusReader *reader, const Corpus *corpus, int64_t max_bytes);
void corpus_reader_close(CorpusReader *reader);
// The next documents, about BATCH_BYTES of them; none at the end. With max_bytes reading stops before the
// first document that would pass it; ERR_CONFIG when that is the first of all.
Status corpus_read(CorpusReader *reader, Batch *batch);
