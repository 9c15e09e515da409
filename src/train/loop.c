#include "base/trace.h"
#include "train/internal.h"
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    const TrainJob *job;
    const Options *options;
    Comm *world;
    int *spec_room; // what the spec borrows
    EngineSpec spec;
    Batches batches;
    Engine *engine;
    StepControl control;
    Patience patience;
    TraceFile trace;
    Reporter *reporter; // NULL on ranks that print nothing
    RunFile *file;      // NULL on ranks that keep no state of the run
    Saver saver;
    int64_t consumed_valid, eval_iters;
    int64_t evaluated;         // iteration of the last evaluation
    int64_t compared;          // iteration after which replicas were compared last; -1: never
    int64_t first;             // iteration that this run began with
    int64_t microbatches;      // that went through this rank's chunks
    int64_t samples;           // that this run trained on
    int64_t skipped;           // steps that changed nothing
    double train_s;            // spent in training steps
    int signal;                // that asked for the end; 0: none did
    double bytes_before;       // resident in this process before the model
    bool warned_of_evaluation; // what it will cost
} TrainingRun;

// ---- before the first step ----------------------------------------------------------------------

// Both fail alike on all ranks.
static Status make_spec(TrainingRun *run) {
    const Options *o = run->options;
    run->spec_room = calloc((size_t)engine_spec_room(o), sizeof *run->spec_room);
    if (!run->spec_room) return fail(ERR_OS, "no memory for %d stages", o->shape.pp * o->shape.vp);
    return engine_spec(o, run->job->threads, run->batches.vocabulary, run->spec_room, &run->spec);
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

static void set_limit(TrainingRun *run, WaitLimit limit) {
    comm_set_timeout(run->world, limit.seconds, limit.reason);
}

static Status open_run(TrainingRun *run) {
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
    // One is written and read back while others wait, or as many are verified as --keep-last keeps.
    double checkpoint_bytes = 12.0 * (double)model_parameters(&run->spec.shape);
    run->patience = patience_open(o, (2 + o->keep_last) * checkpoint_bytes);
    set_limit(run, patience_between_steps(&run->patience));
    Status status = run->reporter ? reporter_open(run->reporter, o, &run->spec, run->job->stopped) : OK;
    TRY(comm_agree(run->world, status));
    TRY(trace_file_open(&run->trace, o, run->world));
    set_limit(run, patience_for_lock(&run->patience));
    if (!o->dry_run) TRY(saver_open(&run->saver, o, run->job->stopped, run->world, run->reporter));
    set_limit(run, patience_between_steps(&run->patience));
    if (!o->dry_run) status = run_file_start(run->file, run->control.end, run->saver.lock);
    TRY(comm_agree(run->world, status));
    run->bytes_before = resident_bytes(run->world, false); // no rank takes its arenas before the next call
    double evaluates = run->batches.valid != NULL;         // some ranks read nothing
    comm_all_reduce_host(run->world, &evaluates, 1, REDUCE_MAX);
    run->eval_iters = evaluates > 0 ? o->shape.eval_iters : 0;
    if (run->reporter && o->shape.eval_iters > 0 && !run->eval_iters && !o->dry_run)
        printf("the data set is too small for --split %s: nothing will be evaluated\n", o->split);
    if (run->reporter) batches_warn(&run->batches, o);
    rank_doing("setting up the model");
    return OK;
}

static void print_plan(TrainingRun *run, const EngineMemory *memory, const Text *report) {
    Text options = {0};
    options_print(run->options, FOR_TRAIN, &options);
    fputs(text_string(&options), stdout);
    reporter_start(run->reporter, &run->spec, memory);
    printf("%sone step of rank 0 takes %.3f TFLOP, of the whole model %.3f TFLOP; nothing was trained "
           "(--dry-run)\n",
           text_string(report), memory->flops / 1e12,
           model_flops(&run->spec.shape, run->spec.mode.padded_vocabulary, run->options->shape.global_batch) /
               1e12);
    text_free(&options);
}

// --dry-run: everything but the memory and the steps.
static Status dry_run(TrainingRun *run) {
    EngineMemory memory;
    Text report = {0};
    Status status = OK;
    if (run->reporter) {
        status = engine_measure(&run->spec, 0, &memory, NULL);
        if (status == OK) status = memory_add(&run->spec, &report);
        if (status == OK) print_plan(run, &memory, &report);
    }
    text_free(&report);
    return comm_agree(run->world, status);
}

// ---- reading and stopping together --------------------------------------------------------------

typedef enum { GO_ON, STOPPED, TIME_IS_UP } Verdict;

static void trace_span(const char *name, double start_s, int64_t iteration) {
    trace_add((TraceEvent){.start_s = start_s,
                           .end_s = clock_s(),
                           .name = name,
                           .chunk = -1,
                           .microbatch = (int32_t)iteration,
                           .peer = -1,
                           .row = TRACE_STEP});
}

// --exit-duration-in-mins counts from the program's start, as limits of jobs do, and lets one step be taken.
static bool is_time_up(const TrainingRun *run) {
    double minutes = (clock_s() - run->job->start_s) / 60;
    return run->control.iteration > run->first && minutes > run->options->exit_duration_in_mins;
}

// A signal that this rank knows of; that the log's reader has left counts as the one that it usually brings.
static int signal_here(const TrainingRun *run) {
    int number = run->job->stopped ? atomic_load(run->job->stopped) : 0;
    bool unread = run->reporter && run->job->output && outlet_is_unread(run->job->output);
    return number ? number : unread ? SIGPIPE : 0;
}

// Reads a batch. What some ranks alone may know is shared on the way: that it cannot be read (a token outside
// the vocabulary), that a signal came, that time is up, that it still writes a checkpoint.   Collective over
// the world.
// The state of the run is written first: the others wait for it here under the limit between steps.
static Status load(TrainingRun *run, const GptDataset *set, int64_t consumed, int samples, Batch *batch,
                   Verdict *verdict) {
    run_file_saved(run->file, run->control.iteration, run->saver.last);
    double start = clock_s();
    rank_doing("reading a batch");
    int num_microbatches = samples / (run->spec.mode.microbatch * grid_count(run->spec.grid, ROLE_DATA));
    Status status = batches_load(&run->batches, set, consumed, num_microbatches, batch);
    trace_span("batch", start, -1);
    enum { FAILED, SIGNAL, TIME, BUSY, NUM_NEWS };
    double news[NUM_NEWS] = {status != OK, signal_here(run), is_time_up(run), saver_is_busy(&run->saver)};
    comm_all_reduce_host(run->world, news, NUM_NEWS, REDUCE_MAX);
    run->signal = (int)news[SIGNAL];
    *verdict = run->signal ? STOPPED : news[TIME] > 0 ? TIME_IS_UP : GO_ON;
    if (news[FAILED] > 0) return comm_agree(run->world, status);
    return news[BUSY] > 0 ? OK : saver_advance(&run->saver);
}

static Status stopped(const TrainingRun *run) {
    const char *folder = run->options->save;
    return fail(
        INTERRUPTED, "stopped by a signal (SIG%s%s) after iteration %lld%s%s", sigabbrev_np(run->signal),
        run->signal == SIGPIPE ? ": standard output has no reader any more" : "",
        (long long)run->control.iteration, folder ? "; go on with --load " : "", folder ? folder : "");
}

// An evaluation that a signal breaks off has not been.
static Status evaluate(TrainingRun *run, bool last) {
    const StepControl *control = &run->control;
    double start = clock_s(), sum = 0;
    int samples = run->options->shape.global_batch;
    int64_t consumed = run->consumed_valid;
    for (int64_t i = 0; i < run->eval_iters; i++, consumed += samples) {
        Batch batch;
        Verdict verdict;
        TRY(load(run, run->batches.valid, consumed, samples, &batch, &verdict));
        if (verdict == STOPPED) return stopped(run);
        sum += (double)engine_evaluate(run->engine, batch);
    }
    run->consumed_valid = consumed;
    run->evaluated = control->iteration;
    if (!run->eval_iters) return OK;
    trace_span("evaluation", start, control->iteration);
    if (run->reporter)
        reporter_validation(run->reporter, control->iteration, control->consumed,
                            sum / (double)run->eval_iters, last);
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
    return OK;
}

static bool comparison_is_due(const TrainingRun *run) {
    int interval = run->options->check_weight_hash_across_dp_replicas_interval;
    return interval > 0 && run->control.iteration % interval == 0;
}

// ---- checkpoints --------------------------------------------------------------------------------

// No checkpoint is made of replicas that differ.
static Status save(TrainingRun *run, bool last) {
    if (!run->options->save) return OK;
    TRY(compare_replicas(run));
    RunState state = {.consumed_valid = run->consumed_valid,
                      .evaluated = run->evaluated,
                      .optimizer_steps = engine_optimizer_steps(run->engine)};
    control_save(&run->control, &state);
    double start = clock_s();
    Status status = saver_start(&run->saver, run->engine, &state, last);
    trace_span("checkpoint", start, state.iteration);
    run_file_saved(run->file, run->control.iteration, run->saver.last);
    return status;
}

static Status load_checkpoint(TrainingRun *run) {
    RunState state;
    TRY(restore(run->engine, run->options, run->world, run->reporter, &state));
    if (!state.iteration) return OK;
    control_restore(&run->control, &state);
    Status status = batches_suffice(&run->batches, control_consumed_at_end(&run->control));
    TRY(comm_agree(run->world, status));
    run->consumed_valid = state.consumed_valid;
    run->evaluated = state.evaluated;
    run->first = state.iteration;
    // In another folder it is not there yet. Rank 0 decides: ranks that see different files must save alike.
    bool same_folder = saves_where_it_loads(run->options);
    comm_broadcast_host(run->world, &same_folder, sizeof same_folder, 0);
    if (same_folder) run->saver.last = state.iteration;
    return OK;
}

// ---- the loop -----------------------------------------------------------------------------------

// Writes the line that is due, or, `now`, the line of what has gathered.
static void report(TrainingRun *run, Interval *interval, bool now) {
    int64_t iteration = run->control.iteration;
    bool line = iteration == 1 || iteration % run->options->log_interval == 0 || now;
    if (!interval->iterations) return;
    StepReport mean = interval_mean(interval);
    if (run->reporter && line) reporter_line(run->reporter, &mean);
    if (run->reporter && !line) reporter_progress(run->reporter, &mean);
    if (line) *interval = (Interval){0};
}

// The step just done. As in Megatron-LM learning rate and loss scale are those of the next one.
static StepReport step_report(const TrainingRun *run, int samples, const StepResult *result,
                              double elapsed_s) {
    StepOptions next = control_options(&run->control);
    return (StepReport){.iteration = run->control.iteration,
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
}

static void report_step(TrainingRun *run, const StepReport *step, Interval *interval) {
    double usual = control_spike(&run->control, step->loss);
    if (run->reporter) reporter_metrics(run->reporter, step);
    if (run->reporter && usual > 0) reporter_spike(run->reporter, step, usual);
    interval_add(interval, step);
    report(run, interval, false);
}

// The default is Megatron-LM's 100 batches, which may take longer than a short run. A forward is about a third of a
// step. The first step is left out: it warms up.
static void tell_evaluation(TrainingRun *run, const StepReport *step) {
    int64_t at = step->iteration, end = step->end, interval = run->options->eval_interval;
    bool timed = at > run->first + 1 || at == end;
    if (run->warned_of_evaluation || !run->reporter || !timed) return;
    run->warned_of_evaluation = true;
    int64_t batches = run->eval_iters * ((end - 1) / interval - (at - 1) / interval + 1);
    double steps = (double)batches / 3, share = steps / (steps + (double)(end - run->first));
    if (options_origin(run->options, "eval_iters") == FROM_DEFAULT && share >= 0.1)
        reporter_evaluation_cost(run->reporter, batches, steps * step->elapsed_s, share);
}

static Status one_iteration(TrainingRun *run, Interval *interval, Verdict *verdict) {
    StepControl *control = &run->control;
    int samples = control_batch(control);
    double start = clock_s();
    Batch batch;
    TRY(load(run, run->batches.train, control->consumed, samples, &batch, verdict));
    if (*verdict != GO_ON) return OK;
    set_limit(run, patience_in_step(&run->patience, samples));
    StepResult result = engine_train(run->engine, batch, control_options(control));
    set_limit(run, patience_between_steps(&run->patience));
    control_advance(control, samples, &result);
    run->samples += samples;
    run->microbatches += batch.num_microbatches;
    trace_span("step", start, control->iteration);
    StepReport step = step_report(run, samples, &result, clock_s() - start);
    run->train_s += step.elapsed_s;
    patience_learn(&run->patience, step.elapsed_s, samples);
    run->skipped += step.skipped;
    report_step(run, &step, interval);
    tell_evaluation(run, &step);
    return control_check(control, &result);
}

// Less than a whole batch at the end of the samples is left over: see RunShape.train_iters.
static bool is_over(const TrainingRun *run) { return run->control.iteration >= run->control.end; }

static bool at_exit_interval(const TrainingRun *run) {
    int interval = run->options->exit_interval;
    return interval != INT_UNSET && run->control.iteration % interval == 0;
}

// Also that of a run which was stopped before it.
static bool evaluation_is_due(const TrainingRun *run) {
    int64_t iteration = run->control.iteration;
    return iteration > 0 && iteration % run->options->eval_interval == 0 && run->evaluated < iteration;
}

static bool save_is_due(const TrainingRun *run) {
    int64_t interval = run->options->save_interval;
    return interval != INT_UNSET && run->control.iteration % interval == 0;
}

// As in Megatron-LM an evaluation that is due comes before a checkpoint, and both before the look at
// --exit-interval.
static Status take_steps(TrainingRun *run, Interval *interval, Verdict *verdict) {
    while (!is_over(run) && *verdict == GO_ON) {
        if (evaluation_is_due(run)) TRY(evaluate(run, false));
        TRY(one_iteration(run, interval, verdict));
        if (*verdict != GO_ON) return OK;
        if (comparison_is_due(run)) TRY(compare_replicas(run));
        if (is_over(run)) return OK;
        if (evaluation_is_due(run)) TRY(evaluate(run, false));
        if (save_is_due(run)) TRY(save(run, false));
        if (at_exit_interval(run)) *verdict = TIME_IS_UP;
    }
    return OK;
}

// What was fit to be saved before the run went wrong is.
static Status finish_save(TrainingRun *run, Status status) {
    char why[sizeof rank_current()->message];
    snprintf(why, sizeof why, "%s", fail_message());
    saver_finish(&run->saver);
    return fail(status, "%s", why);
}

// Who leaves early leaves without a last evaluation, but not without a checkpoint. The last evaluation comes
// after it: a longer run would not make it.
static Status loop(TrainingRun *run) {
    Interval interval = {0};
    Verdict verdict = GO_ON;
    Status status = take_steps(run, &interval, &verdict);
    report(run, &interval, true);
    Status ended = status;
    if (status == OK || status == INTERRUPTED) status = save(run, true);
    if (status != OK) return finish_save(run, status);
    if (verdict == STOPPED || ended == INTERRUPTED) return stopped(run);
    return verdict == GO_ON ? evaluate(run, true) : OK;
}

// ---- afterwards ---------------------------------------------------------------------------------

// Every stage's measured times, on every rank; then the schedule is walked with them.   Collective over the
// world.
static double replayed_bubble(TrainingRun *run) {
    const Schedule *schedule = engine_schedule(run->engine);
    int num_stages = schedule->num_ranks * schedule->num_chunks;
    PipelineTimes times = engine_times(run->engine);
    double *us = calloc((size_t)(3 * num_stages), sizeof *us);
    CHECK(us, "no memory for %d stages", num_stages);
    Grid grid = run->spec.grid;
    double runs = (double)run->microbatches * (grid_size(grid) / grid_count(grid, ROLE_PIPELINE));
    for (int c = 0; c < schedule->num_chunks && runs > 0; c++) {
        int stage = schedule_stage(schedule, context_rank(engine_context(run->engine), ROLE_PIPELINE), c);
        us[stage] = 1e6 * times.chunks[c].forward_s / runs;
        us[num_stages + stage] = 1e6 * times.chunks[c].backward_s / runs;
        us[2 * num_stages + stage] = 1e6 * times.chunks[c].weight_s / runs;
    }
    comm_all_reduce_host(run->world, us, 3 * num_stages, REDUCE_SUM);
    Simulation simulation;
    schedule_simulate(schedule, schedule_costs_of_stages(us, num_stages), &simulation);
    double bubble = simulation.bubble;
    simulation_destroy(&simulation, schedule);
    free(us);
    return bubble;
}

static void sum_up(TrainingRun *run) {
    const RunShape *shape = &run->options->shape;
    ScheduleSpec spec = engine_schedule_spec(&run->spec, run->spec.num_microbatches);
    PipelineTimes times = engine_times(run->engine);
    double waits[2] = {times.wait_s, times.total_s};
    comm_all_reduce_host(run->world, waits, 2, REDUCE_SUM);
    double memory[3] = {resident_bytes(run->world, true), run->bytes_before,
                        (double)engine_memory(run->engine)->total};
    comm_all_reduce_host(run->world, memory, 3, REDUCE_SUM);
    RunSummary summary = {
        .iterations = run->control.iteration - run->first,
        .skipped = run->skipped,
        .samples = run->samples,
        .seconds = run->train_s,
        .formula = schedule_kind(shape->schedule)->bubble(&spec),
        .replay = shape->pp > 1 && run->control.iteration > run->first ? replayed_bubble(run) : 0,
        .waited = waits[1] > 0 ? waits[0] / waits[1] : 0,
        .busy_threads = run->job->ranks_here * run->spec.threads,
        .cores = (int)sysconf(_SC_NPROCESSORS_ONLN),
        .resident_bytes = memory[0],
        .bytes_before = memory[1],
        .predicted_bytes = memory[2],
    };
    if (run->reporter) reporter_summary(run->reporter, &summary);
}

// However the steps ended, what they did is worth a look; why they ended is what is told.
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
    TRY(open_run(run));
    if (run->options->dry_run) return dry_run(run);
    TRY(engine_open(&run->engine, &run->spec, run->world));
    TRY(trace_file_start(&run->trace, run->options));
    if (run->reporter) reporter_start(run->reporter, &run->spec, engine_memory(run->engine));
    TRY(load_checkpoint(run));
    TRY(saver_check_room(&run->saver, &run->spec.shape, run->control.iteration, run->control.end));
    TRY(compare_replicas(run));
    if (run->reporter && is_over(run))
        reporter_nothing_to_train(run->reporter, run->control.iteration, run->control.end);
    TRY(saver_take_memory(&run->saver, run->engine));
    Status status = loop(run);
    if (status == OK || status == INTERRUPTED) sum_up(run);
    return write_trace(run, status);
}

// Lost metrics are the run's error only where it has no other.
static Status close_reporter(Reporter *reporter, Status status) {
    char why[sizeof rank_current()->message];
    snprintf(why, sizeof why, "%s", fail_message());
    Status closed = reporter_close(reporter);
    return status == OK ? closed : fail(status, "%s", why);
}

// While the lock on the folder still holds.
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
    TrainingRun run = {
        .job = job, .options = job->options, .world = world, .compared = -1, .saver = {.lock = -1}};
    if (comm_rank(world) == 0) run.reporter = &reporter, run.file = job->file;
    Status status = train(&run);
    trace_file_close(&run.trace);
    status = close_reporter(&reporter, status);
    end_run_file(&run, status);
    saver_close(&run.saver);
    engine_close(run.engine);
    batches_close(&run.batches);
    free(run.spec_room);
    return status;
}
