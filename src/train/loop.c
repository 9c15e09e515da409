#include "train/internal.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    const TrainJob *job;
    const Options *options;
    Comm *world;
    EngineSpec spec;
    Batches batches;
    Engine *engine;
    LearningRate rate;
    Reporter *reporter; // NULL on ranks that print nothing
    int64_t iteration, consumed, consumed_valid, eval_iters;
    double train_s; // spent in training steps
    double start_s;
} TrainingRun;

// ---- before the first step ----------------------------------------------------------------------

static EngineSpec engine_spec(const TrainJob *job, int vocabulary) {
    const Options *o = job->options;
    const RunShape *shape = &o->shape;
    EngineSpec spec = {.grid = {shape->tp, shape->dp, shape->pp}};
    spec.shape = (ModelShape){
        .layers = o->num_layers,
        .hidden = o->hidden_size,
        .heads = o->num_attention_heads,
        .head_size = o->kv_channels,
        .ffn = o->ffn_hidden_size,
        .sequence = o->seq_length,
        .positions = o->max_position_embeddings,
        .vocabulary = vocabulary,
        .padded_vocabulary = padded_vocabulary(vocabulary, o->make_vocab_size_divisible_by, shape->tp),
        .microbatch = o->micro_batch_size,
        .hidden_dropout = (float)o->hidden_dropout,
        .attention_dropout = (float)o->attention_dropout,
        .norm_epsilon = (float)o->norm_epsilon,
        .init_std = (float)o->init_method_std,
        .seed = (uint64_t)o->seed,
    };
    spec.schedule = shape->schedule;
    spec.num_chunks = shape->vp;
    spec.first_layers = shape->first_layers;
    spec.last_layers = shape->last_layers;
    spec.num_microbatches = shape->num_microbatches;
    spec.adam = (AdamOptions){o->adam_beta1, o->adam_beta2, o->adam_eps, o->clip_grad};
    spec.bucket_elements = o->ddp_bucket_size == INT_UNSET ? 40000000 : o->ddp_bucket_size;
    spec.device = o->device;
    spec.threads = job->threads;
    spec.masked = o->eod_mask_loss;
    return spec;
}

static Status open_run(TrainingRun *run) {
    const Options *o = run->options;
    Place place = grid_place((Grid){o->shape.tp, o->shape.dp, o->shape.pp}, comm_rank(run->world));
    rank_doing("opening the data");
    TRY(comm_agree(run->world, batches_open(&run->batches, o, place)));
    run->spec = engine_spec(run->job, run->batches.vocabulary);
    run->rate = (LearningRate){o->lr_decay_style,
                               o->lr,
                               o->min_lr,
                               o->lr_warmup_init,
                               o->shape.lr_warmup_samples,
                               (double)o->shape.lr_decay_samples};
    Status status = run->reporter ? reporter_open(run->reporter, o, &run->spec.shape) : OK;
    TRY(comm_agree(run->world, status));
    double evaluates = run->batches.valid != NULL; // some ranks read nothing
    comm_all_reduce_host(run->world, &evaluates, 1, REDUCE_MAX);
    run->eval_iters = evaluates > 0 ? o->shape.eval_iters : 0;
    if (run->reporter && o->shape.eval_iters > 0 && !run->eval_iters)
        printf("the data set is too small for --split %s: nothing will be evaluated\n", o->split);
    rank_doing("setting up the model");
    return OK;
}

// --dry-run: everything but the memory and the steps.
static Status dry_run(TrainingRun *run) {
    EngineMemory memory;
    Text map = {0}, options = {0};
    TRY(comm_agree(run->world, engine_measure(&run->spec, comm_rank(run->world), &memory, &map)));
    if (run->reporter) {
        options_print(run->options, FOR_TRAIN, &options);
        fputs(text_string(&options), stdout);
        reporter_start(run->reporter, &run->spec, &memory);
        printf(
            "the run arena of rank 0:\n%sone step of rank 0 takes %.3f TFLOP, of the whole model %.3f TFLOP; "
            "nothing was trained (--dry-run)\n",
            text_string(&map), memory.flops / 1e12,
            model_flops(&run->spec.shape, run->options->global_batch_size) / 1e12);
    }
    text_free(&options);
    text_free(&map);
    return OK;
}

// ---- reading and stopping together --------------------------------------------------------------

typedef enum { GO_ON, STOPPED, TIME_IS_UP } Verdict;

// A batch that cannot be read (a token outside the vocabulary) is found by some ranks alone.   Collective
// over the world.
static Status load(TrainingRun *run, const GptDataset *set, int64_t consumed, Batch *batch) {
    rank_doing("reading a batch");
    Status status = batches_load(&run->batches, set, consumed, batch);
    double failed = status != OK;
    comm_all_reduce_host(run->world, &failed, 1, REDUCE_MAX);
    return failed > 0 ? comm_agree(run->world, status) : OK;
}

// All ranks must leave a loop together.   Collective over the world.
static Verdict agree_to_stop(TrainingRun *run) {
    const Options *o = run->options;
    double minutes = (clock_s() - run->start_s) / 60;
    double wish[2] = {run->job->stopped && atomic_load(run->job->stopped),
                      !isnan(o->exit_duration_in_mins) && minutes > o->exit_duration_in_mins};
    comm_all_reduce_host(run->world, wish, 2, REDUCE_MAX);
    return wish[0] > 0 ? STOPPED : wish[1] > 0 ? TIME_IS_UP : GO_ON;
}

static Status stopped(const TrainingRun *run) {
    return fail(INTERRUPTED, "stopped by a signal after iteration %lld", (long long)run->iteration);
}

static Status evaluate(TrainingRun *run, bool last) {
    double sum = 0;
    for (int64_t i = 0; i < run->eval_iters; i++) {
        Batch batch;
        TRY(load(run, run->batches.valid, run->consumed_valid, &batch));
        sum += (double)engine_evaluate(run->engine, batch);
        run->consumed_valid += run->options->global_batch_size;
        if (agree_to_stop(run) == STOPPED) return stopped(run);
    }
    if (run->reporter && run->eval_iters)
        reporter_validation(run->reporter, run->iteration, run->consumed, sum / (double)run->eval_iters,
                            last);
    return OK;
}

// ---- the loop -----------------------------------------------------------------------------------

// Since the last log line.
typedef struct {
    double loss_sum, elapsed_s; // losses that are finite
    int iterations, skipped, nan;
    StepReport last;
} Interval;

static void count_step(Interval *interval, const StepReport *step, bool skipped) {
    bool finite = isfinite(step->loss);
    interval->loss_sum += finite ? step->loss : 0;
    interval->elapsed_s += step->elapsed_s;
    interval->iterations++;
    interval->skipped += skipped;
    interval->nan += !finite;
    interval->last = *step;
}

static StepReport average(const Interval *interval) {
    StepReport mean = interval->last;
    int finite = interval->iterations - interval->nan;
    mean.loss = finite ? interval->loss_sum / finite : NAN;
    mean.elapsed_s = interval->elapsed_s / interval->iterations;
    mean.skipped = interval->skipped;
    mean.nan = interval->nan;
    return mean;
}

// Writes the line that is due, or, `now`, the line of what has gathered.
static void report(TrainingRun *run, Interval *interval, bool now) {
    bool line = run->iteration == 1 || run->iteration % run->options->log_interval == 0 || now;
    if (!interval->iterations) return;
    StepReport mean = average(interval);
    if (run->reporter && line) reporter_line(run->reporter, &mean);
    if (run->reporter && !line) reporter_progress(run->reporter, &mean);
    if (line) *interval = (Interval){0};
}

static Status one_iteration(TrainingRun *run, Interval *interval) {
    const Options *o = run->options;
    double start = clock_s();
    Batch batch;
    TRY(load(run, run->batches.train, run->consumed, &batch));
    double lr = learning_rate(&run->rate, (double)run->consumed);
    StepResult result = engine_train(run->engine, batch, lr, o->weight_decay);
    run->consumed += o->global_batch_size;
    run->iteration++;
    StepReport step = {run->iteration,
                       run->consumed,
                       (double)result.loss,
                       result.grad_norm,
                       learning_rate(&run->rate, (double)run->consumed),
                       clock_s() - start,
                       0,
                       0};
    run->train_s += step.elapsed_s;
    if (run->reporter) reporter_metrics(run->reporter, &step);
    count_step(interval, &step, !result.finite);
    report(run, interval, false);
    if (result.finite || !o->check_for_nan_in_loss_and_grad) return OK;
    return fail(ERR_NUMERIC,
                "iteration %lld: lm loss %g, gradient norm %g. Lower --lr, or go on regardless with "
                "--no-check-for-nan-in-loss-and-grad (such a step changes nothing)",
                (long long)run->iteration, (double)result.loss, result.grad_norm);
}

static bool at_exit_interval(const TrainingRun *run) {
    int interval = run->options->exit_interval;
    return interval != INT_UNSET && run->iteration % interval == 0;
}

static Status loop(TrainingRun *run) {
    const Options *o = run->options;
    Interval interval = {0};
    Verdict verdict = GO_ON;
    while (run->iteration < o->shape.train_iters && verdict == GO_ON) {
        TRY(one_iteration(run, &interval));
        verdict = agree_to_stop(run);
        if (verdict == GO_ON && at_exit_interval(run)) verdict = TIME_IS_UP;
        bool ended = run->iteration == o->shape.train_iters || verdict != GO_ON;
        if (!ended && run->iteration % o->eval_interval == 0) TRY(evaluate(run, false));
    }
    report(run, &interval, true);
    return verdict == STOPPED ? stopped(run) : evaluate(run, true);
}

// ---- afterwards ---------------------------------------------------------------------------------

// Every stage's measured times, on every rank; then the schedule is walked with them.   Collective over the
// world.
static double replayed_bubble(TrainingRun *run) {
    const Schedule *schedule = engine_schedule(run->engine);
    int num_stages = schedule->num_ranks * schedule->num_chunks;
    PipelineTimes times = engine_times(run->engine);
    double *us = calloc((size_t)(2 * num_stages), sizeof *us); // forward of each stage, then backward
    CHECK(us, "no memory for %d stages", num_stages);
    double runs = (double)run->iteration * schedule->num_microbatches * run->spec.grid.tp * run->spec.grid.dp;
    for (int c = 0; c < schedule->num_chunks && run->iteration > 0; c++) {
        int stage = schedule_stage(schedule, engine_context(run->engine)->place.pp, c);
        us[stage] = 1e6 * times.chunks[c].forward_s / runs;
        us[num_stages + stage] = 1e6 * times.chunks[c].backward_s / runs;
    }
    comm_all_reduce_host(run->world, us, 2 * num_stages, REDUCE_SUM);
    Simulation simulation;
    schedule_simulate(schedule, (ScheduleCosts){.stage_forward_us = us, .stage_backward_us = us + num_stages},
                      &simulation);
    double bubble = simulation.bubble;
    simulation_destroy(&simulation, schedule);
    free(us);
    return bubble;
}

static void sum_up(TrainingRun *run) {
    const RunShape *shape = &run->options->shape;
    PipelineTimes times = engine_times(run->engine);
    double waits[2] = {times.wait_s, times.total_s};
    comm_all_reduce_host(run->world, waits, 2, REDUCE_SUM);
    RunSummary summary = {
        .iterations = run->iteration,
        .seconds = run->train_s,
        .formula = (double)(shape->pp - 1) / (shape->vp * shape->num_microbatches),
        .replay = shape->pp > 1 && run->iteration > 0 ? replayed_bubble(run) : 0,
        .waited = waits[1] > 0 ? waits[0] / waits[1] : 0,
        .busy_threads = shape->world_size * run->spec.threads,
        .cores = (int)sysconf(_SC_NPROCESSORS_ONLN),
    };
    if (run->reporter) reporter_summary(run->reporter, &summary);
}

static Status train(TrainingRun *run) {
    TRY(open_run(run));
    if (run->options->dry_run) return dry_run(run);
    TRY(engine_open(&run->engine, &run->spec, run->world));
    if (run->reporter) reporter_start(run->reporter, &run->spec, engine_memory(run->engine));
    run->start_s = clock_s();
    Status status = loop(run);
    if (status == OK || status == INTERRUPTED) sum_up(run);
    return status;
}

Status train_run(Comm *world, void *arg) {
    const TrainJob *job = arg;
    Reporter reporter = {0};
    TrainingRun run = {.job = job, .options = job->options, .world = world};
    run.reporter = comm_rank(world) == 0 ? &reporter : NULL;
    Status status = train(&run);
    engine_close(run.engine);
    batches_close(&run.batches);
    Status closed = reporter_close(&reporter);
    return status == OK ? closed : status;
}
