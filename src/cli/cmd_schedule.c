#include "cli/cli.h"
#include "report/report.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

// What the command line asks for, with everything left open filled in.
typedef struct {
    const Options *options;
    const ScheduleKind *kind; // NULL: from a file
    int ranks, chunks, microbatches;
    ScheduleCosts costs;
} Request;

static int or_default(int value, int otherwise) { return value == INT_UNSET ? otherwise : value; }

static Request request_of(const Options *options) {
    Request request = {.options = options, .ranks = options->pipeline_model_parallel_size};
    request.chunks = or_default(options->num_virtual_stages_per_pipeline_rank, 1);
    request.microbatches = or_default(options->microbatches, 2 * request.ranks);
    request.costs = (ScheduleCosts){.forward_us = options->forward_us,
                                    .backward_us = options->backward_us,
                                    .weight_fraction = 0.5,
                                    .hop_us = options->hop_us};
    const char *name = options->schedule ? options->schedule : request.chunks > 1 ? "interleaved" : "1f1b";
    if (!options->from) request.kind = schedule_kind(name);
    return request;
}

// A file's schedule; what is wrong with it is told with its name in front.
static Status read_schedule(const char *path, Schedule *schedule) {
    char *text;
    size_t size;
    TRY(file_read(path, SCHEDULE_MAX_BYTES, &text, &size));
    size_t length = strlen(text);
    Status status = length < size ? fail(ERR_DATA, "byte %zu is a NUL, which no text has", length)
                                  : schedule_parse(schedule, text);
    free(text);
    return status == OK ? OK : fail(status, "%s: %s", path, fail_message());
}

static int terminal_columns(void) {
    enum { PLAIN_COLUMNS = 100 };
    struct winsize size;
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    return known ? size.ws_col : PLAIN_COLUMNS;
}

static bool wants_colour(void) { return isatty(STDOUT_FILENO) && !getenv("NO_COLOR"); }

static void add_title(const Request *request, const Schedule *schedule, Text *out) {
    text_add(out, "%s: %d pipeline rank%s", request->kind ? request->kind->name : request->options->from,
             schedule->num_ranks, schedule->num_ranks > 1 ? "s" : "");
    if (schedule->num_chunks > 1) text_add(out, " of %d chunks", schedule->num_chunks);
    text_add(out, ", %d microbatch%s", schedule->num_microbatches,
             schedule->num_microbatches > 1 ? "es" : "");
}

static void add_bubble(const Request *request, const Schedule *schedule, const Simulation *simulation,
                       Text *out) {
    text_add(out, "bubble  %.4f of the ideal time (%.1f %% of the total)", simulation->bubble,
             100 * simulation->bubble / (1 + simulation->bubble));
    if (request->kind && request->costs.hop_us == 0)
        text_add(
            out, "; (p-1)/(v*m) = %.4f",
            request->kind->bubble(schedule->num_ranks, schedule->num_chunks, schedule->num_microbatches));
    text_add(out, "\nstash  ");
    for (int r = 0; r < schedule->num_ranks; r++) text_add(out, " %d", simulation->peak_stash[r]);
    text_add(out, "  %s at once, by rank\n",
             schedule->num_chunks > 1 ? "microbatches of a chunk" : "microbatches");
}

static Status report(const Request *request, const Schedule *schedule, const Simulation *simulation) {
    Text text = {0}, title = {0}, svg = {0};
    add_title(request, schedule, &title);
    text_add(&text, "%s\n\n", text_string(&title));
    schedule_print(schedule, &text);
    text_add(&text, "\n");
    timeline_text(schedule, simulation, or_default(request->options->width, terminal_columns()),
                  wants_colour(), &text);
    text_add(&text, "\n");
    add_bubble(request, schedule, simulation, &text);
    fputs(text_string(&text), stdout);
    Status status = OK;
    if (request->options->svg) {
        timeline_svg(schedule, simulation, text_string(&title), &svg);
        status = file_write(request->options->svg, svg.data, svg.size);
        if (status != OK) fail(status, "--svg %s", fail_message());
    }
    text_free(&svg);
    text_free(&title);
    text_free(&text);
    return status;
}

// A file says all by itself; an option that would be passed over is refused.
static Status check_words(const Options *options) {
    static const char *const shapes[] = {"schedule", "pipeline_model_parallel_size",
                                         "num_virtual_stages_per_pipeline_rank", "microbatches"};
    if (options->positional.count)
        return fail(ERR_USAGE, "schedule takes options only, not %s; --from FILE reads a schedule",
                    options->positional.items[0]);
    for (int i = 0; options->from && i < 4; i++)
        if (options_origin(options, shapes[i]) != FROM_DEFAULT)
            return fail(
                ERR_USAGE,
                "--from %s says which ranks and microbatches there are: leave out --schedule, --pp, --vp "
                "and --microbatches",
                options->from);
    return OK;
}

static Status run(const Options *options) {
    Request request = request_of(options);
    Schedule schedule;
    Simulation simulation;
    TRY(check_words(options));
    if (options->from)
        TRY(read_schedule(options->from, &schedule));
    else
        TRY(schedule_create(&schedule, request.kind->name, request.ranks, request.chunks,
                            request.microbatches));
    schedule_simulate(&schedule, request.costs, &simulation);
    Status status = report(&request, &schedule, &simulation);
    simulation_destroy(&simulation, &schedule);
    schedule_destroy(&schedule);
    return status;
}

Status cmd_schedule(int argc, char **argv) {
    Options options;
    TRY(options_parse(&options, FOR_SCHEDULE, argc, argv));
    fputs(options_notes(&options), stderr);
    Status status = run(&options);
    options_destroy(&options);
    return status;
}
