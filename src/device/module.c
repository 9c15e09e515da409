// Finds and loads the modules of devices.
#include "device/module.h"
#include "base/text.h"
#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Removes the last part of a path.
static void to_parent(char *path) {
    char *slash = strrchr(path, '/');
    if (slash) *slash = 0;
}

// Adds the path of `file` in the program's folder, or in the folder `above` it.
static void add_beside_program(Text *path, const char *file, bool above) {
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0) return;
    program[length] = 0;
    to_parent(program);
    if (above) to_parent(program);
    text_add(path, "%s/%s", program, file);
}

static Status not_found(const char *kind, const char *file, const char *folder, const Text *path) {
    const char *build = !strcmp(kind, "cuda")
                            ? "it is built with the program where the CUDA toolkit (nvcc) is installed"
                            : "it is built with all of the program";
    if (folder)
        return fail(
            ERR_UNAVAILABLE,
            "--device %s needs the file %s, and TRIREME_CUDA=%s has none; %s, and TRIREME_CUDA names its "
            "folder",
            kind, file, folder, build);
    return fail(ERR_UNAVAILABLE,
                "--device %s needs the file %s, and there is none at %s or in the folder above; %s, and "
                "TRIREME_CUDA can name its folder",
                kind, file, text_string(path), build);
}

static Status find_module(const char *kind, const char *file, Text *path) {
    const char *folder = getenv("TRIREME_CUDA");
    if (folder)
        text_add(path, "%s/%s", folder, file);
    else
        add_beside_program(path, file, false);
    if (access(text_string(path), F_OK) == 0) return OK;
    Text above = {0};
    if (!folder) add_beside_program(&above, file, true);
    Status status = OK;
    if (access(text_string(&above), F_OK) != 0)
        status = not_found(kind, file, folder, path);
    else {
        text_free(path);
        *path = above;
        return OK;
    }
    text_free(&above);
    return status;
}

static Status open_module(const char *kind, const char *path, const Backend **backend) {
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
    *backend = module->backend;
    return OK;
}

Status module_load(const char *kind, const char *file, const Backend **backend) {
    Text path = {0};
    Status status = find_module(kind, file, &path);
    if (status == OK) status = open_module(kind, text_string(&path), backend);
    text_free(&path);
    return status;
}
