// Opens, watches and closes the links of a group of the device transport "nccl".
#include "comm/nccl_group.h"
#include "comm/nccl.h"
#include "comm/queue.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// Thread blocks that an operation takes of a GPU: up to eight channels of a rank and two groups run beside each other.
enum { CHANNEL_BLOCKS = 4, GROUP_BLOCKS = 16 };
enum { LEAST_SLOT_BYTES = 256, MOST_SLOT_BYTES = 2 << 20, MOST_STAGING_BYTES = 32 << 20 };
#define WATCH_S 0.1 // links are asked for errors this often

// ---- waiting for a link -----------------------------------------------------------------------------------

bool nccl_ready(const NcclWay *way) {
    bool ready;
    Status status = link_ready(way->link, &ready);
    if (status != OK) abort_after_error(status);
    return ready;
}

typedef bool Condition(NcclGroup *group, NcclWay *way, Status *status);

static bool link_is_ready(NcclGroup *g, NcclWay *way, Status *status) {
    bool ready;
    (void)g;
    *status = link_ready(way->link, &ready);
    return *status != OK || ready;
}

static bool stream_is_through(NcclGroup *g, NcclWay *way, Status *status) {
    (void)way, (void)status;
    return event_wait_for(g->device, g->last, 1e-3);
}

// The host waits while links are opened and closed, no longer than any other wait may last.
static Status wait_until(NcclGroup *g, NcclWay *way, Condition *holds, const char *doing) {
    double limit_s = watchdog_limit_s(g->comm->world);
    WaitTime time = wait_time_start();
    Status status = OK;
    while (!holds(g, way, &status)) {
        wait_time_add(&time);
        if (time.waited_s > limit_s)
            return fail(ERR_HANG,
                        "%s the link of %s has waited %.3g s for its other ranks (the limit; "
                        "--distributed-timeout-minutes sets another)",
                        doing, way->name, limit_s);
        queue_poll_ranks(g->comm->world);
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
    return status;
}

// ---- opening a link ---------------------------------------------------------------------------------------

static Status begin_link(NcclGroup *g, NcclWay *way, LinkSpec spec) {
    spec.name = way->name;
    TRY(device_side_stream_open(g->device, way->name, &way->stream));
    return link_open(g->device, &spec, &way->link);
}

static Status complete_link(NcclGroup *g, NcclWay *way) {
    return wait_until(g, way, link_is_ready, "opening");
}

// The stream of the first use; the host waits until it is over.
static Status end_first_use(NcclGroup *g, NcclWay *way) {
    link_end(way->link);
    TRY(wait_until(g, way, link_is_ready, "first using"));
    g->last = event_record(g->device, way->stream);
    return wait_until(g, way, stream_is_through, "first using");
}

static Tensor bytes_at(const NcclGroup *g, int slot) {
    return (Tensor){g->staging + (size_t)slot * g->slot_bytes, 1, 1, F32};
}

// Connections are made at the first use of a kind: an exchange with everybody, and a gather.
static Status use_collectives(NcclGroup *g) {
    NcclWay *way = &g->collectives;
    link_begin(way->link);
    for (int i = 1; i < g->head.size; i++) {
        int to = (g->head.rank + i) % g->head.size, from = (g->head.rank - i + g->head.size) % g->head.size;
        link_send(way->link, way->stream, bytes_at(g, 0), to);
        link_receive(way->link, way->stream, bytes_at(g, i), from);
    }
    TRY(end_first_use(g, way));
    Tensor all = {g->staging, 1, g->head.size, F32};
    link_begin(way->link);
    link_gather(way->link, way->stream, tensor_part(all, g->head.rank, 1), all);
    return end_first_use(g, way);
}

static size_t slot_bytes(int ranks) {
    size_t share = MOST_STAGING_BYTES / (size_t)ranks / LEAST_SLOT_BYTES * LEAST_SLOT_BYTES;
    if (share < LEAST_SLOT_BYTES) share = LEAST_SLOT_BYTES;
    return share < MOST_SLOT_BYTES ? share : MOST_SLOT_BYTES;
}

size_t nccl_staging_bytes(int ranks) { return ranks > 1 ? (size_t)ranks * slot_bytes(ranks) : 0; }

static Status take_staging(NcclGroup *g) {
    Memory memory = device_memory(g->device);
    const char *why = "";
    size_t bytes = nccl_staging_bytes(g->head.size);
    g->slot_bytes = slot_bytes(g->head.size);
    g->staging = memory.take(memory.self, "staging", bytes, &why);
    if (g->staging) return OK;
    return fail(ERR_OS, "no memory for the staging buffer of group %s: %.1f MiB (%s)", g->head.name,
                (double)bytes / 0x1p20, why);
}

// Collective over the group; every step of it succeeds on all ranks or on none.
static Status open_collectives(NcclGroup *g) {
    LinkSpec spec = {.rank = g->head.rank, .size = g->head.size, .max_blocks = GROUP_BLOCKS};
    Status status = take_staging(g);
    snprintf(g->collectives.name, sizeof g->collectives.name, "%s", g->head.name);
    if (status == OK && spec.rank == 0) status = link_new_id(g->device, &spec.id);
    TRY(comm_agree(g->comm, status));
    comm_broadcast_host(g->comm, &spec.id, sizeof spec.id, 0);
    TRY(comm_agree(g->comm, begin_link(g, &g->collectives, spec)));
    TRY(comm_agree(g->comm, complete_link(g, &g->collectives)));
    return comm_agree(g->comm, use_collectives(g));
}

// ---- channels ---------------------------------------------------------------------------------------------

static NcclWay *channel_of(const NcclGroup *g, int from, int to, int channel) {
    NcclWay *way = g->channels;
    while (way && (way->from != from || way->to != to || way->channel != channel)) way = way->next;
    return way;
}

typedef struct {
    LinkId id;
    Status status;
    char text[512]; // why it is not OK
} ChannelMessage;

// The ends exchange their statuses, and the sender's id. What has failed at one end fails at the other.
static Status agree(NcclGroup *g, const NcclWay *way, Status mine, LinkId *id) {
    ChannelMessage message = {*id, mine, ""}, theirs;
    bool sends = g->head.rank == way->from;
    int other = sends ? way->to : way->from;
    if (mine != OK) snprintf(message.text, sizeof message.text, "%s", fail_message());
    if (sends) comm_send_host(g->comm, &message, sizeof message, other);
    comm_recv_host(g->comm, &theirs, sizeof theirs, other);
    if (!sends) comm_send_host(g->comm, &message, sizeof message, other);
    if (!sends) *id = theirs.id;
    if (mine != OK || theirs.status == OK) return mine;
    return fail(theirs.status, "rank %d could not open the link of %s: %s", g->head.members[other], way->name,
                theirs.text);
}

static Status use_channel(NcclGroup *g, NcclWay *way) {
    link_begin(way->link);
    if (g->head.rank == way->from)
        link_send(way->link, way->stream, bytes_at(g, 0), 1);
    else
        link_receive(way->link, way->stream, bytes_at(g, 0), 0);
    return end_first_use(g, way);
}

static Status open_channel(NcclGroup *g, NcclWay *way) {
    LinkSpec spec = {.rank = g->head.rank == way->to, .size = 2, .max_blocks = CHANNEL_BLOCKS};
    Status status =
        g->failed ? ERR_OS : links_check_environment(); // the message is that of the first failure
    if (status == OK && spec.rank == 0) status = link_new_id(g->device, &spec.id);
    TRY(agree(g, way, status, &spec.id));
    TRY(agree(g, way, begin_link(g, way, spec), &spec.id));
    TRY(agree(g, way, complete_link(g, way), &spec.id));
    return use_channel(g, way);
}

Status nccl_open_channel(Group *group, int from, int to, int channel) {
    NcclGroup *g = (NcclGroup *)group;
    if (channel_of(g, from, to, channel)) return OK;
    NcclWay *way = comm_allocate(1, sizeof *way);
    *way = (NcclWay){.next = g->channels, .from = from, .to = to, .channel = channel};
    snprintf(way->name, sizeof way->name, "%.20s %d to %d, channel %d", group->name, from, to, channel);
    g->channels = way;
    Status status = open_channel(g, way);
    g->failed |= status != OK;
    return status;
}

NcclWay *nccl_way(NcclGroup *g, const Call *call) {
    if (is_message(call)) {
        bool sends = call->op == COMM_SEND;
        int from = sends ? g->head.rank : call->peer, to = sends ? call->peer : g->head.rank;
        NcclWay *way = channel_of(g, from, to, call->channel);
        CHECK(way, "channel %d of group %s from %d to %d was not opened", call->channel, g->head.name, from,
              to);
        return way;
    }
    return &g->collectives;
}

// ---- watching and closing ---------------------------------------------------------------------------------

void nccl_watch(Group *group) {
    NcclGroup *g = (NcclGroup *)group;
    double now_s = clock_s();
    if (now_s - g->watched_s < WATCH_S) return;
    g->watched_s = now_s;
    if (g->collectives.link) nccl_ready(&g->collectives);
    for (NcclWay *way = g->channels; way; way = way->next)
        if (way->link) nccl_ready(way);
}

static Status close_link(NcclGroup *g, NcclWay *way) {
    TRY(wait_until(g, way, link_is_ready, "closing"));
    link_close(way->link);
    return wait_until(g, way, link_is_ready, "closing");
}

// Where the ranks do not close them together, links are ended as they are.
static void close_way(NcclGroup *g, NcclWay *way) {
    if (way->link && !g->failed) g->failed = close_link(g, way) != OK;
    if (g->failed)
        link_abort(way->link);
    else if (way->link)
        link_free(way->link);
    device_stream_close(g->device, way->stream);
}

void nccl_close(Group *group) {
    NcclGroup *g = (NcclGroup *)group;
    for (NcclWay *way; (way = g->channels);) {
        g->channels = way->next;
        close_way(g, way);
        free(way);
    }
    close_way(g, &g->collectives);
    if (g->staging) {
        Memory memory = device_memory(g->device);
        memory.give_back(memory.self, g->staging, nccl_staging_bytes(group->size));
    }
    free(g);
}

// ---- opening ----------------------------------------------------------------------------------------------

// NCCL refuses ranks that share a GPU, unless its newest versions are told otherwise.
static Status check_units(const DeviceUnit *units, int ranks) {
    const char *shares = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    if (shares && !strcmp(shares, "1")) return OK;
    for (int b = 0; b < ranks; b++)
        for (int a = 0; a < b && *units[b].name; a++)
            if (!memcmp(units[a].id, units[b].id, sizeof units[a].id))
                return fail(
                    ERR_CONFIG,
                    "--device-transport nccl needs a GPU for each rank, and ranks %d and %d share %s: use as "
                    "many ranks as there are GPUs (`trireme devices` lists them), or leave it at auto",
                    a, b, units[b].name);
    return OK;
}

Status nccl_check(Comm *world, Device *device) {
    DeviceUnit mine = device_unit(device);
    DeviceUnit *units = comm_allocate((size_t)comm_size(world), sizeof *units);
    comm_all_gather_host(world, &mine, units, sizeof mine);
    Status status = check_units(units, comm_size(world));
    free(units);
    return status == OK ? links_check(device) : status;
}

// Ranks of different versions cannot be linked: rank 0's is compared with all others'.
static Status compare_versions(Comm *comm, Device *device) {
    char version[32] = "";
    Text line = {0};
    TRY(comm_agree(comm, links_version(device, version)));
    text_add(&line, "the version of NCCL\t%s\n", version);
    Status status = comm_compare(comm, text_string(&line));
    text_free(&line);
    return status;
}

Status nccl_open(Comm *comm, Device *device, Group **group) {
    *group = NULL;
    if (comm == &comm->world->comm) return compare_versions(comm, device);
    NcclGroup *g = comm_allocate(1, sizeof *g);
    g->head = *comm->group;
    g->head.transport = &nccl_transport;
    g->head.polled = true;
    g->comm = comm;
    g->device = device;
    g->max_parts = MAX_PEERS;
    g->deterministic = comm->world->options->deterministic;
    Status status = open_collectives(g);
    g->failed = status != OK;
    if (status == OK)
        *group = &g->head;
    else
        nccl_close(&g->head);
    return status;
}
