// Draws what a run does now, from its files and the heartbeats of its ranks.
#include "report/watch.h"
#include "base/process.h"
#include "base/screen.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    Beat beat;
    double since_s;
    int waited_for; // ranks that wait for this one
    char state;     // of its process, as in /proc; 0: it is not there
} WatchedRank;

typedef struct {
    WatchedRank *ranks; // those whose heartbeats are seen
    int count, size;    // seen, and of the run
} WatchedRanks;

static void add_duration(Text *out, double s) {
    if (s < 100)
        text_add(out, "%.2f s", s);
    else if (s < 6000)
        text_add(out, "%.0f min %02.0f s", floor(s / 60), fmod(s, 60));
    else
        text_add(out, "%.0f h %02.0f min", floor(s / 3600), floor(fmod(s, 3600) / 60));
}

// ---- the state --------------------------------------------------------------------------------------------

static void add_state(const RunRecord *r, Text *out) {
    text_add(out, "%s: ", r->name);
    if (!r->has_state) {
        text_add(out, "no run.json says how it goes\n");
        return;
    }
    if (r->gone)
        text_add(out, "DEAD: run.json says that it runs, but its process %" PRId64 " is not there any more\n",
                 r->pid);
    else if (!strcmp(r->state, "running"))
        text_add(out, "running on %s, process %" PRId64 ", since %s\n", r->host, r->pid, r->started);
    else if (!strcmp(r->state, "done"))
        text_add(out, "done at %s: all iterations are trained\n", r->ended);
    else
        text_add(out, "%s at %s, status %" PRId64 ": %s\n", r->state, r->ended, r->status, r->reason);
    if (r->blamed >= 0) text_add(out, "rank %" PRId64 " was the cause\n", r->blamed);
}

// ---- the numbers ------------------------------------------------------------------------------------------

static void add_curve(const RunRecord *r, int columns, char text[256]) {
    enum { MOST = 64 };
    double values[MOST];
    Text curve = {0};
    size_t points = columns < 60 ? 6 : columns < 120 ? 16 : 32, n = r->num_steps;
    if (points > n) points = n;
    for (size_t i = 0; i < points; i++) {
        size_t from = i * n / points, to = (i + 1) * n / points;
        values[i] = 0;
        for (size_t k = from; k < to; k++) values[i] += r->steps[k].loss / (double)(to - from);
    }
    screen_curve(values, (int)points, screen_knows_unicode(), &curve);
    snprintf(text, 256, "%s", text_string(&curve));
    text_free(&curve);
}

static double mean_step_s(const RunRecord *r) {
    double sum = 0;
    size_t first = r->num_steps > 100 ? r->num_steps - 100 : 0;
    for (size_t i = first; i < r->num_steps; i++) sum += r->steps[i].step_s;
    return sum / (double)(r->num_steps - first);
}

static void add_numbers(const RunRecord *r, int64_t step, int columns, Text *out) {
    enum { FIELDS = 8 };
    char texts[FIELDS][256] = {{0}};
    const char *fields[FIELDS];
    for (int i = 0; i < FIELDS; i++) fields[i] = texts[i];
    if (step >= 0 && r->end >= 0)
        snprintf(texts[0], 256, "step %" PRId64 "/%" PRId64, step, r->end);
    else if (step >= 0)
        snprintf(texts[0], 256, "step %" PRId64, step);
    if (r->num_steps) {
        const StepRow *last = &r->steps[r->num_steps - 1];
        snprintf(texts[1], 256, "loss %.4f", last->loss);
        add_curve(r, columns, texts[2]);
        snprintf(texts[3], 256, "%.0f tokens/s", last->tokens_per_s);
        double left = mean_step_s(r) * (double)(r->end - r->iteration);
        bool runs = !strcmp(r->state, "running") && !r->gone;
        if (runs && left > 0)
            snprintf(texts[4], 256, "%.0f:%02.0f:%02.0f left", floor(left / 3600),
                     floor(fmod(left, 3600) / 60), floor(fmod(left, 60)));
    }
    if (r->slow >= 0)
        snprintf(texts[5], 256, "SLOW: rank %" PRId64 " on %s, %.1f times as long", r->slow, r->slow_host,
                 r->slow_times);
    if (r->num_validations)
        snprintf(texts[6], 256, "validation %.4f", r->validations[r->num_validations - 1].loss);
    if (r->saved >= 0) snprintf(texts[7], 256, "saved at %" PRId64, r->saved);
    screen_flow(fields, FIELDS, columns, 6, out);
}

// `step_is_known`: by more than run.json, which is written at saves.
static void add_unknown(const RunRecord *r, bool step_is_known, Text *out) {
    if (!r->has_state || *r->metrics || r->num_steps) return;
    text_add(out, "loss%s are not known without --metrics FILE\n",
             step_is_known ? " and speed" : ", speed and the step between saves");
}

// ---- the ranks --------------------------------------------------------------------------------------------

static bool is_gone(char state) { return !state || state == 'Z' || state == 'X'; }

// A process that is stopped or gone waits for nobody, whatever it has said last.
static bool waits(const WatchedRank *rank) {
    return *rank->beat.wait && rank->state != 'T' && !is_gone(rank->state);
}

// Who computes comes first, then who has done the same for longest.
static int by_interest(const void *a, const void *b) {
    const WatchedRank *x = a, *y = b;
    if (waits(x) != waits(y)) return waits(x) - waits(y);
    if (x->waited_for != y->waited_for) return y->waited_for - x->waited_for;
    return (y->since_s > x->since_s) - (y->since_s < x->since_s);
}

static WatchedRanks read_ranks(const RunRecord *r, const BeatPage *page) {
    int size = r->ranks > 0 && r->ranks <= BEAT_MAX_SLOTS ? (int)r->ranks : 1;
    WatchedRanks w = {.ranks = calloc((size_t)size, sizeof *w.ranks), .size = size};
    int *waited_for = calloc((size_t)size, sizeof *waited_for);
    CHECK(w.ranks && waited_for, "no memory for %d ranks", size);
    for (int i = 0; i < size; i++)
        if (beat_read(page, i, &w.ranks[w.count].beat)) {
            WatchedRank *rank = &w.ranks[w.count++];
            rank->state = process_status(rank->beat.pid, NULL);
            rank->since_s = fmax(0, beat_since_s(&rank->beat));
            for (int k = 0; k < rank->beat.num_waits; k++)
                if (rank->beat.waits[k] < size) waited_for[rank->beat.waits[k]]++;
        }
    for (int i = 0; i < w.count; i++) w.ranks[i].waited_for = waited_for[w.ranks[i].beat.rank];
    free(waited_for);
    qsort(w.ranks, (size_t)w.count, sizeof *w.ranks, by_interest);
    return w;
}

// The step that the foremost rank takes; 0: none yet.
static int64_t foremost_step(const WatchedRanks *w) {
    int64_t step = 0;
    for (int i = 0; i < w->count; i++)
        if (w->ranks[i].beat.iteration > step) step = w->ranks[i].beat.iteration;
    return step;
}

static void add_what(const WatchedRank *rank, Text *out) {
    const Beat *b = &rank->beat;
    if (b->phase == BEAT_DONE) {
        text_add(out, "has left, status %d", b->status);
    } else if (is_gone(rank->state)) {
        text_add(out, "its process %d is gone", b->pid);
    } else if (rank->state == 'T') {
        text_add(out, "is stopped by a signal");
    } else if (waits(rank)) {
        text_add(out, "waits");
        for (int i = 0; i < b->num_waits; i++)
            text_add(out, "%s%d", i ? ", " : b->num_waits > 1 ? " for ranks " : " for rank ", b->waits[i]);
        text_add(out, " in %s", b->wait);
    } else {
        text_add(out, "%s", *b->doing ? b->doing : beat_phase_name(b->phase));
    }
}

static void add_rank(const WatchedRank *rank, Text *out) {
    Text what = {0}, since = {0};
    add_what(rank, &what);
    add_duration(&since, rank->since_s);
    text_add(out, "%5d %8" PRId64 "  %-10s %12s  %s\n", rank->beat.rank, rank->beat.iteration,
             beat_phase_name(rank->beat.phase), text_string(&since), text_string(&what));
    text_free(&what);
    text_free(&since);
}

// On a narrow screen: the rank, what it does, since when.
static void add_rank_narrow(const WatchedRank *rank, Text *out) {
    text_add(out, "%d ", rank->beat.rank);
    add_what(rank, out);
    text_add(out, " ");
    add_duration(out, rank->since_s);
    text_add(out, "\n");
}

static void add_sum(const WatchedRanks *w, Text *out) {
    int computing = 0, count = w->count, size = w->size;
    const WatchedRank *ranks = w->ranks, *most = NULL;
    for (int i = 0; i < count; i++) {
        computing += !waits(&ranks[i]) && ranks[i].beat.phase != BEAT_DONE;
        if (ranks[i].waited_for && (!most || ranks[i].waited_for > most->waited_for)) most = &ranks[i];
    }
    text_add(out, "%d rank%s at work, %d wait%s", computing, computing == 1 ? "" : "s", count - computing,
             count - computing == 1 ? "s" : "");
    if (most) text_add(out, ", %d of them for rank %d", most->waited_for, most->beat.rank);
    if (count < size)
        text_add(out, "; %d of %d ranks are on other machines or have not come", size - count, size);
    text_add(out, "\n");
}

static void add_ranks(const WatchedRanks *w, int columns, int most, Text *out) {
    add_sum(w, out);
    bool narrow = columns < 74;
    // What a rank does comes last, since it may be long.
    if (!narrow) text_add(out, "%5s %8s  %-10s %12s  %s\n", "rank", "step", "part", "since", "does");
    for (int i = 0; i < w->count && i < most; i++) (narrow ? add_rank_narrow : add_rank)(&w->ranks[i], out);
    if (w->count > most) text_add(out, "  ... %d more\n", w->count - most);
}

void watch_print(const RunRecord *r, const BeatPage *page, int columns, int most_ranks, Text *out) {
    bool runs = r->has_state && !strcmp(r->state, "running") && !r->gone;
    WatchedRanks w = {0};
    if (runs && page->header) w = read_ranks(r, page);
    int64_t step = foremost_step(&w);
    add_state(r, out);
    add_numbers(r, step > 0 ? step : r->iteration, columns, out);
    add_unknown(r, step > 0 || !runs, out);
    if (runs && page->header)
        add_ranks(&w, columns, most_ranks, out);
    else if (runs)
        text_add(out,
                 "what its ranks do now is seen on the machine of rank 0, of ranks that are threads, or with "
                 "`trireme supervise`\n");
    free(w.ranks);
}
