// The calls by which durable files are opened, written, renamed and removed, behind one point at which a trial can make
// any of them fail (checkpoint/trial.h). Without a trial each is the call of the C library and the look at one pointer.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

//  name of the call
#define FILE_CALLS(X) X(open) X(write) X(fsync) X(rename) X(mkdir) X(close) X(unlink) X(flock)

typedef enum {
#define X(name) FILE_CALL_##name,
    FILE_CALLS(X)
#undef X
        NUM_FILE_CALLS
} FileCall;

const char *file_call_name(FileCall call);
// Sets a function that is asked in front of every call: it returns 0, or the errno with which the call fails without
// being made; a close is made and fails. For a process that is a trial, before it has other threads. NULL: none.
void file_calls_ask(int (*ask)(FileCall call));

int call_open(const char *path, int flags, mode_t mode);
ssize_t call_write(int fd, const void *data, size_t size);
ssize_t call_pwrite(int fd, const void *data, size_t size, off_t offset); // counts as write
int call_fsync(int fd);
int call_rename(const char *from, const char *to);
int call_exchange(const char *a, const char *b); // renameat2 with RENAME_EXCHANGE; counts as rename
int call_mkdir(const char *path, mode_t mode);
int call_close(int fd);
int call_unlink(const char *path);
int call_remove(const char *path); // counts as unlink
int call_flock(int fd, int operation);
