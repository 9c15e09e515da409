// What a backend is: a table of typed functions, one per operation, that contain arithmetic only. The front
// (ops.c) has already checked shapes, revealed addresses and found the workspace when one of them is called.
#pragma once
#include "device/ops.h"

// Where an operation runs: the rank's threads and the stream's scratch memory.
typedef struct {
    int threads;
    void *workspace; // at least what workspace_bytes said for this call
    size_t workspace_bytes;
} Exec;

typedef struct {
    const char *name;
#define X(NAME, function, Args, reads, writes) void (*function)(const Exec *exec, const Args *args);
    DEVICE_OPS(X)
#undef X
    // Workspace of one call, in bytes; `args` is the operation's argument struct. NULL: none ever.
    size_t (*workspace_bytes)(int threads, DeviceOp op, const void *args);
    // Whether the user's environment lets it compute; ERR_CONFIG with the variable. NULL: always.
    Status (*check)(void);
    // Which of its kernels this process takes, for people. NULL: there is no choice.
    const char *(*kernels)(void);
} Backend;

extern const Backend reference_backend;
extern const Backend cpu_backend;
