// Pictures and sums of schedules, simulated and as `trireme train --trace` measured them, and the HTML page of a
// plan.
//
// Pictures look like figures 3 and 4 of Narayanan et al. 2021: one row per pipeline rank, time to the right, each
// compute a cell with the number of its microbatch; idle time is empty.
#pragma once
#include "layout/simulate.h"
#include "report/plan_sweep.h"

// Draws for a terminal of `columns` characters. Each cell ends with a mark of direction and chunk: "0>" forward and
// "0<" backward; when ranks have several chunks, "0a" and "0A" for chunk 0, "0b" and "0B" for chunk 1. `colour` adds
// escape sequences. A number that does not fit shows its last digits; where even the marks do not fit, a column
// shows the compute that ends in it last.
void timeline_text(const Schedule *schedule, const Simulation *simulation, int columns, bool colour,
                   Text *out);

// Draws for print: forwards blue, backwards green, weight gradients amber; later chunks are lighter. `title` is any
// text.
void timeline_svg(const Schedule *schedule, const Simulation *simulation, const char *title, Text *out);

// ---- what a run did -----------------------------------------------------------------------------------

// The kinds of waits of a rank: for another pipeline stage; its tensor parallel group, that of experts included; the
// shares of its sequence; the exchange of rows among experts; its replicas; or another group.
typedef enum { WAIT_STAGES, WAIT_TP, WAIT_CP, WAIT_EP, WAIT_DP, WAIT_OTHERS, NUM_WAITS } WaitKind;

typedef struct {
    double compute_us; // in forwards and backwards, including waits within them
    double waits_us[NUM_WAITS];
} RankTimes;

// One step of a traced run: the median of the steps that are complete on all ranks. The first two steps are left out
// as long as others remain.
typedef struct {
    Grid grid;
    char kind[32]; // of the schedule
    Schedule schedule;
    int num_steps;     // complete steps, of which this is the median
    int64_t iteration; // of the step, from 1
    double step_us;    // from the first rank's start to the last rank's end
    RankTimes *ranks;  // [grid_size]
    double bubble; // as a fraction of the ideal time: mean over all pipelines of span / mean compute_us - 1
    // The pipeline of rank 0: measured, and simulated with the times that each stage took.
    Simulation measured, simulated;
} MeasuredStep;

// Reads a file of `trireme train --trace`.   ERR_DATA names the line, or says that no step is complete.
Status measured_step_read(MeasuredStep *step, const char *path);
void measured_step_destroy(MeasuredStep *step); // also a zeroed one
// Adds bubble, imbalance, exposed communication, and a line for each rank.
void measured_step_print(const MeasuredStep *step, Text *out);
// Draws the simulated pipeline and below it the measured one, with the same scale of time.
void measured_step_timeline(const MeasuredStep *step, int columns, bool colour, Text *out);
void measured_step_svg(const MeasuredStep *step, const char *title, Text *out);

// ---- a plan ---------------------------------------------------------------------------------------------

// The fastest configuration for the same batch on another number of devices.
typedef struct {
    int devices;
    Prediction prediction;
} ScalePoint;

// The content of a page; everything is borrowed.
typedef struct {
    const PlanReport *report;
    const Schedule *schedule;     // of the chosen configuration; NULL: it is not drawn
    const Simulation *simulation; // of that schedule, with spans
    const ScalePoint *scaling;    // in ascending order of devices
    int num_scaling;              // below 2: the page has no such section
    const char *machine;          // as the user names it
    const PlanSweep *sweep;       // answers among which the reader chooses; NULL: there are none
} PlanPage;

// Adds one HTML file that loads nothing else; without JavaScript it lacks only zooming, sorting and copying. Size:
// 100 KB, and 15 bytes for each compute of the schedule, which is not drawn when it has more than PAGE_MAX_COMPUTES.
enum { PAGE_MAX_COMPUTES = 1 << 19 };
void plan_page(const PlanPage *page, Text *out);
