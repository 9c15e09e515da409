// `trireme train`: starts the ranks and runs the training loop on each.
#include "base/beat.h"
#include "base/file.h"
#include "base/rank.h"
#include "cli/verb_parts.h"
#include "device/device.h"
#include "train/train.h"
#include <stdlib.h>
#include <string.h>

static Status save_configuration(const Options *options) {
    if (!options->save_config) return OK;
    Text text = {0};
    options_save(options, FOR_TRAIN, &text);
    Status status = file_write(options->save_config, text_string(&text), text.size);
    text_free(&text);
    return status;
}

// Prints the notes; `brief` leaves out what was taken from the model.
static void tell(const Options *options, bool brief) {
    if (!brief) tell_notes(options);
    for (const char *line = options_notes(options); brief && *line;) {
        int size = (int)strcspn(line, "\n");
        if (strncmp(line, "taken from ", 11) != 0) fprintf(stderr, "%.*s\n", size, line);
        line += size + (line[size] == '\n');
    }
}

// Does everything that can be done before the ranks start.
static Status prepare(Options *options, TrainJob *job) {
    int launched = launcher_ranks(), asked = options->ranks != INT_UNSET ? options->ranks : 1;
    int size = launched ? launched : asked;
    TRY(train_resolve(options, size));
    if (!options->dry_run) TRY(device_check(options->device));
    tell(options, job->brief);
    if (launcher_rank() == 0) TRY(save_configuration(options));
    job->ranks_here = launched ? launcher_ranks_here() : size;
    job->threads = threads_per_rank(options, job->ranks_here);
    return OK;
}

// Ranks that are threads show what they do to `trireme watch`; a supervisor has a page for any. Without memory there is
// none, which is no error.
static void offer_beats(const Options *options, BeatPage *page) {
    char why[sizeof rank_current()->message];
    if (getenv(BEAT_VARIABLE) || launcher_ranks() || options->dry_run) return;
    snprintf(why, sizeof why, "%s", fail_message());
    int ranks = options->ranks != INT_UNSET && options->ranks > 0 ? options->ranks : 1;
    if (ranks <= BEAT_MAX_SLOTS && beat_page_open(page, ranks) == OK) setenv(BEAT_VARIABLE, page->path, 1);
    fail(OK, "%s", why);
}

static void withdraw_beats(BeatPage *page) {
    if (page->header) unsetenv(BEAT_VARIABLE);
    beat_page_close(page);
}

Status train_verb(Options *options, bool brief) {
    RunFile file = {.options = options, .started = time(NULL), .saved = -1, .lock = -1};
    TrainJob job = {.start_s = clock_s(), .options = options, .stopped = stop_on_signals(), .brief = brief};
    if (launcher_rank() == 0) job.file = &file;
    BeatPage beats = {0};
    offer_beats(options, &beats);
    job.output = streams_do_not_wait();
    Text common = {0};
    prepare_links(options);
    list_common(options, &common);
    Status status = prepare(options, &job);
    status = start_ranks(options, status, &common, job.threads, job.stopped, train_run, &job);
    text_free(&common);
    if (status != OK && !file.ended && !options->dry_run) run_file_end(job.file, RUN_INTERRUPTED, status);
    withdraw_beats(&beats);
    do_not_stop_on_signals();
    streams_wait();
    return status;
}

Status cmd_train(Options *options) { return train_verb(options, false); }
