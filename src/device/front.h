// The insides of the front, shared by its files: device.c (kinds, streams, memory, copies), launch.c (operations)
// and fused.c (those that join others).
// Backends do not see it.
#pragma once
#include "device/backend.h"

struct Stream {
    Exec exec;
    Device *device;
    const char *name;
    Stream *next;      // of the device's streams
    size_t peak_bytes; // the largest workspace that any operation needed
};

enum { MAX_RESERVED = 32 };

struct Device {
    Backend backend; // its callbacks are all set
    // Whose workspace is reported: the backend, or the one that a null device stands for.
    const Backend *model;
    DeviceOptions options;
    void *state;     // the backend's
    Stream *streams; // the last one is the compute stream
    Stream compute;
    OpCount counts[NUM_DEVICE_OPS];
    void (*hook)(void *self); // called before every operation; may be NULL
    void *hook_self;
    DeviceWait wait;
    struct {
        Matmul most;
        bool summed;
    } reserved[MAX_RESERVED]; // the last kinds of products that matmul_reserve was asked for
    int num_reserved;
    OnOperation *listener; // called for every operation; may be NULL
    void *listener_self;
};

// Make a fused operation by the basic ones (fused.c).
void split_matmul_sums(Device *device, Stream *stream, const MatmulSums *args);
void split_matmul_gelu(Device *device, Stream *stream, const MatmulGelu *args);
void split_matmul_gelu_backward(Device *device, Stream *stream, const MatmulGeluBackward *args);
void split_norm_backward(Device *device, Stream *stream, const NormBackward *args);
void split_loss_whole(Device *device, Stream *stream, const LossWhole *args);
