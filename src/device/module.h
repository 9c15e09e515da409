// Modules: kinds of devices that are no part of the program, because they are built by other compilers or need libraries
// that not every machine has. A module is a shared library with one table; the program loads it when such a device is
// wanted. It takes `fail`, `rank_current`, `op_rows` and so on from the program.
#pragma once
#include "device/backend.h"

//  kinds of devices that come from a module, and its file
#define DEVICE_MODULES(X)                                                                                    \
    X("cuda", "trireme_cuda.so")                                                                             \
    X("cuda-sim", "trireme_cuda_sim.so")

// A module exports one of these under the name `trireme_device`.
typedef struct {
    // MODULE_INTERFACE: a hash of the headers that the program and the module share, made when they are built.
    const char *interface;
    const Backend *backend;
} DeviceModule;

// Appends the path of the module `file` for devices of a kind. It is looked for in the folder that TRIREME_CUDA names;
// without that, in the folder of the program, then in the one above. ERR_UNAVAILABLE when there is none.
Status module_find(const char *kind, const char *file, Text *path);
// Loads it. Fails also with ERR_DATA, when it cannot be loaded or belongs to another build of the program. A module stays
// loaded.
Status module_load(const char *kind, const char *file, const Backend **backend);
