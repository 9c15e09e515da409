// Makes the calls on durable files, or lets them fail for a trial.
#include "base/calls.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

// Of the whole process, as the files are. It is set only in the process of a trial, before that starts a thread.
static int (*asked)(FileCall call);

const char *file_call_name(FileCall call) {
    static const char *const names[] = {
#define X(name) #name,
        FILE_CALLS(X)
#undef X
    };
    return names[call];
}

void file_calls_ask(int (*ask)(FileCall call)) { asked = ask; }

static bool fails(FileCall call) {
    int error = asked ? asked(call) : 0;
    if (error) errno = error;
    return error != 0;
}

int call_open(const char *path, int flags, mode_t mode) {
    return fails(FILE_CALL_open) ? -1 : open(path, flags, mode);
}

ssize_t call_write(int fd, const void *data, size_t size) {
    return fails(FILE_CALL_write) ? -1 : write(fd, data, size);
}

ssize_t call_pwrite(int fd, const void *data, size_t size, off_t offset) {
    return fails(FILE_CALL_write) ? -1 : pwrite(fd, data, size, offset);
}

int call_fsync(int fd) { return fails(FILE_CALL_fsync) ? -1 : fsync(fd); }

int call_rename(const char *from, const char *to) { return fails(FILE_CALL_rename) ? -1 : rename(from, to); }

int call_exchange(const char *a, const char *b) {
    return fails(FILE_CALL_rename) ? -1 : renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
}

int call_mkdir(const char *path, mode_t mode) { return fails(FILE_CALL_mkdir) ? -1 : mkdir(path, mode); }

// The descriptor is gone also when close fails, as on Linux.
int call_close(int fd) {
    bool failed = fails(FILE_CALL_close);
    int error = errno, result = close(fd);
    if (failed) errno = error;
    return failed ? -1 : result;
}

int call_unlink(const char *path) { return fails(FILE_CALL_unlink) ? -1 : unlink(path); }

int call_remove(const char *path) { return fails(FILE_CALL_unlink) ? -1 : remove(path); }

int call_flock(int fd, int operation) { return fails(FILE_CALL_flock) ? -1 : flock(fd, operation); }
