// The transport "threads": ranks are threads of this process. Collectives read and write the callers' own memory; of
// the two ends of a message the one that is posted second copies it.
#include "base/cores.h"
#include "comm/shm_collective.h"
#include "comm/wakeup.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NUM_SLOTS = 8, SPINS = 4000 };

// A posted send or receive whose other end is not posted yet. It lives in the operation of the rank that posted it.
typedef struct Post {
    struct Post *next;
    const Call *call;
    int from, to; // ranks in the group
    atomic_bool copied;
} Post;

typedef struct {
    pthread_mutex_t mutex;
    Post *first; // in the order of arrival
} Inbox;

typedef struct Shared Shared;

// The memory that the members of a group share.
struct Shared {
    Shared *next;         // in the list of groups that not all members have joined
    const Shared *parent; // NULL: the world
    int size, num_joined;
    int *members;
    bool *joined;
    ShmSlot *slots;
    ShmEntry *entries;
    Inbox *inboxes; // [size] by receiving rank
    atomic_int users;
};

typedef struct {
    int size, spins;
    bool share_cores; // two ranks or more each
    Wakeup *wakeups;  // [size]
    Rank **ranks;     // [size]
    pthread_mutex_t mutex;
    Shared *unjoined; // under the mutex
    atomic_bool reported;
    atomic_int left;
} ThreadWorld;

typedef struct {
    Group head;
    ThreadWorld *world;
    Shared *shared;
    ShmCollective collectives;
    uint32_t seen; // signals of this rank's wakeup; in the world's group only
} ThreadGroup;

typedef union {
    ShmOp collective;
    Post message;
} ThreadOp;

_Static_assert(sizeof(ThreadOp) <= MAX_OP_BYTES, "room in a checked operation");

static const Transport threads_transport;

// ---- groups ---------------------------------------------------------------------------------------

static Shared *shared_create(const Shared *parent, int size) {
    Shared *s = comm_allocate(1, sizeof *s);
    *s = (Shared){.parent = parent, .size = size};
    s->members = comm_allocate((size_t)size, sizeof *s->members);
    s->joined = comm_allocate((size_t)size, sizeof *s->joined);
    s->slots = aligned_alloc(_Alignof(ShmSlot), NUM_SLOTS * sizeof *s->slots);
    CHECK(s->slots, "no memory for a group of %d ranks", size);
    memset(s->slots, 0, NUM_SLOTS * sizeof *s->slots);
    s->entries = comm_allocate((size_t)NUM_SLOTS * (size_t)size, sizeof *s->entries);
    s->inboxes = comm_allocate((size_t)size, sizeof *s->inboxes);
    for (int i = 0; i < size; i++) pthread_mutex_init(&s->inboxes[i].mutex, NULL);
    atomic_init(&s->users, size);
    return s;
}

static void shared_leave(Shared *s) {
    if (!s || atomic_fetch_sub(&s->users, 1) > 1) return;
    for (int i = 0; i < s->size; i++) pthread_mutex_destroy(&s->inboxes[i].mutex);
    free(s->inboxes);
    free(s->entries);
    free(s->slots);
    free(s->joined);
    free(s->members);
    free(s);
}

// Members find their group in the list by its parent and its members. A rank joins groups in the order in which it
// opens them, so the first group that it has not joined yet is the right one.
static Shared *join(ThreadWorld *world, const Shared *parent, const Group *group) {
    size_t bytes = (size_t)group->size * sizeof *group->members;
    pthread_mutex_lock(&world->mutex);
    Shared **at = &world->unjoined;
    for (; *at; at = &(*at)->next) {
        const Shared *s = *at;
        if (s->parent == parent && s->size == group->size && !s->joined[group->rank] &&
            !memcmp(s->members, group->members, bytes))
            break;
    }
    if (!*at) {
        *at = shared_create(parent, group->size);
        memcpy((*at)->members, group->members, bytes);
    }
    Shared *found = *at;
    found->joined[group->rank] = true;
    if (++found->num_joined == found->size) *at = found->next;
    pthread_mutex_unlock(&world->mutex);
    return found;
}

static void wake_others(void *self) {
    const ThreadGroup *g = self;
    for (int i = 0; i < g->head.size; i++)
        if (i != g->head.rank) wakeup_signal(&g->world->wakeups[g->head.members[i]]);
}

static void open_shm(ThreadGroup *g) {
    g->collectives = (ShmCollective){.rank = g->head.rank,
                                     .size = g->head.size,
                                     .num_slots = NUM_SLOTS,
                                     .slots = g->shared->slots,
                                     .entries = g->shared->entries,
                                     .wake = wake_others,
                                     .last_does_all = g->world->share_cores,
                                     .self = g};
    shm_collective_open(&g->collectives);
}

static Status threads_split(Group *parent, const char *name, const int *ranks, int num_ranks, Group **group) {
    const ThreadGroup *p = (const ThreadGroup *)parent;
    ThreadGroup *g = comm_allocate(1, sizeof *g);
    group_init(&g->head, &threads_transport, name, parent, ranks, num_ranks, 0);
    g->head.one_process = true;
    g->world = p->world;
    g->shared = join(p->world, p->shared, &g->head);
    open_shm(g);
    *group = &g->head;
    return OK;
}

static void threads_close(Group *group) {
    ThreadGroup *g = (ThreadGroup *)group;
    shm_collective_close(&g->collectives);
    shared_leave(g->shared);
    free(g->head.members);
    free(g);
}

// ---- messages ---------------------------------------------------------------------------------------

static bool meets(const Post *a, const Post *b) {
    return a->call->op != b->call->op && a->from == b->from && a->call->channel == b->call->channel;
}

static void copy_message(const ThreadGroup *g, const Post *send, const Post *recv) {
    size_t sent = send->call->count * send->call->element_bytes,
           wanted = recv->call->count * recv->call->element_bytes;
    check_message_size(&g->head, send->from, send->to, send->call->channel, sent, wanted);
    if (sent) memcpy(recv->call->out, send->call->in, sent);
}

static Post *take_partner(Inbox *inbox, Post *mine) {
    pthread_mutex_lock(&inbox->mutex);
    Post **at = &inbox->first;
    while (*at && !meets(*at, mine)) at = &(*at)->next;
    Post *partner = *at;
    if (partner)
        *at = partner->next;
    else
        *at = mine;
    pthread_mutex_unlock(&inbox->mutex);
    return partner;
}

static void post_message(ThreadGroup *g, const Call *call, Post *mine) {
    bool sends = call->op == COMM_SEND;
    mine->call = call;
    mine->from = sends ? g->head.rank : call->peer;
    mine->to = sends ? call->peer : g->head.rank;
    Post *partner = take_partner(&g->shared->inboxes[mine->to], mine);
    if (!partner) return;
    copy_message(g, sends ? mine : partner, sends ? partner : mine);
    atomic_store(&mine->copied, true);
    // From here on the partner's rank may release it.
    atomic_store(&partner->copied, true);
    wakeup_signal(&g->world->wakeups[g->head.members[call->peer]]);
}

// ---- the transport ------------------------------------------------------------------------------------

static void threads_start(Group *group, const Call *call, void *op) {
    ThreadGroup *g = (ThreadGroup *)group;
    ThreadOp *o = op;
    if (is_message(call))
        post_message(g, call, &o->message);
    else
        shm_collective_start(&g->collectives, call, &o->collective);
}

static CallProgress threads_advance(Group *group, const Call *call, void *op) {
    ThreadGroup *g = (ThreadGroup *)group;
    ThreadOp *o = op;
    if (!is_message(call)) return shm_collective_advance(&g->collectives, call, &o->collective);
    return atomic_load(&o->message.copied) ? DONE : STUCK;
}

static void threads_waits_for(Group *group, const Call *call, const void *op, Text *ranks) {
    const ThreadGroup *g = (const ThreadGroup *)group;
    const ThreadOp *o = op;
    for (int r = 0; r < group->size; r++)
        if (is_message(call) ? r == call->peer : shm_collective_waits_for(&g->collectives, &o->collective, r))
            text_add(ranks, " %d", group->members[r]);
}

static void threads_pause(Group *world, int turns) {
    ThreadGroup *g = (ThreadGroup *)world;
    (void)turns;
    wakeup_await(&g->world->wakeups[world->rank], &g->seen, g->world->spins, POLL_S);
}

// The other ranks go on writing while a hanging rank reads what they do; a torn word in its last message does no harm.
__attribute__((no_sanitize("thread"), noinline)) static void copy_rank(const Rank *rank, Rank *seen) {
    const volatile char *doing = rank->doing, *place = rank->place;
    for (size_t i = 0; i + 1 < sizeof seen->doing; i++) seen->doing[i] = doing[i];
    for (size_t i = 0; i + 1 < sizeof seen->place; i++) seen->place[i] = place[i];
    seen->doing[sizeof seen->doing - 1] = seen->place[sizeof seen->place - 1] = 0;
    const volatile int *number = &rank->rank;
    seen->rank = number[0], seen->size = rank->size;
}

static void threads_report(Group *world) {
    ThreadWorld *w = ((ThreadGroup *)world)->world;
    if (atomic_exchange(&w->reported, true)) return;
    for (int i = 0; i < w->size; i++) {
        if (i == world->rank) continue;
        Rank seen;
        char who[64];
        copy_rank(w->ranks[i], &seen);
        rank_describe(&seen, who, sizeof who);
        fprintf(stderr, "  %s is at %s\n", who, *seen.doing ? seen.doing : "an unnamed place");
    }
}

static void threads_wake(Group *group) { wake_others(group); }

static const Transport threads_transport = {.op_bytes = sizeof(ThreadOp),
                                            .follows_addresses = true,
                                            .split = threads_split,
                                            .close = threads_close,
                                            .start = threads_start,
                                            .advance = threads_advance,
                                            .waits_for = threads_waits_for,
                                            .pause = threads_pause,
                                            .wake = threads_wake,
                                            .report = threads_report};

// ---- the launch ---------------------------------------------------------------------------------------

typedef struct {
    ThreadWorld world;
    Shared *shared;
    RankCores *cores; // [size]
    const CommOptions *options;
    RankMain *rank_main;
    void *arg;
    pthread_mutex_t gate; // held until all threads exist
    bool cancelled;       // under the gate
} Launch;

typedef struct {
    Launch *launch;
    Rank rank;
    pthread_t thread;
    Status status;
} Member;

// After an agreed error all ranks leave at about the same time; after any other error they would wait for ever.
static void leave_with_error(ThreadWorld *world, Status status) {
    double deadline = clock_s() + LEAVE_GRACE_S;
    while (atomic_load(&world->left) < world->size) {
        if (clock_s() > deadline) abort_after_error(status);
        usleep(1000);
    }
}

static int threads_each(const CommOptions *options) { return options->threads > 0 ? options->threads : 1; }

static void bind_member(const Launch *launch, int rank) {
    const CommOptions *options = launch->options;
    Cores mine;
    if (options->bind_cores &&
        cores_divide(launch->cores, options->ranks, threads_each(options), rank, world_sysfs(options), &mine))
        cores_bind(&mine);
}

static void *member_main(void *self) {
    Member *me = self;
    Launch *launch = me->launch;
    pthread_mutex_lock(&launch->gate);
    bool cancelled = launch->cancelled;
    pthread_mutex_unlock(&launch->gate);
    if (cancelled) return NULL;
    bind_member(launch, me->rank.rank);
    rank_enter(&me->rank);
    ThreadGroup *g = comm_allocate(1, sizeof *g);
    group_init(&g->head, &threads_transport, "world", NULL, NULL, launch->world.size, me->rank.rank);
    g->head.one_process = true;
    g->world = &launch->world;
    g->shared = launch->shared;
    open_shm(g);
    me->status = world_run(&g->head, launch->options, launch->rank_main, launch->arg);
    atomic_fetch_add(&launch->world.left, 1);
    if (me->status != OK) leave_with_error(&launch->world, me->status);
    rank_enter(NULL);
    return NULL;
}

static int start_members(Launch *launch, Member *members) {
    int started = 0;
    pthread_mutex_lock(&launch->gate);
    for (; started < launch->world.size; started++) {
        Member *m = &members[started];
        *m = (Member){.launch = launch, .rank = {.rank = started, .size = launch->world.size}};
        if (pthread_create(&m->thread, NULL, member_main, m) != 0) break;
    }
    launch->cancelled = started < launch->world.size;
    pthread_mutex_unlock(&launch->gate);
    return started;
}

// The worst status; the first failing rank's message becomes the caller's.
static Status join_members(Member *members, int started) {
    Status worst = OK;
    const Member *first = NULL;
    for (int i = 0; i < started; i++) {
        pthread_join(members[i].thread, NULL);
        if (members[i].status != OK && !first) first = &members[i];
        if (members[i].status > worst) worst = members[i].status;
    }
    return first ? fail(worst, "%s", first->rank.message) : OK;
}

static void launch_open(Launch *launch, Member *members, const CommOptions *options) {
    int size = options->ranks;
    launch->cores = comm_allocate((size_t)size, sizeof *launch->cores);
    for (int i = 0; i < size; i++) launch->cores[i] = world_cores(options, i);
    int cores = options->cores ? options->cores : cores_usable();
    bool crowded = cores / size < threads_each(options);
    launch->options = options;
    launch->world =
        (ThreadWorld){.size = size, .spins = crowded ? 0 : SPINS, .share_cores = 2 * cores <= size};
    launch->world.wakeups = comm_allocate((size_t)size, sizeof(Wakeup));
    launch->world.ranks = comm_allocate((size_t)size, sizeof(Rank *));
    for (int i = 0; i < size; i++) {
        wakeup_open(&launch->world.wakeups[i]);
        launch->world.ranks[i] = &members[i].rank;
    }
    pthread_mutex_init(&launch->world.mutex, NULL);
    pthread_mutex_init(&launch->gate, NULL);
    launch->shared = shared_create(NULL, size);
}

static void launch_close(Launch *launch, bool ran) {
    // Members that ran have left the world's group one by one.
    if (!ran) atomic_store(&launch->shared->users, 1), shared_leave(launch->shared);
    for (int i = 0; i < launch->world.size; i++) wakeup_close(&launch->world.wakeups[i]);
    pthread_mutex_destroy(&launch->world.mutex);
    pthread_mutex_destroy(&launch->gate);
    free(launch->cores);
    free(launch->world.wakeups);
    free(launch->world.ranks);
}

Status threads_launch(const CommOptions *options, RankMain *rank_main, void *arg) {
    int size = options->ranks;
    if (size < 1) return fail(ERR_CONFIG, "%d ranks: at least one", size);
    Launch *launch = comm_allocate(1, sizeof *launch);
    Member *members = comm_allocate((size_t)size, sizeof *members);
    launch_open(launch, members, options);
    launch->rank_main = rank_main;
    launch->arg = arg;
    int started = start_members(launch, members);
    Status status = join_members(members, started);
    if (started < size) status = fail(ERR_OS, "cannot start %d threads: the system gave %d", size, started);
    launch_close(launch, started == size);
    free(members);
    free(launch);
    return status;
}
