// The page of one run or several: losses, rates, where the time went, memory, a step beside the simulated one, events.
#pragma once
#include "report/report.h"
#include "report/run_record.h"

enum { MAX_PAGE_RUNS = 8 };

// Adds one HTML file that loads nothing else and shows everything without JavaScript. `step` may be NULL. Curves are
// drawn of at most a thousand points each, with the extremes between them.
void run_page(const RunRecord *runs, int count, const MeasuredStep *step, Text *out);
