// The loop of a run: steps, evaluations, comparisons of replicas, checkpoints, and the end.
#include "base/beat.h"
#include "base/trace.h"
#include "train/run.h"
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

// ---- reading and stopping together --------------------------------------------------------------

static void trace_span(const char *name, double start_s, int64_t iteration) {
    trace_add_phase(name, start_s, clock_s(), iteration);
}

// --exit-duration-in-mins counts from the start of the program, as limits of jobs do. At least one step is taken.
static bool is_time_up(const TrainingRun *run) {
    double minutes = (clock_s() - run->job->start_s) / 60;
    return run->control.iteration > run->first && minutes > run->options->exit_duration_in_mins;
}

// The signal that this rank has received, or 0. When the reader of the log has left, that counts as SIGPIPE.
static int signal_here(const TrainingRun *run) {
    int number = run->job->stopped ? atomic_load(run->job->stopped) : 0;
    bool unread = run->reporter && run->job->output && outlet_is_unread(run->job->output);
    return number ? number : unread ? SIGPIPE : 0;
}

// Goes on with the save under way, while the steps wait.
static Status go_on_saving(TrainingRun *run, Status go_on(Saver *saver)) {
    SaveTarget target = run->saver.target;
    int failures = run->saver.failures[target];
    double start = clock_s();
    Status status = go_on(&run->saver);
    spans_saving(&run->spans, clock_s() - start);
    save_plan_stall(&run->save_plans[target], clock_s() - start);
    if (run->saver.failures[target] > failures) save_plan_failed(&run->save_plans[target]);
    return status;
}

// Reads a batch. The ranks also share what only some of them may know: that the batch cannot be read (a token outside
// the vocabulary), that a signal came, that time is up, that a rank still writes a checkpoint.   Collective over the
// world. The state of the run is written first, since other ranks wait here under the limit between steps.
static Status load(TrainingRun *run, const GptDataset *set, int64_t consumed, int samples, Batch *batch,
                   RunVerdict *verdict) {
    run_file_saved(run->file, run->control.iteration, run->saver.last);
    double start = clock_s(), waited_s = rank_current()->waited_s;
    rank_doing("reading a batch");
    int num_microbatches = samples / (run->spec.mode.microbatch * grid_count(run->spec.grid, ROLE_DATA));
    Status status = batches_load(&run->batches, set, consumed, num_microbatches, batch);
    trace_span("batch", start, -1);
    enum { FAILED, SIGNAL, TIME, BUSY, SAVE, NUM_NEWS = SAVE + NUM_SAVE_TARGETS };
    double news[NUM_NEWS] = {status != OK, signal_here(run), is_time_up(run), saver_is_busy(&run->saver)};
    for (int i = 0; i < NUM_SAVE_TARGETS; i++)
        news[SAVE + i] = save_plan_is_due(&run->save_plans[i], run->control.iteration + 1);
    comm_all_reduce_host(run->world, news, NUM_NEWS, REDUCE_MAX);
    spans_wait(&run->spans, clock_s() - start);
    run->speeds.step_reading_s = clock_s() - start - (rank_current()->waited_s - waited_s);
    run->signal = (int)news[SIGNAL];
    for (int i = 0; i < NUM_SAVE_TARGETS; i++) run->save_asked[i] = news[SAVE + i] > 0;
    *verdict = run->signal ? STOPPED : news[TIME] > 0 ? TIME_IS_UP : GO_ON;
    if (news[FAILED] > 0) return comm_agree(run->world, status);
    return news[BUSY] > 0 ? OK : go_on_saving(run, saver_advance);
}

// With --finetune the same command would begin again.
static Status stopped(const TrainingRun *run) {
    const Options *o = run->options;
    return fail(INTERRUPTED, "stopped by a signal (SIG%s%s) after iteration %lld%s%s%s",
                sigabbrev_np(run->signal),
                run->signal == SIGPIPE ? ": the reader of standard output has left" : "",
                (long long)run->control.iteration, o->save ? "; go on with --load " : "",
                o->save ? o->save : "", o->save && o->finetune ? " and without --finetune" : "");
}

// An evaluation that a signal interrupts does not count.
static Status evaluate(TrainingRun *run, bool last) {
    const StepControl *control = &run->control;
    double start = clock_s(), sum = 0;
    PairMeans sums = {0};
    const PairMeans *pairs = engine_pair_means(run->engine);
    beat_phase(rank_current()->beat, BEAT_EVALUATING, control->iteration);
    int samples = run->options->shape.global_batch;
    int64_t consumed = run->consumed_valid;
    if (run->eval_iters) spans_flush(&run->spans);
    for (int64_t i = 0; i < run->eval_iters; i++, consumed += samples) {
        Batch batch;
        RunVerdict verdict;
        TRY(load(run, run->batches.valid, consumed, samples, &batch, &verdict));
        if (verdict == STOPPED) return stopped(run);
        sum += (double)engine_evaluate(run->engine, batch);
        if (pairs) pair_means_add(&sums, pairs, 1.0 / (double)run->eval_iters);
    }
    run->consumed_valid = consumed;
    run->evaluated = control->iteration;
    if (!run->eval_iters) return OK;
    trace_span("evaluation", start, control->iteration);
    spans_evaluation(&run->spans, control->iteration, clock_s() - start);
    run->validation = sum / (double)run->eval_iters;
    if (run->reporter)
        reporter_validation(run->reporter, control->iteration, control->consumed, run->validation,
                            pairs ? &sums : NULL, last);
    return OK;
}

Status run_evaluate(TrainingRun *run, double *loss) {
    if (!run->eval_iters)
        return fail(ERR_CONFIG, "--eval-iters 0 leaves out evaluations, or no data is held out");
    TRY(evaluate(run, false));
    *loss = run->validation;
    return OK;
}

// ---- replicas -----------------------------------------------------------------------------------

static Status compare_replicas(TrainingRun *run) {
    int64_t iteration = run->control.iteration;
    if (run->compared == iteration) return OK;
    double start = clock_s();
    TRY(replicas_compare(run->engine, run->world, iteration));
    run->compared = iteration;
    trace_span("compare replicas", start, iteration);
    spans_check(&run->spans, clock_s() - start);
    return OK;
}

static bool comparison_is_due(const TrainingRun *run) {
    int interval = run->options->check_weight_hash_across_dp_replicas_interval;
    return interval > 0 && run->control.iteration % interval == 0;
}

// ---- the checksum of the parameters -------------------------------------------------------------

static bool save_is_due(const TrainingRun *run, SaveTarget target);

static uint64_t sum_up(TrainingRun *run) {
    double start = clock_s();
    uint64_t sum = parameters_sum(run->engine, run->world);
    run->summed = run->control.iteration;
    trace_span("checksum of the parameters", start, run->summed);
    spans_check(&run->spans, clock_s() - start);
    return sum;
}

// What a run goes on with, and what it saves at a step whose record has no checksum.
static void report_parameters(TrainingRun *run) {
    if (!run->sums || run->summed == run->control.iteration) return;
    uint64_t sum = sum_up(run);
    if (run->reporter) reporter_parameters(run->reporter, run->summed, sum);
}

static void add_sum(TrainingRun *run, StepReport *step) {
    bool last = run->options->save && run->control.iteration >= run->control.end;
    if (!run->sums) return;
    step->summed =
        step->iteration % run->options->metrics_checksum_interval == 0 || last || save_is_due(run, TO_DISK);
    if (step->summed) step->sum = sum_up(run);
}

// ---- checkpoints --------------------------------------------------------------------------------

static RunState state_of(const TrainingRun *run) {
    RunState state = {.consumed_valid = run->consumed_valid,
                      .evaluated = run->evaluated,
                      .optimizer_steps = engine_optimizer_steps(run->engine)};
    control_save(&run->control, &state);
    return state;
}

// A save that has begun at `start` has a line in the ledger, unless it has failed by now.
static void record_save(TrainingRun *run, double start, bool failed, SaveTarget target) {
    double stall_s = clock_s() - start;
    save_plan_saved(&run->save_plans[target], run->control.iteration, stall_s);
    if (failed) {
        save_plan_failed(&run->save_plans[target]);
        spans_saving(&run->spans, stall_s);
    } else
        spans_save(&run->spans, run->control.iteration, stall_s, target == TO_MEMORY ? "memory" : "disk");
}

// Replicas that differ are never saved.
static Status save(TrainingRun *run, bool last) {
    int64_t iteration = run->control.iteration;
    if (!run->options->save) return OK;
    beat_phase(rank_current()->beat, BEAT_SAVING, iteration);
    TRY(go_on_saving(run, saver_finish));
    if (!saver_is_needed(&run->saver, TO_DISK, iteration)) return OK;
    TRY(compare_replicas(run));
    report_parameters(run);
    RunState state = state_of(run);
    int failures = run->saver.failures[TO_DISK];
    spans_flush(&run->spans);
    double start = clock_s();
    Status status = saver_start(&run->saver, run->engine, &state, last);
    trace_span("checkpoint", start, iteration);
    record_save(run, start, status != OK || run->saver.failures[TO_DISK] > failures, TO_DISK);
    save_plan_begin(&run->save_plans[TO_MEMORY], iteration); // it keeps this step, too
    run_file_saved(run->file, iteration, run->saver.last);
    return status;
}

Status run_save(TrainingRun *run) { return save(run, true); }

static Status save_in_memory(TrainingRun *run) {
    if (!saver_is_needed(&run->saver, TO_MEMORY, run->control.iteration)) return OK;
    TRY(compare_replicas(run));
    RunState state = state_of(run);
    int failures = run->saver.failures[TO_MEMORY];
    spans_flush(&run->spans);
    double start = clock_s();
    Status status = saver_start_in_memory(&run->saver, run->engine, &state);
    trace_span("checkpoint in memory", start, state.iteration);
    record_save(run, start, status != OK || run->saver.failures[TO_MEMORY] > failures, TO_MEMORY);
    return status;
}

static Status load_checkpoint(TrainingRun *run) {
    Restored restored;
    beat_phase(rank_current()->beat, BEAT_LOADING, -1);
    Status status =
        run_restore(run->engine, run->options, run->world, run->reporter, &run->saver.memory, &restored);
    run->saver.base = restored.base;
    if (status == OK) status = saver_check_base(&run->saver);
    if (status == OK) status = saver_take_belongings(&run->saver, &restored.belongings);
    belongings_free(&restored.belongings);
    TRY(status);
    RunState state = restored.state;
    run->saver.past = restored.past;
    if (!state.iteration) return OK;
    TRY(comm_agree(run->world, control_join_skipped(&run->control, &state)));
    control_restore(&run->control, &state);
    status = batches_suffice(&run->batches, control_consumed_at_end(&run->control));
    TRY(comm_agree(run->world, status));
    run->consumed_valid = state.consumed_valid;
    run->evaluated = state.evaluated;
    run->first = state.iteration;
    run->from_memory = restored.from_memory;
    run->saver.last = restored.on_disk;
    return OK;
}

// ---- the loop -----------------------------------------------------------------------------------

// Prints a log line when it is due, or `now`, over the steps since the last one.
static void report(TrainingRun *run, Interval *interval, bool now) {
    int64_t iteration = run->control.iteration;
    bool line = iteration == 1 || iteration % run->options->log_interval == 0 || now;
    if (!interval->iterations) return;
    StepReport mean = interval_mean(interval);
    if (run->reporter && line) reporter_line(run->reporter, &mean);
    if (run->reporter && !line) reporter_progress(run->reporter, &mean);
    if (line) spans_log_line(&run->spans);
    if (line) *interval = (Interval){0};
}

// The report of the last step. As in Megatron-LM, learning rate and loss scale are those of the next step.
static StepReport step_report(const TrainingRun *run, int samples, const StepResult *result,
                              double elapsed_s) {
    StepOptions next = control_options(&run->control);
    const PairMeans *pairs = engine_pair_means(run->engine);
    StepReport report = {.preferences = pairs != NULL,
                         .loads = engine_expert_loads(run->engine),
                         .iteration = run->control.iteration,
                         .consumed = run->control.consumed,
                         .end = run->control.end,
                         .batch = samples,
                         .loss = (double)result->loss,
                         .grad_norm = result->grad_norm,
                         .lr = next.lr,
                         .loss_scale = next.loss_scale,
                         .samples_per_step = samples,
                         .elapsed_s = elapsed_s,
                         .skipped = !result->finite,
                         .nan = !isfinite(result->loss)};
    if (pairs) report.pairs = *pairs;
    return report;
}

// Returns the usual loss where this one is a spike, else 0.
static double report_step(TrainingRun *run, const StepReport *step, Interval *interval) {
    double usual = control_spike(&run->control, step->loss);
    if (run->reporter) reporter_metrics(run->reporter, step);
    if (run->reporter && usual > 0) reporter_spike(run->reporter, step, usual);
    interval_add(interval, step);
    report(run, interval, false);
    return usual;
}

// Prints once how long evaluations will take, where the default of 100 batches, Megatron-LM's, is a large share of a
// short run. A forward takes about a third of a step. The first step is not used, since it is slower.
static void report_evaluation_cost(TrainingRun *run, const StepReport *step) {
    int64_t at = step->iteration, end = step->end, interval = run->options->eval_interval;
    bool timed = at > run->first + 1 || at == end;
    if (run->warned_of_evaluation || !run->reporter || !timed) return;
    run->warned_of_evaluation = true;
    int64_t batches = run->eval_iters * ((end - 1) / interval - (at - 1) / interval + 1);
    double steps = (double)batches / 3, share = steps / (steps + (double)(end - run->first));
    if (options_origin(run->options, "eval_iters") == FROM_DEFAULT && share >= 0.1)
        reporter_evaluation_cost(run->reporter, batches, steps * step->elapsed_s, share);
}

// Intervals that are auto: learns from the step, and tells when one changes.
static void plan_saves(TrainingRun *run, double step_s) {
    for (int i = 0; i < NUM_SAVE_TARGETS; i++) {
        SavePlan *plan = &run->save_plans[i];
        save_plan_step(plan, step_s);
        if (run->reporter && save_plan_choose(plan, clock_s())) reporter_save_interval(run->reporter, plan);
    }
}

static Status one_iteration(TrainingRun *run, Interval *interval, RunVerdict *verdict) {
    StepControl *control = &run->control;
    int samples = control_batch(control);
    double start = clock_s();
    if (run->reporter) reporter_show(run->reporter);
    beat_phase(rank_current()->beat, BEAT_TRAINING, control->iteration + 1);
    Batch batch;
    TRY(load(run, run->batches.train, control->consumed, samples, &batch, verdict));
    if (*verdict != GO_ON) return OK;
    memcpy(run->save_due, run->save_asked, sizeof run->save_due);
    run_set_limit(run, patience_in_step(&run->patience, samples));
    if (audit_is_due(run)) TRY(run_audit(run, &batch));
    double loaded = clock_s();
    run_step_begins(run);
    StepResult result = engine_train(run->engine, batch, control_options(control));
    run_step_computed(run, samples);
    if (result.differs) return run_blame(run);
    run_set_limit(run, patience_between_steps(&run->patience));
    control_advance(control, samples, &result);
    run->samples += samples;
    run->microbatches += batch.num_microbatches;
    trace_span("step", start, control->iteration);
    spans_step(&run->spans, control->iteration, clock_s() - loaded);
    StepReport step = step_report(run, samples, &result, clock_s() - start);
    run->last = (RunStep){
        .loss = step.loss, .grad_norm = step.grad_norm, .seconds = step.elapsed_s, .skipped = step.skipped};
    run->train_s += step.elapsed_s;
    plan_saves(run, step.elapsed_s);
    patience_learn(&run->patience, step.elapsed_s, samples);
    run->skipped += step.skipped;
    add_sum(run, &step);
    run_compare_speeds(run);
    double usual = report_step(run, &step, interval);
    report_evaluation_cost(run, &step);
    Status status = control_check(control, &result);
    if (!rewind_is_due(run, &result, usual, status)) return status;
    report(run, interval, true);
    *verdict = WENT_BACK;
    return run_rewind(run, &step, usual);
}

// Samples at the end that do not fill a batch are not used: see RunShape.train_iters.
static bool is_over(const TrainingRun *run) { return run->control.iteration >= run->control.end; }

static bool at_exit_interval(const TrainingRun *run) {
    int interval = run->options->exit_interval;
    return interval != INT_UNSET && run->control.iteration % interval == 0;
}

// True also for the evaluation that a run was stopped before.
static bool evaluation_is_due(const TrainingRun *run) {
    int64_t iteration = run->control.iteration;
    return iteration > 0 && iteration % run->options->eval_interval == 0 && run->evaluated < iteration;
}

static bool save_is_due(const TrainingRun *run, SaveTarget target) {
    const Options *o = run->options;
    int64_t interval = target == TO_MEMORY ? o->memory_save_interval : o->save_interval;
    if (interval == INT_AUTO) return run->save_due[target];
    return interval != INT_UNSET && run->control.iteration % interval == 0;
}

// As in Megatron-LM, an evaluation comes before a checkpoint of the same iteration, and both before --exit-interval.
static Status take_steps(TrainingRun *run, Interval *interval, RunVerdict *verdict) {
    while (!is_over(run) && *verdict == GO_ON) {
        if (evaluation_is_due(run)) TRY(evaluate(run, false));
        TRY(run_between(run, verdict));
        if (*verdict != GO_ON) return OK;
        TRY(one_iteration(run, interval, verdict));
        if (*verdict == WENT_BACK) {
            *verdict = GO_ON;
            continue;
        }
        if (*verdict != GO_ON) return OK;
        if (comparison_is_due(run)) TRY(compare_replicas(run));
        if (is_over(run)) return OK;
        if (evaluation_is_due(run)) TRY(evaluate(run, false));
        if (save_is_due(run, TO_DISK))
            TRY(save(run, false));
        else if (save_is_due(run, TO_MEMORY))
            TRY(save_in_memory(run));
        if (at_exit_interval(run)) *verdict = TIME_IS_UP;
    }
    return OK;
}

// Completes the save under way, which began before the failure. The message of the failure is kept.
static Status finish_save(TrainingRun *run, Status status) {
    char why[sizeof rank_current()->message];
    snprintf(why, sizeof why, "%s", fail_message());
    saver_finish(&run->saver);
    return fail(status, "%s", why);
}

// A run that ends early saves a checkpoint but makes no last evaluation. The last evaluation comes after the last
// checkpoint, so that a run which continues from it is the same as a longer run.
static Status loop(TrainingRun *run) {
    Interval interval = {0};
    RunVerdict verdict = GO_ON;
    Status status = take_steps(run, &interval, &verdict);
    if (status == OK && verdict == GO_ON) status = run_between(run, &verdict);
    report(run, &interval, true);
    Status ended = status;
    if (status == OK || status == INTERRUPTED) status = save(run, true);
    if (status != OK) return finish_save(run, status);
    if (verdict == STOPPED || ended == INTERRUPTED) return stopped(run);
    return verdict == GO_ON ? evaluate(run, true) : OK;
}

// ---- the whole run ------------------------------------------------------------------------------

// Writes the trace also after a failure. The message of the failure is kept.
static Status write_trace(TrainingRun *run, Status status) {
    if (!run->trace.path) return status;
    char why[sizeof rank_current()->message];
    snprintf(why, sizeof why, "%s", fail_message());
    uint64_t lost;
    Status written = trace_file_write(&run->trace, &run->spec, engine_schedule(run->engine), &lost);
    if (lost && run->reporter) reporter_lost_events(run->reporter, lost);
    return status == OK ? written : fail(status, "%s", why);
}

static Status train(TrainingRun *run) {
    TRY(run_open(run));
    if (run->options->dry_run) return run_dry(run);
    TRY(engine_open_empty(&run->engine, &run->spec, run->world));
    TRY(run_open_stragglers(run));
    TRY(trace_file_start(&run->trace, run->options));
    spans_ready(&run->spans);
    if (run->file) run->file->memory_bytes = (int64_t)engine_memory(run->engine)->total;
    if (run->reporter)
        reporter_start(run->reporter, &run->spec, engine_memory(run->engine),
                       comm_device_transport(run->world));
    run_announce_audits(run);
    TRY(load_checkpoint(run));
    TRY(saver_check_room(&run->saver, &run->spec.shape, run->control.iteration, run->control.end));
    run_skip(run);
    TRY(references_prepare(run));
    TRY(compare_replicas(run));
    if (run->first > 0) report_parameters(run);
    if (run->reporter && is_over(run))
        reporter_nothing_to_train(run->reporter, run->control.iteration, run->control.consumed,
                                  run->control.end);
    TRY(saver_take_memory(&run->saver, run->engine, run->first > 0));
    for (int i = 0; i < NUM_SAVE_TARGETS; i++) save_plan_begin(&run->save_plans[i], run->first);
    spans_loaded(&run->spans, run->first, !run->first ? "nothing" : run->from_memory ? "memory" : "disk");
    Status status = loop(run);
    beat_phase(rank_current()->beat, BEAT_ENDING, -1);
    if (status == OK || status == INTERRUPTED) run_sum_up(run);
    return write_trace(run, status);
}

// Called while the run still holds the lock on its folder.
static void end_run_file(const TrainingRun *run, Status status) {
    if (!run->file || run->options->dry_run) return;
    run->file->iteration = run->control.iteration;
    run->file->saved = run->saver.last;
    run->file->signal = run->signal;
    RunEnd end = status == OK && is_over(run) ? RUN_DONE : RUN_INTERRUPTED;
    run_file_end(run->file, end, status);
}

Status train_run(Comm *world, void *arg) {
    const TrainJob *job = arg;
    Reporter reporter = {0};
    TrainingRun run = {.job = job,
                       .options = job->options,
                       .world = world,
                       .last = {.loss = NAN, .grad_norm = NAN},
                       .compared = -1,
                       .summed = -1,
                       .saver = {.lock = -1}};
    if (comm_rank(world) == 0 && !job->quiet) run.reporter = &reporter;
    if (comm_rank(world) == 0) run.file = job->file;
    Status status = train(&run);
    trace_file_close(&run.trace);
    status = reporter_close(&reporter, status);
    end_run_file(&run, status);
    spans_end(&run.spans, run.control.iteration, status, run.signal);
    saver_close(&run.saver);
    engine_close(run.engine);
    batches_close(&run.batches);
    stragglers_close(&run.speeds.all);
    references_close(&run.references);
    free(run.spec_room);
    return status;
}
