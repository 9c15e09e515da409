// Makes a model with experts of a dense one, while it is read: every expert is a copy of the layer's MLP, and routers
// are drawn. The weights of a token's experts add up to 1, so the first losses are the dense model's.
// Source: Komatsuzaki 2022, sparse upcycling.
#include "base/rng.h"
#include "checkpoint/source.h"
#include <inttypes.h>
#include <string.h>

static Status check(const ModelSource *source, const ModelShape *s, int topk, int experts) {
    const char *why = s->experts          ? "it has experts already"
                      : s->parallel_block ? "its MLPs read what attention reads"
                                          : NULL;
    if (why) return fail(ERR_UNAVAILABLE, "--upcycle cannot make experts of %s: %s", source->path, why);
    if (topk <= experts) return OK;
    return fail(ERR_CONFIG, "--upcycle-topk %d is more than --upcycle %d: use %d or less", topk, experts,
                experts);
}

Status model_source_upcycle(ModelSource *source, int experts, int topk) {
    CheckpointInfo info = *model_source_info(source);
    TRY(check(source, &info.shape, topk, experts));
    ModelShape *s = &info.shape;
    s->experts = experts, s->experts_topk = topk, s->expert_ffn = s->ffn;
    s->family = FAMILY_ANY;
    info.config = NULL; // it is the dense model's
    source->info = info;
    source->upcycled = true;
    return OK;
}

// Row r of the matrices of all experts is row r % rows of the dense one; their biases are one row each.
static Status read_copies(ModelSource *source, const char *dense, int64_t rows, Rect rect, float *out,
                          int64_t stride) {
    for (int64_t done = 0, some; done < rect.rows; done += some) {
        int64_t row = (rect.row + done) % rows;
        some = rect.rows - done < rows - row ? rect.rows - done : rows - row;
        Rect part = {row, rect.col, some, rect.cols};
        TRY(source_read_raw(source, dense, part, out + done * stride, stride));
    }
    return OK;
}

static void draw_router(const ModelShape *s, const char *name, Rect rect, float *out, int64_t stride) {
    RngKey key = rng_key(s->seed, name, 0);
    float stddev = s->init_std > 0 ? s->init_std : 0.02f;
    for (int64_t i = 0; i < rect.rows; i++)
        rng_fill_normal(key, (uint64_t)((rect.row + i) * s->hidden + rect.col), (uint64_t)rect.cols, 0,
                        stddev, out + i * stride);
}

Status source_read_upcycled(ModelSource *source, const char *name, Rect rect, float *out, int64_t stride) {
    static const char part[] = ".mlp.experts.", own[] = ".mlp.";
    const ModelShape *s = &source->info.shape;
    const char *at = strstr(name, part);
    char dense[160];
    if (strstr(name, ".mlp.router.bias")) {
        for (int64_t i = 0; i < rect.rows; i++) memset(out + i * stride, 0, (size_t)rect.cols * sizeof *out);
        return OK;
    }
    if (strstr(name, ".mlp.router.")) {
        draw_router(s, name, rect, out, stride);
        return OK;
    }
    if (!at) return source_read_raw(source, name, rect, out, stride);
    const char *last = at + sizeof part - 1;
    snprintf(dense, sizeof dense, "%.*s%s%s", (int)(at - name), name, own, last);
    int64_t inner = (model_is_gated(s) ? 2 : 1) * (int64_t)s->ffn;
    int64_t rows = strstr(last, ".bias") ? 1 : strstr(last, "linear_fc1") ? inner : s->hidden;
    return read_copies(source, dense, rows, rect, out, stride);
}
