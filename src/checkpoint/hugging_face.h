// A Hugging Face folder: config.json read and written, and the weights in its safetensors as ours.
#pragma once
#include "checkpoint/mapping.h"

// ---- config.json (hugging_face_config.c, hugging_face_config_write.c) -----------------------------------

// The shape that a config.json describes, and the type of its tensors ("f32", "bf16", "f16"). `what`, its
// path, begins messages. ERR_DATA for members that are absent, of another type or out of range;
// ERR_UNAVAILABLE for architectures, activations, rotations and quantisations that we do not have, and for
// every other member that is not known to leave the model as it is.
Status config_read(const Json *root, const char *what, ModelShape *shape, const char **dtype);
// The config.json of a model. `tokenizer` (may be NULL) names the ends of text.
void config_write(const ModelShape *shape, Architecture architecture, FileType type,
                  const Tokenizer *tokenizer, Text *out);

// ---- the folder (hugging_face.c) ------------------------------------------------------------------------

// Copies what the folder `from` has of generation_config.json, chat_template.jinja and the like to the folder
// `to` (companions.c). `own`: the tokenizer of that folder, whose files come along; NULL: it has none, or
// another one takes its place.
Status companions_copy(const char *from, const char *to, const Tokenizer *own);

typedef struct HuggingFace HuggingFace;

// Knows every tensor's place when it returns: ERR_DATA names file and tensor for one that is missing, has
// another shape or type, or that no part of the model uses.
Status hugging_face_open(HuggingFace **model, const char *folder);
void hugging_face_close(HuggingFace *model);
const CheckpointInfo *hugging_face_info(const HuggingFace *model);
// As model_source_read. Any number of threads may read.
Status hugging_face_read(const HuggingFace *model, const char *name, Rect rect, float *out, int64_t stride);
