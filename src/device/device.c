// The front of a device: which kinds there are, opening and closing, streams and events, memory and copies.
#include "base/pci.h"
#include "base/rank.h"
#include "device/algorithms.h"
#include "device/front.h"
#include "device/module.h"
#include <stdlib.h>
#include <string.h>

// ---- kinds ------------------------------------------------------------------------------------------------

// The backends of the program come first, then the modules.
#define X(name)                   #name,
#define MODULE(kind, file, which) kind,
static const char *const KIND_NAMES[] = {DEVICE_KINDS(X) DEVICE_MODULES(MODULE)};
#undef X
#undef MODULE
#define X(name) &name##_backend,
static const Backend *const BACKENDS[] = {DEVICE_KINDS(X)};
#undef X
#define MODULE(kind, file, which) {file, which},
static const struct {
    const char *file;
    ModuleBackend which;
} MODULES[] = {DEVICE_MODULES(MODULE)};
#undef MODULE
enum {
    NUM_KINDS = sizeof KIND_NAMES / sizeof *KIND_NAMES,
    NUM_BACKENDS = sizeof BACKENDS / sizeof *BACKENDS
};

const char *const *device_kinds(int *count) {
    *count = NUM_KINDS;
    return KIND_NAMES;
}

static Status unknown_kind(const char *name) {
    const char *nearest = text_nearest(name, KIND_NAMES, NUM_KINDS);
    Text names = {0};
    for (int i = 0; i < NUM_KINDS; i++)
        text_add(&names, "%s%s", !i ? "" : i + 1 < NUM_KINDS ? ", " : " and ", KIND_NAMES[i]);
    Status status = fail(ERR_CONFIG, "device '%s' is unknown; there are %s%s%s%s", name, text_string(&names),
                         nearest ? ": did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
    text_free(&names);
    return status;
}

static Status find_kind(const char *name, const Backend **backend) {
    int i = 0;
    while (i < NUM_KINDS && strcmp(name, KIND_NAMES[i]) != 0) i++;
    if (i == NUM_KINDS) return unknown_kind(name);
    if (i >= NUM_BACKENDS) {
        int module = i - NUM_BACKENDS;
        return module_load(name, MODULES[module].file, MODULES[module].which, backend);
    }
    *backend = BACKENDS[i];
    return OK;
}

Status device_load(const char *name) {
    const Backend *backend;
    return find_kind(name, &backend);
}

Status device_check(const char *name) {
    const Backend *backend;
    TRY(find_kind(name, &backend));
    return backend->check ? backend->check() : OK;
}

bool device_is_host(const char *name) {
    const Backend *backend;
    return find_kind(name, &backend) == OK && !backend->take && !backend->counts_only;
}

Status device_survey(const char *name, bool tries, DeviceSurvey *survey, Text *module) {
    const Backend *backend;
    *survey = (DeviceSurvey){0};
    for (int i = NUM_BACKENDS; i < NUM_KINDS; i++)
        if (!strcmp(name, KIND_NAMES[i])) TRY(module_find(name, MODULES[i - NUM_BACKENDS].file, module));
    TRY(find_kind(name, &backend));
    if (backend->survey) backend->survey(survey, tries);
    for (int i = 0; i < survey->num_gpus; i++) survey_place(&survey->gpus[i], SYSFS);
    return backend->check ? backend->check() : OK;
}

void device_arithmetic(const char *name, Text *out) {
    const Backend *backend;
    if (find_kind(name, &backend) != OK)
        text_add(out, "no device %s", name);
    else
        (backend->arithmetic ? backend : BACKENDS[0])->arithmetic(out);
}

const char *device_kernels(const char *name) {
    const Backend *backend;
    return find_kind(name, &backend) == OK && backend->kernels ? backend->kernels() : "";
}

AttentionKernels device_choose_attention(const DeviceOptions *options) {
    const Backend *backend;
    if (find_kind(options->kind, &backend) != OK || !backend->choose_attention) return options->attention;
    return backend->choose_attention(options);
}

void device_attention(const DeviceOptions *options, Text *out) {
    const Backend *backend;
    if (find_kind(options->kind, &backend) == OK && backend->attention) backend->attention(options, out);
}

// ---- opening and closing ----------------------------------------------------------------------------------

static Status open_stream(Device *device, Stream *stream, const char *name, size_t bytes) {
    const Backend *backend = &device->backend;
    *stream = (Stream){
        .exec = {.state = device->state, .threads = device->options.threads}, .device = device, .name = name};
    TRY(backend->stream_open(device->state, name, &stream->exec.queue));
    stream->next = device->streams;
    device->streams = stream;
    if (backend->counts_only || !bytes) return OK;
    const char *why = "";
    stream->exec.workspace = backend->take(device->state, "workspace", bytes, &why);
    if (!stream->exec.workspace)
        return fail(ERR_OS, "no memory for the workspace of the %s stream: %.1f MiB wanted (%s)", name,
                    (double)bytes / 1048576.0, why);
    stream->exec.workspace_bytes = bytes;
    return OK;
}

// Also one whose workspace could not be had.
static void close_stream(Stream *stream) {
    Device *device = stream->device;
    Stream **link = &device->streams;
    while (*link && *link != stream) link = &(*link)->next;
    if (!*link) return; // it was never opened
    *link = stream->next;
    device->backend.stream_close(device->state, stream->exec.queue);
    if (stream->exec.workspace)
        device->backend.give_back(device->state, stream->exec.workspace, stream->exec.workspace_bytes);
}

// A null device computes nothing.
static Status take_algorithms(const Device *d) {
    const char *file = d->options.algorithms;
    char *text;
    if (!file || d->backend.counts_only) return OK;
    if (!d->backend.algorithms_take)
        return fail(ERR_CONFIG,
                    "the device %s chooses no algorithms of matrix products by a table such as %s",
                    d->backend.name, file);
    TRY(algorithms_read(file, &text));
    Status status = d->backend.algorithms_take(d->state, file, text);
    free(text);
    return status;
}

Status device_open(Device **device, DeviceOptions options) {
    CHECK(options.threads >= 1, "a device with %d threads", options.threads);
    const Backend *backend, *model;
    *device = NULL;
    TRY(find_kind(options.kind, &backend));
    TRY(device_check(options.kind));
    model = backend;
    if (backend->counts_only) TRY(find_kind(options.stands_for ? options.stands_for : KIND_NAMES[0], &model));
    Device *d = calloc(1, sizeof *d);
    if (!d) return fail(ERR_OS, "no memory for a device");
    *d = (Device){.backend = *backend, .model = model, .options = options};
    backend_complete(&d->backend);
    Status status = d->backend.open(&d->state, &options);
    if (status != OK) {
        free(d);
        return status;
    }
    status = open_stream(d, &d->compute, "compute", options.workspace_bytes);
    if (status == OK) status = take_algorithms(d);
    if (status == OK && d->backend.on_wait) d->backend.on_wait(d->state, &d->wait);
    if (status == OK)
        *device = d;
    else
        device_close(d);
    return status;
}

void device_close(Device *device) {
    if (!device) return;
    if (device->compute.device) close_stream(&device->compute);
    CHECK(!device->streams, "a device was closed before its stream %s", device->streams->name);
    device->backend.close(device->state);
    free(device);
}

DeviceUnit device_unit(const Device *device) {
    DeviceUnit unit = {0};
    if (device->backend.unit) device->backend.unit(device->state, &unit);
    return unit;
}

void device_near(const char *kind, int rank_here, const char *sysfs, Cores *near) {
    const Backend *backend;
    char id[PCI_ID_BYTES];
    *near = (Cores){0};
    if (find_kind(kind, &backend) == OK && backend->pci && backend->pci(rank_here, id))
        pci_cores(sysfs, id, near);
}

bool device_computes(const Device *device) { return !device->backend.counts_only; }

int device_threads(const Device *device) { return device->options.threads; }

bool device_is_fused(const Device *device) { return device->model->is_fused; }

// Every chunk reads and writes dW once, 8 bytes an element for 2 flops a token: on a CPU this many tokens keep that
// small, whatever the model's sizes.
int64_t device_head_tokens(const Device *device, int64_t hidden, int64_t vocabulary) {
    const int64_t of_cpu = 512;
    return device->model->head_tokens ? device->model->head_tokens(hidden, vocabulary) : of_cpu;
}

size_t device_workspace_peak(const Device *device) {
    size_t peak = 0;
    for (const Stream *s = device->streams; s; s = s->next)
        if (s->peak_bytes > peak) peak = s->peak_bytes;
    return peak;
}

void device_on_launch(Device *device, void (*hook)(void *self), void *self) {
    device->hook = hook;
    device->hook_self = self;
}

void device_on_wait(Device *device, void (*hook)(void *self, double waited_s), void *self) {
    device->wait = (DeviceWait){hook, self};
}

Memory device_memory(Device *device) {
    const Backend *b = &device->backend;
    return (Memory){.take = b->take, .give_back = b->give_back, .begins = b->begins, .self = device->state};
}

Memory device_host_memory(Device *device) {
    const Backend *b = &device->backend;
    return (Memory){.take = b->host_take, .give_back = b->host_give_back, .self = device->state};
}

// ---- streams and events -----------------------------------------------------------------------------------

static void check_stream(const Device *device, const Stream *stream) {
    CHECK(stream->device == device, "a stream of another device");
}

Stream *device_stream(Device *device) { return &device->compute; }

static Status stream_create(Device *device, const char *name, size_t workspace_bytes, Stream **stream) {
    *stream = malloc(sizeof **stream);
    if (!*stream) return fail(ERR_OS, "no memory for the stream %s", name);
    Status status = open_stream(device, *stream, name, workspace_bytes);
    if (status == OK) return OK;
    close_stream(*stream);
    free(*stream);
    *stream = NULL;
    return status;
}

Status device_stream_open(Device *device, const char *name, Stream **stream) {
    return stream_create(device, name, device->options.workspace_bytes, stream);
}

Status device_side_stream_open(Device *device, const char *name, Stream **stream) {
    return stream_create(device, name, 0, stream);
}

void device_stream_close(Device *device, Stream *stream) {
    if (!stream) return;
    check_stream(device, stream);
    close_stream(stream);
    free(stream);
}

StreamEvent event_record(Device *device, Stream *stream) {
    check_stream(device, stream);
    return (StreamEvent){stream, device->backend.event_record(&stream->exec)};
}

bool event_wait_for(Device *device, StreamEvent event, double seconds) {
    return !event.number || device->backend.event_wait(&event.stream->exec, event.number, seconds);
}

bool event_done(Device *device, StreamEvent event) { return event_wait_for(device, event, 0); }

void event_wait(Device *device, StreamEvent event) {
    const double turn_s = 1e-3; // messages move this often
    for (WaitClock clock = {0}; !event_wait_for(device, event, turn_s);
         wait_clock_turn(&clock, &device->wait))
        if (device->hook) device->hook(device->hook_self);
}

void stream_wait(Device *device, Stream *stream, StreamEvent event) {
    check_stream(device, stream);
    if (event.number && event.stream != stream)
        device->backend.stream_wait(&stream->exec, &event.stream->exec, event.number);
}

void device_sync(Device *device, Stream *stream) { event_wait(device, event_record(device, stream)); }

DeviceMark device_mark(Device *device, Stream *stream) {
    DeviceMark mark = {0};
    device->backend.mark(&stream->exec, &mark);
    return mark;
}

void device_mark_read(Device *device, DeviceMark *mark) { device->backend.mark_read(device->state, mark); }

// ---- copies -----------------------------------------------------------------------------------------------

void device_upload(Device *device, Stream *stream, Tensor to, const void *from) {
    check_stream(device, stream);
    if (device->backend.counts_only || !tensor_bytes(to)) return;
    device->backend.upload(&stream->exec, to.data, from, tensor_bytes(to));
}

void device_download(Device *device, Stream *stream, void *to, Tensor from) {
    check_stream(device, stream);
    if (!tensor_bytes(from)) return;
    if (device->backend.counts_only) {
        memset(to, 0, tensor_bytes(from));
        return;
    }
    device->backend.download(&stream->exec, to, from.data, tensor_bytes(from));
    device_sync(device, stream);
}

void device_upload_async(Device *device, Stream *stream, Tensor to, const void *from) {
    check_stream(device, stream);
    if (device->backend.counts_only || !tensor_bytes(to)) return;
    device->backend.upload_async(&stream->exec, to.data, from, tensor_bytes(to));
}

void device_download_async(Device *device, Stream *stream, void *to, Tensor from) {
    check_stream(device, stream);
    if (device->backend.counts_only || !tensor_bytes(from)) return;
    device->backend.download_async(&stream->exec, to, from.data, tensor_bytes(from));
}

void device_copy(Device *device, Stream *stream, Tensor to, Tensor from) {
    check_stream(device, stream);
    CHECK(to.dtype == from.dtype && tensor_count(to) == tensor_count(from),
          "device_copy: %lld elements to %lld", (long long)tensor_count(from), (long long)tensor_count(to));
    if (device->backend.counts_only || !tensor_bytes(to)) return;
    device->backend.copy(&stream->exec, to.data, from.data, tensor_bytes(to));
}

void device_zero(Device *device, Stream *stream, Tensor x) {
    check_stream(device, stream);
    if (device->backend.counts_only || !tensor_bytes(x)) return;
    device->backend.zero(&stream->exec, x.data, tensor_bytes(x));
}

// ---- host code that follows addresses ---------------------------------------------------------------------

HostAccess device_access(Device *device, Stream *stream, Tensor x, bool reads, bool writes,
                         const char *what) {
    HostAccess access = {
        .data = x.data, .bytes = tensor_bytes(x), .reads = reads, .writes = writes, .what = what};
    if (!access.bytes) return access;
    check_stream(device, stream);
    access.since = event_record(device, stream);
    device->backend.access(&stream->exec, &access);
    return access;
}

bool device_access_ready(Device *device, const HostAccess *access) {
    return event_done(device, access->since);
}

void *device_access_address(Device *device, const HostAccess *access) {
    return access->bytes ? device->backend.access_address(device->state, access) : access->data;
}

void device_access_end(Device *device, HostAccess *access) {
    if (access->bytes) device->backend.access_end(device->state, access);
    *access = (HostAccess){0};
}

void *device_address(Device *device, Tensor x) {
    return device->backend.address(device->state, x.data, tensor_bytes(x));
}
