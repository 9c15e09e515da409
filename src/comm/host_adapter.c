// Lets host code use the tensors of a call, in the order of the call's stream.
#include "comm/host_adapter.h"

// The memory at `data`, `slices` times the call's count.
static Tensor tensor_at(const Call *call, const void *data, int slices) {
    return (Tensor){(void *)(uintptr_t)data, slices, data ? (int64_t)call->count : 0, call->dtype};
}

static bool contains(Tensor whole, Tensor part) {
    uintptr_t first = (uintptr_t)whole.data, at = (uintptr_t)part.data;
    return part.data && at >= first && at < first + tensor_bytes(whole);
}

// Returns whether a call with joint tensors reads all of the larger one. An all-gather reads this rank's slice only.
static bool reads_whole(const Call *call, const Group *group) {
    return call->op == COMM_ALL_REDUCE || call->op == COMM_REDUCE_SCATTER ||
           (call->op == COMM_BROADCAST && call->peer == group->rank);
}

// Where one tensor is a part of the other, only the larger one is announced, as written.
void host_adapter_open(HostAdapter *adapter, Device *device, const Call *call, const Group *group,
                       const char *name) {
    Tensor in = tensor_at(call, call->in, slices_in(call, group->size));
    Tensor out = tensor_at(call, call->out, slices_out(call, group->size));
    bool joint = contains(in, out) || contains(out, in);
    Tensor written = joint && tensor_bytes(in) > tensor_bytes(out) ? in : out;
    adapter->device = device;
    if (in.data && !joint) adapter->reads = device_access(device, call->stream, in, true, false, name);
    if (written.data)
        adapter->writes =
            device_access(device, call->stream, written, joint && reads_whole(call, group), true, name);
}

static bool ready(const HostAdapter *adapter, const HostAccess *access, double seconds) {
    return seconds > 0 ? event_wait_for(adapter->device, access->since, seconds)
                       : device_access_ready(adapter->device, access);
}

bool host_adapter_ready(const HostAdapter *adapter, double seconds) {
    return !adapter->device ||
           (ready(adapter, &adapter->reads, seconds) && ready(adapter, &adapter->writes, seconds));
}

static void *revealed(const HostAdapter *adapter, const void *data) {
    if (!data) return NULL;
    uintptr_t at = (uintptr_t)data - (uintptr_t)adapter->reads.data;
    const HostAccess *access = at < adapter->reads.bytes ? &adapter->reads : &adapter->writes;
    char *address = device_access_address(adapter->device, access);
    return address + ((uintptr_t)data - (uintptr_t)access->data);
}

void host_adapter_reveal(const HostAdapter *adapter, Call *call) {
    if (!adapter->device) return;
    call->in = revealed(adapter, call->in);
    call->out = revealed(adapter, call->out);
}

void host_adapter_close(HostAdapter *adapter) {
    if (!adapter->device) return;
    device_access_end(adapter->device, &adapter->reads);
    device_access_end(adapter->device, &adapter->writes);
    adapter->device = NULL;
}
