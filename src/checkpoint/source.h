// The structure behind ModelSource, and what source.c, which opens and reads models, shares with adapter_open.c, which
// does so with adapters and their bases.
#pragma once
#include "checkpoint/adapter_weights.h"
#include "checkpoint/foreign/gguf_model.h"
#include "checkpoint/foreign/hugging_face.h"
#include "checkpoint/manifest.h"

// What a source is opened for. A base has to be a whole model. Of an adapter its own matrices alone are read, so that
// its base need not be there.
typedef enum { AS_MODEL, AS_BASE, AS_ADAPTER } SourceRole;

struct ModelSource {
    Checkpoint *checkpoint; // one of the four
    HuggingFace *model;
    GgufModel *gguf;
    ModelSource *base; // of the adapters
    AdapterSet adapters;
    CheckpointInfo info; // of both: the base's, without the state of its run; or of what is upcycled
    bool merged, upcycled;
    bool found_base; // it names its base itself
    SourceRole role;
    char *path;
    uint64_t hash;     // of the file that describes the model
    BaseModel as_base; // path NULL: not known yet
    Text passed_over;  // why newer checkpoints were not opened
    Text notes;        // on adapters and on tensors in MXFP4, a line each
    bool allow_non_finite, use_ema;
    int64_t non_finite; // weights that are NaN or infinite and were accepted
};

// Opens a model as model_source_open does.
Status source_open(ModelSource **source, const char *path, int64_t step, SourceRole role);
Status source_remember_path(ModelSource *source, const char *path); // of what is open, and its hash
// Reads as model_source_read does, and takes values that are NaN or infinite.
Status source_read_raw(ModelSource *source, const char *name, Rect rect, float *out, int64_t stride);
// Fails with ERR_DATA for such a value, or counts it where the source accepts them.
Status source_check_finite(ModelSource *source, const char *name, Rect rect, const float *values,
                           int64_t stride);

// As source_read_raw of a model that is read with experts.   upcycle.c
Status source_read_upcycled(ModelSource *source, const char *name, Rect rect, float *out, int64_t stride);

// ---- adapter_open.c ---------------------------------------------------------------------------------------

Status source_open_adapter(ModelSource *source, const char *folder);
// Opens the model beside which the adapters of a checkpoint were trained; nothing for another source.
Status source_open_own_base(ModelSource *source);
