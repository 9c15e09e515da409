// Locks a folder of checkpoints, so that at most one run writes there, and notices when the lock is lost.
#include "base/calls.h"
#include "base/file.h"
#include "base/rank.h"
#include "checkpoint/manifest.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { ASK_AGAIN_MS = 50 };

// Writes the name of this run into the lock, for the messages of other runs.
static void sign(int lock) {
    char host[128] = "", since[32], text[256];
    time_t now = time(NULL);
    struct tm local;
    gethostname(host, sizeof host - 1);
    strftime(since, sizeof since, "%Y-%m-%d %H:%M:%S", localtime_r(&now, &local));
    int size = snprintf(text, sizeof text, "process %ld on %s since %s", (long)getpid(), host, since);
    if (call_pwrite(lock, text, (size_t)size, 0) == size && ftruncate(lock, size))
        return; // it is only a message
}

static void read_holder(int lock, char holder[256]) {
    ssize_t size = pread(lock, holder, 255, 0);
    holder[size > 0 ? size : 0] = 0;
    if (!*holder) snprintf(holder, 256, "an unnamed process");
}

Status checkpoint_lock_check(const char *save, int lock) {
    char path[PATH_ROOM];
    struct stat held, there;
    if (lock < 0) return OK;
    TRY(path_join(path, save, ".lock"));
    if (fstat(lock, &held) == 0 && stat(path, &there) == 0 && held.st_dev == there.st_dev &&
        held.st_ino == there.st_ino)
        return OK;
    return fail(
        ERR_CREATE,
        "%s is not the lock that this run holds any more: the folder was moved or replaced, or the file "
        "was removed, so another run may save there; saves fail until it is back, and the second failure in a "
        "row ends a training run",
        path);
}

static Status open_lock(const char *path, int *file) {
    *file = call_open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    return *file >= 0 ? OK : fail(create_status(), "%s: cannot create: %s", path, strerror(errno));
}

typedef enum { LOCKED, HELD_BY_ANOTHER, NO_LOCKS } Answer;

static Answer try_lock(int file) {
    int result;
    do result = call_flock(file, LOCK_EX | LOCK_NB);
    while (result < 0 && errno == EINTR);
    return result == 0 ? LOCKED : errno == EWOULDBLOCK ? HELD_BY_ANOTHER : NO_LOCKS;
}

// Opens the file each time, since it may have been replaced. The caller closes `file`.
static Status ask(const char *save, int *file, Answer *answer) {
    char path[PATH_ROOM];
    TRY(folder_make(save));
    TRY(path_join(path, save, ".lock"));
    TRY(open_lock(path, file));
    *answer = try_lock(*file);
    if (*answer == LOCKED && checkpoint_lock_check(save, *file) != OK)
        *answer = HELD_BY_ANOTHER; // it has just been replaced
    return OK;
}

static bool is_stopped(const atomic_int *stopped) { return stopped && atomic_load(stopped); }

static void print_wait(const char *save, int file, double wait_s) {
    char holder[256];
    read_holder(file, holder);
    fprintf(stderr,
            "%s: another run is writing there (%s): waiting up to %g s for it to end (--lock-timeout)\n",
            save, holder, wait_s);
}

// Prints once which run it waits for. After OK the caller closes `file`.
static Status wait_for_lock(const char *save, double wait_s, const atomic_int *stopped, int *file,
                            Answer *answer) {
    TRY(ask(save, file, answer));
    if (*answer != HELD_BY_ANOTHER || wait_s <= 0) return OK;
    print_wait(save, *file, wait_s);
    for (double end_s = clock_s() + wait_s;
         *answer == HELD_BY_ANOTHER && clock_s() < end_s && !is_stopped(stopped);) {
        nanosleep(&(struct timespec){0, ASK_AGAIN_MS * 1000000L}, NULL);
        call_close(*file);
        TRY(ask(save, file, answer));
    }
    return OK;
}

static Status held_by_another(int file, const char *save, double wait_s) {
    char holder[256], waited[64] = "";
    read_holder(file, holder);
    if (wait_s > 0) snprintf(waited, sizeof waited, "; waited %g s for it to end (--lock-timeout)", wait_s);
    return fail(ERR_UNAVAILABLE, "%s: another run is writing there (%s)%s: stop it, or save elsewhere", save,
                holder, waited);
}

// The longest path that a save needs: a removal renames a checkpoint to .trash-step-..., and the tokenizer's files are
// written under temporary names. The long name comes last in the message, so that the advice is not cut off.
static Status check_length(const char *save) {
    char path[PATH_ROOM];
    struct stat st;
    int size =
        snprintf(path, sizeof path, "%s/.trash-step-0123456789/tokenizer_config.json.tmp.4194304", save);
    if (size < PATH_ROOM && (lstat(path, &st) == 0 || errno != ENAMETOOLONG)) return OK;
    return fail(
        ERR_CREATE,
        "the name of the folder is too long: a checkpoint there needs paths of up to %d characters, which the "
        "system does not allow; give a shorter one, or one relative to the current folder: %s",
        size, save);
}

Status checkpoint_lock(const char *save, double wait_s, const atomic_int *stopped, int *lock) {
    int file;
    Answer answer;
    *lock = -1;
    TRY(check_length(save));
    rank_doing("waiting for the lock on the checkpoints");
    TRY(wait_for_lock(save, wait_s, stopped, &file, &answer));
    Status status = OK;
    if (answer == HELD_BY_ANOTHER && is_stopped(stopped))
        status = fail(INTERRUPTED, "%s: stopped by a signal while another run was writing there", save);
    else if (answer == HELD_BY_ANOTHER)
        status = held_by_another(file, save, wait_s);
    if (answer == LOCKED) {
        sign(file);
        status = checkpoint_settle(save);
    }
    if (answer == LOCKED && status == OK)
        *lock = file;
    else
        call_close(file);
    return status;
}

static Status check_new(const CheckpointNames *names) {
    if (!file_exists(names->final)) return OK;
    return fail(ERR_CREATE, "%s: it exists already", names->final);
}

Status checkpoint_lock_new(const CheckpointNames *names, const char *save, double wait_s, int *lock) {
    TRY(check_new(names)); // before any wait
    TRY(checkpoint_lock(save, wait_s, NULL, lock));
    Status status = check_new(names);
    if (status != OK) checkpoint_unlock(*lock);
    return status;
}

void checkpoint_unlock(int lock) {
    if (lock >= 0) call_close(lock);
}
