// Walks a schedule, to prove that it cannot hang and to simulate it. Whether a rank can go on depends only on what
// others have posted, never on who runs first, so that one walk in any order stands for all: if it ends, no execution
// hangs. A rank that must wait sleeps until a post on the channel wakes it, so that the time is linear in the number of
// instructions.
#include "layout/walk.h"
#include "layout/buffers.h"
#include "layout/clock.h"
#include "layout/parts.h"
#include <stdlib.h>

typedef struct {
    Instr instr;
    int at;    // its index in the program
    double us; // a send: when it arrives; a receive: when it is posted
} Post;

typedef struct {
    Post *posts;
    int count, capacity;
} Posts;

// One first-in, first-out channel from a rank to another in one direction: the k-th send meets the k-th receive.
typedef struct {
    int from, to, direction;
    Posts sends, receives;
} Channel;

typedef struct {
    Channel *channel; // NULL: nothing was sent
    int ticket;
} Sent;

// `free` is a ring of indices: the buffer that has been free longest comes first.
typedef struct {
    Sent *sent; // [size]: what last left from each buffer
    int *free, size, first_free, num_free;
} Pool;

// One microbatch of one chunk: the numbers of its two receives in their channels, by direction, and its buffers.
typedef struct {
    int ticket[2], buffer[NUM_BUFFER_KINDS];
} Item;

typedef struct {
    int at; // next instruction
    Clock clock;
    Item *items;
    Pool pools[NUM_BUFFER_KINDS];
    const Channel *waits_on; // NULL while it can go on
} Runner;

typedef struct {
    const Schedule *schedule;
    Costs costs;
    bool training;
    Simulation *out; // or NULL
    Channel *channels;
    int num_channels;
    int *leaving; // [rank * chunks + chunk][direction]: the channel of the chunk's sends, -1 for none
    Runner *runners;
    int *awake, first_awake, num_awake; // a ring of ranks
    bool *is_awake;
} Walk;

// ---- set-up -------------------------------------------------------------------------------------------

static void open_channels(Walk *walk) {
    const Schedule *s = walk->schedule;
    size_t most = 2 * (size_t)s->num_ranks * (size_t)s->num_chunks;
    walk->channels = layout_alloc(most, sizeof *walk->channels);
    walk->leaving = layout_alloc(most, sizeof *walk->leaving);
    for (int place = 0, first = 0; place < s->num_ranks * s->num_chunks; place++) {
        int rank = place / s->num_chunks, chunk = place % s->num_chunks;
        if (chunk == 0) first = walk->num_channels;
        for (int direction = 0; direction < 2; direction++) {
            int to = schedule_partner(s, rank, chunk, direction ? OP_SEND_BACKWARD : OP_SEND_FORWARD),
                i = first;
            while (i < walk->num_channels &&
                   (walk->channels[i].to != to || walk->channels[i].direction != direction))
                i++;
            if (to >= 0 && i == walk->num_channels)
                walk->channels[walk->num_channels++] =
                    (Channel){.from = rank, .to = to, .direction = direction};
            walk->leaving[2 * place + direction] = to < 0 ? -1 : i;
        }
    }
}

static void wake(Walk *walk, int rank) {
    if (walk->is_awake[rank]) return;
    walk->is_awake[rank] = true;
    walk->awake[(walk->first_awake + walk->num_awake++) % walk->schedule->num_ranks] = rank;
}

static void open_runner(const Schedule *schedule, int rank, Runner *runner) {
    size_t items = (size_t)schedule->num_chunks * (size_t)schedule->num_microbatches;
    int sizes[NUM_BUFFER_KINDS];
    schedule_pools(schedule, rank, sizes);
    *runner = (Runner){.items = layout_alloc(items, sizeof *runner->items)};
    for (int kind = 0; kind < NUM_BUFFER_KINDS; kind++) {
        size_t size = (size_t)sizes[kind];
        Pool *pool = &runner->pools[kind];
        *pool = (Pool){.size = sizes[kind], .num_free = sizes[kind]};
        pool->sent = layout_alloc(size, sizeof *pool->sent);
        pool->free = layout_alloc(size, sizeof *pool->free);
        for (int i = 0; i < pool->size; i++) pool->free[i] = i;
    }
}

static void close_runner(Runner *runner) {
    for (int kind = 0; kind < NUM_BUFFER_KINDS; kind++) {
        free(runner->pools[kind].free);
        free(runner->pools[kind].sent);
    }
    free(runner->items);
}

static void walk_open(Walk *walk, const Schedule *schedule, ScheduleCosts costs, bool training) {
    size_t ranks = (size_t)schedule->num_ranks;
    *walk = (Walk){.schedule = schedule, .costs = costs_open(schedule, costs), .training = training};
    open_channels(walk);
    walk->runners = layout_alloc(ranks, sizeof *walk->runners);
    walk->awake = layout_alloc(ranks, sizeof *walk->awake);
    walk->is_awake = layout_alloc(ranks, sizeof *walk->is_awake);
    for (int r = 0; r < schedule->num_ranks; r++) open_runner(schedule, r, &walk->runners[r]), wake(walk, r);
}

static void walk_close(Walk *walk) {
    for (int r = 0; r < walk->schedule->num_ranks; r++) close_runner(&walk->runners[r]);
    for (int i = 0; i < walk->num_channels; i++) {
        free(walk->channels[i].receives.posts);
        free(walk->channels[i].sends.posts);
    }
    free(walk->is_awake);
    free(walk->awake);
    free(walk->runners);
    free(walk->leaving);
    free(walk->channels);
    costs_close(&walk->costs);
}

// ---- messages -----------------------------------------------------------------------------------------

static Channel *channel_of(const Walk *walk, int rank, Instr in) {
    const Schedule *s = walk->schedule;
    int direction = (int)schedule_ops[in.op].direction;
    int place = rank * s->num_chunks + in.chunk;
    bool receives = in.op != OP_SEND_FORWARD && in.op != OP_SEND_BACKWARD;
    if (receives) {
        int stage = s->stage[place] + (direction ? 1 : -1);
        if (stage < 0 || stage >= s->num_ranks * s->num_chunks) return NULL;
        place = s->stage_place[stage];
    }
    int channel = walk->leaving[2 * place + direction];
    return channel < 0 ? NULL : &walk->channels[channel];
}

static Item *item_of(const Walk *walk, int rank, int chunk, int microbatch) {
    return &walk->runners[rank].items[(int64_t)chunk * walk->schedule->num_microbatches + microbatch];
}

static int post(Posts *posts, Post entry) {
    if (posts->count == posts->capacity) {
        posts->capacity = posts->capacity ? 2 * posts->capacity : 16;
        posts->posts = realloc(posts->posts, (size_t)posts->capacity * sizeof entry);
        CHECK(posts->posts, "no memory for %d messages", posts->capacity);
    }
    posts->posts[posts->count] = entry;
    return posts->count++;
}

// Compares the two ends of message `ticket` once both are posted.
static Status match(const Walk *walk, const Channel *channel, int ticket) {
    if (ticket >= channel->sends.count || ticket >= channel->receives.count) return OK;
    Post sent = channel->sends.posts[ticket], received = channel->receives.posts[ticket];
    int from = schedule_stage(walk->schedule, channel->from, sent.instr.chunk);
    int expected =
        schedule_stage(walk->schedule, channel->to, received.instr.chunk) + (channel->direction ? 1 : -1);
    if (from == expected && sent.instr.microbatch == received.instr.microbatch) return OK;
    char text[16];
    instr_print(walk->schedule, received.instr, text);
    return fail(ERR_DATA, "rank %d instr %d: %s meets microbatch %d of stage %d", channel->to, received.at,
                text, sent.instr.microbatch, from);
}

// Posts a message: a send that arrives at `us`, or a receive. Sets in `sent` the message that the buffer waits for when
// it is freed.
static Status run_message(Walk *walk, int rank, Instr in, double us, Sent *sent) {
    Runner *self = &walk->runners[rank];
    Channel *channel = channel_of(walk, rank, in);
    bool sends = schedule_ops[in.op].kind == SEND;
    int ticket = post(sends ? &channel->sends : &channel->receives, (Post){in, self->at, us});
    if (sends)
        *sent = (Sent){channel, ticket};
    else
        item_of(walk, rank, in.chunk, in.microbatch)->ticket[schedule_ops[in.op].direction] = ticket;
    wake(walk, sends ? channel->to : channel->from);
    return match(walk, channel, ticket);
}

// ---- waiting ------------------------------------------------------------------------------------------

// Returns whether post `ticket` has been made. If so, moves `start_us` to its time; if not, makes the rank wait.
static bool posted(Runner *self, const Channel *channel, const Posts *posts, int ticket, double *start_us) {
    if (ticket >= posts->count) {
        self->waits_on = channel;
        return false;
    }
    if (posts->posts[ticket].us > *start_us) *start_us = posts->posts[ticket].us;
    return true;
}

static bool input_arrived(const Walk *walk, int rank, Instr in, double *start_us) {
    bool consumes = schedule_ops[in.op].kind == COMPUTE && in.op != OP_BACKWARD_WEIGHT;
    const Channel *channel = consumes ? channel_of(walk, rank, in) : NULL;
    if (!channel) return true;
    int ticket = item_of(walk, rank, in.chunk, in.microbatch)->ticket[schedule_ops[in.op].direction];
    return posted(&walk->runners[rank], channel, &channel->sends, ticket, start_us);
}

// Returns whether the messages that were last sent from the buffers to be allocated have posted receives.
static bool buffers_left(Runner *self, const BufferChanges *changes, double *start_us) {
    for (int i = 0; i < changes->count; i++) {
        if (!changes->items[i].alloc) continue;
        const Pool *pool = &self->pools[changes->items[i].kind];
        CHECK(pool->num_free > 0, "more than %d buffers for %s in use", pool->size,
              buffer_names[changes->items[i].kind]);
        Sent sent = pool->sent[pool->free[pool->first_free]];
        if (sent.channel && !posted(self, sent.channel, &sent.channel->receives, sent.ticket, start_us))
            return false;
    }
    return true;
}

static void alloc_buffer(Pool *pool, int *buffer) {
    *buffer = pool->free[pool->first_free];
    pool->sent[*buffer] = (Sent){0};
    pool->first_free = (pool->first_free + 1) % pool->size;
    pool->num_free--;
}

static void free_buffer(Pool *pool, int buffer, Sent sent) {
    CHECK(pool->num_free < pool->size, "more than %d buffers of one kind are freed", pool->size);
    pool->sent[buffer] = sent;
    pool->free[(pool->first_free + pool->num_free++) % pool->size] = buffer;
}

static void change_buffers(const Walk *walk, int rank, int microbatch, const BufferChanges *changes,
                           bool alloc, Sent sent) {
    for (int i = 0; i < changes->count; i++) {
        BufferChange change = changes->items[i];
        if (change.alloc != alloc) continue;
        Pool *pool = &walk->runners[rank].pools[change.kind];
        int *buffer = &item_of(walk, rank, change.chunk, microbatch)->buffer[change.kind];
        if (alloc)
            alloc_buffer(pool, buffer);
        else
            free_buffer(pool, *buffer, sent);
    }
}

// ---- the walk -----------------------------------------------------------------------------------------

static Span run_reduce(const Walk *walk, int rank, int stage) {
    Clock *clock = &walk->runners[rank].clock;
    if (walk->out && walk->out->gradients_us) walk->out->gradients_us[stage] = clock->now_us;
    double start_us = clock_reduce(clock, walk->costs.stages[stage].reduce_us);
    return (Span){start_us, clock->reduced_us};
}

static Span run_timed(const Walk *walk, int rank, Instr in, double ready_us) {
    Clock *clock = &walk->runners[rank].clock;
    ScheduleOpInfo info = schedule_ops[in.op];
    int stage = schedule_stage(walk->schedule, rank, in.chunk);
    const StageCosts *costs = &walk->costs.stages[stage];
    if (info.kind == COMPUTE) {
        Edge from = in.op == OP_BACKWARD_WEIGHT ? (Edge){0} : costs->edges[!info.direction];
        double us = costs_compute_us(&walk->costs, walk->schedule, rank, &walk->schedule->programs[rank],
                                     walk->runners[rank].at);
        double start_us = clock_compute(clock, ready_us, from, us);
        return (Span){start_us, clock->now_us};
    }
    clock->now_us = ready_us;
    if (info.kind == REDUCE) return run_reduce(walk, rank, stage);
    return (Span){ready_us, info.kind == SEND ? clock_send(clock, costs->edges[info.direction]) : ready_us};
}

static bool can_begin(const Walk *walk, int rank, Instr in, const BufferChanges *changes, double *ready_us) {
    return input_arrived(walk, rank, in, ready_us) && buffers_left(&walk->runners[rank], changes, ready_us);
}

// Returns whether the backward that runs together with the instruction, if there is one, can begin, too.
static bool other_can_begin(const Walk *walk, int rank, double *ready_us) {
    const Program *program = &walk->schedule->programs[rank];
    int at = walk->runners[rank].at;
    if (!walk->training || !program->instrs[at].pairs) return true;
    Instr other = program->instrs[at + 1];
    BufferChanges changes = schedule_buffer_changes(walk->schedule, rank, other, true);
    return can_begin(walk, rank, other, &changes, ready_us);
}

static Status step(Walk *walk, int rank, Instr in) {
    Runner *self = &walk->runners[rank];
    OpKind kind = schedule_ops[in.op].kind;
    if (!walk->training && schedule_ops[in.op].direction == BACKWARDS) return OK;
    BufferChanges changes = schedule_buffer_changes(walk->schedule, rank, in, walk->training);
    double ready_us = self->clock.now_us;
    Sent sent = {0};
    if (!can_begin(walk, rank, in, &changes, &ready_us) || !other_can_begin(walk, rank, &ready_us)) return OK;
    change_buffers(walk, rank, in.microbatch, &changes, true, sent);
    Span span = run_timed(walk, rank, in, ready_us);
    if (kind == SEND || kind == RECV) TRY(run_message(walk, rank, in, span.end_us, &sent));
    change_buffers(walk, rank, in.microbatch, &changes, false, sent);
    if (walk->out && walk->out->spans) walk->out->spans[rank][self->at] = span;
    return OK;
}

static Status run_until_it_waits(Walk *walk, int rank) {
    const Program *program = &walk->schedule->programs[rank];
    Runner *self = &walk->runners[rank];
    self->waits_on = NULL;
    while (self->at < program->count) {
        TRY(step(walk, rank, program->instrs[self->at]));
        if (self->waits_on) break;
        self->at++;
    }
    return OK;
}

static bool ended(const Walk *walk, int rank) { return !walk->runners[rank].waits_on; }

// Adds the name of a rank that is stuck and of the rank that it waits for. Returns the latter; -1: it has ended.
static int report_wait(const Walk *walk, int rank, Text *out) {
    const Runner *self = &walk->runners[rank];
    bool receives = self->waits_on->to == rank;
    int other = receives ? self->waits_on->from : self->waits_on->to;
    char text[16];
    instr_print(walk->schedule, walk->schedule->programs[rank].instrs[self->at], text);
    text_add(out, "%srank %d instr %d: %s waits for rank %d to %s", out->size ? "; " : "", rank, self->at,
             text, other, receives ? "send" : "receive");
    if (!ended(walk, other)) return other;
    text_add(out, ", which has ended");
    return -1;
}

// Follows the waiting ranks from the first that is stuck until the chain meets itself.
static Status report_deadlock(const Walk *walk, int first) {
    enum { MAX_NAMED = 8 };
    Text chain = {0};
    int named[MAX_NAMED], num_named = 0;
    for (int rank = first; rank >= 0 && num_named < MAX_NAMED;) {
        named[num_named++] = rank;
        rank = report_wait(walk, rank, &chain);
        for (int i = 0; i < num_named; i++)
            if (named[i] == rank) rank = -1;
    }
    Status status = fail(ERR_DATA, "deadlock: %s", text_string(&chain));
    text_free(&chain);
    return status;
}

// Every receive is consumed by a compute, and every message has one sender and one receiver, so that nothing is left
// when all ranks have ended.
static Status check_end(const Walk *walk) {
    for (int r = 0; r < walk->schedule->num_ranks; r++)
        if (!ended(walk, r)) return report_deadlock(walk, r);
    return OK;
}

static Status walk_all(Walk *walk) {
    while (walk->num_awake) {
        int rank = walk->awake[walk->first_awake];
        walk->first_awake = (walk->first_awake + 1) % walk->schedule->num_ranks;
        walk->num_awake--;
        walk->is_awake[rank] = false;
        TRY(run_until_it_waits(walk, rank));
    }
    return check_end(walk);
}

Status schedule_walk(const Schedule *schedule, ScheduleCosts costs, bool training, Simulation *out) {
    Walk walk;
    walk_open(&walk, schedule, costs, training);
    walk.out = out;
    Status status = walk_all(&walk);
    for (int r = 0; out && r < schedule->num_ranks; r++) simulation_add(out, r, &walk.runners[r].clock);
    walk_close(&walk);
    return status;
}

void schedule_simulate(const Schedule *schedule, ScheduleCosts costs, Simulation *out) {
    simulation_open(out, schedule);
    out->spans = layout_alloc((size_t)schedule->num_ranks, sizeof *out->spans);
    for (int r = 0; r < schedule->num_ranks; r++) {
        out->peak_stash[r] = schedule_peak_stash(schedule, r);
        out->spans[r] = layout_alloc((size_t)schedule->programs[r].count, sizeof **out->spans);
    }
    Status status = schedule_walk(schedule, costs, true, out);
    CHECK(status == OK, "an unverified schedule is simulated: %s", fail_message());
    simulation_sum_up(out, schedule->num_ranks);
}
