// Device transports carry the calls on tensors of a device between the ranks, while host values, agreement, barriers
// and splits stay with the transport that the ranks were launched with. They are ordered (comm/transport.h): their
// operations run on streams of the device, and the host does not wait for them.
//
//   peer    ranks are threads of one process, and their GPUs use each other's memory (comm/peer.c)
//   nccl    GPUs of several processes and machines, by NVIDIA's NCCL (comm/nccl.h)
//   staged  no device transport: the host's transport moves copies in pinned memory of the host (comm/host_adapter.c)
//
// comm_use_device chooses one for all ranks: the one that CommOptions name, or the first of the table that every rank
// can use. Where that is staged, rank 0 prints why.
#pragma once
#include "comm/transport.h"

typedef struct {
    const char *name; // as --device-transport has it
    // Returns OK where this rank could use it for the tensors of `device`; else fails with the reason and what to do.
    // All ranks call it, which may compare what they have.
    Status (*check)(Comm *world, Device *device);
    // Opens the device transport's group for the ranks of `comm`, more than one. It may use the calls of `comm` on host
    // values. Its `split`, `pause`, `wake` and `report` are not called.   Collective over `comm`. NULL: for staged.
    // Sets *group to NULL where the host's transport carries this group's tensors.
    Status (*open)(Comm *comm, Device *device, Group **group);
} DeviceTransport;

// Returns the one that all ranks use for their devices: NULL where there is nothing to choose, for one rank, a device
// that counts only, or one without a GPU.   Collective over `world`; fails alike on all ranks.
Status device_transport_choose(Comm *world, Device *device, const char *name, const DeviceTransport **chosen);

Status peer_check(Comm *world, Device *device);
Status peer_open(Comm *comm, Device *device, Group **group);
// The memory of the device that the group of so many ranks takes where their GPUs do not all reach each other's memory;
// the group of all ranks is one, too.
size_t peer_staging_bytes(int ranks);
Status nccl_check(Comm *world, Device *device);
Status nccl_open(Comm *comm, Device *device, Group **group);
