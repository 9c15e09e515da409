// Delayed scaling: the history of largest magnitudes, and what scales are made of.
#include "nn/amax.h"
#include "nn/recipes.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool amax_is_wanted(const ModelMode *mode) { return mode->float8 && recipe_rows[mode->recipe].delayed; }

int64_t amax_rows(const ModelShape *s) {
    int64_t matrices = 0;
    for (int layer = 0; layer < s->layers; layer++) {
        int mlps = model_layer_has_experts(s, layer) ? s->experts + (s->shared_ffn > 0) : 1;
        matrices += 2 + 2 * mlps;
    }
    return NUM_FACTORS * matrices;
}

Status amax_open(AmaxHistory *a, const ModelMode *mode, const Params *params, Arena *arena) {
    if (!amax_is_wanted(mode)) return OK;
    a->rule = mode->delayed;
    a->rows = NUM_FACTORS * params->num_matrices;
    CHECK(a->rule.history > 0 && a->rows > 0, "a history of %d steps of %d tensors", a->rule.history,
          a->rows);
    a->now = tensor_take(arena, "largest magnitudes", 1, a->rows, F32);
    a->used = tensor_take(arena, "largest magnitudes of scales", 1, a->rows, F32);
    size_t rows = (size_t)a->rows;
    a->history = calloc(rows * (size_t)a->rule.history, sizeof *a->history);
    a->largest = calloc(rows, sizeof *a->largest);
    a->host = calloc(rows, sizeof *a->host);
    a->staged = calloc(rows, sizeof *a->staged);
    if (a->history && a->largest && a->host && a->staged) return OK;
    return fail(ERR_OS, "no memory for the history of %d tensors over %d steps (--fp8-amax-history-len)",
                a->rows, a->rule.history);
}

void amax_forget(AmaxHistory *a) {
    size_t rows = (size_t)a->rows;
    memset(a->history, 0, rows * (size_t)a->rule.history * sizeof *a->history);
    memset(a->largest, 0, rows * sizeof *a->largest);
    a->uploaded = false;
}

void amax_close(AmaxHistory *a) {
    free(a->history);
    free(a->largest);
    free(a->host);
    free(a->staged);
    *a = (AmaxHistory){0};
}

void amax_begin(AmaxHistory *a, Device *device, Stream *stream) {
    if (!a->rows) return;
    device_zero(device, stream, a->now);
    if (a->uploaded) return;
    for (int i = 0; i < a->rows; i++) a->staged[i] = ldexpf(a->largest[i], a->rule.margin);
    device_upload(device, stream, a->used, a->staged);
    a->uploaded = true;
}

// Source: Transformer Engine, where the newest is recorded in place before the scales are computed.
void amax_follow(AmaxHistory *a) {
    for (int i = 0; i < a->rows; i++) {
        const float *row = a->history + (size_t)i * (size_t)a->rule.history;
        float largest = row[0];
        for (int k = 1; k < a->rule.history && !a->rule.most_recent; k++) largest = fmaxf(largest, row[k]);
        if (largest > 0) a->largest[i] = largest;
    }
    a->uploaded = false;
}

void amax_end(AmaxHistory *a, Device *device, Stream *stream, Comm *world) {
    if (!a->rows) return;
    device_download(device, stream, a->staged, a->now);
    for (int i = 0; i < a->rows; i++) a->host[i] = (double)a->staged[i];
    comm_all_reduce_host(world, a->host, a->rows, REDUCE_MAX);
    for (int i = 0; i < a->rows; i++) {
        float *row = a->history + (size_t)i * (size_t)a->rule.history;
        memmove(row + 1, row, (size_t)(a->rule.history - 1) * sizeof *row);
        row[0] = isfinite(a->host[i]) ? (float)a->host[i] : 0;
    }
    amax_follow(a);
}
