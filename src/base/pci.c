// Reads where devices of the PCI bus are from sysfs.
#include "base/pci.h"
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

// ---- NUMA nodes -------------------------------------------------------------------------------------------

static Text path_of(const char *folder, const char *name) {
    Text path = {0};
    text_add(&path, "%s/%s", folder, name);
    return path;
}

static int read_node(const char *folder) {
    Text path = path_of(folder, "numa_node");
    int node = -1;
    FILE *file = fopen(text_string(&path), "r");
    if (file && fscanf(file, "%d", &node) != 1) node = -1;
    if (file) fclose(file);
    text_free(&path);
    return node;
}

// NULL: there is no such device. The caller frees it.
static char *folder_of(const char *sysfs, const char *id) {
    Text path = {0};
    text_add(&path, "%s/bus/pci/devices/%s", sysfs, id);
    char *folder = *id ? realpath(text_string(&path), NULL) : NULL;
    text_free(&path);
    return folder;
}

int pci_node(const char *sysfs, const char *id) {
    char *folder = folder_of(sysfs, id);
    const int node = folder ? read_node(folder) : -1;
    free(folder);
    return node;
}

// A device without a node has a list, too: that of all processors.
void pci_cores(const char *sysfs, const char *id, Cores *cores) {
    *cores = (Cores){0};
    if (pci_node(sysfs, id) < 0) return;
    char *folder = folder_of(sysfs, id);
    Text path = path_of(folder ? folder : "", "local_cpulist");
    cores_read(text_string(&path), cores);
    text_free(&path);
    free(folder);
}

// ---- distances --------------------------------------------------------------------------------------------

// A device's folder is its way through the machine: devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0, of which the first
// part is a host bridge, and the others are ports, switches and at the end the device.
typedef struct {
    PciNearness nearness;
    int depth; // the parts of the way that two devices share
} Distance;

static Distance distance_between(const char *a, const char *b) {
    Distance d = {PCI_FAR, 0};
    while (*a == '/' && *b == '/') {
        const size_t length = strcspn(++a, "/");
        if (length != strcspn(++b, "/") || strncmp(a, b, length) != 0) break;
        if (d.nearness >= PCI_SAME_BRIDGE)
            d.nearness = PCI_SAME_PORT, d.depth++;
        else if (!strncmp(a, "pci", 3))
            d.nearness = PCI_SAME_BRIDGE;
        a += length, b += length;
    }
    return d;
}

static bool is_nearer(Distance a, Distance b) {
    return a.nearness != b.nearness ? a.nearness > b.nearness : a.depth > b.depth;
}

// Interfaces without a device, such as "lo", have no place.
static Distance distance_of(const char *gpu, int node, const char *interface) {
    Distance d = {PCI_FAR, 0};
    Text path = path_of(interface, "device");
    char *other = realpath(text_string(&path), NULL);
    text_free(&path);
    if (!other) return d;
    d = distance_between(gpu, other);
    if (d.nearness == PCI_FAR && node >= 0 && read_node(other) == node) d.nearness = PCI_SAME_NODE;
    free(other);
    return d;
}

typedef struct {
    const char *gpu; // its folder
    int node;
    Distance best;
    Text *names;
} Search;

static int is_name(const struct dirent *entry) { return *entry->d_name != '.'; }

static void look_at(Search *s, const char *folder, const char *name) {
    Text path = path_of(folder, name);
    const Distance d = distance_of(s->gpu, s->node, text_string(&path));
    text_free(&path);
    if (d.nearness == PCI_FAR || is_nearer(s->best, d)) return;
    if (is_nearer(d, s->best)) text_free(s->names);
    s->best = d;
    text_add(s->names, "%s%s", s->names->size ? ", " : "", name);
}

// Looks at the interfaces in a folder such as /sys/class/net, in the order of their names.
static void search(Search *s, const char *sysfs, const char *kind) {
    struct dirent **entries;
    Text folder = {0};
    text_add(&folder, "%s/class/%s", sysfs, kind);
    const int count = scandir(text_string(&folder), &entries, is_name, alphasort);
    for (int i = 0; i < count; i++) {
        look_at(s, text_string(&folder), entries[i]->d_name);
        free(entries[i]);
    }
    if (count >= 0) free(entries);
    text_free(&folder);
}

PciNearness pci_networks(const char *sysfs, const char *id, Text *names) {
    char *folder = folder_of(sysfs, id);
    Text found = {0};
    if (!folder) return PCI_FAR;
    Search s = {.gpu = folder, .node = read_node(folder), .names = &found};
    search(&s, sysfs, "infiniband");
    search(&s, sysfs, "net");
    text_add(names, "%s", text_string(&found));
    text_free(&found);
    free(folder);
    return s.best.nearness;
}

const char *pci_nearness(PciNearness nearness) {
    static const char *const words[] = {[PCI_FAR] = "far",
                                        [PCI_SAME_NODE] = "same NUMA node",
                                        [PCI_SAME_BRIDGE] = "same PCI host bridge",
                                        [PCI_SAME_PORT] = "same PCI port"};
    return words[nearness];
}
