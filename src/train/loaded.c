// Takes the model of --load into the options before they are resolved, and says what --load names where it is no
// model.
#include "base/file.h"
#include "train/internal.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

// ---- whether there is one -----------------------------------------------------------------------

// The path by which two names of a folder can be compared that is not there yet: the parent's real one, as far as
// it is there, and the last name. The caller frees.
static char *place_of(const char *path) {
    Text place = {0};
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t name = end;
    while (name > 0 && path[name - 1] != '/') name--;
    char *parent = name ? strndup(path, name) : strdup(".");
    CHECK(parent, "no memory for a path");
    char *real = realpath(parent, NULL);
    text_add(&place, "%s/%.*s", real ? real : parent, (int)(end - name), path + name);
    free(real);
    free(parent);
    return place.data;
}

bool saves_where_it_loads(const Options *o) {
    struct stat save, load;
    if (!o->save || !o->load) return false;
    if (stat(o->save, &save) == 0 && stat(o->load, &load) == 0)
        return save.st_dev == load.st_dev && save.st_ino == load.st_ino;
    char *a = place_of(o->save), *b = place_of(o->load);
    bool same = !strcmp(a, b);
    free(a);
    free(b);
    return same;
}

// The first of several runs with the same command finds nothing yet in the folder that it will save to. Everyone
// else expects a model: random weights in its place would be a bad surprise.
static Status nothing_there(const Options *o) {
    Text what = {0};
    FoundThere found = model_absent(o->load, &what);
    const char *advice =
        found == FOUND_FOREIGN ? ""
        : o->finetune          ? ". --finetune needs a model: to begin with random weights leave out both"
        : !saves_where_it_loads(o)
            ? ". To begin with random weights leave out --load, or give --save the same folder"
            : " (--exit-on-missing-checkpoint)";
    bool may_begin = found == FOUND_NOTHING && saves_where_it_loads(o) && !o->finetune;
    Status status = OK;
    if (!may_begin || o->exit_on_missing_checkpoint)
        status = fail(ERR_NO_INPUT, "--load %s: %s%s", o->load, text_string(&what), advice);
    text_free(&what);
    return status;
}

Status load_candidates(const Options *o, int64_t **steps, int *count) {
    struct stat st;
    *steps = NULL;
    *count = 0;
    if (o->ckpt_step != INT_UNSET || model_is_named(o->load)) {
        *steps = malloc(sizeof **steps);
        if (!*steps) return fail(ERR_OS, "no memory for a list of checkpoints");
        (*steps)[0] = o->ckpt_step != INT_UNSET ? o->ckpt_step : ITSELF;
        *count = 1;
        return OK;
    }
    if (stat(o->load, &st) == 0 && S_ISDIR(st.st_mode)) TRY(checkpoint_steps(o->load, steps, count));
    return *count ? OK : nothing_there(o);
}

// ---- whether it is the model of the options ------------------------------------------------------

// Appends "--num-layers 4", or "no --rotary-base" where the model has none.
static void add_option(const char *field, const char *value, Text *out) {
    text_add(out, *value ? "--" : "no --");
    for (const char *c = field; *c; c++) text_add(out, "%c", *c == '_' ? '-' : *c);
    text_add(out, "%s%s", *value ? " " : "", value);
}

Status same_model(const char *path, const ModelShape *model, const ModelShape *asked) {
    ModelOption theirs[MAX_MODEL_OPTIONS], ours[MAX_MODEL_OPTIONS];
    Text all = {0};
    int count = model_options(model, theirs);
    model_options(asked, ours);
    for (int i = 0; i < count; i++) {
        if (!theirs[i].is_fixed || !strcmp(theirs[i].value, ours[i].value)) continue;
        text_add(&all, "%s", all.size ? ", " : "");
        add_option(ours[i].option, ours[i].value, &all);
        text_add(&all, " (it has %s)", *theirs[i].value ? theirs[i].value : "none");
    }
    Status status = OK;
    if (all.size)
        status = fail(ERR_CONFIG,
                      "%s: its model is not the one that the options ask for: %s. Leave these options out: "
                      "--load brings those of its model",
                      path, all.data);
    text_free(&all);
    return status;
}

static void note_training(Options *o, const char *path, const ModelShape *model, const ModelShape *asked) {
    ModelOption theirs[MAX_MODEL_OPTIONS], ours[MAX_MODEL_OPTIONS];
    int count = model_options(model, theirs);
    model_options(asked, ours);
    for (int i = 0; i < count; i++) {
        if (!theirs[i].is_training || !*theirs[i].value || !strcmp(theirs[i].value, ours[i].value)) continue;
        Text note = {0};
        add_option(ours[i].option, ours[i].value, &note);
        text_add(&note, " is used, as given; the model of %s has %s", path, theirs[i].value);
        options_note(o, note.data);
        text_free(&note);
    }
}

// ---- into the options ---------------------------------------------------------------------------

// The vocabulary is certain only when the tokenizer is open (batches_vocabulary). Until then the options are compared.
static int asked_vocabulary(const Options *o, int of_model) {
    Origin origin = options_origin(o, "vocab_size");
    if (origin != FROM_MODEL && origin != FROM_FILE && origin != FROM_COMMAND_LINE) return of_model;
    return o->vocab_size + options_have_null_tokenizer(o);
}

static Status take_vocabulary(Options *o, const char *path, int vocabulary, Text *taken) {
    char value[32];
    snprintf(value, sizeof value, "%d", vocabulary - options_have_null_tokenizer(o));
    return options_take(o, "vocab_size", value, !o->mock_data, path, taken);
}

static Status take_options(Options *o, const char *path, const ModelShape *model) {
    ModelOption rows[MAX_MODEL_OPTIONS];
    Text taken = {0};
    int count = model_options(model, rows);
    Status status = OK;
    for (int i = 0; i < count && status == OK; i++) {
        if (!*rows[i].value) continue;
        status = !strcmp(rows[i].option, "vocab_size")
                     ? take_vocabulary(o, path, model->vocabulary, &taken)
                     : options_take(o, rows[i].option, rows[i].value, rows[i].follows, path, &taken);
    }
    if (status == OK && taken.size) {
        Text note = {0};
        text_add(&note, "taken from %s:%s", path, taken.data);
        options_note(o, note.data);
        text_free(&note);
    }
    text_free(&taken);
    return status;
}

// What has adapters trains them; beside another model they begin. A verb that does not train asks what they would take.
static Status check_adapters(const Options *o, const char *path, const ModelShape *model) {
    if (options_verb(o) != FOR_TRAIN || !o->lora_rank || model->lora_rank || o->finetune) return OK;
    return fail(ERR_CONFIG,
                "--load %s: the model has no adapters, so that --lora-rank %d does not go on with it: add "
                "--finetune to train new ones beside it",
                path, o->lora_rank);
}

static Status resolve_with(Options *o, int world_size, const char *path, const ModelShape *model) {
    TRY(take_options(o, path, model));
    TRY(options_resolve(o, world_size));
    ModelShape asked = options_model(o, asked_vocabulary(o, model->vocabulary));
    TRY(same_model(path, model, &asked));
    TRY(check_adapters(o, path, model));
    note_training(o, path, model, &asked);
    return OK;
}

// Says before a run begins that its exports will not be of the family that the options name.
static Status resolve_anew(Options *o, int world_size) {
    TRY(options_resolve(o, world_size));
    if (o->lora_rank && o->load)
        return fail(
            ERR_NO_INPUT,
            "--load %s: nothing is there yet, and --lora-rank %d trains adapters beside a model: begin "
            "with --load MODEL --finetune",
            o->load, o->lora_rank);
    ModelShape model = options_model(o, asked_vocabulary(o, 1));
    Text note = {0}, lack = {0};
    family_lack(&model, &lack);
    if (lack.size) {
        text_add(&note, "--model-family %s: %s; an export takes another family", o->model_family, lack.data);
        options_note(o, note.data);
    }
    text_free(&lack);
    text_free(&note);
    return OK;
}

Status train_resolve(Options *o, int world_size) {
    int64_t *steps = NULL;
    int count = 0;
    ModelSource *source;
    if (!o->load) return resolve_anew(o, world_size);
    TRY(load_candidates(o, &steps, &count));
    free(steps);
    if (!count) return resolve_anew(o, world_size);
    TRY(model_source_open(&source, o->load, o->ckpt_step != INT_UNSET ? o->ckpt_step : -1));
    Status status = resolve_with(o, world_size, model_source_path(source), &model_source_info(source)->shape);
    model_source_close(source);
    return status;
}

Status compare_resolved(const Options *o, Comm *world) {
    Text resolved = {0};
    options_list(o, &resolved);
    Status status = comm_compare(world, text_string(&resolved));
    text_free(&resolved);
    return status;
}
