// Computes what the reference model of --dpo says of the pairs that a run reads, before its first step.
#include "base/beat.h"
#include "base/file.h"
#include "nn/recipes.h"
#include "train/run.h"
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

// ---- the pairs that a run reads -----------------------------------------------------------------

// Samples [first, end) of a data set, as batches read them.
typedef struct {
    const GptDataset *set;
    Split split;
    int64_t first, end;
} Reads;

static int64_t batch_samples(const TrainingRun *run) {
    return (int64_t)run->spec.num_microbatches * run->spec.mode.microbatch *
           grid_count(run->spec.grid, ROLE_DATA);
}

// A run that may go back after a spike reads what it leaves out later: all.
static Reads training_reads(const TrainingRun *run) {
    const GptDataset *set = run->batches.train;
    bool all = run->options->rewind_on_spike;
    return (Reads){set, SPLIT_TRAIN, all ? 0 : run->control.consumed,
                   all ? gpt_dataset_num_samples(set) : control_consumed_at_end(&run->control)};
}

// Evaluations begin again at the first sample behind the last one from which a whole batch can be read.
static Reads validation_reads(const TrainingRun *run) {
    const GptDataset *set = run->batches.valid;
    if (!set || !run->eval_iters) return (Reads){.split = SPLIT_VALID};
    int64_t size = gpt_dataset_num_samples(set),
            end = run->consumed_valid + batches_validation_samples(run->options);
    bool again = end > size - batch_samples(run);
    return (Reads){set, SPLIT_VALID, again ? 0 : run->consumed_valid, again ? size : end};
}

// The first sample of a batch that has sample `at`: where samples are left out, reading starts again at the end.
static int64_t batch_start(const TrainingRun *run, const Reads *reads, int64_t at) {
    int64_t last = gpt_dataset_num_samples(reads->set) - batch_samples(run);
    bool again = reads->split == SPLIT_TRAIN && run->control.skipped.count;
    return again || at < last ? at : last;
}

static bool is_known(const TrainingRun *run, int64_t place) {
    return !isnan(run->references.values[place][CHOSEN]);
}

static bool any_unknown(const TrainingRun *run, const Reads *reads, int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; i++)
        if (!is_known(run, references_place(&run->references, reads->set, reads->split, i))) return true;
    return false;
}

// Counts the pairs that the run reads and of which nothing is known.
static int64_t num_missing(const TrainingRun *run) {
    Reads both[] = {training_reads(run), validation_reads(run)};
    bool *seen = calloc((size_t)run->references.count + 1, sizeof *seen);
    int64_t count = 0;
    CHECK(seen, "no memory for %" PRId64 " pairs", run->references.count);
    for (int s = 0; s < 2; s++)
        for (int64_t i = both[s].first; i < both[s].end; i++) {
            int64_t place = references_place(&run->references, both[s].set, both[s].split, i);
            count += !seen[place] && !is_known(run, place);
            seen[place] = true;
        }
    free(seen);
    return count;
}

static int64_t num_known(const TrainingRun *run) {
    int64_t count = 0;
    for (int64_t i = 0; i < run->references.count; i++) count += is_known(run, i);
    return count;
}

// ---- computing ----------------------------------------------------------------------------------

// What the passes over both data sets share.
typedef struct {
    TrainingRun *run;
    ReferenceModel model;
    const char *path; // of the file; NULL: there is none
    double (*found)[NUM_ANSWERS];
    int64_t done, all;
    double start_s, written_s;
} Pass;

static Status write_file(const Pass *pass) {
    TrainingRun *run = pass->run;
    bool writes = pass->path && comm_rank(run->world) == 0;
    return comm_agree(run->world, writes ? references_write(&run->references, pass->path, &pass->model) : OK);
}

// Fills in the outcomes of this rank's pairs of a batch, and zeros for others. Of the ranks that share a pair one does.
static void find_own(const Pass *pass, int m) {
    const TrainingRun *run = pass->run;
    const PairOutcome *outcomes = engine_pair_outcomes(run->engine);
    const Leaves *leaves = &run->batches.leaves;
    int b = run->spec.mode.microbatch;
    memset(pass->found, 0, (size_t)batch_samples(run) * sizeof *pass->found);
    const Context *c = engine_context(run->engine);
    if (!outcomes || context_rank(c, ROLE_TENSOR) > 0 || context_rank(c, ROLE_CONTEXT) > 0) return;
    for (int k = 0; k < m; k++) {
        LeafPlace leaf = leaves_place(leaves, m, k);
        int64_t first = ((int64_t)leaf.index * leaves->total + leaves->first + leaf.leaf) * b;
        for (int j = 0; j < b; j++)
            memcpy(pass->found[first + j], outcomes[k * b + j].log_probability, sizeof *pass->found);
    }
}

static Status keep(Pass *pass, const Reads *reads, int64_t first) {
    TrainingRun *run = pass->run;
    References *r = &run->references;
    int64_t count = batch_samples(run);
    comm_all_reduce_host(run->world, pass->found[0], (int)(NUM_ANSWERS * count), REDUCE_SUM);
    for (int64_t i = 0; i < count; i++) {
        double *values = r->values[references_place(r, reads->set, reads->split, first + i)];
        if (!isfinite(pass->found[i][CHOSEN]) || !isfinite(pass->found[i][REJECTED]))
            return fail(
                ERR_NUMERIC,
                "the reference model %s gives an answer a log-probability that is not finite: are its weights "
                "whole? `trireme checkpoint verify` looks at checkpoints",
                pass->model.model);
        pass->done += isnan(values[CHOSEN]);
        memcpy(values, pass->found[i], sizeof pass->found[i]);
    }
    return OK;
}

// Returns INTERRUPTED, on all ranks, after a signal; what is known then is written.
static Status go_on(Pass *pass, Status read) {
    TrainingRun *run = pass->run;
    double news[] = {read != OK, run->job->stopped ? atomic_load(run->job->stopped) : 0,
                     clock_s() - pass->written_s > 60};
    comm_all_reduce_host(run->world, news, 3, REDUCE_MAX);
    if (news[0] > 0) return comm_agree(run->world, read);
    run->signal = (int)news[1];
    if (run->signal || news[2] > 0) {
        TRY(write_file(pass));
        pass->written_s = clock_s();
    }
    if (!run->signal) return OK;
    return fail(INTERRUPTED,
                "stopped by a signal (SIG%s) before the first iteration, while the reference model is asked",
                sigabbrev_np(run->signal));
}

static Status one_batch(Pass *pass, const Reads *reads, int64_t first) {
    TrainingRun *run = pass->run;
    Batch batch;
    rank_doing("the reference model");
    beat_phase(rank_current()->beat, BEAT_EVALUATING, run->control.iteration);
    Status status = batches_load(&run->batches, reads->set, first, run->spec.num_microbatches, &batch);
    TRY(go_on(pass, status));
    engine_evaluate(run->engine, batch);
    find_own(pass, batch.num_microbatches);
    TRY(keep(pass, reads, first));
    if (run->reporter)
        reporter_references_progress(run->reporter, pass->done, pass->all, clock_s() - pass->start_s);
    return OK;
}

// Batches are those that the run itself makes, so that a pair stands where it stands in training.
static Status compute(Pass *pass, Reads reads) {
    int64_t step = batch_samples(pass->run);
    for (int64_t at = reads.first; at < reads.end; at += step) {
        int64_t first = batch_start(pass->run, &reads, at);
        if (any_unknown(pass->run, &reads, first, step)) TRY(one_batch(pass, &reads, first));
    }
    return OK;
}

static Status compute_all(Pass *pass) {
    TrainingRun *run = pass->run;
    pass->start_s = pass->written_s = clock_s();
    pass->found = malloc((size_t)batch_samples(run) * sizeof *pass->found);
    CHECK(pass->found, "no memory for the references of a batch");
    Status status = compute(pass, training_reads(run));
    if (status == OK) status = compute(pass, validation_reads(run));
    free(pass->found);
    TRY(status);
    TRY(write_file(pass));
    if (run->reporter)
        reporter_references(run->reporter, pass->done, pass->model.model, clock_s() - pass->start_s,
                            pass->path);
    return OK;
}

// ---- whose values ------------------------------------------------------------------------------

static void describe_here(const TrainingRun *run, ReferenceModel *model, const char *path) {
    const ModelMode *mode = &run->spec.mode;
    if (!path) path = "of random weights";
    if (!realpath(path, model->model)) snprintf(model->model, sizeof model->model, "%s", path);
    snprintf(model->arithmetic, sizeof model->arithmetic, "%s%s%s", dtype_name(mode->dtype),
             mode->float8 ? mode->float8 == FLOAT4_E2M1 ? " fp4-" : " fp8-" : "",
             recipe_describe(mode, "-").text);
}

// Rank 0 reads the file, of --save or else of --load.
static Status read_file(TrainingRun *run, const char *path, ReferenceModel *model, bool *found) {
    const Options *o = run->options;
    References *r = &run->references;
    Text beside = {0}, note = {0};
    Status status = OK;
    *found = false;
    if (comm_rank(run->world) == 0) {
        if (o->load) text_add(&beside, "%s/" REFERENCE_FILE, o->load);
        if (path) status = references_read(r, path, model, found, &note);
        if (status == OK && !*found && run->first > 0)
            status = references_read(r, text_string(&beside), model, found, &note);
        if (note.size && run->reporter) reporter_not_loaded(run->reporter, text_string(&note));
    }
    text_free(&beside);
    text_free(&note);
    TRY(comm_agree(run->world, status));
    comm_broadcast_host(run->world, found, sizeof *found, 0);
    comm_broadcast_host(run->world, model, sizeof *model, 0);
    if (*found) comm_broadcast_host(run->world, r->values, (size_t)r->count * sizeof *r->values, 0);
    return OK;
}

// Values of another model, or of other arithmetic, are not those of a run that begins.
static void check_values(TrainingRun *run, const ReferenceModel *here, ReferenceModel *kept, bool found) {
    bool same = kept->weights == here->weights && !strcmp(kept->arithmetic, here->arithmetic);
    if (found && !same && !run->first) references_forget(&run->references);
    if (!found || !run->first) *kept = *here;
}

// Takes the reference model's weights into the engine, in place of the run's own.
static Status load_reference(TrainingRun *run, ReferenceModel *kept, bool found) {
    const Options *o = run->options;
    ReferenceModel here = {0};
    const char *path = o->dpo_reference ? o->dpo_reference : kept->model;
    if (!*path)
        return fail(
            ERR_CONFIG,
            "this run goes on, and what the reference model says of its pairs is not in %s/" REFERENCE_FILE
            ": put the file back, or name the model that the run began with by --dpo-reference PATH",
            o->save ? o->save : o->load);
    describe_here(run, &here, path);
    TRY(run_read_weights(run->engine, o, path, run->world, &here.weights));
    here.weights += parameters_sum(run->engine, run->world);
    if (found && run->first && here.weights != kept->weights)
        return fail(
            ERR_CONFIG,
            "%s is not the reference model with which this run began: its weights have the checksum %016" PRIx64
            ", not %016" PRIx64 ". Name that by --dpo-reference PATH",
            path, here.weights, kept->weights);
    check_values(run, &here, kept, found);
    return OK;
}

// A run that goes on need not read the model that it has asked before. Rank 0 decides: on another machine a link may
// lead elsewhere.
static bool names_another(const TrainingRun *run, const ReferenceModel *kept) {
    const char *named = run->options->dpo_reference;
    char path[PATH_MAX];
    bool another = named && strcmp(realpath(named, path) ? path : named, kept->model) != 0;
    comm_broadcast_host(run->world, &another, sizeof another, 0);
    return another;
}

static Status restore_own(TrainingRun *run) {
    Restored again;
    Status status = run_restore(run->engine, run->options, run->world, NULL, &run->saver.memory, &again);
    belongings_free(&again.belongings);
    free((char *)(uintptr_t)again.base.path);
    return status;
}

static Status prepare(TrainingRun *run, const char *path) {
    const Options *o = run->options;
    Pass pass = {.run = run, .path = path};
    bool found, own = !run->first && !o->dpo_reference, other = false;
    TRY(read_file(run, path, &pass.model, &found));
    if (own) {
        ReferenceModel here = {0};
        describe_here(run, &here, o->load);
        here.weights = parameters_sum(run->engine, run->world) + run->saver.base.hash;
        check_values(run, &here, &pass.model, found);
    } else if (num_missing(run) || !run->first || names_another(run, &pass.model)) {
        other = true;
        TRY(load_reference(run, &pass.model, found));
    }
    pass.all = num_missing(run);
    if (pass.all) TRY(compute_all(&pass));
    if (!pass.all && run->reporter)
        reporter_references(run->reporter, num_known(run), pass.model.model, 0, path ? path : o->load);
    if (!other) return OK;
    return restore_own(run);
}

Status references_prepare(TrainingRun *run) {
    const Options *o = run->options;
    Text path = {0};
    if (!options_have_reference(o)) return OK;
    TRY(comm_agree(run->world, references_open(&run->references, run->batches.train, run->batches.valid)));
    run->batches.references = &run->references;
    if (gpt_dataset_num_samples(run->batches.train) < batch_samples(run))
        return fail(ERR_CONFIG,
                    "the reference model is asked in whole batches of %" PRId64
                    " samples, and the run has %" PRId64 ": lower --global-batch-size",
                    batch_samples(run), gpt_dataset_num_samples(run->batches.train));
    if (o->save) text_add(&path, "%s/" REFERENCE_FILE, o->save);
    Status status = prepare(run, o->save ? path.data : NULL);
    text_free(&path);
    run->references.complete = status == OK;
    return status;
}
