// JSON lines, as preprocess takes them in. Laws: the lines that the corpus gives cover the file in order;
// a line that is strict JSON is accepted, with the same string for the key.
#include "corpus/corpus_reader.h"
#include "corpus/json_line.h"
#include "formats/formats.h"
#include "fuzz.h"
#include <string.h>

static const char *const KEYS[] = {"text", "id"};
enum { NUM_KEYS = 2 };

// The values of the keys, with every element of lists.
static void read_values(JsonLine *line, const char *text, size_t bytes) {
    for (int k = 0; k < NUM_KEYS; k++) {
        if (!line->values[k]) continue;
        CHECK(line->values[k] < bytes, "a value at %zu of %zu", line->values[k], bytes);
        JsonCursor cursor = {text, bytes, line->values[k], NULL};
        const char *string;
        size_t size;
        if (json_line_string(line, &cursor, &string, &size)) continue;
        cursor = (JsonCursor){text, bytes, line->values[k], NULL};
        bool more = json_line_begins_list(&cursor);
        while (more)
            more = json_line_string(line, &cursor, &string, &size) && json_line_next_element(&cursor);
    }
}

static void compare_string(JsonLine *line, const char *text, size_t bytes, const Json *object, int key) {
    const Json *value = json_member(object, KEYS[key]);
    CHECK((value != NULL) == (line->values[key] != 0), "another \"%s\"", KEYS[key]);
    if (!value || value->type != JSON_STRING) return;
    JsonCursor cursor = {text, bytes, line->values[key], NULL};
    const char *string = NULL;
    size_t size = 0;
    CHECK(json_line_string(line, &cursor, &string, &size), "no string");
    CHECK(size == value->size && memcmp(string, value->string, size) == 0, "%.*s is not %s", (int)size,
          string, value->string);
}

static void check_line(const char *text, size_t bytes) {
    JsonLine line;
    JsonCursor cursor = {text, bytes, 0, NULL};
    Json *object = NULL;
    json_line_open(&line, KEYS, NUM_KEYS);
    bool accepted = json_line_scan(&line, &cursor);
    CHECK(accepted || (cursor.error && cursor.at <= bytes), "no error at %zu of %zu", cursor.at, bytes);
    if (accepted) read_values(&line, text, bytes);
    if (json_parse(&object, text, bytes, "line") == OK && object->type == JSON_OBJECT) {
        CHECK(accepted, "byte %zu: %s", cursor.at, cursor.error);
        for (int k = 0; k < NUM_KEYS; k++) compare_string(&line, text, bytes, object, k);
    }
    json_free(object);
    json_line_free(&line);
}

static Status check_lines(CorpusReader *reader, DocumentBatch *batch) {
    int64_t line = 0;
    do {
        TRY(corpus_read(reader, batch));
        for (size_t i = 0; i < batch->count; i++) {
            const Document *d = &batch->documents[i];
            CHECK(d->start + d->bytes <= batch->raw_bytes && d->line > line, "line %lld", (long long)d->line);
            line = d->line;
            check_line(batch->raw + d->start, d->bytes);
        }
    } while (batch->count);
    return OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *path = fuzz_file("input.jsonl", data, size);
    Corpus corpus;
    CHECK(corpus_open(&corpus, &path, 1) == OK, "%s", fail_message());
    CorpusReader reader;
    DocumentBatch batch = {0};
    corpus_reader_open(&reader, &corpus, (ReadOptions){0});
    Status status = check_lines(&reader, &batch);
    CHECK(status == OK || status == ERR_DATA, "status %d: %s", (int)status, fail_message());
    batch_free(&batch);
    corpus_reader_close(&reader);
    corpus_close(&corpus);
    return 0;
}
