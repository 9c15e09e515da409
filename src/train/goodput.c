// Adds up the lines of a ledger: each stretch of time between two lines belongs to what the second one tells.
#include "train/goodput.h"
#include "base/file.h"
#include "base/ledger.h"
#include "formats/formats.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static const struct {
    const char *name, *words;
} parts[NUM_TIME_PARTS] = {
    [TIME_PRODUCTIVE] = {"productive", "training, for the first time"},
    [TIME_RECOMPUTED] = {"recomputed", "steps trained again"},
    [TIME_DETECTING] = {"detect", "noticing the end"},
    [TIME_STOPPING] = {"stop", "ending what is left"},
    [TIME_DOWN] = {"down", "nothing runs"},
    [TIME_STARTING] = {"start", "starting"},
    [TIME_LOADING] = {"load", "loading"},
    [TIME_FIRST_STEP] = {"first_step", "first step, beyond a usual one"},
    [TIME_SAVING] = {"save_stall", "waiting for saves"},
    [TIME_EVALUATING] = {"evaluation", "evaluation"},
    [TIME_WAITING] = {"waiting", "waiting for batches"},
    [TIME_CHECKING] = {"checks", "comparing replicas, audits, checksums"},
    [TIME_UNKNOWN] = {"unknown", "unknown"},
};

bool time_part_is_restart(TimePart part) { return part >= TIME_DETECTING && part <= TIME_FIRST_STEP; }
const char *time_part_name(TimePart part) { return parts[part].name; }
const char *time_part_words(TimePart part) { return parts[part].words; }

enum { US_PER_S = 1000000 };
static const int64_t most_us = 1000000000000000000; // of all lines

// The state between two lines.
typedef struct {
    Goodput *sum;
    int capacity; // of the starts
    char boot[16];
    int64_t mono_us, at_us;         // the latest so far on this boot; of the line before
    int64_t left_us;                // time that no line has told of yet
    int64_t before[NUM_TIME_PARTS]; // detecting, stopping, down of the next start
    bool running;                   // a start has not ended yet
    bool announced;                 // a supervisor has told of a start that has not opened yet
    bool noticed;                   // that an end was detected
    int64_t first_us; // the first step's part of TIME_FIRST_STEP, until the next steps say what is usual
    bool first_again; // that step was trained before
} Account;

static RunStart *current(const Account *a) {
    return a->sum->num_starts ? &a->sum->starts[a->sum->num_starts - 1] : NULL;
}

// ---- attributing time ---------------------------------------------------------------------------

// Gives time to a part, which may be negative where it is taken back.
static void give(Account *a, TimePart part, int64_t us) {
    RunStart *start = current(a);
    a->sum->us[part] += us;
    bool between = part >= TIME_DETECTING && part <= TIME_DOWN;
    if (between || !start)
        a->before[part] += us;
    else
        start->us[part] += us;
}

// Gives at most `us` of what is left.
static int64_t claim(Account *a, TimePart part, int64_t us) {
    int64_t some = us < a->left_us ? us : a->left_us;
    give(a, part, some);
    a->left_us -= some;
    return some;
}

static void claim_rest(Account *a, TimePart part) { claim(a, part, a->left_us); }

// ---- members of a line --------------------------------------------------------------------------

static int64_t us_of(const Json *line, const char *name) {
    double seconds;
    if (!json_double(json_member(line, name), &seconds) || !(seconds > 0)) return 0;
    return seconds < 1e12 ? llround(1e6 * seconds) : most_us;
}

static int small_of(const Json *line, const char *name) {
    int64_t value;
    return json_int(json_member(line, name), &value) && value > 0 && value <= INT32_MAX ? (int)value : 0;
}

static int64_t iteration_of(const Json *line, const char *name) {
    int64_t value;
    return json_int(json_member(line, name), &value) && value >= 0 && value <= INT64_C(1000000000000) ? value
                                                                                                      : -1;
}

// ---- starts -------------------------------------------------------------------------------------

static void end_start(Account *a, int status, const char *signal, bool failed) {
    RunStart *start = current(a);
    if (!a->running || !start) return;
    a->running = false;
    start->ended = true;
    start->failed = failed;
    start->status = status;
    snprintf(start->signal, sizeof start->signal, "%s", signal ? signal : "");
    a->sum->failures += failed;
}

// A start before it that has not told of its end was killed.
static void new_start(Account *a) {
    Goodput *g = a->sum;
    end_start(a, 0, NULL, true);
    if (g->num_starts == a->capacity) {
        a->capacity = a->capacity ? 2 * a->capacity : 16;
        g->starts = realloc(g->starts, (size_t)a->capacity * sizeof *g->starts);
        CHECK(g->starts, "no memory for %d starts of a run", a->capacity);
    }
    RunStart *start = &g->starts[g->num_starts++];
    *start = (RunStart){.at_us = g->wall_us, .loaded = -1, .reached = -1};
    memcpy(start->us, a->before, sizeof start->us);
    memset(a->before, 0, sizeof a->before);
    a->running = true;
    a->noticed = false;
    a->first_us = 0;
}

static void take_grid(RunStart *start, const Json *line) {
    start->ranks = small_of(line, "ranks");
    start->tp = small_of(line, "tp"), start->pp = small_of(line, "pp"), start->dp = small_of(line, "dp");
}

// ---- events of a run ----------------------------------------------------------------------------

static void on_opening(Account *a, const Json *line) {
    int64_t starting = us_of(line, "seconds");
    if (starting > a->left_us || a->announced) starting = a->left_us;
    a->left_us -= starting;
    claim_rest(a, TIME_DOWN);
    a->left_us = starting;
    if (!a->announced) new_start(a);
    a->announced = false;
    claim_rest(a, TIME_STARTING);
    take_grid(current(a), line);
}

static void on_ready(Account *a, const Json *line) {
    (void)line;
    claim_rest(a, TIME_STARTING);
}

static void on_loaded(Account *a, const Json *line) {
    claim_rest(a, TIME_LOADING);
    if (!current(a)) return;
    current(a)->loaded = current(a)->reached = iteration_of(line, "iteration");
    const char *from = json_string(json_member(line, "from"));
    bool after_failure = a->sum->num_starts > 1 && current(a)[-1].failed;
    if (after_failure && from && !strcmp(from, "memory")) a->sum->survived++;
}

static void reach(Account *a, int64_t iteration) {
    if (current(a)) current(a)->reached = iteration;
    if (iteration > a->sum->iteration) a->sum->iteration = iteration;
}

static void on_first_step(Account *a, const Json *line) {
    int64_t iteration = iteration_of(line, "iteration");
    claim(a, TIME_WAITING, us_of(line, "waiting_s"));
    a->first_us = claim(a, TIME_FIRST_STEP, us_of(line, "seconds"));
    a->first_again = iteration <= a->sum->iteration;
    a->sum->steps_again += iteration > 0 && a->first_again;
    claim_rest(a, TIME_UNKNOWN);
    reach(a, iteration);
}

// The first step takes longer than others. What others take of it is training.
static void divide_first_step(Account *a, int64_t usual_us) {
    int64_t usual = usual_us < a->first_us ? usual_us : a->first_us;
    give(a, TIME_FIRST_STEP, -usual);
    give(a, a->first_again ? TIME_RECOMPUTED : TIME_PRODUCTIVE, usual);
    a->first_us = 0;
}

static void on_steps(Account *a, const Json *line) {
    int64_t from = iteration_of(line, "from"), to = iteration_of(line, "to"), steps = to - from;
    int64_t us = us_of(line, "seconds");
    if (from < 0 || steps < 0) steps = 0;
    int64_t again = a->sum->iteration - from;
    again = steps == 0 || again < 0 ? 0 : again > steps ? steps : again;
    if (steps) {
        if (us > a->left_us) us = a->left_us;
        claim(a, TIME_RECOMPUTED, (int64_t)((double)us * (double)again / (double)steps));
        claim(a, TIME_PRODUCTIVE, us - (int64_t)((double)us * (double)again / (double)steps));
        divide_first_step(a, us / steps);
    }
    a->sum->steps_again += again;
    claim(a, TIME_WAITING, us_of(line, "waiting_s"));
    claim(a, TIME_CHECKING, us_of(line, "checks_s"));
    claim(a, TIME_SAVING, us_of(line, "saving_s"));
    claim_rest(a, TIME_UNKNOWN);
    if (steps) reach(a, to);
}

static void on_save(Account *a, const Json *line) {
    a->sum->saves++;
    a->sum->save_us += claim(a, TIME_SAVING, us_of(line, "stall_s"));
    claim_rest(a, TIME_UNKNOWN);
}

static void on_evaluation(Account *a, const Json *line) {
    a->sum->evaluations++;
    claim(a, TIME_EVALUATING, us_of(line, "seconds"));
    claim(a, TIME_SAVING, us_of(line, "saving_s"));
    claim_rest(a, TIME_UNKNOWN);
}

static void on_rewind(Account *a, const Json *line) {
    a->sum->rewinds++;
    claim(a, TIME_LOADING, us_of(line, "seconds"));
    claim_rest(a, TIME_UNKNOWN);
    if (current(a)) current(a)->reached = iteration_of(line, "to");
}

static bool is_failure(int status) { return status != OK && status != INTERRUPTED; }

static void on_end(Account *a, const Json *line) {
    int status = small_of(line, "status");
    claim_rest(a, TIME_UNKNOWN);
    end_start(a, status, json_string(json_member(line, "signal")), is_failure(status));
}

// ---- events of a supervisor ---------------------------------------------------------------------

static void on_started(Account *a, const Json *line) {
    claim_rest(a, TIME_DOWN);
    new_start(a);
    a->announced = true;
    take_grid(current(a), line);
}

static void on_detected(Account *a, const Json *line) {
    (void)line;
    claim_rest(a, a->running ? TIME_DETECTING : TIME_STOPPING);
    a->noticed = true;
}

static void on_ended(Account *a, const Json *line) {
    int status = small_of(line, "status");
    const char *signal = json_string(json_member(line, "signal"));
    claim_rest(a, a->running && !a->noticed ? TIME_DETECTING : TIME_STOPPING);
    end_start(a, status, signal, signal || is_failure(status));
    a->announced = false;
}

static void on_decided(Account *a, const Json *line) {
    (void)line;
    claim_rest(a, TIME_DOWN);
}

static const struct {
    const char *event;
    void (*take)(Account *account, const Json *line);
} events[] = {
    {"opening", on_opening},       {"ready", on_ready},       {"loaded", on_loaded},
    {"first_step", on_first_step}, {"steps", on_steps},       {"save", on_save},
    {"evaluation", on_evaluation}, {"rewind", on_rewind},     {"end", on_end},
    {"started", on_started},       {"detected", on_detected}, {"stopping", on_detected},
    {"ended", on_ended},           {"decided", on_decided},   {"done", on_decided},
};

// ---- lines --------------------------------------------------------------------------------------

// Reads "2026-11-24T06:55:50.123Z".
static bool parse_at(const char *text, int64_t *us) {
    struct tm utc = {0};
    int ms = 0;
    if (!text || strlen(text) != 24) return false;
    const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &utc);
    if (!rest || sscanf(rest, ".%3dZ", &ms) != 1 || ms < 0) return false;
    *us = (int64_t)timegm(&utc) * US_PER_S + ms * 1000;
    return *us >= 0;
}

// Lines of one boot are as far apart as their monotonic times, others as their clocks: an hour that a clock is set back
// is no time.
static void pass_time(Account *a, const char *boot, int64_t mono_us, int64_t at_us) {
    Goodput *g = a->sum;
    bool same = !strcmp(boot, a->boot);
    int64_t delta = !g->lines ? 0 : same ? mono_us - a->mono_us : at_us - a->at_us;
    if (delta < 0) delta = 0;
    if (delta > most_us - g->wall_us) delta = most_us - g->wall_us;
    g->wall_us += delta;
    a->left_us += delta;
    if (!same || mono_us > a->mono_us) a->mono_us = mono_us;
    a->at_us = at_us;
    snprintf(a->boot, sizeof a->boot, "%s", boot);
}

static bool take_object(Account *a, const Json *line) {
    const char *event = json_string(json_member(line, "event")), *at = json_string(json_member(line, "at"));
    const char *boot = json_string(json_member(line, "boot"));
    double mono_s;
    int64_t at_us;
    if (!event || !parse_at(at, &at_us) || !json_double(json_member(line, "mono_s"), &mono_s)) return false;
    if (!(mono_s >= 0 && mono_s < 1e12) || (boot && strlen(boot) >= sizeof a->boot)) return false;
    pass_time(a, boot ? boot : "", llround(1e6 * mono_s), at_us);
    Goodput *g = a->sum;
    snprintf(g->lines++ ? g->last_at : g->first_at, sizeof g->first_at, "%s", at);
    if (g->lines == 1) memcpy(g->last_at, g->first_at, sizeof g->last_at);
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (!strcmp(event, events[i].event)) events[i].take(a, line);
    return true;
}

static Status take_line(void *self, int64_t number, const char *text, size_t size) {
    Account *a = self;
    Json *line;
    bool taken = false;
    if (json_parse(&line, text, size, "a line of the ledger") == OK) {
        taken = take_object(a, line);
        json_free(line);
    }
    if (!taken && !a->sum->damaged++) a->sum->first_damaged = number;
    return OK;
}

Status goodput_of(Goodput *g, const char *text, size_t size, const char *path) {
    *g = (Goodput){0};
    Account account = {.sum = g};
    TRY(ledger_lines(text, size, take_line, &account));
    claim_rest(&account, TIME_UNKNOWN);
    for (TimePart part = 0; g->num_starts && part < NUM_TIME_PARTS; part++)
        current(&account)->us[part] += account.before[part];
    if (g->lines) return OK;
    int64_t damaged = g->damaged, first = g->first_damaged;
    goodput_free(g);
    if (!damaged) return fail(ERR_DATA, "%s: the ledger has no lines yet", path);
    return fail(ERR_DATA, "%s: line %lld, as all others, is no line of a ledger", path, (long long)first);
}

static Status find_ledger(const char *path, char file[4096]) {
    static const char *const names[] = {"supervise/ledger.jsonl", "ledger.jsonl"};
    struct stat st;
    snprintf(file, 4096, "%s", path);
    if (stat(path, &st) || !S_ISDIR(st.st_mode)) return OK;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (snprintf(file, 4096, "%s/%s", path, names[i]) < 4096 && file_exists(file)) return OK;
    }
    return fail(ERR_NO_INPUT,
                "%s: the folder has neither supervise/ledger.jsonl nor ledger.jsonl; `trireme supervise` and "
                "`trireme train --ledger FILE` write one",
                path);
}

Status goodput_read(Goodput *g, const char *path) {
    char file[4096], *data;
    size_t size;
    *g = (Goodput){0};
    TRY(find_ledger(path, file));
    TRY(file_read(file, (size_t)1 << 31, &data, &size));
    Status status = goodput_of(g, data, size, file);
    free(data);
    return status;
}

void goodput_free(Goodput *g) {
    free(g->starts);
    *g = (Goodput){0};
}
