// --html: the page of a plan, with what only a page has room for: the timeline, and other numbers of devices.
#include "base/file.h"
#include "cli/plan_verb.h"
#include "layout/simulate.h"
#include "report/report.h"
#include <string.h>

enum { NUM_SCALES = 6 };

// ---- other numbers of devices ---------------------------------------------------------------------

// Finds the best configuration on so many devices, if there is one. It keeps all that the user has given but d.
static Status add_point(PlanCache *cache, const PlanJob *job, int devices, PlanPage *page,
                        ScalePoint *points) {
    PlanResult result;
    SearchSpace space = job->space;
    space.devices = devices;
    space.grid.size[AXIS_DP] = 0;
    Status status = plan_search(cache, &job->costs, &job->model, &space, 1, &result);
    if (status == OK && result.count) points[page->num_scaling++] = (ScalePoint){devices, result.best[0]};
    plan_result_free(&result);
    return status == ERR_CONFIG ? OK : status;
}

static Status add_scaling(PlanCache *cache, const PlanJob *job, PlanPage *page, ScalePoint *points) {
    static const double scales[NUM_SCALES] = {1.0 / 8, 1.0 / 4, 1.0 / 2, 1, 2, 4};
    int here = job->space.devices;
    page->scaling = points;
    for (int i = 0; i < NUM_SCALES; i++) {
        double devices = here * scales[i];
        if (devices < 1 || devices != (int)devices || devices > MAX_DEVICES) continue;
        if (scales[i] == 1)
            points[page->num_scaling++] = (ScalePoint){here, *page->report->chosen};
        else
            TRY(add_point(cache, job, (int)devices, page, points));
    }
    return OK;
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

Status plan_html(PlanCache *cache, const PlanJob *job, const PlanReport *report) {
    ScalePoint points[NUM_SCALES];
    PlanPage page = {.report = report};
    TRY(add_scaling(cache, job, &page, points));
    return draw(cache, job, &page);
}
