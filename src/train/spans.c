// Writes what the time of a run goes into to the ledger, as it passes.
#include "train/spans.h"
#include "base/ledger.h"
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static Status append(Spans *s, Text *line) {
    text_add(line, "}");
    Status status = ledger_append(s->path, line);
    text_free(line);
    s->line_s = clock_s();
    return status;
}

// A line that cannot be written does not end a run. The message of an earlier failure is kept.
static void write_line(Spans *s, Text *line) {
    char why[sizeof rank_current()->message];
    snprintf(why, sizeof why, "%s", fail_message());
    if (append(s, line) != OK && !s->warned) {
        fprintf(stderr, "WARNING: the ledger has gaps from here on: %s\n", fail_message());
        s->warned = true;
    }
    fail(OK, "%s", why);
}

Status spans_open(Spans *s, const Options *options, double start_s) {
    const RunShape *shape = &options->shape;
    const char *path = options->ledger ? options->ledger : getenv("TRIREME_LEDGER");
    *s = (Spans){.path = path && *path ? path : NULL, .start_s = start_s, .opened_s = clock_s()};
    if (!s->path) return OK;
    Text line = {0};
    text_add(&line,
             "{\"event\": \"opening\", \"seconds\": %.6f, \"ranks\": %d, \"tp\": %d, \"pp\": %d, \"dp\": %d, "
             "\"train_iters\": %" PRId64,
             s->opened_s - start_s, shape->world_size, shape->tp, shape->pp, shape->dp, shape->train_iters);
    Status status = append(s, &line);
    if (status == OK) return OK;
    s->path = NULL;
    return fail(status, "%s %s", options->ledger ? "--ledger" : "TRIREME_LEDGER", fail_message());
}

void spans_ready(Spans *s) {
    if (!s->path) return;
    Text line = {0};
    text_add(&line, "{\"event\": \"ready\", \"seconds\": %.6f", clock_s() - s->start_s);
    write_line(s, &line);
}

void spans_loaded(Spans *s, int64_t iteration, const char *from) {
    if (!s->path) return;
    Text line = {0};
    text_add(&line, "{\"event\": \"loaded\", \"iteration\": %" PRId64 ", \"from\": \"%s\", \"seconds\": %.6f",
             iteration, from, clock_s() - s->line_s);
    s->from = s->to = iteration;
    write_line(s, &line);
}

// ---- steps --------------------------------------------------------------------------------------

static double seconds_between_lines(const Spans *s) {
    return fmin(10, fmax(1, (clock_s() - s->opened_s) / 1000));
}

static void forget_steps(Spans *s) {
    s->from = s->to;
    s->training_s = s->waiting_s = s->checks_s = s->saving_s = 0;
}

static void add_seconds(Text *line, const char *name, double seconds) {
    if (seconds >= 1e-6) text_add(line, ", \"%s\": %.6f", name, seconds);
}

void spans_flush(Spans *s) {
    if (!s->path || (s->from == s->to && s->waiting_s + s->checks_s + s->saving_s < 1e-6)) return;
    Text line = {0};
    text_add(&line, "{\"event\": \"steps\", \"from\": %" PRId64 ", \"to\": %" PRId64 ", \"seconds\": %.6f",
             s->from, s->to, s->training_s);
    add_seconds(&line, "waiting_s", s->waiting_s);
    add_seconds(&line, "checks_s", s->checks_s);
    add_seconds(&line, "saving_s", s->saving_s);
    forget_steps(s);
    write_line(s, &line);
}

static void first_step(Spans *s, double seconds) {
    Text line = {0};
    s->stepped = true;
    text_add(&line, "{\"event\": \"first_step\", \"iteration\": %" PRId64 ", \"seconds\": %.6f", s->to,
             seconds);
    add_seconds(&line, "waiting_s", s->waiting_s);
    forget_steps(s);
    write_line(s, &line);
}

// A run may go back to an earlier step: the steps of a line follow each other.
void spans_step(Spans *s, int64_t iteration, double seconds) {
    if (!s->path) return;
    if (iteration != s->to + 1) {
        spans_flush(s);
        s->from = iteration - 1;
    }
    s->to = iteration;
    if (!s->stepped) {
        first_step(s, seconds);
        return;
    }
    s->training_s += seconds;
    if (clock_s() - s->line_s >= seconds_between_lines(s)) spans_flush(s);
}

void spans_wait(Spans *s, double seconds) { s->waiting_s += seconds; }

void spans_check(Spans *s, double seconds) { s->checks_s += seconds; }

void spans_saving(Spans *s, double seconds) { s->saving_s += seconds; }

// Log lines of short steps are many.
void spans_log_line(Spans *s) {
    if (s->path && clock_s() - s->line_s >= 0.1 * seconds_between_lines(s)) spans_flush(s);
}

// ---- what has a line of its own -----------------------------------------------------------------

void spans_save(Spans *s, int64_t iteration, double stall_s, const char *to) {
    if (!s->path) return;
    Text line = {0};
    text_add(&line, "{\"event\": \"save\", \"iteration\": %" PRId64 ", \"stall_s\": %.6f, \"to\": \"%s\"",
             iteration, stall_s, to);
    write_line(s, &line);
}

// The evaluation's own batches are part of it; a save that went on meanwhile is not.
void spans_evaluation(Spans *s, int64_t iteration, double seconds) {
    if (!s->path) return;
    Text line = {0};
    text_add(&line, "{\"event\": \"evaluation\", \"iteration\": %" PRId64 ", \"seconds\": %.6f", iteration,
             seconds - s->saving_s);
    add_seconds(&line, "saving_s", s->saving_s);
    forget_steps(s);
    write_line(s, &line);
}

void spans_rewind(Spans *s, int64_t from, int64_t to, double seconds) {
    if (!s->path) return;
    Text line = {0};
    text_add(&line, "{\"event\": \"rewind\", \"from\": %" PRId64 ", \"to\": %" PRId64 ", \"seconds\": %.6f",
             from, to, seconds);
    s->from = s->to = to;
    write_line(s, &line);
}

void spans_end(Spans *s, int64_t iteration, Status status, int signal) {
    if (!s->path) return;
    spans_flush(s);
    Text line = {0};
    text_add(&line, "{\"event\": \"end\", \"iteration\": %" PRId64 ", \"status\": %d", iteration,
             (int)status);
    if (signal) text_add(&line, ", \"signal\": \"%s\"", sigabbrev_np(signal));
    write_line(s, &line);
    s->path = NULL;
}
