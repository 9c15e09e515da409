#include "base/rank.h"
#include "base/text.h"
#include "device/front.h"
#include <errno.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

//  kind, backend, computes, checks
#define DEVICE_KINDS(X)                                                                                      \
    X("cpu", &cpu_backend, true, false)                                                                      \
    X("reference", &reference_backend, true, false)                                                          \
    X("check", &cpu_backend, true, true)                                                                     \
    X("null", &cpu_backend, false, false)

#define X(kind, ...) kind,
static const char *const KIND_NAMES[] = {DEVICE_KINDS(X)};
#undef X
#define X(kind, ...) {__VA_ARGS__},
static const struct {
    const Backend *backend;
    bool computes, checks;
} KINDS[] = {DEVICE_KINDS(X)};
#undef X
enum { NUM_KINDS = sizeof KINDS / sizeof *KINDS };

// ---- tensors ----------------------------------------------------------------------------------------------

//  type, name, bytes, an element type of operations
#define DTYPES(X)                                                                                            \
    X(F32, "f32", 4, true)                                                                                   \
    X(F64, "f64", 8, false)                                                                                  \
    X(I32, "i32", 4, false)                                                                                  \
    X(BF16, "bf16", 2, true)                                                                                 \
    X(F16, "f16", 2, true)                                                                                   \
    X(U16, "u16", 2, false)

#define X(dtype, ...) [dtype] = {__VA_ARGS__},
static const struct {
    const char *name;
    size_t bytes;
    bool is_element;
} DTYPE_ROWS[NUM_DTYPES] = {DTYPES(X)};
#undef X

size_t dtype_bytes(DType dtype) { return DTYPE_ROWS[dtype].bytes; }

const char *dtype_name(DType dtype) { return DTYPE_ROWS[dtype].name; }

bool dtype_is_element(DType dtype) { return DTYPE_ROWS[dtype].is_element; }

int64_t tensor_count(Tensor x) { return x.rows * x.cols; }

size_t tensor_bytes(Tensor x) { return (size_t)tensor_count(x) * dtype_bytes(x.dtype); }

Tensor tensor_rows(Tensor x, int64_t first, int64_t count) {
    CHECK(first >= 0 && count >= 0 && first + count <= x.rows, "rows %lld to %lld of a tensor of %lld",
          (long long)first, (long long)(first + count), (long long)x.rows);
    size_t offset = (size_t)(first * x.cols) * dtype_bytes(x.dtype);
    return (Tensor){(char *)x.data + offset, count, x.cols, x.dtype};
}

Tensor tensor_part(Tensor x, int64_t first, int64_t count) {
    CHECK(first >= 0 && count >= 0 && first + count <= tensor_count(x),
          "elements %lld to %lld of a tensor of %lld", (long long)first, (long long)(first + count),
          (long long)tensor_count(x));
    return (Tensor){(char *)x.data + (size_t)first * dtype_bytes(x.dtype), 1, count, x.dtype};
}

Tensor tensor_take(Arena *arena, const char *name, int64_t rows, int64_t cols, DType dtype) {
    CHECK(rows >= 0 && cols >= 0 && (!cols || rows <= INT64_MAX / 16 / cols), "tensor %s of [%lld, %lld]",
          name, (long long)rows, (long long)cols);
    Tensor x = {NULL, rows, cols, dtype};
    x.data = arena_take(arena, name, tensor_bytes(x));
    // What an earlier owner of a re-used block left there must not be read.
    if (check_owns(arena)) check_poison(x.data, tensor_bytes(x));
    return x;
}

bool tensor_same_shape(Tensor a, Tensor b) {
    return a.rows == b.rows && a.cols == b.cols && a.dtype == b.dtype;
}

// ---- life -------------------------------------------------------------------------------------------------

const char *const *device_kinds(int *count) {
    *count = NUM_KINDS;
    return KIND_NAMES;
}

static Status find_kind(const char *name, int *kind) {
    for (*kind = 0; *kind < NUM_KINDS; ++*kind)
        if (strcmp(name, KIND_NAMES[*kind]) == 0) return OK;
    const char *nearest = text_nearest(name, KIND_NAMES, NUM_KINDS);
    return fail(ERR_CONFIG, "device '%s' is unknown; there are cpu, reference, check and null%s%s%s", name,
                nearest ? ": did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
}

Status device_check(const char *name) {
    int kind;
    TRY(find_kind(name, &kind));
    return KINDS[kind].computes && KINDS[kind].backend->check ? KINDS[kind].backend->check() : OK;
}

const char *device_kernels(const char *name) {
    int kind;
    if (find_kind(name, &kind) != OK || !KINDS[kind].computes || !KINDS[kind].backend->kernels) return "";
    return KINDS[kind].backend->kernels();
}

static Status take_workspace(Stream *stream, size_t bytes) {
    if (!bytes) return OK;
    Memory host = memory_host();
    stream->exec.workspace = host.take(host.self, bytes);
    if (!stream->exec.workspace)
        return fail(ERR_OS, "no memory for the workspace of the compute stream: %.1f MiB wanted (%s)",
                    (double)bytes / 1048576.0, strerror(errno));
    stream->exec.workspace_bytes = bytes;
    return OK;
}

Status device_open(Device **device, DeviceOptions options) {
    CHECK(options.threads >= 1, "a device with %d threads", options.threads);
    int kind, model;
    *device = NULL;
    TRY(find_kind(options.kind, &kind));
    TRY(device_check(options.kind));
    TRY(find_kind(options.stands_for ? options.stands_for : KIND_NAMES[kind], &model));
    Device *d = calloc(1, sizeof *d);
    if (!d) return fail(ERR_OS, "no memory for a device");
    *d = (Device){.backend = KINDS[KINDS[kind].computes ? kind : model].backend,
                  .computes = KINDS[kind].computes,
                  .checks = KINDS[kind].checks,
                  .stream.exec.threads = options.threads};
    Status status = d->computes ? take_workspace(&d->stream, options.workspace_bytes) : OK;
    if (status != OK) {
        free(d);
        return status;
    }
    if (d->computes)
        omp_set_num_threads(options.threads); // of this rank's thread; libraries that ask OpenMP obey it
    *device = d;
    return OK;
}

void device_close(Device *device) {
    if (!device) return;
    if (device->checks) check_close(&device->guard);
    Exec *exec = &device->stream.exec;
    Memory host = memory_host();
    if (exec->workspace) host.give_back(host.self, exec->workspace, exec->workspace_bytes);
    free(device);
}

bool device_computes(const Device *device) { return device->computes; }

int device_threads(const Device *device) { return device->stream.exec.threads; }

Stream *device_stream(Device *device) { return &device->stream; }

size_t device_workspace_peak(const Device *device) { return device->stream.peak_bytes; }

const OpCount *device_counts(const Device *device) { return device->counts; }

void device_counts_reset(Device *device) { memset(device->counts, 0, sizeof device->counts); }

void device_on_launch(Device *device, void (*hook)(void *self), void *self) {
    device->hook = hook;
    device->hook_self = self;
}

void device_on_operation(Device *device, OnOperation *hook, void *self) {
    device->listener = hook;
    device->listener_self = self;
}

// ---- memory -----------------------------------------------------------------------------------------------

Memory device_memory(Device *device) {
    if (!device->computes) return null_memory(device);
    return device->checks ? check_memory(&device->guard) : memory_host();
}

static void *plain(Device *device, const char *who, void *data, size_t bytes) {
    return device->checks ? check_reveal(&device->guard, who, "tensor", data, bytes) : data;
}

static void *host(Device *device, const char *who, const void *pointer) {
    if (device->checks) check_host(who, pointer);
    return (void *)(uintptr_t)pointer;
}

void *device_address(Device *device, void *data) { return plain(device, "device_address", data, 0); }

// The devices here compute on the calling thread: an operation is done when it returns.
void device_sync(Device *device, Stream *stream) {
    CHECK(stream == &device->stream, "a stream of another device");
}

void device_upload(Device *device, Stream *stream, Tensor to, const void *from) {
    CHECK(stream == &device->stream, "a stream of another device");
    if (!device->computes || !tensor_bytes(to)) return;
    memcpy(plain(device, "device_upload", to.data, tensor_bytes(to)), host(device, "device_upload", from),
           tensor_bytes(to));
}

void device_download(Device *device, Stream *stream, void *to, Tensor from) {
    CHECK(stream == &device->stream, "a stream of another device");
    if (!tensor_bytes(from)) return;
    if (!device->computes)
        memset(to, 0, tensor_bytes(from));
    else
        memcpy(host(device, "device_download", to),
               plain(device, "device_download", from.data, tensor_bytes(from)), tensor_bytes(from));
}

void device_copy(Device *device, Stream *stream, Tensor to, Tensor from) {
    CHECK(stream == &device->stream, "a stream of another device");
    CHECK(to.dtype == from.dtype && tensor_count(to) == tensor_count(from),
          "device_copy: %lld elements to %lld", (long long)tensor_count(from), (long long)tensor_count(to));
    if (!device->computes || !tensor_bytes(to)) return;
    memmove(plain(device, "device_copy", to.data, tensor_bytes(to)),
            plain(device, "device_copy", from.data, tensor_bytes(from)), tensor_bytes(to));
}

void device_zero(Device *device, Stream *stream, Tensor x) {
    CHECK(stream == &device->stream, "a stream of another device");
    if (!device->computes || !tensor_bytes(x)) return;
    memset(plain(device, "device_zero", x.data, tensor_bytes(x)), 0, tensor_bytes(x));
}
