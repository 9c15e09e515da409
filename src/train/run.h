// One run of train_run on one rank: what the files that open it, take its steps and sum it up share.
#pragma once
#include "train/internal.h"
#include "train/save_plan.h"
#include "train/spans.h"
#include "train/stragglers.h"

// What straggler_runs.c measures of this rank's steps since the last comparison.
typedef struct {
    int interval; // --straggler-interval; 0: there is nothing to compare
    Stragglers all;
    bool
        on_device; // operations between ranks run on a device's streams, and the host does not see their waits
    bool begun;    // a step has been counted
    RankWork before;          // of the instructions, before the first of these steps
    double start_s, waited_s; // when the step began, and how long the rank had waited by then
    double step_reading_s;    // of the present step's batch
    double mine_s, reading_s, longest_s;
    int slow; // the rank that was found last; -1: none
} Speeds;

struct TrainingRun {
    const TrainJob *job;
    const Options *options;
    Comm *world;
    int *spec_room; // lists that the spec borrows
    EngineSpec spec;
    Batches batches;
    References references; // of --dpo
    Engine *engine;
    StepControl control;
    Patience patience;
    TraceFile trace;
    Reporter *reporter; // NULL on ranks that print nothing
    RunFile *file;      // NULL on ranks other than 0
    Saver saver;
    Spans spans;                           // of rank 0; on others it does nothing
    SavePlan save_plans[NUM_SAVE_TARGETS]; // the same, and only for an interval that is auto
    // What rank 0 has said last; after this step.
    bool save_asked[NUM_SAVE_TARGETS], save_due[NUM_SAVE_TARGETS];
    Speeds speeds;
    bool sums;      // metrics have checksums of the parameters: the same on all ranks
    int64_t summed; // iteration of the last checksum; -1: none
    int64_t consumed_valid, eval_iters;
    int64_t evaluated;         // iteration of the last evaluation
    int64_t compared;          // iteration of the last comparison of replicas; -1: never
    int64_t first;             // iteration that this run began with
    bool from_memory;          // it was read from a checkpoint in memory
    int64_t microbatches;      // trained by this rank
    int64_t samples;           // trained by this run
    int64_t skipped;           // steps that changed nothing
    double train_s;            // time in training steps
    int signal;                // the one that asked to stop; 0: none
    double bytes_before;       // resident memory of this process before the model
    bool warned_of_evaluation; // the time of evaluations has been printed
    RunStep last;              // of the last step
    double validation;         // loss of the last evaluation
};

// ---- run_open.c ---------------------------------------------------------------------------------

// Opens everything but the engine: data, control, reporter, saver.   Collective over the world.
Status run_open(TrainingRun *run);
// --dry-run: prints what the run would take, without memory and steps.   Collective over the world.
Status run_dry(TrainingRun *run);
void run_set_limit(TrainingRun *run, WaitLimit limit); // of waits for other ranks, from now on

// ---- between.c ----------------------------------------------------------------------------------

typedef enum { GO_ON, STOPPED, TIME_IS_UP, WENT_BACK } RunVerdict;
// Lets the caller do what it wants between two steps (TrainJob.between), such as ending the run.
Status run_between(TrainingRun *run, RunVerdict *verdict);

// ---- rewind.c -----------------------------------------------------------------------------------

// The batches leave out the samples that the control leaves out; prints which.
void run_skip(TrainingRun *run);
// Returns whether the last step makes the run go back (--rewind-on-spike): its loss is a spike (`usual` > 0), or not
// finite without a dynamic loss scale, or control_check has failed. All ranks return the same.
bool rewind_is_due(const TrainingRun *run, const StepResult *result, double usual, Status checked);
// Goes back to the newest checkpoint of this run that is at least --rewind-margin steps older than the last step,
// leaves out the samples that were read since, and removes the checkpoints after it. Fails with ERR_NUMERIC where there
// is no such checkpoint or the run has gone back --max-rewinds times.   Collective over the world.
Status run_rewind(TrainingRun *run, const StepReport *step, double usual);

// ---- reference_pass.c ---------------------------------------------------------------------------

// Finds the log-probabilities of all pairs that the run reads, by the reference model: in the file, or with the
// weights that the run begins with or those of --dpo-reference. The engine has the run's own weights before and
// after. Fails with ERR_CONFIG where a run that goes on lacks some and the reference model is not known, or is
// another one; INTERRUPTED. Collective over the world.
Status references_prepare(TrainingRun *run);

// ---- audits.c -----------------------------------------------------------------------------------

// --audit-interval. Prints once what audits can find where that is little.
void run_announce_audits(const TrainingRun *run);
bool audit_is_due(const TrainingRun *run); // in the next step
// Begins the audit of the next step, whose batch has been read: reads and computes the audited part of another rank's
// share.   Collective over the world.
Status run_audit(TrainingRun *run, const Batch *batch);
// Finds which rank was wrong after a step whose audit found a difference. Fails with ERR_REPLICAS.   Collective over
// the world.
Status run_blame(TrainingRun *run);

// ---- straggler_runs.c ---------------------------------------------------------------------------

// The ranks compare how long they have computed, every --straggler-interval steps, and rank 0 prints who is slow.
Status run_open_stragglers(TrainingRun *run);          // after the engine.   Collective over the world
void run_step_begins(TrainingRun *run);                // its batch has been read
void run_step_computed(TrainingRun *run, int samples); // and it has ended on this rank
void run_compare_speeds(TrainingRun *run);             // when it is due.   Collective over the world

// ---- run_summary.c ------------------------------------------------------------------------------

void run_sum_up(TrainingRun *run); // prints the summary of the run.   Collective over the world
