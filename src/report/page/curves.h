// Charts of numbers over the iterations of runs: inline SVG, a line for each run.
#pragma once
#include "report/page/parts.h"
#include "report/run_record.h"

typedef double RowNumber(const StepRow *row);

typedef struct {
    const char *title;
    RowNumber *number;
    bool logarithmic; // where the values are positive and span a factor of four
    bool validations; // the losses of evaluations are points beside the line
} CurveChart;

// Adds the chart, unless no run has such a number.
void html_curves(Text *out, CurveChart chart, const RunRecord *runs, int count);
