// Finds and loads the modules of devices.
#include "device/module.h"
#include "base/beside.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Says how a module is made. The folder of the program is the one that CMake has built it in, unless it is installed.
static void add_how_to_build(Text *out, const char *kind) {
    Text cache = {0};
    if (strncmp(kind, "cuda-sim", strlen("cuda-sim")) != 0) {
        text_add(
            out,
            "it is built with the program where NVIDIA's compiler nvcc (the CUDA toolkit) is found: install "
            "that and build trireme again");
        return;
    }
    beside_program("CMakeCache.txt", &cache);
    bool here = access(text_string(&cache), F_OK) == 0;
    size_t folder = cache.size - strlen("/CMakeCache.txt");
    text_add(out, "it is for tests, and this builds it: cmake --build %.*s --target trireme_cuda_sim",
             here ? (int)folder : 6, here ? cache.data : "FOLDER");
    text_free(&cache);
}

static Status not_found(const char *kind, const char *file, const char *folder, const Text *path) {
    Text build = {0};
    Status status;
    add_how_to_build(&build, kind);
    if (folder)
        status = fail(
            ERR_UNAVAILABLE,
            "--device %s needs the file %s, and TRIREME_CUDA=%s has none; %s, and TRIREME_CUDA names its folder",
            kind, file, folder, text_string(&build));
    else
        status =
            fail(ERR_UNAVAILABLE,
                 "--device %s needs the file %s, and there is none at %s or in the folder above; %s, or name "
                 "its folder with TRIREME_CUDA",
                 kind, file, text_string(path), text_string(&build));
    text_free(&build);
    return status;
}

Status module_find(const char *kind, const char *file, Text *path) {
    const char *folder = getenv("TRIREME_CUDA");
    Text at = {0};
    bool found = beside_find(folder, file, &at);
    if (found) text_add(path, "%s", text_string(&at));
    Status status = found ? OK : not_found(kind, file, folder, &at);
    text_free(&at);
    return status;
}

static Status open_module(const char *kind, const char *path, ModuleBackend which, const Backend **backend) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return fail(ERR_DATA, "--device %s: the module cannot be loaded: %s", kind, dlerror());
    const DeviceModule *module = dlsym(library, "trireme_device");
    if (!module) return fail(ERR_DATA, "--device %s: %s is no module of trireme", kind, path);
    if (strcmp(module->interface, MODULE_INTERFACE) != 0)
        return fail(
            ERR_DATA,
            "--device %s: %s belongs to another build of trireme (interface %s, this program has %s); build "
            "both together",
            kind, path, module->interface, MODULE_INTERFACE);
    *backend = module->backends[which];
    return OK;
}

Status module_load(const char *kind, const char *file, ModuleBackend which, const Backend **backend) {
    Text path = {0};
    Status status = module_find(kind, file, &path);
    if (status == OK) status = open_module(kind, text_string(&path), which, backend);
    text_free(&path);
    return status;
}
