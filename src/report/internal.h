// Shared by the files of this folder: traces as they are read, and pieces of drawings.
#pragma once
#include "layout/simulate.h"
#include "layout/topology.h"
#include "report/report.h"

// ---- trace.c: the file of `trireme train --trace` -----------------------------------------------

typedef struct {
    Span span;
    uint8_t op, chunk;
    int32_t microbatch;
} TracedCompute;

typedef struct {
    Span span;
    WaitKind kind;
} TracedWait;

typedef struct {
    Span span;
    int64_t iteration;
} TracedStep;

// The events of one rank, each list ordered by time.
typedef struct {
    TracedCompute *computes;
    TracedWait *waits;
    TracedStep *steps;
    size_t num_computes, num_waits, num_steps;
    size_t compute_capacity, wait_capacity, step_capacity;
    int64_t lost; // events dropped before the first one in the trace
} TracedRank;

typedef struct {
    Grid grid;
    char kind[32]; // of the schedule
    Schedule schedule;
    TracedRank *ranks; // [num_ranks]
    int num_ranks;
} TracedRun;

// ERR_DATA names the line. The caller closes the run with traced_run_close, also after a failure.
Status traced_run_read(TracedRun *run, const char *path);
void traced_run_close(TracedRun *run);

// ---- timeline.c, svg.c: pictures of one schedule on one scale, one under the other ---------------------

bool is_compute(Instr instr); // computes are drawn, other instructions are not

typedef struct {
    const char *name; // printed above it; NULL: none
    const Simulation *simulation;
} Panel;

typedef struct {
    double total_us, shortest_us; // of the longest picture; of the shortest compute in any of them
} PanelTimes;

PanelTimes panel_times(const Schedule *schedule, const Panel *panels, int num_panels);
void timeline_panels(const Schedule *schedule, const Panel *panels, int num_panels, int columns, bool colour,
                     Text *out);
// Either all panels have a name or none has.
void svg_panels(const Schedule *schedule, const Panel *panels, int num_panels, const char *title, Text *out);
