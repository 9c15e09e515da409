// Streams of the check device: a queue and a thread each, delays, events and marks.
#include "base/rank.h"
#include "base/text.h"
#include "device/check/check.h"
#include <errno.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// ---- delays -----------------------------------------------------------------------------------------------

static uint64_t draw(Queue *q) { // xorshift64* (Vigna 2014)
    q->random ^= q->random >> 12, q->random ^= q->random << 25, q->random ^= q->random >> 27;
    return (q->random * 0x2545F4914F6CDD1Du) >> 33;
}

Status device_queue_seed(int64_t *seed) {
    const char *text = getenv("TRIREME_CHECK_SEED");
    *seed = 1;
    if (text && !parse_int(text, seed))
        return fail(ERR_CONFIG, "TRIREME_CHECK_SEED=%s is not a whole number", text);
    return OK;
}

static uint64_t first_random(int64_t seed, int index) {
    return ((uint64_t)seed * 2 + 1) * 0x9E3779B97F4A7C15u ^ ((uint64_t)index + 1) * 0xD1B54A32D192ED03u;
}

static struct timespec after(double seconds) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t ns = t.tv_nsec + (int64_t)(seconds * 1e9);
    t.tv_sec += (time_t)(ns / 1000000000);
    t.tv_nsec = (long)(ns % 1000000000);
    return t;
}

// Draws the number of entries that gather before the thread starts, unless a thread waits for one: mostly one,
// sometimes many.
static int64_t draw_hold(Queue *q) {
    static const int64_t holds[] = {1, 1, 1, 2, 5, 17, 60, 200};
    return holds[draw(q) % (sizeof holds / sizeof *holds)];
}

static void sleep_sometimes(Queue *q) {
    if (draw(q) % 128) return;
    struct timespec t = {0, (long)(draw(q) % 200000)};
    nanosleep(&t, NULL);
}

// ---- a stream's thread ------------------------------------------------------------------------------------

// With the lock. Sleeps until there is an entry that may start now.
static bool await_entry(Queue *q) {
    CheckDevice *d = q->device;
    const double patience_s = 5e-4; // then a held entry starts all the same
    bool waited = false;
    for (;;) {
        bool any = q->launched > q->done;
        if (!any && q->ends) return false;
        if (any && (waited || q->ends || q->wanted > q->done || q->launched - q->done >= q->hold))
            return true;
        if (any) {
            struct timespec until = after(patience_s);
            waited = pthread_cond_timedwait(&d->moved, &d->lock, &until) == ETIMEDOUT;
        } else
            pthread_cond_wait(&d->moved, &d->lock);
    }
}

// With the lock: sleeps until the stream has run so many entries or, with `until`, until that time. Returns whether it
// has run them.
static bool await(Queue *q, int64_t number, const struct timespec *until) {
    CheckDevice *d = q->device;
    int expired = 0;
    if (q->done < number && q->wanted < number) {
        q->wanted = number;
        pthread_cond_broadcast(&d->moved);
    }
    while (q->done < number && expired != ETIMEDOUT) {
        if (q->wake_at > number) q->wake_at = number;
        expired = until ? pthread_cond_timedwait(&d->moved, &d->lock, until)
                        : pthread_cond_wait(&d->moved, &d->lock);
    }
    return q->done >= number;
}

static void set_done(Queue *q) {
    q->done++;
    if (q->done == q->launched) q->hold = draw_hold(q);
    if (q->done < q->wake_at) return;
    q->wake_at = INT64_MAX;
    pthread_cond_broadcast(&q->device->moved);
}

static void set_mark(CheckDevice *d, PendingMark *mark) {
    mark->times.wall_s = clock_s();
    mark->times.work_s = d->threads == 1 ? clock_thread_s() : mark->times.wall_s;
}

static void *stream_main(void *arg) {
    Queue *q = arg;
    CheckDevice *d = q->device;
    rank_enter(d->rank);
    cpu_backend.open(&(void *){NULL}, &(DeviceOptions){.threads = d->threads});
    pthread_mutex_lock(&d->lock);
    while (await_entry(q)) {
        QueueEntry *e = &q->entries[q->done % QUEUE_ENTRIES];
        if (e->kind == ENTRY_WAIT)
            await(&d->queues[e->stream], e->number, NULL);
        else {
            pthread_mutex_unlock(&d->lock);
            sleep_sometimes(q);
            entry_run(e);
            pthread_mutex_lock(&d->lock);
            if (e->kind == ENTRY_MARK) set_mark(d, &d->marks[e->number - 1]);
        }
        set_done(q);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

Status device_queue_open(void *state, const char *name, void **queue) {
    CheckDevice *d = state;
    int64_t seed;
    int i = 0;
    TRY(device_queue_seed(&seed));
    while (i < MAX_STREAMS && d->queues[i].open) i++;
    if (i == MAX_STREAMS) return fail(ERR_OS, "the check device has no stream left for %s", name);
    Queue *q = &d->queues[i];
    QueueEntry *entries = q->entries ? q->entries : calloc(QUEUE_ENTRIES, sizeof *entries);
    if (!entries) return fail(ERR_OS, "no memory for the stream %s", name);
    // A stream that is opened again goes on counting, so that older events stay behind it.
    q->entries = entries, q->device = d, q->index = i, q->name = name, q->ends = false, q->hold = 1,
    q->wake_at = INT64_MAX;
    q->random = first_random(seed, i);
    if (pthread_create(&q->thread, NULL, stream_main, q))
        return fail(ERR_OS, "no thread for the stream %s", name);
    q->open = true;
    *queue = q;
    return OK;
}

void device_queue_close(void *state, void *queue) {
    CheckDevice *d = state;
    Queue *q = queue;
    pthread_mutex_lock(&d->lock);
    q->ends = true;
    pthread_cond_broadcast(&d->moved);
    pthread_mutex_unlock(&d->lock);
    pthread_join(q->thread, NULL);
    d->host.at[q->index] = q->launched;
    q->open = false;
}

void device_queue_settle(CheckDevice *d) {
    for (int i = 0; i < MAX_STREAMS; i++)
        if (d->queues[i].open) {
            Exec exec = {.queue = &d->queues[i]};
            while (!device_queue_wait(&exec, device_queue_event(&exec), 1)) {
            }
        }
}

// ---- launching --------------------------------------------------------------------------------------------

void doing_now(char doing[DOING_BYTES]) { snprintf(doing, DOING_BYTES, "%.19s", rank_current()->doing); }

QueueEntry *device_queue_next(Queue *q, EntryKind kind, const char *name) {
    CheckDevice *d = q->device;
    pthread_mutex_lock(&d->lock);
    if (q->launched - q->done == QUEUE_ENTRIES) await(q, q->launched - QUEUE_ENTRIES / 2, NULL);
    pthread_mutex_unlock(&d->lock);
    QueueEntry *e = &q->entries[q->launched % QUEUE_ENTRIES];
    memset(e->regions, 0, sizeof e->regions);
    e->kind = kind, e->name = name, e->fresh = 0;
    doing_now(e->doing);
    clock_join(&q->clock, &d->host);
    q->clock.at[q->index] = q->launched + 1;
    return e;
}

void device_queue_launch(Queue *q) {
    CheckDevice *d = q->device;
    pthread_mutex_lock(&d->lock);
    q->launched++;
    if (q->launched - q->done == 1 || q->launched - q->done == q->hold) pthread_cond_broadcast(&d->moved);
    pthread_mutex_unlock(&d->lock);
}

Use device_queue_use(const Queue *q, const char *what, const char *tensor) {
    Use use = {.what = what, .tensor = tensor, .stream = q->index, .number = q->launched + 1};
    doing_now(use.doing);
    return use;
}

// ---- events and marks -------------------------------------------------------------------------------------

int64_t device_queue_event(const Exec *exec) { return ((const Queue *)exec->queue)->launched; }

// Adds to the clock all that is over once this event is: the stream so far, and what it had waited for by then.
static void join_event(StreamClock *clock, const Queue *q, int64_t event) {
    if (clock->at[q->index] >= event) return;
    CHECK(q->num_joins <= MAX_JOINS || q->joins[q->num_joins % MAX_JOINS].number <= event,
          "an event of the stream %s is older than the last %d waits of that stream", q->name, MAX_JOINS);
    for (int i = 0; i < q->num_joins && i < MAX_JOINS; i++)
        if (q->joins[i].number <= event) clock_join(clock, &q->joins[i].clock);
    if (clock->at[q->index] < event) clock->at[q->index] = event;
}

bool device_queue_wait(const Exec *exec, int64_t event, double seconds) {
    Queue *q = exec->queue;
    CheckDevice *d = q->device;
    if (d->host.at[q->index] >= event) return true;
    struct timespec until = after(seconds);
    pthread_mutex_lock(&d->lock);
    bool done = seconds > 0 ? await(q, event, &until) : q->done >= event;
    pthread_mutex_unlock(&d->lock);
    if (done) join_event(&d->host, q, event);
    return done;
}

void device_queue_stream_wait(const Exec *exec, const Exec *of, int64_t event) {
    Queue *q = exec->queue;
    const Queue *other = of->queue;
    if (q == other) return;
    QueueEntry *e = device_queue_next(q, ENTRY_WAIT, "stream_wait");
    e->stream = other->index;
    e->number = event;
    join_event(&q->clock, other, event);
    q->joins[q->num_joins % MAX_JOINS].number = q->launched + 1;
    q->joins[q->num_joins++ % MAX_JOINS].clock = q->clock;
    device_queue_launch(q);
}

// With the lock: a free place for a mark.
static int free_mark(CheckDevice *d) {
    int at = 0, old = d->num_marks;
    while (at < old && d->marks[at].used) at++;
    if (at < old) return at;
    int wanted = old ? 2 * old : 64;
    PendingMark *grown = realloc(d->marks, (size_t)wanted * sizeof *grown);
    CHECK(grown, "no memory for %d marks", wanted);
    memset(grown + old, 0, (size_t)(wanted - old) * sizeof *grown);
    d->marks = grown;
    d->num_marks = wanted;
    return old;
}

void device_queue_mark(const Exec *exec, DeviceMark *mark) {
    Queue *q = exec->queue;
    CheckDevice *d = q->device;
    QueueEntry *e = device_queue_next(q, ENTRY_MARK, "device_mark");
    pthread_mutex_lock(&d->lock);
    int at = free_mark(d);
    d->marks[at] = (PendingMark){.used = true, .queue = q, .entry = q->launched + 1};
    pthread_mutex_unlock(&d->lock);
    e->number = mark->number = at + 1;
    device_queue_launch(q);
}

void device_queue_mark_read(void *state, DeviceMark *mark) {
    CheckDevice *d = state;
    if (!mark->number) return;
    PendingMark *pending = &d->marks[mark->number - 1];
    Exec exec = {.queue = (void *)(uintptr_t)pending->queue};
    while (!device_queue_wait(&exec, pending->entry, 1)) {
    }
    pthread_mutex_lock(&d->lock);
    mark->wall_s = pending->times.wall_s;
    mark->work_s = pending->times.work_s;
    pending->used = false;
    pthread_mutex_unlock(&d->lock);
}
