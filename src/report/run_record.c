// Reads the files of a run: run.json, metrics, ledger, options.
#include "report/run_record.h"
#include "base/file.h"
#include "base/ledger.h"
#include "formats/formats.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_STATE_BYTES = 1 << 16, RECENT_BYTES = 1 << 18, MAX_CONFIG_BYTES = 1 << 20 };

static bool is_folder(const char *path) {
    struct stat about;
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

static void *room_for(void *array, size_t count, size_t *capacity, size_t size) {
    if (count < *capacity) return array;
    *capacity = *capacity ? 2 * *capacity : 256;
    array = realloc(array, *capacity * size);
    CHECK(array, "no memory for %zu lines of metrics", *capacity);
    return array;
}

// ---- run.json ---------------------------------------------------------------------------------------------

static void take_string(const Json *file, const char *name, char *to, size_t size) {
    const char *text = json_string(json_member(file, name));
    Text visible = {0};
    if (text) text_add_visible(&visible, text, strlen(text));
    snprintf(to, size, "%s", text_string(&visible));
    text_free(&visible);
}

static int64_t take_int(const Json *file, const char *name) {
    int64_t value;
    return json_int(json_member(file, name), &value) ? value : -1;
}

static bool is_gone(const RunRecord *r) {
    char here[128] = "";
    gethostname(here, sizeof here - 1);
    if (strcmp(r->state, "running") != 0 || strcmp(r->host, here) != 0) return false;
    if (r->pid <= 0 || r->pid > INT_MAX) return false;
    return kill((pid_t)r->pid, 0) != 0 && errno == ESRCH;
}

static void take_state(RunRecord *r, const Json *file) {
    r->has_state = true;
#define TAKE(field) take_string(file, #field, r->field, sizeof r->field)
    TAKE(state), TAKE(reason), TAKE(host), TAKE(started), TAKE(updated), TAKE(ended);
    TAKE(metrics), TAKE(ledger), TAKE(beats), TAKE(trace), TAKE(save);
#undef TAKE
    r->status = take_int(file, "status");
    r->pid = take_int(file, "pid");
    r->ranks = take_int(file, "ranks");
    r->end = take_int(file, "train_iters");
    r->saved = take_int(file, "saved_iteration");
    r->blamed = take_int(file, "blamed_rank");
    r->iteration = take_int(file, "iteration");
    r->memory_bytes = take_int(file, "memory_bytes");
    r->gone = is_gone(r);
}

static bool is_state(const Json *file) {
    const char *format = json_string(json_member(file, "format"));
    return format && !strcmp(format, "trireme run");
}

// Returns whether the path is a run file; leaves no message.
static bool read_state(RunRecord *r, const char *path) {
    char *data;
    size_t size;
    Json *file = NULL;
    if (file_read(path, MAX_STATE_BYTES, &data, &size) != OK) return false;
    bool is = json_parse(&file, data, size, path) == OK && is_state(file);
    if (is) take_state(r, file);
    json_free(file);
    free(data);
    return is;
}

// ---- metrics ----------------------------------------------------------------------------------------------

static double number_of(const Json *line, const char *name) {
    double value;
    return json_double(json_member(line, name), &value) ? value : NAN;
}

static void add_event(RunRecord *r, int64_t iteration, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void add_event(RunRecord *r, int64_t iteration, const char *format, ...) {
    va_list args;
    r->events = room_for(r->events, r->num_events, &r->event_capacity, sizeof *r->events);
    RunEvent *event = &r->events[r->num_events++];
    event->iteration = iteration;
    va_start(args, format);
    vsnprintf(event->text, sizeof event->text, format, args);
    va_end(args);
}

// The run goes on after this iteration: later ones are trained again.
static void go_back(RunRecord *r, int64_t to) {
    while (r->num_steps && r->steps[r->num_steps - 1].iteration > to) r->num_steps--;
    while (r->num_validations && r->validations[r->num_validations - 1].iteration > to) r->num_validations--;
}

static void read_slow(RunRecord *r, const Json *line) {
    int64_t iteration = take_int(line, "iteration");
    r->slow = take_int(line, "rank");
    if (r->slow < 0) return;
    take_string(line, "host", r->slow_host, sizeof r->slow_host);
    r->slow_times = number_of(line, "seconds") / number_of(line, "usual_s");
    char part[64];
    take_string(line, "most_in", part, sizeof part);
    add_event(r, iteration, "rank %" PRId64 " on %s was slow: %.1f times as long, most in %s", r->slow,
              r->slow_host, r->slow_times, part);
}

static void read_event(RunRecord *r, const Json *line, const char *event) {
    int64_t from = take_int(line, "from"), to = take_int(line, "to");
    if (!strcmp(event, "resume")) {
        go_back(r, from);
        add_event(r, from, "went on from the checkpoint of iteration %" PRId64, from);
    }
    if (!strcmp(event, "rewind")) {
        go_back(r, to);
        add_event(r, to, "went back to iteration %" PRId64 " after a spike of the loss", to);
    }
    if (!strcmp(event, "slow_rank")) read_slow(r, line);
}

static void read_step(RunRecord *r, const Json *line, int64_t iteration) {
    go_back(r, iteration - 1);
    r->steps = room_for(r->steps, r->num_steps, &r->step_capacity, sizeof *r->steps);
    r->steps[r->num_steps++] = (StepRow){.iteration = iteration,
                                         .loss = number_of(line, "lm_loss"),
                                         .grad_norm = number_of(line, "grad_norm"),
                                         .lr = number_of(line, "learning_rate"),
                                         .step_s = number_of(line, "elapsed_ms") / 1e3,
                                         .tokens_per_s = number_of(line, "tokens_per_s")};
}

static void read_validation(RunRecord *r, const Json *line, int64_t iteration) {
    r->validations =
        room_for(r->validations, r->num_validations, &r->validation_capacity, sizeof *r->validations);
    r->validations[r->num_validations++] = (ValidationRow){iteration, number_of(line, "validation_loss")};
}

// Lines that cannot be read are left out.
static Status read_line(void *self, int64_t number, const char *text, size_t size) {
    RunRecord *r = self;
    Json *line;
    (void)number;
    if (json_parse(&line, text, size, "metrics") != OK) return OK;
    const char *event = json_string(json_member(line, "event"));
    int64_t iteration = take_int(line, "iteration");
    if (event)
        read_event(r, line, event);
    else if (iteration >= 0 && json_member(line, "validation_loss"))
        read_validation(r, line, iteration);
    else if (iteration >= 0 && json_member(line, "lm_loss"))
        read_step(r, line, iteration);
    json_free(line);
    return OK;
}

// Of a long file only the end, from a whole line on.
static Status read_end(const char *path, int64_t most, Text *out) {
    int fd;
    int64_t size;
    TRY(file_open_regular(path, &fd, &size));
    int64_t from = size > most ? size - most : 0;
    char *data = malloc((size_t)(size - from) + 1);
    CHECK(data, "no memory for %lld bytes of %s", (long long)(size - from), path);
    Status status = file_read_at(fd, path, from, data, (size_t)(size - from));
    close(fd);
    char *line = from && status == OK ? memchr(data, '\n', (size_t)(size - from)) : data;
    if (status == OK && line) text_add_bytes(out, line, (size_t)(size - from - (line - data)));
    free(data);
    return status;
}

static Status read_metrics(RunRecord *r, const char *path, bool recent) {
    Text text = {0};
    Status status = read_end(path, recent ? RECENT_BYTES : INT64_MAX, &text);
    if (status == OK && text.size) ledger_lines(text.data, text.size, read_line, r);
    text_free(&text);
    if (r->num_steps && r->steps[r->num_steps - 1].iteration > r->iteration)
        r->iteration = r->steps[r->num_steps - 1].iteration;
    return status;
}

// ---- the rest -----------------------------------------------------------------------------------------------

static void read_ledger(RunRecord *r, const char *path) {
    r->has_ledger = goodput_read(&r->goodput, path) == OK;
    if (r->has_ledger && r->goodput.iteration > r->iteration) r->iteration = r->goodput.iteration;
}

// The options of the newest checkpoint in the folder.
static void read_config(RunRecord *r, const char *folder) {
    char **names, *data;
    int count;
    size_t size;
    if (folder_list(folder, &names, &count) != OK) return;
    for (int i = count - 1; i >= 0 && !r->config.size; i--) { // sorted: the newest is last
        Text path = {0};
        text_add(&path, "%s/%s/config.yaml", folder, names[i]);
        if (!strncmp(names[i], "step-", 5) && file_read(path.data, MAX_CONFIG_BYTES, &data, &size) == OK) {
            text_add_bytes(&r->config, data, size);
            free(data);
        }
        text_free(&path);
    }
    free(names);
}

static bool read_state_in(RunRecord *r, const char *folder, const char *name) {
    Text path = {0};
    text_add(&path, "%s/%s", folder, name);
    bool is = read_state(r, path.data);
    text_free(&path);
    return is;
}

static Status read_folder(RunRecord *r, const char *path, bool recent) {
    // A supervised run has its file in a folder of the supervisor. What was written last counts.
    static const char *const supervised = "supervise/run.json";
    if (read_state_in(r, path, supervised)) {
        char updated[sizeof r->updated];
        memcpy(updated, r->updated, sizeof updated);
        if (read_state_in(r, path, "run.json") && strcmp(updated, r->updated) > 0)
            read_state_in(r, path, supervised);
    } else {
        read_state_in(r, path, "run.json");
    }
    if (!recent) read_config(r, path);
    if (!recent) read_ledger(r, path);
    if (r->has_state || r->has_ledger) return OK;
    return fail(ERR_NO_INPUT, "%s: there is no run.json and no ledger of a run in this folder", path);
}

static Status read_path(RunRecord *r, const char *path, bool recent) {
    if (is_folder(path)) return read_folder(r, path, recent);
    if (read_state(r, path)) {
        Text folder = {0};
        text_add(&folder, "%.*s", strrchr(path, '/') ? (int)(strrchr(path, '/') - path) : 1,
                 strrchr(path, '/') ? path : ".");
        if (!recent) read_config(r, folder.data);
        text_free(&folder);
        return OK;
    }
    TRY(read_metrics(r, path, recent));
    if (r->num_steps || r->num_validations) return OK;
    read_ledger(r, path);
    if (r->has_ledger) return OK;
    return fail(ERR_NO_INPUT, "%s: this is no run: no --save folder, run.json, metrics or ledger", path);
}

Status run_record_read(RunRecord *r, const char *path, bool recent) {
    *r =
        (RunRecord){.name = path, .status = -1, .pid = -1, .ranks = -1, .end = -1, .saved = -1, .blamed = -1};
    r->slow = r->iteration = r->memory_bytes = -1;
    TRY(read_path(r, path, recent));
    if (*r->metrics && !r->num_steps) read_metrics(r, r->metrics, recent);
    if (!recent && *r->ledger && !r->has_ledger) read_ledger(r, r->ledger);
    return fail(OK, "%s", "");
}

void run_record_free(RunRecord *r) {
    free(r->steps);
    free(r->validations);
    free(r->events);
    if (r->has_ledger) goodput_free(&r->goodput);
    text_free(&r->config);
    *r = (RunRecord){0};
}
