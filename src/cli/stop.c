#include "cli/cli.h"
#include <signal.h>

// A signal handler can reach nothing but a static.
static atomic_int stopped;

static void ask_to_stop(int signal) {
    (void)signal;
    atomic_store(&stopped, 1);
}

const atomic_int *stop_on_signals(void) {
    struct sigaction action = {.sa_handler = ask_to_stop, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    return &stopped;
}
