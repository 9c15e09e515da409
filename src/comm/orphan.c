// Ends a rank together with its launcher: a mpirun that was killed leaves its processes behind, which would hold
// processors and the lock on the checkpoints while the job is started again.
#include "comm/orphan.h"
#include "base/beat.h"
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

// A signal handler can only use static variables.
static pid_t launcher;

// The kernel also sends the signal when only the thread that started this process ends (Open MPI starts many
// processes from threads of their own): then the parent is still the same process.
static void on_parent_death(int signal) {
    (void)signal;
    if (getppid() != launcher) kill(getpid(), SIGKILL);
}

void orphan_kill(void) {
    int signal = SIGRTMAX - 1; // nothing else uses it
    struct sigaction action = {.sa_handler = on_parent_death, .sa_flags = SA_RESTART};
    launcher = getppid();
    sigemptyset(&action.sa_mask);
    if (sigaction(signal, &action, NULL) || prctl(PR_SET_PDEATHSIG, signal)) return;
    on_parent_death(signal); // it may have died just before; if it had died earlier, MPI_Init fails
    // The supervisor ends what a dead launcher leaves. If it has died as well, the launcher had, or will.
    if (beat_is_abandoned()) kill(getpid(), SIGKILL);
}
