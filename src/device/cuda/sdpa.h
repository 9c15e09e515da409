// Attention by cuDNN: its plans, and the device's choice between it and the kernels of the program.
//
// The choice is a function of the call, the options, the GPU's generation and whether there is cuDNN: all of them are
// compared between ranks before a run, as the two ways differ in bits.
#pragma once
#include "device/cuda/cuda.h"
#include "device/cuda/sdpa_graph.h"

// A plan, made when a run is prepared (device/prepare.h) or when it is first needed, and kept as long as the device.
typedef struct SdpaPlan {
    SdpaKey key;
    CudnnGraph graph;
    CudnnNode plan; // NULL: cuDNN takes no such graph, and the kernels of the program compute it
    struct SdpaPlan *next;
} SdpaPlan;

// Where cuDNN does not take the call and has to, or wants more workspace than there is, the job ends, or sdpa_prepare
// fails with ERR_UNAVAILABLE.
const SdpaPlan *sdpa_plan(CudaDevice *device, const SdpaKey *key);
Status sdpa_prepare(CudaDevice *device, const SdpaKey *key);

// Finds cuDNN if the options or the device's GPU want it. Without it CudaDevice.sdpa stays NULL; if the options name
// it, it has to be there: ERR_UNAVAILABLE.
Status sdpa_open(CudaDevice *device, const DeviceOptions *options);
void sdpa_close(CudaDevice *device); // takes what was only zeroed
