// What a rank computes with: a device's memory, its streams, and copies between host and device. The operations are in
// ops.h.
//
// Every call passes one front (device.c, ops.c) that checks arguments and counts; a backend does the work:
//   reference  plain loops, fp64 accumulation: the definition of correct
//   cpu        matrix products by pairs, AMX or oneDNN, fused OpenMP/SIMD kernels, attention without the S x S matrix
//   null       allocates nothing, computes nothing, counts: the planner's device
//   check      the cpu backend behind disguised addresses, poison, canaries and a NaN search: a GPU's
//              pitfalls on a laptop; it ends the job at the first number written that is not finite
//              (ERR_NUMERIC), naming operation and element
// Operations and copies are stream-ordered and may return before they are done; none allocates.
#pragma once
#include "base/arena.h"
#include "base/text.h"
#include <stdint.h>

typedef enum { F32, F64, I32, BF16, F16, U16, NUM_DTYPES } DType;

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
int64_t tensor_count(Tensor x);
size_t tensor_bytes(Tensor x);
Tensor tensor_rows(Tensor x, int64_t first, int64_t count); // a view of some rows
Tensor tensor_part(Tensor x, int64_t first, int64_t count); // a view of some elements, as one row
// From a device arena. Its contents are undefined; a checking device fills it with NaN (integers: all bits
// set) each time.
Tensor tensor_take(Arena *arena, const char *name, int64_t rows, int64_t cols, DType dtype);
bool tensor_same_shape(Tensor a, Tensor b); // and dtype

// ---- the device -------------------------------------------------------------------------------------------

typedef struct {
    const char *kind;       // "cpu", "reference", "null", "check"
    const char *stands_for; // null only: the kind whose workspace it reports; NULL: "cpu"
    int threads;            // of this rank, >= 1
    size_t workspace_bytes; // of its stream; what device_workspace_peak of a null run of the same work says
} DeviceOptions;

// Whether a device can be opened here: ERR_CONFIG for an unknown kind, or a variable of the environment that holds it to
// kernels that are unknown. As device_open, before there is anything to undo.
Status device_check(const char *kind);
// Called by the thread that will use it. ERR_CONFIG for an unknown kind (names the nearest) or TRIREME_MAX_CPU_ISA,
// ERR_OS without memory. Close the arenas that live in its memory first.
Status device_open(Device **device, DeviceOptions options);
void device_close(Device *device);
const char *const *device_kinds(int *count);
// Which kernels a device takes. The cpu backend: "amx", "avx512_bf16", "avx512", "avx2" or "baseline", the best
// that the CPU runs, or the best up to what TRIREME_MAX_CPU_ISA names; where the user's ONEDNN_MAX_CPU_ISA or
// DNNL_MAX_CPU_ISA limits products, "amx (products: DNNL_MAX_CPU_ISA)". "" for a kind without a choice.
const char *device_kernels(const char *kind);
// Names what the arithmetic of this process is done with: the instruction set of the kernels, and oneDNN with
// the instruction set that it uses. Machines that give different
// texts may compute different bits. Those that give the same text mostly compute the same; CPUs of different makers
// need not, as some instructions are approximate and oneDNN cuts its work by the caches.
void device_arithmetic(Text *out);
bool device_computes(const Device *device); // false for null
int device_threads(const Device *device);   // of this rank
Stream *device_stream(Device *device);      // the compute stream
Memory device_memory(Device *device);       // what arenas of this device live in
void device_sync(Device *device, Stream *stream);
size_t device_workspace_peak(const Device *device); // the most any operation so far needed, bytes

// The address that host code and MPI may follow for device memory (the CPU's are plain or disguised); CHECKs
// that it is one. On a null device there is nothing to follow: the address comes back as it is.
void *device_address(Device *device, void *data);

void device_upload(Device *device, Stream *stream, Tensor to, const void *from); // host to device
void device_download(Device *device, Stream *stream, void *to, Tensor from);     // and back; synchronous
void device_copy(Device *device, Stream *stream, Tensor to, Tensor from);
void device_zero(Device *device, Stream *stream, Tensor x);

// Called before every operation, on every kind of device: lets messages under way advance while a long step
// computes. NULL: nothing.
void device_on_launch(Device *device, void (*hook)(void *self), void *self);
