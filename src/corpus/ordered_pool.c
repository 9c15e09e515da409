// A pool of threads that keeps order: one thread produces, many work, the caller consumes in order.
#include "corpus/ordered_pool.h"
#include "base/rank.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
    Status status;
    char *message; // when it failed
} Outcome;

typedef struct {
    bool done;
    size_t weight;
    Outcome outcome;
} Slot;

// Item number i is in slot i % num_slots. consumed <= taken <= produced <= consumed + num_slots.
typedef struct {
    const PoolSteps *steps;
    void *self;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    Slot *slots;
    int num_slots, num_workers; // num_workers: threads that have started
    long produced, taken, consumed;
    size_t weight, max_weight; // of the items between produced and consumed
    bool ended, stop;          // ended: nothing more is produced; stop: all threads return
    Outcome production;
} OrderedPool;

int ordered_pool_slots(int workers) { return workers * SLOTS_PER_WORKER; }

static Outcome outcome_of(Status status) {
    return (Outcome){status, status == OK ? NULL : strdup(fail_message())};
}

static Status repeat(const Outcome *outcome) {
    if (outcome->status == OK) return OK;
    return fail(outcome->status, "%s", outcome->message ? outcome->message : "");
}

static void announce(OrderedPool *p) {
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

// ---- Workers ----------------------------------------------------------------------------------------------

// The next item for a worker; -1: there will be none.
static long take(OrderedPool *p) {
    pthread_mutex_lock(&p->lock);
    while (!p->stop && p->taken == p->produced) pthread_cond_wait(&p->changed, &p->lock);
    long item = p->stop ? -1 : p->taken++;
    pthread_mutex_unlock(&p->lock);
    return item;
}

static void *worker_main(void *argument) {
    OrderedPool *p = argument;
    Rank rank = {.size = 1};
    rank_enter(&rank);
    pthread_mutex_lock(&p->lock);
    int worker = p->num_workers++;
    pthread_mutex_unlock(&p->lock);
    for (long item; (item = take(p)) >= 0;) {
        int slot = (int)(item % p->num_slots);
        Outcome outcome = outcome_of(p->steps->work(p->self, worker, slot));
        pthread_mutex_lock(&p->lock);
        p->slots[slot].outcome = outcome;
        p->slots[slot].done = true;
        announce(p);
    }
    rank_enter(NULL);
    return NULL;
}

// ---- The producer -----------------------------------------------------------------------------------------

static bool has_slot(OrderedPool *p) {
    pthread_mutex_lock(&p->lock);
    while (!p->stop && p->produced - p->consumed == p->num_slots) pthread_cond_wait(&p->changed, &p->lock);
    bool stop = p->stop;
    pthread_mutex_unlock(&p->lock);
    return !stop;
}

// Waits until the items before this one leave room for its weight.
static void publish(OrderedPool *p, int slot, size_t weight) {
    pthread_mutex_lock(&p->lock);
    while (!p->stop && p->weight && p->weight + weight > p->max_weight)
        pthread_cond_wait(&p->changed, &p->lock);
    p->slots[slot].weight = weight;
    p->weight += weight;
    p->produced++;
    announce(p);
}

static Status produce_all(OrderedPool *p) {
    for (bool end = false; has_slot(p);) {
        int slot = (int)(p->produced % p->num_slots);
        size_t weight = 0;
        TRY(p->steps->produce(p->self, slot, &weight, &end));
        if (end) return OK;
        publish(p, slot, weight);
    }
    return OK;
}

static void *producer_main(void *argument) {
    OrderedPool *p = argument;
    Rank rank = {.size = 1};
    rank_enter(&rank);
    Outcome outcome = outcome_of(produce_all(p));
    pthread_mutex_lock(&p->lock);
    p->production = outcome;
    p->ended = true;
    announce(p);
    rank_enter(NULL);
    return NULL;
}

// ---- The consumer -----------------------------------------------------------------------------------------

static void wait_a_little(OrderedPool *p) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 200000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&p->changed, &p->lock, &until);
}

// Waits a short time until the oldest item is done or the run ends.
static bool oldest_done(OrderedPool *p, bool *end) {
    Slot *oldest = &p->slots[p->consumed % p->num_slots];
    pthread_mutex_lock(&p->lock);
    if (!oldest->done && !(p->ended && p->consumed == p->produced)) wait_a_little(p);
    bool done = oldest->done;
    *end = !done && p->ended && p->consumed == p->produced;
    pthread_mutex_unlock(&p->lock);
    return done;
}

static Status consume_one(OrderedPool *p) {
    Slot *slot = &p->slots[p->consumed % p->num_slots];
    TRY(repeat(&slot->outcome));
    TRY(p->steps->consume(p->self, (int)(p->consumed % p->num_slots)));
    pthread_mutex_lock(&p->lock);
    slot->done = false;
    p->weight -= slot->weight;
    p->consumed++;
    announce(p);
    return OK;
}

// A failure of the producer counts after the items before it: their failures come first.
static Status drive(OrderedPool *p) {
    for (bool end = false;;) {
        TRY(p->steps->tick(p->self));
        if (oldest_done(p, &end)) TRY(consume_one(p));
        if (end) return repeat(&p->production);
    }
}

// ---- The whole --------------------------------------------------------------------------------------------

static void stop(OrderedPool *p) {
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    announce(p);
    p->steps->cancel(p->self);
}

static Status run_threads(OrderedPool *p, int workers) {
    pthread_t producer, threads[MAX_WORKERS];
    int started = 0;
    while (started < workers && pthread_create(&threads[started], NULL, worker_main, p) == 0) started++;
    bool all = started == workers && pthread_create(&producer, NULL, producer_main, p) == 0;
    Status status = all ? drive(p) : fail(ERR_OS, "cannot start %d threads", workers + 1);
    stop(p);
    if (all) pthread_join(producer, NULL);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
    return status;
}

Status ordered_pool_run(const PoolSteps *steps, void *self, int workers, size_t max_weight) {
    CHECK(workers >= 1 && workers <= MAX_WORKERS, "%d workers", workers);
    OrderedPool p = {
        .steps = steps, .self = self, .num_slots = ordered_pool_slots(workers), .max_weight = max_weight};
    p.slots = calloc((size_t)p.num_slots, sizeof *p.slots);
    if (!p.slots) return fail(ERR_OS, "no memory for %d workers", workers);
    pthread_mutex_init(&p.lock, NULL);
    pthread_cond_init(&p.changed, NULL);
    Status status = run_threads(&p, workers);
    pthread_cond_destroy(&p.changed);
    pthread_mutex_destroy(&p.lock);
    for (int i = 0; i < p.num_slots; i++) free(p.slots[i].outcome.message);
    free(p.slots);
    free(p.production.message);
    return status;
}
