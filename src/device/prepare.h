// Preparing a device for a run: libraries make a plan for every kind of matrix product and of attention, may find none,
// and should say so before the first step. The null device, on which the step is tried, tells which kinds there are.
//
// A kind is what a plan depends on: the operation, shapes, types and flags, whether tensors are absent, and how their
// addresses are aligned. It is the same on the device that computes, as arenas are laid out alike there.
#pragma once
#include "device/op_table.h"

// The first call of a kind; of its addresses only the alignment means anything, up to DEVICE_CALL_ALIGNMENT, and of its
// dropout only the probability; its first head is any.
enum { DEVICE_CALL_ALIGNMENT = 256 };
typedef struct {
    DeviceOp op;
    union {
        Matmul matmul;
        MatmulSums matmul_sums;
        MatmulGelu matmul_gelu;
        MatmulGeluBackward matmul_gelu_backward;
        AttentionForward attention_forward;
        AttentionBackward attention_backward;
    } args;
} DeviceCall;

// Zeros: none.
typedef struct {
    DeviceCall *items;
    int count, capacity;
    bool incomplete; // memory ran out
} DeviceCalls;

// Notes a call, unless one of its kind is there, or it is neither a product nor attention. An OnOperation
// (device/ops.h) whose `self` are the calls.
void device_calls_note(void *calls, DeviceOp op, const void *args, OpCount one);
void device_calls_free(DeviceCalls *calls); // takes what was only zeroed
// Has the device make ready what such calls need. Calls of other kinds still run: what they need is made with them.
// ERR_UNAVAILABLE where a library does not take a call that it has to take, ERR_OS where it fails, or without memory.
Status device_prepare(Device *device, const DeviceCalls *calls);
