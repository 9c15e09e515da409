#include "cli/model_verb.h"
#include "train/train.h"

// As `train` does it: under a launcher its ranks, else threads of this process.
static Status launch(ModelJob *job, int ranks, RankMain *rank_main) {
    const Options *o = job->options;
    int launched = comm_launcher_ranks();
    job->threads = threads_per_rank(o, launched ? comm_launcher_ranks_here() : ranks);
    CommOptions comm = {.transport = launched ? "mpi" : "threads",
                        .ranks = ranks,
                        .timeout_s = launch_timeout_s(o),
                        .check = o->check_comm,
                        .deterministic = true,
                        .threads = job->threads,
                        .bind_cores = o->bind_cores};
    job->stopped = stop_on_signals();
    return comm_launch(comm, rank_main, job);
}

Status model_verb(const Options *o, Status (*check)(const Options *), Status (*prepare)(const ModelJob *),
                  RankMain *rank_main) {
    ModelJob job = {0};
    int launched = comm_launcher_ranks(), ranks = launched ? launched : o->ranks != INT_UNSET ? o->ranks : 1;
    tell_notes(o);
    TRY(check(o));
    Status status = model_job_open(&job, o, ranks);
    if (status == OK) status = prepare(&job);
    if (status == OK) status = launch(&job, ranks, rank_main);
    model_job_close(&job);
    return status;
}
