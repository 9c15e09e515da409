// --html: the page of a plan, with what only a page has room for: the timeline, and the answers to other questions.
#include "base/file.h"
#include "cli/plan_verb.h"
#include "layout/simulate.h"
#include "report/report.h"
#include <stdlib.h>
#include <string.h>

static int by_devices(const void *a, const void *b) {
    return ((const ScalePoint *)a)->devices - ((const ScalePoint *)b)->devices;
}

// ---- the page -----------------------------------------------------------------------------------

static Status write_page(const char *path, const PlanPage *page) {
    Text html = {0};
    plan_page(page, &html);
    Status status = file_write(path, text_string(&html), html.size);
    text_free(&html);
    return status == OK ? OK : fail(status, "--html %s", fail_message());
}

static Status draw(PlanCache *cache, const PlanJob *job, PlanPage *page) {
    Schedule schedule;
    Simulation simulation;
    const ParallelConfig *c = &page->report->chosen->config;
    TRY(predict_timeline(cache, &job->costs, &job->model, c, &schedule, &simulation));
    page->schedule = &schedule;
    page->simulation = &simulation;
    Status status = write_page(job->options->html, page);
    simulation_destroy(&simulation, &schedule);
    schedule_destroy(&schedule);
    return status;
}

// The same question on other numbers of devices: cells of the sweep, in their order.
static void add_scaling(const PlanSweep *sweep, const PlanJob *job, PlanPage *page, ScalePoint *points) {
    page->scaling = points;
    for (int i = 0; i < sweep->count; i++) {
        const SweepCell *cell = &sweep->cells[i];
        bool other = cell->report.model->sequence != job->model.sequence ||
                     cell->space.batch != job->space.batch ||
                     strcmp(cell->machine, job->options->machine) != 0;
        if (other || !cell->report.chosen) continue;
        points[page->num_scaling++] = (ScalePoint){cell->space.devices, cell->best};
    }
    qsort(points, (size_t)page->num_scaling, sizeof *points, by_devices);
}

Status plan_html(PlanCache *cache, const PlanJob *job, const PlanReport *report, const PlanSweep *sweep) {
    ScalePoint *points = calloc((size_t)sweep->count, sizeof *points);
    PlanPage page = {.report = report, .machine = job->options->machine, .sweep = sweep};
    if (!points) return fail(ERR_OS, "no memory for %d points", sweep->count);
    add_scaling(sweep, job, &page, points);
    Status status = draw(cache, job, &page);
    free(points);
    return status;
}
