// The transports "mpi" and "mpi-messages": ranks are processes under mpirun or srun. Ranks of one node work in shared
// memory, 2.5 to 4 times as fast as MPI_Allreduce and without the many calls that MPI needs to advance; all others
// exchange MPI messages. This folder is the module of each kind of MPI (comm/mpi_module.h).
#include "base/beat.h"
#include "comm/alarm.h"
#include "comm/messages.h"
#include "comm/mpi/mail.h"
#include "comm/mpi/node.h"
#include "comm/mpi_module.h"
#include "comm/orphan.h"
#include <malloc.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SPINS = 4000 };

typedef struct MpiGroup MpiGroup;

typedef struct {
    MPI_Comm farewell; // used at the end of the job only
    int *nodes;        // [size] the first rank on the same node, by world rank
    int spins;         // turns of a wait before the core is given up
    bool share_memory, deterministic;
    bool warned_of_small_memory;
    double timeout_s;
    MpiGroup *groups; // all that were opened, the last one first; freed when all ranks have left
} MpiWorld;

struct MpiGroup {
    Group head;
    MpiWorld *world;
    MPI_Comm comm;
    MpiMail mail;
    Messages messages;
    Node node; // zeroed: the group spans nodes or has one rank
    MpiGroup *next;
};

typedef union {
    ShmOp in_shm;
    RingsOp in_rings;
    MessagesOp in_messages;
} MpiOp;

_Static_assert(sizeof(MpiOp) <= MAX_OP_BYTES, "room in a checked operation");

static const Transport mpi_transport;

// ---- groups ---------------------------------------------------------------------------------------------

static bool on_one_node(const MpiGroup *g) {
    for (int i = 1; i < g->head.size; i++)
        if (g->world->nodes[g->head.members[i]] != g->world->nodes[g->head.members[0]]) return false;
    return g->world->share_memory && g->head.size > 1;
}

// Warns once on each node, from the first rank on it: containers often give /dev/shm 64 MB.
static void warn_of_small_memory(const MpiGroup *g) {
    int me = g->head.members[g->head.rank];
    char host[128] = "";
    if (g->world->warned_of_small_memory || g->world->nodes[me] != me) return;
    g->world->warned_of_small_memory = true;
    gethostname(host, sizeof host - 1);
    fprintf(
        stderr,
        "WARNING: %s: /dev/shm has less than the %.0f MiB free that %d ranks need to share memory, so they "
        "exchange MPI messages, which is slower; make it larger (docker run --shm-size=1g, or "
        "mount -o remount,size=1g /dev/shm)\n",
        host, g->node.wanted_bytes / 1048576, g->head.size);
}

static void open_group(MpiGroup *g, MpiWorld *world, MPI_Comm comm) {
    g->world = world;
    g->comm = comm;
    g->next = world->groups;
    world->groups = g;
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    mpi_mail_open(&g->mail, comm, g->head.size);
    messages_open(&g->messages, mpi_mail_table(&g->mail, !world->deterministic), &g->head);
    if (!on_one_node(g)) return;
    node_open(&g->node, comm, &g->head);
    if (g->node.wanted_bytes > 0) warn_of_small_memory(g);
}

static Status mpi_split(Group *parent, const char *name, const int *ranks, int num_ranks, Group **group) {
    MpiGroup *p = (MpiGroup *)parent;
    MpiGroup *g = comm_allocate(1, sizeof *g);
    group_init(&g->head, &mpi_transport, name, parent, ranks, num_ranks, 0);
    MPI_Group all, some;
    MPI_Comm comm;
    char what[64];
    snprintf(what, sizeof what, "the set-up of group %s", name);
    alarm_set(what, p->world->timeout_s);
    MPI_Comm_group(p->comm, &all);
    MPI_Group_incl(all, num_ranks, ranks, &some);
    int rc = MPI_Comm_create_group(p->comm, some, ranks[0], &comm);
    MPI_Group_free(&some);
    MPI_Group_free(&all);
    CHECK(rc == MPI_SUCCESS, "group %s of %d ranks: MPI error %d", name, num_ranks, rc);
    *group = &g->head;
    open_group(g, p->world, comm);
    alarm_clear();
    return OK;
}

// Freeing is collective in MPI, and a rank that leaves with an error must not wait here: see farewell.
static void mpi_close(Group *group) { (void)group; }

static void free_group(MpiGroup *g) {
    node_close(&g->node);
    messages_close(&g->messages);
    mpi_mail_close(&g->mail);
    MPI_Comm_free(&g->comm);
    free(g->head.members);
    free(g);
}

// In the order in which they were opened: that order did not deadlock, so this one cannot.
static void free_groups(MpiGroup *newest) {
    if (!newest) return;
    free_groups(newest->next);
    free_group(newest);
}

// ---- the transport ----------------------------------------------------------------------------------------

static NodeShare *share_of(MpiGroup *g, const Call *call) {
    return &g->node.shares[call->blocking && !is_message(call) ? BLOCKING : STARTED];
}

static void mpi_start(Group *group, const Call *call, void *op) {
    MpiGroup *g = (MpiGroup *)group;
    MpiOp *o = op;
    NodeShare *share = share_of(g, call);
    if (!share->open)
        messages_start(&g->messages, call, &o->in_messages);
    else if (is_message(call))
        rings_start(&g->node.rings, call, &o->in_rings);
    else
        shm_collective_start(&share->collectives, call, &o->in_shm);
}

static CallProgress mpi_advance(Group *group, const Call *call, void *op) {
    MpiGroup *g = (MpiGroup *)group;
    MpiOp *o = op;
    NodeShare *share = share_of(g, call);
    if (!share->open) return messages_advance(&g->messages, call, &o->in_messages);
    if (is_message(call)) return rings_advance(&g->node.rings, call, &o->in_rings);
    return shm_collective_advance(&share->collectives, call, &o->in_shm);
}

static void mpi_waits_for(Group *group, const Call *call, const void *op, Text *ranks) {
    MpiGroup *g = (MpiGroup *)group;
    const MpiOp *o = op;
    const NodeShare *share = share_of(g, call);
    if (!share->open) {
        messages_waits_for(&g->messages, call, &o->in_messages, ranks);
        return;
    }
    for (int r = 0; r < group->size; r++)
        if (is_message(call) ? r == call->peer : shm_collective_waits_for(&share->collectives, &o->in_shm, r))
            text_add(ranks, " %d", group->members[r]);
}

static void mpi_pause(Group *world, int turns) {
    if (turns >= ((MpiGroup *)world)->world->spins) sched_yield();
#if defined(__x86_64__)
    else
        __builtin_ia32_pause();
#endif
}

static const Transport mpi_transport = {.op_bytes = sizeof(MpiOp),
                                        .follows_addresses = true,
                                        .split = mpi_split,
                                        .close = mpi_close,
                                        .start = mpi_start,
                                        .advance = mpi_advance,
                                        .waits_for = mpi_waits_for,
                                        .pause = mpi_pause};

// ---- the launch -----------------------------------------------------------------------------------------

// Measured with Open MPI 4.1 on one node: large temporary buffers that keep their pages and copies through
// shared memory halve the time of large messages; without yielding, more ranks than cores wait for each other
// for whole time slices.
static void tune(void) {
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, -1);
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
}

static void abort_all(Rank *rank, int status) {
    (void)rank;
    MPI_Abort(MPI_COMM_WORLD, status);
}

// The ranks of a node that may use the same processors divide them: all of the node, or those that a launcher
// has put on one socket; one that has processors of its own already keeps them.
static void find_cores(MpiWorld *world, MPI_Comm node, const CommOptions *options) {
    int rank, size, threads = options->threads > 0 ? options->threads : 1;
    MPI_Comm_rank(node, &rank);
    MPI_Comm_size(node, &size);
    RankCores *all = comm_allocate((size_t)size, sizeof *all);
    Cores mine;
    all[rank] = world_cores(options, rank);
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, (int)sizeof *all, MPI_BYTE, node);
    bool fits = cores_divide(all, size, threads, rank, world_sysfs(options), &mine);
    world->spins = fits && world_has_time(size, threads) ? SPINS : 0;
    if (fits && options->bind_cores) cores_bind(&mine);
    free(all);
}

static void find_nodes(MpiWorld *world, int size, const CommOptions *options) {
    MPI_Comm node;
    int rank, first;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
    first = rank;
    MPI_Bcast(&first, 1, MPI_INT, 0, node);
    find_cores(world, node, options);
    MPI_Comm_free(&node);
    world->nodes = comm_allocate((size_t)size, sizeof *world->nodes);
    MPI_Allgather(&first, 1, MPI_INT, world->nodes, 1, MPI_INT, MPI_COMM_WORLD);
}

static int rank_here(const MpiWorld *world, int rank) {
    int before = 0;
    for (int r = 0; r < rank; r++) before += world->nodes[r] == world->nodes[rank];
    return before;
}

// Waits until all ranks have left, then tells them the worst status and the first failing rank's message.
static Status farewell(MpiWorld *world, const Rank *me, Status mine) {
    int all_here = 0, status = (int)mine, worst = OK, first = -1;
    double deadline = clock_s() + LEAVE_GRACE_S;
    MPI_Request request;
    MPI_Ibarrier(world->farewell, &request);
    for (; !all_here; usleep(100)) {
        MPI_Test(&request, &all_here, MPI_STATUS_IGNORE);
        if (!all_here && mine != OK && clock_s() > deadline) abort_after_error(mine);
    }
    int *all = comm_allocate((size_t)me->size, sizeof *all);
    MPI_Allgather(&status, 1, MPI_INT, all, 1, MPI_INT, world->farewell);
    for (int i = me->size - 1; i >= 0; i--) {
        if (all[i] > worst) worst = all[i];
        if (all[i] != OK) first = i;
    }
    free(all);
    if (first < 0) return OK;
    char text[sizeof me->message];
    memcpy(text, me->message, sizeof text);
    MPI_Bcast(text, sizeof text, MPI_CHAR, first, world->farewell);
    return fail((Status)worst, "%s", text);
}

static Status run_as(Rank *rank, const CommOptions *options, RankMain *rank_main, void *arg) {
    MpiWorld world = {.share_memory = !strcmp(options->transport, "mpi"),
                      .deterministic = options->deterministic,
                      .timeout_s = options->timeout_s};
    MPI_Comm comm;
    alarm_set("the start of the job", world.timeout_s);
    MPI_Comm_dup(MPI_COMM_WORLD, &world.farewell);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    find_nodes(&world, rank->size, options);
    MpiGroup *g = comm_allocate(1, sizeof *g);
    group_init(&g->head, &mpi_transport, "world", NULL, NULL, rank->size, rank->rank);
    g->head.rank_here = rank_here(&world, rank->rank);
    g->head.first_here = world.nodes[rank->rank];
    open_group(g, &world, comm);
    alarm_clear();
    Status mine = world_run(&g->head, options, rank_main, arg);
    alarm_set("the end of the job", world.timeout_s);
    Status status = farewell(&world, rank, mine);
    free_groups(world.groups);
    MPI_Comm_free(&world.farewell);
    free(world.nodes);
    return status;
}

// Without this error each process of the job would train a model of its own.
static Status fail_alone(void) {
    char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length;
    MPI_Get_library_version(library, &length);
    library[strcspn(library, ",\n")] = 0;
    return fail(
        ERR_UNAVAILABLE,
        "the launcher started %d processes, but MPI shows each of them itself alone: they do not belong "
        "together; use the mpirun of %s, or srun --mpi=pmix",
        launcher_ranks(), library);
}

#ifdef OPEN_MPI
// Open MPI ends such a process with a text of its own, in which Slurm's option does not occur.
static bool lacks_process_manager(void) {
    return launcher_is_srun() && launcher_ranks() > 1 && !getenv("PMIX_RANK") && !getenv("PMI_RANK") &&
           !getenv("PMI_FD");
}
#else
static bool lacks_process_manager(void) { return false; }
#endif

// MPICH's start leaves standard output without a buffer, and the output of the ranks would mix within lines.
static void write_lines(void) {
    static char lines[1 << 16]; // the stream lives as long as the program
    setvbuf(stdout, lines, _IOLBF, sizeof lines);
}

static Status launch(const CommOptions *options, RankMain *rank_main, void *arg) {
    int initialized, provided = MPI_THREAD_SINGLE;
    if (lacks_process_manager())
        return fail(ERR_UNAVAILABLE,
                    "srun started %d processes without the interface that Open MPI needs: use "
                    "srun --mpi=pmix (srun --mpi=list shows what this Slurm has), or mpirun in the job",
                    launcher_ranks());
    MPI_Initialized(&initialized);
    CHECK(!initialized, "MPI can be started once in a process");
    bool launched = launcher_ranks() > 0;
    if (launched) orphan_kill();
    // A launcher may wait for ever when one of its processes is killed before all are connected.
    bool is_numbered = launched && !launcher_is_variables();
    BeatWriter *beat = is_numbered ? beat_join(launcher_rank(), launcher_ranks()) : NULL;
    tune();
    int rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    if (rc != MPI_SUCCESS) {
        beat_leave(beat, ERR_UNAVAILABLE);
        return fail(ERR_UNAVAILABLE, "MPI cannot be started: its error %d", rc);
    }
    if (launched) write_lines();
    Rank *rank = comm_allocate(1, sizeof *rank), *caller = rank_current();
    *rank = (Rank){.abort_job = abort_all, .beat = beat};
    MPI_Comm_rank(MPI_COMM_WORLD, &rank->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &rank->size);
    rank_enter(rank);
    Status status = OK;
    if (provided < MPI_THREAD_FUNNELED)
        status = fail(ERR_UNAVAILABLE, "this MPI does not allow threads in a process");
    else if (rank->size == 1 && launcher_ranks() > 1)
        status = fail_alone();
    else if (options->ranks && options->ranks != rank->size)
        status = fail(ERR_CONFIG, "%d ranks are wanted, the launcher started %d", options->ranks, rank->size);
    else
        status = run_as(rank, options, rank_main, arg);
    beat_leave(rank->beat, (int)status);
    MPI_Finalize();
    alarm_clear();
    // A launcher ends the job at the first error status: rank 0 gets the time to print its message.
    if (status != OK && rank->rank != 0) usleep(500000);
    rank_enter(caller);
    if (status != OK) fail(status, "%s", rank->rank == 0 ? rank->message : ""); // printed once
    free(rank);
    return status;
}

extern const MpiModule trireme_mpi;
const MpiModule trireme_mpi = {.interface = MPI_INTERFACE, .launch = launch};
