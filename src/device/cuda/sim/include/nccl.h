// The part of NCCL that the CUDA device calls, for builds without a GPU: the names and the meaning of NVIDIA's header
// of this name. sim/nccl.cc simulates it.
#pragma once
#include <cuda_runtime_api.h>
#include <limits.h>
#ifdef __cplusplus
extern "C" {
#endif

#define NCCL_MAJOR 2
// A test compiles for the oldest header that will do.
#ifndef NCCL_VERSION_CODE
#define NCCL_VERSION_CODE 22809
#endif

typedef struct ncclComm *ncclComm_t;

enum { NCCL_UNIQUE_ID_BYTES = 128 };
typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

// The numbers are NVIDIA's.
typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
} ncclResult_t;

typedef enum { ncclSum = 0, ncclMax = 2 } ncclRedOp_t;

typedef enum {
    ncclInt8 = 0,
    ncclInt32 = 2,
    ncclFloat16 = 6,
    ncclFloat32 = 7,
    ncclFloat64 = 8,
    ncclBfloat16 = 9
} ncclDataType_t;

typedef struct {
    size_t size;
    unsigned magic;
    int blocking;
    int minCTAs, maxCTAs;
#if NCCL_VERSION_CODE >= 22700
    const char *commName;
#endif
} ncclConfig_t;

#define NCCL_CONFIG_MAGIC 0x73696D4Eu
#define NCCL_CONFIG_INITIALIZER                                                                              \
    {                                                                                                        \
        .size = sizeof(ncclConfig_t), .magic = NCCL_CONFIG_MAGIC, .blocking = INT_MIN, .minCTAs = INT_MIN,   \
        .maxCTAs = INT_MIN                                                                                   \
    }

ncclResult_t ncclGetVersion(int *version);
const char *ncclGetErrorString(ncclResult_t result);
const char *ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);

ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int to, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int from, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
