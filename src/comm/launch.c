// The transports by name: starts the ranks of a job with the one that is asked for.
#include "comm/transport.h"
#include <string.h>
#include <unistd.h>

// A launcher ends a job when the first process fails; one that started late must still get to its message.
void comm_let_first_rank_speak(void) { sleep(3); }

static const struct {
    const char *name;
    Status (*launch)(const CommOptions *options, RankMain *rank_main, void *arg);
} launchers[] = {
    {"threads", threads_launch}, {"mpi", mpi_launch}, {"mpi-messages", mpi_launch}, {"null", null_launch}};

Status comm_launch(CommOptions options, RankMain *rank_main, void *arg) {
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++)
        if (!strcmp(options.transport, launchers[i].name))
            return launchers[i].launch(&options, rank_main, arg);
    return fail(ERR_CONFIG, "unknown transport '%s': threads, mpi, mpi-messages or null", options.transport);
}
