// Ends a process that MPI blocks for too long, by a timer and a signal handler.
#include "comm/alarm.h"
#include "base/error.h"
#include "base/rank.h"
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

enum { TICKS_PER_S = 10 };

// A signal handler can only use static variables.
static atomic_long ticks_left;
static char message[256];

// Ticks of the time in which the process is stopped arrive as one.
static void tick(int signal) {
    (void)signal;
    if (atomic_fetch_sub(&ticks_left, 1) > 1) return;
    if (write(STDERR_FILENO, message, strlen(message)) < 0) _exit(ERR_HANG);
    sleep(1); // the other ranks' alarms are about to print as well
    _exit(ERR_HANG);
}

static void run_timer(suseconds_t interval_us) {
    struct itimerval timer = {{0, interval_us}, {0, interval_us}};
    setitimer(ITIMER_REAL, &timer, NULL);
}

void alarm_set(const char *what, double timeout_s) {
    const Rank *me = rank_current();
    char who[64];
    rank_describe(me, who, sizeof who);
    snprintf(
        message, sizeof message,
        "trireme: hang: %s%shas waited %.3g s for the other ranks in %s (the limit; --distributed-timeout-minutes sets another)\n",
        who, *who ? " " : "", timeout_s, what);
    atomic_store(&ticks_left, (long)(timeout_s * TICKS_PER_S) + 1);
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGALRM, &action, NULL);
    run_timer(1000000 / TICKS_PER_S);
}

void alarm_clear(void) { run_timer(0); }
