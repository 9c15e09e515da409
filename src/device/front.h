// The insides of the front, shared by its files: device.c (life and memory), ops.c (operations), check.c (the
// checking device). Backends do not see it.
#pragma once
#include "device/backend.h"

enum { MOST_TENSORS = 8 };

// What the front knows of an operation: its tensors in the order of the argument struct, those read before
// those written.
typedef struct {
    const char *name, *event; // the event's format takes the rows and columns of the first tensor written
    int reads, writes;
    const char *tensors[MOST_TENSORS];
} OpRow;
extern const OpRow op_rows[NUM_DEVICE_OPS];

// The checking device's live allocations, by their plain addresses.
typedef struct {
    char *start;
    size_t bytes;
} Allocation;

typedef struct {
    Allocation *allocations;
    int num_allocations, max_allocations;
} Guard;

struct Stream {
    Exec exec;
    size_t peak_bytes; // the largest workspace any operation needed
};

struct Device {
    const Backend *backend; // null: the one whose workspace it reports
    bool computes, checks;
    Stream stream;
    OpCount counts[NUM_DEVICE_OPS];
    void (*hook)(void *self); // called before every operation; may be NULL
    void *hook_self;
    OnOperation *listener; // told of every operation; may be NULL
    void *listener_self;
    Guard guard;         // checking device
    uintptr_t next_fake; // null device
};

// ---- null.c: addresses with nothing behind them -----------------------------------------------------------

Memory null_memory(Device *device);

// ---- check.c: what a GPU would not forgive ----------------------------------------------------------------

Memory check_memory(Guard *guard);
bool check_owns(const Arena *arena); // whether the arena lives in a checking device's memory
void check_poison(void *data, size_t bytes);
void check_close(Guard *guard); // CHECKs that every arena was closed
// The plain address of [data, data + bytes). CHECKs that it is disguised, inside one live allocation, and
// that this allocation's canaries live; a failure names `who` and `what`.
void *check_reveal(const Guard *guard, const char *who, const char *what, void *data, size_t bytes);
// CHECKs that `pointer` is the host's.
void check_host(const char *who, const void *pointer);
// Before an operation: reveals its tensors in place. After it: looks at the canaries again, then for the
// first number written that is not finite, which it names before it ends the job with ERR_NUMERIC.
void check_before(const Guard *guard, DeviceOp op, Tensor *tensors);
void check_after(const Guard *guard, DeviceOp op, const Tensor *tensors);
