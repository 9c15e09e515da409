// Keeps the current rank of each thread and its last events, and prints the messages of errors.
#include "base/rank.h"
#include "base/beat.h"
#include "base/error.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static _Thread_local Rank *current;
static _Thread_local Rank alone = {.size = 1};

void rank_enter(Rank *rank) { current = rank; }

Rank *rank_current(void) { return current ? current : &alone; }

void rank_doing(const char *fmt, ...) {
    Rank *r = rank_current();
    va_list args;
    va_start(args, fmt);
    vsnprintf(r->doing, sizeof r->doing, fmt, args);
    va_end(args);
    beat_doing(r->beat, r->doing);
}

void rank_blame(int rank) {
    Rank *r = rank_current();
    r->blamed = rank + 1;
    beat_blame(r->beat, rank);
}

void rank_event(const char *literal_format, int64_t a, int64_t b, int64_t c) {
    Rank *r = rank_current();
    r->events[r->num_events++ % EVENTS_KEPT] = (RankEvent){clock_s(), literal_format, a, b, c};
}

void rank_describe(const Rank *rank, char *text, int size) {
    if (rank->size <= 1)
        snprintf(text, (size_t)size, "%s", "");
    else if (!*rank->place)
        snprintf(text, (size_t)size, "[rank %d]", rank->rank);
    else
        snprintf(text, (size_t)size, "[rank %d %s]", rank->rank, rank->place);
}

// The format is a literal chosen by our own code (rank_event); three integers always follow.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-extra-args"
static void print_event(const RankEvent *e, double now) {
    char text[256];
    snprintf(text, sizeof text, e->format, e->a, e->b, e->c);
    fprintf(stderr, "  %9.3f s ago  %s\n", now - e->at_s, text);
}
#pragma GCC diagnostic pop

void rank_dump_events(const Rank *rank) {
    if (!rank->num_events) return;
    char who[64];
    rank_describe(rank, who, sizeof who);
    fprintf(stderr, "%s last events:\n", who);
    uint64_t first = rank->num_events > EVENTS_KEPT ? rank->num_events - EVENTS_KEPT : 0;
    double now = clock_s();
    for (uint64_t i = first; i < rank->num_events; i++) print_event(&rank->events[i % EVENTS_KEPT], now);
}

static void (*_Atomic before_abort)(void);

void rank_before_abort(void (*hook)(void)) { before_abort = hook; }

_Noreturn void rank_abort_job(int status) {
    Rank *r = rank_current();
    beat_end(r->beat, status);
    fflush(NULL);
    void (*hook)(void) = before_abort;
    if (hook) hook();
    if (r->abort_job) r->abort_job(r, status);
    _exit(status);
}

static double seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double clock_s(void) { return seconds(CLOCK_MONOTONIC); }

double clock_thread_s(void) { return seconds(CLOCK_THREAD_CPUTIME_ID); }

// ---- error.h ---------------------------------------------------------------------------------

Status fail(Status status, const char *fmt, ...) {
    Rank *r = rank_current();
    va_list args;
    va_start(args, fmt);
    char text[sizeof r->message]; // the arguments may point into the old message
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    snprintf(r->message, sizeof r->message, "%s", text);
    return status;
}

Status errno_status(void) {
    switch (errno) {
    case ENOENT:
    case ENOTDIR: return ERR_NO_INPUT;
    case EACCES:
    case EPERM:
    case EROFS: return ERR_PERMISSION;
    case ENOSPC:
    case EDQUOT:
    case EEXIST: return ERR_CREATE;
    case ENOMEM: return ERR_OS;
    default: return ERR_IO;
    }
}

Status create_status(void) {
    switch (errno) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ENOTEMPTY:
    case ENAMETOOLONG: return ERR_CREATE;
    default: return errno_status();
    }
}

const char *fail_message(void) { return rank_current()->message; }

_Noreturn void check_failed(const char *file, int line, const char *cond, const char *fmt, ...) {
    Rank *r = rank_current();
    char who[64], why[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    rank_describe(r, who, sizeof who);
    fprintf(stderr, "trireme: bug: %s%s%s\n  %s:%d  CHECK(%s) failed%s%s\n", who, *who ? " " : "", why, file,
            line, cond, r->doing[0] ? " while at " : "", r->doing);
    rank_dump_events(r);
    rank_abort_job(ERR_BUG);
}
