#include "cli/cli.h"
#include "train/train.h"
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

static int processors(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n > 0 ? n : 1;
}

// The machine's processors shared out over its ranks, within what this process may use (a launcher may have bound it).
static int threads_per_rank(const Options *options, int ranks_here) {
    if (options->threads != INT_UNSET) return options->threads;
    int share = (int)sysconf(_SC_NPROCESSORS_ONLN) / ranks_here, allowed = processors();
    int threads = share < allowed ? share : allowed;
    return threads > 0 ? threads : 1;
}

static Status save_configuration(const Options *options) {
    if (!options->save_config) return OK;
    Text text = {0};
    options_save(options, FOR_TRAIN, &text);
    Status status = file_write(options->save_config, text_string(&text), text.size);
    text_free(&text);
    return status;
}

// All that can be done before the ranks start.
static Status prepare(Options *options, TrainJob *job, CommOptions *comm) {
    int launched = comm_launcher_ranks(), asked = options->ranks != INT_UNSET ? options->ranks : 1;
    int size = launched ? launched : asked;
    TRY(options_resolve(options, size));
    if (comm_launcher_rank() == 0) {
        fputs(options_notes(options), stderr);
        TRY(save_configuration(options));
    }
    job->threads = threads_per_rank(options, launched ? comm_launcher_ranks_here() : size);
    *comm = (CommOptions){.transport = launched ? "mpi" : "threads",
                          .ranks = size,
                          .timeout_s = options->distributed_timeout_minutes * 60,
                          .check = options->check_comm,
                          .deterministic = options->deterministic_mode};
    return OK;
}

// In a launched job process 0 speaks for all, except of files, which another machine may lack.
static bool speaks_of(Status status) {
    bool of_files =
        status == ERR_NO_INPUT || status == ERR_IO || status == ERR_PERMISSION || status == ERR_CREATE;
    return comm_launcher_rank() == 0 || of_files;
}

Status cmd_train(int argc, char **argv) {
    Options options;
    TrainJob job = {.options = &options, .stopped = stop_on_signals()};
    CommOptions comm;
    Status status = options_parse(&options, FOR_TRAIN, argc, argv);
    if (status == OK) status = prepare(&options, &job, &comm);
    if (status != OK && !speaks_of(status)) fail(status, "%s", "");
    if (status == OK) status = comm_launch(comm, train_run, &job);
    options_destroy(&options);
    return status;
}
