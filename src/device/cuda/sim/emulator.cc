// Runs the threads of a block as fibers. There is no scheduler beside them: a thread that waits or ends chooses the
// next one and hands over to it.
#include "device/cuda/sim/emulator.h"
#include "device/cuda/sim/fiber.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if SIM_TSAN
#include <sanitizer/tsan_interface.h>
#else
#define __tsan_acquire(address) ((void)(address))
#define __tsan_release(address) ((void)(address))
#endif

enum { LANES = 32, MAX_THREADS = 1024, MAX_WARPS = MAX_THREADS / LANES, MAX_SHARED_BYTES = 227 << 10 };
enum { POISON = 0xFF }; // NaN in every float type

typedef enum { FORWARD, BACKWARD, DRAWN } Order;

typedef struct {
    uint3 index;
    Fiber *fiber; // nullptr: it has not started, or has ended
    // These describe the wait that the thread is in:
    SimWait what;
    unsigned mask;
    uint64_t value, result;
    int source;
    // For ThreadSanitizer: what it had done when it came to its last and last but one __syncwarp, and which is the
    // last.
    char synced[2];
    int parity;
} Thread;

// Bit i is lane i.
typedef struct {
    unsigned live;                          // have not ended
    unsigned ready, exchanging, at_barrier; // the live ones, without the one that runs
} Warp;

// The emulator of one host thread.
typedef struct {
    const SimLaunch *launch;
    void (*run_thread)(const void *call);
    const void *call;
    Order order;
    uint64_t random;
    uint64_t num_blocks; // that have started
    char *dynamic_shared;

    Thread threads[MAX_THREADS];
    Warp warps[MAX_WARPS];
    int num_threads, num_live, num_at_barrier;
    unsigned ready_warps; // have ready lanes
    Thread *current;

    Fiber *host;
    Fiber *idle[MAX_THREADS];   // may run a thread
    Fiber *rested[MAX_THREADS]; // may do so in the next block
    int num_idle, num_rested;
    // For ThreadSanitizer: places where threads meet.
    char started, ended, barriers[2];
    int barrier_parity;
} Emulator;

__thread SimPlace sim_place;
static __thread Emulator *emulator;

// ---- faults -----------------------------------------------------------------------------------------------

static const char *const WAIT_NAMES[] = {"__syncthreads",   "__syncwarp",       "__shfl_sync",
                                         "__shfl_xor_sync", "__shfl_down_sync", "__shfl_up_sync",
                                         "__ballot_sync"};

__attribute__((format(printf, 2, 3))) UNSEEN static void fault(const Thread *thread, const char *format,
                                                               ...) {
    const uint3 b = sim_place.block, t = thread->index;
    va_list values;
    va_start(values, format);
    fprintf(stderr, "simulated GPU: kernel %s, block (%u, %u, %u), thread (%u, %u, %u) ",
            emulator->launch->kernel, b.x, b.y, b.z, t.x, t.y, t.z);
    vfprintf(stderr, format, values);
    fprintf(stderr, "\n");
    va_end(values);
    abort();
}

UNSEEN static void fault_of_launch(const char *what) {
    fprintf(stderr, "simulated GPU: kernel %s: %s\n", emulator->launch->kernel, what);
    abort();
}

static unsigned bit(int lane) { return 1u << lane; }

UNSEEN static Warp *warp_of(Emulator *e, const Thread *thread) {
    return &e->warps[(thread - e->threads) / LANES];
}
UNSEEN static int lane_of(const Emulator *e, const Thread *thread) {
    return (int)((thread - e->threads) % LANES);
}

// Says what a thread does for which another one waits in vain.
UNSEEN static const char *doing_of(Emulator *e, const Thread *thread) {
    static __thread char text[64];
    const Warp *warp = warp_of(e, thread);
    const unsigned own = bit(lane_of(e, thread));
    if (thread - e->threads >= e->num_threads) return "does not exist";
    if (!(warp->live & own)) return "has ended";
    if (warp->at_barrier & own) return "waits in __syncthreads";
    snprintf(text, sizeof text, "waits in %s of lanes %08x", WAIT_NAMES[thread->what], thread->mask);
    return text;
}

// `thread` waits for a lane that does not come.
UNSEEN static void fault_of_exchange(Emulator *e, const Thread *thread) {
    const Thread *first = thread - lane_of(e, thread);
    int lane = 0;
    for (; lane < LANES - 1; lane++) {
        const Thread *other = first + lane;
        const bool comes = warp_of(e, thread)->exchanging & bit(lane) && other->what == thread->what &&
                           other->mask == thread->mask;
        if (thread->mask & bit(lane) && !comes) break;
    }
    fault(thread, "waits in %s of lanes %08x, but lane %d %s", WAIT_NAMES[thread->what], thread->mask, lane,
          doing_of(e, first + lane));
}

// Nobody can go on.
UNSEEN static void fault_of_block(Emulator *e) {
    const Thread *at_barrier = nullptr, *elsewhere = nullptr;
    for (int i = 0; i < e->num_threads; i++) {
        const Thread *thread = &e->threads[i];
        if (warp_of(e, thread)->exchanging & bit(i % LANES)) fault_of_exchange(e, thread);
        if (warp_of(e, thread)->at_barrier & bit(i % LANES))
            at_barrier = thread;
        else
            elsewhere = thread;
    }
    const uint3 t = elsewhere->index;
    fault(at_barrier, "waits in __syncthreads, but thread (%u, %u, %u) %s", t.x, t.y, t.z,
          doing_of(e, elsewhere));
}

// ---- which thread goes on ---------------------------------------------------------------------------------

UNSEEN static uint64_t draw(Emulator *e) { // xorshift64* (Vigna 2014)
    e->random ^= e->random >> 12, e->random ^= e->random << 25, e->random ^= e->random >> 27;
    return (e->random * 0x2545F4914F6CDD1Du) >> 32;
}

// The number of one of the bits that are set. A drawn one is sought by halves, of two with set bits in one that is
// drawn; branches, which no processor foresees here, would take half of a simulated GPU's time.
UNSEEN static int choose_bit(Emulator *e, unsigned bits) {
    if (e->order == FORWARD) return __builtin_ctz(bits);
    if (e->order == BACKWARD) return 31 - __builtin_clz(bits);
    const unsigned drawn = (unsigned)draw(e);
    unsigned at = 0;
    for (unsigned half = LANES / 2; half; half /= 2) {
        const unsigned low = bits & ((1u << half) - 1), high = bits >> half;
        const unsigned upper = 0u - ((low == 0) | ((high != 0) & ((drawn & half) != 0))); // all bits or none
        bits = (high & upper) | (low & ~upper);
        at += half & upper;
    }
    return (int)at;
}

UNSEEN static void set_ready(Emulator *e, Warp *warp, unsigned lanes) {
    warp->ready |= lanes;
    if (lanes) e->ready_warps |= bit((int)(warp - e->warps));
}

// Lanes that all wait for each other: gives each its result.
UNSEEN static void finish_exchange(Emulator *e, Warp *warp, Thread *first, unsigned group) {
    unsigned bits = 0;
    for (unsigned left = group; left; left &= left - 1)
        if (first[__builtin_ctz(left)].value) bits |= left & -left;
    for (unsigned left = group; left; left &= left - 1) {
        Thread *thread = &first[__builtin_ctz(left)];
        const bool shuffles = thread->what != SIM_BALLOT && thread->what != SIM_SYNCWARP;
        if (shuffles && !(group & bit(thread->source)))
            fault(thread, "reads the value of lane %d in %s of lanes %08x", thread->source,
                  WAIT_NAMES[thread->what], group);
        thread->result = shuffles ? first[thread->source].value : bits;
    }
    warp->exchanging &= ~group;
    set_ready(e, warp, group);
}

// No lane of the warp is ready: lets those go on whose partners are all there.
UNSEEN static void finish_exchanges(Emulator *e, Warp *warp) {
    Thread *first = &e->threads[(warp - e->warps) * LANES];
    for (unsigned left = warp->exchanging; left;) {
        const Thread *thread = &first[__builtin_ctz(left)];
        const unsigned group = thread->mask;
        if (group & ~warp->live) fault_of_exchange(e, thread);
        bool complete = (group & ~warp->exchanging) == 0;
        for (unsigned rest = group; complete && rest; rest &= rest - 1) {
            const Thread *other = &first[__builtin_ctz(rest)];
            complete = other->what == thread->what && other->mask == group;
        }
        if (complete) finish_exchange(e, warp, first, group);
        left &= complete ? ~group : left - 1;
    }
}

UNSEEN static void finish_barrier(Emulator *e) {
    if (e->num_at_barrier != e->num_threads) fault_of_block(e);
    for (int i = 0; i * LANES < e->num_threads; i++) {
        set_ready(e, &e->warps[i], e->warps[i].at_barrier);
        e->warps[i].at_barrier = 0;
    }
    e->num_at_barrier = 0;
    e->barrier_parity ^= 1;
}

// nullptr: all have ended.
UNSEEN static Thread *next_thread(Emulator *e) {
    if (e->current) {
        Warp *warp = warp_of(e, e->current);
        if (!warp->ready) finish_exchanges(e, warp);
    }
    if (!e->ready_warps && e->num_live) finish_barrier(e);
    if (!e->num_live) return nullptr;
    const int number = choose_bit(e, e->ready_warps), lane = choose_bit(e, e->warps[number].ready);
    Warp *warp = &e->warps[number];
    warp->ready &= ~bit(lane);
    if (!warp->ready) e->ready_warps &= ~bit(number);
    return &e->threads[number * LANES + lane];
}

UNSEEN static void work(Fiber *self);

// `self`, which is the current fiber, lets the next thread run; it goes on when it is its turn.
UNSEEN static void hand_over(Emulator *e, Fiber *self) {
    Thread *next = next_thread(e);
    Fiber *to = e->host;
    e->current = next;
    if (next) {
        if (!next->fiber) next->fiber = e->num_idle ? e->idle[--e->num_idle] : fiber_create(work);
        to = next->fiber;
        sim_place.thread = next->index;
        sim_place.lane = lane_of(e, next);
    }
    if (to != self) fiber_switch(self, to);
}

// A fiber runs threads, one after another. To ThreadSanitizer a fiber is a thread, so there it runs one of a
// block.
UNSEEN static void work(Fiber *self) {
    Emulator *e = emulator;
    for (;;) {
        __tsan_acquire(&e->started);
        e->run_thread(e->call);
        __tsan_release(&e->ended);
        warp_of(e, e->current)->live &= ~bit(lane_of(e, e->current));
        e->num_live--;
        e->current->fiber = nullptr;
        if (SIM_TSAN)
            e->rested[e->num_rested++] = self;
        else
            e->idle[e->num_idle++] = self;
        hand_over(e, self);
    }
}

// ---- what threads call ------------------------------------------------------------------------------------

UNSEEN void sim_barrier() {
    Emulator *e = emulator;
    char *meeting = &e->barriers[e->barrier_parity];
    __tsan_release(meeting);
    warp_of(e, e->current)->at_barrier |= bit(lane_of(e, e->current));
    e->num_at_barrier++;
    hand_over(e, e->current->fiber);
    __tsan_acquire(meeting);
}

// For ThreadSanitizer. A lane may be at the next __syncwarp before another one has left this one: so each tells which
// of its two places it meant.
UNSEEN static void acquire_lanes(const Emulator *e, const Thread *thread, unsigned mask, unsigned parities) {
    const Thread *first = thread - lane_of(e, thread);
    for (unsigned left = SIM_TSAN ? mask : 0; left; left &= left - 1)
        __tsan_acquire((void *)&first[__builtin_ctz(left)].synced[(parities & left & -left) != 0]);
}

UNSEEN uint64_t sim_exchange(SimWait what, unsigned mask, uint64_t value, int source) {
    Emulator *e = emulator;
    Thread *thread = e->current;
    Warp *warp = warp_of(e, thread);
    const unsigned own = bit(lane_of(e, thread));
    if (!(mask & own))
        fault(thread, "calls %s of lanes %08x, which leave out its own", WAIT_NAMES[what], mask);
    thread->what = what, thread->mask = mask, thread->value = value, thread->source = source;
    if (what == SIM_SYNCWARP) {
        thread->parity ^= 1;
        thread->value = (uint64_t)thread->parity;
        __tsan_release(&thread->synced[thread->parity]);
    }
    warp->exchanging |= own;
    hand_over(e, thread->fiber);
    if (what == SIM_SYNCWARP) acquire_lanes(e, thread, mask, (unsigned)thread->result);
    return thread->result;
}

// ThreadSanitizer sees memset, wherever it is called.
UNSEEN static void poison(void *memory, size_t bytes) {
    volatile char *at = (volatile char *)memory;
    if (!SIM_TSAN) memset(memory, POISON, bytes);
    for (size_t i = 0; SIM_TSAN && i < bytes; i++) at[i] = (char)POISON;
}

UNSEEN void *sim_shared(void *room, size_t bytes, uint64_t *block) {
    if (*block != emulator->num_blocks) poison(room, bytes);
    *block = emulator->num_blocks;
    return room;
}

UNSEEN char *sim_dynamic_shared() { return emulator->dynamic_shared; }

// ---- grids ------------------------------------------------------------------------------------------------

UNSEEN static void run_block(Emulator *e, uint3 index) {
    sim_place.block = index;
    e->num_blocks++;
    poison(e->dynamic_shared, e->launch->shared_bytes);
    for (int i = 0; i * LANES < e->num_threads; i++) {
        const int lanes = e->num_threads - i * LANES;
        e->warps[i] = {lanes < LANES ? bit(lanes) - 1 : ~0u, 0, 0, 0};
        set_ready(e, &e->warps[i], e->warps[i].live);
    }
    e->num_live = e->num_threads;
    // To ThreadSanitizer, what comes before a fiber's creation is ordered before all that it does.
    while (SIM_TSAN && e->num_idle < e->num_threads) e->idle[e->num_idle++] = fiber_create(work);
    __tsan_release(&e->started);
    hand_over(e, e->host);
    __tsan_acquire(&e->ended);
    while (e->num_rested) e->idle[e->num_idle++] = e->rested[--e->num_rested];
}

static uint64_t greatest_divisor(uint64_t a, uint64_t b) { return b ? greatest_divisor(b, a % b) : a; }

// Every block once: number `first` + i * `step` modulo their count, where `step` has no divisor in common with it.
UNSEEN static void run_blocks(Emulator *e) {
    const uint64_t width = e->launch->grid.x, height = e->launch->grid.y,
                   count = width * height * e->launch->grid.z;
    uint64_t at = e->order == FORWARD ? 0 : count - 1, step = e->order == FORWARD ? 1 : count - 1;
    if (e->order == DRAWN) {
        at = draw(e) % count;
        do step = 1 + draw(e) % count;
        while (greatest_divisor(step, count) != 1);
    }
    for (uint64_t i = 0; i < count; i++, at = (at + step) % count)
        run_block(e,
                  {(unsigned)(at % width), (unsigned)(at / width % height), (unsigned)(at / width / height)});
}

UNSEEN static void check_launch(const SimLaunch *l) {
    const uint64_t threads = (uint64_t)l->block.x * l->block.y * l->block.z;
    if (!threads || threads > MAX_THREADS || l->block.z > 64)
        fault_of_launch("a block has 1 to 1024 threads, up to 64 along z");
    if (!l->grid.x || !l->grid.y || !l->grid.z || l->grid.x > INT32_MAX || l->grid.y > UINT16_MAX ||
        l->grid.z > UINT16_MAX)
        fault_of_launch("a grid has 1 to 2^31 - 1 blocks along x, up to 65535 along y and z");
    if (l->shared_bytes > MAX_SHARED_BYTES) fault_of_launch("more than 227 KB of shared memory");
}

static Order order_from_environment() {
    const char *text = getenv("TRIREME_SIM_ORDER");
    if (!text || !strcmp(text, "forward")) return FORWARD;
    if (!strcmp(text, "backward")) return BACKWARD;
    if (!strcmp(text, "drawn")) return DRAWN;
    fprintf(stderr, "simulated GPU: TRIREME_SIM_ORDER is forward, backward or drawn, not %s\n", text);
    exit(78);
}

// Ends with the host thread.
struct Owner {
    ~Owner() {
        if (!emulator) return;
        for (int i = 0; i < emulator->num_idle; i++) fiber_destroy(emulator->idle[i]);
        fiber_destroy(emulator->host);
        free(emulator);
        emulator = nullptr;
    }
};

static void create_emulator() {
    static thread_local Owner owner;
    (void)owner;
    const Order order = order_from_environment();
    const char *seed = getenv("TRIREME_SIM_SEED");
    emulator = (Emulator *)calloc(1, sizeof *emulator);
    if (!emulator) abort();
    emulator->order = order;
    emulator->random = ((uint64_t)(seed ? strtoll(seed, nullptr, 10) : 1) * 2 + 1) * 0x9E3779B97F4A7C15u;
    emulator->host = fiber_of_caller();
}

UNSEEN void sim_run_grid(const SimLaunch *launch, void (*run_thread)(const void *call), const void *call) {
    enum { ALIGNMENT = 128 };
    if (!emulator) create_emulator();
    Emulator *e = emulator;
    e->launch = launch, e->run_thread = run_thread, e->call = call;
    check_launch(launch);
    const dim3 size = launch->block, grid = launch->grid;
    sim_place.block_size = {size.x, size.y, size.z};
    sim_place.grid_size = {grid.x, grid.y, grid.z};
    e->num_threads = (int)(size.x * size.y * size.z);
    for (unsigned i = 0; i < (unsigned)e->num_threads; i++)
        e->threads[i].index = {i % size.x, i / size.x % size.y, i / size.x / size.y};
    // No longer than asked for, so that AddressSanitizer sees what lies beyond it.
    if (posix_memalign((void **)&e->dynamic_shared, ALIGNMENT, launch->shared_bytes)) abort();
    run_blocks(e);
    free(e->dynamic_shared);
}
