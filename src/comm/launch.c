// The table of transports: starts the ranks of a job with the one that is asked for.
#include "comm/mpi_module.h"
#include <string.h>

// Tests read the names from these lines, too (tests/CMakeLists.txt).
static const CommTransport transports[] = {
    // name, launched, moves_data
    {"threads", false, true, threads_launch}, {"mpi", true, true, mpi_launch},
    {"mpi-messages", true, true, mpi_launch}, {"tcp", true, true, tcp_launch},
    {"null", false, false, null_launch},
};
enum { NUM_TRANSPORTS = sizeof transports / sizeof *transports };

const CommTransport *comm_transports(int *count) {
    *count = NUM_TRANSPORTS;
    return transports;
}

const char *comm_transport_here(void) {
    if (!launcher_ranks()) return "threads";
    bool without_mpi = launcher_is_srun() && !launcher_is_mpirun() && !mpi_is_here();
    return launcher_is_variables() || without_mpi ? "tcp" : "mpi";
}

static Status fail_unknown(const char *name) {
    Text names = {0};
    for (int i = 0; i < NUM_TRANSPORTS; i++) text_add(&names, i ? ", %s" : "%s", transports[i].name);
    Status status = fail(ERR_CONFIG, "transport '%s' is unknown; there are %s", name, text_string(&names));
    text_free(&names);
    return status;
}

Status comm_launch(CommOptions options, RankMain *rank_main, void *arg) {
    for (int i = 0; i < NUM_TRANSPORTS; i++)
        if (!strcmp(options.transport, transports[i].name))
            return transports[i].launch(&options, rank_main, arg);
    return fail_unknown(options.transport);
}
