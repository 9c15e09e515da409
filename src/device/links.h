// Links: communicators of a library that moves tensors between the GPUs of several ranks, for the transport nccl of
// src/comm. Only backends with a table of them have links (backend.h): cuda by NVIDIA's NCCL, cuda-sim by a simulated
// one.
//
// Operations of a link are stream-ordered, and the host waits for nothing. On the GPU an operation stays, and holds up
// its stream, until the other ranks have come to theirs. Those of one link run one after the other, on whatever streams
// they are. Which links and streams a job needs so that no rank waits for ever is the transport's affair (comm/nccl.h).
//
// A link is busy after it was opened, after each link_end and while it is closed; nothing may be done with it until
// link_ready has said true, and what goes on its streams before that may come before its operations. A call that fails
// on a link that is open ends the job with what the library says.
#pragma once
#include "device/device.h"
#include "device/reduce.h"

typedef struct DeviceLink DeviceLink;

enum { LINK_ID_BYTES = 128 };
typedef struct {
    char bytes[LINK_ID_BYTES];
} LinkId;

typedef struct {
    const char *name; // for the library's messages; stays alive
    int rank, size;
    LinkId id;      // the same on all ranks of the link, and of no other link
    int max_blocks; // so many thread blocks at most does one operation take of the GPU
} LinkSpec;

// Checks whether ranks can be linked with this device. Fails with ERR_UNAVAILABLE where the device has no links or the
// library is missing, with ERR_DATA where the library is damaged or too old; the message says what to do.
Status links_check(Device *device);
// Sets what the library needs to find in the environment of the process before the first call to the GPU, unless it is
// set.
void links_set_environment(void);
// Checks the variables of the environment that could make ranks wait for ever that send messages to each other on
// several streams. ERR_CONFIG names the variable.
Status links_check_environment(void);
// The version of the library, "2.28.9"; ranks that are linked need the same. After links_check.
Status links_version(Device *device, char version[32]);
Status link_new_id(Device *device, LinkId *id);

// Begins to open a link of `spec->size` ranks, which all call it.
Status link_open(Device *device, const LinkSpec *spec, DeviceLink **link);
// Returns, in *ready, whether the link can be used now. Fails with ERR_OS and the library's words where the link cannot
// be opened, or is broken: a rank is gone.
Status link_ready(DeviceLink *link, bool *ready);
// Begins to close it: its operations are over, and all its ranks do so. Then link_free.
void link_close(DeviceLink *link);
void link_free(DeviceLink *link);
// Ends its operations as they are, and frees it; takes NULL.
void link_abort(DeviceLink *link);

// All that is given to one link between these becomes one operation, which all of its sends and receives are parts of.
void link_begin(DeviceLink *link);
void link_end(DeviceLink *link);
// `stream` is the same for all calls of an operation. Tensors have as many elements as those of the ranks that they
// meet.
void link_send(DeviceLink *link, Stream *stream, Tensor x, int to);
void link_receive(DeviceLink *link, Stream *stream, Tensor x, int from);
void link_gather(DeviceLink *link, Stream *stream, Tensor in,
                 Tensor out); // slice r of `out` becomes r's `in`
void link_broadcast(DeviceLink *link, Stream *stream, Tensor x, int root);
// In an order of the library's own, with sums of 16-bit types rounded at every step; a maximum loses NaN.
void link_all_reduce(DeviceLink *link, Stream *stream, Tensor x, ReduceOp op);
void link_reduce_scatter(DeviceLink *link, Stream *stream, Tensor in, Tensor out);
