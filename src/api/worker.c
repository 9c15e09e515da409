// Runs ranks in the background and hands them what a caller asks for.
#include "api/worker.h"
#include <stdio.h>

static void *run_ranks(void *self) {
    RankWorker *w = self;
    Status status = w->run(w->self);
    pthread_mutex_lock(&w->lock);
    w->status = status;
    w->over = true;
    snprintf(w->message, sizeof w->message, "%s", fail_message());
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

// Waits until the ranks wait or are over; the lock is held. `what`: they have been asked for.
static Status settle(RankWorker *w) {
    while (!w->over && w->waiting < w->ranks) pthread_cond_wait(&w->changed, &w->lock);
    Status status = w->over ? (w->status == OK ? ERR_OTHER : w->status) : w->done;
    if (status == OK) return OK;
    return fail(status, "%s", w->over && w->status == OK ? "the run has ended" : w->message);
}

Status worker_start(RankWorker *w) {
    CHECK(w->ranks <= MAX_WORKER_RANKS, "%d ranks", w->ranks);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    if (pthread_create(&w->thread, NULL, run_ranks, w)) return fail(ERR_OS, "a thread cannot be started");
    pthread_mutex_lock(&w->lock);
    Status status = settle(w);
    pthread_mutex_unlock(&w->lock);
    if (status != OK) pthread_join(w->thread, NULL);
    return status;
}

static void ask(RankWorker *w, void *what) {
    w->what = what;
    w->done = OK;
    w->waiting = 0;
    w->asked++;
    pthread_cond_broadcast(&w->changed);
}

Status worker_ask(RankWorker *w, void *what) {
    pthread_mutex_lock(&w->lock);
    if (!w->over) ask(w, what);
    Status status = settle(w);
    pthread_mutex_unlock(&w->lock);
    return status;
}

Status worker_end(RankWorker *w, void *ends) {
    pthread_mutex_lock(&w->lock);
    if (!w->over && ends) ask(w, ends);
    while (!w->over) pthread_cond_wait(&w->changed, &w->lock);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    return w->status == OK ? OK : fail(w->status, "%s", w->message);
}

void *worker_fetch(RankWorker *w, int rank, Status last) {
    char message[sizeof w->message];
    snprintf(message, sizeof message, "%s", fail_message());
    pthread_mutex_lock(&w->lock);
    if (last != OK && w->done == OK) {
        w->done = last;
        snprintf(w->message, sizeof w->message, "%s", message);
    }
    if (++w->waiting == w->ranks) pthread_cond_broadcast(&w->changed);
    while (w->fetched[rank] == w->asked) pthread_cond_wait(&w->changed, &w->lock);
    w->fetched[rank]++;
    void *what = w->what;
    pthread_mutex_unlock(&w->lock);
    return what;
}
