// The simulated GPUs as a program sees them: how many there are, what they can do, their memory, their driver, the
// words of errors.
//
//   TRIREME_SIM_GPUS=N          how many there are; 1 if unset
//   TRIREME_SIM_PEERS=0         none reaches another's memory; if unset, all do
//   TRIREME_SIM_MEMORY=MIB      the memory of each; 16384 if unset
//   TRIREME_SIM_CAPABILITY=NN   their compute capability; 90 if unset. There are kernels from 80 on
//   TRIREME_SIM_DRIVER=NNNN     the version of CUDA that the driver knows; 13000 if unset, 0: there is no driver
#include "device/cuda/sim/runtime.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <utility>

enum { RUNTIME_VERSION = 13000, FIRST_CAPABILITY = 80 };

static thread_local int current;

static long number_of(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? strtol(text, nullptr, 10) : otherwise;
}

static int count() { return static_cast<int>(number_of("TRIREME_SIM_GPUS", 1)); }
static int capability() { return static_cast<int>(number_of("TRIREME_SIM_CAPABILITY", 90)); }
static int driver() { return static_cast<int>(number_of("TRIREME_SIM_DRIVER", RUNTIME_VERSION)); }
static bool exists(int gpu) { return gpu >= 0 && gpu < count(); }

// ---- errors -----------------------------------------------------------------------------------------------

static const struct {
    cudaError_t error;
    const char *name, *text;
} ERRORS[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled",
     "peer access is already enabled"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const char *cudaGetErrorName(cudaError_t error) {
    for (const auto &row : ERRORS)
        if (row.error == error) return row.name;
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error) {
    for (const auto &row : ERRORS)
        if (row.error == error) return row.text;
    return "unrecognized error code";
}

// ---- GPUs -------------------------------------------------------------------------------------------------

int sim_gpu() { return current; }
size_t sim_gpu_bytes() { return static_cast<size_t>(number_of("TRIREME_SIM_MEMORY", 16384)) << 20; }

cudaError_t cudaDriverGetVersion(int *version) {
    *version = driver();
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = RUNTIME_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *number) {
    *number = 0;
    if (driver() < RUNTIME_VERSION) return sim_returned(cudaErrorInsufficientDriver);
    if (sim_fails("device") || count() < 1) return sim_returned(cudaErrorNoDevice);
    *number = count();
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int gpu) {
    if (!exists(gpu)) return sim_returned(cudaErrorInvalidDevice);
    *properties = {};
    snprintf(properties->name, sizeof properties->name, "simulated GPU");
    properties->uuid.bytes[15] = static_cast<char>(gpu + 1);
    properties->totalGlobalMem = sim_gpu_bytes();
    properties->major = capability() / 10;
    properties->minor = capability() % 10;
    properties->multiProcessorCount = 2;
    return cudaSuccess;
}

// No machine has this domain: what its sysfs says is never taken for a simulated GPU's.
cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int gpu) {
    if (!exists(gpu)) return sim_returned(cudaErrorInvalidDevice);
    snprintf(id, static_cast<size_t>(size), "FFFFF:%02X:00.0", gpu + 0xa0);
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int gpu) {
    if (!exists(gpu)) return sim_returned(cudaErrorInvalidDevice);
    current = gpu;
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int gpu, int peer) {
    if (!exists(gpu) || !exists(peer)) return sim_returned(cudaErrorInvalidDevice);
    *can = gpu != peer && number_of("TRIREME_SIM_PEERS", 1);
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
    static std::mutex lock;
    static std::set<std::pair<int, int>> enabled;
    int can = 0;
    if (cudaDeviceCanAccessPeer(&can, current, peer) != cudaSuccess || !can)
        return sim_returned(cudaErrorInvalidDevice);
    std::lock_guard<std::mutex> held(lock);
    return enabled.insert({current, peer}).second ? cudaSuccess
                                                  : sim_returned(cudaErrorPeerAccessAlreadyEnabled);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *) {
    *attributes = {capability(), capability()};
    return capability() < FIRST_CAPABILITY ? sim_returned(cudaErrorNoKernelImageForDevice) : cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *all_bytes) {
    *all_bytes = sim_gpu_bytes();
    *free_bytes = *all_bytes - std::min(*all_bytes, sim_bytes_in_use(current));
    return cudaSuccess;
}
