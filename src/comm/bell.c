#include "comm/bell.h"
#include <time.h>

void bell_open(Bell *bell) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&bell->mutex, NULL);
    pthread_cond_init(&bell->cond, &attributes);
    pthread_condattr_destroy(&attributes);
    atomic_init(&bell->rings, 0);
    atomic_init(&bell->asleep, false);
}

void bell_close(Bell *bell) {
    pthread_cond_destroy(&bell->cond);
    pthread_mutex_destroy(&bell->mutex);
}

// Sequentially consistent: either the sleeper's look at `rings` sees this ring, or we see that it is asleep.
void bell_ring(Bell *bell) {
    atomic_fetch_add(&bell->rings, 1);
    if (!atomic_load(&bell->asleep)) return;
    // Once it is ours the sleeper is past its look at `rings`. Held on, it would make the woken wait for it.
    pthread_mutex_lock(&bell->mutex);
    pthread_mutex_unlock(&bell->mutex);
    pthread_cond_signal(&bell->cond);
}

static struct timespec deadline_after(double seconds) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    long nanoseconds = t.tv_nsec + (long)(seconds * 1e9);
    return (struct timespec){.tv_sec = t.tv_sec + nanoseconds / 1000000000,
                             .tv_nsec = nanoseconds % 1000000000};
}

static void sleep_by(Bell *bell, uint32_t seen, double seconds) {
    struct timespec deadline = deadline_after(seconds);
    pthread_mutex_lock(&bell->mutex);
    atomic_store(&bell->asleep, true);
    int rc = 0;
    while (rc == 0 && atomic_load(&bell->rings) == seen)
        rc = pthread_cond_timedwait(&bell->cond, &bell->mutex, &deadline);
    atomic_store(&bell->asleep, false);
    pthread_mutex_unlock(&bell->mutex);
}

void bell_await(Bell *bell, uint32_t *seen, int spins, double seconds) {
    for (int i = 0; i < spins; i++) {
        if (atomic_load_explicit(&bell->rings, memory_order_acquire) != *seen) break;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    if (atomic_load(&bell->rings) == *seen) sleep_by(bell, *seen, seconds);
    *seen = atomic_load(&bell->rings);
}
