// The insides of the CUDA device: what its host code (*.c) and its kernels (*.cu) share.
//
// These files make a module that the program loads when the device is opened (device/module.h). They are built twice:
// with nvcc for GPUs, and with the host's compiler for the simulated GPU in sim/, which has the calls of the CUDA
// runtime and runs kernels on the host.
#pragma once
#include <cuda_runtime_api.h>
#ifdef __cplusplus
#define _Noreturn __attribute__((noreturn)) // a word of C that C++ does not know
extern "C" {
#endif
#include "device/backend.h"

typedef struct CudaDevice CudaDevice;
typedef struct CudaProducts CudaProducts; // products.c
typedef struct CudaSdpa CudaSdpa;         // sdpa.c
typedef struct CudaChecks CudaChecks;     // checked.c

// ---- operations -------------------------------------------------------------------------------------------

// Each operation puts its kernels on the stream of `exec` and returns. It waits for nothing, follows no address of
// device memory, and allocates nothing but, once for each kind of product and of attention that cuda_prepare was not
// told of, its plan (products.h, sdpa.h).
#define X(NAME, function, Args, reads, writes) void cuda_##function(const Exec *exec, const Args *args);
DEVICE_OPS(X)
#undef X

// The operations that need workspace, and how much one call needs, in bytes. It depends on the arguments alone, not on
// the GPU: a plan asks where there is none.
#define CUDA_WORKSPACES(X)                                                                                   \
    X(MATMUL, matmul, Matmul)                                                                                \
    X(MATMUL_SUMS, matmul_sums, MatmulSums)                                                                  \
    X(MATMUL_GELU, matmul_gelu, MatmulGelu)                                                                  \
    X(MATMUL_GELU_BACKWARD, matmul_gelu_backward, MatmulGeluBackward)                                        \
    X(COLUMN_SUM, column_sum, ColumnSum)                                                                     \
    X(NORM_BACKWARD_WEIGHT, norm_backward_weight, NormBackwardWeight)                                        \
    X(QK_NORM_BACKWARD_WEIGHT, qk_norm_backward_weight, QkNormBackwardWeight)                                \
    X(NORM_BACKWARD, norm_backward, NormBackward)                                                            \
    X(ATTENTION_CACHED, attention_cached, AttentionCached)                                                   \
    X(EMBEDDING_BACKWARD, embedding_backward, EmbeddingBackward)                                             \
    X(SUM_SQUARES, sum_squares, SumSquares)

#define X(NAME, function, Args) size_t cuda_##function##_workspace(const Args *args);
CUDA_WORKSPACES(X)
#undef X

// Those whose workspace depends on the options, too.
size_t cuda_attention_forward_workspace(const DeviceOptions *options, const AttentionForward *args);
size_t cuda_attention_backward_workspace(const DeviceOptions *options, const AttentionBackward *args);

// Attention by the kernels of the program, of any shape, type and dropout; forward takes no workspace. The operations
// are in sdpa.c, which chooses between them and cuDNN.
void cuda_own_attention_forward(const Exec *exec, const AttentionForward *args);
void cuda_own_attention_backward(const Exec *exec, const AttentionBackward *args);
size_t cuda_own_attention_backward_workspace(const AttentionBackward *args);
// As Backend has them.
AttentionKernels cuda_choose_attention(const DeviceOptions *options);
void cuda_attention(const DeviceOptions *options, Text *out);

// The workspace of a product, in bytes. NVIDIA advises it for Hopper and later; older GPUs would do with 4 MiB.
enum { PRODUCT_WORKSPACE = 32 << 20 };

// The callback head_tokens of Backend (device/backend.h).
int64_t cuda_head_tokens(int64_t hidden, int64_t vocabulary);

// A product of any shape, transposition and type by a plain kernel, without workspace.
void cuda_matmul_plain(const Exec *exec, const Matmul *args);

// Make the plans of calls of a kind, as Backend.prepare does (joined.c, sdpa.c).
Status cuda_prepare_product(CudaDevice *device, DeviceOp op, const void *args);
Status cuda_prepare_attention_forward(CudaDevice *device, const AttentionForward *args);
Status cuda_prepare_attention_backward(CudaDevice *device, const AttentionBackward *args);

// Tables of algorithms, as Backend has them (algorithms.c).
void cuda_algorithms_about(void *state, Text *table);
Status cuda_algorithms_time(const Exec *exec, const JoinedProduct *product, Text *table);
Status cuda_algorithms_take(void *state, const char *file, const char *text);

// The addresses of other GPUs that this one reaches may be among those of the sum.
void cuda_peer_reduce(const Exec *exec, const PeerReduce *args);

// ---- streams ----------------------------------------------------------------------------------------------

enum {
    NUM_EVENTS = 1024,      // of a stream: so many of the last ones can be asked for
    NUM_STAGES = 16,        // small copies between the host and a stream that may be under way at once
    STAGE_BYTES = 64 << 10, // a larger copy takes no stage
};

// Pinned memory for one small copy.
typedef struct {
    char *pinned;
    int64_t event; // the copy is done when the stream has reached it
    void *to;      // of a download whose bytes the host has not got yet; else NULL
    size_t bytes;
} CudaStage;

// The `queue` of an Exec.
typedef struct CudaQueue {
    cudaStream_t stream;
    CudaDevice *device;
    struct CudaQueue *next; // of the device's queues
    // The event with the number n is events[n % NUM_EVENTS], created when it is wanted first.
    cudaEvent_t events[NUM_EVENTS];
    int64_t recorded, reached; // the numbers of the last event, and of the last one that is known to be done
    CudaStage stages[NUM_STAGES]; // without memory until the first copy
    int64_t num_staged;           // copies so far
} CudaQueue;

// The stream on which an operation runs. Without a queue it is CUDA's default stream.
static inline cudaStream_t stream_of(const Exec *exec) {
    return exec->queue ? ((const CudaQueue *)exec->queue)->stream : NULL;
}

// Events of a queue, as Backend has them (device/backend.h).
int64_t queue_record(CudaQueue *queue);
bool queue_wait_for(CudaQueue *queue, int64_t event, double seconds);
// The host waits as long as it takes, and tells the device's DeviceWait.
void queue_await(CudaQueue *queue, int64_t event);
void event_await(const CudaDevice *device, cudaEvent_t event);
void queue_follow(CudaQueue *queue, const CudaQueue *of, int64_t event);

// ---- copies (copies.c) ------------------------------------------------------------------------------------

void stages_close(CudaQueue *queue); // takes what was only zeroed
// Gives the host the bytes of downloads that the queue is known to have reached.
void stages_deliver(CudaQueue *queue);
void cuda_copy(const Exec *exec, void *to, const void *from, size_t bytes);
void cuda_zero(const Exec *exec, void *x, size_t bytes);
void cuda_upload(const Exec *exec, void *to, const void *from, size_t bytes);
void cuda_download(const Exec *exec, void *to, const void *from, size_t bytes);
void cuda_upload_async(const Exec *exec, void *to, const void *from, size_t bytes);
void cuda_download_async(const Exec *exec, void *to, const void *from, size_t bytes);

// Pinned memory in which host code uses device memory: a copy of it, made when the stream gets to device_access, and
// copied back at device_access_end if the host may have written it.
typedef struct {
    char *pinned;
    size_t capacity, bytes;
    CudaQueue *queue; // of the last use
    int64_t event;    // that use is over when the queue has reached it
    bool in_use;
} CudaWindow;

void cuda_access(const Exec *exec, HostAccess *access);
void *cuda_access_address(void *state, const HostAccess *access);
void cuda_access_end(void *state, const HostAccess *access);
void *cuda_address(void *state, void *data, size_t bytes);
void windows_leave(CudaQueue *queue); // before it is closed
void windows_close(CudaDevice *device);

extern const PeerBackend cuda_peers; // peers.c

// ---- marks (marks.c) --------------------------------------------------------------------------------------

// CUDA tells the time between two events. `base` is one whose time on the host's clock is known.
typedef struct {
    cudaStream_t stream; // where the base is recorded: nothing else runs there
    cudaEvent_t base;
    double base_s; // clock_s()
    cudaEvent_t *events;
    bool *taken;
    int num_events, num_taken;
} CudaMarks;

Status marks_open(CudaDevice *device);
void marks_close(CudaDevice *device); // takes what was only zeroed
void cuda_mark(const Exec *exec, DeviceMark *mark);
void cuda_mark_read(void *state, DeviceMark *mark);

// ---- GPUs (gpus.c) ----------------------------------------------------------------------------------------

// Fails with ERR_UNAVAILABLE, and says what is missing, where there is no GPU that the driver shows.
Status gpus_available(void);
// Takes a GPU for the rank with this number among those of its machine, and makes it the calling thread's.
Status gpu_choose(CudaDevice *device, int rank_here);
// The first number of the compute capability of that rank's GPU; 0: there is none.
int gpu_major(int rank_here);
Status gpu_check_float8(const CudaDevice *device); // ERR_UNAVAILABLE without units for factors of 8 bits
void gpu_out_of_memory(CudaDevice *device, cudaError_t error); // sets `why`
// As Backend has them (device/backend.h).
void cuda_unit(void *state, DeviceUnit *unit);
bool cuda_pci(int rank_here, char id[PCI_ID_BYTES]);
void cuda_survey(DeviceSurvey *survey, bool tries);
void cuda_arithmetic(Text *out);

// The kernels that the current GPU runs (probe.cu): their machine code, "sm_90" is 90, and the PTX that it was made
// from. Both are the same unless the driver has translated them. An error where there are none for it.
cudaError_t probe_kernels(int *machine, int *virtual_machine);
cudaError_t probe_run(void); // runs a small kernel on the current GPU

// ---- the device -------------------------------------------------------------------------------------------

struct CudaDevice {
    int number;     // of the GPU
    int major;      // of its compute capability
    char name[256]; // its own
    char why[512];  // memory could not be had
    CudaQueue *queues;
    CudaWindow *windows;
    int num_windows;
    const DeviceWait *wait;
    CudaMarks marks;
    CudaProducts *products;
    CudaSdpa *sdpa;     // NULL: attention is computed by the kernels of the program alone
    CudaChecks *checks; // NULL: this is not --device cuda-check
};

// Says that a call, "function(arguments)", has failed, with the last operations, and ends the job with `status`.
// `error` is the name and the meaning of what the call returned.
_Noreturn void cuda_fault(const CudaDevice *device, const char *call, const char *error, Status status);
// The same for a call that starts nothing on the GPU, so that no earlier operation can be at fault.
_Noreturn void cuda_refused(const CudaDevice *device, const char *call, const char *error, Status status);
// The same while a device is opened or prepared: fails with `status`.
Status cuda_fail(const CudaDevice *device, const char *call, const char *error, Status status);

// Ends the job if a call of the CUDA runtime has failed. CUDA reports a fault of an operation at any later call.
void cuda_check(const CudaDevice *device, const char *call, cudaError_t error);
#define CUDA(device, call) cuda_check(device, #call, call)
// The same while a device is opened, for TRY: ERR_OS with the call.
Status cuda_status(const CudaDevice *device, const char *call, cudaError_t error);
#define CUDA_STATUS(device, call) cuda_status(device, #call, call)
#ifdef __cplusplus
}
#endif
