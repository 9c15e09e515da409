// Prints the tables of a benchmark and writes them as JSON.
#include "table.h"
#include "base/file.h"
#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

enum { NAME_WIDTH = 46, VALUE_WIDTH = 13 };
static const char *const betters[] = {"", "lower", "higher"};

static void add_string(Tables *t, const char *string) { json_add_string(&t->json, string, strlen(string)); }

static void end_table(Tables *t) {
    if (t->columns) text_add(&t->json, "]}");
    t->columns = NULL;
}

void table_begin(Tables *t, const char *title, const Column *columns, int count) {
    end_table(t);
    t->columns = columns, t->num_columns = count, t->num_rows = t->num_notes = 0;
    text_add(&t->json, "%s\n  {\"title\": ", t->num_tables++ ? "," : "");
    add_string(t, title);
    text_add(&t->json, ", \"columns\": [");
    printf("\n%-*s", NAME_WIDTH, title);
    for (int i = 0; i < count; i++) {
        text_add(&t->json, "%s[", i ? ", " : "");
        add_string(t, columns[i].name);
        text_add(&t->json, ", %d, \"%s\"]", columns[i].digits, betters[columns[i].better]);
        printf(" %*s", VALUE_WIDTH, columns[i].name);
    }
    text_add(&t->json, "],\n   \"rows\": [");
    printf("\n");
    fflush(stdout);
}

void table_row(Tables *t, const char *name, const double *values) {
    CHECK(t->columns && !t->num_notes, "a row outside of a table: %s", name);
    text_add(&t->json, "%s\n    [", t->num_rows++ ? "," : "");
    add_string(t, name);
    printf("  %-*s", NAME_WIDTH - 2, name);
    for (int i = 0; i < t->num_columns; i++) {
        if (isfinite(values[i])) {
            text_add(&t->json, ", %.6g", values[i]);
            printf(" %*.*f", VALUE_WIDTH, t->columns[i].digits, values[i]);
        } else {
            text_add(&t->json, ", null");
            printf(" %*s", VALUE_WIDTH, "");
        }
    }
    text_add(&t->json, "]");
    printf("\n");
    fflush(stdout);
}

void table_note(Tables *t, const char *fmt, ...) {
    char line[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    text_add(&t->json, "%s", t->num_notes++ ? ", " : "],\n   \"notes\": [");
    add_string(t, line);
    printf("  %s\n", line);
    fflush(stdout);
}

Status tables_finish(Tables *t, const char *part, const char *path) {
    end_table(t);
    char date[32];
    time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%MZ", gmtime(&now));
    Text file = {0};
    text_add(&file, "{\"part\": \"%s\", \"date\": \"%s\", \"tables\": [%s\n]}\n", part, date,
             text_string(&t->json));
    Status status = path ? file_write(path, file.data, file.size) : OK;
    text_free(&file);
    text_free(&t->json);
    *t = (Tables){0};
    return status;
}

const char *tables_path(int *argc, char **argv) {
    if (*argc < 3 || strcmp(argv[*argc - 2], "--json") != 0) return NULL;
    *argc -= 2;
    return argv[*argc + 1];
}
