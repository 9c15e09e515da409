// The transports of MPI where a build has none: a job of several processes is refused, never run as many jobs of one.
#include "base/launcher.h"
#include "base/libraries.h"
#include "comm/transport.h"

Status mpi_launch(const CommOptions *options, RankMain *rank_main, void *arg) {
    (void)options, (void)rank_main, (void)arg;
    Text wish = {0};
    text_add(&wish, "a run of %d processes under mpirun", launcher_ranks());
    Status status = fail_without(LIBRARY_MPI, text_string(&wish));
    text_free(&wish);
    return fail(
        status,
        "%s; or start the ranks with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which need no MPI",
        fail_message());
}
