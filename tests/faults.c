// A library for LD_PRELOAD that makes one call on files fail, to see what a program does then:
//
//   TRIREME_FAULT=CALL:N:ACTION[,CALL:N:ACTION...]    the N-th call, counted from 1; "N+": that and all later
//           CALL@PART:N:ACTION counts only calls with a path (of rename the old one) that contains PART
//   CALL    open write pwrite fsync rename mkdir close unlink (renameat2 counts as rename, remove as unlink)
//           posix_fadvise statvfs
//   ACTION  ENOENT ENOSPC EIO EINTR EINVAL   the call does nothing and fails so
//           SHORT   a write writes half of it
//           FLIP    a write writes one bit otherwise; in front of posix_fadvise, with which a reader drops the
//                   page cache, one bit of the file changes: the disk has other bytes than the cache had
//           EXTRA   behind the bytes of a write comes one of another writer
//           ROOM<n> statvfs finds n bytes free, ROOM1000000
//           DELAYms the call comes so many milliseconds late, DELAY50
//           KILL    the process is killed in front of it
//           HOLD    the process waits in front of it until it is killed, or its parent has ended
//   TRIREME_FAULT_COUNTS=FILE  at the end, how often each was called: lines "CALL N"
//   TRIREME_FAULT_FIRED=FILE   gets a line "CALL ACTION" for each call that is about to fail
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define CALLS(X)                                                                                             \
    X(open) X(write) X(pwrite) X(fsync) X(rename) X(mkdir) X(close) X(unlink) X(posix_fadvise) X(statvfs)
#define X(name) CALL_##name,
typedef enum { CALLS(X) NUM_CALLS } Call;
#undef X
#define X(name) #name,
static const char *const call_names[] = {CALLS(X)};
#undef X

enum { MOST_FAULTS = 16 };
static atomic_int counts[NUM_CALLS], counts_of_paths[MOST_FAULTS];

// A function of the C library by name; object pointers become function pointers through memory.
static void find(const char *name, void *function) {
    void *found = dlsym(RTLD_NEXT, name);
    memcpy(function, &found, sizeof found);
}

// "N" or "N+" at `text`: whether it means this one; moves behind it and a colon.
static int is_this(const char **text, int count) {
    char *end;
    long n = strtol(*text, &end, 10);
    int later = *end == '+';
    *text = end + later + 1;
    return later ? count >= n : count == n;
}

static void note(Call call, const char *action) {
    const char *path = getenv("TRIREME_FAULT_FIRED");
    char line[64];
    int (*real_open)(const char *, int, ...), (*real_close)(int);
    ssize_t (*real_write)(int, const void *, size_t);
    if (!path) return;
    find("open", &real_open);
    find("write", &real_write);
    find("close", &real_close);
    int fd = real_open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    int size = snprintf(line, sizeof line, "%s %.*s\n", call_names[call], (int)strcspn(action, ","), action);
    if (fd < 0 || real_write(fd, line, (size_t)size) != size) abort();
    real_close(fd);
}

// "@PART" at `text`: whether the path contains it; moves behind it.
static int has_part(const char **text, const char *path) {
    char part[256];
    size_t size = strcspn(*text, ":");
    snprintf(part, sizeof part, "%.*s", (int)size - 1, *text + 1);
    *text += size;
    return path && strstr(path, part);
}

// What is to happen at this call: the text of its action, or NULL. `path` NULL: the call has none.
static const char *action_of(Call call, const char *path) {
    int count = atomic_fetch_add(&counts[call], 1) + 1, number = 0;
    size_t length = strlen(call_names[call]);
    for (const char *fault = getenv("TRIREME_FAULT"); fault; fault = strchr(fault, ','), number++) {
        fault += *fault == ',';
        if (strncmp(fault, call_names[call], length) != 0 || !fault[length] || !strchr(":@", fault[length]))
            continue;
        const char *action = fault + length;
        int own = count;
        if (*action == '@') {
            if (!has_part(&action, path) || number >= MOST_FAULTS) continue;
            own = atomic_fetch_add(&counts_of_paths[number], 1) + 1;
        }
        action++;
        if (is_this(&action, own)) return note(call, action), action;
    }
    return NULL;
}

static _Noreturn void hold(void) {
    for (pid_t parent = getppid(); getppid() == parent;)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    kill(getpid(), SIGKILL);
    abort();
}

static int starts(const char *text, const char *word) { return !strncmp(text, word, strlen(word)); }

// True when the call is to fail, with errno.
static int fails(const char *action) {
    static const struct {
        const char *name;
        int error;
    } errors[] = {{"ENOENT", ENOENT}, {"ENOSPC", ENOSPC}, {"EIO", EIO}, {"EINTR", EINTR}, {"EINVAL", EINVAL}};
    if (!action) return 0;
    if (starts(action, "KILL")) kill(getpid(), SIGKILL);
    if (starts(action, "HOLD")) hold();
    if (starts(action, "DELAY")) {
        long ms = strtol(action + 5, NULL, 10);
        nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
    }
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (starts(action, errors[i].name)) return errno = errors[i].error, 1;
    return 0;
}

static size_t shortened(const char *action, size_t size) {
    return action && starts(action, "SHORT") && size > 1 ? size / 2 : size;
}

int open(const char *path, int flags, ...) {
    int (*real)(const char *, int, ...);
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    find("open", &real);
    return fails(action_of(CALL_open, path)) ? -1 : real(path, flags, mode);
}

static ssize_t write_altered(ssize_t (*real)(int, const void *, size_t), int fd, const void *data,
                             size_t size) {
    char *copy = malloc(size);
    if (!copy) abort();
    memcpy(copy, data, size);
    copy[size / 2] ^= 1;
    ssize_t written = real(fd, copy, size);
    free(copy);
    return written;
}

ssize_t write(int fd, const void *data, size_t size) {
    ssize_t (*real)(int, const void *, size_t);
    find("write", &real);
    const char *action = action_of(CALL_write, NULL);
    if (fails(action)) return -1;
    if (action && starts(action, "FLIP") && size) return write_altered(real, fd, data, size);
    ssize_t written = real(fd, data, shortened(action, size));
    if (action && starts(action, "EXTRA") && real(fd, "x", 1) != 1) return -1;
    return written;
}

// The file behind a descriptor that may be open for reading alone.
static void alter_file(int fd) {
    char path[64], byte;
    struct stat st;
    ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
    int (*real_open)(const char *, int, ...), (*real_close)(int);
    find("pwrite", &real_pwrite);
    find("open", &real_open);
    find("close", &real_close);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int file = real_open(path, O_RDWR);
    if (file < 0) return;
    if (fstat(file, &st) == 0 && pread(file, &byte, 1, st.st_size / 2) == 1) {
        byte ^= 1;
        if (real_pwrite(file, &byte, 1, st.st_size / 2) != 1) abort();
    }
    real_close(file);
}

int posix_fadvise(int fd, off_t offset, off_t size, int advice) {
    int (*real)(int, off_t, off_t, int);
    find("posix_fadvise", &real);
    const char *action = action_of(CALL_posix_fadvise, NULL);
    if (fails(action)) return errno;
    if (action && starts(action, "FLIP")) alter_file(fd);
    return real(fd, offset, size, advice);
}

int statvfs(const char *path, struct statvfs *st) {
    int (*real)(const char *, struct statvfs *);
    find("statvfs", &real);
    const char *action = action_of(CALL_statvfs, path);
    if (fails(action)) return -1;
    int result = real(path, st);
    if (action && starts(action, "ROOM"))
        st->f_bavail = (unsigned long)strtoll(action + 4, NULL, 10) / st->f_frsize;
    return result;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    ssize_t (*real)(int, const void *, size_t, off_t);
    find("pwrite", &real);
    const char *action = action_of(CALL_pwrite, NULL);
    return fails(action) ? -1 : real(fd, data, shortened(action, size), at);
}

int fsync(int fd) {
    int (*real)(int);
    find("fsync", &real);
    return fails(action_of(CALL_fsync, NULL)) ? -1 : real(fd);
}

int rename(const char *from, const char *to) {
    int (*real)(const char *, const char *);
    find("rename", &real);
    return fails(action_of(CALL_rename, from)) ? -1 : real(from, to);
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    int (*real)(int, const char *, int, const char *, unsigned);
    find("renameat2", &real);
    return fails(action_of(CALL_rename, from)) ? -1 : real(from_folder, from, to_folder, to, flags);
}

int mkdir(const char *path, mode_t mode) {
    int (*real)(const char *, mode_t);
    find("mkdir", &real);
    return fails(action_of(CALL_mkdir, path)) ? -1 : real(path, mode);
}

// The descriptor is gone also when close fails, as on Linux.
int close(int fd) {
    int (*real)(int);
    find("close", &real);
    int failed = fails(action_of(CALL_close, NULL)), error = errno, result = real(fd);
    if (failed) errno = error;
    return failed ? -1 : result;
}

int unlink(const char *path) {
    int (*real)(const char *);
    find("unlink", &real);
    return fails(action_of(CALL_unlink, path)) ? -1 : real(path);
}

int remove(const char *path) {
    int (*real)(const char *);
    find("remove", &real);
    return fails(action_of(CALL_unlink, path)) ? -1 : real(path);
}

__attribute__((destructor)) static void report(void) {
    const char *path = getenv("TRIREME_FAULT_COUNTS");
    FILE *file = path ? fopen(path, "w") : NULL;
    for (int i = 0; file && i < NUM_CALLS; i++)
        fprintf(file, "%s %d\n", call_names[i], atomic_load(&counts[i]));
    if (file) fclose(file);
}
