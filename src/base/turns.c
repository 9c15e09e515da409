// Lets two functions take turns on one thread, by contexts of the C library (makecontext).
#include "base/turns.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

// The address and thread sanitizers follow stacks, and must be told where another one goes on.
#if defined __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#elif defined __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

// Address space: pages are taken as they are written. As much as a thread's stack has by default.
enum { STACK_BYTES = 8 << 20 };

typedef enum { FIRST, SECOND } Side;

struct Turns {
    char *memory; // a guard page, and the stack
    size_t guard_bytes;
    ucontext_t contexts[2];
    bool ended[2];
    Side side; // that runs
    void (*second)(void *);
    void *arg;
    void *sanitizer[2];      // what it keeps of each side
    const void *first_stack; // as the address sanitizer knows it
    size_t first_bytes;
};

// ---- sanitizers -----------------------------------------------------------------------------------------

#if defined __SANITIZE_ADDRESS__
static void before_switch(Turns *t, Side to, bool ends) {
    const void *stack = to == FIRST ? t->first_stack : t->memory + t->guard_bytes;
    size_t bytes = to == FIRST ? t->first_bytes : STACK_BYTES;
    __sanitizer_start_switch_fiber(ends ? NULL : &t->sanitizer[!to], stack, bytes);
}
static void after_switch(Turns *t, Side side) {
    const void *stack;
    size_t bytes;
    __sanitizer_finish_switch_fiber(t->sanitizer[side], &stack, &bytes);
    if (side == SECOND) t->first_stack = stack, t->first_bytes = bytes;
}
static void begin(Turns *t) { t->sanitizer[SECOND] = NULL; }
static void end(Turns *t) { (void)t; }
#elif defined __SANITIZE_THREAD__
static void before_switch(Turns *t, Side to, bool ends) {
    (void)ends;
    __tsan_switch_to_fiber(t->sanitizer[to], 0);
}
static void after_switch(Turns *t, Side side) { (void)t, (void)side; }
static void begin(Turns *t) {
    t->sanitizer[FIRST] = __tsan_get_current_fiber();
    t->sanitizer[SECOND] = __tsan_create_fiber(0);
}
static void end(Turns *t) { __tsan_destroy_fiber(t->sanitizer[SECOND]); }
#else
static void before_switch(Turns *t, Side to, bool ends) { (void)t, (void)to, (void)ends; }
static void after_switch(Turns *t, Side side) { (void)t, (void)side; }
static void begin(Turns *t) { (void)t; }
static void end(Turns *t) { (void)t; }
#endif

// ---- turns ----------------------------------------------------------------------------------------------

Status turns_open(Turns **out) {
    Turns *t = *out = calloc(1, sizeof *t);
    if (!t) return fail(ERR_OS, "no memory for a second stack");
    t->guard_bytes = (size_t)sysconf(_SC_PAGESIZE);
    char *memory = mmap(NULL, t->guard_bytes + STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (memory == MAP_FAILED) return fail(ERR_OS, "no memory for a second stack of %d bytes", STACK_BYTES);
    t->memory = memory;
    if (mprotect(memory, t->guard_bytes, PROT_NONE)) return fail(ERR_OS, "a second stack cannot be guarded");
    return OK;
}

void turns_close(Turns *t) {
    if (!t) return;
    if (t->memory) munmap(t->memory, t->guard_bytes + STACK_BYTES);
    free(t);
}

static void switch_to(Turns *t, Side to) {
    t->side = to;
    before_switch(t, to, false);
    swapcontext(&t->contexts[!to], &t->contexts[to]);
    after_switch(t, !to);
}

// The address of the Turns arrives in two halves: makecontext passes ints.
static void second_main(unsigned high, unsigned low) {
    Turns *t = (Turns *)((uintptr_t)high << 16 << 16 | low);
    after_switch(t, SECOND);
    t->second(t->arg);
    t->ended[SECOND] = true;
    t->side = FIRST;
    before_switch(t, FIRST, true);
    setcontext(&t->contexts[FIRST]);
}

void turns_run(Turns *t, void (*first)(void *), void (*second)(void *), void *arg) {
    uintptr_t address = (uintptr_t)t;
    t->side = FIRST, t->second = second, t->arg = arg;
    t->ended[FIRST] = t->ended[SECOND] = false;
    getcontext(&t->contexts[SECOND]);
    t->contexts[SECOND].uc_stack.ss_sp = t->memory + t->guard_bytes;
    t->contexts[SECOND].uc_stack.ss_size = STACK_BYTES;
    makecontext(&t->contexts[SECOND], (void (*)(void))second_main, 2, (unsigned)(address >> 16 >> 16),
                (unsigned)address);
    begin(t);
    first(arg);
    t->ended[FIRST] = true;
    while (!t->ended[SECOND]) switch_to(t, SECOND);
    end(t);
}

void turns_give(Turns *t) {
    Side other = t->side == FIRST ? SECOND : FIRST;
    if (!t->ended[other]) switch_to(t, other);
}
