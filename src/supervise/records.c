// Makes the lines of the ledger, and reads how many starts it has.
#include "base/error.h"
#include "base/ledger.h"
#include "formats/formats.h"
#include "supervise/supervise.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

int records_last_start(const char *path) {
    enum { MOST_LINE = 1 << 16 };
    int last = 0, number;
    FILE *file = fopen(path, "re");
    char *line = file ? malloc(MOST_LINE) : NULL;
    while (line && fgets(line, MOST_LINE, file)) {
        const char *event = strstr(line, "\"event\": \"started\", \"start\": ");
        if (event && sscanf(event, "\"event\": \"started\", \"start\": %d", &number) == 1 && number > last)
            last = number;
    }
    free(line);
    if (file) fclose(file);
    return last;
}
