// Makes the lines of the ledger, and reads what it says of earlier starts.
#include "base/file.h"
#include "base/ledger.h"
#include "formats/formats.h"
#include "supervise/supervise.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- writing --------------------------------------------------------------------------------------

void entry_begin(Text *line, const char *event, int start) {
    text_add(line, "{\"event\": \"%s\", \"start\": %d", event, start);
}

void entry_string(Text *line, const char *name, const char *value) {
    text_add(line, ", \"%s\": ", name);
    if (value && *value)
        json_add_string(line, value, strlen(value));
    else
        text_add(line, "null");
}

void entry_write(Text *line, const char *path) {
    text_add(line, "}");
    if (ledger_append(path, line) != OK) fprintf(stderr, "supervise: WARNING: %s\n", fail_message());
    text_free(line);
}

// ---- reading --------------------------------------------------------------------------------------

typedef struct {
    Records *records;
    const char *first_load;
} Reading;

static bool is_same_load(const Json *started, const char *first_load) {
    const char *word = json_string(json_member(started, "first_load"));
    return !strcmp(word ? word : "", first_load);
}

static void read_event(Reading *reading, const Json *line) {
    Records *r = reading->records;
    const char *event = json_string(json_member(line, "event")), *to = json_string(json_member(line, "to"));
    int64_t start;
    if (!event) return;
    if (!strcmp(event, "save") && to && !strcmp(to, "disk")) r->saved = r->started;
    if (strcmp(event, "started") != 0) return;
    r->started = is_same_load(line, reading->first_load);
    r->saved = r->saved && r->started;
    if (json_int(json_member(line, "start"), &start) && start > r->last_start && start < INT_MAX)
        r->last_start = (int)start;
}

// Most lines are about steps. What cannot be read is left out.
static Status read_line(void *self, int64_t number, const char *text, size_t size) {
    Json *line;
    (void)number;
    if (!memmem(text, size, "\"started\"", 9) && !memmem(text, size, "\"save\"", 6)) return OK;
    if (json_parse(&line, text, size, "ledger") != OK) return OK;
    read_event(self, line);
    json_free(line);
    return OK;
}

Records records_read(const char *path, const char *first_load) {
    Records records = {0};
    char *text;
    size_t size;
    if (file_read(path, SIZE_MAX / 2, &text, &size) != OK) return records;
    ledger_lines(text, size, read_line, &(Reading){&records, first_load});
    free(text);
    return records;
}
