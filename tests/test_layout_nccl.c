// The programs of all schedules as a GPU sees them with NCCL: all that an executor posts lies on streams, and a send and a
// receive are kernels that stay until both ends run. With a stream and a hardware queue for every channel of messages all
// programs finish; this also says how many such kernels are on a GPU at once, and that less would hang.
#include "layout/buffers.h"
#include "layout/kinds.h"
#include "layout_fixture.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 6, MOST_STREAMS = 9, COMPUTES = 0 }; // the first stream is that of the computes

// How messages are put on streams.
typedef enum { ONE_STREAM, PER_DIRECTION, PER_CHANNEL } Streams;

// What a stream does once it has come to it. It waits for the end of `after`, another operation of the rank.
typedef struct {
    int stream, queue, after, before_in_queue; // -1: none
    int peer, other; // of a message: rank and operation at its other end; -1: no message
    bool started, done;
} Op;

typedef struct {
    Op *ops;
    int count, capacity;
    int *of_stream[MOST_STREAMS], num_of_stream[MOST_STREAMS], next[MOST_STREAMS];
    int keys[MOST_STREAMS], num_streams;
    int last_of_queue[MOST_STREAMS];
    int on_gpu; // message kernels
} Rank;

// ---- the executor (parallel/pipeline.c) -------------------------------------------------------------------

typedef struct {
    int *free, first, num_free, size;
    int *pending; // [size]: the message that fills the buffer or is sent from it, -1: none
    int *held;    // [chunks * microbatches]: the buffer
} Pool;

typedef struct {
    const Schedule *schedule;
    int rank, queues;
    Streams streams;
    Rank *out;
    Pool pools[NUM_BUFFER_KINDS];
} Executor;

static void *array(int count) {
    int *x = malloc(((size_t)count + 1) * sizeof *x);
    CHECK(x, "no memory");
    memset(x, 0xFF, ((size_t)count + 1) * sizeof *x); // -1
    return x;
}

static int key_of(const Executor *e, Instr in) {
    int direction = (int)schedule_ops[in.op].direction;
    if (e->streams == ONE_STREAM) return 1;
    if (e->streams == PER_DIRECTION) return 1 + direction;
    return 3 + (in.peer * 2 + direction) * 2 + (schedule_ops[in.op].kind == SEND);
}

static int stream_with(Rank *rank, int key) {
    int i = 0;
    while (i < rank->num_streams && rank->keys[i] != key) i++;
    CHECK(i < MOST_STREAMS, "more than %d streams", MOST_STREAMS);
    if (i == rank->num_streams) {
        rank->keys[i] = key;
        rank->of_stream[i] = array(rank->capacity);
        rank->num_streams++;
    }
    return i;
}

static int add(Executor *e, int key, int after) {
    Rank *rank = e->out;
    int stream = stream_with(rank, key), queue = e->queues ? stream % e->queues : stream;
    CHECK(rank->count < rank->capacity, "more than %d operations", rank->capacity);
    rank->ops[rank->count] = (Op){.stream = stream,
                                  .queue = queue,
                                  .after = after,
                                  .before_in_queue = rank->last_of_queue[queue],
                                  .peer = -1,
                                  .other = -1};
    rank->last_of_queue[queue] = rank->count;
    rank->of_stream[stream][rank->num_of_stream[stream]++] = rank->count;
    return rank->count++;
}

// The stream of the computes waits for a message.
static void wait_for(Executor *e, int *pending) {
    if (*pending >= 0) add(e, COMPUTES, *pending);
    *pending = -1;
}

static int last_compute(const Executor *e) {
    const Rank *rank = e->out;
    return rank->num_of_stream[COMPUTES] ? rank->of_stream[COMPUTES][rank->num_of_stream[COMPUTES] - 1] : -1;
}

static int *held(Executor *e, BufferKind kind, int chunk, int microbatch) {
    return &e->pools[kind].held[chunk * e->schedule->num_microbatches + microbatch];
}

static void change(Executor *e, const BufferChanges *changes, int microbatch, bool alloc) {
    for (int i = 0; i < changes->count; i++) {
        BufferChange c = changes->items[i];
        Pool *pool = &e->pools[c.kind];
        int *at = held(e, c.kind, c.chunk, microbatch);
        if (c.alloc != alloc) continue;
        if (alloc) {
            *at = pool->free[pool->first];
            pool->first = (pool->first + 1) % pool->size;
            pool->num_free--;
            wait_for(e, &pool->pending[*at]);
        } else {
            pool->free[(pool->first + pool->num_free++) % pool->size] = *at;
        }
    }
}

static void post(Executor *e, Instr in, BufferKind kind) {
    int op = add(e, key_of(e, in), last_compute(e));
    e->out->ops[op].peer = in.peer;
    e->pools[kind].pending[*held(e, kind, in.chunk, in.microbatch)] = op;
}

static void compute(Executor *e, Instr in) {
    bool forward = in.op == OP_FORWARD, backward = in.op == OP_BACKWARD || in.op == OP_BACKWARD_INPUT;
    ScheduleOp receive = forward ? OP_RECV_FORWARD : OP_RECV_BACKWARD;
    BufferKind kind = forward ? BUFFER_INPUT : BUFFER_OUTPUT_GRADIENT;
    if ((forward || backward) && schedule_partner(e->schedule, e->rank, in.chunk, receive) >= 0)
        wait_for(e, &e->pools[kind].pending[*held(e, kind, in.chunk, in.microbatch)]);
    add(e, COMPUTES, -1);
}

static void act(Executor *e, Instr in) {
    switch ((ScheduleOp)in.op) {
    case OP_RECV_FORWARD: post(e, in, BUFFER_INPUT); return;
    case OP_SEND_FORWARD: post(e, in, BUFFER_OUTPUT); return;
    case OP_RECV_BACKWARD: post(e, in, BUFFER_OUTPUT_GRADIENT); return;
    case OP_SEND_BACKWARD: post(e, in, BUFFER_INPUT_GRADIENT); return;
    case OP_REDUCE_GRADS: return;
    default: compute(e, in); return;
    }
}

static void open_pools(Executor *e) {
    const Schedule *s = e->schedule;
    for (BufferKind kind = 0; kind < NUM_BUFFER_KINDS; kind++) {
        Pool *pool = &e->pools[kind];
        pool->size = pool->num_free = schedule_pool(s, e->rank, kind);
        pool->free = array(pool->size);
        pool->pending = array(pool->size);
        pool->held = array(s->num_chunks * s->num_microbatches);
        for (int i = 0; i < pool->size; i++) pool->free[i] = i;
    }
}

static void execute(Rank *out, const Schedule *s, int rank, Streams streams, int queues) {
    const Program *program = &s->programs[rank];
    Executor e = {.schedule = s, .rank = rank, .queues = queues, .streams = streams, .out = out};
    *out = (Rank){.capacity = 4 * program->count + 64};
    out->ops = calloc((size_t)out->capacity, sizeof *out->ops);
    CHECK(out->ops, "no memory");
    memset(out->last_of_queue, 0xFF, sizeof out->last_of_queue);
    stream_with(out, COMPUTES);
    open_pools(&e);
    for (int i = 0; i < program->count; i++) {
        Instr in = program->instrs[i];
        BufferChanges changes = schedule_buffer_changes(s, rank, in, true);
        change(&e, &changes, in.microbatch, true);
        act(&e, in);
        change(&e, &changes, in.microbatch, false);
    }
    for (BufferKind kind = 0; kind < NUM_BUFFER_KINDS; kind++) {
        for (int i = 0; i < e.pools[kind].size; i++) wait_for(&e, &e.pools[kind].pending[i]);
        free(e.pools[kind].free);
        free(e.pools[kind].pending);
        free(e.pools[kind].held);
    }
}

// ---- the GPUs ---------------------------------------------------------------------------------------------

typedef struct {
    Rank ranks[MOST_RANKS];
    int num_ranks, num_left;
    int most_resident, peak; // message kernels on a GPU: allowed; seen
    uint64_t random;
} Job;

// The n-th send of a channel meets its n-th receive.
static void meet(Job *job, const Schedule *s) {
    for (int r = 0; r < s->num_ranks; r++) {
        Rank *rank = &job->ranks[r];
        for (int stream = 1; stream < rank->num_streams; stream++) {
            int key = rank->keys[stream] - 3, peer = key / 4, mine = 0, theirs = 0;
            if (!(key & 1)) continue; // a receive
            Rank *other = &job->ranks[peer];
            while (other->keys[theirs] != 3 + (r * 4 | (key & 2))) theirs++;
            for (; mine < rank->num_of_stream[stream]; mine++) {
                int send = rank->of_stream[stream][mine], receive = other->of_stream[theirs][mine];
                rank->ops[send].other = receive;
                other->ops[receive].other = send;
            }
        }
    }
}

static void job_open(Job *job, const Schedule *s, Streams streams, int queues) {
    *job = (Job){.num_ranks = s->num_ranks, .random = 88172645463325252u};
    Rank by_channel[MOST_RANKS];
    for (int r = 0; r < s->num_ranks; r++) {
        execute(&job->ranks[r], s, r, PER_CHANNEL, queues);
        by_channel[r] = job->ranks[r];
    }
    meet(job, s);
    if (streams == PER_CHANNEL) return;
    for (int r = 0; r < s->num_ranks; r++) { // the same operations in the same order, on other streams
        execute(&job->ranks[r], s, r, streams, queues);
        for (int i = 0; i < by_channel[r].count; i++) job->ranks[r].ops[i].other = by_channel[r].ops[i].other;
        free(by_channel[r].ops);
        for (int i = 0; i < by_channel[r].num_streams; i++) free(by_channel[r].of_stream[i]);
    }
}

static void job_close(Job *job) {
    for (int r = 0; r < job->num_ranks; r++) {
        free(job->ranks[r].ops);
        for (int i = 0; i < job->ranks[r].num_streams; i++) free(job->ranks[r].of_stream[i]);
    }
}

static uint32_t draw(Job *job) { // xorshift64
    job->random ^= job->random << 13;
    job->random ^= job->random >> 7;
    job->random ^= job->random << 17;
    return (uint32_t)(job->random >> 16);
}

static void finish(Job *job, Rank *rank, Op *op) {
    op->done = true;
    job->num_left--;
    rank->next[op->stream]++;
}

static void start_message(Job *job, Rank *rank, Op *op) {
    Rank *peer = &job->ranks[op->peer];
    Op *other = &peer->ops[op->other];
    if (++rank->on_gpu > job->peak) job->peak = rank->on_gpu;
    if (!other->started) return;
    finish(job, rank, op);
    finish(job, peer, other);
    rank->on_gpu--;
    peer->on_gpu--;
}

// Starts the next operation of a stream, if it may start.
static bool start(Job *job, Rank *rank, int stream, bool hesitates) {
    if (rank->next[stream] == rank->num_of_stream[stream]) return false;
    Op *op = &rank->ops[rank->of_stream[stream][rank->next[stream]]];
    if (op->started || (op->after >= 0 && !rank->ops[op->after].done)) return false;
    if (op->before_in_queue >= 0 && !rank->ops[op->before_in_queue].started) return false;
    if (op->peer >= 0 && rank->on_gpu >= job->most_resident) return false;
    if (hesitates && draw(job) % 2) return false;
    op->started = true;
    if (op->peer < 0)
        finish(job, rank, op);
    else
        start_message(job, rank, op);
    return true;
}

static void rewind_job(Job *job, int most_resident) {
    job->most_resident = most_resident;
    job->num_left = 0;
    for (int r = 0; r < job->num_ranks; r++) {
        Rank *rank = &job->ranks[r];
        memset(rank->next, 0, sizeof rank->next);
        rank->on_gpu = 0;
        job->num_left += rank->count;
        for (int i = 0; i < rank->count; i++) rank->ops[i].started = rank->ops[i].done = false;
    }
}

// Runs the job in a drawn order: who may start takes its time now and then. Returns whether it finishes.
static bool finishes(Job *job, int most_resident) {
    rewind_job(job, most_resident);
    for (bool moved = true, hesitates = true; moved || hesitates;) {
        hesitates = moved; // else whoever may start does
        moved = false;
        for (int i = 0, first = (int)(draw(job) % (uint32_t)job->num_ranks); i < job->num_ranks; i++) {
            Rank *rank = &job->ranks[(first + i) % job->num_ranks];
            int turn = (int)(draw(job) % (uint32_t)rank->num_streams);
            for (int s = 0; s < rank->num_streams; s++)
                while (start(job, rank, (s + turn) % rank->num_streams, hesitates)) moved = true;
        }
    }
    return !job->num_left;
}

static bool finishes_always(Job *job, int most_resident, int times) {
    while (times-- > 0)
        if (!finishes(job, most_resident)) return false;
    return true;
}

// ---- every kind that there is -----------------------------------------------------------------------------

enum { ANY = 1 << 20, DRAWS = 4, HARDWARE_QUEUES = 32 };

// What is known of a kind.
static const struct {
    const char *kind;
    int needed;       // message kernels that must fit on a GPU together: with one less some schedule hangs
    int most_at_once; // that were on a GPU together, in any order that was drawn
} KNOWN[] = {{"gpipe", 2, 3}, {"1f1b", 3, 4}, {"interleaved", 3, 4}, {"zb-h1", 3, 4},
             {"zb-h2", 2, 4}, {"zb-v", 4, 6}, {"auto", 3, 4},        {"paired", 3, 4}};

static int known(const ScheduleKind *kind) {
    for (int i = 0; i < (int)(sizeof KNOWN / sizeof *KNOWN); i++)
        if (!strcmp(KNOWN[i].kind, kind->name)) return i;
    CHECK(false, "the schedule %s has no row in KNOWN", kind->name);
}

typedef struct {
    int needed; // of this kind
    // How many schedules hang: with the messages of a rank on one stream, with fewer kernels than needed, with the streams
    // on one and on two queues.
    int one_stream, fewer, one_queue, two_queues;
    int most_at_once;
} Counts;

static bool hangs(const Schedule *s, Streams streams, int queues, int most_resident, int draws) {
    Job job;
    job_open(&job, s, streams, queues);
    bool finished = finishes_always(&job, most_resident, draws);
    job_close(&job);
    return !finished;
}

static void try_schedule(const Schedule *s, const char *kind, Counts *counts) {
    Job job;
    job_open(&job, s, PER_CHANNEL, HARDWARE_QUEUES);
    EXPECT(finishes_always(&job, ANY, DRAWS), "%s p %d v %d m %d: hangs", kind, s->num_ranks, s->num_chunks,
           s->num_microbatches);
    if (job.peak > counts->most_at_once) counts->most_at_once = job.peak;
    EXPECT(finishes_always(&job, counts->needed, DRAWS), "%s p %d v %d m %d: hangs with %d kernels on a GPU",
           kind, s->num_ranks, s->num_chunks, s->num_microbatches, counts->needed);
    counts->fewer += !finishes_always(&job, counts->needed - 1, DRAWS);
    job_close(&job);
    counts->one_stream += hangs(s, ONE_STREAM, 0, ANY, 1);
    counts->one_queue += hangs(s, PER_CHANNEL, 1, ANY, DRAWS);
    counts->two_queues += hangs(s, PER_CHANNEL, 2, ANY, DRAWS);
}

static Counts try_all(const ScheduleKind *kind) {
    Counts counts = {.needed = KNOWN[known(kind)].needed};
    for (int i = 0; i < 5 * 3 * 12 * 2; i++) {
        int p = 2 + i % 5, v = 1 + i / 5 % 3, m = 1 + i / 15 % 12, ahead = i / 180 * 2;
        ScheduleSpec shape = {.kind = kind->name, .ranks = p, .chunks = v, .microbatches = m};
        char why[256];
        Schedule s;
        if (schedule_kind_refuse(kind, &shape, why, sizeof why) || (harness_short() && p % 2)) continue;
        create(&s, kind->name, p, v, m, ahead);
        try_schedule(&s, kind->name, &counts);
        schedule_destroy(&s);
    }
    return counts;
}

static void a_stream_for_every_channel(void) {
    for (int i = 0; i < num_schedule_kinds; i++) {
        const ScheduleKind *kind = schedule_kinds[i];
        Counts c = try_all(kind);
        EXPECT(
            c.one_stream && c.fewer && c.one_queue && c.two_queues,
            "%s: hangs %d times with one stream, %d times with %d kernels, %d and %d times with 1 and 2 queues",
            kind->name, c.one_stream, c.fewer, c.needed - 1, c.one_queue, c.two_queues);
        EXPECT(c.most_at_once <= KNOWN[known(kind)].most_at_once, "%s: %d kernels on a GPU", kind->name,
               c.most_at_once);
    }
}

// Messages of both directions, to and from both sides, on as few streams as there are directions.
static void a_stream_for_every_direction_is_too_few(void) {
    static const struct {
        const char *kind;
        int chunks, receive_ahead;
    } rows[] = {{"interleaved", 2, 0}, {"zb-v", 2, 2}};
    for (int i = 0; i < 2; i++) {
        int stuck = 0;
        for (int m = 4; m <= 12; m += 4) {
            Schedule s;
            create(&s, rows[i].kind, 4, rows[i].chunks, m, rows[i].receive_ahead);
            stuck += hangs(&s, PER_DIRECTION, 0, ANY, DRAWS);
            schedule_destroy(&s);
        }
        EXPECT(stuck > 0, "%s finishes", rows[i].kind);
    }
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"a_stream_for_every_channel", a_stream_for_every_channel},
                       {"a_stream_for_every_direction_is_too_few", a_stream_for_every_direction_is_too_few},
                       {0}},
        argc, argv);
}
