// Saves checkpoints while the run continues. A save has two parts that take time: every rank writes its shard, then
// rank 0 commits. With --async-save each part runs on a thread of its own. Between and after them all ranks agree, on
// the training thread at the start of a step.
#include "base/version.h"
#include "train/internal.h"
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

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
    StateKinds kinds = {o->save_optim, !strcmp(o->optimizer, "muon"), o->ema_decay > 0};
    TRY(state_bytes(shape, &kinds, &bytes));
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

static Status check_no_model(const Options *o) {
    if (!model_is_there(o->save)) return OK;
    return fail(ERR_CONFIG,
                "--save %s: a model is there, and checkpoints do not go among its files: name another "
                "folder, such as %s-tuned",
                o->save, o->save);
}

// What goes on with --load would take the later steps of another run.
static Status check_no_steps(const Options *o) {
    int64_t *steps = NULL, newest = 0;
    int count = 0;
    if (!o->finetune) return OK;
    TRY(checkpoint_steps(o->save, &steps, &count));
    if (count) newest = steps[0];
    free(steps);
    if (!newest) return OK;
    return fail(
        ERR_CONFIG,
        "--save %s holds step %" PRId64
        " of an earlier run, and --finetune begins at step 0: --load %s would go on with the earlier "
        "run's steps. To go on with that run give --load %s and leave out --finetune; to begin anew save "
        "to another folder, or remove these checkpoints",
        o->save, newest, o->save, o->save);
}

static Status open_first(Saver *saver, const atomic_int *stopped) {
    const Options *o = saver->options;
    TRY(check_no_model(o));
    saver->records = calloc((size_t)comm_size(saver->world), sizeof *saver->records);
    if (!saver->records)
        return fail(ERR_OS, "no memory for the records of %d ranks", comm_size(saver->world));
    TRY(checkpoint_lock(o->save, o->lock_timeout, stopped, &saver->lock));
    TRY(check_no_steps(o));
    options_save(o, FOR_TRAIN, &saver->config);
    return batches_tokenizer(o, &saver->tokenizer);
}

// The first rank of each machine commits there: all need the same text, and room for the records.
static void share_config(Saver *saver) {
    comm_broadcast_text(saver->world, &saver->config, 0);
    if (!saver->records) saver->records = calloc((size_t)comm_size(saver->world), sizeof *saver->records);
    CHECK(saver->records, "no memory for the records of %d ranks", comm_size(saver->world));
}

Status saver_open(Saver *saver, const Options *options, const atomic_int *stopped, Comm *world,
                  Reporter *reporter) {
    *saver = (Saver){.options = options, .world = world, .reporter = reporter, .lock = -1};
    saver->last = saver->past = -1;
    saver->memory = (MemoryStore){.lock = -1};
    if (!options->save) return OK;
    TRY(comm_agree(world, comm_rank(world) == 0 ? open_first(saver, stopped) : OK));
    TRY(store_open(&saver->memory, options, stopped, world));
    if (saver->memory.world) share_config(saver);
    return OK;
}

Status saver_take_belongings(Saver *saver, Belongings *belongings) {
    saver->belongings = *belongings;
    *belongings = (Belongings){0};
    bool chooses = saver->options->save && comm_rank(saver->world) == 0;
    Status status = chooses ? belongings_choose(&saver->belongings, saver->options, &saver->tokenizer) : OK;
    return comm_agree(saver->world, status);
}

// Removing old checkpoints would remove the base too.
static Status check_base(const Options *o, const char *base) {
    char save[PATH_MAX];
    const char *name = strrchr(base, '/');
    bool beside = realpath(o->save, save) && strlen(save) == (size_t)(name - base) &&
                  !strncmp(save, base, strlen(save)) && !strncmp(name, "/step-", 6);
    if (!beside) return OK;
    return fail(
        ERR_CONFIG,
        "--save %s: the base of the adapters, %s, lies there among the checkpoints, where --keep-last would "
        "remove it: save to another folder",
        o->save, base);
}

Status saver_check_base(const Saver *saver) {
    const char *base = saver->base.path;
    bool checks = saver->options->save && base && comm_rank(saver->world) == 0;
    return comm_agree(saver->world, checks ? check_base(saver->options, base) : OK);
}

Status saver_take_memory(Saver *saver, Engine *engine, bool goes_on) {
    const Options *o = saver->options;
    if (!o->save || (!o->async_save && !saver->memory.world)) return OK;
    TRY(comm_agree(saver->world, engine_state(engine, o->save_optim, true, &saver->state)));
    Status status = store_check_room(&saver->memory, saver->state.bytes);
    if (status != ERR_CREATE || !goes_on) return status;
    saver->failures[TO_MEMORY] = MAX_FAILED_SAVES;
    if (saver->reporter) reporter_no_memory(saver->reporter, fail_message());
    return OK;
}

// ---- where to -----------------------------------------------------------------------------------

static bool is_async(const Saver *saver) { return saver->target == TO_MEMORY || saver->options->async_save; }

// The rank commits: rank 0, and in memory the first rank of each machine.
static bool commits(const Saver *saver) {
    return saver->target == TO_MEMORY ? store_is_first(&saver->memory) : comm_rank(saver->world) == 0;
}

static int lock_of(const Saver *saver) {
    return saver->target == TO_MEMORY ? saver->memory.lock : saver->lock;
}

void saver_close(Saver *saver) {
    if (saver->running) pthread_join(saver->thread, NULL);
    if (saver->phase != SAVER_IDLE && commits(saver)) checkpoint_abandon(&saver->names, lock_of(saver));
    store_close(&saver->memory, saver->last);
    checkpoint_unlock(saver->lock);
    step_list_free(&saver->verified);
    step_list_free(&saver->committed);
    for (int i = 0; saver->records && i < comm_size(saver->world); i++) text_free(&saver->records[i]);
    free(saver->records);
    text_free(&saver->record);
    text_free(&saver->config);
    free((char *)saver->base.path);
    tokenizer_close(saver->tokenizer);
    belongings_free(&saver->belongings);
    engine_state_free(&saver->state);
    *saver = (Saver){.lock = -1, .memory = {.lock = -1}};
}

// ---- the parts ----------------------------------------------------------------------------------

static Status write_shard(Saver *saver) {
    saver->record.size = 0;
    return checkpoint_write_shard(&saver->names, saver->rank, saver->state.items, saver->state.count,
                                  &saver->record);
}

// In memory the older checkpoint stays until the next save begins: by then every machine has this one. The tokenizer
// and what else belongs to the model are on disk alone.
static Status commit(Saver *saver) {
    const Options *o = saver->options;
    if (saver->target == TO_DISK)
        TRY(companions_write(&saver->belongings.companions, saver->names.temporary, true));
    TRY(checkpoint_commit(&saver->names, lock_of(saver), &saver->info,
                          saver->target == TO_DISK ? saver->tokenizer : NULL, saver->records,
                          saver->num_ranks));
    if (saver->target == TO_MEMORY) return OK;
    int64_t retain = o->save_retain_interval == INT_UNSET ? 0 : o->save_retain_interval;
    int64_t iteration = saver->info.state.iteration;
    step_list_add(&saver->verified, iteration);
    if (checkpoint_prune(o->save, iteration, o->keep_last, retain, &saver->verified) != OK)
        fprintf(stderr, "WARNING: older checkpoints: %s\n", fail_message());
    return OK;
}

static Status work_of(Saver *saver) {
    if (saver->phase == SAVER_WRITING) return write_shard(saver);
    if (saver->phase == SAVER_PREPARING) return store_prepare(&saver->memory, &saver->names);
    return commit(saver);
}

static void *work(void *arg) {
    Saver *saver = arg;
    saver->result = work_of(saver);
    if (saver->result != OK) snprintf(saver->message, sizeof saver->message, "%s", fail_message());
    atomic_store(&saver->done, true);
    return NULL;
}

// Where no thread can be started, the work is done at once.
static void start(Saver *saver, SaverPhase phase) {
    saver->phase = phase;
    atomic_store(&saver->done, false);
    saver->result = OK;
    bool mine = phase != SAVER_COMMITTING || commits(saver);
    if (!mine) {
        atomic_store(&saver->done, true);
        return;
    }
    saver->running = is_async(saver) && pthread_create(&saver->thread, NULL, work, saver) == 0;
    if (!saver->running) work(saver);
}

// The status and message of this rank's part, as if the calling thread had run it.
static Status join(Saver *saver) {
    if (saver->running) pthread_join(saver->thread, NULL);
    saver->running = false;
    return saver->result == OK ? OK : fail(saver->result, "%s", saver->message);
}

// ---- together -----------------------------------------------------------------------------------

static Status give_up_in_memory(Saver *saver, const char *why) {
    store_abandon_exchange(&saver->memory);
    bool again = ++saver->failures[TO_MEMORY] < MAX_FAILED_SAVES;
    if (saver->reporter)
        reporter_not_saved_in_memory(saver->reporter, saver->info.state.iteration, why, !again);
    return OK;
}

// A later save may succeed, so only several failures in a row end a run.
static Status give_up(Saver *saver, Status status) {
    char why[sizeof saver->message];
    snprintf(why, sizeof why, "%s", fail_message());
    if (commits(saver)) checkpoint_abandon(&saver->names, lock_of(saver));
    saver->phase = SAVER_IDLE;
    if (saver->target == TO_MEMORY) return give_up_in_memory(saver, why);
    if (++saver->failures[TO_DISK] >= MAX_FAILED_SAVES || saver->is_last)
        return fail(status, "iteration %" PRId64 " could not be saved: %s", saver->info.state.iteration, why);
    if (saver->reporter) reporter_not_saved(saver->reporter, saver->info.state.iteration, why);
    return OK;
}

static void gather_records(Saver *saver) {
    if (saver->rank > 0) {
        comm_send_text(saver->world, &saver->record, 0);
        return;
    }
    saver->records[0].size = 0;
    text_add_bytes(&saver->records[0], saver->record.data, saver->record.size);
    for (int rank = 1; rank < saver->num_ranks; rank++)
        comm_recv_text(saver->world, &saver->records[rank], rank);
}

// In memory the first rank of each machine commits, so each needs the records.
static void send_records(Saver *saver) {
    if (saver->target == TO_DISK || !commits(saver)) return;
    for (int to = 1; to < saver->num_ranks; to++) {
        if (saver->memory.machines[to] != to || (saver->rank && saver->rank != to)) continue;
        for (int rank = 0; rank < saver->num_ranks; rank++) {
            if (saver->rank == 0)
                comm_send_text(saver->world, &saver->records[rank], to);
            else
                comm_recv_text(saver->world, &saver->records[rank], 0);
        }
    }
}

static void committed_in_memory(Saver *saver) {
    bool is_first = saver->memory.newest < 0;
    saver->failures[TO_MEMORY] = 0;
    saver->memory.newest = saver->info.state.iteration;
    if (saver->reporter && is_first)
        reporter_saved_in_memory(saver->reporter, saver->memory.newest, saver->memory.folder,
                                 saver->all_bytes);
}

static void committed(Saver *saver) {
    saver->phase = SAVER_IDLE;
    if (saver->target == TO_MEMORY) {
        committed_in_memory(saver);
        return;
    }
    saver->failures[TO_DISK] = 0;
    saver->last = saver->info.state.iteration;
    if (saver->rank == 0) step_list_add(&saver->committed, saver->last);
    if (saver->reporter)
        reporter_saved(saver->reporter, saver->last, saver->all_bytes, clock_s() - saver->start_s);
}

bool saver_owns(const Saver *saver, int64_t step) {
    return step <= saver->past || step_list_has(&saver->committed, step);
}

bool saver_is_busy(Saver *saver) {
    if (saver->phase == SAVER_SENDING) return !store_exchange_is_over(&saver->memory);
    return saver->phase != SAVER_IDLE && !atomic_load(&saver->done);
}

// Starts the phase after the one that has ended on all ranks.
static void start_next(Saver *saver) {
    bool sends = saver->target == TO_MEMORY && saver->memory.num_machines > 1;
    if (saver->phase == SAVER_WRITING && sends) {
        store_share_sizes(&saver->memory, &saver->names);
        start(saver, SAVER_PREPARING);
    } else if (saver->phase == SAVER_PREPARING) {
        saver->phase = SAVER_SENDING;
        store_exchange(&saver->memory);
    } else {
        if (saver->phase == SAVER_SENDING) store_finish_exchange(&saver->memory);
        gather_records(saver);
        send_records(saver);
        start(saver, SAVER_COMMITTING);
    }
}

Status saver_advance(Saver *saver) {
    if (saver->phase == SAVER_IDLE) return OK;
    rank_doing("saving a checkpoint");
    Status status = comm_agree(saver->world, join(saver));
    if (status != OK) return give_up(saver, status);
    if (saver->phase == SAVER_COMMITTING) {
        committed(saver);
        return OK;
    }
    start_next(saver);
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
                                   .base = saver->base,
                                   .config = text_string(&saver->config),
                                   .program = TRIREME_VERSION};
    if (saver->target == TO_DISK) saver->info.tokens = saver->belongings.tokens;
    const char *folder = saver->target == TO_MEMORY ? saver->memory.folder : o->save;
    TRY(checkpoint_names(folder, state->iteration, &saver->names));
    saver->names.in_memory = saver->target == TO_MEMORY;
    return engine_state(engine, o->save_optim, is_async(saver), &saver->state);
}

// Makes the temporary folder. In memory the checkpoint before the newest makes room first.
static Status begin_folder(Saver *saver, int64_t bytes) {
    if (saver->rank == 0) TRY(checkpoint_lock_check(saver->options->save, saver->lock));
    if (!commits(saver)) return OK;
    if (saver->target == TO_MEMORY) {
        TRY(checkpoint_lock_check(saver->memory.folder, saver->memory.lock));
        TRY(checkpoint_keep_one(saver->memory.folder, saver->memory.newest));
    }
    return checkpoint_begin(&saver->names, bytes);
}

// What the save takes where this rank's folder is.
static int64_t find_bytes(Saver *saver) {
    double mine = (double)saver->state.bytes;
    saver->all_bytes = mine;
    comm_all_reduce_host(saver->world, &saver->all_bytes, 1, REDUCE_SUM);
    if (saver->target == TO_DISK) return (int64_t)saver->all_bytes;
    double *all = calloc((size_t)saver->num_ranks, sizeof *all);
    CHECK(all, "no memory for the sizes of %d ranks", saver->num_ranks);
    comm_all_gather_host(saver->world, &mine, all, sizeof mine);
    int64_t bytes = store_bytes_here(&saver->memory, all);
    free(all);
    return bytes;
}

static Status start_save(Saver *saver, Engine *engine, const RunState *state) {
    saver->start_s = clock_s();
    saver->rank = comm_rank(saver->world), saver->num_ranks = comm_size(saver->world);
    Status status = comm_agree(saver->world, begin(saver, engine, state));
    int64_t bytes = find_bytes(saver);
    if (status == OK) status = begin_folder(saver, bytes);
    status = comm_agree(saver->world, status);
    if (status != OK) return give_up(saver, status);
    start(saver, SAVER_WRITING);
    return is_async(saver) && !saver->is_last ? OK : saver_finish(saver);
}

bool saver_is_needed(const Saver *saver, SaveTarget target, int64_t iteration) {
    if (target == TO_DISK) return saver->last != iteration;
    if (!saver->memory.world || saver->phase != SAVER_IDLE) return false;
    if (saver->last == iteration || saver->memory.newest == iteration) return false;
    return saver->failures[TO_MEMORY] < MAX_FAILED_SAVES;
}

Status saver_start(Saver *saver, Engine *engine, const RunState *state, bool is_last) {
    TRY(saver_finish(saver));
    saver->is_last = is_last;
    saver->target = TO_DISK;
    rank_doing("saving a checkpoint");
    if (saver->reporter) reporter_saving(saver->reporter, state->iteration);
    return start_save(saver, engine, state);
}

Status saver_start_in_memory(Saver *saver, Engine *engine, const RunState *state) {
    saver->is_last = false;
    saver->target = TO_MEMORY;
    rank_doing("saving a checkpoint in memory");
    return start_save(saver, engine, state);
}
