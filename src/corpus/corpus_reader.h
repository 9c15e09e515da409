// The text to preprocess: which files, in which order, cut into documents.
//
// A file whose name ends in .jsonl (or in .json, when the user names the file itself) holds one JSON document per
// line; blank lines are skipped. Any other file is one document of text. Both may be compressed, as .gz or .zst.
// Folders are read recursively, sorted by path, without hidden entries and links, and beside .jsonl files without the
// files that describe a data set, README.md and dataset_info.json. Files with a NUL among their
// first 256 KiB, and files of a format in foreign_format.h, are no text: they are left out and counted, and a
// file of such a format that the user names is refused. "-" is standard input: JSON lines when its first
// character that is not blank is '{', else text.
#pragma once
#include "corpus/foreign_format.h"
#include "corpus/input.h"

enum {
    BATCH_BYTES = 256 << 10,
    MAX_LINE_BYTES = 64 << 20,
    MAX_STRETCH_BYTES = 16 << 20, // of text that must not be cut; encoding takes many times as much memory
};

typedef enum { TEXT_FILE, JSON_LINES, STANDARD_INPUT } FileKind;

typedef struct {
    char *path;
    FileKind kind;
    Compression compression;
    int64_t bytes; // on disk, compressed or not; 0 for standard input
    bool named;    // the user named the file itself; false: it was found in a folder
} CorpusFile;

typedef struct {
    CorpusFile *files;
    size_t num_files, capacity;
    int64_t bytes;
    bool endless;     // standard input is among them: the total is unknown
    int64_t left_out; // by corpus_keep_lines
} Corpus;

// Lists the files. Fails with ERR_NO_INPUT when an input does not exist, ERR_USAGE for standard input twice.
Status corpus_open(Corpus *corpus, const char *const *inputs, int num_inputs);
void corpus_close(Corpus *corpus);
// For data of one kind: where folders have .jsonl files leaves out all other files of folders; else, where they have
// .json files, these become JSON lines and all other files are left out; else all stay. Files that the user named stay.
typedef enum { LINES_NONE, LINES_JSON, LINES_JSONL } FolderLines; // what the folders have
FolderLines corpus_keep_lines(Corpus *corpus);

// A line, a whole text, or a part of a text.
typedef struct {
    size_t start, bytes; // in DocumentBatch.raw
    const char *path;    // of the corpus
    int64_t line;        // its number; 0: a text
    bool ends;           // false: the next document continues the same text
    bool too_long;       // a line that was too long; this is its start (with skip_bad_lines)
} Document;

// Some documents in a row, as they were read. Zero-initialise it.
typedef struct {
    char *raw;
    size_t raw_bytes, raw_capacity;
    Document *documents;
    size_t count, capacity;
    int64_t bytes_read; // by the reader up to the end of this batch, decompressed
    int64_t position;   // the same as bytes of the files on disk
} DocumentBatch;

void batch_free(DocumentBatch *batch);

typedef struct {
    int64_t max_bytes;    // of whole documents; 0: all
    int64_t enough_bytes; // stops after the batch that reaches it; 0: never
    bool may_cut;         // cut long texts, where cut_place says
    bool skip_bad_lines;  // a line that is too long becomes a document with `too_long` set
    StandardInput *standard_input;
    const atomic_bool *cancelled;
} ReadOptions;

typedef struct {
    const Corpus *corpus;
    ReadOptions options;
    size_t next_file;
    const CorpusFile *file; // being read, from `source`
    InputStream *source;
    bool json;   // the file holds JSON lines
    bool begun;  // documents of it have been returned
    bool ended;  // all of it has been read
    char *carry; // bytes that were read and not returned yet
    size_t carry_bytes, carry_capacity;
    int64_t line_number;
    int64_t bytes;                     // of text
    int64_t finished_bytes;            // on disk, of the files that are read to their end
    int64_t num_files, skipped_binary; // files read; files left out
    const ForeignFormat *foreign; // format of the first file that was left out for its format; NULL: none
    const char *foreign_path;     //   and the path of that file
    bool full;                    // the next document would exceed max_bytes
} CorpusReader;

void corpus_reader_open(CorpusReader *reader, const Corpus *corpus, ReadOptions options);
void corpus_reader_close(CorpusReader *reader);
// Reads the next documents, about BATCH_BYTES of them; none at the end. Batches do not depend on the speed of the
// input. With max_bytes, reading stops before the first document that would exceed it, and fails with ERR_CONFIG
// when that is the first of all; a text whose length is unknown before its end (an archive, standard input) ends
// at the last cut instead. Fails with ERR_DATA for lines and uncut texts that are too long, for damaged archives,
// and for a file of a foreign format that the user named.
Status corpus_read(CorpusReader *reader, DocumentBatch *batch);

// Finds where to cut a long text: before the last blank or line end that follows a letter or digit (ASCII,
// Cyrillic, kana, Chinese, Korean). Returns the bytes before the cut; 0: there is no such place. GPT-2's pattern
// and its successors never put the two characters into one piece.
size_t cut_place(const char *text, size_t bytes);
