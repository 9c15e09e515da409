// The transport "tcp": ranks are processes that a launcher has numbered, torchrun, srun or a loop of a shell, without
// MPI. They meet at rank 0 (meeting.h), exchange messages over connections of their own (post.h), collectives too
// (messages.h), and end together (star.h).
#include "base/beat.h"
#include "base/hash.h"
#include "comm/alarm.h"
#include "comm/messages.h"
#include "comm/orphan.h"
#include "comm/star.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { SPINS = 200 }; // turns of a wait before the core is given up: each is a system call

typedef struct TcpGroup TcpGroup;

typedef struct {
    Rank rank; // first: abort_all finds the world by it
    Meeting meeting;
    Post *post;
    Star *star;
    int spins;
    TcpGroup *groups; // all that are open
} TcpWorld;

struct TcpGroup {
    Group head;
    TcpWorld *world;
    uint64_t number; // tells the messages of groups apart: the same on all ranks of the group
    Messages messages;
    TcpGroup *next;
};

_Static_assert(sizeof(MessagesOp) <= MAX_OP_BYTES, "room in a checked operation");

static const Transport tcp_transport;

// ---- messages of a group ----------------------------------------------------------------------------------

static Mail send_mail(void *self, const void *from, size_t bytes, int to, int tag) {
    TcpGroup *g = self;
    return post_send(g->world->post, g->number, from, bytes, g->head.members[to], tag);
}

static Mail recv_mail(void *self, void *to, size_t bytes, int from, int tag) {
    TcpGroup *g = self;
    return post_recv(g->world->post, g->number, to, bytes, g->head.members[from], tag);
}

static MailState test_mail(void *self, Mail *mail, size_t *bytes) {
    return post_test(((TcpGroup *)self)->world->post, mail, bytes);
}

static CallProgress test_mails(void *self, Mail *mails, int count) {
    const TcpGroup *g = self;
    int left = 0;
    bool moved = false;
    for (int i = 0; i < count; i++) {
        size_t bytes;
        if (mails[i] == MAIL_NONE) continue;
        MailState state = post_test(g->world->post, &mails[i], &bytes);
        CHECK(state != MAIL_TOO_LONG, "group %s: a rank sends %zu bytes of a collective, which are too many",
              g->head.name, bytes);
        moved |= state != MAIL_STUCK;
        left += state != MAIL_DONE;
    }
    return !left ? DONE : moved ? MOVED : STUCK;
}

// ---- groups -----------------------------------------------------------------------------------------------

static void open_group(TcpGroup *g, TcpWorld *world, uint64_t number) {
    g->world = world;
    g->number = number;
    g->next = world->groups;
    world->groups = g;
    messages_open(&g->messages, (MailTable){g, send_mail, recv_mail, test_mail, test_mails, NULL}, &g->head);
}

// All members open the groups of the same ranks in the same order, so they number them alike without a word. Groups
// stay in the list when they are closed: no other gets the number, and with it late messages.
static uint64_t number_of(const TcpWorld *world, const TcpGroup *parent, const Group *head) {
    size_t bytes = (size_t)head->size * sizeof *head->members;
    uint64_t number = hash64_from(head->members, bytes, parent->number);
    for (const TcpGroup *g = world->groups; g; g = g->next)
        if (g->head.size == head->size && !memcmp(g->head.members, head->members, bytes)) number++;
    return number;
}

static Status tcp_split(Group *parent, const char *name, const int *ranks, int num_ranks, Group **group) {
    TcpGroup *p = (TcpGroup *)parent, *g = comm_allocate(1, sizeof *g);
    group_init(&g->head, &tcp_transport, name, parent, ranks, num_ranks, 0);
    open_group(g, p->world, number_of(p->world, p, &g->head));
    *group = &g->head;
    return OK;
}

// It is freed with the world.
static void tcp_close(Group *group) { (void)group; }

static void free_groups(TcpGroup *g) {
    for (TcpGroup *next; g; g = next) {
        next = g->next;
        messages_close(&g->messages);
        free(g->head.members);
        free(g);
    }
}

// ---- the transport ----------------------------------------------------------------------------------------

static void tcp_start(Group *group, const Call *call, void *op) {
    messages_start(&((TcpGroup *)group)->messages, call, op);
}

static CallProgress tcp_advance(Group *group, const Call *call, void *op) {
    return messages_advance(&((TcpGroup *)group)->messages, call, op);
}

static void tcp_waits_for(Group *group, const Call *call, const void *op, Text *ranks) {
    messages_waits_for(&((TcpGroup *)group)->messages, call, op, ranks);
}

static void tcp_pause(Group *world, int turns) {
    TcpWorld *w = ((TcpGroup *)world)->world;
    if (turns >= w->spins) post_poll(w->post, POLL_S);
}

static void tcp_poll(Group *world) { post_poll(((TcpGroup *)world)->world->post, 0); }

static const Transport tcp_transport = {.op_bytes = sizeof(MessagesOp),
                                        .follows_addresses = true,
                                        .split = tcp_split,
                                        .close = tcp_close,
                                        .start = tcp_start,
                                        .advance = tcp_advance,
                                        .waits_for = tcp_waits_for,
                                        .pause = tcp_pause,
                                        .poll = tcp_poll};

// ---- the launch -------------------------------------------------------------------------------------------

static void abort_all(Rank *rank, int status) { star_abort(((TcpWorld *)rank)->star, status); }

// A connection to and from every other rank, where it comes to that.
static void allow_many_files(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur == limit.rlim_max) return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

static bool is_here(const TcpWorld *world, int rank) {
    const Attendee *all = world->meeting.attendees;
    return all[rank].host == all[world->rank.rank].host;
}

static void find_place_here(const TcpWorld *world, Group *group) {
    const Attendee *all = world->meeting.attendees;
    int me = world->rank.rank;
    group->rank_here = 0, group->first_here = me;
    for (int r = me - 1; r >= 0; r--)
        if (all[r].host == all[me].host) group->rank_here++, group->first_here = r;
}

static void find_cores(TcpWorld *world, Group *group, const CommOptions *options) {
    const RankCores own = world_cores(options, group->rank_here);
    RankCores *all = comm_allocate((size_t)group->size, sizeof *all);
    int here = 0, threads = options->threads > 0 ? options->threads : 1;
    Cores mine;
    world_gather(group, options, &own, all, sizeof own);
    for (int r = 0; r < group->size; r++)
        if (is_here(world, r)) all[here++] = all[r];
    bool fits = cores_divide(all, here, threads, group->rank_here, world_sysfs(options), &mine);
    world->spins = fits && world_has_time(here, threads) ? SPINS : 0;
    if (fits && options->bind_cores) cores_bind(&mine);
    free(all);
}

static Status run_as(TcpWorld *world, const CommOptions *options, RankMain *rank_main, void *arg) {
    TcpGroup *g = comm_allocate(1, sizeof *g);
    const Rank *me = &world->rank;
    world->post = post_open(me->rank, me->size, &world->meeting);
    world->star = star_open(me->rank, me->size, &world->meeting, world->post);
    world->rank.abort_job = abort_all;
    group_init(&g->head, &tcp_transport, "world", NULL, NULL, me->size, me->rank);
    find_place_here(world, &g->head);
    open_group(g, world, 0);
    find_cores(world, &g->head, options);
    Status mine = world_run(&g->head, options, rank_main, arg);
    alarm_set("the end of the job", options->timeout_s);
    Status status = star_leave(world->star, mine);
    alarm_clear();
    world->rank.abort_job = NULL;
    free_groups(world->groups);
    star_close(world->star);
    post_close(world->post);
    return status;
}

Status tcp_launch(const CommOptions *options, RankMain *rank_main, void *arg) {
    TcpWorld *world = comm_allocate(1, sizeof *world);
    Rank *caller = rank_current();
    MeetingPlan plan = {.rank = launcher_rank(),
                        .size = launcher_ranks(),
                        .timeout_s = options->timeout_s,
                        .stopped = options->stopped};
    Status status = OK;
    bool alone = true;                        // the message is this rank's own: it has not met the others
    if (getenv(BEAT_VARIABLE)) orphan_kill(); // a supervisor ends all of a run, however it was started
    if (plan.size)
        status = launcher_meeting(plan.host, sizeof plan.host, &plan.port, &plan.job);
    else
        plan.size = 1;
    world->rank = (Rank){.rank = plan.rank, .size = plan.size, .beat = beat_join(plan.rank, plan.size)};
    rank_enter(&world->rank);
    if (status != OK)
        status = fail(status, "%s", caller->message);
    else if (options->ranks && options->ranks != plan.size)
        alone = false, // all ranks say it
            status =
                fail(ERR_CONFIG, "%d ranks are wanted, the launcher started %d", options->ranks, plan.size);
    allow_many_files();
    if (status == OK) {
        status = meeting_hold(&world->meeting, &plan);
        alone = status != OK && *fail_message(); // rank 0 has ended the meeting, and says why
    }
    if (status == OK) status = run_as(world, options, rank_main, arg);
    beat_leave(world->rank.beat, (int)status);
    meeting_close(&world->meeting, plan.size);
    // A launcher ends the job at the first error status: rank 0 gets the time to print its message.
    if (status != OK && plan.rank != 0 && !alone) usleep(500000);
    rank_enter(caller);
    // What all have in common is printed once.
    if (status != OK) fail(status, "%s", plan.rank == 0 || alone ? world->rank.message : "");
    free(world);
    return status;
}
