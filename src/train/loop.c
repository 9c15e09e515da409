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
    int64_t iteration, consumed, consumed_valid;
    double train_s; // spent in training steps
    double start_s;
} TrainingRun;

// ---- before the first step -------------------------------------------------------------------------------------

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
    rank_doing("setting up the model");
    return OK;
}

// --dry-run: everything but the memory and the steps.
static Status dry_run(TrainingRun *run) {
    EngineMemory memory;
    Status status = engine_measure(&run->spec, comm_rank(run->world), &memory);
    TRY(comm_agree(run->world, status));
    if (!run->reporter) return OK;
    reporter_start(run->reporter, &run->spec, &memory);
    printf(
        "one step of rank 0 takes %.3f TFLOP; the whole model %.3f TFLOP. Nothing was trained (--dry-run)\n",
        memory.flops / 1e12, model_flops(&run->spec.shape, run->options->global_batch_size) / 1e12);
    return OK;
}

// ---- evaluation -----------------------------------------------------------------------------------------------

// A batch that cannot be read (a token outside the vocabulary) is found by one rank in the middle of a step.
static Batch load_or_abort(TrainingRun *run, const GptDataset *set, int64_t consumed) {
    Batch batch;
    rank_doing("reading a batch");
    Status status = batches_load(&run->batches, set, consumed, &batch);
    if (status != OK) {
        fprintf(stderr, "trireme: error: %s\n", fail_message());
        rank_abort_job(status);
    }
    return batch;
}

static void evaluate(TrainingRun *run, bool last) {
    const RunShape *shape = &run->options->shape;
    if (!shape->eval_iters || !(shape->split[SPLIT_VALID] > 0)) return;
    double sum = 0;
    for (int64_t i = 0; i < shape->eval_iters; i++) {
        Batch batch = load_or_abort(run, run->batches.valid, run->consumed_valid);
        sum += (double)engine_evaluate(run->engine, batch);
        run->consumed_valid += run->options->global_batch_size;
    }
    if (run->reporter)
        reporter_validation(run->reporter, run->iteration, run->consumed, sum / (double)shape->eval_iters,
                            last);
}

// ---- the loop --------------------------------------------------------------------------------------------------

typedef struct {
    double loss_sum, elapsed_s;
    int iterations;
} Interval; // since the last log line

static void report(TrainingRun *run, Interval *interval, StepReport step, double step_s) {
    Reporter *r = run->reporter;
    bool line = run->iteration == 1 || run->iteration % run->options->log_interval == 0 ||
                run->iteration == run->options->shape.train_iters;
    interval->loss_sum += step.loss;
    interval->elapsed_s += step_s;
    interval->iterations++;
    step.elapsed_s = step_s;
    if (r) reporter_metrics(r, &step);
    step.elapsed_s = interval->elapsed_s / interval->iterations;
    if (r && !line) reporter_progress(r, &step);
    if (!line) return;
    step.loss = interval->loss_sum / interval->iterations;
    if (r) reporter_line(r, &step);
    *interval = (Interval){0};
}

static Status one_iteration(TrainingRun *run, Interval *interval) {
    const Options *o = run->options;
    double start = clock_s();
    Batch batch = load_or_abort(run, run->batches.train, run->consumed);
    double lr = learning_rate(&run->rate, (double)run->consumed);
    StepResult result = engine_train(run->engine, batch, lr, o->weight_decay);
    run->consumed += o->global_batch_size;
    run->iteration++;
    double step_s = clock_s() - start;
    run->train_s += step_s;
    StepReport step = {run->iteration,
                       run->consumed,
                       (double)result.loss,
                       result.grad_norm,
                       learning_rate(&run->rate, (double)run->consumed),
                       step_s};
    report(run, interval, step, step_s);
    if (!result.finite && o->check_for_nan_in_loss_and_grad)
        return fail(ERR_NUMERIC,
                    "iteration %lld: lm loss %g, gradient norm %g. Lower --lr, or go on regardless with "
                    "--no-check-for-nan-in-loss-and-grad (such a step changes nothing)",
                    (long long)run->iteration, (double)result.loss, result.grad_norm);
    return OK;
}

typedef enum { GO_ON, STOPPED, TIME_IS_UP } Verdict;

// All ranks must leave the loop together.   Collective over the world.
static Verdict agree_to_stop(TrainingRun *run) {
    const Options *o = run->options;
    double minutes = (clock_s() - run->start_s) / 60;
    double wish[2] = {run->job->stopped && *run->job->stopped,
                      !isnan(o->exit_duration_in_mins) && minutes > o->exit_duration_in_mins};
    comm_all_reduce_host(run->world, wish, 2, REDUCE_MAX);
    if (wish[0] > 0) return STOPPED;
    bool at_interval = o->exit_interval != INT_UNSET && run->iteration % o->exit_interval == 0;
    return wish[1] > 0 || at_interval ? TIME_IS_UP : GO_ON;
}

static Status loop(TrainingRun *run) {
    const Options *o = run->options;
    Interval interval = {0};
    Verdict verdict = GO_ON;
    while (run->iteration < o->shape.train_iters && verdict == GO_ON) {
        TRY(one_iteration(run, &interval));
        verdict = agree_to_stop(run);
        bool ended = run->iteration == o->shape.train_iters || verdict != GO_ON;
        if (!ended && run->iteration % o->eval_interval == 0) evaluate(run, false);
    }
    if (verdict == STOPPED)
        return fail(INTERRUPTED, "stopped by a signal after iteration %lld", (long long)run->iteration);
    evaluate(run, true);
    return OK;
}

// ---- afterwards ------------------------------------------------------------------------------------------------

// Every stage's measured times, on every rank; then the schedule is walked with them.   Collective over the world.
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
    reporter_close(&reporter);
    return status;
}
