// Decides after each end of a run whether it starts again: a table of exit statuses and signals, and a few rules.
#include "supervise/supervise.h"
#include <math.h>
#include <signal.h>
#include <string.h>

// What an end says about another try.
typedef enum {
    AGAIN, // it came from outside: another try may well go on; ends after many without progress
    ONCE,  // the run's own doing: not twice at the same iteration
    NEVER, // another try would end the same way
} Class;

enum { MOST_WITHOUT_PROGRESS = 10 };
#define MOST_WAIT_S 60.0

static const struct {
    int status;
    Class class;
    const char *why;
} statuses[] = {
    {ERR_USAGE, NEVER, "the command line is wrong: correct it"},
    {ERR_CONFIG, NEVER, "the configuration is wrong: correct it"},
    {ERR_DATA, NEVER, "an input is damaged: repair or replace it"},
    {ERR_NO_INPUT, NEVER, "a file is missing: provide it"},
    {ERR_PERMISSION, NEVER, "a file may not be read or written: give the permission"},
    {ERR_CREATE, NEVER, "a file cannot be written: make room on the disk"},
    {ERR_NUMERIC, NEVER, "the loss is not finite, and would be again: change the run"},
    {126, NEVER, "the command cannot be executed"},
    {127, NEVER, "the command does not exist"},
    {ERR_UNAVAILABLE, AGAIN, "something was not available"},
    {ERR_OS, AGAIN, "the operating system failed, or a rank was killed"},
    {ERR_HANG, AGAIN, "ranks waited for too long"},
    {ERR_IO, ONCE, "a file could not be read or written"},
    {ERR_REPLICAS, ONCE, "replicas differ: memory or a processor is faulty"},
    {ERR_BUG, ONCE, "a bug"},
};

static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS, SIGTRAP};

const char *end_kind_name(EndKind kind) {
    static const char *const names[] = {"done", "early", "error", "killed", "hang"};
    return names[kind];
}

static Class class_of(const StartEnding *e, const char **why) {
    if (e->kind == END_HANG) {
        *why = e->frozen ? "a process was stopped" : "a rank made no progress";
        return e->frozen ? AGAIN : ONCE;
    }
    if (e->kind == END_SIGNAL) {
        *why = "it was killed";
        for (size_t i = 0; i < sizeof crashes / sizeof *crashes; i++)
            if (e->signal == crashes[i]) {
                *why = "it crashed";
                return ONCE;
            }
        return AGAIN;
    }
    if (e->status == ERR_IO && e->disk_full) {
        *why = "the disk is full: make room";
        return NEVER;
    }
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++)
        if (statuses[i].status == e->status) {
            *why = statuses[i].why;
            return statuses[i].class;
        }
    *why = "it failed";
    return ONCE;
}

// A launcher that has trained before is told rightly how to start, so what it ends with comes from outside.
static bool is_launchers_own(const StartEnding *endings, int count) {
    bool trained = false;
    for (int i = 0; i < count; i++) trained |= endings[i].iteration > 0;
    return trained && endings[count - 1].launcher && endings[count - 1].kind == END_STATUS;
}

static bool is_failure(const StartEnding *e) { return e->kind != END_DONE && e->kind != END_EARLY; }

// Of an error any rank may be the first one that leaves, and in any instruction.
static bool is_same(const StartEnding *a, const StartEnding *b) {
    bool same = a->kind == b->kind && a->status == b->status && a->signal == b->signal &&
                a->iteration == b->iteration;
    return same && (a->kind == END_STATUS || (a->rank == b->rank && !strcmp(a->doing, b->doing)));
}

static bool happened_before(const StartEnding *endings, int last) {
    for (int i = 0; i < last; i++)
        if (is_same(&endings[i], &endings[last])) return true;
    return false;
}

// Failures since one that came further than all before it.
static int failures_without_progress(const StartEnding *endings, int count) {
    int64_t furthest = 0;
    int failures = 0;
    for (int i = 0; i < count; i++) {
        if (!is_failure(&endings[i]) || endings[i].iteration > furthest) failures = 0;
        failures += is_failure(&endings[i]);
        if (endings[i].iteration > furthest) furthest = endings[i].iteration;
    }
    return failures;
}

static NextStep stop(const StartEnding *e, const char *why, const char *more) {
    NextStep next = {.status = e->kind == END_SIGNAL && e->signal ? 128 + e->signal : e->status};
    if (!next.status && is_failure(e)) next.status = ERR_OTHER;
    snprintf(next.why, sizeof next.why, "%s%s", why, more);
    return next;
}

NextStep decide(const StartEnding *endings, int count, int max_restarts) {
    const StartEnding *last = &endings[count - 1];
    const char *why = "";
    if (!is_failure(last))
        return stop(last,
                    last->kind == END_DONE ? "all iterations are trained"
                                           : "it ended early, as it was asked to",
                    last->kind == END_DONE && last->status ? ", but what came after them failed" : "");
    Class class = class_of(last, &why);
    if (class == ONCE && is_launchers_own(endings, count)) class = AGAIN, why = "the launcher failed";
    if (class == NEVER) return stop(last, why, "");
    if (class == ONCE && happened_before(endings, count - 1))
        return stop(last, why, ", for the second time at the same iteration");
    int failures = failures_without_progress(endings, count);
    if (failures > MOST_WITHOUT_PROGRESS)
        return stop(last, why,
                    ", and many starts have come no further (a process that is killed again and again may "
                    "lack memory: see the system's log)");
    if (max_restarts != INT_UNSET && count > max_restarts)
        return stop(last, why, "; --max-restarts is reached");
    NextStep next = {.restart = true};
    // At once for the first two; then it doubles.
    if (failures > 2) next.wait_s = fmin(MOST_WAIT_S, ldexp(0.5, failures - 3));
    snprintf(next.why, sizeof next.why, "%s", why);
    return next;
}

static int strikes_of(const StartEnding *e) {
    if (e->rank < 0 || e->unproved) return 0;
    if (e->kind == END_HANG || e->kind == END_SIGNAL) return 1;
    if (e->kind != END_STATUS || !e->blamed) return 0;
    return e->status == ERR_REPLICAS ? STRIKES_TO_EXCLUDE : e->status == ERR_OS || e->status == ERR_HANG;
}

int host_strikes(const StartEnding *endings, int count, const char *host) {
    int strikes = 0;
    for (int i = 0; i < count; i++)
        if (!strcmp(endings[i].host, host)) strikes += strikes_of(&endings[i]);
    return strikes;
}
