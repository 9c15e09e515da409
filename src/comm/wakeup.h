// Lets one thread sleep until others wake it. No signal is lost, and a signal takes a lock only while the thread
// sleeps.
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    _Atomic(uint32_t) signals;
    atomic_bool asleep;
} Wakeup;

void wakeup_open(Wakeup *wakeup);
void wakeup_close(Wakeup *wakeup);
void wakeup_signal(Wakeup *wakeup);
// Returns when there was a signal since `*seen`, which it updates, or after `seconds`. Spins `spins` times
// before it sleeps.
void wakeup_await(Wakeup *wakeup, uint32_t *seen, int spins, double seconds);
