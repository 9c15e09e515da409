// The trial of a file system: nothing is broken where nothing is wrong, every call that the C library is asked for by a save
// is one that the trial makes fail, and a file system that loses something is told. The test starts itself again, with
// tests/faults.c in front of the C library, as a process that saves or tries.
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/trial.h"
#include "harness.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
static const bool sanitized = true; // they must come first themselves
#else
static const bool sanitized = false;
#endif

static char program[512]; // this one

static const char *path_of(const char *name) {
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4]; // several are in use at a time
    snprintf(path, sizeof paths[0], "%s/%s", harness_folder(), name);
    return path;
}

static void nothing_is_broken(void) {
    TrialResult result;
    EXPECT_OK(folder_make(path_of("sound")));
    EXPECT_OK(trial_run(path_of("sound"), NULL, &result));
    int all = 0;
    for (FileCall call = 0; call < NUM_FILE_CALLS; call++)
        for (TrialFault fault = 0; fault < NUM_TRIAL_FAULTS; fault++) {
            EXPECT(result.made[call] > 0 && result.tried[call][fault] == result.made[call],
                   "%s: %d tried of %d", file_call_name(call), result.tried[call][fault], result.made[call]);
            all += result.broken[call][fault];
        }
    EXPECT(all == 0, "%d broken: %s", all, text_string(&result.first));
    EXPECT(!file_exists(path_of("sound/trireme-selftest")), "something is left");
    EXPECT(result.locks, "no locks");
    trial_free(&result);
    EXPECT_OK(folder_make(path_of("sound/trireme-selftest")));
    EXPECT(trial_run(path_of("sound"), NULL, &result) == ERR_CREATE, "a folder that is there is taken");
    trial_free(&result);
}

// "count FOLDER": prints what a save in the folder has counted.
static int count_in_child(const char *folder) {
    int made[NUM_FILE_CALLS];
    if (trial_count(folder, made) != OK) return fprintf(stderr, "%s\n", fail_message()), 1;
    for (FileCall call = 0; call < NUM_FILE_CALLS; call++)
        printf("%s %d\n", file_call_name(call), made[call]);
    return 0;
}

// "try FOLDER": the trial itself, on a C library that lies.
static int try_in_child(const char *folder) {
    TrialResult result;
    if (trial_run(folder, NULL, &result) != OK) return fprintf(stderr, "%s\n", fail_message()), 1;
    printf("%s\n", text_string(&result.first));
    trial_free(&result);
    return 0;
}

static int run_child(const char *what, const char *folder, const char *fault, const char *counts) {
    char said[512];
    snprintf(said, sizeof said, "%s", path_of("said"));
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        int out = open(said, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (out >= 0) dup2(out, STDOUT_FILENO), dup2(out, STDERR_FILENO);
        setenv("LD_PRELOAD", FAULTS_LIBRARY, 1);
        if (fault) setenv("TRIREME_FAULT", fault, 1);
        if (counts) setenv("TRIREME_FAULT_COUNTS", counts, 1);
        execl(program, program, what, folder, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0) continue;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int count_of(const char *text, const char *call) {
    const char *line = text;
    size_t size = strlen(call);
    while (line && (strncmp(line, call, size) != 0 || line[size] != ' '))
        line = strchr(line, '\n'), line += line ? 1 : 0;
    return line ? atoi(line + size) : 0;
}

static void every_call_is_one_of_them(void) {
    static const char *const calls[] = {"open", "fsync", "rename", "mkdir", "close", "unlink"};
    char counts[512], save[512], *library = NULL, *trial = NULL;
    size_t size;
    if (sanitized) return;
    snprintf(counts, sizeof counts, "%s", path_of("counts"));
    snprintf(save, sizeof save, "%s", path_of("counted"));
    EXPECT(run_child("count", save, NULL, counts) == 0, "a save fails");
    EXPECT_OK(file_read(counts, 1 << 16, &library, &size));
    EXPECT_OK(file_read(path_of("said"), 1 << 16, &trial, &size));
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        EXPECT(count_of(trial, calls[i]) > 0 && count_of(trial, calls[i]) == count_of(library, calls[i]),
               "%s: the trial knows of %d, the C library of %d", calls[i], count_of(trial, calls[i]),
               count_of(library, calls[i]));
    int writes = count_of(library, "write") + count_of(library, "pwrite");
    EXPECT(count_of(trial, "write") == writes, "write: %d and %d", count_of(trial, "write"), writes);
    free(library);
    free(trial);
}

// Where no save succeeds, that is said, and no fault is tried.
static void a_folder_without_saves_is_told(void) {
    TrialResult result;
    if (!sanitized) {
        EXPECT_OK(folder_make(path_of("dead")));
        EXPECT(run_child("try", path_of("dead"), "fsync:1+:EIO", NULL) == 1,
               "no file can be synced, and the trial goes on");
    }
    EXPECT(trial_run(path_of("nowhere"), NULL, &result) == ERR_NO_INPUT,
           "a folder that is not there is tried");
    trial_free(&result);
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "count")) return count_in_child(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "try")) return try_in_child(argv[2]);
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0) return perror("/proc/self/exe"), 1;
    return harness_run((const Test[]){{"nothing_is_broken", nothing_is_broken},
                                      {"every_call_is_one_of_them", every_call_is_one_of_them},
                                      {"a_folder_without_saves_is_told", a_folder_without_saves_is_told},
                                      {0}},
                       argc, argv);
}
