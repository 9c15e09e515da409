// CSV files (RFC 4180) as tables of text: quoted cells may contain commas, line ends and doubled quotes; lines end
// in LF or CRLF; a byte order mark is skipped. The first line names the columns. Everything else that CSV files may
// have is refused with its line, because a cell in the wrong column would be a wrong number.
#pragma once
#include "base/text.h"

typedef struct {
    char *text;   // the file; cells are unquoted in place
    char **cells; // [(1 + rows) * columns], the column names first
    int *lines;   // [1 + rows]: the line of the file, from 1, where a row starts
    int rows, columns;
} CsvTable;

// Reads a file. ERR_DATA for a line with another number of cells than there are columns, a misplaced quote, NUL
// bytes, a CR without LF, or a repeated column name; for a file that was cut off, the message names the first
// missing column. Empty lines are skipped. The caller frees the table.
Status csv_read(CsvTable *table, const char *path);
void csv_free(CsvTable *table);
int csv_column(const CsvTable *table, const char *name); // returns -1 for an unknown name
const char *csv_cell(const CsvTable *table, int row, int column);
