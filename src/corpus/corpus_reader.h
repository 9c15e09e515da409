// The text to preprocess: which files, in which order, cut into documents.
//
// A file whose name ends in .jsonl (or .json, when it is named itself) holds one JSON document per line,
// blank lines aside; any other file is one document of text; each also as .gz or .zst. Folders are read
// recursively, without hidden entries and links, sorted by path. Files with a NUL among their first 256 KiB
// are no text, nor are those of foreign.h: they are left out and counted. A file of foreign.h that is named
// itself is refused. "-" is standard input: JSON lines when its first character that
// is not blank is '{', else text.
#pragma once
#include "corpus/foreign.h"
#include "corpus/source.h"

enum {
    BATCH_BYTES = 256 << 10,
    MAX_LINE_BYTES = 64 << 20,
    MAX_STRETCH_BYTES = 16 << 20, // of text that must not be cut: encoding it takes many times as much
};

typedef enum { TEXT_FILE, JSON_LINES, STANDARD_INPUT } FileKind;

typedef struct {
    char *path;
    FileKind kind;
    Compression compression;
    int64_t bytes; // on disk, compressed or not; 0 for standard input
    bool named;    // itself, not found in a folder
} CorpusFile;

typedef struct {
    CorpusFile *files;
    size_t num_files, capacity;
    int64_t bytes;
    bool endless; // standard input is among them: the total is unknown
} Corpus;

// ERR_NO_INPUT when an input does not exist; ERR_USAGE for standard input twice.
Status corpus_open(Corpus *corpus, const char *const *inputs, int num_inputs);
void corpus_close(Corpus *corpus);

// A line, a whole text, or a stretch of one.
typedef struct {
    size_t start, bytes; // in Batch.raw
    const char *path;    // of the corpus
    int64_t line;        // 0: text
    bool ends;           // false: the next one goes on with the same text
    bool too_long;       // a line of which this is all that is left, with skip_bad_lines
} Document;

// Some documents in a row, as read. Zero-initialise.
typedef struct {
    char *raw;
    size_t raw_bytes, raw_capacity;
    Document *documents;
    size_t count, capacity;
    int64_t bytes_read; // by the reader up to the end of this batch: of text, and of the files as they lie
    int64_t position;
} Batch;

void batch_free(Batch *batch);

typedef struct {
    int64_t max_bytes;    // of whole documents; 0: all
    int64_t enough_bytes; // stops after the batch that reaches it; 0: never
    bool may_cut;         // long texts, where cut_place says
    bool skip_bad_lines;  // lines that are too long become documents that say so
    StandardInput *standard_input;
    const atomic_bool *cancelled;
} ReadOptions;

typedef struct {
    const Corpus *corpus;
    ReadOptions options;
    size_t next_file;
    const CorpusFile *file; // being read, from `source`
    Source *source;
    bool json, begun,
        ended;   // its lines are JSON; something of it has been handed out; all of it has been read
    char *carry; // read, not handed out yet
    size_t carry_bytes, carry_capacity;
    int64_t line_number, bytes, finished_bytes; // bytes: of text; finished: of whole files, as they lie
    int64_t num_files, skipped_binary;          // read; left out
    const ForeignFormat *foreign;               // of the first that is left out and has one; NULL: none,
    const char *foreign_path;                   // and its path
    bool full;                                  // the next document would pass max_bytes
} CorpusReader;

void corpus_reader_open(CorpusReader *reader, const Corpus *corpus, ReadOptions options);
void corpus_reader_close(CorpusReader *reader);
// The next documents, about BATCH_BYTES of them; none at the end. The same batches whatever the speed at
// which the input comes. With max_bytes reading stops before the first document that would pass it,
// ERR_CONFIG when that is the first of all; a text whose length is unknown before its end (an archive,
// standard input) ends at the last cut instead. ERR_DATA for lines and stretches that are too long, for
// damaged archives and for named files of a foreign format.
Status corpus_read(CorpusReader *reader, Batch *batch);

// Where a long text is cut: how many of its bytes come before the last blank or line end that follows a
// letter or digit (ASCII, Cyrillic, kana, Chinese, Korean); 0: nowhere. GPT-2's pattern and those made after
// it never put the two into one piece.
size_t cut_place(const char *text, size_t bytes);
