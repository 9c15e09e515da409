#include "data/corpus.h"
#include "data/maps.h"
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void batch_free(Batch *batch) {
    free(batch->raw);
    free(batch->documents);
    *batch = (Batch){0};
}

void corpus_reader_open(CorpusReader *reader, const Corpus *corpus, ReadOptions options) {
    *reader = (CorpusReader){.corpus = corpus, .options = options};
}

static void close_file(CorpusReader *r) {
    if (r->file) r->finished_bytes += r->file->bytes;
    source_close(r->source);
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
        return source_open_standard(&r->source, r->options.standard_input, r->options.cancelled);
    return source_open(&r->source, r->file->path, r->file->compression, r->options.cancelled);
}

// ---- A stretch that can be handed out ---------------------------------------------------------------------

// ASCII; Cyrillic; kana, Chinese and Korean: texts of these may go on for long without an ASCII letter.
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

// How much of it stands for itself: whole lines, or text up to a cut.
static size_t whole_part(const CorpusReader *r, const char *data, size_t bytes) {
    if (r->ended) return bytes;
    if (!r->json) return r->options.may_cut ? cut_place(data, bytes) : 0;
    const char *end = memrchr(data, '\n', bytes);
    return end ? (size_t)(end - data) + 1 : 0;
}

// Windows's programs begin files with a mark of their encoding, which is no JSON.
static size_t mark_bytes(const char *data, size_t bytes) {
    return bytes >= 3 && !memcmp(data, "\xef\xbb\xbf", 3) ? 3 : 0;
}

static bool looks_like_json(const char *data, size_t bytes) {
    size_t mark = mark_bytes(data, bytes);
    data += mark, bytes -= mark;
    while (bytes && strchr(" \t\r\n", *data)) data++, bytes--;
    return bytes && *data == '{';
}

static Status read_more(CorpusReader *r, Batch *batch, size_t size) {
    size_t got;
    grow_array(&batch->raw, 1, batch->raw_bytes + size, &batch->raw_capacity);
    TRY(source_read(r->source, batch->raw + batch->raw_bytes, size, &got));
    batch->raw_bytes += got;
    r->ended = got < size;
    return OK;
}

static size_t most_bytes(const CorpusReader *r) { return r->json ? MAX_LINE_BYTES : MAX_STRETCH_BYTES; }

static Status too_long(const CorpusReader *r) {
    const char *path = r->file->path;
    if (r->json)
        return fail(ERR_DATA, "%s:%" PRId64 ": a line of more than %d bytes", path, r->line_number + 1,
                    MAX_LINE_BYTES);
    if (!r->options.may_cut)
        return fail(ERR_DATA,
                    "%s: a text of more than %d bytes, which must not be cut for this tokenizer: make JSON "
                    "lines of it",
                    path, MAX_STRETCH_BYTES);
    return fail(ERR_DATA,
                "%s: no place to cut in %d bytes: a letter or digit with a blank or line end behind it; make "
                "JSON lines of it",
                path, MAX_STRETCH_BYTES);
}

// Doubles what there is, up to one byte more than may be.
static size_t next_read(const CorpusReader *r, size_t bytes) {
    size_t most = most_bytes(r) + 1;
    return bytes >= most ? 0 : bytes < most - bytes ? bytes : most - bytes;
}

// Appends to the batch what is left over and then at least a part that stands for itself; what is behind that
// is left over. The batch ends where the part does.
static Status fill(CorpusReader *r, Batch *batch) {
    size_t begin = batch->raw_bytes, whole = 0;
    grow_array(&batch->raw, 1, begin + r->carry_bytes + 1, &batch->raw_capacity);
    if (r->carry_bytes) memcpy(batch->raw + begin, r->carry, r->carry_bytes);
    batch->raw_bytes += r->carry_bytes;
    for (size_t more = BATCH_BYTES; !whole && !r->ended; more = next_read(r, batch->raw_bytes - begin)) {
        if (!more) return too_long(r);
        TRY(read_more(r, batch, more));
        if (r->file->kind == STANDARD_INPUT && !r->begun)
            r->json = looks_like_json(batch->raw + begin, batch->raw_bytes - begin);
        whole = whole_part(r, batch->raw + begin, batch->raw_bytes - begin);
    }
    if (r->ended) whole = batch->raw_bytes - begin;
    r->carry_bytes = batch->raw_bytes - begin - whole;
    grow_array(&r->carry, 1, r->carry_bytes, &r->carry_capacity);
    if (r->carry_bytes) memcpy(r->carry, batch->raw + begin + whole, r->carry_bytes);
    batch->raw_bytes = begin + whole;
    return OK;
}

// ---- Its documents ----------------------------------------------------------------------------------------

// Whether there is room for a document under max_bytes, or else an end.
static Status make_room(CorpusReader *r, int64_t bytes) {
    int64_t most = r->options.max_bytes;
    r->full = most && r->bytes + bytes > most;
    if (!r->full || r->bytes) return OK;
    return fail(ERR_CONFIG, "--max-bytes %" PRId64 ": the first document, %s, has %" PRId64 " bytes already",
                most, r->file->path, bytes);
}

static void add_document(CorpusReader *r, Batch *batch, size_t start, size_t bytes, bool ends) {
    r->bytes += (int64_t)bytes;
    grow_array(&batch->documents, sizeof *batch->documents, batch->count + 1, &batch->capacity);
    batch->documents[batch->count++] = (Document){start, bytes, r->file->path, r->line_number, ends};
}

static bool is_blank(const char *line, size_t bytes) {
    while (bytes && (*line == ' ' || *line == '\t' || *line == '\r' || *line == '\n')) line++, bytes--;
    return !bytes;
}

static Status take_lines(CorpusReader *r, Batch *batch, size_t at) {
    if (!r->begun) at += mark_bytes(batch->raw + at, batch->raw_bytes - at);
    if (!r->begun) r->num_files++;
    for (size_t bytes; at < batch->raw_bytes; at += bytes) {
        const char *line = batch->raw + at, *end = memchr(line, '\n', batch->raw_bytes - at);
        bytes = end ? (size_t)(end - line) + 1 : batch->raw_bytes - at;
        r->line_number++;
        if (bytes > MAX_LINE_BYTES) return r->line_number--, too_long(r);
        if (is_blank(line, bytes)) continue;
        TRY(make_room(r, (int64_t)bytes));
        if (r->full) return OK;
        add_document(r, batch, at, bytes, true);
    }
    return OK;
}

// A text of known length is taken whole or not at all.
static Status begin_text(CorpusReader *r, int64_t stretch) {
    bool known = r->file->kind == TEXT_FILE && r->file->compression == PLAIN && !r->ended;
    TRY(make_room(r, known ? r->file->bytes : stretch));
    if (!r->full) r->num_files++;
    return OK;
}

static Status take_text(CorpusReader *r, Batch *batch, size_t start) {
    size_t bytes = batch->raw_bytes - start;
    if (!r->begun && bytes && memchr(batch->raw + start, 0, bytes < BATCH_BYTES ? bytes : BATCH_BYTES)) {
        r->skipped_binary++;
        r->ended = true;
        batch->raw_bytes = start;
        return OK;
    }
    if (r->begun)
        TRY(make_room(r, (int64_t)bytes));
    else
        TRY(begin_text(r, (int64_t)bytes));
    if (!r->full)
        add_document(r, batch, start, bytes, r->ended);
    else if (r->begun)
        add_document(r, batch, start, 0, true);
    return OK;
}

static Status read_some(CorpusReader *r, Batch *batch) {
    if (!r->source) TRY(open_next(r));
    size_t start = batch->raw_bytes;
    TRY(fill(r, batch));
    TRY((r->json ? take_lines : take_text)(r, batch, start));
    r->begun = true;
    batch->position = r->finished_bytes + source_position(r->source);
    if (r->ended) close_file(r);
    return OK;
}

static bool goes_on(const CorpusReader *r) {
    bool enough = r->options.enough_bytes && r->bytes >= r->options.enough_bytes;
    return !r->full && !enough && (r->source || r->next_file < r->corpus->num_files);
}

Status corpus_read(CorpusReader *r, Batch *batch) {
    batch->count = batch->raw_bytes = 0;
    while (batch->raw_bytes < BATCH_BYTES && goes_on(r)) TRY(read_some(r, batch));
    batch->bytes_read = r->bytes;
    return OK;
}
