// A group of the device transport "nccl" (comm/nccl.h), and the links that carry its operations (nccl_group.c, which
// opens, watches and closes them; nccl_calls.c gives them the calls).
#pragma once
#include "comm/transport.h"
#include "device/links.h"
#include "device/peer.h"

// A link, with a stream of its own. Operations are given to it one after the other.
typedef struct NcclWay {
    struct NcclWay *next; // among the channels
    char name[48];        // for messages: "pp 0 to 1, channel 0"
    int from, to, channel;
    DeviceLink *link; // NULL: not opened yet
    Stream *stream;
    int64_t posted, given; // operations: so far; those that are on their stream
} NcclWay;

typedef struct {
    Group head;
    Comm *comm;
    Device *device;
    bool deterministic;
    bool failed; // a link could not be opened or closed
    NcclWay collectives, *channels;
    int max_parts; // of one sum: more are added in several
    char *staging; // a slot for each rank
    size_t slot_bytes;
    StreamEvent last; // the end of the last collective, which used the staging buffer
    double watched_s; // clock_s() when nccl_watch last asked the links
} NcclGroup;

extern const Transport nccl_transport;

// The link that carries a call. A CHECK fails where a channel is not open.
NcclWay *nccl_way(NcclGroup *group, const Call *call);
// Returns whether what the link was given is on its stream. Ends the job where the link is broken.
bool nccl_ready(const NcclWay *way);
// As Transport has them.
Status nccl_open_channel(Group *group, int from, int to, int channel);
void nccl_watch(Group *group);
void nccl_close(Group *group);
