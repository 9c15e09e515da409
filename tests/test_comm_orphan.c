// A rank ends with the process that started it, however that one ended, and with no other: not with the thread
// that started it.
#include "base/beat.h"
#include "comm/orphan.h"
#include "harness.h"
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __SANITIZE_THREAD__
static const bool sanitized = true; // it holds signals back while a process waits
#else
static const bool sanitized = false;
#endif

enum { LONG_MS = 20000 };

typedef struct {
    int to[2], from[2]; // pipes of the rank
} Pipes;

// The rank: answers every byte until it is killed.
static _Noreturn void answer(const Pipes *pipes) {
    char byte = 0;
    alarm(3 * LONG_MS / 1000); // should nothing else end it
    orphan_kill();
    close(pipes->to[1]);
    while (write(pipes->from[1], &byte, 1) == 1 && read(pipes->to[0], &byte, 1) == 1) continue;
    for (;;) pause(); // whoever closes the pipe does not end it
}

static void *start_rank(void *arg) {
    if (fork() == 0) answer(arg);
    return NULL;
}

// The launcher: starts the rank from a thread of its own that ends, or from its only one.
static _Noreturn void launch(Pipes *pipes, bool from_thread) {
    pthread_t thread;
    if (from_thread && pthread_create(&thread, NULL, start_rank, pipes) == 0) pthread_join(thread, NULL);
    if (!from_thread) start_rank(pipes);
    for (;;) pause();
}

// A byte from the rank: 1; 0: it has ended; -1: neither for long.
static int hear(const Pipes *pipes) {
    char byte;
    struct pollfd waiting = {.fd = pipes->from[0], .events = POLLIN};
    return poll(&waiting, 1, LONG_MS) == 1 ? (int)read(pipes->from[0], &byte, 1) : -1;
}

static void one_launcher(bool from_thread) {
    Pipes pipes;
    if (sanitized) return;
    EXPECT(pipe(pipes.to) == 0 && pipe(pipes.from) == 0, "no pipes");
    pid_t launcher = fork();
    if (launcher == 0) launch(&pipes, from_thread);
    close(pipes.from[1]);
    EXPECT(hear(&pipes) == 1, "the rank does not start");
    for (int i = 0; i < 3; i++) { // it lives
        usleep(20000);
        EXPECT(write(pipes.to[1], "x", 1) == 1 && hear(&pipes) == 1, "it does not answer");
    }
    kill(launcher, SIGKILL);
    EXPECT(waitpid(launcher, NULL, 0) == launcher, "the launcher does not end");
    EXPECT(hear(&pipes) == 0, "the rank outlives its launcher");
    close(pipes.to[0]), close(pipes.to[1]), close(pipes.from[0]);
}

static void ends_with_its_launcher(void) { one_launcher(false); }
static void outlives_the_thread_that_started_it(void) { one_launcher(true); }

// A rank whose launcher had died before it could look has another parent by then; its supervisor has died, too.
static void ends_without_its_supervisor(void) {
    for (int gone = 0; gone < 2 && !sanitized; gone++) {
        Pipes pipes;
        int status;
        EXPECT(pipe(pipes.to) == 0 && pipe(pipes.from) == 0, "no pipes");
        pid_t supervisor = fork();
        if (supervisor == 0) {
            EXPECT(beat_watch_over(), "no memory");
            pid_t rank = fork();
            if (rank == 0 && gone) usleep(300000);
            if (rank == 0) answer(&pipes);
            if (gone) _exit(0);
            EXPECT(hear(&pipes) == 1 && !beat_is_abandoned(), "the rank ends, though its supervisor lives");
            kill(rank, SIGKILL);
            _exit(0);
        }
        close(pipes.from[1]);
        // Nobody has waited for the supervisor yet.
        if (gone) EXPECT(hear(&pipes) == 0, "the rank outlives its supervisor");
        EXPECT(waitpid(supervisor, &status, 0) == supervisor && status == 0, "the supervisor fails");
        close(pipes.to[0]), close(pipes.to[1]), close(pipes.from[0]);
    }
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"ends_with_its_launcher", ends_with_its_launcher},
                       {"outlives_the_thread_that_started_it", outlives_the_thread_that_started_it},
                       {"ends_without_its_supervisor", ends_without_its_supervisor},
                       {0}},
        argc, argv);
}
