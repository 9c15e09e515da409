// A Hugging Face folder: reads and writes config.json, and reads the weights in its safetensors.
#pragma once
#include "checkpoint/foreign/mapping.h"

// ---- config.json (hugging_face_config.c, hugging_face_config_write.c) -----------------------------------

// Reads the family that a config.json describes, and into `info` the shape, the tokens that it names, and the type of
// its tensors ("f32", "bf16", "f16").
// Messages begin with `what`, its path. Fails with ERR_DATA for members that are missing, of another type or out of
// range, and with ERR_UNAVAILABLE for architectures, activations, rotations and quantisations that are not supported
// (MXFP4 is),
// and for every other member that may change what the model computes.
Status config_read(const Json *root, const char *what, CheckpointInfo *info, const Family **family);
// Writes the config.json of a model. Of the tokens that begin and end a text those that `info` does not name come from
// `tokenizer` (may be NULL).
void config_write(const CheckpointInfo *info, const Family *family, FileType type, const Tokenizer *tokenizer,
                  Text *out);

// ---- the folder (hugging_face.c) ------------------------------------------------------------------------

typedef struct HuggingFace HuggingFace;

// Finds the place of every tensor. Fails with ERR_DATA, which names file and tensor, for one that is missing, that has
// another shape or type, or that no weight uses.
Status hugging_face_open(HuggingFace **model, const char *folder);
void hugging_face_close(HuggingFace *model);
const CheckpointInfo *hugging_face_info(const HuggingFace *model);
void hugging_face_note(const HuggingFace *model, Text *out); // adds a line where tensors are in MXFP4
// Reads a rectangle of a weight, as model_source_read does. Any number of threads may read.
Status hugging_face_read(const HuggingFace *model, const char *name, Rect rect, float *out, int64_t stride);
// The name in its files of the tensor that has an element of a weight.
const char *hugging_face_tensor_at(const HuggingFace *model, const char *name, int64_t row, int64_t col);
