// Every call that a save makes fails in turn, or the process dies in front of it: the older checkpoints stay
// as they were, the message says what happened, and nothing half written is ever taken for a checkpoint. The
// test starts itself again as the process that saves, with tests/faults.c in front of the C library.
#include "base/file.h"
#include "checkpoint_slices.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
static const bool sanitized = true; // they must come first themselves
#else
static const bool sanitized = false;
#endif

enum { OLDER = 1, NEWER = 2 };

// Two models of the same tensors with other values.
static Model *model_of(int which) { return model_make(which == OLDER ? 21 : 22, 2, 8, 1); }

static char program[512]; // this one

// The process that saves: "save FOLDER STEP" saves the newer model.
static int save_in_child(char **argv) {
    Model *m = model_of(NEWER);
    Status status = model_save(m, argv[2], atoi(argv[3]));
    model_free(m);
    if (status != OK) fprintf(stderr, "%s\n", fail_message());
    return (int)status;
}

// The exit code, or minus the signal. What the child said is in the file "said".
static int run_child(const char *fault, const char *counts, const char *save, int step) {
    char number[16];
    snprintf(number, sizeof number, "%d", step);
    const char *said = path_in("said");
    pid_t child = fork();
    if (child == 0) {
        int out = open(said, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (out >= 0) dup2(out, STDERR_FILENO);
        setenv("LD_PRELOAD", FAULTS_LIBRARY, 1);
        if (fault) setenv("TRIREME_FAULT", fault, 1);
        if (counts) setenv("TRIREME_FAULT_COUNTS", counts, 1);
        execl(program, program, "save", save, number, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0) continue;
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static bool holds(const Model *m, const char *folder) {
    Checkpoint *c = NULL;
    bool same = checkpoint_open(&c, folder) == OK && checkpoint_verify(c) == OK;
    for (int i = 0; same && i < m->num_tensors; i++) {
        const ModelTensor *t = &m->tensors[i];
        size_t bytes = (size_t)(t->rows * t->cols) * sizeof(float);
        float *values = malloc(bytes);
        int at = checkpoint_find(c, t->name);
        same = at >= 0 && checkpoint_tensor(c, at).rows == t->rows &&
               checkpoint_tensor(c, at).cols == t->cols &&
               checkpoint_read(c, at, (Rect){0, 0, t->rows, t->cols}, values, t->cols) == OK &&
               !memcmp(values, t->values, bytes);
        free(values);
    }
    checkpoint_close(c);
    return same;
}

// Every step that is listed is whole, and it is the older or the newer model as `exit_code` promises.
static void expect_consistent(const char *save, int step, int exit_code, const char *fault,
                              const Model *older, const Model *newer) {
    int64_t *steps = NULL;
    int count = 0;
    bool found = false;
    EXPECT_OK(checkpoint_steps(save, &steps, &count));
    for (int i = 0; i < count; i++) {
        CheckpointNames names;
        EXPECT_OK(checkpoint_names(save, steps[i], &names));
        bool old = holds(older, names.final), new = holds(newer, names.final);
        found |= steps[i] == step;
        if (steps[i] != step) EXPECT(old, "%s: the older checkpoint is gone: %s", fault, fail_message());
        if (steps[i] == step) EXPECT(old || new, "%s: neither old nor new: %s", fault, fail_message());
        if (steps[i] == step && exit_code == 0) EXPECT(new, "%s: succeeded with the older one", fault);
        if (steps[i] == step && exit_code > 0) EXPECT(old, "%s: failed, yet the older one is gone", fault);
    }
    EXPECT(exit_code || found, "%s: succeeded without a checkpoint", fault);
    EXPECT(count >= 1 && steps[count - 1] == OLDER, "%s: the older checkpoint is not listed", fault);
    free(steps);
}

static void expect_message(const char *fault, const char *words, int exit_code) {
    char *said = NULL;
    size_t size;
    EXPECT_OK(file_read(path_in("said"), 1 << 16, &said, &size));
    EXPECT(exit_code == ERR_CREATE || exit_code == ERR_IO || exit_code == ERR_OS, "%s: exit %d: %s", fault,
           exit_code, said);
    EXPECT(said && strstr(said, words), "%s: the message lacks words: %s", fault, said);
    free(said);
}

static void one_fault(const char *save, int step, const char *fault, const Model *older, const Model *newer) {
    CheckpointNames names;
    EXPECT_OK(checkpoint_names(save, step, &names));
    int exit_code = run_child(fault, NULL, save, step);
    bool killed = strstr(fault, "KILL");
    EXPECT(killed ? exit_code == -SIGKILL : exit_code >= 0, "%s: ended with %d", fault, exit_code);
    if (exit_code > 0) expect_message(fault, save, exit_code);
    if (exit_code > 0 && !strstr(fault, "unlink"))
        EXPECT(!file_exists(names.temporary), "%s: a temporary folder is left", fault);
    expect_consistent(save, step, exit_code, fault, older, newer);
    if (killed) { // the next save does not stumble over what is left
        EXPECT_OK(model_save(newer, save, step));
        expect_consistent(save, step, 0, fault, older, newer);
    }
    EXPECT_OK(folder_remove(names.final));
    EXPECT_OK(folder_remove(names.temporary));
    EXPECT_OK(model_save(older, save, OLDER));
}

// How often each call is made without a fault.
static int calls_of(const char *counts, const char *call) {
    char *text = NULL;
    size_t size;
    EXPECT_OK(file_read(counts, 1 << 16, &text, &size));
    const char *line = text ? strstr(text, call) : NULL;
    while (line && line > text && line[-1] != '\n') line = strstr(line + 1, call);
    int count = line ? atoi(line + strlen(call)) : 0;
    free(text);
    return count;
}

// `step` is a new one, or the older one's.
static void every_call(const char *save, int step) {
    static const char *const calls[] = {"open",   "write", "pwrite", "fsync",
                                        "rename", "mkdir", "close",  "unlink"};
    static const char *const actions[] = {"EIO", "ENOSPC", "EINTR", "KILL", "SHORT"};
    Model *older = model_of(OLDER), *newer = model_of(NEWER);
    EXPECT_OK(model_save(older, save, OLDER));
    EXPECT(run_child(NULL, path_in("counts"), save, step) == 0, "a save without faults fails");
    expect_consistent(save, step, 0, "none", older, newer);
    EXPECT_OK(folder_remove(save));
    EXPECT_OK(model_save(older, save, OLDER));
    int tried = 0;
    for (int c = 0; c < 8; c++)
        for (int n = 1, most = calls_of(path_in("counts"), calls[c]); n <= most; n++)
            for (int a = 0; a < (strstr(calls[c], "write") ? 5 : 4); a++, tried++) {
                char fault[64];
                snprintf(fault, sizeof fault, "%s:%d%s:%s", calls[c], n, a == 1 ? "+" : "", actions[a]);
                if (a == 1 && c == 7) continue; // nothing can be removed any more: tried once is enough
                one_fault(save, step, fault, older, newer);
            }
    EXPECT(tried > 60, "only %d faults were tried", tried);
    model_free(older);
    model_free(newer);
}

static void a_new_step(void) {
    if (!sanitized) every_call(path_in("new"), NEWER);
}

static void the_same_step_again(void) {
    if (!sanitized) every_call(path_in("same"), OLDER);
}

// Short writes and interrupted calls are carried on.
static void interruptions_are_no_failures(void) {
    Model *older = model_of(OLDER), *newer = model_of(NEWER);
    if (!sanitized) {
        EXPECT_OK(model_save(older, path_in("calm"), OLDER));
        static const char *const faults[] = {"write:1:EINTR", "write:2:SHORT", "fsync:1:EINTR",
                                             "write:1+:SHORT", "fsync:2:DELAY20"};
        for (int i = 0; i < 5; i++) {
            EXPECT(run_child(faults[i], NULL, path_in("calm"), 3 + i) == 0, "%s fails", faults[i]);
            expect_consistent(path_in("calm"), 3 + i, 0, faults[i], older, newer);
            EXPECT_OK(folder_remove(path_in("calm")));
            EXPECT_OK(model_save(older, path_in("calm"), OLDER));
        }
    }
    model_free(older);
    model_free(newer);
}

// One bit of what is written changes on its way, or lies otherwise on the disk than in the page cache, in each
// write and each file of a checkpoint: it is found before the commit, and which bytes.
static void altered_bits_are_found(void) {
    if (sanitized) return;
    static const char *const calls[] = {"write", "posix_fadvise"};
    const char *save = path_in("altered");
    Model *older = model_of(OLDER), *newer = model_of(NEWER);
    CheckpointNames names;
    char **files = NULL;
    int num_files = 0;
    EXPECT_OK(model_save(older, save, OLDER));
    EXPECT(run_child(NULL, path_in("counts"), save, NEWER) == 0, "a save without faults fails");
    EXPECT_OK(checkpoint_names(save, NEWER, &names));
    EXPECT_OK(folder_list(names.final, &files, &num_files));
    EXPECT(calls_of(path_in("counts"), "posix_fadvise") >= num_files, "%d of %d files are read back",
           calls_of(path_in("counts"), "posix_fadvise"), num_files);
    for (int c = 0; c < 2; c++)
        for (int n = 1, most = calls_of(path_in("counts"), calls[c]); n <= most; n++) {
            char fault[64];
            snprintf(fault, sizeof fault, "%s:%d:FLIP", calls[c], n);
            EXPECT_OK(folder_remove(names.final));
            int exit_code = run_child(fault, NULL, save, NEWER);
            EXPECT(exit_code == ERR_IO, "%s: exit %d", fault, exit_code);
            expect_message(fault, "within bytes 0 to ", exit_code);
            expect_consistent(save, NEWER, exit_code, fault, older, newer);
            EXPECT(!file_exists(names.final) && !file_exists(names.temporary), "%s: the new one is there",
                   fault);
        }
    free(files);
    model_free(older);
    model_free(newer);
}

// As when a log goes into the descriptor of the file.
static void another_writer_is_found(void) {
    if (sanitized) return;
    const char *save = path_in("another"), *fault = "write:1:EXTRA";
    Model *older = model_of(OLDER), *newer = model_of(NEWER);
    EXPECT_OK(model_save(older, save, OLDER));
    int exit_code = run_child(fault, NULL, save, NEWER);
    expect_message(fault, "something else writes to it", exit_code);
    expect_consistent(save, NEWER, exit_code, fault, older, newer);
    model_free(older);
    model_free(newer);
}

// On a file system that cannot exchange two names.
static void replacing_in_two_renames(void) {
    if (sanitized) return;
    static const char *const faults[] = {"rename:1:EINVAL", "rename:1:EINVAL,rename:2:EIO",
                                         "rename:1:EINVAL,rename:3:EIO", "rename:1:EINVAL,rename:4:EIO"};
    Model *older = model_of(OLDER), *newer = model_of(NEWER);
    for (int i = 0; i < 4; i++) {
        EXPECT_OK(model_save(older, path_in("two"), OLDER));
        int exit_code = run_child(faults[i], NULL, path_in("two"), OLDER);
        bool fails = i == 1 || i == 2;
        EXPECT(fails ? exit_code > 0 : exit_code == 0, "%s: exit %d", faults[i], exit_code);
        expect_consistent(path_in("two"), OLDER, exit_code, faults[i], older, newer);
        EXPECT(i == 3 || !file_exists(path_in("two/.old-step-00000001")), "%s: the older one is left",
               faults[i]);
    }
    model_free(older);
    model_free(newer);
}

// Where the temporary folder cannot be removed either, the message is still about what came first.
static void the_first_failure_is_reported(void) {
    if (sanitized) return;
    Model *older = model_of(OLDER), *newer = model_of(NEWER);
    const char *fault = "fsync:2:EIO,unlink:1+:EIO";
    EXPECT_OK(model_save(older, path_in("first"), OLDER));
    int exit_code = run_child(fault, NULL, path_in("first"), NEWER);
    expect_consistent(path_in("first"), NEWER, exit_code, fault, older, newer);
    expect_message(fault, "cannot sync", exit_code);
    model_free(older);
    model_free(newer);
}

int main(int argc, char **argv) {
    if (argc == 4 && !strcmp(argv[1], "save")) return save_in_child(argv);
    use_memory_for_files();
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0) return perror("/proc/self/exe"), 1;
    return harness_run((const Test[]){{"a_new_step", a_new_step},
                                      {"the_same_step_again", the_same_step_again},
                                      {"interruptions_are_no_failures", interruptions_are_no_failures},
                                      {"altered_bits_are_found", altered_bits_are_found},
                                      {"another_writer_is_found", another_writer_is_found},
                                      {"replacing_in_two_renames", replacing_in_two_renames},
                                      {"the_first_failure_is_reported", the_first_failure_is_reported},
                                      {0}},
                       argc, argv);
}
