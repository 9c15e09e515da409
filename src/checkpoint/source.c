#include "checkpoint/hugging_face.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct ModelSource {
    Checkpoint *checkpoint; // one of the two
    HuggingFace *model;
    char *path;
};

static bool holds(const char *folder, const char *file) {
    char path[4096];
    int size = snprintf(path, sizeof path, "%s/%s", folder, file);
    return size < (int)sizeof path && file_exists(path);
}

static Status open_one(ModelSource *source, const char *path, int64_t step) {
    TRY(checkpoint_open(&source->checkpoint, path));
    int64_t iteration = checkpoint_info(source->checkpoint)->state.iteration;
    if (step >= 0 && step != iteration)
        return fail(ERR_NO_INPUT, "%s is the checkpoint of step %" PRId64 ", not %" PRId64, path, iteration,
                    step);
    return OK;
}

// The newest that opens; when none does, what is wrong with the newest.
static Status open_newest(ModelSource *source, const char *save, const int64_t *steps, int count) {
    Text newest = {0};
    Status status = OK, first = OK;
    for (int i = 0; i < count; i++) {
        CheckpointNames names;
        status = checkpoint_names(save, steps[i], &names);
        if (status == OK) status = checkpoint_open(&source->checkpoint, names.final);
        if (status == OK || status == ERR_OS) break;
        if (i) continue;
        first = status;
        text_add(&newest, "%s", fail_message());
    }
    if (status != OK && first != OK)
        status = fail(first, "%s: none of %d checkpoints can be read; of the newest: %s", save, count,
                      text_string(&newest));
    text_free(&newest);
    return status;
}

static Status open_folder(ModelSource *source, const char *save, int64_t step) {
    int64_t *steps;
    int count;
    TRY(checkpoint_steps(save, &steps, &count));
    Status status;
    if (step >= 0)
        status = open_newest(source, save, &step, 1);
    else if (count)
        status = open_newest(source, save, steps, count);
    else
        status = fail(ERR_NO_INPUT,
                      "%s: neither a checkpoint (manifest.json), nor a folder of them (step-00000100), nor a "
                      "Hugging Face model (config.json)",
                      save);
    free(steps);
    return status;
}

static Status open_any(ModelSource *source, const char *path, int64_t step) {
    if (holds(path, "manifest.json")) return open_one(source, path, step);
    if (!holds(path, "config.json")) return open_folder(source, path, step);
    if (step >= 0)
        return fail(ERR_USAGE, "%s is a Hugging Face model: it has no step %" PRId64 " (--ckpt-step)", path,
                    step);
    return hugging_face_open(&source->model, path);
}

Status model_source_open(ModelSource **out, const char *path, int64_t step) {
    ModelSource *source = *out = calloc(1, sizeof *source);
    CHECK(source, "no memory for a model");
    Status status = open_any(source, path, step);
    if (status == OK) {
        source->path = strdup(source->checkpoint ? checkpoint_folder(source->checkpoint) : path);
        CHECK(source->path, "no memory for a path");
        return OK;
    }
    model_source_close(source);
    *out = NULL;
    return status;
}

void model_source_close(ModelSource *source) {
    if (!source) return;
    checkpoint_close(source->checkpoint);
    hugging_face_close(source->model);
    free(source->path);
    free(source);
}

const char *model_source_path(const ModelSource *source) { return source->path; }
Checkpoint *model_source_checkpoint(ModelSource *source) { return source->checkpoint; }

const CheckpointInfo *model_source_info(const ModelSource *source) {
    return source->checkpoint ? checkpoint_info(source->checkpoint) : hugging_face_info(source->model);
}

Status model_source_read(ModelSource *source, const char *name, Rect rect, float *out, int64_t stride) {
    if (source->model) return hugging_face_read(source->model, name, rect, out, stride);
    int tensor = checkpoint_find(source->checkpoint, name);
    if (tensor < 0) return fail(ERR_DATA, "%s: tensor %s is missing", source->path, name);
    return checkpoint_read(source->checkpoint, tensor, rect, out, stride);
}

Status model_source_tokenizer(const ModelSource *source, Tokenizer **tokenizer) {
    return tokenizer_open_path(tokenizer, source->path);
}
