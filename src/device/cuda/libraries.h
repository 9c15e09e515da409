// NVIDIA's libraries, which the CUDA device finds when it is opened: the program is built with their headers alone, and
// starts on machines that have none of them.
//
// A file that uses a library has one CudaLibrary, and a struct of pointers to its functions that library_load fills.
#pragma once
#include "base/error.h"

typedef struct {
    const char *name;    // as NVIDIA calls it
    const char *file;    // its soname
    const char *install; // what brings it, for a user
    // What needs it, for a user; NULL: the device.
    const char *wanted_by;
    const char *const *functions;
    int num_functions;
} CudaLibrary;

// Loads a library, and sets found[i] to the address of its function functions[i]. It looks in the folders that the
// environment variable TRIREME_CUDA_LIBS names (separated by ':'), then where the dynamic loader looks, then in
// nvidia/*/lib of the Python environment that VIRTUAL_ENV or CONDA_PREFIX names. The library stays loaded.
// Fails with ERR_UNAVAILABLE if there is none, and with ERR_DATA if it cannot be loaded or lacks a function.
Status library_load(const CudaLibrary *library, void **found);
