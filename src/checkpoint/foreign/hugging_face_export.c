// Exports a model as a Hugging Face folder.
#include "checkpoint/fields.h"
#include "checkpoint/foreign/hugging_face.h"
#include "checkpoint/foreign/new_folder.h"
#include "checkpoint/foreign/tensor_stream.h"
#include "checkpoint/manifest.h"
#include <stdlib.h>
#include <string.h>

// ---- tensors ------------------------------------------------------------------------------------------

typedef struct {
    SafetensorsWriter *writer;
    FileType type;
    char *bytes; // of MAX_PIECE elements
} Sink;

static Status take(void *self, const float *elements, int64_t count) {
    Sink *sink = self;
    file_type_of_f32(sink->type, elements, count, sink->bytes);
    return safetensors_add(sink->writer, sink->bytes, (size_t)count * file_type_bytes(sink->type));
}

// As which type a tensor is written where most are of `type`.
static FileType type_of(const TheirTensor *t, FileType type) { return t->is_choice ? FILE_F32 : type; }

static SafeTensor describe(const TheirTensor *t, FileType type) {
    SafeTensor tensor = {.name = t->name, .type = type_of(t, type)};
    tensor.ndim = tensor_shape(t, tensor.shape);
    return tensor;
}

static Status stream_all(const Mapping *mapping, ModelSource *source, SafetensorsWriter *writer,
                         FileType type) {
    Sink sink = {writer, type, malloc(MAX_PIECE * sizeof(float))};
    Status status = sink.bytes ? OK : fail(ERR_OS, "no memory for %d elements", MAX_PIECE);
    for (int i = 0; status == OK && i < mapping->num_tensors; i++) {
        sink.type = type_of(&mapping->tensors[i], type);
        status = tensor_stream(mapping, source, i, take, &sink);
    }
    free(sink.bytes);
    return status;
}

static Status write_tensors(ModelSource *source, const Mapping *mapping, const char *path, FileType type) {
    SafeTensor *tensors = calloc((size_t)mapping->num_tensors + 1, sizeof *tensors);
    if (!tensors) return fail(ERR_OS, "no memory for %d tensors", mapping->num_tensors);
    for (int i = 0; i < mapping->num_tensors; i++) tensors[i] = describe(&mapping->tensors[i], type);
    SafetensorsWriter writer;
    Status status =
        safetensors_create(&writer, path, tensors, mapping->num_tensors, &(SafeMetadata){"format", "pt"}, 1);
    free(tensors);
    TRY(status);
    status = stream_all(mapping, source, &writer, type);
    if (status == OK) return safetensors_finish(&writer);
    safetensors_abandon(&writer);
    return status;
}

// ---- the folder ---------------------------------------------------------------------------------------

static Status write_config(ModelSource *source, const char *path, FileType type, const Tokenizer *tokenizer) {
    const CheckpointInfo *info = model_source_info(source);
    const Family *family;
    Text text = {0};
    TRY(family_of(&info->shape, &family));
    TRY(shape_check_names(&info->shape, FORMAT_HUGGING_FACE, family));
    config_write(info, family, type, tokenizer, &text);
    Status status = folder_write_text(path, &text);
    text_free(&text);
    return status;
}

typedef struct {
    ModelSource *source;
    Mapping mapping;
    FileType type;
    const Tokenizer *tokenizer; // NULL: it has none
} Export;

static Status write_companions(const ModelSource *source, const char *folder, const Tokenizer *tokenizer) {
    Companions companions;
    Status status = companions_read(&companions, source, tokenizer);
    if (status == OK) status = companions_write(&companions, folder, false);
    companions_free(&companions);
    return status;
}

static Status fill(void *self, const char *folder) {
    const Export *e = self;
    const Tokenizer *tokenizer = e->tokenizer;
    char path[PATH_ROOM];
    TRY(path_join(path, folder, "config.json"));
    TRY(write_config(e->source, path, e->type, tokenizer));
    if (tokenizer && tokenizer_kind(tokenizer) != TOKENIZER_NULL)
        TRY(tokenizer_save_folder(tokenizer, folder));
    TRY(write_companions(e->source, folder, tokenizer));
    TRY(path_join(path, folder, "model.safetensors"));
    return write_tensors(e->source, &e->mapping, path, e->type);
}

static Status write_folder(Export *e, const char *folder) {
    const ModelShape *shape = &model_source_info(e->source)->shape;
    const Family *family;
    TRY(family_of(shape, &family));
    TRY(mapping_create(&e->mapping, shape, family, FORMAT_HUGGING_FACE));
    Status status = folder_write_new(folder, fill, e);
    mapping_destroy(&e->mapping);
    return status;
}

Status export_hugging_face(ModelSource *source, const char *folder, FileType type) {
    CHECK(file_type_is_float(type), "weights as %s", file_type_name(type));
    Tokenizer *tokenizer = NULL;
    Status status = model_source_tokenizer(source, &tokenizer);
    if (status != OK && status != ERR_NO_INPUT) return status;
    if (status == OK) tokenizer_print_note(tokenizer);
    Export e = {.source = source, .type = type, .tokenizer = status == OK ? tokenizer : NULL};
    status = write_folder(&e, folder);
    tokenizer_close(tokenizer);
    return status;
}
