#include "nn/nn.h"
#include <stdlib.h>
#include <string.h>

Param *params_declare(Params *params, ParamSpec spec) {
    CHECK(!params_find(params, spec.name), "parameter %s is declared twice", spec.name);
    if (params->count == params->capacity) {
        params->capacity = params->capacity ? 2 * params->capacity : 64;
        params->items = realloc(params->items, (size_t)params->capacity * sizeof *params->items);
        CHECK(params->items, "no memory for %d parameters", params->capacity);
    }
    Param *p = calloc(1, sizeof *p);
    CHECK(p, "no memory for parameter %s", spec.name);
    if (!spec.real_rows) spec.real_rows = spec.rows;
    p->spec = spec;
    p->chunk = -1;
    return params->items[params->count++] = p;
}

Param *params_find(const Params *params, const char *name) {
    for (int i = 0; i < params->count; i++)
        if (!strcmp(params->items[i]->spec.name, name)) return params->items[i];
    return NULL;
}

static int64_t local_rows(const Param *p, int tp) {
    return p->spec.shard.dim == 0 ? p->spec.rows / tp : p->spec.rows;
}
static int64_t local_cols(const Param *p, int tp) {
    return p->spec.shard.dim == 1 ? p->spec.cols / tp : p->spec.cols;
}

int64_t param_local_count(const Param *p, int tp) { return local_rows(p, tp) * local_cols(p, tp); }

static Tensor local_tensor(const Param *p, int tp, float *data) {
    return (Tensor){data, local_rows(p, tp), local_cols(p, tp), F32};
}

// Floats between neighbours in a flat buffer: parameters start on a cache line.
static int64_t padded_count(const Param *p, int tp) { return (param_local_count(p, tp) + 15) / 16 * 16; }

static void place_values(Params *params, Arena *arena, int tp, Param *p) {
    p->shares = p->spec.tied_to ? params_find(params, p->spec.tied_to) : NULL;
    if (p->shares && p->shares->chunk < 0)
        p->shares = NULL; // the original is on another rank: this is a real copy
    if (p->shares) {
        p->value = p->shares->value;
        return;
    }
    p->value = tensor_take(arena, p->spec.name, local_rows(p, tp), local_cols(p, tp), F32);
    p->m = tensor_take(arena, "AdamW first moment", local_rows(p, tp), local_cols(p, tp), F32);
    p->v = tensor_take(arena, "AdamW second moment", local_rows(p, tp), local_cols(p, tp), F32);
}

void params_place(Params *params, Arena *arena, int tp, const int *stage_of_chunk, int num_chunks) {
    params->num_chunks = num_chunks;
    params->chunk_grads = calloc((size_t)num_chunks, sizeof *params->chunk_grads);
    CHECK(params->chunk_grads, "no memory for %d chunks", num_chunks);
    for (int chunk = 0; chunk < num_chunks; chunk++) {
        int64_t total = 0;
        for (int i = 0; i < params->count; i++) {
            Param *p = params->items[i];
            if (p->spec.stage != stage_of_chunk[chunk]) continue;
            p->chunk = chunk;
            place_values(params, arena, tp, p);
            total += padded_count(p, tp);
        }
        Tensor grads = params->chunk_grads[chunk] = tensor_take(arena, "gradients of a chunk", 1, total, F32);
        float *next = grads.data;
        for (int i = 0; i < params->count; i++) {
            Param *p = params->items[i];
            if (p->chunk != chunk) continue;
            p->grad = local_tensor(p, tp, next);
            next += padded_count(p, tp);
        }
    }
}

// The local share of row `row`, columns [first, first + count) of the whole tensor.
typedef struct {
    int64_t first_row, first_col, rows, cols;
} Window;

static Window local_window(const Param *p, int tp_size, int tp_rank) {
    Window w = {0, 0, local_rows(p, tp_size), local_cols(p, tp_size)};
    if (p->spec.shard.dim == 0) w.first_row = w.rows * tp_rank;
    if (p->spec.shard.dim == 1) w.first_col = w.cols * tp_rank;
    return w;
}

void param_slice(const Param *p, int tp_size, int tp_rank, const float *whole, float *local) {
    Window w = local_window(p, tp_size, tp_rank);
    for (int64_t r = 0; r < w.rows; r++)
        memcpy(local + r * w.cols, whole + (w.first_row + r) * p->spec.cols + w.first_col,
               (size_t)w.cols * sizeof *local);
}

void param_unslice(const Param *p, int tp_size, int tp_rank, const float *local, float *whole) {
    Window w = local_window(p, tp_size, tp_rank);
    for (int64_t r = 0; r < w.rows; r++)
        memcpy(whole + (w.first_row + r) * p->spec.cols + w.first_col, local + r * w.cols,
               (size_t)w.cols * sizeof *local);
}

static void init_row(const ParamSpec *spec, RngKey key, int64_t row, int64_t first_col, int64_t cols,
                     float *out) {
    bool padding = row >= spec->real_rows;
    if (spec->init == INIT_NORMAL && !padding) {
        rng_fill_normal(key, (uint64_t)(row * spec->cols + first_col), (uint64_t)cols, 0.0f, spec->stddev,
                        out);
        return;
    }
    for (int64_t c = 0; c < cols; c++) out[c] = spec->init == INIT_ONE && !padding ? 1.0f : 0.0f;
}

static void init_param(const Param *p, Device *device, uint64_t seed, int tp_size, int tp_rank, float *host) {
    Window w = local_window(p, tp_size, tp_rank);
    RngKey key = rng_key(seed, p->spec.tied_to ? p->spec.tied_to : p->spec.name, 0);
    for (int64_t r = 0; r < w.rows; r++)
        init_row(&p->spec, key, w.first_row + r, w.first_col, w.cols, host + r * w.cols);
    device_upload(device, device_stream(device), p->value, host);
}

Status params_init(const Params *params, Device *device, uint64_t seed, int tp_size, int tp_rank) {
    int64_t largest = 0;
    for (int i = 0; i < params->count; i++) {
        int64_t n = param_local_count(params->items[i], tp_size);
        if (params->items[i]->chunk >= 0 && n > largest) largest = n;
    }
    float *host = malloc((size_t)largest * sizeof *host);
    if (!host) return fail(ERR_OS, "no memory for %lld floats of a parameter", (long long)largest);
    Stream *stream = device_stream(device);
    for (int i = 0; i < params->count; i++) {
        Param *p = params->items[i];
        if (p->chunk < 0 || p->shares) continue;
        init_param(p, device, seed, tp_size, tp_rank, host);
        device_zero(device, stream, p->m);
        device_zero(device, stream, p->v);
    }
    free(host);
    return OK;
}

void params_zero_grads(const Params *params, Device *device) {
    for (int c = 0; c < params->num_chunks; c++)
        device_zero(device, device_stream(device), params->chunk_grads[c]);
}

void params_free(Params *params) {
    for (int i = 0; i < params->count; i++) free(params->items[i]);
    free(params->items);
    free(params->chunk_grads);
    *params = (Params){0};
}
