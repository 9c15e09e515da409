// A folder of checkpoints: which are listed, which are removed, what a save finds and leaves; and that a
// checkpoint of version 1 stays readable.
//   test_checkpoint_folder write-golden FOLDER    writes the checkpoint of tests/golden anew
#include "base/file.h"
#include "base/rank.h"
#include "checkpoint_slices.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void save_step(const char *save, int64_t step) {
    Model *m = model_make(1, 2, 6, 1);
    EXPECT_OK(model_save(m, save, step));
    model_free(m);
}

static void expect_steps(const char *save, const char *want) {
    int64_t *steps = NULL;
    int count = 0;
    Text text = {0};
    EXPECT_OK(checkpoint_steps(save, &steps, &count));
    for (int i = 0; i < count; i++) text_add(&text, "%s%" PRId64, i ? " " : "", steps[i]);
    EXPECT(!strcmp(text_string(&text), want), "steps \"%s\", not \"%s\"", text_string(&text), want);
    text_free(&text);
    free(steps);
}

static const char *step_path(const char *save, int64_t step, const char *file) {
    CheckpointNames names;
    char path[500];
    EXPECT_OK(checkpoint_names(save, step, &names));
    snprintf(path, sizeof path, "%s%s%s", names.final + strlen(harness_folder()) + 1, *file ? "/" : "", file);
    return path_in(path);
}

// As a run does that has written none of them.
static Status prune(const char *save, int64_t last, int keep, int64_t retain_interval) {
    StepList verified = {0};
    Status status = checkpoint_prune(save, last, keep, retain_interval, &verified);
    step_list_free(&verified);
    return status;
}

// ---- listing ------------------------------------------------------------------------------------

static void only_committed_ones_are_listed(void) {
    const char *save = path_in("list");
    expect_steps(save, "");
    static const char *const folders[] = {"",          "/step-00000007",      "/step-00000070",
                                          "/step-7",   "/step-000000007",     "/step-1234567890",
                                          "/step-",    "/.tmp-step-00000009", "/.old-step-00000010",
                                          "/step--07", "/step-0000001K",      "/.trash-step-00000011"};
    for (int i = 0; i < (int)(sizeof folders / sizeof folders[0]); i++) {
        char path[600];
        snprintf(path, sizeof path, "%s%s", save, folders[i]);
        EXPECT(mkdir(path, 0700) == 0, "cannot make %s", path);
    }
    EXPECT_OK(file_write(path_in("list/step-00000012"), "", 0)); // a file
    expect_steps(save, "1234567890 70 7");
}

// ---- pruning ------------------------------------------------------------------------------------

static void pruning_keeps_what_it_must(void) {
    const char *save = path_in("prune");
    EXPECT_OK(prune(save, INT64_MAX, 3, 0)); // nothing there
    for (int step = 10; step <= 70; step += 10) save_step(save, step);
    EXPECT(mkdir(path_in("prune/.trash-step-00000001"), 0700) == 0, "cannot make a folder");
    EXPECT_OK(prune(save, INT64_MAX, 0, 0));
    expect_steps(save, "70 60 50 40 30 20 10");
    EXPECT_OK(prune(save, INT64_MAX, 10, 0));
    expect_steps(save, "70 60 50 40 30 20 10");
    EXPECT(!file_exists(path_in("prune/.trash-step-00000001")), "trash is left");
    EXPECT_OK(prune(save, INT64_MAX, 3, 20));
    expect_steps(save, "70 60 50 40 20");
    EXPECT_OK(prune(save, INT64_MAX, 3, 0));
    expect_steps(save, "70 60 50");
    EXPECT_OK(prune(save, INT64_MAX, 1, 0));
    expect_steps(save, "70");
    char **names = NULL;
    int count = 0;
    EXPECT_OK(folder_list(save, &names, &count));
    EXPECT(count == 1, "%d names are left", count);
    free(names);
}

// One byte of the last tensor of a file changes: only who reads all finds it.
static void damage(const char *save, int64_t step) {
    const char *path = step_path(save, step, "rank-00000.safetensors");
    FILE *file = fopen(path, "r+b");
    EXPECT(file && fseek(file, -1, SEEK_END) == 0, "cannot open %s", path);
    int last = fgetc(file);
    EXPECT(fseek(file, -1, SEEK_END) == 0 && fputc(last ^ 1, file) != EOF && fclose(file) == 0,
           "cannot write");
}

static void pruning_counts_intact_ones_alone(void) {
    const char *save = path_in("intact");
    for (int step = 10; step <= 60; step += 10) save_step(save, step);
    const char *file = step_path(save, 50, "rank-00000.safetensors");
    EXPECT(truncate(file, 100) == 0, "cannot truncate %s", file);
    damage(save, 40);
    EXPECT(prune(save, INT64_MAX, 2, 0) == ERR_DATA, "says nothing of damaged ones");
    EXPECT(strstr(fail_message(), "step 40 does not count"), "%s", fail_message());
    expect_steps(save, "60 50 40 30"); // of which 60 and 30 are intact
    EXPECT_OK(prune(save, INT64_MAX, 1, 0));
    expect_steps(save, "60");
}

// What loading passes over, pruning does not count.
static void pruning_counts_none_under_another_name(void) {
    const char *save = path_in("renamed");
    for (int step = 10; step <= 30; step += 10) save_step(save, step);
    EXPECT(rename(path_in("renamed/step-00000030"), path_in("renamed/step-00000040")) == 0, "cannot rename");
    EXPECT(prune(save, INT64_MAX, 1, 0) == ERR_DATA, "counts it");
    EXPECT(strstr(fail_message(), "its manifest is of step 30"), "%s", fail_message());
    expect_steps(save, "40 20");
}

// What was verified once is not read again; what nobody has verified is, however well it opens.
static void pruning_reads_once(void) {
    const char *save = path_in("once");
    StepList verified = {0};
    for (int step = 10; step <= 30; step += 10) save_step(save, step);
    EXPECT_OK(checkpoint_prune(save, INT64_MAX, 2, 0, &verified));
    EXPECT(verified.count == 2 && verified.items[0] == 30 && verified.items[1] == 20, "%d are verified",
           verified.count);
    damage(save, 30);
    save_step(save, 40);
    EXPECT_OK(checkpoint_prune(save, INT64_MAX, 2, 0, &verified));
    expect_steps(save, "40 30");
    EXPECT(verified.count == 3, "%d are verified", verified.count);
    step_list_free(&verified);
}

// A run that went back to step 20 and has just saved 25.
static void pruning_leaves_later_ones(void) {
    const char *save = path_in("later");
    for (int step = 10; step <= 40; step += 10) save_step(save, step);
    save_step(save, 25);
    EXPECT_OK(prune(save, 25, 2, 0));
    expect_steps(save, "40 30 25 20");
    EXPECT_OK(prune(save, 25, 1, 0));
    expect_steps(save, "40 30 25");
}

// ---- saving -------------------------------------------------------------------------------------

static void what_was_killed_is_settled(void) {
    const char *save = path_in("settle");
    EXPECT_OK(checkpoint_settle(save)); // nothing there
    for (int step = 10; step <= 30; step += 10) save_step(save, step);
    EXPECT_OK(folder_make(path_in("settle/.tmp-step-00000040/deep")));
    EXPECT_OK(folder_make(path_in("settle/.trash-step-00000001")));
    EXPECT_OK(folder_make(path_in("settle/.old-step-00000010")));
    EXPECT_OK(folder_make(path_in("settle/.mine")));
    EXPECT(rename(step_path(save, 20, ""), path_in("settle/.old-step-00000020")) == 0, "cannot rename");
    EXPECT_OK(checkpoint_settle(save));
    expect_steps(save, "30 20 10");
    char **names = NULL;
    int count = 0;
    EXPECT_OK(folder_list(save, &names, &count));
    EXPECT(count == 4 && !strcmp(names[0], ".mine"), "%d names are left", count);
    free(names);
}

static void a_save_makes_the_folders_it_needs(void) {
    save_step(path_in("a/b/c"), 3);
    expect_steps(path_in("a/b/c"), "3");
}

static void a_stale_temporary_folder_is_replaced(void) {
    EXPECT_OK(folder_make(path_in("stale/.tmp-step-00000004")));
    EXPECT_OK(file_write(path_in("stale/.tmp-step-00000004/rank-00000.safetensors"), "old", 3));
    EXPECT_OK(file_write(path_in("stale/.tmp-step-00000004/other"), "old", 3));
    save_step(path_in("stale"), 4);
    expect_steps(path_in("stale"), "4");
    EXPECT(!file_exists(step_path(path_in("stale"), 4, "other")), "a stale file came along");
}

static void too_little_room_is_reported_first(void) {
    CheckpointNames names;
    EXPECT_OK(checkpoint_names(path_in("room"), 1, &names));
    EXPECT(checkpoint_begin(&names, INT64_MAX / 2) == ERR_CREATE, "begins without room");
    EXPECT(strstr(fail_message(), "no space"), "%s", fail_message());
    EXPECT(!file_exists(names.temporary), "a folder was made");
    EXPECT_OK(checkpoint_check_room(path_in("room"), 1000, 2));
    EXPECT(checkpoint_check_room(path_in("room"), INT64_MAX / 4, 2) == ERR_CREATE, "room for two");
    EXPECT(strstr(fail_message(), "no space for 2 checkpoints"), "%s", fail_message());
}

// A path that the folder itself has room in, but the files of a checkpoint do not.
static void a_path_that_is_too_long_is_reported_first(void) {
    char path[4096];
    int size = snprintf(path, sizeof path, "%s", path_in("deep"));
    while (size < 4050) {
        int digits = 4062 - size < 99 ? 4062 - size : 99;
        size += snprintf(path + size, sizeof path - (size_t)size, "/%0*d", digits, 0);
    }
    EXPECT_OK(folder_make(path));
    int lock;
    EXPECT(checkpoint_lock(path, 0, NULL, &lock) == ERR_CREATE, "a path of %d characters", size);
    EXPECT(strstr(fail_message(), "the name of the folder is too long"), "%s", fail_message());
}

// ---- the lock -----------------------------------------------------------------------------------

static void the_lock_names_its_holder_and_notices_its_loss(void) {
    const char *save = path_in("locked");
    int lock, other;
    EXPECT_OK(checkpoint_lock(save, 0, NULL, &lock));
    EXPECT_OK(checkpoint_lock_check(save, lock));
    double start_s = clock_s();
    fflush(stderr);
    int terminal = dup(STDERR_FILENO), said = open(path_in("said"), O_RDWR | O_CREAT, 0600);
    EXPECT(dup2(said, STDERR_FILENO) >= 0, "cannot redirect");
    Status status = checkpoint_lock(save, 0.2, NULL, &other);
    EXPECT(dup2(terminal, STDERR_FILENO) >= 0, "cannot redirect back");
    close(terminal);
    close(said);
    EXPECT(status == ERR_UNAVAILABLE && other < 0, "locked twice");
    EXPECT(clock_s() - start_s >= 0.2, "it does not wait");
    char *text = NULL;
    size_t size;
    EXPECT_OK(file_read(path_in("said"), 1000, &text, &size));
    EXPECT(text && strstr(text, "waiting up to 0.2 s for it to end (--lock-timeout)"), "%s", text);
    free(text);
    char me[64];
    snprintf(me, sizeof me, "process %ld on ", (long)getpid());
    EXPECT(strstr(fail_message(), "waited 0.2 s"), "%s", fail_message());
    EXPECT(checkpoint_lock(save, 0, NULL, &other) == ERR_UNAVAILABLE && !strstr(fail_message(), "waited"),
           "%s", fail_message());
    EXPECT(strstr(fail_message(), me) && strstr(fail_message(), " since 20"), "%s", fail_message());
    atomic_int stopped = 2;
    EXPECT(checkpoint_lock(save, 0, &stopped, &other) == INTERRUPTED, "waits although it is to stop");
    EXPECT(rename(path_in("locked/.lock"), path_in("locked/lock")) == 0, "cannot rename");
    EXPECT(checkpoint_lock_check(save, lock) == ERR_CREATE, "a lock that is gone");
    EXPECT_OK(checkpoint_lock(save, 0, NULL, &other)); // a second run
    EXPECT(checkpoint_lock_check(save, lock) == ERR_CREATE, "another's lock");
    EXPECT(strstr(fail_message(), "moved or replaced"), "%s", fail_message());
    checkpoint_unlock(other);
    EXPECT(rename(path_in("locked/lock"), path_in("locked/.lock")) == 0, "cannot rename");
    EXPECT_OK(checkpoint_lock_check(save, lock));
    EXPECT(rename(save, path_in("moved")) == 0, "cannot rename");
    EXPECT(checkpoint_lock_check(save, lock) == ERR_CREATE, "a folder that was moved");
    checkpoint_unlock(lock);
}

// Another process that waits for the lock, at most 20 seconds; `names` not NULL: to make that checkpoint.
static pid_t waiter(const char *save, const CheckpointNames *names, int held) {
    fflush(stdout);
    fflush(stderr);
    pid_t child = fork();
    if (child) return child;
    int lock, silent = open("/dev/null", O_WRONLY);
    close(held);
    if (dup2(silent, STDERR_FILENO) < 0) _exit(99);
    _exit(
        (int)(names ? checkpoint_lock_new(names, save, 20, &lock) : checkpoint_lock(save, 20, NULL, &lock)));
}

static int exit_of(pid_t child) {
    int state = 0;
    EXPECT(waitpid(child, &state, 0) == child, "no such process");
    return WIFEXITED(state) ? WEXITSTATUS(state) : -1;
}

static void a_waiter_takes_the_lock_that_is_there(void) {
    const char *save = path_in("relocked");
    int lock;
    EXPECT_OK(checkpoint_lock(save, 0, NULL, &lock));
    pid_t child = waiter(save, NULL, lock);
    nanosleep(&(struct timespec){0, 300000000}, NULL);
    EXPECT(rename(path_in("relocked/.lock"), path_in("relocked/lock")) == 0, "cannot rename");
    checkpoint_unlock(lock);
    int status = exit_of(child);
    EXPECT(status == OK, "the waiter fails with %d", status);
}

static void a_waiter_replaces_no_checkpoint(void) {
    const char *save = path_in("made_meanwhile");
    CheckpointNames names;
    int lock;
    EXPECT_OK(checkpoint_names(save, 0, &names));
    EXPECT_OK(checkpoint_lock(save, 0, NULL, &lock));
    pid_t child = waiter(save, &names, lock);
    nanosleep(&(struct timespec){0, 300000000}, NULL);
    EXPECT_OK(folder_make(names.final));
    checkpoint_unlock(lock);
    int status = exit_of(child);
    EXPECT(status == ERR_CREATE, "the waiter ends with %d", status);
}

static void a_save_is_left_alone_without_the_lock(void) {
    const char *save = path_in("lost");
    CheckpointNames names;
    int lock;
    EXPECT_OK(checkpoint_names(save, 3, &names));
    EXPECT_OK(checkpoint_lock(save, 0, NULL, &lock));
    EXPECT_OK(checkpoint_begin(&names, 0));
    EXPECT(rename(path_in("lost/.lock"), path_in("lost/lock")) == 0, "cannot rename");
    (void)fail(ERR_IO, "what went wrong before");
    checkpoint_abandon(&names, lock);
    EXPECT(file_exists(names.temporary), "the save of another run is gone");
    EXPECT(!strcmp(fail_message(), "what went wrong before"), "%s", fail_message());
    CheckpointInfo info = {0};
    EXPECT(checkpoint_commit(&names, lock, &info, NULL, NULL, 0) == ERR_CREATE, "commits without the lock");
    EXPECT(file_exists(names.temporary), "the save of another run is gone");
    EXPECT(rename(path_in("lost/lock"), path_in("lost/.lock")) == 0, "cannot rename");
    checkpoint_abandon(&names, lock);
    EXPECT(!file_exists(names.temporary), "it stays");
    checkpoint_unlock(lock);
}

// The same step again replaces the older one, also where a save was killed between two renames.
static void the_same_step_again(void) {
    const char *save = path_in("again");
    CheckpointNames names;
    Model *first = model_make(31, 3, 9, 2), *second = model_make(32, 2, 9, 2);
    EXPECT_OK(model_save(first, save, 5));
    EXPECT_OK(model_save(second, save, 5));
    expect_saved(second, save, 5);
    EXPECT_OK(checkpoint_names(save, 5, &names));
    EXPECT(!file_exists(names.temporary), "the older one is left");
    EXPECT(rename(names.final, path_in("again/.old-step-00000005")) == 0, "cannot rename");
    EXPECT_OK(checkpoint_begin(&names, 0));
    checkpoint_abandon(&names, -1);
    expect_saved(second, save, 5);
    model_free(first);
    model_free(second);
}

static void an_abandoned_save_keeps_its_message(void) {
    CheckpointNames names;
    EXPECT_OK(checkpoint_names(path_in("abandoned"), 1, &names));
    EXPECT_OK(checkpoint_begin(&names, 0));
    (void)fail(ERR_IO, "what went wrong");
    checkpoint_abandon(&names, -1);
    EXPECT(!file_exists(names.temporary), "the temporary folder is left");
    EXPECT(!strcmp(fail_message(), "what went wrong"), "%s", fail_message());
}

static void missing_folders_and_manifests(void) {
    Checkpoint *c = NULL;
    EXPECT(checkpoint_open(&c, path_in("nowhere")) == ERR_NO_INPUT && !c, "opens nothing");
    EXPECT(strstr(fail_message(), "nowhere"), "%s", fail_message());
}

// ---- version 1 ----------------------------------------------------------------------------------

enum { GOLDEN_SEED = 1, GOLDEN_STEP = 7 };

static Model *golden_model(void) { return model_make(GOLDEN_SEED, 2, 8, 2); }

static void version_1_stays_readable(void) {
    Model *m = golden_model();
    CheckpointNames names;
    Checkpoint *c = NULL;
    CheckpointInfo want = info_at(GOLDEN_STEP);
    want.shape.attention_dropout = 0; // it was saved with none
    Text a = {0}, b = {0};
    expect_saved(m, TEST_FOLDER "/golden/checkpoint_v1", GOLDEN_STEP);
    EXPECT_OK(checkpoint_names(TEST_FOLDER "/golden/checkpoint_v1", GOLDEN_STEP, &names));
    EXPECT_OK(checkpoint_open(&c, names.final));
    checkpoint_describe(&want, &a);
    if (c) checkpoint_describe(checkpoint_info(c), &b);
    EXPECT(!strcmp(text_string(&a), text_string(&b)), "reads\n%s", text_string(&b));
    checkpoint_close(c);
    text_free(&a);
    text_free(&b);
    model_free(m);
}

// Version 3 is written only where samples are left out.
static void left_out_samples_are_kept(void) {
    Model *m = golden_model();
    CheckpointNames names;
    Checkpoint *c = NULL;
    CheckpointInfo info = info_at(GOLDEN_STEP);
    Text records[MAX_RANKS] = {0};
    char *text = NULL;
    size_t size;
    EXPECT_OK(ranges_parse(&info.state.skipped, "3-9,20,100-199", "test"));
    info.state.rewinds = 2;
    EXPECT_OK(checkpoint_names(path_in("skipped"), GOLDEN_STEP, &names));
    EXPECT_OK(checkpoint_begin(&names, 1000));
    for (int r = 0; r < m->num_ranks; r++)
        EXPECT_OK(checkpoint_write_shard(&names, r, m->slices[r], m->num_slices[r], &records[r]));
    EXPECT_OK(checkpoint_commit(&names, -1, &info, NULL, records, m->num_ranks));
    EXPECT_OK(checkpoint_open(&c, names.final));
    if (c) {
        const RunState *state = &checkpoint_info(c)->state;
        EXPECT(!memcmp(&state->skipped, &info.state.skipped, sizeof state->skipped), "other ranges");
        EXPECT(state->rewinds == 2, "%lld rewinds", (long long)state->rewinds);
    }
    checkpoint_close(c);
    EXPECT_OK(file_read(path_in("skipped/step-00000007/manifest.json"), 1 << 20, &text, &size));
    EXPECT(text && strstr(text, "\"version\": 3") &&
               strstr(text, "\"skipped\": {\"samples\": [[3, 9], [20, 20], [100, 199]], \"rewinds\": 2}"),
           "%s", text);
    free(text);
    EXPECT_OK(model_save(m, path_in("plain"), GOLDEN_STEP));
    EXPECT_OK(file_read(path_in("plain/step-00000007/manifest.json"), 1 << 20, &text, &size));
    EXPECT(text && strstr(text, "\"version\": 1") && !strstr(text, "skipped\""), "%s", text);
    free(text);
    for (int r = 0; r < MAX_RANKS; r++) text_free(&records[r]);
    model_free(m);
}

static void steps_are_removed(void) {
    Model *m = golden_model();
    int64_t *steps = NULL;
    int count = 0;
    for (int64_t step = 2; step <= 12; step += 2) EXPECT_OK(model_save(m, path_in("removed"), step));
    EXPECT_OK(checkpoint_remove_steps(path_in("removed"), 4, 10));
    EXPECT_OK(checkpoint_steps(path_in("removed"), &steps, &count));
    EXPECT(count == 3 && steps[0] == 12 && steps[1] == 4 && steps[2] == 2, "%d are left", count);
    free(steps);
    model_free(m);
}

static int write_golden(const char *folder) {
    Model *m = golden_model();
    Status status = model_save(m, folder, GOLDEN_STEP);
    model_free(m);
    if (status != OK) fprintf(stderr, "%s\n", fail_message());
    return (int)status;
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "write-golden")) return write_golden(argv[2]);
    use_memory_for_files();
    return harness_run(
        (const Test[]){
            {"only_committed_ones_are_listed", only_committed_ones_are_listed},
            {"pruning_keeps_what_it_must", pruning_keeps_what_it_must},
            {"pruning_counts_intact_ones_alone", pruning_counts_intact_ones_alone},
            {"pruning_reads_once", pruning_reads_once},
            {"pruning_leaves_later_ones", pruning_leaves_later_ones},
            {"what_was_killed_is_settled", what_was_killed_is_settled},
            {"a_save_makes_the_folders_it_needs", a_save_makes_the_folders_it_needs},
            {"a_stale_temporary_folder_is_replaced", a_stale_temporary_folder_is_replaced},
            {"too_little_room_is_reported_first", too_little_room_is_reported_first},
            {"a_path_that_is_too_long_is_reported_first", a_path_that_is_too_long_is_reported_first},
            {"the_lock_names_its_holder_and_notices_its_loss",
             the_lock_names_its_holder_and_notices_its_loss},
            {"a_waiter_takes_the_lock_that_is_there", a_waiter_takes_the_lock_that_is_there},
            {"pruning_counts_none_under_another_name", pruning_counts_none_under_another_name},
            {"a_waiter_replaces_no_checkpoint", a_waiter_replaces_no_checkpoint},
            {"a_save_is_left_alone_without_the_lock", a_save_is_left_alone_without_the_lock},
            {"the_same_step_again", the_same_step_again},
            {"an_abandoned_save_keeps_its_message", an_abandoned_save_keeps_its_message},
            {"missing_folders_and_manifests", missing_folders_and_manifests},
            {"version_1_stays_readable", version_1_stays_readable},
            {"left_out_samples_are_kept", left_out_samples_are_kept},
            {"steps_are_removed", steps_are_removed},
            {0}},
        argc, argv);
}
