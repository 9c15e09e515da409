// What a schedule does with its time, simulated and as `trireme train --trace` saw it: pictures and sums; and
// the page of a plan.
//
// Pictures are drawn in the manner of figures 3 and 4 of Narayanan et al. 2021: one row per pipeline rank,
// time to the right, each compute a cell with the number of its microbatch, idle time left empty.
#pragma once
#include "layout/simulate.h"
#include "report/plan_report.h"

// For a terminal of `columns` characters. Each cell ends in a mark of direction and chunk: "0>" forward and
// "0<" backward, or "0a" and "0A" for chunk 0, "0b" and "0B" for chunk 1, when ranks have several. `colour`
// adds what a terminal shows. A number that does not fit shows its last digits; where even the marks do not
// fit, a column shows what ends in it last.
void timeline_text(const Schedule *schedule, const Simulation *simulation, int columns, bool colour,
                   Text *out);

// A drawing for print: forwards blue, backwards green, weight gradients amber, later chunks lighter.
// `title` is any text.
void timeline_svg(const Schedule *schedule, const Simulation *simulation, const char *title, Text *out);

// ---- what a run did -----------------------------------------------------------------------------------

// Whom a rank waited for: another pipeline stage, its tensor or data parallel group, any other group.
typedef enum { WAIT_STAGES, WAIT_TP, WAIT_DP, WAIT_OTHERS, NUM_WAITS } WaitKind;

typedef struct {
    double compute_us; // in forwards and backwards, waits for tp within them included
    double waits_us[NUM_WAITS];
} RankTimes;

// One step of a traced run, the median of those that all ranks kept whole. The first two are left out as
// long as others remain.
typedef struct {
    Grid grid;
    char kind[32]; // of the schedule
    Schedule schedule;
    int num_steps;     // whose median this is
    int64_t iteration; // of the step, from 1
    double step_us;    // from the first rank's begin to the last one's end
    RankTimes *ranks;  // [grid_size]
    double bubble;     // over the ideal time: mean of all pipelines of span / mean compute_us - 1
    // The pipeline of tp 0 and dp 0: as it was, and its schedule simulated with the times that each stage
    // took.
    Simulation measured, simulated;
} MeasuredStep;

// Reads a file of `trireme train --trace`.  ERR_DATA names the line, or says that no step is there as a
// whole.
Status measured_step_read(MeasuredStep *step, const char *path);
void measured_step_destroy(MeasuredStep *step); // takes a zeroed one too
// Bubble, imbalance, exposed communication, and a line per rank.
void measured_step_print(const MeasuredStep *step, Text *out);
// The simulated pipeline and below it the measured one, on one scale of time.
void measured_step_timeline(const MeasuredStep *step, int columns, bool colour, Text *out);
void measured_step_svg(const MeasuredStep *step, const char *title, Text *out);

// ---- a plan ---------------------------------------------------------------------------------------------

// The same batch on another number of devices, at its best.
typedef struct {
    int devices;
    Prediction prediction;
} ScalePoint;

// What a page is made of; all of it is borrowed.
typedef struct {
    const PlanReport *report;
    const Schedule *schedule;     // of the chosen one; NULL: it is not drawn
    const Simulation *simulation; // of it, with spans
    const ScalePoint *scaling;    // in rising order of devices
    int num_scaling;              // below 2: no such section
} PlanPage;

// One HTML file that needs nothing else: it loads nothing, and without JavaScript lacks zoom, sorting and
// copying alone. Sizes: 100 KB, and 15 bytes for each compute of the schedule, which is not drawn when it has
// more than PAGE_MAX_COMPUTES.
enum { PAGE_MAX_COMPUTES = 1 << 19 };
void plan_page(const PlanPage *page, Text *out);
