// CSV files of measured runs. Laws: a table that is read, written with every cell in quotes, reads as the
// same; measured rows are within what they promise and have an error of 0 when predicted as measured.
#include "calibrate/calibrate.h"
#include "calibrate/csv.h"
#include "fuzz.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void add_quoted(Text *out, const char *cell) {
    text_add(out, "\"");
    for (; *cell; cell++) text_add_bytes(out, *cell == '"' ? "\"\"" : cell, *cell == '"' ? 2 : 1);
    text_add(out, "\"");
}

static void write_table(const CsvTable *table, Text *out) {
    for (int r = -1; r < table->rows; r++)
        for (int c = 0; c < table->columns; c++) {
            add_quoted(out, csv_cell(table, r, c));
            text_add(out, c + 1 < table->columns ? "," : "\r\n");
        }
}

static void compare(const CsvTable *a, const CsvTable *b) {
    CHECK(a->rows == b->rows && a->columns == b->columns, "%d x %d, then %d x %d", a->rows, a->columns,
          b->rows, b->columns);
    for (int r = -1; r < a->rows; r++)
        for (int c = 0; c < a->columns; c++)
            CHECK(!strcmp(csv_cell(a, r, c), csv_cell(b, r, c)), "row %d, column %d", r, c);
}

static void check_table(const char *path) {
    CsvTable table, again;
    Text text = {0};
    Status status = csv_read(&table, path);
    CHECK(status == OK || status == ERR_DATA, "status %d: %s", (int)status, fail_message());
    if (status != OK) return;
    write_table(&table, &text);
    CHECK(csv_read(&again, fuzz_file("again.csv", text.data, text.size)) == OK, "%s", fail_message());
    compare(&table, &again);
    csv_free(&again);
    csv_free(&table);
    text_free(&text);
}

static void check_rows(const PlanRows *rows) {
    double *measured = calloc((size_t)rows->count + 1, sizeof *measured);
    CHECK(measured, "no memory for %d rows", rows->count);
    for (int i = 0; i < rows->count; i++) {
        const ParallelConfig *c = &rows->items[i].config;
        measured[i] = rows->items[i].step_s;
        CHECK(c->batch % (c->microbatch * grid_along(c->grid, AXIS_DP)) == 0 && c->schedule &&
                  measured[i] >= 0,
              "row %d", i);
        CHECK(plan_row_flops(&rows->items[i]) > 0, "row %d computes nothing", i);
    }
    ErrorSummary summary = error_summary(rows, measured);
    CHECK(!summary.count || summary.worst == 0, "a worst error of %g", summary.worst);
    free(measured);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *path = fuzz_file("input.csv", data, size);
    check_table(path);
    PlanRows rows;
    Status status = plan_rows_read(&rows, path);
    CHECK(status == OK || status == ERR_DATA, "status %d: %s", (int)status, fail_message());
    if (status != OK) return 0;
    check_rows(&rows);
    plan_rows_free(&rows);
    return 0;
}
