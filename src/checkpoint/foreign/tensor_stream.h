// Reads a tensor of another format from our weights, in the order of the file to be written.
#pragma once
#include "checkpoint/foreign/mapping.h"

enum { MAX_PIECE = 1 << 16 }; // elements

// Passes all elements of tensor number `tensor` of the mapping to `take`, in pieces of up to MAX_PIECE elements. No
// quantization block (gguf.h) is split if its size divides MAX_PIECE and the length of a line. Fails as reading the
// source does, with ERR_OS without memory, or with what `take` returns.
typedef Status TakePiece(void *self, const float *elements, int64_t count);
Status tensor_stream(const Mapping *mapping, ModelSource *source, int tensor, TakePiece *take, void *self);
