// `trireme schedule`: prints, draws and checks a pipeline schedule, or the trace of a run.
#include "base/file.h"
#include "cli/cli.h"
#include "layout/kinds.h"
#include "report/report.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

// The schedule that the command line describes, with defaults filled in.
typedef struct {
    const Options *options;
    const ScheduleKind *kind; // NULL: from a file
    ScheduleSpec spec;        // its costs are those of the drawing, whatever the kind
} ScheduleRequest;

static int or_default(int value, int otherwise) { return value == INT_UNSET ? otherwise : value; }

// Reads the times, which can be given in two ways: whole backwards in microseconds, or --schedule-times, with both
// halves.
static Status costs_of(const Options *options, ScheduleCosts *costs) {
    static const char *const whole[] = {"forward_us", "backward_us", "hop_us"};
    *costs = (ScheduleCosts){.forward_us = options->forward_us,
                             .backward_us = options->backward_us,
                             .weight_fraction = 0.5,
                             .hop_us = options->hop_us};
    if (options_origin(options, "schedule_times") == FROM_DEFAULT) return OK;
    for (int i = 0; i < 3; i++)
        if (options_origin(options, whole[i]) != FROM_DEFAULT)
            return fail(ERR_USAGE,
                        "--schedule-times gives all times: leave out --forward-us, --backward-us and "
                        "--hop-us");
    double times[4];
    TRY(options_schedule_times(options, times));
    double backward = times[1] + times[2];
    *costs = (ScheduleCosts){.forward_us = times[0],
                             .backward_us = backward,
                             .weight_fraction = backward > 0 ? times[2] / backward : 0,
                             .hop_us = times[3]};
    return OK;
}

static Status refuse_setting(const char *option, ScheduleSetting setting, const char *kind) {
    Text kinds = {0};
    schedule_kind_names(setting, " or ", &kinds);
    Status status =
        fail(ERR_USAGE, "%s is for --schedule %s, not %s: leave it out", option, text_string(&kinds), kind);
    text_free(&kinds);
    return status;
}

// Refuses an option that the kind does not use.
static Status check_settings(const Options *options, const ScheduleKind *kind) {
    static const struct {
        const char *field, *option;
        ScheduleSetting setting;
    } settings[] = {{"microbatch_group_size_per_virtual_pipeline_stage",
                     "--microbatch-group-size-per-virtual-pipeline-stage", SETTING_GROUP},
                    {"schedule_stash_limit", "--schedule-stash-limit", SETTING_STASH_LIMIT}};
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        if (!(kind->settings & settings[i].setting) &&
            options_origin(options, settings[i].field) != FROM_DEFAULT)
            return refuse_setting(settings[i].option, settings[i].setting, kind->name);
    return OK;
}

// Returns the group as train chooses it: the smallest that suits the microbatches, unless the command line names one.
static int group_of(const Options *options, const ScheduleKind *kind, ScheduleSpec spec) {
    char why[256];
    int given = or_default(options->microbatch_group_size_per_virtual_pipeline_stage, 0);
    if (given || !(kind->settings & SETTING_GROUP)) return given;
    for (spec.group = spec.ranks; spec.group <= spec.microbatches; spec.group++)
        if (!schedule_kind_refuse(kind, &spec, why, sizeof why)) return spec.group;
    return 0;
}

static Status request_of(const Options *options, ScheduleRequest *request) {
    *request = (ScheduleRequest){.options = options};
    ScheduleSpec *spec = &request->spec;
    TRY(costs_of(options, &spec->costs));
    if (options->from) return OK;
    int chunks = or_default(options->num_virtual_stages_per_pipeline_rank, 1);
    const ScheduleKind *kind =
        options->schedule ? schedule_kind(options->schedule) : schedule_kind_default(chunks);
    TRY(check_settings(options, kind));
    request->kind = kind;
    spec->kind = kind->name;
    spec->ranks = options->pipeline_model_parallel_size;
    spec->chunks = or_default(options->num_virtual_stages_per_pipeline_rank,
                              schedule_kind_chunks(kind) ? schedule_kind_chunks(kind) : 1);
    spec->microbatches = or_default(options->microbatches, 2 * spec->ranks);
    spec->group = group_of(options, request->kind, *spec);
    spec->stash_limit = or_default(options->schedule_stash_limit, 0);
    return OK;
}

// Reads a schedule from a file; a message about it begins with the file's name.
static Status read_schedule(const char *path, Schedule *schedule) {
    char *text;
    size_t size;
    TRY(file_read(path, SCHEDULE_MAX_BYTES, &text, &size));
    size_t length = strlen(text);
    Status status = length < size ? fail(ERR_DATA, "byte %zu is a NUL: this is not a text file", length)
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

static void add_title(const ScheduleRequest *request, const Schedule *schedule, Text *out) {
    text_add(out, "%s: %d pipeline rank%s", request->kind ? request->kind->name : request->options->from,
             schedule->num_ranks, schedule->num_ranks > 1 ? "s" : "");
    if (schedule->num_chunks > 1) text_add(out, " of %d chunks", schedule->num_chunks);
    text_add(out, ", %d microbatch%s", schedule->num_microbatches,
             schedule->num_microbatches > 1 ? "es" : "");
}

// Returns whether the formula of the kind applies: messages take no time, and where backwards are split, the three
// times are equal.
static bool has_formula(const ScheduleRequest *request) {
    const ScheduleCosts *costs = &request->spec.costs;
    if (!request->kind || costs->hop_us > 0 || request->options->exchange_us > 0 ||
        isnan(request->kind->bubble(&request->spec)))
        return false;
    bool equal = costs->backward_us == 2 * costs->forward_us && costs->weight_fraction == 0.5;
    return equal || !request->kind->splits_backward;
}

// Apart, computes take as long as all forwards and backwards; in pairs, that much less as pairs hide.
static void add_hidden(const ScheduleRequest *request, const Schedule *schedule, const Simulation *simulation,
                       Text *out) {
    const ScheduleCosts *costs = &request->spec.costs;
    double microbatches = (double)schedule->num_ranks * schedule->num_microbatches, busy_us = 0;
    double travel_us = 4 * request->options->exchange_us * microbatches;
    if (travel_us <= 0) return;
    for (int r = 0; r < schedule->num_ranks; r++) busy_us += simulation->busy_us[r];
    double hidden_us = (costs->forward_us + costs->backward_us) * microbatches - busy_us;
    text_add(out, "hidden  %.1f %% of the time in which rows travel to experts and back\n",
             100 * hidden_us / travel_us);
}

static void add_bubble(const ScheduleRequest *request, const Schedule *schedule, const Simulation *simulation,
                       Text *out) {
    text_add(out, "bubble  %.4f of the ideal time (%.1f %% of the total)", simulation->bubble,
             100 * simulation->bubble / (1 + simulation->bubble));
    if (has_formula(request)) text_add(out, "; by its formula %.4f", request->kind->bubble(&request->spec));
    text_add(out, "\nstash  ");
    for (int r = 0; r < schedule->num_ranks; r++) text_add(out, " %d", simulation->peak_stash[r]);
    text_add(out, "  %s at once, by rank\n",
             schedule->num_chunks > 1 ? "microbatches of a chunk" : "microbatches");
}

// Adds a line when `kind`, which requires several chunks, is shorter in the memory of `limit` stashes.
static void add_if_shorter(ScheduleSpec spec, const ScheduleKind *kind, int limit,
                           const Simulation *simulation, Text *out) {
    Schedule schedule;
    Simulation other;
    int most = 0;
    spec.kind = kind->name, spec.chunks = schedule_kind_chunks(kind);
    if (schedule_create(&schedule, &spec) != OK) return;
    schedule_simulate(&schedule, spec.costs, &other);
    for (int r = 0; r < spec.ranks; r++)
        if (other.peak_stash[r] > most) most = other.peak_stash[r];
    if (most <= spec.chunks * limit && other.total_us < simulation->total_us * (1 - 1e-9))
        text_add(out, "shorter by %.1f %% in the same stash: --schedule %s (%s)\n",
                 100 * (1 - other.total_us / simulation->total_us), kind->name, kind->summary);
    simulation_destroy(&other, &schedule);
    schedule_destroy(&schedule);
}

// A kind with a stash limit finds the shortest order that is known of one chunk per rank. Kinds that place the model
// in several chunks may have a shorter one in the same memory.
static void add_shorter_kinds(const ScheduleRequest *request, const Simulation *simulation, Text *out) {
    const ScheduleSpec *spec = &request->spec;
    if (!request->kind || !(request->kind->settings & SETTING_STASH_LIMIT)) return;
    int limit = spec->stash_limit ? spec->stash_limit : spec->ranks;
    for (int i = 0; i < num_schedule_kinds; i++)
        if (schedule_kind_chunks(schedule_kinds[i]) > 1)
            add_if_shorter(*spec, schedule_kinds[i], limit, simulation, out);
}

// Writes a picture to the file of --svg.
static Status write_drawing(const Options *options, const Text *svg) {
    Status status = file_write(options->svg, svg->data, svg->size);
    return status == OK ? OK : fail(status, "--svg %s", fail_message());
}

static int columns_of(const Options *options) { return or_default(options->width, terminal_columns()); }

static Status report(const ScheduleRequest *request, const Schedule *schedule, const Simulation *simulation) {
    Text text = {0}, title = {0}, svg = {0};
    Status status = OK;
    add_title(request, schedule, &title);
    text_add(&text, "%s\n\n", text_string(&title));
    schedule_print(schedule, &text);
    text_add(&text, "\n");
    timeline_text(schedule, simulation, columns_of(request->options), wants_colour(), &text);
    text_add(&text, "\n");
    add_bubble(request, schedule, simulation, &text);
    add_hidden(request, schedule, simulation, &text);
    add_shorter_kinds(request, simulation, &text);
    fputs(text_string(&text), stdout);
    if (request->options->svg) {
        timeline_svg(schedule, simulation, text_string(&title), &svg);
        status = write_drawing(request->options, &svg);
    }
    text_free(&svg);
    text_free(&title);
    text_free(&text);
    return status;
}

// Prints and draws the step of a recorded run (--trace), in place of a simulated schedule.
static Status report_run(const Options *options, const MeasuredStep *step) {
    Text text = {0}, title = {0}, svg = {0};
    Status status = OK;
    measured_step_print(step, &text);
    text_add(&text, "\n");
    measured_step_timeline(step, columns_of(options), wants_colour(), &text);
    fputs(text_string(&text), stdout);
    if (options->svg) {
        text_add(&title, "%s: step %" PRId64 " of %s", step->kind, step->iteration, options->trace);
        measured_step_svg(step, text_string(&title), &svg);
        status = write_drawing(options, &svg);
    }
    text_free(&svg);
    text_free(&title);
    text_free(&text);
    return status;
}

static Status run_trace(const Options *options) {
    MeasuredStep step;
    Status status = measured_step_read(&step, options->trace);
    if (status == OK) status = report_run(options, &step);
    measured_step_destroy(&step);
    return status;
}

// Writes the name of the first of the fields that the user has set as it is typed; "": none is set.
static const char *first_given(const Options *options, const char *const *fields, char name[64]) {
    *name = 0;
    for (; *fields && !*name; fields++)
        if (options_origin(options, *fields) != FROM_DEFAULT) snprintf(name, 64, "--%s", *fields);
    for (char *c = name; *c; c++)
        if (*c == '_') *c = '-';
    return name;
}

// Refuses options that a file of --from or --trace would override.
static Status check_words(const Options *options) {
    static const char *const in_trace[] = {"from",   "schedule_times", "forward_us", "backward_us",
                                           "hop_us", "exchange_us",    NULL};
    static const char *const in_both[] = {"schedule",
                                          "pipeline_model_parallel_size",
                                          "num_virtual_stages_per_pipeline_rank",
                                          "microbatches",
                                          "microbatch_group_size_per_virtual_pipeline_stage",
                                          "schedule_stash_limit",
                                          NULL};
    char name[64];
    if (options->positional.count)
        return fail(ERR_USAGE,
                    "schedule takes options only, not %s; --from FILE reads a schedule, --trace FILE what a "
                    "run did",
                    options->positional.items[0]);
    if (options->trace && *first_given(options, in_trace, name))
        return fail(ERR_USAGE, "--trace %s has the schedule and the times of a run: leave out %s",
                    options->trace, name);
    const char *path = options->trace ? options->trace : options->from;
    if (path && *first_given(options, in_both, name))
        return fail(ERR_USAGE, "--%s %s has a whole schedule with its ranks and microbatches: leave out %s",
                    options->trace ? "trace" : "from", path, name);
    return OK;
}

static bool has_pairs(const Schedule *schedule) {
    for (int r = 0; r < schedule->num_ranks; r++)
        for (int i = 0; i < schedule->programs[r].count; i++)
            if (schedule->programs[r].instrs[i].pairs) return true;
    return false;
}

// Refuses a time of travel that nothing hides, or that is longer than the computes of which it is a part.
static Status check_exchange(const ScheduleRequest *request, const Schedule *schedule) {
    const Options *options = request->options;
    const ScheduleCosts *costs = &request->spec.costs;
    double most = fmin(costs->forward_us, costs->backward_us) / 2;
    if (options_origin(options, "exchange_us") == FROM_DEFAULT) return OK;
    if (!has_pairs(schedule))
        return fail(
            ERR_USAGE,
            "--exchange-us is for schedules with pairs, such as --schedule %s, and %s has none: leave it out",
            schedule_kind_paired()->name, request->kind ? request->kind->name : options->from);
    if (options->exchange_us > most)
        return fail(
            ERR_USAGE,
            "--exchange-us %g: rows travel there and back in a forward, and in a backward, which take %g "
            "and %g: use at most %g",
            options->exchange_us, costs->forward_us, costs->backward_us, most);
    return OK;
}

// Attention takes as long as the experts' products. `weight_fraction`: the part of both that computes gradients of
// weights, for which no other rank waits.
static LayerExchange exchange_of(double us, double exchange_us, double weight_fraction) {
    double half_us = (us - 2 * exchange_us) / 2;
    return (LayerExchange){.before_us = half_us,
                           .rows_us = half_us,
                           .exchange_us = exchange_us,
                           .before_weight_us = weight_fraction * half_us,
                           .rows_weight_us = weight_fraction * half_us};
}

// Each stage counts as one layer: how much a pair hides depends on how long its parts are beside the travel, and more
// layers cut both alike.
static Status simulate(const ScheduleRequest *request, const Schedule *schedule, Simulation *simulation) {
    ScheduleCosts costs = request->spec.costs;
    double chunks = schedule->num_chunks, us = request->options->exchange_us / chunks;
    int stages = schedule->num_ranks * schedule->num_chunks;
    TRY(check_exchange(request, schedule));
    StageExchange *exchanges = calloc((size_t)stages, sizeof *exchanges);
    if (!exchanges) return fail(ERR_OS, "no memory for the times of %d stages", stages);
    for (int stage = 0; stage < stages; stage++)
        exchanges[stage] =
            (StageExchange){1, exchange_of(costs.forward_us / chunks, us, 0),
                            exchange_of(costs.backward_us / chunks, us, costs.weight_fraction)};
    if (us > 0) costs.stage_exchanges = exchanges;
    schedule_simulate(schedule, costs, simulation);
    free(exchanges);
    return OK;
}

Status cmd_schedule(Options *options) {
    tell_notes(options);
    ScheduleRequest request;
    Schedule schedule;
    Simulation simulation;
    TRY(check_words(options));
    if (options->trace) return run_trace(options);
    TRY(request_of(options, &request));
    if (options->from)
        TRY(read_schedule(options->from, &schedule));
    else
        TRY(schedule_create(&schedule, &request.spec));
    Status status = simulate(&request, &schedule, &simulation);
    if (status == OK) {
        status = report(&request, &schedule, &simulation);
        simulation_destroy(&simulation, &schedule);
    }
    schedule_destroy(&schedule);
    return status;
}
