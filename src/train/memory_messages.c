// Sends files of checkpoints in memory between machines: copies to the next one, and what a machine lacks at a restart.
#include "base/file.h"
#include "train/memory_store.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void shard_path(char path[4200], const CheckpointNames *names, int rank) {
    snprintf(path, 4200, "%s/rank-%05d.safetensors", names->temporary, rank);
}

// ---- who has whose copy -------------------------------------------------------------------------

// The machine after the one of `first`; the last one is followed by the first.
static int machine_after(const MemoryStore *store, int first) {
    for (int r = first + 1; r < comm_size(store->world); r++)
        if (store->machines[r] == r) return r;
    return store->machines[0];
}

static int ranks_of(const MemoryStore *store, int machine, int before) {
    int count = 0;
    for (int r = 0; r < before; r++) count += store->machines[r] == machine;
    return count;
}

int store_buddy(const MemoryStore *store, int rank) {
    if (store->num_machines < 2) return -1;
    int size = comm_size(store->world), next = machine_after(store, store->machines[rank]);
    int wanted = ranks_of(store, store->machines[rank], rank) % ranks_of(store, next, size);
    for (int r = next; r < size; r++)
        if (store->machines[r] == next && wanted-- == 0) return r;
    CHECK(false, "machine %d has too few ranks", next);
}

// ---- copies for the next machine ----------------------------------------------------------------

void store_share_sizes(MemoryStore *store, const CheckpointNames *names) {
    int ranks = comm_size(store->world), me = comm_rank(store->world);
    char path[4200];
    struct stat st;
    shard_path(path, names, me);
    int64_t size = stat(path, &st) == 0 ? st.st_size : 0; // a rank without slices has none
    int64_t *sizes = calloc((size_t)ranks, sizeof *sizes);
    if (!store->received) store->received = calloc((size_t)ranks, sizeof *store->received);
    CHECK(sizes && store->received, "no memory for the sizes of %d files", ranks);
    comm_all_gather_host(store->world, &size, sizes, sizeof size);
    store->sent = (FileMessage){.peer = store_buddy(store, me), .size = size};
    store->num_received = 0;
    for (int r = 0; r < ranks; r++)
        if (sizes[r] && store_buddy(store, r) == me)
            store->received[store->num_received++] = (FileMessage){.peer = r, .size = sizes[r]};
    free(sizes);
}

// Space is taken before the file is mapped: a write to a mapping that finds none would kill the process.
static Status map(FileMessage *message, const char *path, bool is_new) {
    int fd = open(path, (is_new ? O_RDWR | O_CREAT | O_EXCL : O_RDONLY) | O_CLOEXEC, 0666);
    if (fd < 0) return fail(create_status(), "%s: cannot open: %s", path, strerror(errno));
    int error = is_new ? posix_fallocate(fd, 0, (off_t)message->size) : 0;
    void *bytes = MAP_FAILED;
    if (!error) {
        bytes =
            mmap(NULL, (size_t)message->size, is_new ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
        error = errno;
    }
    close(fd);
    if (bytes == MAP_FAILED) {
        errno = error;
        return fail(create_status(), "%s: cannot map %" PRId64 " bytes: %s", path, message->size,
                    strerror(error));
    }
    message->bytes = bytes;
    return OK;
}

static void unmap(FileMessage *message) {
    if (message->bytes) munmap(message->bytes, (size_t)message->size);
    message->bytes = NULL;
}

static void unmap_all(MemoryStore *store) {
    unmap(&store->sent);
    for (int i = 0; i < store->num_received; i++) unmap(&store->received[i]);
}

static Status map_all(MemoryStore *store, const CheckpointNames *names) {
    char path[4200];
    shard_path(path, names, comm_rank(store->world));
    if (store->sent.size) TRY(map(&store->sent, path, false));
    for (int i = 0; i < store->num_received; i++) {
        shard_path(path, names, store->received[i].peer);
        TRY(map(&store->received[i], path, true));
    }
    return OK;
}

void store_abandon_exchange(MemoryStore *store) { unmap_all(store); }

Status store_prepare(MemoryStore *store, const CheckpointNames *names) {
    Status status = map_all(store, names);
    if (status != OK) unmap_all(store);
    return status;
}

void store_exchange(MemoryStore *store) {
    Comm *world = store->world;
    for (int i = 0; i < store->num_received; i++) {
        FileMessage *m = &store->received[i];
        m->request = comm_recv_host_start(world, m->bytes, (size_t)m->size, m->peer);
    }
    FileMessage *m = &store->sent;
    if (m->size) m->request = comm_send_host_start(world, m->bytes, (size_t)m->size, m->peer);
}

bool store_exchange_is_over(MemoryStore *store) {
    bool over = comm_done(store->world, &store->sent.request);
    for (int i = 0; i < store->num_received; i++)
        over = comm_done(store->world, &store->received[i].request) && over;
    return over;
}

void store_finish_exchange(MemoryStore *store) {
    for (int i = 0; i < store->num_received; i++) comm_wait(store->world, NULL, &store->received[i].request);
    comm_wait(store->world, NULL, &store->sent.request);
    unmap_all(store);
}

// ---- what there is ------------------------------------------------------------------------------

// A line for each checkpoint: step, hash of the manifest, and which files are there. What is damaged begins with '!'.
static Status describe(const MemoryStore *store, Text *out) {
    int64_t *steps = NULL;
    int count = 0;
    TRY(checkpoint_steps(store->folder, &steps, &count));
    for (int i = 0; i < count; i++) {
        CheckpointPart part;
        if (checkpoint_part(store->folder, steps[i], &part) != OK) {
            text_add(out, "!%" PRId64 " %s\n", steps[i], fail_message());
            continue;
        }
        text_add(out, "%" PRId64 " %016" PRIx64 " ", steps[i], part.hash);
        for (int f = 0; f < part.count; f++) text_add(out, "%c", part.present[f] ? '1' : '0');
        text_add(out, "\n");
        checkpoint_part_free(&part);
    }
    free(steps);
    return OK;
}

static void add_holding(MemoryStore *store, int machine, const char *line, int size) {
    Holding h = {.machine = machine};
    int at = 0;
    if (sscanf(line, "%" SCNd64 " %" SCNx64 " %n", &h.step, &h.hash, &at) != 2 || at >= size) return;
    h.count = size - at;
    h.present = strndup(line + at, (size_t)h.count);
    store->holdings = realloc(store->holdings, ((size_t)store->num_holdings + 1) * sizeof *store->holdings);
    CHECK(h.present && store->holdings, "no memory for a list of checkpoints");
    store->holdings[store->num_holdings++] = h;
}

static void add_lines(MemoryStore *store, int machine, const char *lines, int64_t on_disk, Text *why) {
    for (const char *end; (end = strchr(lines, '\n')); lines = end + 1) {
        int64_t step = 0;
        int at = 0, size = (int)(end - lines);
        if (*lines != '!')
            add_holding(store, machine, lines, size);
        else if (sscanf(lines, "!%" SCNd64 " %n", &step, &at) == 1 && step > on_disk)
            text_add(why, "%s%.*s", why->size ? "; " : "", size - at, lines + at);
    }
}

static bool is_same(const Holding *a, const Holding *b) {
    return a->step == b->step && a->hash == b->hash && a->count == b->count;
}

// Whether the machines that have this checkpoint have each of its files.
static bool is_whole(const MemoryStore *store, const Holding *h) {
    for (int f = 0; f < h->count; f++) {
        bool there = false;
        for (int i = 0; i < store->num_holdings; i++) {
            const Holding *other = &store->holdings[i];
            there |= is_same(other, h) && other->present[f] == '1';
        }
        if (!there) return false;
    }
    return true;
}

static void add_incomplete(const MemoryStore *store, int64_t on_disk, Text *why) {
    for (int i = 0; i < store->num_holdings; i++) {
        const Holding *h = &store->holdings[i];
        if (h->step > on_disk && !is_whole(store, h))
            text_add(why, "%s%s/step-%08" PRId64 ": some of its %d files are in no machine's memory",
                     why->size ? "; " : "", store->folder, h->step, h->count);
    }
}

Status store_survey(MemoryStore *store, int64_t on_disk, Text *why) {
    if (!store->world) return OK;
    Comm *world = store->world;
    Text mine = {0};
    TRY(comm_agree(world, store_is_first(store) ? describe(store, &mine) : OK));
    double most = (double)mine.size;
    comm_all_reduce_host(world, &most, 1, REDUCE_MAX);
    size_t stride = (size_t)most + 1;
    char *own = calloc(1, stride), *all = calloc((size_t)comm_size(world), stride);
    CHECK(own && all, "no memory for the checkpoints of %d machines", store->num_machines);
    memcpy(own, text_string(&mine), mine.size);
    comm_all_gather_host(world, own, all, stride);
    for (int r = 0; r < comm_size(world); r++) add_lines(store, r, all + (size_t)r * stride, on_disk, why);
    add_incomplete(store, on_disk, why);
    free(own);
    free(all);
    text_free(&mine);
    return OK;
}

Status store_candidates(const MemoryStore *store, int **holdings, int *count) {
    *count = 0;
    *holdings = calloc((size_t)store->num_holdings + 1, sizeof **holdings);
    if (!*holdings) return fail(ERR_OS, "no memory for a list of checkpoints");
    for (int i = 0; i < store->num_holdings; i++) {
        bool known = !is_whole(store, &store->holdings[i]);
        for (int k = 0; k < *count; k++)
            known |= is_same(&store->holdings[i], &store->holdings[(*holdings)[k]]);
        if (known) continue;
        int at = (*count)++;
        for (; at > 0 && store->holdings[(*holdings)[at - 1]].step < store->holdings[i].step; at--)
            (*holdings)[at] = (*holdings)[at - 1];
        (*holdings)[at] = i;
    }
    return OK;
}

// ---- to machines that lack files ----------------------------------------------------------------

enum { PIECE = 4 << 20 };

typedef struct {
    char name[CHECKPOINT_FILE_NAME];
    int64_t bytes; // -1: it cannot be read
} FileHead;

// One checkpoint on its way to the machines.
typedef struct {
    MemoryStore *store;
    const Holding *wanted;
    CheckpointNames names;
    CheckpointPart part; // of this machine
    bool has_part;
    char *piece;
    Status status; // of this rank
} Fetch;

static void note(Fetch *f, Status status) {
    if (f->status == OK) f->status = status;
}

// Sends what it can: after a failure the rest of the announced bytes is zeros, and the other end hears of the status
// later.
static void send_file(Fetch *f, const char *name, int to) {
    Comm *world = f->store->world;
    FileHead head = {.bytes = -1};
    char path[4400];
    int fd = -1;
    snprintf(head.name, sizeof head.name, "%s", name);
    snprintf(path, sizeof path, "%s/%s", f->names.final, name);
    if (f->status == OK) note(f, file_open_regular(path, &fd, &head.bytes));
    comm_send_host(world, &head, sizeof head, to);
    for (int64_t at = 0, some; at < head.bytes; at += some) {
        some = head.bytes - at < PIECE ? head.bytes - at : PIECE;
        if (f->status == OK) note(f, file_read_at(fd, path, at, f->piece, (size_t)some));
        comm_send_host(world, f->piece, (size_t)some, to);
    }
    if (fd >= 0) close(fd);
}

static void receive_file(Fetch *f, int from) {
    Comm *world = f->store->world;
    FileHead head;
    FileWriter file = {0};
    char path[4400];
    comm_recv_host(world, &head, sizeof head, from);
    head.name[sizeof head.name - 1] = 0;
    if (strchr(head.name, '/') || *head.name == '.')
        note(f, fail(ERR_DATA, "%s: no name of a file", head.name));
    snprintf(path, sizeof path, "%s/%s", f->names.temporary, head.name);
    if (f->status == OK) note(f, file_writer_open(&file, path));
    file.in_memory = true;
    for (int64_t at = 0, some; at < head.bytes; at += some) {
        some = head.bytes - at < PIECE ? head.bytes - at : PIECE;
        comm_recv_host(world, f->piece, (size_t)some, from);
        if (f->status == OK) note(f, file_writer_add(&file, f->piece, (size_t)some));
    }
    if (f->status == OK)
        note(f, file_writer_finish(&file));
    else
        file_writer_abandon(&file);
}

static const Holding *holding_of(const MemoryStore *store, const Holding *wanted, int machine) {
    for (int i = 0; i < store->num_holdings; i++)
        if (store->holdings[i].machine == machine && is_same(&store->holdings[i], wanted))
            return &store->holdings[i];
    return NULL;
}

// The machine that sends file `number` (-1: the manifest), the first one that has it.
static int source_of(const MemoryStore *store, const Holding *wanted, int number) {
    for (int r = 0; r < comm_size(store->world); r++) {
        const Holding *h = holding_of(store, wanted, r);
        if (h && (number < 0 || h->present[number] == '1')) return r;
    }
    return -1;
}

static bool lacks(const MemoryStore *store, const Holding *wanted, int machine, int number) {
    const Holding *h = holding_of(store, wanted, machine);
    return !h || (number >= 0 && h->present[number] == '0');
}

// All ranks go through the same list, so the two ends of each message come to it in the same order.
static int move_files(Fetch *f, bool count_only) {
    const MemoryStore *store = f->store;
    int me = comm_rank(store->world), count = 0;
    for (int to = 0; to < comm_size(store->world); to++)
        for (int number = -1; store->machines[to] == to && number < f->wanted->count; number++) {
            if (!lacks(store, f->wanted, to, number)) continue;
            int from = source_of(store, f->wanted, number);
            count += to == me;
            if (count_only) continue;
            if (from == me) send_file(f, number < 0 ? "manifest.json" : f->part.names[number], to);
            if (to == me) receive_file(f, from);
        }
    return count;
}

// What was received joins what the machine had of the same checkpoint, or becomes the checkpoint.
static Status join_files(const Fetch *f) {
    char **names = NULL, from[4400], to[4400];
    int count = 0;
    if (!f->has_part) {
        TRY(folder_remove(f->names.final));
        if (rename(f->names.temporary, f->names.final) == 0) return OK;
        return fail(create_status(), "%s: cannot rename: %s", f->names.temporary, strerror(errno));
    }
    TRY(folder_list(f->names.temporary, &names, &count));
    Status status = OK;
    for (int i = 0; i < count && status == OK; i++) {
        snprintf(from, sizeof from, "%s/%s", f->names.temporary, names[i]);
        snprintf(to, sizeof to, "%s/%s", f->names.final, names[i]);
        if (rename(from, to)) status = fail(create_status(), "%s: cannot rename: %s", from, strerror(errno));
    }
    free(names);
    return status == OK ? folder_remove(f->names.temporary) : status;
}

static Status prepare_fetch(Fetch *f) {
    MemoryStore *store = f->store;
    int me = comm_rank(store->world);
    TRY(checkpoint_names(store->folder, f->wanted->step, &f->names));
    f->names.in_memory = true;
    f->piece = calloc(1, PIECE);
    if (!f->piece) return fail(ERR_OS, "no memory to send checkpoints");
    f->has_part = holding_of(store, f->wanted, me);
    if (f->has_part) TRY(checkpoint_part(store->folder, f->wanted->step, &f->part));
    if (!move_files(f, true)) return OK;
    TRY(folder_remove(f->names.temporary));
    return folder_make(f->names.temporary);
}

Status store_fetch(MemoryStore *store, int holding) {
    if (!store->world || store->num_machines < 2) return OK;
    Fetch f = {.store = store, .wanted = &store->holdings[holding]};
    bool acts = store_is_first(store);
    Status status = comm_agree(store->world, acts ? prepare_fetch(&f) : OK);
    if (status == OK && acts && move_files(&f, false) && f.status == OK) note(&f, join_files(&f));
    if (status == OK) status = comm_agree(store->world, f.status);
    free(f.piece);
    checkpoint_part_free(&f.part);
    return status;
}
