// `trireme watch`: shows what a training run does now, or how it ended.
#include "base/screen.h"
#include "cli/cli.h"
#include "report/watch.h"
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static bool runs(const RunRecord *record) {
    return record->has_state && !strcmp(record->state, "running") && !record->gone;
}

// Reads everything anew: a run that is started again has another page.
static Status look(const char *path, int columns, int most_ranks, Text *out, bool *goes_on) {
    RunRecord record;
    BeatPage page = {0};
    Status status = run_record_read(&record, path, true);
    if (status == OK) {
        if (*record.beats) beat_page_look(&page, record.beats);
        watch_print(&record, &page, columns, most_ranks, out);
        *goes_on = runs(&record);
    }
    beat_page_close(&page);
    run_record_free(&record);
    return status;
}

static Status show(const Options *options, const char *path, Screen *screen) {
    bool goes_on = true, stays = screen->file && !options->once;
    const struct timespec pause = {.tv_sec = 1};
    while (goes_on) {
        Text picture = {0};
        int columns = screen_columns(STDOUT_FILENO) - 1;
        Status status = look(path, columns, stays ? 64 : BEAT_MAX_SLOTS, &picture, &goes_on);
        goes_on = goes_on && stays && status == OK;
        if (goes_on) screen_draw(screen, text_string(&picture));
        if (!goes_on) screen_clear(screen);
        if (!goes_on && status == OK) fputs(text_string(&picture), stdout);
        text_free(&picture);
        TRY(status);
        if (goes_on) nanosleep(&pause, NULL);
    }
    return OK;
}

Status cmd_watch(Options *options) {
    if (options->positional.count != 1)
        return fail(
            ERR_USAGE,
            "watch takes one run: its --save folder, its run.json or its metrics; such as trireme watch "
            "checkpoints");
    Screen screen = screen_open(stdout, STDOUT_FILENO, options->plain);
    return show(options, options->positional.items[0], &screen);
}
