// Leaves samples out of the training, and goes back to an earlier checkpoint after a spike of the loss.
#include "base/beat.h"
#include "train/run.h"
#include <inttypes.h>
#include <math.h>

// ---- leaving out --------------------------------------------------------------------------------

// Whether the run, which leaves samples out, goes beyond the end of its data.
static bool starts_again(const TrainingRun *run) {
    int64_t end = control_next_sample(&run->control.skipped, control_consumed_at_end(&run->control));
    return run->batches.train && end > gpt_dataset_num_samples(run->batches.train);
}

void run_skip(TrainingRun *run) {
    const Ranges *skipped = &run->control.skipped;
    if (run->batches.train) gpt_dataset_skip(run->batches.train, skipped);
    if (run->reporter && skipped->count) reporter_skipped(run->reporter, skipped, starts_again(run));
}

// ---- going back ---------------------------------------------------------------------------------

bool rewind_is_due(const TrainingRun *run, const StepResult *result, double usual, Status checked) {
    const Options *o = run->options;
    bool lost = !isfinite(result->loss) && !o->shape.dynamic_loss_scale;
    return o->rewind_on_spike && (usual > 0 || lost || checked != OK);
}

static void describe_spike(const StepReport *step, double usual, char text[160]) {
    if (usual > 0)
        snprintf(text, 160, "iteration %" PRId64 ": lm loss %.6g, %.1f times the usual %.6g", step->iteration,
                 step->loss, step->loss / usual, usual);
    else
        snprintf(text, 160, "iteration %" PRId64 ": lm loss %g, gradient norm %g", step->iteration,
                 unsigned_nan(step->loss), unsigned_nan(step->grad_norm));
}

static Status gave_up(const TrainingRun *run, const char *spike) {
    return fail(ERR_NUMERIC,
                "%s; the run has gone back %" PRId64
                " times already (--max-rewinds). Lower --lr, look at the data, or go "
                "on from an older checkpoint with --ckpt-step and --skip-samples",
                spike, run->control.rewinds);
}

// A message of no checkpoint alone would not say why the run ends.
static Status not_restored(Status status, const char *spike) {
    char why[sizeof rank_current()->message];
    snprintf(why, sizeof why, "%s", fail_message());
    return fail(status == ERR_NO_INPUT ? ERR_NUMERIC : status, "%s; the run cannot go back: %s", spike, why);
}

// Leaves out the samples between the checkpoint and the spike, and counts the rewind.
static Status restore_control(StepControl *control, const RunState *state, Range *skipped) {
    Ranges all = control->skipped;
    *skipped = (Range){.first = ranges_left(&all, state->consumed),
                       .end = control_next_sample(&all, control->consumed)};
    control_restore(control, state);
    control->rewinds++;
    if (ranges_add(&control->skipped, skipped->first, skipped->end)) return OK;
    return fail(ERR_NUMERIC, "%d ranges of samples are left out already: no more fit into a checkpoint",
                MAX_RANGES);
}

// Until they are gone a run that starts again would go on with one of them. Memory goes first, that of machines which
// are not part of this job, too: it is newer than what is on disk.
static Status remove_later(TrainingRun *run, int64_t spike) {
    const char *save = run->options->save;
    bool first = comm_rank(run->world) == 0;
    TRY(comm_agree(run->world, first ? checkpoint_lock_check(save, run->saver.lock) : OK));
    TRY(store_settle(&run->saver.memory, run->options, -1));
    return comm_agree(run->world, first ? checkpoint_remove_steps(save, run->control.iteration, spike) : OK);
}

Status run_rewind(TrainingRun *run, const StepReport *step, double usual) {
    StepControl *control = &run->control;
    const Options *o = run->options;
    RunState state;
    Range skipped;
    char spike[160];
    describe_spike(step, usual, spike);
    if (control->rewinds >= o->max_rewinds) return gave_up(run, spike);
    beat_phase(rank_current()->beat, BEAT_LOADING, -1);
    spans_flush(&run->spans);
    double start = clock_s();
    TRY(saver_finish(&run->saver));
    Status status = run_restore_before(run->engine, &run->saver, step->iteration - o->rewind_margin, &state);
    if (status != OK) return not_restored(status, spike);
    TRY(restore_control(control, &state, &skipped));
    run->consumed_valid = state.consumed_valid;
    run->evaluated = state.evaluated;
    run->compared = -1;
    run->saver.last = state.iteration;
    if (state.iteration < run->first) run->first = state.iteration;
    TRY(remove_later(run, step->iteration));
    for (int i = 0; i < NUM_SAVE_TARGETS; i++) save_plan_begin(&run->save_plans[i], state.iteration);
    spans_rewind(&run->spans, step->iteration, state.iteration, clock_s() - start);
    if (run->reporter) reporter_rewound(run->reporter, spike, &state, control->rewinds, skipped);
    run_skip(run);
    return OK;
}
