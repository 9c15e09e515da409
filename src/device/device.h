// A device: its memory, its streams, events, and copies between host and device. Each rank computes with one. The
// operations are in ops.h.
//
// Every call passes one front (device.c, launch.c), which checks arguments and counts; a backend (backend.h) works:
//   reference  plain loops, fp64 accumulation: the definition of correct
//   cpu        matrix products by pairs, AMX or oneDNN, fused OpenMP/SIMD kernels, attention without the S x S matrix
//   null       allocates nothing, computes nothing, counts: the planner's device
//   check      the cpu backend as a GPU would be: see device/check/check.h
//   cuda       NVIDIA GPUs; a module beside the program (device/module.h)
//   cuda-check the same, slow: names the operation that made a fault (device/cuda/checked.h)
//   cuda-sim   the code of cuda on a simulated GPU, for tests; a module, too; and cuda-sim-check
//
// Order. Operations and copies are stream-ordered: each starts when everything before it on its stream is done, and the
// call may return before. Streams run beside each other; an event orders them. The host has to wait, for an event or
// for a download, where it needs a value. On cpu and reference no operation, copy or event allocates memory.
//
// Host code never follows an address of device memory: values go up and down by device_upload and device_download. The
// one exception are transports that run on the host (src/comm), by device_access, and tests.
#pragma once
#include "base/arena.h"
#include "base/cores.h"
#include "base/text.h"
#include <stdint.h>

typedef enum { F32, F64, I32, BF16, F16, U16, E4M3, E5M2, NUM_DTYPES } DType;

// A row-major matrix in device memory. A vector is one row. data NULL: an absent optional argument.
typedef struct {
    void *data;
    int64_t rows, cols;
    DType dtype;
} Tensor;

typedef struct Device Device;
typedef struct Stream Stream; // an order of execution with its own workspace

size_t dtype_bytes(DType dtype);
const char *dtype_name(DType dtype); // "f32"
bool dtype_is_element(DType dtype);  // F32, BF16 or F16: an element type of operations
bool dtype_is_float8(DType dtype);   // E4M3 or E5M2 (base/float8.h): for factors of products alone
int64_t tensor_count(Tensor x);
size_t tensor_bytes(Tensor x);
Tensor tensor_rows(Tensor x, int64_t first, int64_t count); // a view of some rows
Tensor tensor_part(Tensor x, int64_t first, int64_t count); // a view of some elements, as one row
// Takes a tensor from an arena. Its contents are undefined: the check device ends the job when they are read before
// they are written.
Tensor tensor_take(Arena *arena, const char *name, int64_t rows, int64_t cols, DType dtype);
bool tensor_same_shape(Tensor a, Tensor b); // and dtype

// ---- the device -------------------------------------------------------------------------------------------

// Who computes attention where a device has the choice, the cuda kinds: kernels of the program, or the library cuDNN
// with what it takes (16-bit types, D a multiple of 8 up to 128, no dropout, no stored probabilities). The two differ
// in bits.
typedef enum {
    ATTENTION_BY_GPU, // whichever is the faster on the GPU, if it is there; workspace has room for either
    ATTENTION_OWN,
    ATTENTION_CUDNN, // a device without cuDNN is not opened, and cuDNN has to take the calls
    ATTENTION_CUDNN_CHOSEN // cuDNN, as BY_GPU has chosen it: what it does not take the kernels of the program compute
} AttentionKernels;

typedef struct {
    const char *kind;       // one of device_kinds()
    const char *stands_for; // null only: the kind whose workspace it reports; NULL: "cpu"
    int threads;            // of this rank, >= 1
    size_t workspace_bytes; // of each stream; what device_workspace_peak of a null run of the same work says
    int rank_here;          // this rank's number among those of its machine: ranks take its GPUs in turn
    AttentionKernels attention;
    bool any_order; // operations may add in an order of their own, so that results need not repeat
    const char *
        algorithms; // cuda only: a file of matrix products' algorithms (algorithms.h); NULL: the library's choice
    bool float8; // products of 8 bits are wanted: a GPU that lacks them is refused
} DeviceOptions;

// The names of the kinds: "cpu", "reference", "check", "null", "cuda", "cuda-check", "cuda-sim",
// "cuda-sim-check".
const char *const *device_kinds(int *count);
// Checks whether a device of this kind can be opened: ERR_CONFIG for an unknown kind, or for a variable of the
// environment that names unknown kernels; ERR_UNAVAILABLE where the module or the GPU is missing. device_open checks
// the same; callers use this to fail before there is anything to undo.
Status device_check(const char *kind);
// Returns whether the memory of this kind is plain memory of the process, where operations are done when they return.
bool device_is_host(const char *kind);
// Finds what a null device needs to stand for this kind, without any GPU: ERR_CONFIG for an unknown kind,
// ERR_UNAVAILABLE where its module is missing, ERR_DATA where that belongs to another build.
Status device_load(const char *kind);
// Called by the thread that will use it. ERR_CONFIG for an unknown kind (names the nearest) or TRIREME_MAX_CPU_ISA,
// ERR_UNAVAILABLE without its module, a GPU or the library that `attention` names, ERR_OS without memory; with
// `algorithms` as algorithms_read, and ERR_DATA where a row of the file is not for this GPU and its library.
Status device_open(Device **device, DeviceOptions options);
// The GPU on which a device computes; zeros: the CPU.
typedef struct {
    unsigned char id[16]; // the same bytes for devices that share a GPU, and only for those
    char name[144];       // for messages: "GPU 0 (NVIDIA H200)"
} DeviceUnit;
DeviceUnit device_unit(const Device *device);
// Finds the processors near the GPU that a rank with this number among those of its machine takes (rank_here): those of
// the GPU's NUMA node. Nothing is opened. `sysfs` is SYSFS, or laid out like it. None where there is no GPU, or where
// the system does not say.
void device_near(const char *kind, int rank_here, const char *sysfs, Cores *near);
// Waits for what is under way. Close the arenas that live in its memory, and its other streams, first.
void device_close(Device *device);
// Returns the name of the kernels that a device takes. The cpu backend: "amx", "avx512_bf16", "avx512", "avx2" or
// "baseline", the fastest that the CPU runs, or the fastest up to what TRIREME_MAX_CPU_ISA names; where the user's
// ONEDNN_MAX_CPU_ISA or DNNL_MAX_CPU_ISA limits products, "amx (products: DNNL_MAX_CPU_ISA)". Other kinds: "".
const char *device_kernels(const char *kind);
// Names what the arithmetic of this process is done with: the instruction set of the kernels, oneDNN with the
// instruction set that it uses, and the GPUs of a kind of device that computes on them. Machines that give different
// texts may compute different bits. Those that give the same text mostly compute the same; CPUs of different makers
// need not, as some instructions are approximate and oneDNN cuts its work by the caches.
void device_arithmetic(const char *kind, Text *out);
// Decides who computes attention on the GPU of a device with these options, of which kind, rank_here and attention
// count. Returns options.attention where that leaves nothing open, or where there is no GPU to decide it.
AttentionKernels device_choose_attention(const DeviceOptions *options);
// Says what computes attention on devices with these options; adds nothing for kinds that have no choice.
void device_attention(const DeviceOptions *options, Text *out);
bool device_computes(const Device *device); // false for null
int device_threads(const Device *device);   // of this rank
// Returns whether the device makes the operations of FUSED_OPS (ops.h) as one. Where it does, every pass over a tensor
// counts, and layers leave out copies that others make. null: as the kind that it stands for.
bool device_is_fused(const Device *device);
// Returns of how many tokens the loss head should make the logits at once, given H and V. Every such chunk reads and
// writes the gradient of the head's weight once. It depends on the kind of device and on the sizes alone, so that no
// grid changes what a kind computes.
int64_t device_head_tokens(const Device *device, int64_t hidden, int64_t vocabulary);
Memory device_memory(Device *device); // what arenas of this device live in
// Memory of the host that copies of the device reach while the host goes on: pinned memory beside a GPU, else plain
// memory.
Memory device_host_memory(Device *device);
size_t device_workspace_peak(const Device *device); // the most any operation so far needed, bytes
// Sets a function that is called before every operation and during long waits of the host, on every kind of device: it
// lets messages under way advance while a long step computes. NULL: no function.
void device_on_launch(Device *device, void (*hook)(void *self), void *self);
// Sets a function that is called again and again while the host waits for the device, wherever it does, with the
// seconds since that wait began; a time in which the process was stopped does not count. It must not call the device,
// but for event_done. NULL: no function.
void device_on_wait(Device *device, void (*hook)(void *self, double waited_s), void *self);

// ---- streams and events -----------------------------------------------------------------------------------

Stream *device_stream(Device *device); // the compute stream, which every device has
// Another stream, with a workspace of its own. `name` is for messages and stays alive. ERR_OS without memory.
Status device_stream_open(Device *device, const char *name, Stream **stream);
void device_stream_close(Device *device, Stream *stream); // waits for what is under way; takes NULL

// The place that a stream had reached when the event was recorded. A value; {0} is done from the start.
typedef struct {
    Stream *stream;
    int64_t number;
} StreamEvent;

StreamEvent event_record(Device *device, Stream *stream);
bool event_done(Device *device, StreamEvent event); // asks and returns at once
// The host waits until the stream has got there, and calls the launch hook meanwhile.
void event_wait(Device *device, StreamEvent event);
// Waits at most so many seconds, without the hook; returns whether the stream has got there.
bool event_wait_for(Device *device, StreamEvent event, double seconds);
// Makes all later work of `stream` wait until the event's stream has reached the event. The host does not wait.
void stream_wait(Device *device, Stream *stream, StreamEvent event);
// The host waits for everything that was put on the stream.
void device_sync(Device *device, Stream *stream);

// When a stream got to a place. The two clocks are valid once device_mark_read has returned, which waits for the
// stream; every mark is read once.
typedef struct {
    double wall_s; // clock_s()
    // Processor time of the computing thread where there is one, else as wall_s; for differences.
    double work_s;
    int64_t number;
} DeviceMark;

DeviceMark device_mark(Device *device, Stream *stream);
void device_mark_read(Device *device, DeviceMark *mark);

// ---- copies -----------------------------------------------------------------------------------------------

// From host to device: the caller may change `from` as soon as this returns.
void device_upload(Device *device, Stream *stream, Tensor to, const void *from);
// From device to host: waits until the values are there.
void device_download(Device *device, Stream *stream, void *to, Tensor from);
// The same from and to memory of device_host_memory, without a wait: the host leaves that memory alone until the stream
// has got to an event that was recorded after the call.
void device_upload_async(Device *device, Stream *stream, Tensor to, const void *from);
void device_download_async(Device *device, Stream *stream, void *to, Tensor from);
void device_copy(Device *device, Stream *stream, Tensor to, Tensor from);
void device_zero(Device *device, Stream *stream, Tensor x);

// ---- host code that follows addresses of device memory: transports, tests ---------------------------------

// The use of a tensor by host code, from the place that a stream had reached until device_access_end.
typedef struct {
    void *data; // the tensor's
    size_t bytes;
    bool reads, writes;
    const char *what;  // for messages: "send of stage output"
    StreamEvent since; // the host may follow the address from here on
    void *address;
    int64_t number; // the backend's
} HostAccess;

// Announces that host code will read x, write x, or both, once `stream` has got to where it is now. Until
// device_access_end nothing else may write x, and with `writes` nothing else may read it: the check device names the
// operation that does, and with `reads` it names x where nothing has written it. `what` stays alive until the end.
HostAccess device_access(Device *device, Stream *stream, Tensor x, bool reads, bool writes, const char *what);
bool device_access_ready(Device *device, const HostAccess *access);    // whether the stream has got there
void *device_access_address(Device *device, const HostAccess *access); // CHECKs that it has
void device_access_end(Device *device, HostAccess *access);            // takes what was only zeroed

// Returns the address at which a test may read and write device memory, once it has waited for the device's work there.
// A null device has no memory: it returns the tensor's own address.
void *device_address(Device *device, Tensor x);
