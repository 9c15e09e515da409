// Gives a transport whose work is done by host code the tensors of one call: it waits until the call's stream has
// reached the call, and says where the host finds them. The only place in comm that follows addresses of device
// memory.
#pragma once
#include "comm/transport.h"

typedef struct {
    Device *device;           // NULL: the call's data are in plain memory
    HostAccess reads, writes; // what the call reads only; what it writes, or reads and writes
} HostAdapter;

// Announces to the device that the call uses its tensors from the place that its stream has reached now. `group`
// is the call's. `name` is for messages and stays alive.
void host_adapter_open(HostAdapter *adapter, Device *device, const Call *call, const Group *group,
                       const char *name);
// Returns whether the stream has reached the call. Waits for that at most `seconds`.
bool host_adapter_ready(const HostAdapter *adapter, double seconds);
// Once it is ready: replaces the addresses in the call by those that the host may follow.
void host_adapter_reveal(const HostAdapter *adapter, Call *call);
// The tensors may be used again. Takes what was only zeroed.
void host_adapter_close(HostAdapter *adapter);
