// CSV files (RFC 4180) as tables of text: cells in quotes may hold commas, line ends and doubled quotes;
// lines end in LF or CRLF; a byte order mark is passed over. The first line names the columns. Whatever else
// is loose in the format is refused with its line, since a cell in the wrong column would be a wrong number.
#pragma once
#include "base/text.h"

typedef struct {
    char *text;   // the file, in which the cells are unquoted in place
    char **cells; // [(1 + rows) * columns], the names of the columns first
    int *lines;   // [1 + rows] of the file, from 1, on which a row starts
    int rows, columns;
} CsvTable;

// ERR_DATA for a line with more or fewer cells than there are columns (of a file that was cut off: the first
// column that is missing), a quote in the wrong place, NUL bytes, a CR alone, a name twice. Empty lines are
// passed over. The caller frees.
Status csv_read(CsvTable *table, const char *path);
void csv_free(CsvTable *table);
int csv_column(const CsvTable *table, const char *name); // -1: absent
const char *csv_cell(const CsvTable *table, int row, int column);
