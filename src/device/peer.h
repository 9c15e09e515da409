// Devices of one process that use each other's memory: copies, sums over several devices, and events that order the
// streams of different ranks. For transports (comm/peer.c).
//
// A device belongs to its rank's thread. What is passed between threads are addresses, SharedEvents, and Devices as the
// owner of an address; those who pass them see to it that the owner does not close or free them meanwhile.
//
// A stream waits only for what has been put on a stream before, anywhere in the process. So streams cannot wait for
// each other in a circle, whatever the ranks do.
#pragma once
#include "device/reduce.h"

// The place of a stream for streams of any device. It can be recorded again when all that wait for it have said so.
typedef struct SharedEvent SharedEvent;

enum { MAX_PEERS = 64 };

// The addresses may be of any device that the summing one reaches. Every out[i] gets in[0] op in[1] op ..., as
// reduce_in_order makes it, but for the payload of NaN. An `out` may be one of `in`; apart from that none overlap.
typedef struct {
    const void *in[MAX_PEERS];
    void *out[MAX_PEERS];
    int num_in, num_out;
    size_t count;
    DType dtype; // any type but I32
    ReduceOp op;
} PeerReduce;

// Returns whether devices of this kind can do all of this.
bool device_has_peers(const Device *device);
// Lets `device` use the memory of `other`: returns whether its sums may follow addresses there. Copies always may.
bool device_reach(Device *device, const Device *other);
// Another stream, without workspace: for copies, sums and waits alone. It is closed as any other.
Status device_side_stream_open(Device *device, const char *name, Stream **stream);

Status shared_event_open(Device *device, SharedEvent **event);
void shared_event_close(SharedEvent *event); // by any thread, also when the device is closed; takes NULL
void shared_event_record(Device *device, Stream *stream, SharedEvent *event);
void shared_event_wait(Device *device, Stream *stream,
                       const SharedEvent *event); // all later work of `stream`

// One of the two devices is `device` itself. The memory does not overlap.
void device_copy_between(Device *device, Stream *stream, void *to, const Device *to_device, const void *from,
                         const Device *from_device, size_t bytes);
void device_reduce(Device *device, Stream *stream, const PeerReduce *args);
