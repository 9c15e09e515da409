// Prints where the time of a run went, as text and as JSON.
#include "formats/formats.h"
#include "report/goodput_report.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

double goodput_share(const Goodput *g, TimePart part) {
    return g->wall_us ? (double)g->us[part] / (double)g->wall_us : 0;
}

// ---- text ---------------------------------------------------------------------------------------

// Writes "12.34 s", "3 min 20 s", "5 h 12 min", "4 d 3 h".
static void duration(int64_t us, char text[32]) {
    int64_t s = (us + 500000) / 1000000;
    if (us < 99995000)
        snprintf(text, 32,
                 us < 9995     ? "%.2f ms"
                 : us < 999500 ? "%.0f ms"
                               : "%.2f s",
                 (double)us / (us < 999500 ? 1e3 : 1e6));
    else if (s < 3600)
        snprintf(text, 32, "%" PRId64 " min %02" PRId64 " s", s / 60, s % 60);
    else if (s < 86400)
        snprintf(text, 32, "%" PRId64 " h %02" PRId64 " min", s / 3600, s / 60 % 60);
    else
        snprintf(text, 32, "%" PRId64 " d %02" PRId64 " h", s / 86400, s / 3600 % 24);
}

static const char *plural(int64_t count) { return count == 1 ? "" : "s"; }

static void add_row(Text *out, const char *name, int64_t us, double share, const char *note) {
    char time[32];
    duration(us, time);
    text_add(out, "  %-38s %12s  %6.2f %%%s%s\n", name, time, 100 * share, *note ? "  " : "", note);
}

static void note_of(const Goodput *g, TimePart part, char note[64]) {
    *note = 0;
    if (part == TIME_RECOMPUTED && g->steps_again)
        snprintf(note, 64, "%" PRId64 " step%s", g->steps_again, plural(g->steps_again));
    if (part == TIME_SAVING && g->saves) snprintf(note, 64, "%" PRId64 " save%s", g->saves, plural(g->saves));
    if (part == TIME_LOADING && g->rewinds)
        snprintf(note, 64, "%" PRId64 " rewind%s among them", g->rewinds, plural(g->rewinds));
    if (part == TIME_EVALUATING && g->evaluations)
        snprintf(note, 64, "%" PRId64 " evaluation%s", g->evaluations, plural(g->evaluations));
}

static void add_parts(const Goodput *g, Text *out) {
    for (TimePart part = 0; part < NUM_TIME_PARTS; part++) {
        char note[64], name[64];
        note_of(g, part, note);
        snprintf(name, sizeof name, "%s%s", time_part_is_restart(part) ? "start: " : "",
                 time_part_words(part));
        if (g->us[part]) add_row(out, name, g->us[part], goodput_share(g, part), note);
    }
    add_row(out, "all", g->wall_us, 1, "");
}

static void add_grid(const RunStart *s, char text[48]) {
    if (s->tp)
        snprintf(text, 48, "t%d p%d d%d", s->tp, s->pp, s->dp);
    else
        snprintf(text, 48, s->ranks ? "%d ranks" : "?", s->ranks);
}

static void end_words(const RunStart *s, char text[48]) {
    if (!s->ended)
        snprintf(text, 48, "goes on");
    else if (*s->signal)
        snprintf(text, 48, "SIG%s", s->signal);
    else if (s->status)
        snprintf(text, 48, "status %d", s->status);
    else
        snprintf(text, 48, s->failed ? "killed" : "done");
}

static void add_iteration(Text *out, int64_t iteration) {
    if (iteration < 0)
        text_add(out, " %9s", "-");
    else
        text_add(out, " %9" PRId64, iteration);
}

static void add_start(const RunStart *s, int number, Text *out) {
    char grid[48], end[48], at[32];
    add_grid(s, grid);
    end_words(s, end);
    duration(s->at_us, at);
    text_add(out, "  %4d %12s  %-14s", number, at, grid);
    add_iteration(out, s->loaded);
    add_iteration(out, s->reached);
    text_add(out, "  %-10s", end);
    for (TimePart part = TIME_DETECTING; part <= TIME_FIRST_STEP; part++)
        text_add(out, " %7.3f", (double)s->us[part] / 1e6);
    text_add(out, "\n");
}

static void add_starts(const Goodput *g, Text *out) {
    enum { MOST = 40 };
    int first = g->num_starts > MOST ? g->num_starts - MOST : 0;
    if (!g->num_starts) return;
    text_add(out, "\n  %4s %12s  %-14s %9s %9s  %-10s %7s %7s %7s %7s %7s %7s\n", "", "at", "grid", "from",
             "to", "end", "detect", "stop", "down", "start", "load", "step");
    if (first) text_add(out, "  ... %d earlier start%s, all of them with --json\n", first, plural(first));
    for (int i = first; i < g->num_starts; i++) add_start(&g->starts[i], i + 1, out);
    text_add(
        out,
        "  seconds: until the end was noticed, all had ended, the next start, the ranks were ready, the\n"
        "  checkpoint was loaded, and what the first step took longer than those after it\n");
}

void goodput_print(const Goodput *g, const char *path, Text *out) {
    char wall[32];
    duration(g->wall_us, wall);
    text_add(out, "%s: %s, from %s to %s; %d start%s, %" PRId64 " failure%s, iteration %" PRId64 "\n", path,
             wall, g->first_at, g->last_at, g->num_starts, plural(g->num_starts), g->failures,
             plural(g->failures), g->iteration);
    text_add(out, "effective training time: %.2f %%\n\n", 100 * goodput_share(g, TIME_PRODUCTIVE));
    add_parts(g, out);
    add_starts(g, out);
    if (g->damaged)
        text_add(out, "\n%" PRId64 " line%s of the ledger cannot be read, first line %" PRId64 ": left out\n",
                 g->damaged, plural(g->damaged), g->first_damaged);
}

// ---- JSON ---------------------------------------------------------------------------------------

static void add_string(Text *out, const char *name, const char *value) {
    text_add(out, "\"%s\": ", name);
    json_add_string(out, value, strlen(value));
}

static void add_seconds(Text *out, const char *name, int64_t us) {
    text_add(out, "\"%s\": %" PRId64 ".%06" PRId64, name, us / 1000000, us % 1000000);
}

static void add_all_parts(Text *out, const int64_t us[NUM_TIME_PARTS]) {
    text_add(out, "\"seconds\": {");
    for (TimePart part = 0; part < NUM_TIME_PARTS; part++) {
        if (part) text_add(out, ", ");
        add_seconds(out, time_part_name(part), us[part]);
    }
    text_add(out, "}");
}

static void add_json_start(Text *out, const RunStart *s) {
    text_add(out, "  {");
    add_seconds(out, "at_s", s->at_us);
    text_add(out,
             ", \"ranks\": %d, \"tp\": %d, \"pp\": %d, \"dp\": %d, \"from\": %" PRId64 ", \"to\": %" PRId64,
             s->ranks, s->tp, s->pp, s->dp, s->loaded, s->reached);
    text_add(out, ", \"ended\": %s, \"failed\": %s, \"status\": %d, ", s->ended ? "true" : "false",
             s->failed ? "true" : "false", s->status);
    add_string(out, "signal", s->signal);
    text_add(out, ",\n   ");
    add_all_parts(out, s->us);
    text_add(out, "}");
}

void goodput_json(const Goodput *g, const char *path, Text *out) {
    text_add(out, "{");
    add_string(out, "ledger", path);
    text_add(out, ",\n ");
    add_string(out, "from", g->first_at);
    text_add(out, ", ");
    add_string(out, "to", g->last_at);
    text_add(out, ", ");
    add_seconds(out, "wall_s", g->wall_us);
    text_add(out, ",\n \"effective\": %.6f,\n ", goodput_share(g, TIME_PRODUCTIVE));
    add_all_parts(out, g->us);
    text_add(out,
             ",\n \"failures\": %" PRId64 ", \"survived_in_memory\": %" PRId64 ", \"iteration\": %" PRId64
             ", \"steps_again\": %" PRId64 ", \"saves\": %" PRId64 ", \"evaluations\": %" PRId64
             ", \"rewinds\": %" PRId64 ", \"damaged_lines\": %" PRId64 ",\n \"starts\": [",
             g->failures, g->survived, g->iteration, g->steps_again, g->saves, g->evaluations, g->rewinds,
             g->damaged);
    for (int i = 0; i < g->num_starts; i++) {
        text_add(out, i ? ",\n" : "\n");
        add_json_start(out, &g->starts[i]);
    }
    text_add(out, "]}\n");
}
