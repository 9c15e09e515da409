// A library for LD_PRELOAD that makes one call on files fail, to see what a program does then:
//
//   TRIREME_FAULT=CALL:N:ACTION[,CALL:N:ACTION...]    the N-th call, counted from 1; "N+": that and all later
//   CALL    open write pwrite fsync rename mkdir close unlink (renameat2 counts as rename, remove as unlink)
//   ACTION  ENOSPC EIO EINTR EINVAL   the call does nothing and fails so
//           SHORT   a write writes half of it
//           DELAYms the call comes so many milliseconds late, DELAY50
//           KILL    the process is killed in front of it
//   TRIREME_FAULT_COUNTS=FILE  at the end, how often each was called: lines "CALL N"
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
#include <time.h>
#include <unistd.h>

#define CALLS(X) X(open) X(write) X(pwrite) X(fsync) X(rename) X(mkdir) X(close) X(unlink)
#define X(name)  CALL_##name,
typedef enum { CALLS(X) NUM_CALLS } Call;
#undef X
#define X(name) #name,
static const char *const call_names[] = {CALLS(X)};
#undef X

static atomic_int counts[NUM_CALLS];

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

// What is to happen at this call: the text of its action, or NULL.
static const char *action_of(Call call) {
    int count = atomic_fetch_add(&counts[call], 1) + 1;
    size_t length = strlen(call_names[call]);
    for (const char *fault = getenv("TRIREME_FAULT"); fault; fault = strchr(fault, ',')) {
        fault += *fault == ',';
        if (strncmp(fault, call_names[call], length) != 0 || fault[length] != ':') continue;
        const char *action = fault + length + 1;
        if (is_this(&action, count)) return action;
    }
    return NULL;
}

static int starts(const char *text, const char *word) { return !strncmp(text, word, strlen(word)); }

// True when the call is to fail, with errno.
static int fails(const char *action) {
    static const struct {
        const char *name;
        int error;
    } errors[] = {{"ENOSPC", ENOSPC}, {"EIO", EIO}, {"EINTR", EINTR}, {"EINVAL", EINVAL}};
    if (!action) return 0;
    if (starts(action, "KILL")) kill(getpid(), SIGKILL);
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
    return fails(action_of(CALL_open)) ? -1 : real(path, flags, mode);
}

ssize_t write(int fd, const void *data, size_t size) {
    ssize_t (*real)(int, const void *, size_t);
    find("write", &real);
    const char *action = action_of(CALL_write);
    return fails(action) ? -1 : real(fd, data, shortened(action, size));
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    ssize_t (*real)(int, const void *, size_t, off_t);
    find("pwrite", &real);
    const char *action = action_of(CALL_pwrite);
    return fails(action) ? -1 : real(fd, data, shortened(action, size), at);
}

int fsync(int fd) {
    int (*real)(int);
    find("fsync", &real);
    return fails(action_of(CALL_fsync)) ? -1 : real(fd);
}

int rename(const char *from, const char *to) {
    int (*real)(const char *, const char *);
    find("rename", &real);
    return fails(action_of(CALL_rename)) ? -1 : real(from, to);
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    int (*real)(int, const char *, int, const char *, unsigned);
    find("renameat2", &real);
    return fails(action_of(CALL_rename)) ? -1 : real(from_folder, from, to_folder, to, flags);
}

int mkdir(const char *path, mode_t mode) {
    int (*real)(const char *, mode_t);
    find("mkdir", &real);
    return fails(action_of(CALL_mkdir)) ? -1 : real(path, mode);
}

// The descriptor is gone also when close fails, as on Linux.
int close(int fd) {
    int (*real)(int);
    find("close", &real);
    int failed = fails(action_of(CALL_close)), error = errno, result = real(fd);
    if (failed) errno = error;
    return failed ? -1 : result;
}

int unlink(const char *path) {
    int (*real)(const char *);
    find("unlink", &real);
    return fails(action_of(CALL_unlink)) ? -1 : real(path);
}

int remove(const char *path) {
    int (*real)(const char *);
    find("remove", &real);
    return fails(action_of(CALL_unlink)) ? -1 : real(path);
}

__attribute__((destructor)) static void report(void) {
    const char *path = getenv("TRIREME_FAULT_COUNTS");
    FILE *file = path ? fopen(path, "w") : NULL;
    for (int i = 0; file && i < NUM_CALLS; i++)
        fprintf(file, "%s %d\n", call_names[i], atomic_load(&counts[i]));
    if (file) fclose(file);
}
