#include "data/pipeline.h"
#include "base/rank.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
    bool done;
    Status status;
    char *message; // when it failed
} Slot;

// Items are numbered; item i sits in slot i % num_slots. consumed <= taken <= produced <= consumed +
// num_slots.
typedef struct {
    const PipelineSteps *steps;
    void *self;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    Slot *slots;
    int num_slots, num_workers; // workers that have begun
    long produced, taken, consumed;
    bool stop;
} Pipeline;

int pipeline_num_slots(int workers) { return workers * SLOTS_PER_WORKER; }

// The next item for a worker, -1 when there will be none.
static long take(Pipeline *p) {
    pthread_mutex_lock(&p->lock);
    while (!p->stop && p->taken == p->produced) pthread_cond_wait(&p->changed, &p->lock);
    long item = p->stop ? -1 : p->taken++;
    pthread_mutex_unlock(&p->lock);
    return item;
}

static void *worker_main(void *argument) {
    Pipeline *p = argument;
    Rank rank = {.size = 1, .tp = -1, .dp = -1, .pp = -1};
    rank_enter(&rank);
    pthread_mutex_lock(&p->lock);
    int worker = p->num_workers++;
    pthread_mutex_unlock(&p->lock);
    for (long item; (item = take(p)) >= 0;) {
        int slot = (int)(item % p->num_slots);
        Status status = p->steps->work(p->self, worker, slot);
        pthread_mutex_lock(&p->lock);
        p->slots[slot] = (Slot){true, status, status == OK ? NULL : strdup(fail_message())};
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
    }
    rank_enter(NULL);
    return NULL;
}

static void wait_a_little(Pipeline *p) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 200000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&p->changed, &p->lock, &until);
}

static Status produce_one(Pipeline *p, bool *end) {
    TRY(p->steps->produce(p->self, (int)(p->produced % p->num_slots), end));
    if (*end) return OK;
    pthread_mutex_lock(&p->lock);
    p->produced++;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return OK;
}

// Waits until the oldest item is done; true at once when instead another could be produced.
static bool oldest_done(Pipeline *p, bool may_produce) {
    Slot *oldest = &p->slots[p->consumed % p->num_slots];
    pthread_mutex_lock(&p->lock);
    bool done = p->consumed < p->produced && oldest->done;
    if (!done && !may_produce) wait_a_little(p);
    pthread_mutex_unlock(&p->lock);
    return done;
}

static Status consume_one(Pipeline *p) {
    int slot = (int)(p->consumed % p->num_slots);
    if (p->slots[slot].status != OK)
        return fail(p->slots[slot].status, "%s", p->slots[slot].message ? p->slots[slot].message : "");
    TRY(p->steps->consume(p->self, slot));
    p->slots[slot].done = false;
    p->consumed++;
    return OK;
}

// A producer's failure counts only after the items before it: theirs come first.
static Status drive(Pipeline *p) {
    bool end = false;
    Status produced = OK;
    char *message = NULL;
    for (;;) {
        p->steps->tick(p->self);
        bool may_produce = !end && p->produced - p->consumed < p->num_slots;
        Status status = OK;
        if (oldest_done(p, may_produce))
            status = consume_one(p);
        else if (may_produce && (produced = produce_one(p, &end)) != OK) {
            end = true;
            message = strdup(fail_message());
        }
        if (status != OK || (end && p->consumed == p->produced)) {
            if (status == OK && produced != OK) status = fail(produced, "%s", message ? message : "");
            free(message);
            return status;
        }
    }
}

static Status run_workers(Pipeline *p, int workers) {
    pthread_t threads[MAX_WORKERS];
    int started = 0;
    while (started < workers && pthread_create(&threads[started], NULL, worker_main, p) == 0) started++;
    Status status = started == workers ? drive(p) : fail(ERR_OS, "cannot start %d worker threads", workers);
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
    return status;
}

Status pipeline_run(const PipelineSteps *steps, void *self, int workers) {
    CHECK(workers >= 1 && workers <= MAX_WORKERS, "%d workers", workers);
    Pipeline p = {.steps = steps, .self = self, .num_slots = pipeline_num_slots(workers)};
    p.slots = calloc((size_t)p.num_slots, sizeof *p.slots);
    if (!p.slots) return fail(ERR_OS, "no memory for %d workers", workers);
    pthread_mutex_init(&p.lock, NULL);
    pthread_cond_init(&p.changed, NULL);
    Status status = run_workers(&p, workers);
    pthread_cond_destroy(&p.changed);
    pthread_mutex_destroy(&p.lock);
    for (int i = 0; i < p.num_slots; i++) free(p.slots[i].message);
    free(p.slots);
    return status;
}
