// Kernels on the host: what a kernel says in CUDA, as C++ for any compiler, and how it is run.
//
// A launch runs its blocks one after another, and a block's threads as fibers, one at a time: a thread goes on until
// it waits for others, at a barrier or in a function of its warp, or ends. Shared memory is filled with NaNs when a
// block starts. What a GPU would not tell ends the process with the names of kernel, block and thread: threads that
// wait for each other for ever, a barrier that only some reach, a lane that is waited for and has ended, or whose
// value is read and that takes no part. ThreadSanitizer sees the threads of a block as threads, so it finds missing
// barriers.
//
//   TRIREME_SIM_ORDER=forward|backward|drawn   which thread, and which block, goes first; forward if unset
//   TRIREME_SIM_SEED=N                         draws another order
//
// It does not show races between blocks, nor anything of speed; loads and stores take effect in their order.
#pragma once
#include "device/cuda/sim/runtime.h"
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <tuple>
#include <type_traits>

// ---- words of CUDA ----------------------------------------------------------------------------------------

#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// Where the thread that runs now is.
typedef struct {
    uint3 thread, block, block_size, grid_size;
    int lane; // of its warp
} SimPlace;
extern __thread SimPlace sim_place;

#define threadIdx (sim_place.thread)
#define blockIdx  (sim_place.block)
#define blockDim  (sim_place.block_size)
#define gridDim   (sim_place.grid_size)

static inline int __float_as_int(float x) {
    int bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float __int_as_float(int bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline unsigned __float_as_uint(float x) { return (unsigned)__float_as_int(x); }
static inline float __uint_as_float(unsigned bits) { return __int_as_float((int)bits); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }

template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }

// ---- waiting for each other -------------------------------------------------------------------------------

typedef enum {
    SIM_BARRIER, // of the block
    SIM_SYNCWARP,
    SIM_SHFL,
    SIM_SHFL_XOR,
    SIM_SHFL_DOWN,
    SIM_SHFL_UP,
    SIM_BALLOT,
} SimWait;

void sim_barrier();
// Waits until every lane of `mask` does the same. Returns the value of lane `source`; SIM_BALLOT: bit i is whether
// lane i has a value that is not 0.
uint64_t sim_exchange(SimWait what, unsigned mask, uint64_t value, int source);

static inline void __syncthreads() { sim_barrier(); }
static inline void __syncwarp(unsigned mask = 0xffffffffu) {
    sim_exchange(SIM_SYNCWARP, mask, 0, sim_place.lane);
}

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return (unsigned)sim_exchange(SIM_BALLOT, mask, predicate != 0, sim_place.lane);
}

template <class T> static inline T sim_shuffle(SimWait what, unsigned mask, T value, int source) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(uint64_t),
                  "a shuffle takes up to 64 bits");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = sim_exchange(what, mask, bits, source);
    memcpy(&value, &bits, sizeof value);
    return value;
}

template <class T> static inline T __shfl_sync(unsigned mask, T value, int source) {
    return sim_shuffle(SIM_SHFL, mask, value, source & 31);
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int distance) {
    return sim_shuffle(SIM_SHFL_XOR, mask, value, (sim_place.lane ^ distance) & 31);
}
// A lane without another one `distance` above, or below, gets its own value.
template <class T> static inline T __shfl_down_sync(unsigned mask, T value, int distance) {
    const int source = sim_place.lane + distance;
    return sim_shuffle(SIM_SHFL_DOWN, mask, value, source > 31 ? sim_place.lane : source);
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T value, int distance) {
    const int source = sim_place.lane - distance;
    return sim_shuffle(SIM_SHFL_UP, mask, value, source < 0 ? sim_place.lane : source);
}

// ---- atomic operations, on integers alone: those on floats would make bits depend on the order ------------

template <class T> static inline T atomicAdd(T *to, std::common_type_t<T> value) {
    static_assert(std::is_integral_v<T>, "sums of floats have a fixed order");
    return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}

template <class T> static inline T atomicMax(T *to, std::common_type_t<T> value) {
    static_assert(std::is_integral_v<T>, "of floats take the bits");
    T old = __atomic_load_n(to, __ATOMIC_RELAXED);
    while (old < value &&
           !__atomic_compare_exchange_n(to, &old, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return old;
}

// ---- shared memory ----------------------------------------------------------------------------------------

// Blocks of a host thread take turns in one room.
template <class T, size_t COUNT> struct SimRoom {
    alignas(128) T items[COUNT];
    uint64_t block; // the last one that was here
};

// The first thread of a block that comes here fills the room with NaNs.
void *sim_shared(void *room, size_t bytes, uint64_t *block);
// Returns the dynamic shared memory of the block that runs.
char *sim_dynamic_shared();

#define SHARED(T, name, count)                                                                               \
    static thread_local SimRoom<T, (count)> name##_room;                                                     \
    T(&name)                                                                                                 \
    [(count)] = *(T(*)[(count)])sim_shared(name##_room.items, sizeof name##_room.items, &name##_room.block)
#define DYNAMIC_SHARED(T, name) T *const name = (T *)sim_dynamic_shared()

// ---- launches ---------------------------------------------------------------------------------------------

typedef struct {
    const char *kernel;
    dim3 grid, block;
    size_t shared_bytes; // dynamic
} SimLaunch;

// Runs a grid on the calling host thread; `run_thread` is what each of its threads does.
void sim_run_grid(const SimLaunch *launch, void (*run_thread)(const void *call), const void *call);

// A kernel with its arguments, which are copied now.
template <class... Parameters> struct SimCall {
    void (*kernel)(Parameters...);
    std::tuple<std::remove_cv_t<Parameters>...> arguments;
    static void run(const void *call) {
        std::apply(((const SimCall *)call)->kernel, ((const SimCall *)call)->arguments);
    }
};

template <class... Parameters, class... Arguments>
std::function<void()> sim_call(SimLaunch launch, void (*kernel)(Parameters...), Arguments... arguments) {
    typedef SimCall<Parameters...> Call;
    static_assert(sizeof(Call) <= 4096, "a launch takes up to 4 KB of arguments");
    const Call call = {kernel, std::tuple<std::remove_cv_t<Parameters>...>(arguments...)};
    return [launch, call] { sim_run_grid(&launch, Call::run, &call); };
}

#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                               \
    sim_launch(                                                                                              \
        stream, #kernel,                                                                                     \
        sim_call({#kernel, launch_size(grid), launch_size(block), shared_bytes}, kernel, __VA_ARGS__))
