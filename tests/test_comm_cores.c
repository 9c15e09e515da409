// Tests that the ranks of a job keep to their own cores, as threads and as processes.
#include "base/cores.h"
#include "comm/comm.h"
#include "sysfs_tree.h"
#include <stdlib.h>

// What the ranks of one process may run on while they work.
typedef struct {
    Cores cores[4];
} Seen;

static Status look(Comm *world, void *arg) {
    Seen *seen = arg;
    cores_allowed(&seen->cores[comm_rank(world)]);
    return OK;
}

static void run(int ranks, int threads, bool bind, Seen *seen) {
    CommOptions options = {
        .transport = "threads", .ranks = ranks, .timeout_s = 60, .threads = threads, .bind_cores = bind};
    EXPECT_OK(comm_launch(options, look, seen));
}

// Each rank has its share, as the pure function says it; the process is left as it was.
static void bound(void) {
    Cores all, ordered, after, share;
    Seen seen;
    cores_allowed(&all);
    ordered = all;
    cores_order(&ordered, SYSFS);
    for (int ranks = 1; ranks <= 4; ranks++) {
        for (int threads = 0; threads <= 2; threads++) {
            run(ranks, threads, true, &seen);
            for (int r = 0; r < ranks; r++) {
                cores_share(&ordered, ranks, threads ? threads : 1, r, &share);
                EXPECT(!memcmp(&share, &seen.cores[r], sizeof share),
                       "rank %d of %d with %d threads has %d cores from %d", r, ranks, threads,
                       seen.cores[r].count, seen.cores[r].ids[0]);
            }
        }
    }
    cores_allowed(&after);
    EXPECT(!memcmp(&all, &after, sizeof all), "%d cores instead of %d", after.count, all.count);
}

static void unbound(void) {
    Cores all;
    Seen seen;
    cores_allowed(&all);
    run(2, 1, false, &seen);
    EXPECT(!memcmp(&all, &seen.cores[1], sizeof all), "rank 1 was bound to %d cores", seen.cores[1].count);
}

// ---- near simulated GPUs, in a machine that is made up -----------------------------------------------------

// Makes a machine whose first GPU is near the last processor that this process may use, and whose second is near the first.
static const char *make_machine(const Cores *all) {
    const char *root = harness_path("machine");
    char first[16], last[16];
    snprintf(first, sizeof first, "%d", all->ids[0]);
    snprintf(last, sizeof last, "%d", all->ids[all->count - 1]);
    tree_device(root, "pcifffff:a0/fffff:a0:00.0", "1", last);
    tree_device(root, "pcifffff:a1/fffff:a1:00.0", "0", first);
    return root;
}

static CommOptions near_gpus(const char *transport, const Cores *all) {
    return (CommOptions){.transport = transport,
                         .timeout_s = 60,
                         .bind_cores = true,
                         .device = "cuda-sim",
                         .sysfs = make_machine(all)};
}

static void expect_alone_on(const Cores *cores, int id, int rank) {
    EXPECT(cores->count == 1 && cores->ids[0] == id, "rank %d has %d cores from %d, not %d alone", rank,
           cores->count, cores->ids[0], id);
}

// Without GPUs rank 0 has the first cores.
static void bound_near_gpus(void) {
    Cores all;
    Seen seen;
    cores_allowed(&all);
    if (all.count < 2) return;
    setenv("TRIREME_SIM_GPUS", "2", 1);
    CommOptions options = near_gpus("threads", &all);
    options.ranks = 2;
    EXPECT_OK(comm_launch(options, look, &seen));
    expect_alone_on(&seen.cores[0], all.ids[all.count - 1], 0);
    expect_alone_on(&seen.cores[1], all.ids[0], 1);
    options.bind_cores = false;
    EXPECT_OK(comm_launch(options, look, &seen));
    EXPECT(!memcmp(&all, &seen.cores[0], sizeof all), "rank 0 was bound to %d cores", seen.cores[0].count);
    unsetenv("TRIREME_SIM_GPUS");
}

static Status expect_near(Comm *world, void *arg) {
    const Cores *all = arg;
    Cores mine;
    int rank = comm_rank(world);
    cores_allowed(&mine);
    expect_alone_on(&mine, all->ids[rank ? 0 : all->count - 1], rank);
    return OK;
}

// ---- under a launcher: three processes, the last of which has a core of its own before ------------------------

static Status expect_share(Comm *world, void *arg) {
    const Cores *all = arg;
    Cores share, mine;
    int rank = comm_rank(world);
    cores_share(all, rank < 2 ? 2 : 1, 1, rank < 2 ? rank : 0, &share);
    cores_allowed(&mine);
    EXPECT(!memcmp(&share, &mine, sizeof mine), "rank %d has %d cores from %d, not %d from %d", rank,
           mine.count, mine.ids[0], share.count, share.ids[0]);
    return OK;
}

static void processes(void) {
    Cores all;
    const char *transport = getenv("TRIREME_TEST_TRANSPORT");
    CommOptions options = {
        .transport = transport ? transport : "mpi", .timeout_s = 60, .threads = 1, .bind_cores = true};
    cores_allowed(&all);
    if (launcher_rank() == 2) {
        cores_bind(&(Cores){1, {all.ids[all.count - 1]}});
        cores_allowed(&all);
    }
    cores_order(&all, SYSFS);
    EXPECT_OK(comm_launch(options, expect_share, &all));
}

// Two processes.
static void processes_near_gpus(void) {
    const char *transport = getenv("TRIREME_TEST_TRANSPORT");
    Cores all;
    cores_allowed(&all);
    if (all.count < 2) return;
    setenv("TRIREME_SIM_GPUS", "2", 1);
    EXPECT_OK(comm_launch(near_gpus(transport ? transport : "mpi", &all), expect_near, &all));
}

int main(int argc, char **argv) {
    static const Test threads[] = {{"bound", bound},
                                   {"unbound", unbound},
                                   {"bound_near_gpus", bound_near_gpus},
                                   {0}},
                      three[] = {{"processes", processes}, {0}},
                      two[] = {{"processes_near_gpus", processes_near_gpus}, {0}};
    return harness_run(!launcher_ranks() ? threads : launcher_ranks() == 2 ? two : three, argc, argv);
}
