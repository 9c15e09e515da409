// Sleeping until another thread signals, with a condition variable behind an atomic counter.
#include "comm/wakeup.h"
#include <time.h>

void wakeup_open(Wakeup *wakeup) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&wakeup->mutex, NULL);
    pthread_cond_init(&wakeup->cond, &attributes);
    pthread_condattr_destroy(&attributes);
    atomic_init(&wakeup->signals, 0);
    atomic_init(&wakeup->asleep, false);
}

void wakeup_close(Wakeup *wakeup) {
    pthread_cond_destroy(&wakeup->cond);
    pthread_mutex_destroy(&wakeup->mutex);
}

// Sequentially consistent: either the sleeper reads this signal in `signals`, or we read that it is asleep.
void wakeup_signal(Wakeup *wakeup) {
    atomic_fetch_add(&wakeup->signals, 1);
    if (!atomic_load(&wakeup->asleep)) return;
    // While we hold the mutex the sleeper is inside its wait. We release it before the signal: the woken thread
    // needs it.
    pthread_mutex_lock(&wakeup->mutex);
    pthread_mutex_unlock(&wakeup->mutex);
    pthread_cond_signal(&wakeup->cond);
}

static struct timespec deadline_after(double seconds) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    long nanoseconds = t.tv_nsec + (long)(seconds * 1e9);
    return (struct timespec){.tv_sec = t.tv_sec + nanoseconds / 1000000000,
                             .tv_nsec = nanoseconds % 1000000000};
}

static void sleep_until_signal(Wakeup *wakeup, uint32_t seen, double seconds) {
    struct timespec deadline = deadline_after(seconds);
    pthread_mutex_lock(&wakeup->mutex);
    atomic_store(&wakeup->asleep, true);
    int rc = 0;
    while (rc == 0 && atomic_load(&wakeup->signals) == seen)
        rc = pthread_cond_timedwait(&wakeup->cond, &wakeup->mutex, &deadline);
    atomic_store(&wakeup->asleep, false);
    pthread_mutex_unlock(&wakeup->mutex);
}

void wakeup_await(Wakeup *wakeup, uint32_t *seen, int spins, double seconds) {
    for (int i = 0; i < spins; i++) {
        if (atomic_load_explicit(&wakeup->signals, memory_order_acquire) != *seen) break;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    if (atomic_load(&wakeup->signals) == *seen) sleep_until_signal(wakeup, *seen, seconds);
    *seen = atomic_load(&wakeup->signals);
}
