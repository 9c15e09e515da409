// Reads the input files and cuts them into documents, batch by batch.
#include "corpus/corpus_reader.h"
#include "base/array.h"
#include "tokenizer/hash_map.h"
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void batch_free(DocumentBatch *batch) {
    free(batch->raw);
    free(batch->documents);
    *batch = (DocumentBatch){0};
}

void corpus_reader_open(CorpusReader *reader, const Corpus *corpus, ReadOptions options) {
    *reader = (CorpusReader){.corpus = corpus, .options = options};
}

static void close_file(CorpusReader *r) {
    if (r->file) r->finished_bytes += r->file->bytes;
    input_stream_close(r->source);
    r->source = NULL;
    r->file = NULL;
    r->carry_bytes = 0;
}

void corpus_reader_close(CorpusReader *reader) {
    close_file(reader);
    free(reader->carry);
    *reader = (CorpusReader){0};
}

static Status open_next(CorpusReader *r) {
    r->file = &r->corpus->files[r->next_file++];
    r->json = r->file->kind == JSON_LINES;
    r->begun = r->ended = false;
    r->line_number = 0;
    if (r->file->kind == STANDARD_INPUT)
        return input_stream_open_standard(&r->source, r->options.standard_input, r->options.cancelled);
    return input_stream_open(&r->source, r->file->path, r->file->compression, r->options.cancelled);
}

// ---- a part that can be returned by itself ------------------------------------------------------------------

// Letters of ASCII, Cyrillic, kana, Chinese and Korean: such texts may have no ASCII letter for long.
static bool ends_with_letter(const char *text, size_t bytes) {
    const unsigned char *end = (const unsigned char *)text + bytes;
    if (end[-1] < 128) return isalnum(end[-1]);
    unsigned two = bytes > 1 && (end[-2] >> 5) == 6 ? (end[-2] & 31U) << 6 | (end[-1] & 63U) : 0;
    unsigned three = bytes > 2 && (end[-3] >> 4) == 14 && (end[-2] >> 6) == 2
                         ? (end[-3] & 15U) << 12 | (end[-2] & 63U) << 6 | (end[-1] & 63U)
                         : 0;
    return (end[-1] >> 6) == 2 &&
           ((two >= 0x410 && two <= 0x44f) || (three >= 0x3041 && three <= 0x3096) ||
            (three >= 0x30a1 && three <= 0x30fa) || (three >= 0x4e00 && three <= 0x9fa5) ||
            (three >= 0xac00 && three <= 0xd7a3));
}

size_t cut_place(const char *text, size_t bytes) {
    for (size_t i = bytes; i > 1; i--)
        if ((text[i - 1] == ' ' || text[i - 1] == '\n') && ends_with_letter(text, i - 1)) return i - 1;
    return 0;
}

// Returns the number of bytes that can be handed out: whole lines, or text up to a cut.
static size_t whole_part(const CorpusReader *r, const char *data, size_t bytes) {
    if (r->ended) return bytes;
    if (!r->json) return r->options.may_cut ? cut_place(data, bytes) : 0;
    const char *end = memrchr(data, '\n', bytes);
    return end ? (size_t)(end - data) + 1 : 0;
}

// Programs of Windows begin files with a byte order mark, which JSON does not allow.
static size_t mark_bytes(const char *data, size_t bytes) {
    return bytes >= 3 && !memcmp(data, "\xef\xbb\xbf", 3) ? 3 : 0;
}

static bool looks_like_json(const char *data, size_t bytes) {
    size_t mark = mark_bytes(data, bytes);
    data += mark, bytes -= mark;
    while (bytes && strchr(" \t\r\n", *data)) data++, bytes--;
    return bytes && *data == '{';
}

static Status read_more(CorpusReader *r, DocumentBatch *batch, size_t size) {
    size_t got;
    array_grow(&batch->raw, 1, batch->raw_bytes + size, &batch->raw_capacity);
    TRY(input_stream_read(r->source, batch->raw + batch->raw_bytes, size, &got));
    batch->raw_bytes += got;
    r->ended = got < size;
    return OK;
}

static size_t most_bytes(const CorpusReader *r) { return r->json ? MAX_LINE_BYTES : MAX_STRETCH_BYTES; }

static Status text_too_long(const CorpusReader *r) {
    const char *why =
        r->options.may_cut
            ? "16 MiB without a place to cut, which is a blank or line end behind a letter or "
              "digit: too long a word to encode, also in JSON; break it up or leave the file out"
            : "a text of more than 16 MiB, which this tokenizer can only encode at once; make "
              "JSON lines of it, each with a part of at most 16 MiB";
    return fail(ERR_DATA, "%s: %s", r->file->path, why);
}

// Doubles the buffer, up to one byte more than is allowed.
static size_t next_read(const CorpusReader *r, size_t bytes) {
    size_t most = most_bytes(r) + 1;
    if (bytes < BATCH_BYTES) return BATCH_BYTES;
    return bytes >= most ? 0 : bytes < most - bytes ? bytes : most - bytes;
}

static void add_document(CorpusReader *r, DocumentBatch *batch, Document d) {
    d.path = r->file->path;
    d.line = r->line_number;
    r->bytes += (int64_t)d.bytes;
    array_grow(&batch->documents, sizeof *batch->documents, batch->count + 1, &batch->capacity);
    batch->documents[batch->count++] = d;
}

// Handles a line of more than MAX_LINE_BYTES.
static Status line_too_long(CorpusReader *r, DocumentBatch *batch) {
    r->line_number++;
    if (!r->options.skip_bad_lines)
        return fail(ERR_DATA,
                    "%s:%" PRId64 ": a line of more than 64 MiB: JSON lines have one object a line "
                    "(`jq -c '.[]' FILE` makes them of a list); --skip-bad-lines leaves it out",
                    r->file->path, r->line_number);
    add_document(r, batch, (Document){.ends = true, .too_long = true});
    return OK;
}

// Reads to the end of a line that is too long. The bytes after it are kept from `begin` on.
static Status pass_over_line(CorpusReader *r, DocumentBatch *batch, size_t begin) {
    const char *end = NULL;
    TRY(line_too_long(r, batch));
    while (!end && !r->ended) {
        batch->raw_bytes = begin;
        TRY(read_more(r, batch, BATCH_BYTES));
        end = memchr(batch->raw + begin, '\n', batch->raw_bytes - begin);
    }
    size_t after = end ? (size_t)(end - batch->raw) + 1 : batch->raw_bytes;
    memmove(batch->raw + begin, batch->raw + after, batch->raw_bytes - after);
    batch->raw_bytes -= after - begin;
    return OK;
}

// Appends to the batch the bytes that were kept and then at least one part that can be returned by itself. The
// batch ends there; the bytes after it are kept.
static Status fill(CorpusReader *r, DocumentBatch *batch) {
    size_t begin = batch->raw_bytes, whole = 0;
    array_grow(&batch->raw, 1, begin + r->carry_bytes + 1, &batch->raw_capacity);
    if (r->carry_bytes) memcpy(batch->raw + begin, r->carry, r->carry_bytes);
    batch->raw_bytes += r->carry_bytes;
    for (size_t more = BATCH_BYTES; !whole && !r->ended; more = next_read(r, batch->raw_bytes - begin)) {
        if (!more && !r->json) return text_too_long(r);
        TRY(more ? read_more(r, batch, more) : pass_over_line(r, batch, begin));
        if (r->file->kind == STANDARD_INPUT && !r->begun)
            r->json = looks_like_json(batch->raw + begin, batch->raw_bytes - begin);
        whole = whole_part(r, batch->raw + begin, batch->raw_bytes - begin);
    }
    if (r->ended) whole = batch->raw_bytes - begin;
    r->carry_bytes = batch->raw_bytes - begin - whole;
    array_grow(&r->carry, 1, r->carry_bytes, &r->carry_capacity);
    if (r->carry_bytes) memcpy(r->carry, batch->raw + begin + whole, r->carry_bytes);
    batch->raw_bytes = begin + whole;
    return OK;
}

// ---- Its documents ----------------------------------------------------------------------------------------

// Sets r->full when the next document would exceed max_bytes. Fails when that is the first one.
static Status make_room(CorpusReader *r, int64_t bytes) {
    int64_t most = r->options.max_bytes;
    r->full = most && r->bytes + bytes > most;
    if (!r->full || r->bytes) return OK;
    return fail(ERR_CONFIG,
                "--max-bytes %" PRId64 " is less than the first document, %s, which has %" PRId64 " bytes",
                most, r->file->path, bytes);
}

static bool is_blank(const char *line, size_t bytes) {
    while (bytes && (*line == ' ' || *line == '\t' || *line == '\r' || *line == '\n')) line++, bytes--;
    return !bytes;
}

static Status take_lines(CorpusReader *r, DocumentBatch *batch, size_t at) {
    if (!r->begun) at += mark_bytes(batch->raw + at, batch->raw_bytes - at);
    if (!r->begun) r->num_files++;
    for (size_t bytes; at < batch->raw_bytes; at += bytes) {
        const char *line = batch->raw + at, *end = memchr(line, '\n', batch->raw_bytes - at);
        bytes = end ? (size_t)(end - line) + 1 : batch->raw_bytes - at;
        if (bytes > MAX_LINE_BYTES) {
            TRY(line_too_long(r, batch));
            continue;
        }
        r->line_number++;
        if (is_blank(line, bytes)) continue;
        TRY(make_room(r, (int64_t)bytes));
        if (r->full) return OK;
        add_document(r, batch, (Document){.start = at, .bytes = bytes, .ends = true});
    }
    return OK;
}

// Reads a text of known length whole or not at all.
static Status begin_text(CorpusReader *r, int64_t stretch) {
    bool known = r->file->kind == TEXT_FILE && r->file->compression == PLAIN && !r->ended;
    TRY(make_room(r, known ? r->file->bytes : stretch));
    if (!r->full) r->num_files++;
    return OK;
}

// Decides by its first bytes whether a file is text. Refuses a file of a foreign format that the user named.
static Status recognise(CorpusReader *r, const char *begin, size_t bytes, bool *is_text) {
    const ForeignFormat *format = foreign_format(begin, bytes);
    *is_text = !format && !memchr(begin, 0, bytes < BATCH_BYTES ? bytes : BATCH_BYTES);
    if (*is_text) return OK;
    if (format && r->file->named) {
        Text what = {0};
        foreign_describe(format, r->file->path, &what);
        Status status = fail(ERR_DATA, "%s", text_string(&what));
        text_free(&what);
        return status;
    }
    r->skipped_binary++;
    if (!format || r->foreign) return OK;
    r->foreign = format;
    r->foreign_path = r->file->path;
    return OK;
}

static Status take_text(CorpusReader *r, DocumentBatch *batch, size_t start) {
    size_t bytes = batch->raw_bytes - start;
    bool is_text = true;
    if (!r->begun && bytes) TRY(recognise(r, batch->raw + start, bytes, &is_text));
    if (!is_text) {
        r->ended = true;
        batch->raw_bytes = start;
        return OK;
    }
    if (r->begun)
        TRY(make_room(r, (int64_t)bytes));
    else
        TRY(begin_text(r, (int64_t)bytes));
    if (!r->full)
        add_document(r, batch, (Document){.start = start, .bytes = bytes, .ends = r->ended});
    else if (r->begun)
        add_document(r, batch, (Document){.start = start, .ends = true});
    return OK;
}

static Status read_some(CorpusReader *r, DocumentBatch *batch) {
    if (!r->source) TRY(open_next(r));
    size_t start = batch->raw_bytes;
    TRY(fill(r, batch));
    TRY((r->json ? take_lines : take_text)(r, batch, start));
    r->begun = true;
    batch->position = r->finished_bytes + input_stream_position(r->source);
    if (r->ended) close_file(r);
    return OK;
}

static bool goes_on(const CorpusReader *r) {
    bool enough = r->options.enough_bytes && r->bytes >= r->options.enough_bytes;
    return !r->full && !enough && (r->source || r->next_file < r->corpus->num_files);
}

Status corpus_read(CorpusReader *r, DocumentBatch *batch) {
    batch->count = batch->raw_bytes = 0;
    while (batch->raw_bytes < BATCH_BYTES && goes_on(r)) TRY(read_some(r, batch));
    batch->bytes_read = r->bytes;
    return OK;
}
