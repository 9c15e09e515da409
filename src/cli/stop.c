// Signals that ask a verb to stop: the handler keeps the signal's number, and the work looks at it between
// two of its steps.
#include "cli/cli.h"
#include <signal.h>
#include <time.h>

enum { AT_ONCE = 0, NEVER = -1 };

// After so many seconds a second signal of the same kind ends the process as usual. A job manager and its launcher both
// send TERM for one stop; XCPU comes every second; a terminal may send HUP twice.
static const struct {
    int number, second_ends_after_s;
    bool may_be_ignored; // one that is ignored when the program starts, as by nohup, stays ignored
} signals[] = {
    {SIGINT, AT_ONCE, false}, {SIGTERM, 5, false},    {SIGHUP, NEVER, true},
    {SIGUSR1, NEVER, true},   {SIGUSR2, NEVER, true}, {SIGXCPU, NEVER, true},
};

enum { NUM_SIGNALS = sizeof signals / sizeof signals[0] };

// Static, because a signal handler can reach nothing else.
static atomic_int stopped;
static _Atomic time_t first_s[NUM_SIGNALS]; // when the first of each kind came; 0: none has come

static time_t now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1;
}

// A second TERM that comes late is a new request.
static void end_as_usual(int number) {
    struct sigaction usual = {.sa_handler = SIG_DFL};
    sigemptyset(&usual.sa_mask);
    sigaction(number, &usual, NULL);
    raise(number); // arrives when this handler returns
}

static void ask_to_stop(int number) {
    int i = 0, none = 0;
    while (signals[i].number != number) i++;
    time_t now = now_s(), first = 0;
    atomic_compare_exchange_strong(&stopped, &none, number);
    if (atomic_compare_exchange_strong(&first_s[i], &first, now)) return;
    int after = signals[i].second_ends_after_s;
    if (after != NEVER && now - first >= after) end_as_usual(number);
}

static bool is_ignored(int number) {
    struct sigaction action;
    return sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

// Reads which signals are ignored before libraries are initialised, because they may catch signals before main: UCX,
// which Open MPI 5 uses, catches HUP.
static bool ignored_at_start[NUM_SIGNALS];

static void remember_ignored(void) {
    for (int i = 0; i < NUM_SIGNALS; i++) ignored_at_start[i] = is_ignored(signals[i].number);
}

__attribute__((section(".preinit_array"),
               used)) static void (*const before_libraries)(void) = remember_ignored;

void keep_ignored_signals(void) {
    for (int i = 0; i < NUM_SIGNALS; i++)
        if (signals[i].may_be_ignored && ignored_at_start[i]) signal(signals[i].number, SIG_IGN);
}

const atomic_int *stop_on_signals(void) {
    struct sigaction action = {.sa_handler = ask_to_stop};
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < NUM_SIGNALS; i++)
        if (!signals[i].may_be_ignored || !is_ignored(signals[i].number))
            sigaction(signals[i].number, &action, NULL);
    signal(SIGXFSZ, SIG_IGN); // the write fails instead, with a message that names the file
    return &stopped;
}

void do_not_stop_on_signals(void) {
    for (int i = 0; i < NUM_SIGNALS; i++)
        if (!is_ignored(signals[i].number)) signal(signals[i].number, SIG_DFL);
}
