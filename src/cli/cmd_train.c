#include "cli/cli.h"
#include "train/train.h"

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
    job->ranks_here = launched ? comm_launcher_ranks_here() : size;
    job->threads = threads_per_rank(options, job->ranks_here);
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
    TrainJob job = {.start_s = clock_s(), .options = &options, .stopped = stop_on_signals()};
    CommOptions comm;
    Status status = options_parse(&options, FOR_TRAIN, argc, argv);
    if (status == OK) status = prepare(&options, &job, &comm);
    if (status != OK && !speaks_of(status)) fail(status, "%s", "");
    if (status == OK) status = comm_launch(comm, train_run, &job);
    options_destroy(&options);
    return status;
}
