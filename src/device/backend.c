// Calls the operations of a backend, and does what it leaves out: memory of the process, and operations that are done
// when they return, so that events are done too and cost nothing.
#include "device/backend.h"
#include "base/rank.h"
#include <string.h>

void backend_run(const Backend *backend, const Exec *exec, DeviceOp op, const void *args) {
    if (backend->run) {
        backend->run(exec, op, args);
        return;
    }
    switch (op) {
#define X(NAME, function, Args, reads, writes)                                                               \
    case OP_##NAME: backend->function(exec, args); return;
        DEVICE_OPS(X)
#undef X
    case NUM_DEVICE_OPS: break;
    }
    CHECK(false, "operation %d does not exist", (int)op);
}

void wait_clock_turn(WaitClock *clock, const DeviceWait *wait) {
    const double most_s = 0.1; // longer than a turn takes
    double now_s = clock_s(), turn_s = clock->last_s > 0 ? now_s - clock->last_s : 0;
    clock->last_s = now_s;
    clock->waited_s += turn_s < most_s ? turn_s : most_s;
    if (wait->hook) wait->hook(wait->self, clock->waited_s);
}

static Status host_open(void **state, const DeviceOptions *options) {
    (void)state, (void)options;
    return OK;
}

static void host_close(void *state) { (void)state; }

static void *host_take(void *state, const char *name, size_t bytes, const char **why) {
    Memory host = memory_host();
    (void)state;
    return host.take(host.self, name, bytes, why);
}

static void host_give_back(void *state, void *base, size_t bytes) {
    Memory host = memory_host();
    (void)state;
    host.give_back(host.self, base, bytes);
}

static Status host_stream_open(void *state, const char *name, void **queue) {
    (void)state, (void)name, (void)queue;
    return OK;
}

static void host_stream_close(void *state, void *queue) { (void)state, (void)queue; }

static void host_copy(const Exec *exec, void *to, const void *from, size_t bytes) {
    (void)exec;
    memmove(to, from, bytes);
}

static void host_zero(const Exec *exec, void *x, size_t bytes) {
    (void)exec;
    memset(x, 0, bytes);
}

static int64_t host_event_record(const Exec *exec) {
    (void)exec;
    return 0;
}

static bool host_event_wait(const Exec *exec, int64_t event, double seconds) {
    (void)exec, (void)event, (void)seconds;
    return true;
}

static void host_stream_wait(const Exec *exec, const Exec *of, int64_t event) {
    (void)exec, (void)of, (void)event;
}

// With one thread the time of work is that thread's processor time, so that ranks that share a core do not count each
// other's turns.
static void host_mark(const Exec *exec, DeviceMark *mark) {
    mark->wall_s = clock_s();
    mark->work_s = exec->threads == 1 ? clock_thread_s() : mark->wall_s;
}

static void host_mark_read(void *state, DeviceMark *mark) { (void)state, (void)mark; }

static void host_access(const Exec *exec, HostAccess *access) {
    (void)exec;
    access->address = access->data;
}

static void *host_access_address(void *state, const HostAccess *access) {
    (void)state;
    return access->address;
}

static void host_access_end(void *state, const HostAccess *access) { (void)state, (void)access; }

static void *host_address(void *state, void *data, size_t bytes) {
    (void)state, (void)bytes;
    return data;
}

// Callbacks that stand together are the host's together: memory, streams with their events, marks, accesses.
#define CALLBACKS(X)                                                                                         \
    X(open)                                                                                                  \
    X(close)                                                                                                 \
    X(take)                                                                                                  \
    X(give_back)                                                                                             \
    X(stream_open)                                                                                           \
    X(stream_close)                                                                                          \
    X(copy)                                                                                                  \
    X(zero)                                                                                                  \
    X(event_record)                                                                                          \
    X(event_wait)                                                                                            \
    X(stream_wait)                                                                                           \
    X(mark)                                                                                                  \
    X(mark_read)                                                                                             \
    X(access)                                                                                                \
    X(access_address)                                                                                        \
    X(access_end)                                                                                            \
    X(address)

void backend_complete(Backend *backend) {
#define X(callback)                                                                                          \
    if (!backend->callback) backend->callback = host_##callback;
    CALLBACKS(X)
#undef X
    if (!backend->upload) backend->upload = host_copy;
    if (!backend->download) backend->download = host_copy;
    if (!backend->upload_async) backend->upload_async = backend->upload;
    if (!backend->download_async) backend->download_async = backend->download;
    if (!backend->host_take) backend->host_take = host_take, backend->host_give_back = host_give_back;
}
