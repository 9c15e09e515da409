// Inference with weights from a callback, for tests that have no files.
#pragma once
#include "infer/infer.h"

// Reads a rectangle of the weight NAME in fp32: row j of it goes to out + j * stride.
typedef struct {
    Status (*read)(void *self, const char *name, Rect rect, float *out, int64_t stride);
    void *self;
} WeightReader;

Status infer_open_with(Infer **infer, const ModelShape *shape, WeightReader reader, const InferSpec *spec,
                       Comm *world);
