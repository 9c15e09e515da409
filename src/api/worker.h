// Ranks in the background that do what a caller asks for, one thing after another.
//
// The caller's thread asks and waits; each rank's thread fetches what was asked, does it together with the others, and
// fetches the next. When the ranks end, by themselves or because of a failure, the caller learns the status.
#pragma once
#include "comm/comm.h"
#include <pthread.h>

enum { MAX_WORKER_RANKS = 1024 };

typedef struct {
    int ranks;
    // Runs the ranks until they have ended, in a thread of its own.
    Status (*run)(void *self);
    void *self;

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t asked;                     // how many things were asked for
    int64_t fetched[MAX_WORKER_RANKS]; // by each rank
    int waiting;                       // ranks that have done all that was asked
    void *what;                        // is to be done
    Status done;                       // the first failure of it, of any rank
    bool over;
    Status status; // of the ranks, once they are over
    char message[1024];
} RankWorker;

// Starts the ranks, and waits until all of them fetch or they are over: then fails as they did.
Status worker_start(RankWorker *worker);
// Has all ranks do it, and waits. Fails as the first rank that reports a failure, or as the ranks did that are over.
Status worker_ask(RankWorker *worker, void *what);
// Waits until the ranks are over, after what makes them end was asked with `ends`; NULL where they have ended already.
Status worker_end(RankWorker *worker, void *ends);

// On a rank's thread: reports how the last thing went (OK at first), waits for the next one and returns it.
void *worker_fetch(RankWorker *worker, int rank, Status last);
