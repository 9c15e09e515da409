#include "infer/internal.h"

static Status read_source(void *self, const char *name, Rect rect, float *out, int64_t stride) {
    return model_source_read(self, name, rect, out, stride);
}

Status infer_open(Infer **infer, ModelSource *source, const InferSpec *spec, Comm *world) {
    WeightReader reader = {read_source, source};
    return infer_open_with(infer, &model_source_info(source)->shape, reader, spec, world);
}
