// The folder of a run's checkpoints: which steps it has, room for more, removal of old ones.
#include "base/calls.h"
#include "base/file.h"
#include "checkpoint/manifest.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char step_prefix[] = "step-", trash_prefix[] = ".trash-step-", temporary_prefix[] = ".tmp-step-";
static const char old_prefix[] = ".old-";

static bool is_folder(const char *save, const char *name) {
    char path[PATH_ROOM];
    struct stat st;
    return path_join(path, save, name) == OK && stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

// Accepts only the name that checkpoint_names makes.
static bool step_of(const char *name, int64_t *step) {
    char again[64];
    const char *digits = name + strlen(step_prefix);
    if (strncmp(name, step_prefix, strlen(step_prefix)) != 0) return false;
    if (!*digits || strspn(digits, "0123456789") != strlen(digits) || !parse_int(digits, step)) return false;
    snprintf(again, sizeof again, "%s%08" PRId64, step_prefix, *step);
    return !strcmp(name, again);
}

static int newest_first(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

Status checkpoint_steps(const char *save, int64_t **steps, int *count) {
    char **names = NULL;
    int num_names = 0;
    *steps = NULL;
    *count = 0;
    if (!file_exists(save)) return OK;
    TRY(folder_list(save, &names, &num_names));
    *steps = malloc(((size_t)num_names + 1) * sizeof **steps);
    CHECK(*steps, "no memory for %d names", num_names);
    for (int i = 0; i < num_names; i++)
        if (step_of(names[i], &(*steps)[*count]) && is_folder(save, names[i])) ++*count;
    free(names);
    qsort(*steps, (size_t)*count, sizeof **steps, newest_first);
    return OK;
}

Status checkpoint_names(const char *save, int64_t iteration, CheckpointNames *names) {
    int most = sizeof names->final;
    int final = snprintf(names->final, sizeof names->final, "%s/step-%08" PRId64, save, iteration);
    int temporary =
        snprintf(names->temporary, sizeof names->temporary, "%s/.tmp-step-%08" PRId64, save, iteration);
    names->in_memory = false;
    if (final < most && temporary < most) return OK;
    return fail(ERR_CREATE, "%s: the name is too long", save);
}

// A tenth more, for everything that is not a tensor.
static int64_t bytes_needed(int64_t bytes, int count) {
    int64_t all;
    if (__builtin_mul_overflow(bytes, (int64_t)count, &all) || all > INT64_MAX / 11 * 10) return INT64_MAX;
    return all + all / 10;
}

Status checkpoint_check_room(const char *save, int64_t bytes, int count) {
    int64_t room, need = bytes_needed(bytes, count);
    char each[64] = "";
    TRY(folder_room(save, &room));
    if (room >= need) return OK;
    if (count > 1) snprintf(each, sizeof each, " (%.1f MB each)", (double)bytes_needed(bytes, 1) / 1e6);
    return fail(ERR_CREATE, "%s: no space for %d checkpoint%s%s: %.1f MB are needed, %.1f MB are left", save,
                count, count > 1 ? "s" : "", each, (double)need / 1e6, (double)room / 1e6);
}

// ---- pruning ------------------------------------------------------------------------------------

bool step_list_has(const StepList *steps, int64_t step) {
    for (int i = 0; i < steps->count; i++)
        if (steps->items[i] == step) return true;
    return false;
}

void step_list_add(StepList *steps, int64_t step) {
    if (step_list_has(steps, step)) return;
    steps->items = realloc(steps->items, ((size_t)steps->count + 1) * sizeof *steps->items);
    CHECK(steps->items, "no memory for a list of %d checkpoints", steps->count + 1);
    steps->items[steps->count++] = step;
}

void step_list_free(StepList *steps) {
    free(steps->items);
    *steps = (StepList){0};
}

Status checkpoint_open_step(Checkpoint **checkpoint, const char *save, int64_t step) {
    CheckpointNames names;
    *checkpoint = NULL;
    TRY(checkpoint_names(save, step, &names));
    TRY(checkpoint_open(checkpoint, names.final));
    int64_t iteration = checkpoint_info(*checkpoint)->state.iteration;
    if (iteration == step) return OK;
    checkpoint_close(*checkpoint);
    *checkpoint = NULL;
    return fail(ERR_DATA, "%s: its manifest is of step %" PRId64, names.final, iteration);
}

static Status verify_step(const char *save, int64_t step, StepList *verified) {
    Checkpoint *checkpoint = NULL;
    Status status = checkpoint_open_step(&checkpoint, save, step);
    if (status == OK && !step_list_has(verified, step)) status = checkpoint_verify(checkpoint);
    if (status == OK) step_list_add(verified, step);
    checkpoint_close(checkpoint);
    return status;
}

// Renames it first, so that a checkpoint that is removed by half is not taken for one.
static Status remove_step(const char *save, int64_t step) {
    CheckpointNames names;
    char trash[PATH_ROOM];
    TRY(checkpoint_names(save, step, &names));
    if (snprintf(trash, sizeof trash, "%s/%s%08" PRId64, save, trash_prefix, step) >= PATH_ROOM)
        return fail(ERR_CREATE, "%s: the name is too long", save);
    TRY(folder_remove(trash));
    if (call_rename(names.final, trash))
        return fail(errno_status(), "%s: cannot remove: %s", names.final, strerror(errno));
    return folder_remove(trash);
}

// Names that a killed save or removal has left.
static Status remove_left(const char *save, const char *prefix) {
    char **names = NULL, path[PATH_ROOM];
    int count = 0;
    TRY(folder_list(save, &names, &count));
    Status status = OK;
    for (int i = 0; i < count; i++) {
        if (strncmp(names[i], prefix, strlen(prefix)) != 0) continue;
        Status removed = path_join(path, save, names[i]);
        if (removed == OK) removed = folder_remove(path);
        if (removed != OK) status = removed;
    }
    free(names);
    return status;
}

// The number of steps from the newest on that contain `keep` intact checkpoints; all when there are fewer.
static int count_kept(const char *save, const int64_t *steps, int count, int keep, StepList *verified,
                      Status *status) {
    int i = 0;
    for (int intact = 0; i < count && intact < keep; i++) {
        Status one = verify_step(save, steps[i], verified);
        if (one == OK)
            intact++;
        else
            *status =
                fail(one, "step %" PRId64 " does not count for --keep-last: %s", steps[i], fail_message());
    }
    return i;
}

Status checkpoint_prune(const char *save, int64_t last, int keep, int64_t retain_interval,
                        StepList *verified) {
    int64_t *steps = NULL;
    int count = 0;
    if (keep <= 0) return OK;
    TRY(checkpoint_steps(save, &steps, &count));
    int later = 0;
    while (later < count && steps[later] > last) later++;
    Status status = count ? remove_left(save, trash_prefix) : OK;
    int first = count;
    if (count - later > keep)
        first = later + count_kept(save, steps + later, count - later, keep, verified, &status);
    for (int i = first; i < count; i++) {
        if (retain_interval > 0 && steps[i] % retain_interval == 0) continue;
        Status removed = remove_step(save, steps[i]);
        if (removed != OK) status = removed;
    }
    free(steps);
    return status;
}

Status checkpoint_remove_steps(const char *save, int64_t after, int64_t last) {
    int64_t *steps = NULL;
    int count = 0;
    TRY(checkpoint_steps(save, &steps, &count));
    Status status = OK;
    for (int i = 0; i < count && status == OK; i++)
        if (after < steps[i] && steps[i] <= last) status = remove_step(save, steps[i]);
    free(steps);
    return status;
}

Status checkpoint_keep_one(const char *save, int64_t step) {
    TRY(checkpoint_remove_steps(save, step, INT64_MAX));
    return checkpoint_remove_steps(save, -1, step - 1);
}

// ---- remains of killed runs ----------------------------------------------------------------------------

// After a save that was killed between two renames: gives the older checkpoint its name back.
static Status settle_old(const char *save, const char *name) {
    int64_t step;
    CheckpointNames names;
    char old[PATH_ROOM];
    if (strncmp(name, old_prefix, strlen(old_prefix)) != 0 || !step_of(name + strlen(old_prefix), &step))
        return OK;
    TRY(checkpoint_names(save, step, &names));
    TRY(path_join(old, save, name));
    if (file_exists(names.final)) return folder_remove(old);
    if (call_rename(old, names.final) == 0) return OK;
    return fail(create_status(), "%s: cannot rename to %s: %s", old, names.final, strerror(errno));
}

Status checkpoint_settle(const char *save) {
    char **names = NULL;
    int count = 0;
    if (!file_exists(save)) return OK;
    TRY(folder_list(save, &names, &count));
    Status status = OK;
    for (int i = 0; i < count && status == OK; i++) status = settle_old(save, names[i]);
    free(names);
    if (status == OK) status = remove_left(save, temporary_prefix);
    return status == OK ? remove_left(save, trash_prefix) : status;
}
