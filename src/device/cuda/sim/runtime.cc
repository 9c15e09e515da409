// Simulates the CUDA runtime on the host, so that everything but speed can be tested without a GPU.
//
// A stream is a queue that no thread serves until a host thread waits or asks for an event. That thread then runs
// entries of any stream, drawn at random among those that may run: an order that is missing between two streams, or
// between a stream and the host, sooner or later gives wrong numbers. All threads of the process share the GPUs.
//
//   TRIREME_SIM_SEED=N            draws another order
//   TRIREME_SIM_FAIL=NAME:COUNT   the COUNT-th call fails: "launch" (a kernel), "gone" (a kernel: its GPU is gone),
//                                 "stuck" (a kernel: it never ends), "memory" (cudaMalloc), "pinned" (cudaMallocHost),
//                                 "device" (cudaGetDeviceCount: there is no GPU),
//                                 "library" or "function" (libraries.cc), or one of cuBLASLt (cublaslt.cc) or NCCL
//                                 (nccl.cc)
//
// Further variables say what the GPUs are (gpus.cc).
#include "device/cuda/sim/runtime.h"
#include "device/cuda/sim/fiber.h"
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <vector>

enum { ALIGNMENT = 256, UNWRITTEN = 0xFF }; // bytes 0xFF: NaN in every float type

// One recording of an event: who waits for it does not care where the event is recorded again.
struct Record {
    bool done = false;
    double at_s = 0;
};

struct CUevent_st {
    std::shared_ptr<Record> last; // none: it was never recorded
    bool timed;
};

// Waits for a record, or makes it, or runs, once it is `ready`.
struct Entry {
    const char *name;
    std::function<void()> run;
    std::shared_ptr<Record> record;
    bool waits;
    std::function<bool()> ready = nullptr; // NULL: always
};

struct CUstream_st {
    int device;
    std::thread::id owner;
    std::deque<Entry> entries;
    int64_t launched = 0, done = 0;
    bool running = false; // its first entry is with a thread
};

struct Allocation {
    size_t bytes;
    bool pinned;
    int gpu;
};

// All threads of a process share the simulation. One lock holds all of it; entries run without the lock.
struct Simulation {
    std::mutex lock;
    std::condition_variable moved;
    std::vector<cudaStream_t> streams;
    std::map<const char *, Allocation> allocations;
    uint64_t random;
    cudaError_t fault = cudaSuccess; // of a kernel: every later call returns it
    std::string failure;             // TRIREME_SIM_FAIL, and the calls that it is about since it was set
    long calls = 0;
};

using Lock = std::unique_lock<std::mutex>;

static thread_local cudaError_t last_error;

static long number_from_environment(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? strtol(text, nullptr, 10) : otherwise;
}

static Simulation *create_simulation() {
    auto *sim = new Simulation;
    auto seed = static_cast<uint64_t>(number_from_environment("TRIREME_SIM_SEED", 1));
    sim->random = (seed * 2 + 1) * 0x9E3779B97F4A7C15u;
    return sim;
}

// It lives as long as the process: threads may still use it while the process ends.
static Simulation &simulation() {
    static Simulation *const sim = create_simulation();
    return *sim;
}

static double clock_s() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// ---- errors -----------------------------------------------------------------------------------------------

cudaError_t cudaGetLastError() {
    Lock lock(simulation().lock);
    cudaError_t error = simulation().fault != cudaSuccess ? simulation().fault : last_error;
    last_error = cudaSuccess;
    return error;
}

static cudaError_t returned(cudaError_t error) {
    if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
    return error;
}

// An error of the caller that NVIDIA's runtime need not find.
static cudaError_t misuse(const char *call, const char *what, const char *more) {
    fprintf(stderr, "simulated GPU: %s: %s%s\n", call, what, more);
    return returned(cudaErrorInvalidValue);
}

// With the lock: whether TRIREME_SIM_FAIL wants this call to fail.
static bool is_to_fail(const char *name) {
    Simulation &sim = simulation();
    const char *wanted = getenv("TRIREME_SIM_FAIL"), *colon = wanted ? strchr(wanted, ':') : nullptr;
    if (!colon || std::string(wanted, colon) != name) return false;
    if (sim.failure != wanted) sim.failure = wanted, sim.calls = 0;
    return ++sim.calls == strtol(colon + 1, nullptr, 10);
}

bool sim_fails(const char *name) {
    Lock lock(simulation().lock);
    return is_to_fail(name);
}

cudaError_t sim_returned(cudaError_t error) { return returned(error); }

// ---- running ----------------------------------------------------------------------------------------------

static uint64_t draw() { // xorshift64* (Vigna 2014)
    uint64_t &x = simulation().random;
    x ^= x >> 12, x ^= x << 25, x ^= x >> 27;
    return (x * 0x2545F4914F6CDD1Du) >> 33;
}

static bool may_run(const CUstream_st *stream) {
    if (stream->running || stream->entries.empty()) return false;
    const Entry &e = stream->entries.front();
    return e.ready ? e.ready() : !e.waits || !e.record || e.record->done;
}

// With the lock, which it gives up meanwhile: runs one entry of a stream that is drawn among those that may run. False:
// there is none.
static bool step(Lock &lock) {
    Simulation &sim = simulation();
    std::vector<cudaStream_t> ready;
    std::copy_if(sim.streams.begin(), sim.streams.end(), std::back_inserter(ready), may_run);
    if (ready.empty()) return false;
    cudaStream_t stream = ready[draw() % ready.size()];
    Entry entry = std::move(stream->entries.front());
    stream->entries.pop_front();
    stream->running = true;
    if (entry.run && sim.fault == cudaSuccess) {
        lock.unlock();
        entry.run();
        lock.lock();
    }
    if (entry.record && !entry.waits) {
        entry.record->done = true;
        entry.record->at_s = clock_s();
    }
    stream->running = false;
    stream->done++;
    sim.moved.notify_all();
    return true;
}

// With the lock: runs entries until a condition holds. Where none may run, another thread runs one, or puts one on a
// stream that a kernel here waits for.
template <typename Condition> static void run_until(Lock &lock, Condition holds) {
    while (!holds() && simulation().fault == cudaSuccess)
        if (!step(lock)) simulation().moved.wait(lock);
}

static void push(cudaStream_t stream, Entry entry) {
    stream->entries.push_back(std::move(entry));
    stream->launched++;
    simulation().moved.notify_all();
}

void sim_launch_when(cudaStream_t stream, const char *name, std::function<bool()> ready,
                     std::function<void()> run) {
    Lock lock(simulation().lock);
    push(stream, {name, std::move(run), nullptr, false, std::move(ready)});
}

void sim_get_on(int most) {
    Lock lock(simulation().lock);
    simulation().moved.notify_all();
    while (most-- > 0 && step(lock)) {
    }
}

void sim_fault(cudaError_t error) {
    Lock lock(simulation().lock);
    simulation().fault = error;
    simulation().moved.notify_all();
}

uint64_t sim_draw() {
    Lock lock(simulation().lock);
    return draw();
}

void sim_launch(cudaStream_t stream, const char *name, std::function<void()> run) {
    if (!stream) {
        run();
        return;
    }
    Lock lock(simulation().lock);
    const cudaError_t fault = is_to_fail("launch") ? cudaErrorLaunchFailure
                              : is_to_fail("gone") ? cudaErrorUnknown
                                                   : cudaSuccess;
    if (fault != cudaSuccess) run = [fault] { sim_fault(fault); };
    if (is_to_fail("stuck")) // it waits for what nobody records
        push(stream, {name, nullptr, std::make_shared<Record>(), true});
    else
        push(stream, {name, std::move(run), nullptr, false});
}

// ---- memory -----------------------------------------------------------------------------------------------

// With the lock.
static size_t bytes_in_use(int gpu) {
    size_t bytes = 0;
    for (const auto &row : simulation().allocations)
        if (!row.second.pinned && row.second.gpu == gpu) bytes += row.second.bytes;
    return bytes;
}

size_t sim_bytes_in_use(int gpu) {
    Lock lock(simulation().lock);
    return bytes_in_use(gpu);
}

static cudaError_t allocate(void **memory, size_t bytes, bool pinned) {
    const size_t huge = 2 << 20, alignment = bytes < huge ? size_t{ALIGNMENT} : huge;
    if (posix_memalign(memory, alignment, bytes + ALIGNMENT)) {
        *memory = nullptr;
        return returned(cudaErrorMemoryAllocation);
    }
    if (bytes >= huge)
        madvise(*memory, bytes, MADV_HUGEPAGE); // a workspace is touched in a tenth of the time
    // ThreadSanitizer would write four times as many bytes; memory that is read too early the other builds find.
    if (!SIM_TSAN) memset(*memory, UNWRITTEN, bytes);
    simulation().allocations[static_cast<char *>(*memory)] = {bytes, pinned, sim_gpu()};
    return cudaSuccess;
}

static cudaError_t release(const char *call, void *memory, bool pinned) {
    auto found = simulation().allocations.find(static_cast<char *>(memory));
    if (found == simulation().allocations.end() || found->second.pinned != pinned)
        return misuse(call, "memory that is not allocated", "");
    simulation().allocations.erase(found);
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t bytes) {
    Lock lock(simulation().lock);
    *memory = nullptr;
    if (is_to_fail("memory") || bytes_in_use(sim_gpu()) + bytes > sim_gpu_bytes())
        return returned(cudaErrorMemoryAllocation);
    return allocate(memory, bytes, false);
}

// The entries of this thread's streams may use the memory.
cudaError_t cudaFree(void *memory) {
    Lock lock(simulation().lock);
    if (!memory) return cudaSuccess;
    for (const auto *stream : simulation().streams)
        if (stream->owner == std::this_thread::get_id() && stream->done < stream->launched)
            return misuse("cudaFree", "work is under way, next: ",
                          stream->running ? "an entry that runs" : stream->entries.front().name);
    return release("cudaFree", memory, false);
}

cudaError_t cudaMallocHost(void **memory, size_t bytes) {
    Lock lock(simulation().lock);
    *memory = nullptr;
    if (is_to_fail("pinned")) return returned(cudaErrorMemoryAllocation);
    return allocate(memory, bytes, true);
}

cudaError_t cudaFreeHost(void *memory) {
    Lock lock(simulation().lock);
    return memory ? release("cudaFreeHost", memory, true) : cudaSuccess;
}

// With the lock: the allocation in which [memory, memory + bytes) begins, or NULL; *inside: it ends there, too.
static const Allocation *find(const void *memory, size_t bytes, bool *inside) {
    const char *at = static_cast<const char *>(memory);
    auto next = simulation().allocations.upper_bound(at);
    if (next == simulation().allocations.begin()) return nullptr;
    --next;
    auto offset = static_cast<size_t>(at - next->first);
    if (offset > next->second.bytes) return nullptr;
    *inside = bytes <= next->second.bytes - offset;
    return &next->second;
}

static const int ANY = -1;

static bool is_device(const void *memory, size_t bytes, int gpu = ANY) {
    bool inside = false;
    const Allocation *found = find(memory, bytes, &inside);
    return found && !found->pinned && inside && (gpu == ANY || gpu == found->gpu);
}

bool sim_is_device(const void *memory, size_t bytes) {
    Lock lock(simulation().lock);
    return is_device(memory, bytes);
}

static bool is_pinned(const void *memory, size_t bytes) {
    bool inside = false;
    const Allocation *found = find(memory, bytes, &inside);
    return found && found->pinned && inside;
}

// Memory of the simulated GPU is memory of the host.
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *memory) {
    Lock lock(simulation().lock);
    void *address = const_cast<void *>(memory);
    *attributes = {sim_gpu(), is_device(memory, 0) ? address : nullptr, address};
    return cudaSuccess;
}

// ---- streams ----------------------------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) {
    Lock lock(simulation().lock);
    *stream = new CUstream_st;
    (*stream)->device = sim_gpu();
    (*stream)->owner = std::this_thread::get_id();
    simulation().streams.push_back(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    Lock lock(simulation().lock);
    int64_t until = stream->launched;
    run_until(lock, [=] { return stream->done >= until; });
    return returned(simulation().fault);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    cudaError_t error = cudaStreamSynchronize(stream);
    Lock lock(simulation().lock);
    auto &streams = simulation().streams;
    streams.erase(std::remove(streams.begin(), streams.end(), stream), streams.end());
    delete stream;
    return error;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    Lock lock(simulation().lock);
    push(stream, {"cudaStreamWaitEvent", nullptr, event->last, true});
    return returned(simulation().fault);
}

// ---- events -----------------------------------------------------------------------------------------------

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    *event = new CUevent_st{nullptr, !(flags & cudaEventDisableTiming)};
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    Lock lock(simulation().lock);
    event->last = std::make_shared<Record>();
    push(stream, {"cudaEventRecord", nullptr, event->last, false});
    return returned(simulation().fault);
}

static bool is_done(const std::shared_ptr<Record> &record) { return !record || record->done; }

// Who asks lets the GPU make a little progress: often not at all, now and then a lot.
cudaError_t cudaEventQuery(cudaEvent_t event) {
    static const int turns[] = {0, 0, 1, 2, 5, 17, 60, 200};
    Lock lock(simulation().lock);
    const auto record = event->last;
    for (int left = turns[draw() % (sizeof turns / sizeof *turns)]; left > 0 && !is_done(record); left--)
        if (!step(lock)) break;
    if (simulation().fault != cudaSuccess) return returned(simulation().fault);
    return is_done(record) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    Lock lock(simulation().lock);
    const auto record = event->last;
    run_until(lock, [=] { return is_done(record); });
    return returned(simulation().fault);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    Lock lock(simulation().lock);
    const auto a = start->last, b = end->last;
    if (!start->timed || !end->timed || !a || !b) return returned(cudaErrorInvalidResourceHandle);
    if (!a->done || !b->done) return returned(cudaErrorNotReady);
    *ms = static_cast<float>((b->at_s - a->at_s) * 1e3);
    return cudaSuccess;
}

// ---- copies -----------------------------------------------------------------------------------------------

static bool overlap(const void *a, const void *b, size_t bytes) {
    auto x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
    return x < y + bytes && y < x + bytes;
}

// Memory of another GPU can be used as if it were the stream's own only by kernels.
static const char *wrong_sides(const void *to, const void *from, size_t bytes, cudaMemcpyKind kind, int gpu) {
    if ((kind != cudaMemcpyDeviceToHost) != is_device(to, bytes, gpu)) return "the wrong memory to write";
    if ((kind != cudaMemcpyHostToDevice) != is_device(from, bytes, gpu)) return "the wrong memory to read";
    return overlap(to, from, bytes) ? "memory that overlaps" : nullptr;
}

// Memory of the host that is not pinned is read before the call returns, and written before it returns.
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    Lock lock(simulation().lock);
    if (const char *wrong = wrong_sides(to, from, bytes, kind, stream->device))
        return misuse("cudaMemcpyAsync", wrong, "");
    std::shared_ptr<std::vector<char>> staged;
    if (kind == cudaMemcpyHostToDevice && !is_pinned(from, bytes)) {
        const char *bytes_from = static_cast<const char *>(from);
        staged = std::make_shared<std::vector<char>>(bytes_from, bytes_from + bytes);
    }
    push(stream,
         {"cudaMemcpyAsync", [=] { memcpy(to, staged ? staged->data() : from, bytes); }, nullptr, false});
    if (kind == cudaMemcpyDeviceToHost && !is_pinned(to, bytes)) {
        int64_t until = stream->launched;
        run_until(lock, [=] { return stream->done >= until; });
    }
    return returned(simulation().fault);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                cudaStream_t stream) {
    Lock lock(simulation().lock);
    if (!is_device(to, bytes, to_device) || !is_device(from, bytes, from_device) || overlap(to, from, bytes))
        return misuse("cudaMemcpyPeerAsync", "memory that is not these GPUs', or overlaps", "");
    push(stream, {"cudaMemcpyPeerAsync", [=] { memcpy(to, from, bytes); }, nullptr, false});
    return returned(simulation().fault);
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream) {
    Lock lock(simulation().lock);
    if (!is_device(memory, bytes)) return misuse("cudaMemsetAsync", "memory that is not the GPU's", "");
    push(stream, {"cudaMemsetAsync", [=] { memset(memory, value, bytes); }, nullptr, false});
    return returned(simulation().fault);
}
