// Starts the ranks of the verbs that use a trained model.
#include "cli/model_verb.h"
#include "device/device.h"
#include "train/train.h"

static Status open_job(ModelJob *job, const Options *o, Status (*check)(const Options *),
                       Status (*prepare)(const ModelJob *)) {
    int launched = launcher_ranks(), ranks = launched ? launched : o->ranks != INT_UNSET ? o->ranks : 1;
    tell_notes(o);
    TRY(check(o));
    TRY(device_check(o->device));
    TRY(model_job_open(job, o, ranks));
    TRY(prepare(job));
    job->threads = threads_per_rank(o, launched ? launcher_ranks_here() : ranks);
    job->stopped = stop_on_signals();
    return OK;
}

Status model_verb(const Options *o, Status (*check)(const Options *), Status (*prepare)(const ModelJob *),
                  RankMain *rank_main, struct Perplexity *measured) {
    ModelJob job = {0};
    Text common = {0};
    prepare_links(o);
    list_common(o, &common);
    Status status = open_job(&job, o, check, prepare);
    job.measured = measured;
    status = start_ranks(o, status, &common, job.threads, job.stopped, rank_main, &job);
    text_free(&common);
    model_job_close(&job);
    return status;
}
