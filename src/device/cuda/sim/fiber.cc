// Switches between fibers: a few instructions on x86-64, the C library's ucontext elsewhere.
#include "device/cuda/sim/fiber.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__) && !defined(TRIREME_UCONTEXT)
#define SWITCH_BY_ASSEMBLY
#else
#include <ucontext.h>
#endif

#if SIM_TSAN
#include <sanitizer/tsan_interface.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Frames are several times as large with sanitizers.
#if defined(__SANITIZE_ADDRESS__) || SIM_TSAN
enum { STACK_BYTES = 512 << 10 };
#else
enum { STACK_BYTES = 128 << 10 };
#endif

enum { STACK_ALIGNMENT = 64 };

struct Fiber {
    void (*run)(Fiber *self);
    char *memory; // a page that cannot be used, the stack, the fiber; NULL: it has a host thread's own stack
    size_t memory_bytes;
    void *stack;
    size_t stack_bytes;
#ifdef SWITCH_BY_ASSEMBLY
    void *stack_pointer; // while it does not run
#else
    ucontext_t context;
#endif
    // The sanitizers keep these of it while it does not run.
    void *fake_stack;
    void *tsan;
};

// The fibers of the last change on this host thread.
static __thread Fiber *changed_from, *changed_to;

static void fail_without_memory() {
    perror("simulated GPU: no memory for the stack of a thread");
    abort();
}

// ---- sanitizers -------------------------------------------------------------------------------------------

// Before and after the change, on the stacks of changed_from and of changed_to.
UNSEEN static void announce_change() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&changed_from->fake_stack, changed_to->stack, changed_to->stack_bytes);
#endif
#if SIM_TSAN
    __tsan_switch_to_fiber(changed_to->tsan, __tsan_switch_to_fiber_no_sync);
#endif
}

UNSEEN static void confirm_change() {
#if defined(__SANITIZE_ADDRESS__)
    const void *stack; // of changed_from, which is new to us if it is a host thread's
    __sanitizer_finish_switch_fiber(changed_to->fake_stack, &stack, &changed_from->stack_bytes);
    changed_from->stack = (void *)stack;
#endif
}

// ---- the switch -------------------------------------------------------------------------------------------

UNSEEN static void first_function() {
    confirm_change();
    changed_to->run(changed_to);
    abort();
}

#ifdef SWITCH_BY_ASSEMBLY

// Saves the registers that a function must preserve on the stack, stores the stack pointer at *save, and does the
// reverse with `to`.
extern "C" void trireme_sim_switch(void **save, void *to);
__asm__(".text\n"
        ".hidden trireme_sim_switch\n"
        ".globl trireme_sim_switch\n"
        ".type trireme_sim_switch, @function\n"
        "trireme_sim_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size trireme_sim_switch, . - trireme_sim_switch\n");

UNSEEN static void change(Fiber *from, Fiber *to) {
    trireme_sim_switch(&from->stack_pointer, to->stack_pointer);
}

// The stack of a fiber as the switch leaves it: six registers and the address to go on at. A function finds the stack 8
// bytes off a multiple of 16.
UNSEEN static void prepare(Fiber *fiber) {
    enum { SAVED_REGISTERS = 6 };
    void **top = (void **)((char *)fiber->stack + fiber->stack_bytes) - 1;
    *top = nullptr; // no function called the first one
    *--top = (void *)first_function;
    for (int i = 0; i < SAVED_REGISTERS; i++) *--top = nullptr;
    fiber->stack_pointer = top;
}

#else

UNSEEN static void change(Fiber *from, Fiber *to) { swapcontext(&from->context, &to->context); }

UNSEEN static void prepare(Fiber *fiber) {
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack;
    fiber->context.uc_stack.ss_size = fiber->stack_bytes;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, first_function, 0);
}

#endif

UNSEEN void fiber_switch(Fiber *from, Fiber *to) {
    changed_from = from, changed_to = to;
    announce_change();
    change(from, to);
    confirm_change();
}

// ---- fibers -----------------------------------------------------------------------------------------------

Fiber *fiber_of_caller() {
    Fiber *fiber = (Fiber *)calloc(1, sizeof *fiber);
    if (!fiber) fail_without_memory();
#if SIM_TSAN
    fiber->tsan = __tsan_get_current_fiber();
#endif
    return fiber;
}

// Where a fiber's memory ends lies the fiber itself: ThreadSanitizer would see what malloc and free do with it.
UNSEEN Fiber *fiber_create(void (*run)(Fiber *self)) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = page + STACK_BYTES;
    void *memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE)) fail_without_memory();
    Fiber *fiber = (Fiber *)((char *)memory + bytes) - 1;
    fiber->run = run;
    fiber->memory = (char *)memory;
    fiber->memory_bytes = bytes;
    fiber->stack = fiber->memory + page;
    fiber->stack_bytes = (size_t)((char *)fiber - (char *)fiber->stack) / STACK_ALIGNMENT * STACK_ALIGNMENT;
#if SIM_TSAN
    fiber->tsan = __tsan_create_fiber(0);
#endif
    prepare(fiber);
    return fiber;
}

UNSEEN void fiber_destroy(Fiber *fiber) {
    if (!fiber->memory) {
        free(fiber);
        return;
    }
#if SIM_TSAN
    __tsan_destroy_fiber(fiber->tsan);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(fiber->stack, fiber->stack_bytes); // of the functions that it has not left
#endif
    munmap(fiber->memory, fiber->memory_bytes);
}
