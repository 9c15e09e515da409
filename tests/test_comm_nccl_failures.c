// How jobs end that NVIDIA's NCCL links, when something is missing, too old, different on another rank, or gone: by a status
// and words that say what to do. Each runs in a process of its own, on simulated GPUs.
#include "nccl_fixture.h"
#include <sys/wait.h>
#include <unistd.h>

static void nothing(Node *n) { (void)n; }

static void opens_channel(Node *n, CommChannel channel) {
    Status status = comm_open_channels(n->group, &channel, 1);
    if (status == OK) return;
    fprintf(stderr, "%s\n", fail_message());
    _exit((int)status);
}

static void opens_channels(Node *n) { opens_channel(n, (CommChannel){0, 1, 0}); }

// What fails at its sender is the message of rank 0, too.
static void opens_channel_back(Node *n) { opens_channel(n, (CommChannel){1, 0, 0}); }

// A grid of several groups for a role: a group that cannot be opened concerns the ranks of the others.
static void opens_grid(Node *n) {
    Groups groups;
    Grid grid = GRID(2, 1, 2);
    Topology topology = topology_of(grid, comm_rank(n->world));
    Status status = comm_agree(n->world, groups_open(&groups, n->world, topology, ALL_ROLES));
    EXPECT(status != OK, "the groups are open");
    fprintf(stderr, "%s\n", fail_message());
    _exit((int)status);
}

static void watch(void *comm, double waited_s) { comm_watch(comm, waited_s); }

// Rank 1 does not come to a sum that the GPU of rank 0 waits for, as does its host.
static void waits_for_rank_1(Node *n) {
    Tensor x = take(n, F32, 10);
    if (comm_rank(n->group) == 1) {
        sleep(20);
        return;
    }
    device_on_wait(n->device, watch, n->group);
    rank_doing("B3.0");
    CommRequest *request = comm_all_reduce_start(n->group, n->stream, x, REDUCE_SUM);
    comm_wait(n->group, n->stream, &request);
    rank_doing("F7.0");
    device_sync(n->device, n->stream);
}

static void loses_rank_1(Node *n) {
    if (comm_rank(n->group) == 0) setenv("TRIREME_SIM_FAIL", "ncclCommGetAsyncError:1", 1);
    waits_for_rank_1(n);
}

// Of the environment, as far as they are set.
typedef struct {
    Law *law;
    const char *name, *value;
    int status;
    const char *words[2];
} Failure;

static const Failure failures[] = {
    {nothing,
     "TRIREME_SIM_FAIL",
     "libnccl.so.2:1",
     ERR_UNAVAILABLE,
     {"needs NCCL, and there is no libnccl.so.2 in the folders of TRIREME_CUDA_LIBS (unset)",
      "the Python wheel nvidia-nccl-cu13 brings it"}},
    {nothing,
     "TRIREME_SIM_NCCL",
     "21003",
     ERR_DATA,
     {"needs NCCL 2.18 or later, and libnccl.so.2 is version 2.10.3", ""}},
    {nothing, "TRIREME_SIM_NCCL", "22809,22907", ERR_CONFIG, {"the version of NCCL", "2.29.7"}},
    {nothing,
     "TRIREME_SIM_GPUS",
     "1",
     ERR_CONFIG,
     {"needs a GPU for each rank, and ranks 0 and 1 share GPU 0 (simulated GPU)", "leave it at auto"}},
    {nothing,
     "TRIREME_SIM_FAIL",
     "ncclGetUniqueId:1",
     ERR_OS,
     {"ncclGetUniqueId failed on GPU 0 (simulated GPU)", "Address already in use; NCCL_DEBUG=WARN"}},
    {nothing,
     "TRIREME_SIM_FAIL",
     "ncclCommInitRankConfig:1",
     ERR_OS,
     {"ncclCommInitRankConfig failed on GPU", "Connection refused"}},
    {opens_channel_back, // after the links of 2 groups
     "TRIREME_SIM_FAIL",
     "ncclGetUniqueId:3",
     ERR_OS,
     {"rank 1 could not open the link of group 1 to 0, channel 0: ncclGetUniqueId failed on GPU 1",
      "Address already in use"}},
    {opens_grid, // after 2 groups of the 4 ranks
     "TRIREME_SIM_FAIL",
     "ncclCommInitRankConfig:9",
     ERR_OS,
     {"ncclCommInitRankConfig failed on GPU", "Connection refused"}},
    {nothing,
     "TRIREME_SIM_FAIL",
     "ncclGroupEnd:1",
     ERR_OS,
     {"ncclGroupEnd failed on GPU", "Call to ibv_create_qp failed"}},
    {opens_channels,
     "CUDA_DEVICE_MAX_CONNECTIONS",
     "1",
     ERR_CONFIG,
     {"CUDA_DEVICE_MAX_CONNECTIONS=1 would make the messages of a pipeline wait",
      "set CUDA_DEVICE_MAX_CONNECTIONS=32, or leave it to the program"}},
    {opens_channels,
     "NCCL_LAUNCH_ORDER_IMPLICIT",
     "1",
     ERR_CONFIG,
     {"NCCL_LAUNCH_ORDER_IMPLICIT=1 would make the messages of a pipeline wait", "unset it"}},
    {opens_channels, "CUDA_DEVICE_MAX_CONNECTIONS", "32", OK, {"", ""}},
    {loses_rank_1,
     "TRIREME_SIM_GPUS",
     "2",
     ERR_OS,
     {"a communicator of NCCL failed on GPU 0 (simulated GPU): remote process exited",
      "remote peer closed the connection"}},
    {waits_for_rank_1,
     "TRIREME_SIM_GPUS",
     "2",
     ERR_HANG,
     {"at F7.0 for its device, for rank 1 in all_reduce of group, which was posted at B3.0 and does not end",
      ""}},
};
enum { NUM_FAILURES = sizeof failures / sizeof *failures };

static _Noreturn void fail_in_child(const Failure *f, int file) {
    dup2(file, STDERR_FILENO);
    setenv(f->name, f->value, 1);
    limit_s = 1.5;
    Status status = launch(f->law == opens_grid ? 4 : 2, false, true, f->law);
    if (status != OK) fprintf(stderr, "%s\n", fail_message());
    _exit((int)status);
}

static void failures_are_named(void) {
    for (int i = 0; i < NUM_FAILURES; i++) {
        const Failure *f = &failures[i];
        FILE *file = fopen(harness_path("said"), "w+");
        char said[8192];
        int status = 0;
        CHECK(file, "no file");
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) fail_in_child(f, fileno(file));
        waitpid(child, &status, 0);
        rewind(file);
        said[fread(said, 1, sizeof said - 1, file)] = 0;
        fclose(file);
        EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == f->status, "%s=%s: %d, not %d: %s", f->name,
               f->value, WEXITSTATUS(status), f->status, said);
        for (int w = 0; w < 2; w++)
            EXPECT(strstr(said, f->words[w]), "%s=%s: no \"%s\" in: %s", f->name, f->value, f->words[w],
                   said);
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"failures_are_named", failures_are_named}, {0}}, argc, argv);
}
