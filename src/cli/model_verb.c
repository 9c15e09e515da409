#include "cli/model_verb.h"
#include "train/train.h"

// As `train` does it: under a launcher its ranks, else threads of this process.
static Status launch(ModelJob *job, int ranks, RankMain *rank_main) {
    const Options *o = job->options;
    int launched = comm_launcher_ranks();
    CommOptions comm = {.transport = launched ? "mpi" : "threads",
                        .ranks = ranks,
                        .timeout_s = o->distributed_timeout_minutes * 60,
                        .check = o->check_comm,
                        .deterministic = true};
    job->threads = threads_per_rank(o, launched ? comm_launcher_ranks_here() : ranks);
    job->stopped = stop_on_signals();
    return comm_launch(comm, rank_main, job);
}

// In a launched job process 0 speaks for all, except of files, which another machine may lack.
static bool speaks_of(Status status) {
    return comm_launcher_rank() == 0 || status == ERR_NO_INPUT || status == ERR_IO ||
           status == ERR_PERMISSION;
}

static Status prepare_job(const Options *o, int ranks, ModelJob *job, Status (*check)(const Options *),
                          Status (*prepare)(const ModelJob *)) {
    if (comm_launcher_rank() == 0) fputs(options_notes(o), stderr);
    TRY(check(o));
    TRY(model_job_open(job, o, ranks));
    return prepare(job);
}

Status model_verb(Verb verb, int argc, char **argv, Status (*check)(const Options *),
                  Status (*prepare)(const ModelJob *), RankMain *rank_main) {
    Options options;
    ModelJob job = {0};
    int launched = comm_launcher_ranks(), ranks = 1;
    Status status = options_parse(&options, verb, argc, argv);
    if (status == OK) {
        ranks = launched ? launched : options.ranks != INT_UNSET ? options.ranks : 1;
        status = prepare_job(&options, ranks, &job, check, prepare);
    }
    if (status != OK && !speaks_of(status)) fail(status, "%s", "");
    if (status == OK) status = launch(&job, ranks, rank_main);
    model_job_close(&job);
    options_destroy(&options);
    return status;
}
