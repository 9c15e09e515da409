// A made-up machine for tests, described as Linux describes one in sysfs.
#pragma once
#include "harness.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// Makes the folders above a path, too.
static inline void tree_folder(const char *path) {
    char part[1024];
    for (const char *slash = strchr(path + 1, '/');; slash = strchr(slash + 1, '/')) {
        snprintf(part, sizeof part, "%.*s", slash ? (int)(slash - path) : (int)strlen(path), path);
        mkdir(part, 0700);
        if (!slash) return;
    }
}

// Writes a file of a folder, whose name is made of `name` and the arguments behind it.
static inline void tree_write(const char *root, const char *text, const char *name, ...) {
    char inner[512], path[1024];
    va_list arguments;
    va_start(arguments, name);
    vsnprintf(inner, sizeof inner, name, arguments);
    va_end(arguments);
    snprintf(path, sizeof path, "%s/%s", root, inner);
    *strrchr(path, '/') = 0;
    tree_folder(path);
    path[strlen(path)] = '/';
    FILE *file = fopen(path, "w");
    EXPECT(file, "%s", path);
    if (!file) return;
    fprintf(file, "%s\n", text);
    fclose(file);
}

static inline void tree_processor(const char *root, int id, int package, int core) {
    char text[16];
    snprintf(text, sizeof text, "%d", package);
    tree_write(root, text, "devices/system/cpu/cpu%d/topology/physical_package_id", id);
    snprintf(text, sizeof text, "%d", core);
    tree_write(root, text, "devices/system/cpu/cpu%d/topology/core_id", id);
}

static inline void tree_link(const char *root, const char *folder, const char *name, const char *way) {
    char from[1024], to[1024];
    snprintf(from, sizeof from, "%s/%s", root, folder);
    tree_folder(from);
    snprintf(from, sizeof from, "%s/%s/%s", root, folder, name);
    snprintf(to, sizeof to, "%s/devices/%s", root, way);
    EXPECT(symlink(to, from) == 0, "%s", from);
}

// A PCI device whose way through the machine is "pci0000:3a/0000:3a:00.0/0000:3b:00.0". `node`, `cores`: NULL: the system
// does not say.
static inline void tree_device(const char *root, const char *way, const char *node, const char *cores) {
    char path[1024];
    snprintf(path, sizeof path, "%s/devices/%s", root, way);
    tree_folder(path);
    if (node) tree_write(root, node, "devices/%s/numa_node", way);
    if (cores) tree_write(root, cores, "devices/%s/local_cpulist", way);
    tree_link(root, "bus/pci/devices", strrchr(way, '/') + 1, way);
}

// A network interface of a PCI device; `kind` is "net" or "infiniband".
static inline void tree_network(const char *root, const char *kind, const char *name, const char *way) {
    char folder[512];
    snprintf(folder, sizeof folder, "class/%s/%s", kind, name);
    tree_link(root, folder, "device", way);
}
