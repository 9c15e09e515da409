// The device transport "nccl" on simulated GPUs, whose streams run late and in a drawn order: the bits of every other
// transport, whatever the order.
#include "comm/nccl.h"
#include "comm/nccl_group.h"
#include "comm/queue.h"
#include "memory_survey.h"
#include "nccl_fixture.h"
#include <math.h>

// On the stream, from where it is now.
static void upload(Node *n, Tensor x, int rank, int salt) {
    Tensor values = tensor_new(x.cols, x.dtype);
    fill(values, rank, salt);
    device_upload(n->device, n->stream, x, values.data);
    free(values.data);
}

static Tensor download(Node *n, Tensor x) {
    Tensor values = tensor_new(x.cols, x.dtype);
    device_download(n->device, n->stream, values.data, x);
    return values;
}

static void expect_sum(Node *n, Tensor x, int64_t first, int salt, ReduceOp op, const char *what) {
    Tensor values = download(n, x);
    expect_reduced(n->group, values, first, salt, op, what);
    free(values.data);
}

// ---- collectives ------------------------------------------------------------------------------------------

static void sum(Node *n, DType dtype, int64_t count, ReduceOp op, bool blocks) {
    static const int salt = 7;
    ArenaMark mark = arena_mark(&n->arena);
    Tensor x = take(n, dtype, count);
    upload(n, x, comm_rank(n->group), salt);
    if (blocks) {
        comm_all_reduce(n->group, n->stream, x, op);
    } else {
        CommRequest *request = comm_all_reduce_start(n->group, n->stream, x, op);
        comm_wait(n->group, n->stream, &request);
    }
    expect_sum(n, x, 0, salt, op, blocks ? "all-reduce" : "started all-reduce");
    arena_release(&n->arena, mark);
}

static void scatter(Node *n, DType dtype, int64_t count, bool in_place) {
    static const int salt = 8;
    ArenaMark mark = arena_mark(&n->arena);
    int size = comm_size(n->group), rank = comm_rank(n->group);
    Tensor in = take(n, dtype, count * size), own = tensor_part(in, rank * count, count);
    Tensor out = in_place ? own : take(n, dtype, count);
    upload(n, in, rank, salt);
    CommRequest *request = comm_reduce_scatter_start(n->group, n->stream, in, out, REDUCE_SUM);
    comm_wait(n->group, n->stream, &request);
    expect_sum(n, out, rank * count, salt, REDUCE_SUM, "reduce-scatter");
    arena_release(&n->arena, mark);
}

static void gather(Node *n, DType dtype, int64_t count, bool in_place) {
    ArenaMark mark = arena_mark(&n->arena);
    int size = comm_size(n->group), rank = comm_rank(n->group), bad = 0;
    Tensor out = take(n, dtype, count * size), own = tensor_part(out, rank * count, count);
    Tensor in = in_place ? own : take(n, dtype, count);
    upload(n, in, rank, 9);
    comm_all_gather(n->group, n->stream, in, out);
    Tensor values = download(n, out);
    for (int64_t i = 0; i < count * size; i++)
        bad += get(values, i) != as_stored(value((int)(i / count), i % count, 9), dtype);
    EXPECT(!bad, "all-gather of %d: %d wrong", (int)count, bad);
    free(values.data);
    arena_release(&n->arena, mark);
}

static void swap(Node *n, DType dtype, int64_t count, bool blocks) {
    ArenaMark mark = arena_mark(&n->arena);
    int size = comm_size(n->group), rank = comm_rank(n->group), bad = 0;
    Tensor in = take(n, dtype, count * size), out = take(n, dtype, count * size);
    upload(n, in, rank, 11);
    CommRequest *request = NULL;
    if (blocks)
        comm_all_to_all(n->group, n->stream, in, out);
    else
        request = comm_all_to_all_start(n->group, n->stream, in, out);
    comm_wait(n->group, n->stream, &request);
    Tensor values = download(n, out);
    for (int64_t i = 0; i < count * size; i++)
        bad += get(values, i) != as_stored(value((int)(i / count), rank * count + i % count, 11), dtype);
    EXPECT(!bad, "all-to-all of %d: %d wrong", (int)count, bad);
    free(values.data);
    arena_release(&n->arena, mark);
}

static void broadcast(Node *n, DType dtype, int64_t count, int root) {
    ArenaMark mark = arena_mark(&n->arena);
    Tensor x = take(n, dtype, count);
    int bad = 0;
    upload(n, x, comm_rank(n->group), 10);
    comm_broadcast(n->group, n->stream, x, root);
    Tensor values = download(n, x);
    for (int64_t i = 0; i < count; i++) bad += get(values, i) != as_stored(value(root, i, 10), dtype);
    EXPECT(!bad, "broadcast of %d: %d wrong", (int)count, bad);
    free(values.data);
    arena_release(&n->arena, mark);
}

static const DType types[] = {F32, BF16, F16, F64};

static void law_collectives(Node *n) {
    static const int64_t counts[] = {1, 3, 1000, 40961};
    for (int i = 0; i < 4 * 4; i++) {
        DType dtype = types[i % 4];
        int64_t count = counts[i / 4];
        if (harness_short() && count > 1000 && dtype != BF16) continue;
        sum(n, dtype, count, REDUCE_SUM, true);
        sum(n, dtype, count, REDUCE_SUM, false);
        sum(n, dtype, count, REDUCE_MAX, i % 2);
        if (can_add_in_tree(comm_size(n->group))) sum(n, dtype, count, REDUCE_TREE, i % 2);
        scatter(n, dtype, count, i % 2);
        gather(n, dtype, count, i / 2 % 2);
        swap(n, dtype, count, i % 2);
        broadcast(n, dtype, count, i % comm_size(n->group));
    }
    gather(n, I32, 5, false);
    sum(n, F32, 0, REDUCE_SUM, true);
}

// Of which the staging buffer holds a part.
static void law_long_sums(Node *n) {
    int64_t slot = (int64_t)(nccl_staging_bytes(comm_size(n->group)) / sizeof(float)) / comm_size(n->group);
    sum(n, F32, comm_size(n->group) * (slot + 1000) + 1, REDUCE_SUM, false);
    scatter(n, F32, slot + 3, true);
}

// Groups of more ranks than one sum can have add in several: gathered parts, and slices that are exchanged.
static void law_sums_of_several(Node *n) {
    ((NcclGroup *)n->group->device.group)->max_parts = 2;
    for (int i = 0; i < 2; i++) {
        DType dtype = i ? F64 : F32;
        sum(n, dtype, 1001, REDUCE_SUM, true);
        sum(n, dtype, 200003, REDUCE_SUM, false);
        sum(n, dtype, 200003, REDUCE_MAX, false);
        scatter(n, dtype, 1001, true);
        scatter(n, dtype, 1001, false);
    }
}

// What groups of more ranks than one sum can have cannot add is known before it is tried.
static void law_too_many_ranks(Node *n) {
    NcclGroup *g = (NcclGroup *)n->group->device.group;
    EXPECT_OK(comm_can_reduce(n->group, BF16, REDUCE_SUM));
    g->max_parts = 2;
    EXPECT_OK(comm_can_reduce(n->group, F32, REDUCE_SUM));
    EXPECT_OK(comm_can_reduce(n->group, BF16, REDUCE_MAX));
    EXPECT(comm_can_reduce(n->group, F32, REDUCE_TREE) == ERR_CONFIG &&
               strstr(fail_message(), "adds in a tree over up to 2 ranks, and group group has 4"),
           "a tree: %s", fail_message());
    Status status = comm_can_reduce(n->group, BF16, REDUCE_SUM);
    if (!g->deterministic) EXPECT_OK(status);
    if (g->deterministic)
        EXPECT(status == ERR_CONFIG && strstr(fail_message(), "adds bf16 over up to 2 ranks in rank order"),
               "a sum: %s", fail_message());
}

// In very large groups a slot has room for fewer elements than are left when each rank has its slice.
static void law_small_slots(Node *n) {
    enum { GUARD = 100 };
    NcclGroup *g = (NcclGroup *)n->group->device.group;
    double guard[GUARD], got[GUARD];
    g->slot_bytes = 2 * sizeof(double);
    Tensor beyond = {g->staging + (size_t)comm_size(n->group) * g->slot_bytes, 1, GUARD, F64};
    for (int i = 0; i < GUARD; i++) guard[i] = i;
    device_upload(n->device, n->stream, beyond, guard);
    sum(n, F64, 8203, REDUCE_SUM, true);
    sum(n, F32, 16411, REDUCE_SUM, false);
    device_download(n->device, n->stream, got, beyond);
    EXPECT(!memcmp(got, guard, sizeof got), "writes beyond the staging buffer");
}

static void law_nan_is_kept(Node *n) {
    float values[5] = {1, 2, 3, 4, 5};
    ArenaMark mark = arena_mark(&n->arena);
    Tensor x = take(n, F32, 5);
    if (comm_rank(n->group) == 0) values[3] = NAN;
    device_upload(n->device, n->stream, x, values);
    comm_all_reduce(n->group, n->stream, x, REDUCE_MAX);
    device_download(n->device, n->stream, values, x);
    EXPECT(isnan(values[3]) && values[4] == 5, "the largest of NaN and 4 is %g", (double)values[3]);
    arena_release(&n->arena, mark);
}

// Whole numbers have one sum in any order.
static void law_sums_of_the_library(Node *n) {
    enum { COUNT = 50 };
    int size = comm_size(n->group), rank = comm_rank(n->group);
    float values[COUNT * 4], got[COUNT];
    ArenaMark mark = arena_mark(&n->arena);
    Tensor in = take(n, F32, COUNT * size), out = take(n, F32, COUNT);
    for (int i = 0; i < COUNT * size; i++) values[i] = (float)(i + 100 * rank);
    device_upload(n->device, n->stream, in, values);
    device_copy(n->device, n->stream, out, tensor_part(in, 0, COUNT));
    comm_all_reduce(n->group, n->stream, out, REDUCE_SUM);
    device_download(n->device, n->stream, got, out);
    for (int i = 0; i < COUNT; i++)
        EXPECT(got[i] == (float)(size * i + 50 * size * (size - 1)), "all-reduce: %d: %g", i, (double)got[i]);
    CommRequest *request = comm_reduce_scatter_start(n->group, n->stream, in, out, REDUCE_SUM);
    comm_wait(n->group, n->stream, &request);
    device_download(n->device, n->stream, got, out);
    for (int i = 0; i < COUNT; i++)
        EXPECT(got[i] == (float)(size * (rank * COUNT + i) + 50 * size * (size - 1)),
               "reduce-scatter: %d: %g", i, (double)got[i]);
    arena_release(&n->arena, mark);
}

// ---- order ------------------------------------------------------------------------------------------------

// Collectives and other work change the same tensors in turn: a wait that is missing anywhere gives other numbers.
static void law_streams_wait(Node *n) {
    enum { ROUNDS = 12, COUNT = 700 };
    ArenaMark mark = arena_mark(&n->arena);
    Tensor x = take(n, F32, COUNT), kept[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) kept[i] = take(n, F32, COUNT);
    for (int i = 0; i < ROUNDS; i++) {
        upload(n, x, comm_rank(n->group), i);
        CommRequest *request = NULL;
        if (i % 3)
            request = comm_all_reduce_start(n->group, n->stream, x, REDUCE_SUM);
        else
            comm_all_reduce(n->group, n->stream, x, REDUCE_SUM);
        comm_wait(n->group, n->stream, &request);
        device_copy(n->device, n->stream, kept[i], x);
    }
    for (int i = 0; i < ROUNDS; i++) expect_sum(n, kept[i], 0, i, REDUCE_SUM, "sum in turn");
    arena_release(&n->arena, mark);
}

// Several at once, on two groups: their staging buffers are used again and again.
static void law_many_at_once(Node *n) {
    enum { MANY = 8, COUNT = 90000 };
    ArenaMark mark = arena_mark(&n->arena);
    Tensor x[MANY];
    CommRequest *requests[MANY];
    for (int i = 0; i < MANY; i++) {
        x[i] = take(n, F32, COUNT);
        upload(n, x[i], comm_rank(n->group), i);
        requests[i] = comm_all_reduce_start(i % 2 ? n->second : n->group, n->stream, x[i], REDUCE_SUM);
        if (i == 3) sum(n, BF16, 333, REDUCE_SUM, true);
    }
    for (int i = MANY - 1; i >= 0; i--) comm_wait(i % 2 ? n->second : n->group, n->stream, &requests[i]);
    for (int i = 0; i < MANY; i++) expect_sum(n, x[i], 0, i, REDUCE_SUM, "sum of many");
    arena_release(&n->arena, mark);
}

// A started sum may not have read the staging buffer when a blocking one, on another stream, wants it.
static void law_staging_waits(Node *n) {
    enum { ROUNDS = 8, COUNT = 3000 };
    int size = comm_size(n->group), rank = comm_rank(n->group);
    ArenaMark mark = arena_mark(&n->arena);
    Tensor in = take(n, F32, COUNT * size), out = take(n, F32, COUNT);
    for (int i = 0; i < ROUNDS; i++) {
        upload(n, in, rank, i);
        CommRequest *request = comm_reduce_scatter_start(n->group, n->stream, in, out, REDUCE_SUM);
        sum(n, F32, 5, REDUCE_SUM, true);
        comm_wait(n->group, n->stream, &request);
        expect_sum(n, out, rank * COUNT, i, REDUCE_SUM, "started reduce-scatter");
    }
    arena_release(&n->arena, mark);
}

// ---- messages ---------------------------------------------------------------------------------------------

enum { MESSAGES = 5, LENGTH = 400, CHANNELS = 2 };

static void open_all_channels(Comm *comm) {
    CommChannel channels[64];
    int count = 0, size = comm_size(comm);
    for (int i = 0; i < size * size * CHANNELS; i++)
        channels[count++] = (CommChannel){i / size % size, i % size, i / size / size};
    EXPECT_OK(comm_open_channels(comm, channels, count));
    EXPECT_OK(comm_open_channels(comm, channels, 1)); // it is open
}

// Everybody sends to everybody on every channel, and computes meanwhile; the buffers of what was sent are used again.
static void law_messages(Node *n) {
    int size = comm_size(n->group), rank = comm_rank(n->group), streams = (size - 1) * CHANNELS, k = 0;
    ArenaMark mark = arena_mark(&n->arena);
    Tensor *in = calloc((size_t)streams * MESSAGES, sizeof *in), out = take(n, F32, LENGTH);
    CommRequest **receives = calloc((size_t)streams * MESSAGES, sizeof *receives), *send;
    open_all_channels(n->group);
    for (int m = 0; m < MESSAGES; m++)
        for (int i = 0; i < streams; i++, k++) {
            int peer = (rank + 1 + i / CHANNELS) % size;
            in[k] = take(n, F32, LENGTH);
            receives[k] = comm_recv(n->group, n->stream, in[k], peer, i % CHANNELS);
        }
    for (int m = 0; m < MESSAGES; m++)
        for (int i = 0; i < streams; i++) {
            int peer = (rank + 1 + i / CHANNELS) % size;
            upload(n, out, rank * 8 + peer, m * CHANNELS + i % CHANNELS);
            send = comm_send(n->group, n->stream, out, peer, i % CHANNELS);
            comm_wait(n->group, n->stream, &send);
        }
    for (k = 0; k < streams * MESSAGES; k++) {
        int i = k % streams, peer = (rank + 1 + i / CHANNELS) % size, bad = 0;
        comm_wait(n->group, n->stream, &receives[k]);
        Tensor got = download(n, in[k]);
        for (int64_t e = 0; e < LENGTH; e++)
            bad += get(got, e) !=
                   as_stored(value(peer * 8 + rank, e, k / streams * CHANNELS + i % CHANNELS), F32);
        EXPECT(!bad, "message %d from %d: %d wrong", k, peer, bad);
        free(got.data);
    }
    free(receives);
    free(in);
    arena_release(&n->arena, mark);
}

// ---- memory -----------------------------------------------------------------------------------------------

// The groups of a grid take what is said of them.
static void law_memory_is_predicted(Node *n) {
    static DeviceSurvey before, after;
    Groups groups;
    Grid grid = GRID(2, 1, 2);
    survey_alone(n->world, &before);
    EXPECT_OK(groups_open(&groups, n->world, topology_of(grid, comm_rank(n->world)), ALL_ROLES));
    survey_alone(n->world, &after);
    for (int r = 0; r < 4 && comm_rank(n->world) == 0; r++) {
        Topology topology = topology_of(grid, r);
        size_t said = groups_staging_bytes(&topology, ALL_ROLES, nccl_staging_bytes);
        size_t taken = before.gpus[r].free_bytes - after.gpus[r].free_bytes;
        EXPECT(taken == said && said > 0, "rank %d takes %zu bytes, not %zu", r, taken, said);
    }
    groups_close(&groups);
}

// ---- jobs -------------------------------------------------------------------------------------------------

static void for_all_ranks(Law *law) {
    for (int ranks = 2; ranks <= 4; ranks++) EXPECT_OK(launch(ranks, ranks == 3, true, law));
}

static void collectives(void) { for_all_ranks(law_collectives); }
static void long_sums(void) { EXPECT_OK(launch(2, false, true, law_long_sums)); }
static void sums_of_several(void) {
    EXPECT_OK(launch(3, false, true, law_sums_of_several));
    EXPECT_OK(launch(4, false, true, law_sums_of_several));
}
static void too_many_ranks(void) {
    EXPECT_OK(launch(4, false, true, law_too_many_ranks));
    EXPECT_OK(launch(4, false, false, law_too_many_ranks));
}
static void small_slots(void) {
    EXPECT_OK(launch(4, false, true, law_small_slots));
    EXPECT(nccl_staging_bytes(1 << 20) >= 256 << 20, "%zu bytes", nccl_staging_bytes(1 << 20));
}
static void nan_is_kept(void) {
    EXPECT_OK(launch(2, false, true, law_nan_is_kept));
    EXPECT_OK(launch(2, false, false, law_nan_is_kept));
}
static void sums_of_the_library(void) { EXPECT_OK(launch(3, false, false, law_sums_of_the_library)); }
static void streams_wait(void) { for_all_ranks(law_streams_wait); }
static void staging_waits(void) { for_all_ranks(law_staging_waits); }
static void many_at_once(void) { for_all_ranks(law_many_at_once); }
static void memory_is_predicted(void) { EXPECT_OK(launch(4, false, true, law_memory_is_predicted)); }
static void messages(void) { for_all_ranks(law_messages); }

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"collectives", collectives},
                                      {"long_sums", long_sums},
                                      {"sums_of_several", sums_of_several},
                                      {"too_many_ranks", too_many_ranks},
                                      {"small_slots", small_slots},
                                      {"nan_is_kept", nan_is_kept},
                                      {"sums_of_the_library", sums_of_the_library},
                                      {"streams_wait", streams_wait},
                                      {"staging_waits", staging_waits},
                                      {"many_at_once", many_at_once},
                                      {"messages", messages},
                                      {"memory_is_predicted", memory_is_predicted},
                                      {0}},
                       argc, argv);
}
