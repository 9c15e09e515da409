// `trireme report`: writes a page about one run or several.
#include "base/file.h"
#include "cli/cli.h"
#include "report/run_page.h"
#include <stdio.h>
#include <stdlib.h>

// Reads the step of --trace, else of the only run's own trace. A page needs no trace: a run writes it at its end.
static Status read_step(const Options *options, const RunRecord *records, int count, MeasuredStep *step,
                        bool *has_step) {
    const char *own = count == 1 ? records[0].trace : "";
    if (options->trace) {
        TRY(measured_step_read(step, options->trace));
        *has_step = true;
    } else if (*own) {
        *has_step = measured_step_read(step, own) == OK;
        if (!*has_step) fprintf(stderr, "note: the page shows no traced step: %s\n", fail_message());
    }
    return OK;
}

static Status write_page(const Options *options, const RunRecord *records, int count) {
    MeasuredStep step = {0};
    bool has_step = false;
    Text html = {0};
    Status status = read_step(options, records, count, &step, &has_step);
    if (status == OK) {
        run_page(records, count, has_step ? &step : NULL, &html);
        status = file_write(options->html, text_string(&html), html.size);
        if (status != OK) status = fail(status, "--html %s", fail_message());
    }
    if (status == OK) printf("%s: a page of %d run%s\n", options->html, count, count == 1 ? "" : "s");
    text_free(&html);
    measured_step_destroy(&step);
    return status;
}

Status cmd_report(Options *options) {
    int count = options->positional.count;
    if (!count || count > MAX_PAGE_RUNS)
        return fail(
            ERR_USAGE,
            "report takes 1 to %d runs, each a --save folder, run.json or metrics; such as trireme report "
            "checkpoints --html run.html",
            MAX_PAGE_RUNS);
    if (!options->html) return fail(ERR_USAGE, "report writes a page: --html FILE says where");
    RunRecord *records = calloc((size_t)count, sizeof *records);
    if (!records) return fail(ERR_OS, "no memory for %d runs", count);
    Status status = OK;
    for (int i = 0; i < count && status == OK; i++)
        status = run_record_read(&records[i], options->positional.items[i], false);
    if (status == OK) status = write_page(options, records, count);
    for (int i = 0; i < count; i++) run_record_free(&records[i]);
    free(records);
    return status;
}
