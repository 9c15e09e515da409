// Where a device on the PCI bus, such as a GPU, is in its machine: which processors and which network interfaces are
// near it, as Linux describes it in sysfs.
//
// A device is named by its PCI address, "0000:3b:00.0": domain, bus, device and function in hexadecimal digits, as its
// folder in /sys/bus/pci/devices is. `sysfs` is SYSFS (base/cores.h), or laid out like it.
#pragma once
#include "base/cores.h"

enum { PCI_ID_BYTES = 32 };

// The number of the device's NUMA node; -1 where the system does not say.
int pci_node(const char *sysfs, const char *id);
// Finds the processors of the device's NUMA node; none where the system does not say.
void pci_cores(const char *sysfs, const char *id, Cores *cores);

// What two devices have in common, the nearest last.
typedef enum {
    PCI_FAR,         // nothing, or nothing that the system tells
    PCI_SAME_NODE,   // the NUMA node
    PCI_SAME_BRIDGE, // the host bridge, by which a processor reaches a tree of devices
    PCI_SAME_PORT    // a port of the host bridge: data need not pass the processor
} PciNearness;

// Appends the names of the network interfaces that are nearest to a device, "mlx5_0, eth1", those for RDMA first. Adds
// nothing where all are far.
PciNearness pci_networks(const char *sysfs, const char *id, Text *names);
// The nearness in words, "same NUMA node".
const char *pci_nearness(PciNearness nearness);
