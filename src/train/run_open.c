// Opens a run before its first step, or prints what it would take (--dry-run).
#include "base/cores.h"
#include "train/run.h"
#include <stdio.h>
#include <stdlib.h>

// Fails on all ranks or on none.
static Status make_spec(TrainingRun *run) {
    const Options *o = run->options;
    run->spec_room = calloc((size_t)engine_spec_room(o), sizeof *run->spec_room);
    if (!run->spec_room) return fail(ERR_OS, "no memory for %d stages", o->shape.pp * o->shape.vp);
    const int threads = o->threads != INT_UNSET ? o->threads : cores_limit(run->job->threads);
    return engine_spec(o, threads, run->batches.vocabulary, run->spec_room, &run->spec);
}

// The schedule says which pipeline ranks hold the two ends of the model.
static Status find_topology(const EngineSpec *spec, int rank, Topology *topology) {
    Schedule schedule;
    ScheduleSpec from = engine_schedule_spec(spec, spec->num_microbatches);
    TRY(schedule_create(&schedule, &from));
    *topology = schedule_topology(&schedule, spec->grid, rank);
    schedule_destroy(&schedule);
    return OK;
}

void run_set_limit(TrainingRun *run, WaitLimit limit) {
    comm_set_timeout(run->world, limit.seconds, limit.reason);
}

Status run_open(TrainingRun *run) {
    const Options *o = run->options;
    TRY(compare_resolved(o, run->world));
    rank_doing("opening the data");
    TRY(batches_look(&run->batches, o, run->world));
    Topology topology;
    TRY(make_spec(run));
    TRY(find_topology(&run->spec, comm_rank(run->world), &topology));
    Status opened = o->dry_run ? OK : batches_open(&run->batches, o, &topology);
    TRY(comm_agree(run->world, opened));
    run->control = control_open(o);
    // Other ranks wait while one checkpoint is written and read back, or while as many as --keep-last are verified.
    int64_t largest, saved;
    TRY(spec_state_bytes(&run->spec, true, &largest));
    TRY(spec_state_bytes(&run->spec, o->save_optim, &saved));
    run->patience = patience_open(o, (2 + o->keep_last) * (double)largest);
    run_set_limit(run, patience_between_steps(&run->patience));
    Status status = run->reporter ? reporter_open(run->reporter, run->job, &run->spec) : OK;
    TRY(comm_agree(run->world, status));
    TRY(trace_file_open(&run->trace, o, run->world));
    run_set_limit(run, patience_for_lock(&run->patience));
    if (!o->dry_run) TRY(saver_open(&run->saver, o, run->job->stopped, run->world, run->reporter));
    run_set_limit(run, patience_between_steps(&run->patience));
    if (!o->dry_run) status = run_file_start(run->file, run->control.end, run->saver.lock);
    if (!o->dry_run && run->reporter && status == OK) status = spans_open(&run->spans, o, run->job->start_s);
    if (run->reporter) save_plans_open(run->save_plans, o, run->spans.path, (double)saved, clock_s());
    run->sums = run->reporter && run->reporter->metrics.json && o->metrics_checksum_interval > 0;
    comm_broadcast_host(run->world, &run->sums, sizeof run->sums, 0);
    TRY(comm_agree(run->world, status));
    run->bytes_before =
        resident_bytes(run->world, false);         // no rank allocates its arenas before the next call
    double evaluates = run->batches.valid != NULL; // NULL on ranks that read nothing
    comm_all_reduce_host(run->world, &evaluates, 1, REDUCE_MAX);
    run->eval_iters = evaluates > 0 ? o->shape.eval_iters : 0;
    if (run->reporter && o->shape.eval_iters > 0 && !run->eval_iters && !o->dry_run)
        printf("the data set is too small for --split %s: there will be no evaluation\n", o->split);
    if (run->reporter) batches_warn(&run->batches, o);
    rank_doing("setting up the model");
    return OK;
}

static void print_plan(TrainingRun *run, const EngineMemory *memory, const Text *report) {
    Text options = {0};
    options_print(run->options, FOR_TRAIN, &options);
    fputs(text_string(&options), stdout);
    reporter_start(run->reporter, &run->spec, memory, NULL);
    printf("%sone step of rank 0 takes %.3f TFLOP, of the whole model %.3f TFLOP; nothing was trained "
           "(--dry-run)\n",
           text_string(report), memory->flops / 1e12,
           model_flops(&run->spec.shape, run->spec.mode.padded_vocabulary, run->options->shape.global_batch) /
               1e12);
    text_free(&options);
}

Status run_dry(TrainingRun *run) {
    EngineMemory memory;
    Text report = {0};
    Status status = OK;
    if (run->reporter) {
        const EngineSpec here = engine_spec_here(&run->spec, 0);
        status = engine_measure(&here, 0, &memory, NULL);
        if (status == OK) status = memory_add(&here, &report);
        if (status == OK) print_plan(run, &memory, &report);
    }
    text_free(&report);
    return comm_agree(run->world, status);
}
