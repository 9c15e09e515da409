// What GPUs that do not reach each other's memory take for messages is what is said of it before.
#include "comm/device_transport.h"
#include "comm/groups.h"
#include "comm_values.h"
#include "memory_survey.h"

// The world and the groups of a grid take what is said of them, each rank of its own GPU.
static Status take_memory(Comm *world, void *arg) {
    static DeviceSurvey before, after;
    const bool apart = *(const bool *)arg;
    const Grid grid = GRID(2, 1, 2);
    Groups groups;
    Device *device;
    EXPECT_OK(device_open(&device,
                          (DeviceOptions){.kind = "cuda-sim", .threads = 1, .rank_here = comm_rank(world)}));
    survey_alone(world, &before);
    EXPECT_OK(comm_use_device(world, device));
    EXPECT_OK(groups_open(&groups, world, topology_of(grid, comm_rank(world)), ALL_ROLES));
    survey_alone(world, &after);
    for (int r = 0; r < 4 && comm_rank(world) == 0; r++) {
        Topology topology = topology_of(grid, r);
        size_t said = peer_staging_bytes(4) + groups_staging_bytes(&topology, ALL_ROLES, peer_staging_bytes);
        size_t taken = before.gpus[r].free_bytes - after.gpus[r].free_bytes;
        EXPECT(taken == (apart ? said : 0), "rank %d takes %zu bytes, not %zu", r, taken, said);
    }
    groups_close(&groups);
    EXPECT_OK(comm_use_device(world, NULL));
    device_close(device);
    return OK;
}

static void memory_is_predicted(void) {
    setenv("TRIREME_SIM_GPUS", "4", 1);
    for (int i = 0; i < 2; i++) {
        bool apart = i;
        CommOptions options = options_for("threads", 4, false);
        setenv("TRIREME_SIM_PEERS", apart ? "0" : "1", 1);
        options.device_transport = "peer";
        EXPECT_OK(comm_launch(options, take_memory, &apart));
    }
    unsetenv("TRIREME_SIM_PEERS");
    unsetenv("TRIREME_SIM_GPUS");
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"memory_is_predicted", memory_is_predicted}, {0}}, argc, argv);
}
