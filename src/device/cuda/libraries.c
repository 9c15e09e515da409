// Finds and loads NVIDIA's libraries.
#include "device/cuda/libraries.h"
#include "base/text.h"
#include <dlfcn.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *load(const char *path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL); }

static const char *wanted_by(const CudaLibrary *library) {
    return library->wanted_by ? library->wanted_by : "--device " CUDA_KIND;
}

// Loads a file that there is.
static Status load_file(const CudaLibrary *library, const char *path, void **handle) {
    *handle = load(path);
    if (*handle) return OK;
    return fail(ERR_DATA, "%s needs %s, and the library cannot be loaded: %s", wanted_by(library),
                library->name, dlerror());
}

// `folders`: of TRIREME_CUDA_LIBS.
static Status load_from_folders(const CudaLibrary *library, const char *folders, void **handle) {
    Status status = OK;
    while (status == OK && !*handle && *folders) {
        Text path = {0};
        size_t length = strcspn(folders, ":");
        text_add(&path, "%.*s/%s", (int)length, folders, library->file);
        if (length && access(text_string(&path), F_OK) == 0)
            status = load_file(library, text_string(&path), handle);
        text_free(&path);
        folders += length + (folders[length] == ':');
    }
    return status;
}

// The wheels of NVIDIA's libraries have folders of their own: nvidia/cu13/lib, nvidia/cudnn/lib.
static Status load_from_python(const CudaLibrary *library, const char *environment, void **handle) {
    Text pattern = {0};
    glob_t paths = {0};
    Status status = OK;
    text_add(&pattern, "%s/lib/python3*/site-packages/nvidia/*/lib/%s", environment, library->file);
    if (glob(text_string(&pattern), 0, NULL, &paths) == 0)
        status = load_file(library, paths.gl_pathv[0], handle);
    globfree(&paths);
    text_free(&pattern);
    return status;
}

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value ? value : "";
}

static const char *or_none(const char *folders, const char *none) { return *folders ? folders : none; }

static Status find(const CudaLibrary *library, void **handle) {
    const char *folders = variable("TRIREME_CUDA_LIBS");
    const char *venv = variable("VIRTUAL_ENV"), *python = *venv ? venv : variable("CONDA_PREFIX");
    *handle = NULL;
    TRY(load_from_folders(library, folders, handle));
    if (!*handle) *handle = load(library->file);
    if (*handle) return OK;
    Text why = {0};
    text_add(&why, "%s", dlerror());
    Status status = *python ? load_from_python(library, python, handle) : OK;
    if (status == OK && !*handle)
        status = fail(
            ERR_UNAVAILABLE,
            "%s needs %s, and there is no %s in the folders of TRIREME_CUDA_LIBS (%s), "
            "where the dynamic loader looks (%s) or in nvidia/*/lib of the Python environment (%s); %s, and "
            "TRIREME_CUDA_LIBS can name its folder",
            wanted_by(library), library->name, library->file, or_none(folders, "unset"), text_string(&why),
            or_none(python, "none is active"), library->install);
    text_free(&why);
    return status;
}

Status library_load(const CudaLibrary *library, void **found) {
    void *handle;
    TRY(find(library, &handle));
    for (int i = 0; i < library->num_functions; i++) {
        found[i] = dlsym(handle, library->functions[i]);
        if (!found[i])
            return fail(ERR_DATA, "%s needs another version of %s (%s): it lacks the function %s (%s)",
                        wanted_by(library), library->name, library->file, library->functions[i], dlerror());
    }
    return OK;
}
