// Saves small checkpoints while calls on files fail, and looks at what is left.
#include "checkpoint/trial.h"
#include "base/file.h"
#include "checkpoint/manifest.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

// Steps OLDEST and OLDER are there; the save of NEWER is tried, and keeps two checkpoints: OLDEST goes.
enum { OLDEST = 1, OLDER, NEWER, KEEP = 2, NUM_RANKS = 2, NUM_TENSORS = 3, MAX_VALUES = 24000 };

static const struct {
    const char *name;
    int64_t rows, cols;
} tensors[NUM_TENSORS] = {{"embedding.word_embeddings.weight", 150, 160},
                          {"decoder.final_layernorm.weight", 1, 160},
                          {"decoder.final_layernorm.bias", 1, 160}};

const char *trial_fault_name(TrialFault fault) {
    static const char *const names[] = {"fails once", "fails from there", "killed"};
    return names[fault];
}

// ---- a small checkpoint -------------------------------------------------------------------------

// Element `i` of a tensor of the checkpoint of a step: no two steps have the same.
static float value_of(int step, int tensor, int64_t i) {
    return (float)(step * 100000 + tensor * 30000) + (float)i;
}

static void fill_tensor(int step, int tensor, float *values) {
    for (int64_t i = 0; i < tensors[tensor].rows * tensors[tensor].cols; i++)
        values[i] = value_of(step, tensor, i);
}

static CheckpointInfo info_of(int step) {
    return (CheckpointInfo){.shape = {.layers = 1,
                                      .hidden = 160,
                                      .heads = 2,
                                      .head_size = 80,
                                      .ffn = 640,
                                      .sequence = 16,
                                      .positions = 16,
                                      .vocabulary = 150,
                                      .norm_epsilon = 1e-5f,
                                      .init_std = 0.02f},
                            .state = {.iteration = step, .consumed = step},
                            .grid = (Grid)GRID(1, 1, NUM_RANKS),
                            .num_chunks = 1,
                            .dtype = "f32",
                            .config = "# of a trial\n",
                            .program = "trireme selftest"};
}

// The first rank has the first tensor, the second one the others.
static Status write_shards(const CheckpointNames *names, int step, float *values, Text records[NUM_RANKS]) {
    Slice slices[NUM_TENSORS] = {0};
    for (int t = 0; t < NUM_TENSORS; t++) {
        Slice *s = &slices[t];
        snprintf(s->tensor, sizeof s->tensor, "%s", tensors[t].name);
        s->rows = tensors[t].rows, s->cols = s->stride = tensors[t].cols;
        s->rect = (Rect){0, 0, s->rows, s->cols};
        s->data = values + (int64_t)t * MAX_VALUES;
        fill_tensor(step, t, values + (int64_t)t * MAX_VALUES);
    }
    TRY(checkpoint_write_shard(names, 0, slices, 1, &records[0]));
    return checkpoint_write_shard(names, 1, slices + 1, NUM_TENSORS - 1, &records[1]);
}

// As a run does: the lock, the shards, the commit, the removal of an older one, whose failure is only a warning there.
static Status save_step(const char *save, int step, bool *locks) {
    CheckpointNames names;
    CheckpointInfo info = info_of(step);
    StepList verified = {0};
    Text records[NUM_RANKS] = {0};
    int lock;
    TRY(checkpoint_names(save, step, &names));
    TRY(checkpoint_lock(save, 0, NULL, &lock));
    *locks = lock >= 0;
    float *values = malloc(NUM_TENSORS * MAX_VALUES * sizeof *values);
    CHECK(values, "no memory for a small checkpoint");
    Status status = checkpoint_begin(&names, MAX_VALUES * (int64_t)sizeof *values);
    if (status == OK) status = write_shards(&names, step, values, records);
    if (status == OK)
        status = checkpoint_commit(&names, lock, &info, NULL, records, NUM_RANKS);
    else
        checkpoint_abandon(&names, lock);
    if (status == OK) (void)checkpoint_prune(save, step, KEEP, 0, &verified);
    for (int r = 0; r < NUM_RANKS; r++) text_free(&records[r]);
    free(values);
    step_list_free(&verified);
    checkpoint_unlock(lock);
    return status;
}

// Every byte verifies, and every value is that of the step.
static Status check_values(Checkpoint *c, int step, float *want, float *got) {
    TRY(checkpoint_verify(c));
    for (int t = 0; t < NUM_TENSORS; t++) {
        int64_t rows = tensors[t].rows, cols = tensors[t].cols;
        int at = checkpoint_find(c, tensors[t].name);
        if (at < 0) return fail(ERR_DATA, "%s: no %s", checkpoint_folder(c), tensors[t].name);
        TRY(checkpoint_read(c, at, (Rect){0, 0, rows, cols}, got, cols));
        fill_tensor(step, t, want);
        if (memcmp(want, got, (size_t)(rows * cols) * sizeof *want))
            return fail(ERR_DATA, "%s: %s has other values", checkpoint_folder(c), tensors[t].name);
    }
    return OK;
}

static Status check_step(const char *save, int64_t step) {
    Checkpoint *c;
    TRY(checkpoint_open_step(&c, save, step));
    float *values = malloc(2 * MAX_VALUES * sizeof *values);
    CHECK(values, "no memory to compare a small checkpoint");
    Status status = check_values(c, (int)step, values, values + MAX_VALUES);
    free(values);
    checkpoint_close(c);
    return status;
}

// ---- a process whose calls fail -----------------------------------------------------------------

// What the process of a trial does at its calls. The counts lie in memory that it shares with its parent.
typedef struct {
    int counts[NUM_FILE_CALLS];
    FileCall call;
    int number; // of the call that fails, from 1; 0: none
    TrialFault fault;
    bool locks;
} Plan;

static Plan *plan; // of the process of a trial

static int ask(FileCall call) {
    static const int errors[] = {[TRIAL_EIO] = EIO, [TRIAL_ENOSPC] = ENOSPC};
    int number = ++plan->counts[call];
    bool lasts =
        plan->fault == TRIAL_ENOSPC && plan->number && number > plan->number; // as a disk that is full
    if (call != plan->call || (number != plan->number && !lasts)) return 0;
    if (plan->fault == TRIAL_KILL) raise(SIGKILL);
    return errors[plan->fault];
}

static Status save_counted(const char *save, int step) {
    file_calls_ask(ask);
    Status status = save_step(save, step, &plan->locks);
    file_calls_ask(NULL);
    return status;
}

typedef struct {
    bool killed;
    int status; // where it was not killed
} End;

// Saves in a process of its own; what it prints is of the faults, and nobody's.
static Status save_in_child(const char *save, int step, End *end) {
    memset(plan->counts, 0, sizeof plan->counts);
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) return fail(ERR_OS, "cannot start a process: %s", strerror(errno));
    if (child == 0) _exit((int)save_counted(save, step));
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return fail(ERR_OS, "cannot wait for a process: %s", strerror(errno));
    *end = (End){.killed = WIFSIGNALED(status), .status = WIFEXITED(status) ? WEXITSTATUS(status) : 0};
    if (end->killed && WTERMSIG(status) != SIGKILL)
        return fail(ERR_BUG, "a save ended with signal %d", WTERMSIG(status));
    return OK;
}

// ---- what must hold -----------------------------------------------------------------------------

static Status broken(const char *why) {
    char cause[512];
    snprintf(cause, sizeof cause, "%s", fail_message());
    return fail(ERR_DATA, "%s: %s", why, cause);
}

// Every checkpoint that is listed is whole; OLDER is, and NEWER where its save has not failed.
static Status check_folder(const char *save, End end) {
    int64_t *steps = NULL;
    int count = 0;
    bool older = false, newer = false;
    Status status = checkpoint_steps(save, &steps, &count);
    for (int i = 0; i < count && status == OK; i++) {
        older |= steps[i] == OLDER, newer |= steps[i] == NEWER;
        status = check_step(save, steps[i]);
        if (status != OK)
            status = broken(steps[i] == NEWER ? "the new checkpoint is there and not complete"
                                              : "an older checkpoint is damaged");
    }
    free(steps);
    TRY(status);
    if (!older) return fail(ERR_DATA, "the older checkpoint is gone");
    if (end.killed) return OK;
    if (end.status == OK && !newer)
        return fail(ERR_DATA, "the save succeeded and its checkpoint is not there");
    if (end.status != OK && newer) return fail(ERR_DATA, "the save failed and its checkpoint is there");
    return OK;
}

// The save that follows a fault needs no help.
static Status save_again(const char *save) {
    End end = {0};
    plan->number = 0;
    TRY(save_in_child(save, NEWER, &end));
    if (end.killed || end.status != OK)
        return fail(ERR_DATA, "the next save fails with status %d", end.status);
    return check_folder(save, end);
}

static Status save_or_fail(const char *save, int step) {
    bool locks;
    Status status = save_step(save, step, &locks);
    return status == OK ? OK : broken("a save without any fault fails");
}

// OLDEST and OLDER alone are there.
static Status set_up(const char *save) {
    CheckpointNames names;
    for (int step = OLDEST; step <= NEWER; step++) {
        TRY(checkpoint_names(save, step, &names));
        if (step == NEWER)
            TRY(folder_remove(names.final));
        else if (!file_exists(names.final))
            TRY(save_or_fail(save, step));
    }
    return OK;
}

// ---- all of them --------------------------------------------------------------------------------

// Fails only where the trial cannot go on.
static Status try_fault(const char *save, FileCall call, int number, TrialFault fault, TrialResult *result) {
    End end = {0};
    TRY(set_up(save));
    plan->call = call, plan->number = number, plan->fault = fault;
    TRY(save_in_child(save, NEWER, &end));
    if (end.killed != (fault == TRIAL_KILL))
        return fail(ERR_BUG, "call %d of %s was not reached", number, file_call_name(call));
    Status status = check_folder(save, end);
    if (status == OK) status = save_again(save);
    result->tried[call][fault]++;
    if (status == OK) return OK;
    result->broken[call][fault]++;
    if (!result->first.size)
        text_add(&result->first, "%s number %d %s: %s", file_call_name(call), number, trial_fault_name(fault),
                 fail_message());
    return folder_remove(save);
}

static Status try_all(const char *save, const atomic_int *stopped, TrialResult *result) {
    End end = {0};
    TRY(set_up(save));
    plan->number = 0;
    TRY(save_in_child(save, NEWER, &end));
    if (end.status != OK) return fail((Status)end.status, "%s: a save without any fault fails", save);
    TRY(check_folder(save, end));
    memcpy(result->made, plan->counts, sizeof result->made);
    result->locks = plan->locks;
    for (FileCall call = 0; call < NUM_FILE_CALLS; call++)
        for (int number = 1; number <= result->made[call]; number++)
            for (TrialFault fault = 0; fault < NUM_TRIAL_FAULTS; fault++) {
                if (stopped && atomic_load(stopped)) return fail(INTERRUPTED, "stopped by a signal");
                TRY(try_fault(save, call, number, fault, result));
            }
    return OK;
}

static Status open_plan(void) {
    plan = mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return plan != MAP_FAILED ? OK : fail(ERR_OS, "no memory that two processes share: %s", strerror(errno));
}

static void close_plan(void) {
    munmap(plan, sizeof *plan);
    plan = NULL;
}

Status trial_run(const char *folder, const atomic_int *stopped, TrialResult *result) {
    char save[PATH_ROOM], message[1024];
    struct stat st;
    *result = (TrialResult){0};
    TRY(path_join(save, folder, "trireme-selftest"));
    if (stat(folder, &st) || !S_ISDIR(st.st_mode))
        return fail(ERR_NO_INPUT, "%s: there is no such folder", folder);
    if (file_exists(save))
        return fail(ERR_CREATE, "%s: it is there already: remove it, or name another folder", save);
    TRY(open_plan());
    Status status = try_all(save, stopped, result);
    snprintf(message, sizeof message, "%s", fail_message());
    Status removed = folder_remove(save);
    close_plan();
    return status == OK ? removed : fail(status, "%s", message);
}

void trial_free(TrialResult *result) { text_free(&result->first); }

Status trial_count(const char *save, int made[NUM_FILE_CALLS]) {
    TRY(open_plan());
    Status status = OK;
    for (int step = OLDEST; step <= NEWER && status == OK; step++) status = save_counted(save, step);
    memcpy(made, plan->counts, sizeof plan->counts);
    close_plan();
    return status;
}
