// Saves checkpoints while the run continues. A save has two parts that take time: every rank writes its shard, then
// rank 0 commits. With --async-save each part runs on a thread of its own. Between and after them all ranks agree, on
// the training thread at the start of a step.
#include "base/version.h"
#include "train/internal.h"
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>

enum { MAX_FAILED_SAVES = 2 }; // in a row

// ---- life ---------------------------------------------------------------------------------------

// The number of saves of the steps after `from` up to `end`: multiples of `interval`, and the last one.
static int64_t count_saves(int64_t from, int64_t end, int64_t interval) {
    return (end - 1) / interval - from / interval + 1;
}

// The most checkpoints that the disk holds in addition to those of now, while one is written and before --keep-last
// removes one. `existing` is the number that --keep-last counts now.
static int64_t checkpoints_more(int64_t saves, int64_t keep, int64_t existing) {
    if (!keep) return saves;
    int64_t stay = keep > existing ? keep : existing;
    int64_t before_last = existing + saves - 1 < stay ? existing + saves - 1 : stay;
    return before_last - existing + 1;
}

// --save-interval, or of auto the shortest that it may choose.
static int64_t shortest_interval(const Options *o) {
    return o->save_interval == INT_AUTO ? 1 : o->save_interval;
}

// The number of saved steps that --save-retain-interval keeps.
static int64_t count_retained(const Options *o, int64_t from, int64_t end) {
    int64_t retain = o->save_retain_interval, save = shortest_interval(o), common = retain;
    if (retain == INT_UNSET) return 0;
    bool last = end % retain == 0;
    if (save == INT_UNSET) return last;
    while (common < end && common % save) common += retain;
    return count_saves(from, end, common) - !last;
}

static Status state_bytes(const Options *o, const ModelShape *shape, int64_t *bytes) {
    WeightSpec *weights;
    int count;
    *bytes = 0;
    TRY(model_weights(shape, &weights, &count));
    for (int i = 0; i < count; i++) *bytes += weights[i].rows * weights[i].cols * (int64_t)sizeof(float);
    free(weights);
    if (o->save_optim) *bytes *= NUM_STATE_TENSORS;
    return OK;
}

// Counts steps up to `step`, since --keep-last does not count later ones.
static Status count_existing(const char *save, int64_t step, int64_t *existing) {
    int64_t *steps = NULL;
    int count = 0;
    TRY(checkpoint_steps(save, &steps, &count));
    *existing = 0;
    for (int i = 0; i < count; i++) *existing += steps[i] <= step;
    free(steps);
    return OK;
}

static int at_most_int(int64_t x) { return x < INT_MAX ? (int)x : INT_MAX; }

// Checks the space of the disk before the first save does. Where it is too small for all checkpoints that are kept, the
// run only warns, since the user may move checkpoints away.
static Status check_room(const Options *o, const ModelShape *shape, int64_t from, int64_t end) {
    int64_t bytes, existing;
    TRY(state_bytes(o, shape, &bytes));
    TRY(count_existing(o->save, from, &existing));
    bool open = o->save_interval == INT_UNSET || (o->save_interval == INT_AUTO && !o->keep_last);
    int64_t saves = open ? 1 : count_saves(from, end, shortest_interval(o));
    int64_t more = checkpoints_more(saves, o->keep_last, existing);
    TRY(checkpoint_check_room(o->save, bytes, o->keep_last ? at_most_int(more) : 1));
    int64_t most = o->keep_last ? more + count_retained(o, from, end) : more;
    if (most > saves) most = saves;
    if (checkpoint_check_room(o->save, bytes, at_most_int(most)) != OK)
        printf("WARNING: %s: %s\n", fail_message(),
               o->keep_last ? "--save-retain-interval keeps them" : "--keep-last N removes older ones");
    return OK;
}

Status saver_check_room(const Saver *saver, const ModelShape *shape, int64_t from, int64_t end) {
    if (!saver->options->save || from >= end) return OK;
    bool checks = comm_rank(saver->world) == 0;
    return comm_agree(saver->world, checks ? check_room(saver->options, shape, from, end) : OK);
}

static Status open_first(Saver *saver, const atomic_int *stopped) {
    const Options *o = saver->options;
    saver->records = calloc((size_t)comm_size(saver->world), sizeof *saver->records);
    if (!saver->records)
        return fail(ERR_OS, "no memory for the records of %d ranks", comm_size(saver->world));
    TRY(checkpoint_lock(o->save, o->lock_timeout, stopped, &saver->lock));
    options_save(o, FOR_TRAIN, &saver->config);
    return batches_tokenizer(o, &saver->tokenizer);
}

Status saver_open(Saver *saver, const Options *options, const atomic_int *stopped, Comm *world,
                  Reporter *reporter) {
    *saver = (Saver){.options = options, .world = world, .reporter = reporter, .lock = -1, .last = -1};
    if (!options->save) return OK;
    return comm_agree(world, comm_rank(world) == 0 ? open_first(saver, stopped) : OK);
}

Status saver_take_memory(Saver *saver, Engine *engine) {
    const Options *o = saver->options;
    if (!o->save || !o->async_save) return OK;
    return comm_agree(saver->world, engine_state(engine, o->save_optim, true, &saver->state));
}

void saver_close(Saver *saver) {
    if (saver->running) pthread_join(saver->thread, NULL);
    if (saver->phase != SAVER_IDLE && comm_rank(saver->world) == 0)
        checkpoint_abandon(&saver->names, saver->lock);
    checkpoint_unlock(saver->lock);
    verified_steps_free(&saver->verified);
    for (int i = 0; saver->records && i < comm_size(saver->world); i++) text_free(&saver->records[i]);
    free(saver->records);
    text_free(&saver->record);
    text_free(&saver->config);
    tokenizer_close(saver->tokenizer);
    engine_state_free(&saver->state);
    *saver = (Saver){.lock = -1};
}

// ---- the two parts ------------------------------------------------------------------------------

static Status write_shard(Saver *saver) {
    saver->record.size = 0;
    return checkpoint_write_shard(&saver->names, saver->rank, saver->state.items, saver->state.count,
                                  &saver->record);
}

static Status commit(Saver *saver) {
    const Options *o = saver->options;
    TRY(checkpoint_commit(&saver->names, saver->lock, &saver->info, saver->tokenizer, saver->records,
                          saver->num_ranks));
    int64_t retain = o->save_retain_interval == INT_UNSET ? 0 : o->save_retain_interval;
    int64_t iteration = saver->info.state.iteration;
    verified_steps_add(&saver->verified, iteration);
    if (checkpoint_prune(o->save, iteration, o->keep_last, retain, &saver->verified) != OK)
        fprintf(stderr, "WARNING: older checkpoints: %s\n", fail_message());
    return OK;
}

static void *work(void *arg) {
    Saver *saver = arg;
    saver->result = saver->phase == SAVER_WRITING ? write_shard(saver) : commit(saver);
    if (saver->result != OK) snprintf(saver->message, sizeof saver->message, "%s", fail_message());
    atomic_store(&saver->done, true);
    return NULL;
}

// Where no thread can be started, the work is done at once.
static void start(Saver *saver, SaverPhase phase) {
    saver->phase = phase;
    atomic_store(&saver->done, false);
    saver->result = OK;
    bool mine = phase == SAVER_WRITING || saver->rank == 0;
    if (!mine) {
        atomic_store(&saver->done, true);
        return;
    }
    saver->running = saver->options->async_save && pthread_create(&saver->thread, NULL, work, saver) == 0;
    if (!saver->running) work(saver);
}

// The status and message of this rank's part, as if the calling thread had run it.
static Status join(Saver *saver) {
    if (saver->running) pthread_join(saver->thread, NULL);
    saver->running = false;
    return saver->result == OK ? OK : fail(saver->result, "%s", saver->message);
}

// ---- together -----------------------------------------------------------------------------------

// A later save may succeed, so only several failures in a row end a run.
static Status give_up(Saver *saver, Status status) {
    char why[sizeof saver->message];
    snprintf(why, sizeof why, "%s", fail_message());
    if (saver->rank == 0) checkpoint_abandon(&saver->names, saver->lock);
    saver->phase = SAVER_IDLE;
    if (++saver->failures >= MAX_FAILED_SAVES || saver->is_last)
        return fail(status, "iteration %" PRId64 " could not be saved: %s", saver->info.state.iteration, why);
    if (saver->reporter) reporter_not_saved(saver->reporter, saver->info.state.iteration, why);
    return OK;
}

static void gather_records(Saver *saver) {
    Comm *world = saver->world;
    int64_t size = (int64_t)saver->record.size;
    if (saver->rank > 0) {
        comm_send_host(world, &size, sizeof size, 0);
        comm_send_host(world, text_string(&saver->record), (size_t)size, 0);
        return;
    }
    for (int rank = 0; rank < saver->num_ranks; rank++) {
        Text *record = &saver->records[rank];
        record->size = 0;
        if (rank == 0) {
            text_add_bytes(record, text_string(&saver->record), (size_t)size);
            continue;
        }
        int64_t theirs;
        comm_recv_host(world, &theirs, sizeof theirs, rank);
        char *text = malloc((size_t)theirs + 1);
        CHECK(text, "no memory for the record of rank %d, %" PRId64 " bytes", rank, theirs);
        comm_recv_host(world, text, (size_t)theirs, rank);
        text_add_bytes(record, text, (size_t)theirs);
        free(text);
    }
}

static void committed(Saver *saver) {
    saver->phase = SAVER_IDLE;
    saver->failures = 0;
    saver->last = saver->info.state.iteration;
    if (saver->reporter)
        reporter_saved(saver->reporter, saver->last, saver->all_bytes, clock_s() - saver->start_s);
}

bool saver_is_busy(const Saver *saver) { return saver->phase != SAVER_IDLE && !atomic_load(&saver->done); }

Status saver_advance(Saver *saver) {
    if (saver->phase == SAVER_IDLE) return OK;
    rank_doing("saving a checkpoint");
    Status status = comm_agree(saver->world, join(saver));
    if (status != OK) return give_up(saver, status);
    if (saver->phase == SAVER_COMMITTING) {
        committed(saver);
        return OK;
    }
    gather_records(saver);
    start(saver, SAVER_COMMITTING);
    return OK;
}

Status saver_finish(Saver *saver) {
    while (saver->phase != SAVER_IDLE) TRY(saver_advance(saver));
    return OK;
}

static Status begin(Saver *saver, Engine *engine, const RunState *state) {
    const Options *o = saver->options;
    const EngineSpec *spec = engine_spec_of(engine);
    saver->info = (CheckpointInfo){.shape = spec->shape,
                                   .state = *state,
                                   .grid = spec->grid,
                                   .num_chunks = spec->num_chunks,
                                   .dtype = dtype_name(spec->mode.dtype),
                                   .has_optimizer = o->save_optim,
                                   .config = text_string(&saver->config),
                                   .program = TRIREME_VERSION};
    TRY(checkpoint_names(o->save, state->iteration, &saver->names));
    TRY(engine_state(engine, o->save_optim, o->async_save, &saver->state));
    return OK;
}

Status saver_start(Saver *saver, Engine *engine, const RunState *state, bool is_last) {
    TRY(saver_finish(saver));
    if (saver->last == state->iteration) return OK;
    saver->start_s = clock_s();
    saver->rank = comm_rank(saver->world), saver->num_ranks = comm_size(saver->world);
    saver->is_last = is_last;
    rank_doing("saving a checkpoint");
    if (saver->reporter) reporter_saving(saver->reporter, state->iteration);
    Status status = comm_agree(saver->world, begin(saver, engine, state));
    saver->all_bytes = (double)saver->state.bytes;
    comm_all_reduce_host(saver->world, &saver->all_bytes, 1, REDUCE_SUM);
    if (status == OK && saver->rank == 0) status = checkpoint_lock_check(saver->options->save, saver->lock);
    if (status == OK && saver->rank == 0) status = checkpoint_begin(&saver->names, (int64_t)saver->all_bytes);
    status = comm_agree(saver->world, status);
    if (status != OK) return give_up(saver, status);
    start(saver, SAVER_WRITING);
    return saver->options->async_save && !is_last ? OK : saver_finish(saver);
}
