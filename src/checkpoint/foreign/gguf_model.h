// A GGUF file of llama.cpp as a model: its shape by the rows of families that an export uses, and its weights.
#pragma once
#include "checkpoint/foreign/mapping.h"
#include "formats/gguf.h"

// Reads the family and the shape that the metadata describe (gguf_shape.c). Biases, a head of its own and Llama 3's
// scaling are in the tensors alone. Fails with ERR_DATA for keys that are missing, of another type or out of range, and
// with ERR_UNAVAILABLE for architectures and scalings that are not supported, and for every other key of the
// architecture that may change what the model computes.
Status gguf_shape(const Gguf *file, ModelShape *shape, const Family **family);

typedef struct GgufModel GgufModel;

// Finds the place of every tensor. Fails with ERR_DATA, which names the tensor, for one that is missing, that has
// another shape, or that no weight uses.
Status gguf_model_open(GgufModel **model, const char *path);
void gguf_model_close(GgufModel *model); // takes NULL
const CheckpointInfo *gguf_model_info(const GgufModel *model);
uint64_t gguf_model_hash(const GgufModel *model);       // of all before the tensors' bytes
GgufString gguf_model_template(const GgufModel *model); // of conversations; size 0: there is none
Status gguf_model_tokenizer(const GgufModel *model, Tokenizer **tokenizer); // as gguf_read_tokenizer does
// Reads a rectangle of a weight, as model_source_read does. Any number of threads may read.
Status gguf_model_read(const GgufModel *model, const char *name, Rect rect, float *out, int64_t stride);
// The name in the file of the tensor that has an element of a weight.
const char *gguf_model_tensor_at(const GgufModel *model, const char *name, int64_t row, int64_t col);
