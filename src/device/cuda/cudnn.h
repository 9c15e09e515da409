// The interface to cuDNN: how it is found when a device is opened, and how its graphs of operations are built.
//
// A graph is built in one go: each call adds descriptors, and after one has failed the others do nothing, so that only
// cudnn_plan tells of errors. Tensors have four dimensions. A graph keeps its descriptors until it is destroyed, which
// comes after its plan's last execution.
#pragma once
#include "base/error.h"
#include "device/cuda/cudnn_api.h"
#include <stdbool.h>

#define CUDNN_FUNCTIONS(X)                                                                                   \
    X(cudnnGetVersion)                                                                                       \
    X(cudnnGetErrorString)                                                                                   \
    X(cudnnGetLastErrorString)                                                                               \
    X(cudnnCreate)                                                                                           \
    X(cudnnDestroy)                                                                                          \
    X(cudnnSetStream)                                                                                        \
    X(cudnnBackendCreateDescriptor)                                                                          \
    X(cudnnBackendDestroyDescriptor)                                                                         \
    X(cudnnBackendFinalize)                                                                                  \
    X(cudnnBackendSetAttribute)                                                                              \
    X(cudnnBackendGetAttribute)                                                                              \
    X(cudnnBackendExecute)

// The library's functions.
typedef struct {
#define X(name) __typeof__(name) *name;
    CUDNN_FUNCTIONS(X)
#undef X
} Cudnn;

// The library in words, for users.
#define CUDNN_NAME    "cuDNN"
#define CUDNN_FILE    "libcudnn.so.9"
#define CUDNN_INSTALL "NVIDIA's package libcudnn9-cuda-* or the Python wheel nvidia-cudnn-cu* brings it"

// Finds the library. ERR_UNAVAILABLE when there is none, or one that is too old; ERR_DATA as library_load
// (libraries.h).
Status cudnn_load(Cudnn *cudnn);

// "9.19.0"
typedef struct {
    char text[32];
} CudnnVersion;
CudnnVersion cudnn_version(const Cudnn *cudnn);
// The meaning of a status, with what the library says of the thread's last error.
typedef struct {
    char text[512];
} CudnnError;
CudnnError cudnn_error(const Cudnn *cudnn, cudnnStatus_t status);

// ---- graphs -----------------------------------------------------------------------------------------------

typedef cudnnBackendDescriptor_t CudnnNode; // a tensor of a graph

typedef struct {
    int64_t dims[4], strides[4]; // in elements
} CudnnShape;

enum { CUDNN_MAX_OPERATIONS = 32, CUDNN_MAX_NODES = 256, CUDNN_FIRST_VIRTUAL = 1000 };

// Zeros but for the library: an empty graph.
typedef struct {
    const Cudnn *cudnn;
    CudnnNode nodes[CUDNN_MAX_NODES]; // all descriptors
    CudnnNode operations[CUDNN_MAX_OPERATIONS];
    int num_nodes, num_operations, num_virtual;
    cudnnStatus_t status; // of the first call that failed
    const char *call;     // its name
    CudnnError error;
} CudnnGraph;

// A tensor in device memory; `id` is below CUDNN_FIRST_VIRTUAL and says which address it has.
CudnnNode cudnn_tensor(CudnnGraph *graph, cudnnDataType_t type, CudnnShape shape, int64_t id);
// A number in fp32, whose address is the host's.
CudnnNode cudnn_scalar(CudnnGraph *graph, int64_t id);
// A tensor between two operations.
CudnnNode cudnn_virtual(CudnnGraph *graph, cudnnDataType_t type, CudnnShape shape);

// One operand (`b` NULL) or two, element by element; what has dimension 1 is repeated.
void cudnn_pointwise(CudnnGraph *graph, cudnnPointwiseMode_t mode, CudnnNode x, CudnnNode b, CudnnNode y);
// y = the indices of x's elements along an axis.
void cudnn_index(CudnnGraph *graph, int64_t axis, CudnnNode x, CudnnNode y);
// y (of booleans) = whether x >= b, which are indices.
void cudnn_not_below(CudnnGraph *graph, CudnnNode x, CudnnNode b, CudnnNode y);
// y = t ? x : b
void cudnn_select(CudnnGraph *graph, CudnnNode x, CudnnNode b, CudnnNode t, CudnnNode y);
// Over the dimensions that y has as 1.
void cudnn_reduce(CudnnGraph *graph, cudnnReduceTensorOp_t by, CudnnNode x, CudnnNode y);
// c = a b, of the last two dimensions; sums are in fp32.
void cudnn_matmul(CudnnGraph *graph, CudnnNode a, CudnnNode b, CudnnNode c);
// y = x with other dimensions or strides; of the transposed dimensions it is the transposed x.
void cudnn_reshape(CudnnGraph *graph, CudnnNode x, CudnnNode y);

// Makes the plan of a graph, of the first engine that takes it, for the handle's GPU; without a handle (NULL) for the
// one that `properties` describe, a descriptor of the graph. Sets the bytes of workspace that it wants. NULL: cuDNN
// takes no such graph, or a call has failed; status, call and error then say what has happened.
CudnnNode cudnn_plan(CudnnGraph *graph, cudnnHandle_t handle, CudnnNode properties, int64_t *workspace_bytes);
// Describes a GPU by cuDNN's JSON of its properties.
CudnnNode cudnn_properties(CudnnGraph *graph, const char *json);
void cudnn_graph_destroy(CudnnGraph *graph); // takes what was only zeroed

// Puts a plan on the handle's stream. ids[i] is the tensor at addresses[i].
cudnnStatus_t cudnn_execute(const Cudnn *cudnn, cudnnHandle_t handle, CudnnNode plan, const int64_t *ids,
                            void *const *addresses, int count, void *workspace);
