// Starts processes and ends them, with everything that they have started.
#include "base/process.h"
#include "supervise/supervise.h"
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// Between fork and exec: nothing here may take memory.
static _Noreturn void become(char **argv, pid_t parent) {
    sigset_t none;
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    // A reader of a terminal in another process group would be stopped.
    int null = open("/dev/null", O_RDONLY);
    if (null > 0) dup2(null, STDIN_FILENO), close(null);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execvp(argv[0], argv);
    perror(argv[0]);
    _exit(127);
}

pid_t child_start(char **argv) {
    pid_t parent = getpid(), pid;
    fflush(NULL);
    pid = fork();
    if (pid == 0) become(argv, parent);
    if (pid > 0) setpgid(pid, pid); // whoever comes first
    return pid > 0 ? pid : 0;
}

bool is_below(pid_t pid, pid_t ancestor) {
    enum { MOST_LEVELS = 64 };
    for (int i = 0; i < MOST_LEVELS && pid > 1; i++) {
        pid_t parent;
        if (pid == ancestor) return i > 0;
        if (!process_status(pid, &parent)) return false;
        pid = parent;
    }
    return false;
}

typedef bool VisitChild(void *self, pid_t child); // true: go on with the others

// The children that each thread of a process has started.
static void visit_children(pid_t pid, VisitChild *visit, void *self) {
    char path[64 + 256];
    bool more = true;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *threads = opendir(path);
    for (const struct dirent *t; threads && more && (t = readdir(threads));) {
        int child;
        if (*t->d_name == '.') continue;
        snprintf(path, sizeof path, "/proc/%d/task/%s/children", (int)pid, t->d_name);
        FILE *file = fopen(path, "re");
        while (file && more && fscanf(file, "%d", &child) == 1) more = visit(self, child);
        if (file) fclose(file);
    }
    if (threads) closedir(threads);
}

static bool look_for_stopped(void *self, pid_t child) {
    pid_t *found = self;
    *found = find_stopped(child);
    return !*found;
}

pid_t find_stopped(pid_t pid) {
    pid_t found = 0;
    if (process_status(pid, NULL) == 'T') return pid;
    visit_children(pid, look_for_stopped, &found);
    return found;
}

static bool kill_child(void *self, pid_t child) {
    kill(child, SIGKILL);
    return *(bool *)self = true;
}

// Kills the children of this process; true when there were any.
static bool kill_children(void) {
    bool any = false;
    visit_children(getpid(), kill_child, &any);
    return any;
}

// What a child leaves behind becomes a child of this process, which is their reaper.
void kill_strays(void) {
    enum { MOST_ROUNDS = 1000 };
    for (int i = 0; i < MOST_ROUNDS; i++) {
        while (waitpid(-1, NULL, WNOHANG) > 0) continue;
        if (!kill_children()) return;
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}
