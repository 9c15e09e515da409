// What a benchmark measured, as tables: a row is printed as soon as it is known, and all of them can be kept
// as JSON, which bench_report reads back to compare two runs and to write docs/performance.md.
//
// A value is found again in another run by the titles and names of its table, row and column: they say what
// was measured, never what came out.
#pragma once
#include "formats/formats.h"

// What a comparison of two runs takes a change for.
typedef enum { INFORMS, LOWER_IS_BETTER, HIGHER_IS_BETTER } Better;

typedef struct {
    const char *name; // what and its unit: "GFLOP/s"
    int digits;       // behind the point
    Better better;
} Column;

// Zero-initialise; tables_finish ends it.
typedef struct {
    Text json;
    const Column *columns; // of the table under way; borrowed
    int num_columns, num_tables, num_rows, num_notes;
} Tables;

void table_begin(Tables *tables, const char *title, const Column *columns, int count);
void table_row(Tables *tables, const char *name, const double *values); // one a column; NAN: blank
// A line below the table; no rows follow.
void table_note(Tables *tables, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
// Writes {"part", "date", "tables"} to `path`, unless that is NULL, and frees.   ERR_CREATE
Status tables_finish(Tables *tables, const char *part, const char *path);

// The value behind --json FILE at the end of a command line, which is made shorter by it; NULL without.
const char *tables_path(int *argc, char **argv);
