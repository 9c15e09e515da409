// Tests that the ranks of a job keep to their own cores, as threads and as processes.
#include "base/cores.h"
#include "comm/comm.h"
#include "harness.h"
#include <stdlib.h>
#include <string.h>

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
    cores_order(&ordered, CORES_FOLDER);
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
    cores_order(&all, CORES_FOLDER);
    EXPECT_OK(comm_launch(options, expect_share, &all));
}

int main(int argc, char **argv) {
    static const Test threads[] = {{"bound", bound}, {"unbound", unbound}, {0}},
                      launched[] = {{"processes", processes}, {0}};
    return harness_run(launcher_ranks() ? launched : threads, argc, argv);
}
