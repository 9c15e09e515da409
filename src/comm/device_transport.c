// Chooses the transport that carries the tensors of devices between the ranks.
#include "comm/device_transport.h"
#include <stdio.h>
#include <string.h>

static Status staged_check(Comm *world, Device *device) {
    (void)world, (void)device;
    return OK;
}

// "auto" takes the first that all ranks can use.
static const DeviceTransport transports[] = {
    {"peer", peer_check, peer_open},
    {"nccl", nccl_check, nccl_open},
    {"staged", staged_check, NULL},
};
enum { NUM_TRANSPORTS = sizeof transports / sizeof *transports };

// "staged" is there for all, and slow. The last that cannot be used, "nccl", is what ranks that are processes need.
static void warn_of_staged(const Comm *world, const DeviceTransport *chosen) {
    if (chosen->open || comm_rank(world) != 0) return;
    fprintf(
        stderr,
        "trireme: warning: tensors go between the GPUs by way of the host's memory (--device-transport %s), "
        "which is slow: %s\n",
        chosen->name, fail_message());
}

static void choose_first(Comm *world, Device *device, const DeviceTransport **chosen) {
    int first = 0;
    while (comm_agree(world, transports[first].check(world, device)) != OK) first++; // staged is always there
    *chosen = &transports[first];
    warn_of_staged(world, *chosen);
}

static Status fail_unknown(const char *name) {
    Text names = {0};
    for (int i = 0; i < NUM_TRANSPORTS; i++) text_add(&names, ", %s", transports[i].name);
    Status status =
        fail(ERR_CONFIG, "device transport '%s' is unknown; there are auto%s", name, text_string(&names));
    text_free(&names);
    return status;
}

Status device_transport_choose(Comm *world, Device *device, const char *name,
                               const DeviceTransport **chosen) {
    *chosen = NULL;
    if (comm_size(world) == 1 || !device_computes(device)) return OK;
    bool has_gpu = *device_unit(device).name;
    if (!name || !strcmp(name, "auto")) {
        if (has_gpu) choose_first(world, device, chosen);
        return OK;
    }
    for (int i = 0; i < NUM_TRANSPORTS; i++)
        if (!strcmp(name, transports[i].name)) *chosen = &transports[i];
    if (!*chosen) return fail_unknown(name);
    return comm_agree(world, (*chosen)->check(world, device));
}
