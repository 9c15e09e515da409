// The front of links: passes their calls to the backend that has them.
#include "base/rank.h"
#include "device/front.h"
#include "device/links.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct DeviceLink {
    Device *device;
    const LinkBackend *backend;
    LinkSpec spec;
    void *state; // the backend's
};

// Streams of a rank that messages need: two directions to and from two neighbours, with those of the computes and of
// the groups. Fewer queues than streams, and one waits behind another.
enum { LEAST_QUEUES = 16 };
#define QUEUES     "CUDA_DEVICE_MAX_CONNECTIONS"
#define ALL_QUEUES "32"
#define ONE_ORDER  "NCCL_LAUNCH_ORDER_IMPLICIT"
#define LOADS_ALL  "CUDA_MODULE_LOADING"
#define CONNECTS   "NCCL_RUNTIME_CONNECT"

void links_set_environment(void) {
    setenv(QUEUES, ALL_QUEUES, 0);
    setenv(LOADS_ALL, "EAGER", 0); // a kernel that is loaded when it is first wanted waits for those that run
    // Else an algorithm's connections are made, and their memory is taken, when it is first wanted, within a step.
    setenv(CONNECTS, "0", 0);
}

Status links_check_environment(void) {
    const char *queues = getenv(QUEUES), *one_order = getenv(ONE_ORDER);
    if (!queues || strtol(queues, NULL, 10) < LEAST_QUEUES)
        return fail(ERR_CONFIG,
                    QUEUES
                    "%s%s would make the messages of a pipeline wait for each other for ever: NCCL needs a "
                    "queue of the GPU for each stream; set " QUEUES "=" ALL_QUEUES
                    ", or leave it to the program",
                    queues ? "=" : " unset", queues ? queues : "");
    if (one_order && strcmp(one_order, "0") != 0)
        return fail(ERR_CONFIG,
                    ONE_ORDER
                    "=%s would make the messages of a pipeline wait for each other for ever: NCCL would "
                    "run all operations of a GPU one after the other; unset it, or set " ONE_ORDER "=0",
                    one_order);
    return OK;
}

Status links_check(Device *device) {
    const LinkBackend *links = device->backend.links;
    if (!links)
        return fail(ERR_UNAVAILABLE,
                    "--device %s has no links between its ranks: NVIDIA's NCCL links GPUs of --device cuda",
                    device->options.kind);
    return links->check(device->state);
}

Status links_version(Device *device, char version[32]) {
    return device->backend.links->version(device->state, version);
}

Status link_new_id(Device *device, LinkId *id) { return device->backend.links->new_id(device->state, id); }

Status link_open(Device *device, const LinkSpec *spec, DeviceLink **link) {
    DeviceLink *l = calloc(1, sizeof *l);
    if (!l) return fail(ERR_OS, "no memory for a link of %s", spec->name);
    *l = (DeviceLink){.device = device, .backend = device->backend.links, .spec = *spec};
    Status status = l->backend->open(device->state, spec, &l->state);
    if (status == OK)
        *link = l;
    else
        free(l);
    return status;
}

Status link_ready(DeviceLink *link, bool *ready) { return link->backend->ready(link->state, ready); }

void link_close(DeviceLink *link) { link->backend->close(link->state); }

void link_free(DeviceLink *link) {
    link->backend->destroy(link->state, false);
    free(link);
}

void link_abort(DeviceLink *link) {
    if (!link) return;
    link->backend->destroy(link->state, true);
    free(link);
}

void link_begin(DeviceLink *link) { link->backend->begin(link->state); }
void link_end(DeviceLink *link) { link->backend->end(link->state); }

static void check_rank(const DeviceLink *link, int rank) {
    CHECK(rank >= 0 && rank < link->spec.size, "rank %d in a link of %d", rank, link->spec.size);
}

static void run(DeviceLink *link, Stream *stream, LinkCall call) {
    CHECK(stream->device == link->device, "a stream of another device");
    check_rank(link, call.peer);
    if (call.count) link->backend->run(link->state, &stream->exec, &call);
}

static LinkCall call_of(LinkOp op, Tensor in, Tensor out, int peer) {
    Tensor x = in.data ? in : out;
    return (LinkCall){.op = op,
                      .in = in.data,
                      .out = out.data,
                      .count = (size_t)tensor_count(x),
                      .dtype = x.dtype,
                      .peer = peer};
}

void link_send(DeviceLink *link, Stream *stream, Tensor x, int to) {
    run(link, stream, call_of(LINK_SEND, x, (Tensor){0}, to));
}

void link_receive(DeviceLink *link, Stream *stream, Tensor x, int from) {
    run(link, stream, call_of(LINK_RECEIVE, (Tensor){0}, x, from));
}

static void check_slices(const DeviceLink *link, Tensor whole, Tensor part) {
    CHECK(whole.dtype == part.dtype && tensor_count(whole) == link->spec.size * tensor_count(part),
          "%" PRId64 " elements %s in slices of %" PRId64 " %s", tensor_count(whole), dtype_name(whole.dtype),
          tensor_count(part), dtype_name(part.dtype));
}

void link_gather(DeviceLink *link, Stream *stream, Tensor in, Tensor out) {
    check_slices(link, out, in);
    run(link, stream, call_of(LINK_GATHER, in, out, 0));
}

void link_broadcast(DeviceLink *link, Stream *stream, Tensor x, int root) {
    run(link, stream, call_of(LINK_BROADCAST, x, x, root));
}

void link_all_reduce(DeviceLink *link, Stream *stream, Tensor x, ReduceOp op) {
    LinkCall call = call_of(LINK_ALL_REDUCE, x, x, 0);
    call.reduce = op;
    run(link, stream, call);
}

void link_reduce_scatter(DeviceLink *link, Stream *stream, Tensor in, Tensor out) {
    check_slices(link, in, out);
    LinkCall call = call_of(LINK_REDUCE_SCATTER, in, out, 0);
    call.count = (size_t)tensor_count(out);
    run(link, stream, call);
}
