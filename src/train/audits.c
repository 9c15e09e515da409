// Audits of a run's steps (--audit-interval): when they are due, and what they read.
#include "base/trace.h"
#include "train/run.h"
#include <stdio.h>

void run_announce_audits(const TrainingRun *run) {
    if (!run->reporter || !run->spec.audits || grid_count(run->spec.grid, ROLE_DATA) > 1) return;
    printf(
        "--audit-interval with one data-parallel rank: each rank computes its own microbatches twice, so audits "
        "find faults that come and go, but not a processor that is always wrong\n");
}

bool audit_is_due(const TrainingRun *run) {
    return run->spec.audits && (run->control.iteration + 1) % run->options->audit_interval == 0;
}

static Status read_audited(void *self, AuditPart part, int data_rank, Batch *batch) {
    TrainingRun *run = self;
    return batches_load_audited(&run->batches, run->control.consumed, part, data_rank, batch);
}

Status run_audit(TrainingRun *run, const Batch *batch) {
    double start = clock_s();
    int64_t step = run->control.iteration + 1;
    Batch audited;
    rank_doing("reading a batch for an audit");
    AuditPart part =
        engine_audit_part(run->engine, batch->num_microbatches, step / run->options->audit_interval - 1);
    TRY(comm_agree(run->world, read_audited(run, part, engine_audited_rank(run->engine), &audited)));
    engine_audit(run->engine, part, audited, control_options(&run->control).loss_scale);
    trace_add_phase("audit", start, clock_s(), step);
    spans_check(&run->spans, clock_s() - start);
    return OK;
}

Status run_blame(TrainingRun *run) {
    double start = clock_s();
    Status status = engine_blame(run->engine, run->control.iteration + 1, read_audited, run);
    trace_add_phase("audit", start, clock_s(), run->control.iteration + 1);
    return status;
}
