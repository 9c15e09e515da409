// The groups of ranks of a topology, by role: opened once, for the engine, inference and tests alike.
#pragma once
#include "comm/comm.h"
#include "layout/topology.h"

enum { ALL_ROLES = (1 << NUM_ROLES) - 1 };

// Zeros: the topology of a single rank, without any group.
typedef struct {
    Topology topology;
    Comm *by_role[NUM_ROLES]; // NULL: not opened. ENDS: also on a rank that holds neither end, or both
} Groups;

// Opens the groups of `roles` (1 << ROLE_TENSOR | ...) that this rank is in. Roles whose ranks are the same share a
// group where topology_roles says so. Fails alike on all ranks.   Collective over `world`, which must hold the ranks of
// the grid. The caller closes the groups when this fails, too.
Status groups_open(Groups *groups, Comm *world, Topology topology, unsigned roles);
// Returns the memory of the device that a transport takes for this rank's groups, in bytes: nccl_staging_bytes
// (comm/nccl.h) or peer_staging_bytes (comm/device_transport.h) of each.
size_t groups_staging_bytes(const Topology *topology, unsigned roles, size_t of_group(int ranks));
// Gives the current rank its coordinates, which messages show from now on.
void groups_name_rank(const Groups *groups);
void groups_close(Groups *groups);
