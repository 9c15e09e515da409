// Inference with weights from a callback, for tests that have no files.
#pragma once
#include "infer/infer.h"

Status infer_open_with(Infer **infer, const ModelShape *shape, WeightReader reader, const InferSpec *spec,
                       Comm *world);
