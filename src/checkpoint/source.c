// Opens models: checkpoints, Hugging Face folders, GGUF files and adapters (adapter_open.c); reads their weights.
#include "checkpoint/source.h"
#include "base/file.h"
#include "checkpoint/finite.h"
#include "checkpoint/place.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- checkpoints ----------------------------------------------------------------------------------------

// `opened` is the status of opening the checkpoint.
static Status take_checkpoint(ModelSource *source, Status opened) {
    TRY(opened);
    Status status = checkpoint_check_model(source->checkpoint);
    if (status == OK) return OK;
    checkpoint_close(source->checkpoint);
    source->checkpoint = NULL;
    return status;
}

// ---- opening ------------------------------------------------------------------------------------

static Status open_one(ModelSource *source, const char *path, int64_t step) {
    TRY(take_checkpoint(source, checkpoint_open(&source->checkpoint, path)));
    int64_t iteration = checkpoint_info(source->checkpoint)->state.iteration;
    if (step >= 0 && step != iteration)
        return fail(ERR_NO_INPUT, "%s is the checkpoint of step %" PRId64 ", not %" PRId64, path, iteration,
                    step);
    return OK;
}

// Opens the newest checkpoint that can be opened and keeps the messages of newer ones. When none can be opened, fails
// with the message of the newest.
static Status open_newest(ModelSource *source, const char *save, const int64_t *steps, int count) {
    Text *passed = &source->passed_over;
    Status status = OK, first = OK;
    size_t size = 0; // of what is wrong with the newest
    for (int i = 0; i < count; i++) {
        status = take_checkpoint(source, checkpoint_open_step(&source->checkpoint, save, steps[i]));
        if (status == OK || status == ERR_OS) return status;
        text_add(passed, "%s%s", i ? "; " : "", fail_message());
        if (i) continue;
        first = status;
        size = passed->size;
    }
    return fail(first, "%s: none of %d checkpoints can be read; of the newest: %.*s", save, count, (int)size,
                text_string(passed));
}

static Status no_model(const char *path) {
    static const char ours[] =
        ". A model is a checkpoint (manifest.json), a folder of them (step-00000100), a "
        "Hugging Face folder (config.json) or a GGUF file (.gguf)";
    Text what = {0};
    FoundThere found = model_absent(path, &what);
    Status status =
        fail(ERR_NO_INPUT, "%s: %s%s", path, text_string(&what), found == FOUND_FOREIGN ? "" : ours);
    text_free(&what);
    return status;
}

// Says which steps there are.
static Status no_step(const char *save, int64_t step, const int64_t *steps, int count) {
    enum { MAX_LISTED = 20 };
    Text list = {0};
    for (int i = 0; i < count && i < MAX_LISTED; i++) text_add(&list, "%s%" PRId64, i ? ", " : "", steps[i]);
    if (count > MAX_LISTED) text_add(&list, " and %d older ones", count - MAX_LISTED);
    Status status = fail(ERR_NO_INPUT, "%s: there is no checkpoint of step %" PRId64 "; there %s %s", save,
                         step, count == 1 ? "is" : "are", text_string(&list));
    text_free(&list);
    return status;
}

static bool has_step(const int64_t *steps, int count, int64_t step) {
    for (int i = 0; i < count; i++)
        if (steps[i] == step) return true;
    return false;
}

static Status open_folder(ModelSource *source, const char *save, int64_t step) {
    int64_t *steps;
    int count;
    if (!place_is_folder(save)) return no_model(save);
    TRY(checkpoint_steps(save, &steps, &count));
    Status status;
    if (count && step >= 0 && !has_step(steps, count, step))
        status = no_step(save, step, steps, count);
    else if (count && step >= 0)
        status = open_newest(source, save, &step, 1);
    else if (count)
        status = open_newest(source, save, steps, count);
    else
        status = no_model(save);
    free(steps);
    return status;
}

static Status open_any(ModelSource *source, const char *path, int64_t step) {
    if (place_holds(path, "manifest.json")) return open_one(source, path, step);
    if (!model_is_there(path)) return open_folder(source, path, step);
    if (step >= 0)
        return fail(ERR_USAGE, "%s is a %s: it has no step %" PRId64 " (--ckpt-step)", path,
                    place_is_gguf(path) ? "GGUF file" : "Hugging Face model or adapter", step);
    if (place_is_adapter(path)) return source_open_adapter(source, path);
    if (place_is_gguf(path)) return gguf_model_open(&source->gguf, path);
    TRY(hugging_face_open(&source->model, path));
    hugging_face_note(source->model, &source->notes);
    return OK;
}

// The hash of the manifest covers the tensors, since it contains their checksums.
static Status take_hash(ModelSource *source) {
    enum { MAX_BYTES = 1 << 30 };
    if (source->gguf) {
        source->hash = gguf_model_hash(source->gguf);
        return OK;
    }
    if (source->adapters.count) return OK; // add_adapter has
    Text path = {0};
    char *data = NULL;
    size_t size = 0;
    text_add(&path, "%s/%s", source->path, source->checkpoint ? "manifest.json" : "config.json");
    Status status = file_read(text_string(&path), MAX_BYTES, &data, &size);
    if (status == OK) source->hash = hash64_of(data, size);
    free(data);
    text_free(&path);
    return status;
}

static Status read_checkpoint(ModelSource *source, const char *name, Rect rect, float *out, int64_t stride) {
    char tensor_name[160];
    state_tensor_name(source->use_ema ? STATE_EMA : STATE_WEIGHT, name, tensor_name);
    int tensor = checkpoint_find(source->checkpoint, tensor_name);
    // What no optimizer steps has no average.
    if (tensor < 0 && source->use_ema) tensor = checkpoint_find(source->checkpoint, name);
    if (tensor < 0) return fail(ERR_DATA, "%s: tensor %s is missing", source->path, tensor_name);
    return checkpoint_read(source->checkpoint, tensor, rect, out, stride);
}

static Status read_adapted(ModelSource *source, const char *name, Rect rect, float *out, int64_t stride) {
    if (is_adapter_weight(name))
        return source->checkpoint
                   ? read_checkpoint(source, name, rect, out, stride)
                   : adapter_set_read(&source->adapters, source->path, name, rect, out, stride);
    TRY(model_source_read(source->base, name, rect, out, stride));
    if (source->merged) adapter_weights_merge(source->adapters.items[0], name, rect, out, stride);
    return OK;
}

Status source_read_raw(ModelSource *source, const char *name, Rect rect, float *out, int64_t stride) {
    if (source->base) return read_adapted(source, name, rect, out, stride);
    if (source->gguf) return gguf_model_read(source->gguf, name, rect, out, stride);
    if (source->model) return hugging_face_read(source->model, name, rect, out, stride);
    return read_checkpoint(source, name, rect, out, stride);
}

Status source_remember_path(ModelSource *source, const char *path) {
    source->path = strdup(source->checkpoint ? checkpoint_folder(source->checkpoint) : path);
    CHECK(source->path, "no memory for a path");
    return take_hash(source);
}

Status source_open(ModelSource **out, const char *path, int64_t step, SourceRole role) {
    ModelSource *source = *out = calloc(1, sizeof *source);
    CHECK(source, "no memory for a model");
    source->role = role;
    char place[PATH_ROOM];
    path = place_of_model(path, step, place);
    Status status = open_any(source, path, step);
    if (status == OK) status = source_remember_path(source, path);
    if (status == OK) status = source_open_own_base(source);
    if (status == OK) return OK;
    model_source_close(source);
    *out = NULL;
    return status;
}

Status model_source_open(ModelSource **source, const char *path, int64_t step) {
    return source_open(source, path, step, AS_MODEL);
}

void model_source_close(ModelSource *source) {
    if (!source) return;
    checkpoint_close(source->checkpoint);
    hugging_face_close(source->model);
    gguf_model_close(source->gguf);
    model_source_close(source->base);
    adapter_set_free(&source->adapters);
    text_free(&source->passed_over);
    text_free(&source->notes);
    free((char *)source->as_base.path);
    free(source->path);
    free(source);
}

const char *model_source_path(const ModelSource *source) { return source->path; }
const char *model_source_base_path(const ModelSource *source) {
    return source->base ? source->base->path : source->path;
}
const char *model_source_files_path(const ModelSource *source) {
    return source->checkpoint ? source->path : model_source_base_path(source);
}
const AdapterWeights *model_source_adapter(const ModelSource *source) {
    const AdapterSet *set = &source->adapters;
    return set->count && set->chosen >= 0 ? set->items[set->chosen] : NULL;
}

Status model_source_compare(const ModelSource *source, Comm *world) {
    Text found = {0};
    text_add(&found, "the model of --load\t%s, hash %016" PRIx64 "\n", source->path, source->hash);
    if (source->base)
        text_add(&found, "the base of the adapter\t%s, hash %016" PRIx64 "\n", source->base->path,
                 source->base->hash);
    Status status = comm_compare(world, text_string(&found));
    text_free(&found);
    return status;
}
void model_source_warn(const ModelSource *source) {
    if (source->base) model_source_warn(source->base);
    if (source->passed_over.size)
        fprintf(stderr, "WARNING: %s: going back to %s\n", source->passed_over.data, source->path);
    fputs(text_string(&source->notes), stderr);
}
Checkpoint *model_source_checkpoint(ModelSource *source) { return source->checkpoint; }

const CheckpointInfo *model_source_info(const ModelSource *source) {
    if (source->adapters.count || source->upcycled) return &source->info;
    if (source->checkpoint) return checkpoint_info(source->checkpoint);
    return source->gguf ? gguf_model_info(source->gguf) : hugging_face_info(source->model);
}

static Status read_any(void *source, const char *name, Rect rect, float *out, int64_t stride) {
    return model_source_read(source, name, rect, out, stride);
}

WeightReader model_source_reader(ModelSource *source) { return (WeightReader){read_any, source}; }

void model_source_allow_non_finite(ModelSource *source, bool allow) {
    source->allow_non_finite = allow;
    if (source->base) source->base->allow_non_finite = allow;
}

Status model_source_use_ema(ModelSource *source) {
    if (source->base && !source->checkpoint) return model_source_use_ema(source->base);
    source->use_ema = source->checkpoint && checkpoint_keeps(source->checkpoint, STATE_EMA);
    if (source->use_ema) return OK;
    return fail(
        ERR_CONFIG,
        "%s keeps no moving average of its weights: it comes from training with --ema-decay; leave out "
        "--use-ema to take the weights",
        source->path);
}

int64_t model_source_non_finite(const ModelSource *source) {
    return source->non_finite + (source->base ? source->base->non_finite : 0);
}

// The tensor of another program's file that has an element of a weight; NULL: the file has our names.
static const char *their_tensor(const ModelSource *source, const char *name, int64_t row, int64_t col) {
    if (source->upcycled || is_adapter_weight(name)) return NULL;
    if (source->model) return hugging_face_tensor_at(source->model, name, row, col);
    return source->gguf ? gguf_model_tensor_at(source->gguf, name, row, col) : NULL;
}

static Status non_finite(ModelSource *source, const char *name, int64_t row, int64_t col, double value) {
    char what[4500];
    const char *theirs = their_tensor(source, name, row, col);
    snprintf(what, sizeof what, "%s: %s %s is %s in row %" PRId64 ", column %" PRId64 "%s%s", source->path,
             theirs ? "tensor" : "weight", theirs ? theirs : name, isnan(value) ? "NaN" : "infinite", row,
             col, theirs ? " of trireme's " : "", theirs ? name : "");
    if (!source->allow_non_finite)
        return fail(ERR_DATA,
                    "%s: the model is damaged, or its training had failed (--allow-non-finite takes it "
                    "as it is)",
                    what);
    if (!source->non_finite) fprintf(stderr, "WARNING: %s (--allow-non-finite)\n", what);
    return OK;
}

Status source_check_finite(ModelSource *source, const char *name, Rect rect, const float *values,
                           int64_t stride) {
    for (int64_t row = 0; row < rect.rows; row++) {
        int64_t col = 0, found = count_non_finite(values + row * stride, rect.cols, &col);
        if (!found) continue;
        TRY(non_finite(source, name, rect.row + row, rect.col + col, (double)values[row * stride + col]));
        source->non_finite += found;
    }
    return OK;
}

Status model_source_read(ModelSource *source, const char *name, Rect rect, float *out, int64_t stride) {
    TRY(source->upcycled ? source_read_upcycled(source, name, rect, out, stride)
                         : source_read_raw(source, name, rect, out, stride));
    return source_check_finite(source, name, rect, out, stride);
}

void model_source_template(const ModelSource *source, Text *out) {
    GgufString text = source->gguf ? gguf_model_template(source->gguf) : (GgufString){0};
    if (text.size) text_add_bytes(out, text.data, text.size);
}

Status model_source_tokenizer(const ModelSource *source, Tokenizer **tokenizer) {
    if (source->base && !source->checkpoint) return model_source_tokenizer(source->base, tokenizer);
    return source->gguf ? gguf_model_tokenizer(source->gguf, tokenizer)
                        : tokenizer_open_path(tokenizer, source->path);
}
