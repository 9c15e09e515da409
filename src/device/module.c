// Finds and loads the modules of devices.
#include "device/module.h"
#include "base/text.h"
#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Where a module may lie, as seen from the folder of the program: beside it, in the folder above, or where both are
// installed.
static const char *const places[] = {"", "../", MODULE_FOLDER "/"};

// Adds the path of `file` at one of the places.
static void add_place(Text *path, const char *place, const char *file) {
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0) return;
    program[length] = 0;
    char *slash = strrchr(program, '/');
    if (slash) *slash = 0;
    text_add(path, "%s/%s%s", program, place, file);
}

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
    add_place(&cache, "", "CMakeCache.txt");
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
    enum { COUNT = sizeof places / sizeof *places };
    const char *folder = getenv("TRIREME_CUDA");
    Text first = {0};
    bool found = false;
    for (int i = 0; i < (folder ? 1 : COUNT) && !found; i++) {
        Text at = {0};
        if (folder)
            text_add(&at, "%s/%s", folder, file);
        else
            add_place(&at, places[i], file);
        found = access(text_string(&at), F_OK) == 0;
        if (found) text_add(path, "%s", text_string(&at));
        if (i == 0) text_add(&first, "%s", text_string(&at));
        text_free(&at);
    }
    Status status = found ? OK : not_found(kind, file, folder, &first);
    text_free(&first);
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
