// Fibers: functions with a stack of their own that take turns on one host thread. The emulator runs each waiting CUDA
// thread on one. AddressSanitizer and ThreadSanitizer learn of every change.
#pragma once
#include <stddef.h>

#if defined(__SANITIZE_THREAD__)
#define SIM_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SIM_TSAN 1
#endif
#endif

// Functions that ThreadSanitizer does not look into: those of the emulator itself, whose data all fibers of a host
// thread share without being ordered in its eyes.
#ifdef SIM_TSAN
#define UNSEEN __attribute__((no_sanitize("thread"), noinline))
#else
#define SIM_TSAN 0
#define UNSEEN
#endif

typedef struct Fiber Fiber;

// Stands for the code that calls it. Destroy it like the others.
Fiber *fiber_of_caller(void);
// `run` never returns: it hands over to other fibers. Ends the process if there is no memory.
Fiber *fiber_create(void (*run)(Fiber *self));
// `from` is the fiber that calls; it goes on when another one hands over to it.
void fiber_switch(Fiber *from, Fiber *to);
// The fiber must not run.
void fiber_destroy(Fiber *fiber);
