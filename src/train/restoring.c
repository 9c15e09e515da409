// Continues the run of a checkpoint, or starts with the weights of another run. Rank 0 alone lists the checkpoints, so
// that all ranks read the same one.
#include "train/internal.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// ---- what the user has changed --------------------------------------------------------------------

// A line of a saved configuration (see options_save): "NAME: VALUE" without its origin. Defaults are comments. Headings
// of sections have no value.
typedef struct {
    const char *name, *value;
    int name_size, value_size;
    bool is_comment; // the value is a default
} ConfigLine;

static bool next_line(const char **text, ConfigLine *line) {
    const char *start = *text, *end = strchr(start, '\n');
    if (!end) return false;
    *text = end + 1;
    bool is_comment = !strncmp(start, "# ", 2);
    if (is_comment) start += 2;
    const char *colon = memchr(start, ':', (size_t)(end - start)), *value = colon ? colon + 2 : end;
    const char *origin = colon ? strstr(start, "  # ") : NULL;
    const char *value_end = origin && origin < end ? origin : end;
    *line = (ConfigLine){start, value, (int)((colon ? colon : end) - start), (int)(value_end - value),
                         is_comment};
    if (value > value_end) line->value_size = 0;
    return true;
}

static bool find_line(const char *text, const ConfigLine *wanted, ConfigLine *found) {
    while (next_line(&text, found))
        if (found->name_size == wanted->name_size && found->value_size > 0 &&
            !strncmp(found->name, wanted->name, (size_t)wanted->name_size))
            return true;
    return false;
}

// True for sections whose options change the numbers of a run.
static bool matters(const ConfigLine *heading) {
    static const char *const sections[] = {"Batch and run length", "Optimizer", "Learning rate",
                                           "Initialisation",       "Precision", "Data and tokenizer"};
    for (size_t i = 0; i < sizeof sections / sizeof sections[0]; i++)
        if ((int)strlen(sections[i]) == heading->name_size &&
            !strncmp(sections[i], heading->name, (size_t)heading->name_size))
            return true;
    return false;
}

// When a run ends does not change its numbers.
static bool is_about_leaving(const ConfigLine *line) { return !strncmp(line->name, "exit_", 5); }

// True for an option that was unset and now follows from the checkpoint: the vocabulary.
static bool is_worked_out(const ConfigLine *line, const ConfigLine *before) {
    return line->is_comment && !strncmp(before->value, "unset", 5);
}

// Reports the options that differ from those of the checkpoint.
static void report_changes(const Options *o, const char *saved, Reporter *reporter) {
    Text now = {0}, changes = {0};
    ConfigLine line, before;
    bool section_matters = false;
    options_save(o, FOR_TRAIN, &now);
    const char *rest = text_string(&now);
    while (next_line(&rest, &line)) {
        if (!line.value_size) section_matters = line.name_size && matters(&line);
        if (!line.value_size || !section_matters || is_about_leaving(&line)) continue;
        if (!find_line(saved, &line, &before) || is_worked_out(&line, &before)) continue;
        if (line.value_size == before.value_size &&
            !strncmp(line.value, before.value, (size_t)line.value_size))
            continue;
        text_add(&changes, "%s%.*s %.*s (was %.*s)", changes.size ? ", " : "", line.name_size, line.name,
                 line.value_size, line.value, before.value_size, before.value);
    }
    if (changes.size) reporter_changed(reporter, text_string(&changes));
    text_free(&now);
    text_free(&changes);
}

// ---- one checkpoint -----------------------------------------------------------------------------

static Status same_optimizer(const Options *o, ModelSource *source) {
    bool saved = checkpoint_keeps(model_source_checkpoint(source), STATE_MOMENTUM);
    if (saved == !strcmp(o->optimizer, "muon")) return OK;
    return fail(ERR_CONFIG,
                "%s holds the state of --optimizer %s: go on with that, or add --no-load-optim to go on with "
                "--optimizer %s from fresh moments",
                model_source_path(source), saved ? "muon" : "adam", o->optimizer);
}

static Status wanted_moments(const Options *o, ModelSource *source, bool *moments) {
    const CheckpointInfo *info = model_source_info(source);
    *moments = o->load_optim && !o->finetune && info->has_optimizer;
    if (*moments) return same_optimizer(o, source);
    if (o->finetune || !o->load_optim || info->state.iteration == 0) return OK;
    return fail(
        ERR_CONFIG,
        "%s holds no optimizer state (it was saved with --no-save-optim): add --no-load-optim to go on "
        "with fresh moments, or --finetune to begin at step 0",
        model_source_path(source));
}

static Status read_state(Engine *engine, const Options *o, ModelSource *source) {
    bool moments;
    model_source_allow_non_finite(source, o->allow_non_finite);
    TRY(same_model(model_source_path(source), &model_source_info(source)->shape,
                   &engine_spec_of(engine)->shape));
    TRY(wanted_moments(o, source, &moments));
    return engine_read(engine, source, moments, !o->finetune,
                       model_source_info(source)->state.optimizer_steps);
}

// Collective over the world; fails on all ranks.
static Status read_one(Engine *engine, const Options *o, const char *folder, int64_t step, Comm *world,
                       ModelSource **source) {
    TRY(comm_agree(world, model_source_open(source, folder, step)));
    TRY(model_source_compare(*source, world));
    return comm_agree(world, read_state(engine, o, *source));
}

static void take_state(const Options *o, const ModelSource *source, RunState *state) {
    *state = o->finetune ? (RunState){0} : model_source_info(source)->state;
}

// ---- which one ----------------------------------------------------------------------------------

// What may be read: checkpoints on disk, which rank 0 alone lists, and in memory. Both lists are newest first.
typedef struct {
    int64_t *steps;
    int count, next;
    bool may_begin; // nothing is on disk yet: where nothing in memory is intact either, the run begins
    MemoryStore *memory;
    int *holdings;
    int num_holdings, next_holding;
} Candidates;

typedef struct {
    int64_t step;
    int holding; // in memory; -1: on disk
} Candidate;

// Of the same step on disk and in memory the one in memory is faster to read.
static Candidate next_candidate(Candidates *c, Comm *world) {
    Candidate next = {NONE_LEFT, -1};
    int64_t in_memory = NONE_LEFT;
    if (c->next_holding < c->num_holdings) in_memory = c->memory->holdings[c->holdings[c->next_holding]].step;
    if (c->next < c->count) next.step = c->steps[c->next];
    if (in_memory >= 0 && in_memory >= next.step)
        next = (Candidate){in_memory, c->holdings[c->next_holding++]};
    else if (next.step != NONE_LEFT)
        c->next++;
    comm_broadcast_host(world, &next, sizeof next, 0);
    return next;
}

// Only a run that goes on where it saves has been there before. Rank 0 decides: ranks may see different files.
static bool may_read_memory(const Options *o, Comm *world) {
    bool may = saves_where_it_loads(o) && !o->finetune && o->ckpt_step == INT_UNSET;
    comm_broadcast_host(world, &may, sizeof may, 0);
    return may;
}

static Status list_memory(Candidates *c, const Options *o, Comm *world, Reporter *reporter) {
    if (!c->memory->world || !may_read_memory(o, world)) return OK;
    Text why = {0};
    c->may_begin = c->count == 0;
    comm_broadcast_host(world, &c->may_begin, sizeof c->may_begin, 0);
    Status status = store_survey(c->memory, c->count ? c->steps[0] : -1, &why);
    if (status == OK && reporter && why.size) reporter_not_loaded(reporter, text_string(&why));
    text_free(&why);
    return status == OK ? comm_agree(world, store_candidates(c->memory, &c->holdings, &c->num_holdings))
                        : status;
}

// A status that an older checkpoint may not have.
static bool is_damage(Status status) {
    return status == ERR_DATA || status == ERR_IO || status == ERR_NO_INPUT;
}

// Warns of later checkpoints in the folder that this run saves to: --load without --ckpt-step would read them.
static void warn_of_later(const Options *o, int64_t step, Reporter *reporter) {
    int64_t *steps = NULL;
    int count = 0;
    if (!reporter || step < 0 || !saves_where_it_loads(o)) return;
    char why[256];
    if (checkpoint_steps(o->save, &steps, &count) == OK && count && steps[0] > step &&
        o->ckpt_step != INT_UNSET) {
        snprintf(why, sizeof why,
                 "step %" PRId64 " and maybe others after %" PRId64
                 " stay beside what this run saves: --load "
                 "without --ckpt-step takes the newest",
                 steps[0], step);
        reporter_not_loaded(reporter, why);
    }
    free(steps);
}

static void report_damage(Reporter *reporter, Text *why) {
    text_add(why, "%s%s", why->size ? "; " : "", fail_message());
    if (reporter) reporter_not_loaded(reporter, fail_message());
}

// Reads every byte before any of it becomes a part of the engine.
static Status verify(const MemoryStore *memory, int64_t step) {
    Checkpoint *checkpoint = NULL;
    TRY(checkpoint_open_step(&checkpoint, memory->folder, step));
    Status status = checkpoint_verify(checkpoint);
    checkpoint_close(checkpoint);
    return status;
}

static Status read_candidate(Engine *engine, const Options *o, Comm *world, Candidates *candidates,
                             Candidate one, ModelSource **source) {
    *source = NULL;
    if (one.holding < 0) return read_one(engine, o, o->load, one.step, world, source);
    rank_doing("loading a checkpoint in memory");
    MemoryStore *memory = candidates->memory;
    TRY(store_fetch(memory, one.holding));
    if (candidates->may_begin) TRY(comm_agree(world, store_is_first(memory) ? verify(memory, one.step) : OK));
    return read_one(engine, o, memory->folder, one.step, world, source);
}

// Programs before this one left the products of experts in bf16.
static void warn_of_scales(const Engine *engine, const Options *o, ModelSource *source, Reporter *reporter) {
    Text why = {0};
    if (o->finetune || !o->load_optim || engine_knows_amax(engine, source)) return;
    text_add(&why,
             "the history of --fp8-recipe delayed in %s is of other products than this run has in few bits: "
             "scales are 1 in the next step, and the history begins again",
             model_source_path(source));
    reporter_not_loaded(reporter, text_string(&why));
    text_free(&why);
}

static void report_loaded(const Engine *engine, const Options *o, ModelSource *source, bool from_memory,
                          const RunState *state, Reporter *reporter) {
    Text from = {0};
    if (!reporter) return;
    text_add(&from, "%s%s", from_memory ? "the memory in " : "", model_source_path(source));
    reporter_loaded(reporter, text_string(&from), state);
    warn_of_scales(engine, o, source, reporter);
    text_free(&from);
    const char *saved = model_source_info(source)->config;
    if (saved && state->iteration) report_changes(o, saved, reporter);
}

// An older checkpoint may be whole where this one is not. In memory that is so after any failure, of space too.
static bool goes_on(Status status, Candidate one) {
    return is_damage(status) || (one.holding >= 0 && (status == ERR_CREATE || status == ERR_UNAVAILABLE));
}

// What belongs to the model goes into the checkpoints of the run. In memory there is none of it: it is read from a
// checkpoint of the run on disk.
static Status read_belongings(const Options *o, const ModelSource *source, Restored *restored) {
    ModelSource *on_disk;
    if (!restored->from_memory) return belongings_read(&restored->belongings, source);
    if (model_source_open(&on_disk, o->save, -1) != OK) return OK;
    Status status = belongings_read(&restored->belongings, on_disk);
    model_source_close(on_disk);
    return status;
}

static Status take_belongings(const Options *o, Comm *world, const ModelSource *source, Restored *restored) {
    bool takes = o->save && comm_rank(world) == 0;
    return comm_agree(world, takes ? read_belongings(o, source, restored) : OK);
}

// The path of the model that checkpoints of adapters name outlives the source.
static Status take_base(Engine *engine, ModelSource *source, Restored *restored) {
    if (!engine_spec_of(engine)->shape.lora_rank) return OK;
    TRY(model_source_base(source, &restored->base));
    restored->base.path = strdup(restored->base.path);
    CHECK(restored->base.path, "no memory for a path");
    return OK;
}

static Status read_newest(Engine *engine, const Options *o, Comm *world, Reporter *reporter,
                          Candidates *candidates, Restored *restored) {
    Text why = {0};
    Status status = OK;
    Candidate one = next_candidate(candidates, world);
    if (one.step == NONE_LEFT && reporter)
        reporter_not_loaded(reporter, "could not find a checkpoint to load: will start from random");
    while (one.step != NONE_LEFT) {
        ModelSource *source = NULL;
        status = read_candidate(engine, o, world, candidates, one, &source);
        restored->from_memory = status == OK && one.holding >= 0;
        if (status == OK) take_state(o, source, &restored->state);
        if (status == OK) restored->step = one.step;
        if (status == OK) status = take_belongings(o, world, source, restored);
        if (status == OK) status = comm_agree(world, take_base(engine, source, restored));
        if (status == OK) report_loaded(engine, o, source, restored->from_memory, &restored->state, reporter);
        if (status == OK) warn_of_later(o, one.step, reporter);
        model_source_close(source);
        if (!goes_on(status, one)) break;
        report_damage(reporter, &why);
        one = next_candidate(candidates, world);
        if (one.step == NONE_LEFT && candidates->may_begin) status = OK;
        if (one.step == NONE_LEFT && status != OK)
            fail(status, "--load %s: nothing intact is there: %s", o->load, text_string(&why));
    }
    text_free(&why);
    return status;
}

static Status restore(Engine *engine, const Options *o, Comm *world, Reporter *reporter,
                      Candidates *candidates, Restored *restored) {
    if (!o->load) return OK;
    rank_doing("loading a checkpoint");
    TRY(comm_agree(world,
                   comm_rank(world) == 0 ? load_candidates(o, &candidates->steps, &candidates->count) : OK));
    TRY(list_memory(candidates, o, world, reporter));
    return read_newest(engine, o, world, reporter, candidates, restored);
}

// Of the checkpoints that were not tried.
static int64_t newest_on_disk(const Options *o, const Candidates *c) {
    for (int i = c->next; i < c->count; i++) {
        Checkpoint *checkpoint;
        if (checkpoint_open_step(&checkpoint, o->save, c->steps[i]) != OK) continue;
        checkpoint_close(checkpoint);
        return c->steps[i];
    }
    return -1;
}

// What was read from elsewhere, or only for its weights, has no past in --save. Rank 0 decides: ranks may see different
// files.
static void find_past(const Options *o, Comm *world, const Candidates *candidates, Restored *restored) {
    int64_t past[2] = {-1, -1};
    if (comm_rank(world) == 0 && saves_where_it_loads(o) && restored->step == restored->state.iteration) {
        past[0] = restored->step;
        past[1] = restored->from_memory ? newest_on_disk(o, candidates) : restored->step;
    }
    comm_broadcast_host(world, past, sizeof past, 0);
    restored->past = past[0], restored->on_disk = past[1];
}

Status run_restore(Engine *engine, const Options *o, Comm *world, Reporter *reporter, MemoryStore *memory,
                   Restored *restored) {
    Candidates candidates = {.memory = memory};
    *restored = (Restored){.step = NONE_LEFT};
    Status status = restore(engine, o, world, reporter, &candidates, restored);
    if (status == OK && restored->step == NONE_LEFT) status = engine_init(engine);
    if (status == OK) find_past(o, world, &candidates, restored);
    free(candidates.steps);
    free(candidates.holdings);
    TRY(status);
    return store_settle(memory, o, restored->from_memory ? restored->state.iteration : -1);
}

Status run_read_weights(Engine *engine, const Options *o, const char *path, Comm *world, uint64_t *base) {
    Options own = *o;
    int64_t *steps = NULL, step = NONE_LEFT;
    int count = 0;
    ModelSource *source = NULL;
    own.load = path, own.finetune = true, own.ckpt_step = INT_UNSET;
    Status status = comm_agree(world, comm_rank(world) == 0 ? load_candidates(&own, &steps, &count) : OK);
    if (count) step = steps[0];
    free(steps);
    TRY(status);
    comm_broadcast_host(world, &step, sizeof step, 0);
    if (step == NONE_LEFT) return fail(ERR_NO_INPUT, "%s has no checkpoint", path);
    status = read_one(engine, &own, path, step, world, &source);
    BaseModel found = {0};
    if (status == OK && engine_spec_of(engine)->shape.lora_rank)
        status = comm_agree(world, model_source_base(source, &found));
    *base = found.hash;
    model_source_close(source);
    return status;
}

// Rank 0 alone lists them.
static Status list_before(const Saver *saver, int64_t newest, Candidates *candidates) {
    const char *save = saver->options->save;
    int count = 0, own = 0;
    TRY(checkpoint_steps(save, &candidates->steps, &count));
    for (int i = 0; i < count; i++) {
        int64_t step = candidates->steps[i];
        if (step <= newest && saver_owns(saver, step)) candidates->steps[own++] = step;
    }
    candidates->count = own;
    if (own) return OK;
    return fail(ERR_NO_INPUT,
                "%s has no checkpoint of this run of step %" PRId64
                " or before. Save more often with --save-interval, or lower "
                "--rewind-margin",
                save, newest > 0 ? newest : 0);
}

// Wherever the run began, it goes back to what it has saved.
Status run_restore_before(Engine *engine, const Saver *saver, int64_t newest, RunState *state) {
    MemoryStore none = {0};
    Candidates candidates = {.memory = &none};
    Restored restored = {0};
    Comm *world = saver->world;
    Options own = *saver->options;
    own.load = own.save;
    own.ckpt_step = INT_UNSET;
    own.finetune = false;
    own.load_optim = true;
    rank_doing("going back to a checkpoint");
    Status status = comm_rank(world) == 0 ? list_before(saver, newest, &candidates) : OK;
    status = comm_agree(world, status);
    if (status == OK) status = read_newest(engine, &own, world, saver->reporter, &candidates, &restored);
    *state = restored.state;
    belongings_free(&restored.belongings);
    free((char *)restored.base.path);
    free(candidates.steps);
    return status;
}
