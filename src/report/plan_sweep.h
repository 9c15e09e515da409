// A sweep: one question asked for several machines, numbers of devices, batches and sequence lengths, and which of the
// answers are on the front of time against money.
#pragma once
#include "report/plan_report.h"

typedef struct {
    PlanReport report; // of `space` and `best`; `chosen` is NULL where nothing keeps the rules and fits
    SearchSpace space;
    Prediction best;
    char why[400];       // ... and this says why
    const char *machine; // as the user names it
    // It fits and has time and money, and of the same batch and sequence none is faster and no dearer, or cheaper and
    // no slower.
    bool on_front;
} SweepCell;

typedef struct {
    SweepCell *cells; // ordered by machine, sequence, batch, devices
    int count;
} PlanSweep;

void plan_sweep_front(PlanSweep *sweep); // sets `on_front` of all cells
// Adds a table of all cells, and what its columns mean.
void plan_sweep_print(const PlanSweep *sweep, Text *out);
// Adds one JSON object; docs/plan.md lists its members.
void plan_sweep_json(const PlanSweep *sweep, Text *out);
