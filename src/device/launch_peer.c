// The front of what devices of one process do with each other's memory.
#include "base/rank.h"
#include "device/front.h"
#include "device/peer.h"
#include <stdlib.h>

struct SharedEvent {
    const PeerBackend *backend;
    void *event; // the backend's
};

static const PeerBackend *peers_of(const Device *device, const Stream *stream) {
    CHECK(device->backend.peers, "%s devices use no memory of others", device->options.kind);
    CHECK(!stream || stream->device == device, "a stream of another device");
    return device->backend.peers;
}

bool device_has_peers(const Device *device) { return device->backend.peers; }

bool device_reach(Device *device, const Device *other) {
    return peers_of(device, NULL)->reach(device->state, other->state);
}

Status shared_event_open(Device *device, SharedEvent **event) {
    const PeerBackend *backend = peers_of(device, NULL);
    SharedEvent *e = *event = malloc(sizeof *e);
    if (!e) return fail(ERR_OS, "no memory for an event");
    *e = (SharedEvent){.backend = backend};
    Status status = backend->event_open(device->state, &e->event);
    if (status == OK) return OK;
    free(e);
    *event = NULL;
    return status;
}

void shared_event_close(SharedEvent *event) {
    if (!event) return;
    event->backend->event_close(event->event);
    free(event);
}

void shared_event_record(Device *device, Stream *stream, SharedEvent *event) {
    peers_of(device, stream)->event_record(&stream->exec, event->event);
}

void shared_event_wait(Device *device, Stream *stream, const SharedEvent *event) {
    peers_of(device, stream)->event_wait(&stream->exec, event->event);
}

void device_copy_between(Device *device, Stream *stream, void *to, const Device *to_device, const void *from,
                         const Device *from_device, size_t bytes) {
    const PeerBackend *backend = peers_of(device, stream);
    CHECK(device == to_device || device == from_device, "a copy between two other devices");
    if (bytes) backend->copy(&stream->exec, to, to_device->state, from, from_device->state, bytes);
}

void device_reduce(Device *device, Stream *stream, const PeerReduce *args) {
    const PeerBackend *backend = peers_of(device, stream);
    CHECK(can_reduce(args->dtype) && args->num_in >= 1 && args->num_in <= MAX_PEERS && args->num_out >= 1 &&
              args->num_out <= MAX_PEERS,
          "a sum of %d %s parts to %d places", args->num_in, dtype_name(args->dtype), args->num_out);
    CHECK(args->op != REDUCE_TREE || can_add_in_tree(args->num_in), "a tree of %d parts", args->num_in);
    if (args->count) backend->reduce(&stream->exec, args);
}
