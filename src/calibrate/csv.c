// Parses CSV files in place.
#include "calibrate/csv.h"
#include "base/file.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_CSV_BYTES = 64 << 20, MAX_COLUMNS = 1000 };

typedef struct {
    CsvTable *table;
    const char *path;
    const char *at, *end;
    int line;       // line of `at`
    size_t count;   // cells so far
    bool ended_row; // the last cell was the last one of its row
} Reader;

static Status wrong(const Reader *r, const char *why) {
    return fail(ERR_DATA, "%s: line %d: %s", r->path, r->line, why);
}

// Allocates as many cells and lines as there can be, from the number of separators.
static Status take_room(CsvTable *table, const char *path, size_t size) {
    size_t cells = 1, lines = 1;
    for (size_t i = 0; i < size; i++) {
        lines += table->text[i] == '\n';
        cells += table->text[i] == ',' || table->text[i] == '\n';
    }
    table->cells = malloc(cells * sizeof *table->cells);
    table->lines = malloc(lines * sizeof *table->lines);
    if (!table->cells || !table->lines) return fail(ERR_OS, "%s: no memory for %zu cells", path, cells);
    return OK;
}

// ---- cells --------------------------------------------------------------------------------------

static bool at_line_end(const Reader *r) {
    return r->at < r->end && (*r->at == '\n' || (*r->at == '\r' && r->at + 1 < r->end && r->at[1] == '\n'));
}

// Ends a cell at `to` and skips its separator; `to` may be the separator's own place.
static Status end_cell(Reader *r, char *to) {
    r->ended_row = r->at == r->end || at_line_end(r);
    if (!r->ended_row && *r->at != ',')
        return wrong(r, *r->at == '\r'
                            ? "a carriage return without a line feed"
                            : "a quote inside of a cell: the cell is quoted, and a quote in it doubled");
    bool more = r->at < r->end;
    if (r->ended_row && more) {
        r->at += *r->at == '\r';
        r->line++;
    }
    r->at += more;
    *to = 0;
    return OK;
}

// Reads a quoted cell from behind its opening quote.
static Status read_quoted(Reader *r, char *to) {
    int start = r->line;
    for (; r->at < r->end; *to++ = *r->at++) {
        r->line += *r->at == '\n';
        if (*r->at != '"') continue;
        if (++r->at == r->end || *r->at != '"') return end_cell(r, to);
    }
    r->line = start;
    return wrong(r, "a quoted cell does not end");
}

static Status read_cell(Reader *r) {
    char *start = r->table->text + (r->at - r->table->text);
    r->table->cells[r->count++] = start;
    if (r->at < r->end && *r->at == '"') {
        r->at++;
        return read_quoted(r, start);
    }
    while (r->at < r->end && !strchr(",\"\r\n", *r->at)) r->at++;
    return end_cell(r, r->table->text + (r->at - r->table->text));
}

// ---- rows ---------------------------------------------------------------------------------------

// Names the column that is missing: a file that was cut off ends like this.
static Status wrong_width(const Reader *r, int line, size_t cells) {
    const CsvTable *t = r->table;
    bool cut = r->at == r->end && r->line == line;
    if (cells > (size_t)t->columns)
        return fail(ERR_DATA, "%s: line %d: %zu cells; the first line names %d columns", r->path, line, cells,
                    t->columns);
    return fail(ERR_DATA, "%s: line %d: %zu cells; the first line names %d columns, and '%.40s' is missing%s",
                r->path, line, cells, t->columns, t->cells[cells], cut ? ": the file ends there" : "");
}

// Reads a row; an empty line is none.
static Status read_row(Reader *r) {
    CsvTable *t = r->table;
    size_t before = r->count;
    int start = r->line;
    do {
        TRY(read_cell(r));
    } while (!r->ended_row);
    size_t cells = r->count - before;
    if (cells == 1 && !*t->cells[before]) {
        r->count = before;
        return OK;
    }
    if (cells > MAX_COLUMNS) return wrong(r, "more than 1000 cells");
    if (!before) t->columns = (int)cells;
    if (cells != (size_t)t->columns) return wrong_width(r, start, cells);
    t->lines[before / cells] = start;
    return OK;
}

static Status check_names(const CsvTable *table, const char *path) {
    for (int c = 0; c < table->columns; c++)
        if (csv_column(table, table->cells[c]) != c)
            return fail(ERR_DATA, "%s: line %d: two columns are named '%s'", path, table->lines[0],
                        table->cells[c]);
    return OK;
}

static Status read_table(CsvTable *table, const char *path, size_t size) {
    TRY(take_room(table, path, size));
    Reader r = {.table = table, .path = path, .at = table->text, .end = table->text + size, .line = 1};
    if (size >= 3 && !memcmp(r.at, "\xef\xbb\xbf", 3)) r.at += 3;
    while (r.at < r.end) TRY(read_row(&r));
    if (!r.count) return fail(ERR_DATA, "%s: empty; the first line names the columns", path);
    table->rows = (int)(r.count / (size_t)table->columns) - 1;
    return check_names(table, path);
}

Status csv_read(CsvTable *table, const char *path) {
    *table = (CsvTable){0};
    size_t size;
    TRY(file_read(path, MAX_CSV_BYTES, &table->text, &size));
    const char *nul = memchr(table->text, 0, size);
    Status status = nul ? fail(ERR_DATA, "%s: byte %td is NUL: not a text file", path, nul - table->text)
                        : read_table(table, path, size);
    if (status != OK) csv_free(table);
    return status;
}

void csv_free(CsvTable *table) {
    free(table->text);
    free(table->cells);
    free(table->lines);
    *table = (CsvTable){0};
}

int csv_column(const CsvTable *table, const char *name) {
    for (int c = 0; c < table->columns; c++)
        if (!strcmp(table->cells[c], name)) return c;
    return -1;
}

const char *csv_cell(const CsvTable *table, int row, int column) {
    return table->cells[(size_t)(1 + row) * (size_t)table->columns + (size_t)column];
}
