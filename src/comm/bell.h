// A bell that one thread sleeps by and others ring: no ring is missed, and ringing takes a lock only when
// somebody sleeps.
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    _Atomic(uint32_t) rings;
    atomic_bool asleep;
} Bell;

void bell_open(Bell *bell);
void bell_close(Bell *bell);
void bell_ring(Bell *bell);
// Until it has rung since `*seen`, which it updates; at most `seconds`. Spins `spins` times, then sleeps.
void bell_await(Bell *bell, uint32_t *seen, int spins, double seconds);
