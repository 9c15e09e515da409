// Simulates the dynamic loader: NVIDIA's libraries are those of the simulated GPU, whatever the machine has.
//
// A name without a folder is found, as if it were installed. A path is found where there is a file; its contents do
// not matter, but an empty file cannot be loaded. TRIREME_SIM_FAIL=library:COUNT: the COUNT-th name is not found;
// FILE:COUNT: the same of one library's; function:COUNT: the library has no such function. TRIREME_SIM_CUDNN=0: there
// is no cuDNN.
#include "device/cuda/cudnn_api.h"
#include "device/cuda/sim/runtime.h"
#include <cstring>
#include <cublasLt.h>
#include <dlfcn.h>
#include <nccl.h>
#include <string>
#include <sys/stat.h>

static const struct {
    const char *name;
    void *function;
} FUNCTIONS[] = {
#define X(name) {#name, reinterpret_cast<void *>(name)},
    X(cublasLtCreate) X(cublasLtDestroy) X(cublasLtGetStatusName) X(cublasLtGetStatusString)
        X(cublasLtMatmulDescCreate) X(cublasLtMatmulDescDestroy) X(cublasLtMatmulDescSetAttribute)
            X(cublasLtMatrixLayoutCreate) X(cublasLtMatrixLayoutDestroy) X(cublasLtMatmulPreferenceCreate)
                X(cublasLtMatmulPreferenceDestroy) X(cublasLtMatmulPreferenceSetAttribute)
                    X(cublasLtMatmulAlgoGetHeuristic) X(cublasLtMatmul) X(cudnnGetVersion)
                        X(cudnnGetErrorString) X(cudnnGetLastErrorString) X(cudnnCreate) X(cudnnDestroy)
                            X(cudnnSetStream) X(cudnnBackendCreateDescriptor) X(cudnnBackendDestroyDescriptor)
                                X(cudnnBackendFinalize) X(cudnnBackendSetAttribute)
                                    X(cudnnBackendGetAttribute) X(cudnnBackendExecute) X(cublasLtGetVersion)
                                        X(cublasLtMatmulAlgoCheck) X(cublasLtMatmulAlgoCapGetAttribute)
                                            X(cublasLtMatmulAlgoConfigGetAttribute) X(ncclGetVersion)
                                                X(ncclGetErrorString) X(ncclGetLastError) X(ncclGetUniqueId)
                                                    X(ncclCommInitRankConfig) X(ncclCommGetAsyncError)
                                                        X(ncclCommFinalize) X(ncclCommDestroy)
                                                            X(ncclCommAbort) X(ncclGroupStart) X(ncclGroupEnd)
                                                                X(ncclSend) X(ncclRecv) X(ncclAllGather)
                                                                    X(ncclBroadcast) X(ncclAllReduce)
                                                                        X(ncclReduceScatter)
#undef X
};

static thread_local std::string error;

static void *not_loaded(const char *file, const char *why) {
    error = std::string(file) + ": " + why;
    return nullptr;
}

static bool is_left_out(const char *file) { return !strcmp(file, "libcudnn.so.9") && !cudnnGetVersion(); }

void *sim_dlopen(const char *file, int) {
    static char library; // all of them are one
    struct stat facts;
    if (!strchr(file, '/'))
        return sim_fails("library") || sim_fails(file) || is_left_out(file)
                   ? not_loaded(file, "cannot open shared object file: No such file or directory")
                   : &library;
    if (stat(file, &facts)) return not_loaded(file, "cannot open shared object file");
    return facts.st_size ? &library : not_loaded(file, "file too short");
}

void *sim_dlsym(void *, const char *name) {
    for (const auto &row : FUNCTIONS)
        if (!strcmp(row.name, name) && !sim_fails("function")) return row.function;
    error = std::string("undefined symbol: ") + name;
    return nullptr;
}

const char *sim_dlerror() { return error.c_str(); }
