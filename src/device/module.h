// Modules: kinds of devices that are no part of the program, because they are built by other compilers or need
// libraries that not every machine has. A module is a shared library with one table; the program loads it when such a
// device is wanted. It takes `fail`, `rank_current`, `op_rows` and so on from the program.
#pragma once
#include "device/backend.h"

//  kinds of devices that come from a module, its file, and which of its backends they are
#define DEVICE_MODULES(X)                                                                                    \
    X("cuda", "trireme_cuda.so", MODULE_PLAIN)                                                               \
    X("cuda-check", "trireme_cuda.so", MODULE_CHECKED)                                                       \
    X("cuda-sim", "trireme_cuda_sim.so", MODULE_PLAIN)                                                       \
    X("cuda-sim-check", "trireme_cuda_sim.so", MODULE_CHECKED)

// The backends of a module: as fast as it can be, and one that looks at what every operation did.
typedef enum { MODULE_PLAIN, MODULE_CHECKED, NUM_MODULE_BACKENDS } ModuleBackend;

// A module exports one of these under the name `trireme_device`.
typedef struct {
    // MODULE_INTERFACE: a hash of the headers that the program and the module share, made when they are built.
    const char *interface;
    const Backend *backends[NUM_MODULE_BACKENDS];
} DeviceModule;

// Appends the path of the module `file` for devices of a kind. It is looked for in the folder that TRIREME_CUDA names;
// without that, in the folder of the program, in the one above, and where both are installed. ERR_UNAVAILABLE when
// there is none.
Status module_find(const char *kind, const char *file, Text *path);
// Loads it and sets one of its backends. Fails also with ERR_DATA, when it cannot be loaded or belongs to another build
// of the program. A module stays loaded.
Status module_load(const char *kind, const char *file, ModuleBackend which, const Backend **backend);
