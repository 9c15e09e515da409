// The registry of parameters: declares, places, fills and cuts them.
#include "nn/params.h"
#include "base/half.h"
#include "base/rng.h"
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
    if (!spec.shard.blocks) spec.shard.blocks = 1;
    p->spec = spec;
    p->chunk = -1;
    p->offset = -1;
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

Tensor param_value(const Param *p) { return p ? p->value : (Tensor){0}; }

Tensor param_grad(Param *p, Device *device) {
    if (!p) return (Tensor){0};
    if (p->begins) device_zero(device, device_stream(device), p->grad);
    p->begins = false;
    return p->grad;
}

// ---- placing ------------------------------------------------------------------------------------

typedef enum { REGION_WHOLE, REGION_PARTIAL, REGION_TIED, NUM_REGIONS } Region;

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

static bool has_copy(const Params *params, const Param *p) {
    for (int i = 0; i < params->count; i++) {
        const char *original = params->items[i]->spec.tied_to;
        if (original && !strcmp(original, p->spec.name)) return true;
    }
    return false;
}

static Region region_of(const Params *params, const Param *p, int tp) {
    bool partial = p->spec.partial && tp > 1, tied = p->spec.tied_to || has_copy(params, p);
    CHECK(!partial || !tied, "parameter %s is tied and partial at once", p->spec.name);
    return tied ? REGION_TIED : partial ? REGION_PARTIAL : REGION_WHOLE;
}

// Who is on this rank, and who of them uses another's value.
static void find_chunks(Params *params, const int *stage_of_chunk) {
    for (int i = 0; i < params->count; i++)
        for (int chunk = 0; chunk < params->num_chunks; chunk++)
            if (params->items[i]->spec.stage == stage_of_chunk[chunk]) params->items[i]->chunk = chunk;
    for (int i = 0; i < params->count; i++) {
        Param *p = params->items[i];
        if (p->chunk < 0 || !p->spec.tied_to) continue;
        Param *original = params_find(params, p->spec.tied_to);
        CHECK(original && original != p, "%s is tied to %s", p->spec.name, p->spec.tied_to);
        if (original->chunk >= 0) p->shares = original;
    }
}

// Gives the chunk's parameters of one region their offsets from `end` on; returns where the region ends.
static int64_t lay_out(Params *params, int chunk, Region region, Grid grid, int64_t end) {
    for (int i = 0; i < params->count; i++) {
        Param *p = params->items[i];
        if (p->chunk != chunk || p->shares || region_of(params, p, grid_along(grid, AXIS_TP)) != region)
            continue;
        p->offset = end;
        end += round_up(param_local_count(p, grid_along(grid, AXIS_TP)), PARAM_ALIGNMENT);
    }
    return round_up(end, (int64_t)PARAM_ALIGNMENT * grid_along(grid, AXIS_DP));
}

static Tensor local_tensor(const Param *p, int tp, Tensor flat) {
    Tensor x = tensor_part(flat, p->offset, param_local_count(p, tp));
    x.rows = local_rows(p, tp);
    x.cols = local_cols(p, tp);
    return x;
}

static void place_chunk(Params *params, Arena *arena, Grid grid, DType dtype, int chunk) {
    ChunkParams *c = &params->chunks[chunk];
    c->partial = lay_out(params, chunk, REGION_WHOLE, grid, 0);
    c->tied = lay_out(params, chunk, REGION_PARTIAL, grid, c->partial);
    c->count = lay_out(params, chunk, REGION_TIED, grid, c->tied);
    c->values = tensor_take(arena, "parameters of a chunk", 1, c->count, dtype);
    if (!params->values_only) c->grads = tensor_take(arena, "gradients of a chunk", 1, c->count, F32);
    for (int i = 0; i < params->count; i++) {
        Param *p = params->items[i];
        if (p->chunk != chunk || p->shares) continue;
        p->value = local_tensor(p, grid_along(grid, AXIS_TP), c->values);
        if (c->grads.data) p->grad = local_tensor(p, grid_along(grid, AXIS_TP), c->grads);
    }
}

static void check_cut(const ParamSpec *spec, int tp) {
    int64_t size = spec->shard.dim == 0 ? spec->rows : spec->cols;
    CHECK(spec->shard.dim < 0 || size % ((int64_t)spec->shard.blocks * tp) == 0,
          "%s: %lld do not divide into %d blocks over %d ranks", spec->name, (long long)size,
          spec->shard.blocks, tp);
}

void params_place(Params *params, Arena *arena, Grid grid, DType dtype, const int *stage_of_chunk,
                  int num_chunks) {
    params->num_chunks = num_chunks;
    params->chunks = calloc((size_t)num_chunks, sizeof *params->chunks);
    CHECK(params->chunks, "no memory for %d chunks", num_chunks);
    for (int i = 0; i < params->count; i++) check_cut(&params->items[i]->spec, grid_along(grid, AXIS_TP));
    find_chunks(params, stage_of_chunk);
    for (int chunk = 0; chunk < num_chunks; chunk++) place_chunk(params, arena, grid, dtype, chunk);
    for (int i = 0; i < params->count; i++) {
        Param *p = params->items[i];
        if (!p->shares) continue;
        p->value = p->shares->value;
        if (params->values_only) continue;
        p->grad = tensor_take(arena, "gradient of a tied copy", p->value.rows, p->value.cols, F32);
    }
}

// ---- shares of a whole tensor -----------------------------------------------------------------------

// Neighbouring elements that a rank holds: `count` of row `row` from column `col` on, at `local` in its
// share.
typedef struct {
    int64_t row, col, count, local;
} Run;

static int64_t num_runs(const Param *p, int tp_size) {
    return local_rows(p, tp_size) * (p->spec.shard.dim == 1 ? p->spec.shard.blocks : 1);
}

static Run local_run(const Param *p, int tp_size, int tp_rank, int64_t i) {
    const ParamSpec *spec = &p->spec;
    int64_t blocks = spec->shard.blocks, size = spec->shard.dim == 0 ? spec->rows : spec->cols;
    int64_t block = size / blocks, slice = block / tp_size;
    if (spec->shard.dim == 0) {
        int64_t row = i / slice * block + slice * tp_rank + i % slice;
        return (Run){row, 0, spec->cols, i * spec->cols};
    }
    if (spec->shard.dim == 1)
        return (Run){i / blocks, i % blocks * block + slice * tp_rank, slice, i * slice};
    return (Run){i, 0, spec->cols, i * spec->cols};
}

void param_slice(const Param *p, int tp_size, int tp_rank, const float *whole, float *local) {
    for (int64_t i = 0; i < num_runs(p, tp_size); i++) {
        Run run = local_run(p, tp_size, tp_rank, i);
        memcpy(local + run.local, whole + run.row * p->spec.cols + run.col,
               (size_t)run.count * sizeof *local);
    }
}

void param_unslice(const Param *p, int tp_size, int tp_rank, const float *local, float *whole) {
    for (int64_t i = 0; i < num_runs(p, tp_size); i++) {
        Run run = local_run(p, tp_size, tp_rank, i);
        memcpy(whole + run.row * p->spec.cols + run.col, local + run.local,
               (size_t)run.count * sizeof *local);
    }
}

typedef struct {
    int64_t row, col, rows, cols;
} Area; // of a local share

// Elements [begin, begin + count) of rows of `width`: the end of a row, whole rows, the start of a row.
static int areas_of(int64_t begin, int64_t count, int64_t width, Area areas[3]) {
    int n = 0;
    int64_t end = begin + count, first = begin / width, col = begin % width;
    if (col || end < (first + 1) * width) {
        int64_t stop = end < (first + 1) * width ? end - first * width : width;
        areas[n++] = (Area){first++, col, 1, stop - col};
    }
    int64_t whole = end / width - first;
    if (whole > 0) areas[n++] = (Area){first, 0, whole, width};
    if (end / width >= first && end % width) areas[n++] = (Area){end / width, 0, 1, end % width};
    return n;
}

// The part of an area that lies in block `b` of the share, which is one rectangle of the whole tensor too.
static bool rect_of(const Param *p, int tp_size, int tp_rank, int b, Area area, ParamRect *rect) {
    const ParamSpec *spec = &p->spec;
    int64_t width = local_cols(p, tp_size), height = local_rows(p, tp_size);
    Area block = {0, 0, height, width};
    int64_t row = 0, col = 0; // of the block in the whole tensor
    if (spec->shard.dim == 0) {
        block.rows = height / spec->shard.blocks, block.row = b * block.rows;
        row = b * (spec->rows / spec->shard.blocks) + tp_rank * block.rows;
    } else if (spec->shard.dim == 1) {
        block.cols = width / spec->shard.blocks, block.col = b * block.cols;
        col = b * (spec->cols / spec->shard.blocks) + tp_rank * block.cols;
    }
    int64_t top = larger(area.row, block.row), left = larger(area.col, block.col);
    int64_t bottom = smaller(area.row + area.rows, block.row + block.rows);
    int64_t right = smaller(area.col + area.cols, block.col + block.cols);
    row += top - block.row, col += left - block.col;
    bottom = smaller(bottom, top + spec->real_rows - row);
    *rect = (ParamRect){row, col, bottom - top, right - left, top * width + left, width};
    return rect->rows > 0 && rect->cols > 0;
}

int param_rects(const Param *p, int tp_size, int tp_rank, int64_t begin, int64_t count,
                ParamRect rects[MOST_PARAM_RECTS]) {
    Area areas[3];
    int num_areas = count > 0 ? areas_of(begin, count, local_cols(p, tp_size), areas) : 0, n = 0;
    int blocks = p->spec.shard.dim < 0 ? 1 : p->spec.shard.blocks;
    CHECK(3 * blocks <= MOST_PARAM_RECTS, "%s has %d blocks", p->spec.name, blocks);
    for (int a = 0; a < num_areas; a++)
        for (int b = 0; b < blocks; b++) n += rect_of(p, tp_size, tp_rank, b, areas[a], &rects[n]);
    return n;
}

// ---- initial values -----------------------------------------------------------------------------

static void init_run(const ParamSpec *spec, RngKey key, Run run, float *out) {
    bool padding = run.row >= spec->real_rows;
    if (spec->init == INIT_NORMAL && !padding) {
        rng_fill_normal(key, (uint64_t)(run.row * spec->cols + run.col), (uint64_t)run.count, 0.0f,
                        spec->stddev, out);
        return;
    }
    for (int64_t i = 0; i < run.count; i++) out[i] = spec->init == INIT_ONE && !padding ? 1.0f : 0.0f;
}

// The device's threads, where there is enough to do for more than one.
static int team_of(const Device *device, int64_t elements) {
    enum { LEAST_SHARED = 1 << 14 };
    return elements < LEAST_SHARED ? 1 : device_threads(device);
}

typedef struct {
    const Device *device;
    uint64_t seed;
    int tp_size, tp_rank;
} InitialValues;

// Threads take rows: every element is a function of its index alone.
static Status init_local(void *self, const Param *p, float *local) {
    const InitialValues *init = self;
    RngKey key = rng_key(init->seed, p->spec.tied_to ? p->spec.tied_to : p->spec.name, 0);
    int64_t count = param_local_count(p, init->tp_size), runs = num_runs(p, init->tp_size);
#pragma omp parallel for num_threads(team_of(init->device, count)) schedule(static)
    for (int64_t i = 0; i < runs; i++) {
        Run run = local_run(p, init->tp_size, init->tp_rank, i);
        init_run(&p->spec, key, run, local + run.local);
    }
    return OK;
}

// To bf16 as bf16_split does, whose remainder the optimizer of some rank keeps. `half` has room for as many
// elements.
static void upload_rounded(Device *device, Tensor value, const float *local, uint16_t *half) {
    int64_t count = tensor_count(value);
    if (value.dtype == F32) {
        device_upload(device, device_stream(device), value, local);
        return;
    }
#pragma omp parallel for num_threads(team_of(device, count)) schedule(static)
    for (int64_t i = 0; i < count; i++) {
        uint16_t remainder;
        half[i] = value.dtype == BF16 ? bf16_split(local[i], &remainder) : f16_of_f32(local[i]);
    }
    device_upload(device, device_stream(device), value, half);
}

static int64_t largest_local(const Params *params, int tp_size) {
    int64_t largest = 0;
    for (int i = 0; i < params->count; i++) {
        int64_t n = param_local_count(params->items[i], tp_size);
        if (params->items[i]->chunk >= 0 && n > largest) largest = n;
    }
    return largest;
}

Status params_fill(const Params *params, Device *device, int tp_size, FillParam *fill, void *source,
                   WriteMain *write_main, void *self) {
    int64_t largest = largest_local(params, tp_size);
    float *local = malloc((size_t)largest * (sizeof *local + sizeof(uint16_t)) + 1);
    if (!local) return fail(ERR_OS, "no memory for %lld floats of a parameter", (long long)largest);
    uint16_t *half = (uint16_t *)(local + largest);
    Status status = OK;
    // What lies between parameters is reduced and gathered with them: it is zero from here on.
    for (int c = 0; c < params->num_chunks; c++)
        device_zero(device, device_stream(device), params->chunks[c].values);
    for (int i = 0; i < params->count && status == OK; i++) {
        const Param *p = params->items[i];
        if (p->chunk < 0 || p->shares) continue;
        memset(local, 0, (size_t)param_local_count(p, tp_size) * sizeof *local);
        status = fill(source, p, local);
        if (status == OK && write_main) write_main(self, p, local);
        if (status == OK) upload_rounded(device, p->value, local, half);
    }
    free(local);
    return status;
}

Status params_init(const Params *params, Device *device, uint64_t seed, int tp_size, int tp_rank,
                   WriteMain *write_main, void *self) {
    InitialValues init = {device, seed, tp_size, tp_rank};
    return params_fill(params, device, tp_size, init_local, &init, write_main, self);
}

void params_zero_grads(const Params *params, Device *device) {
    Stream *stream = device_stream(device);
    for (int c = 0; c < params->num_chunks; c++) device_zero(device, stream, params->chunks[c].grads);
    for (int i = 0; i < params->count; i++) {
        Param *p = params->items[i];
        if (p->shares) device_zero(device, stream, p->grad);
        p->begins = false;
    }
}

void params_begin_grads(const Params *params) {
    for (int i = 0; i < params->count; i++) params->items[i]->begins = params->items[i]->chunk >= 0;
}

void params_free(Params *params) {
    for (int i = 0; i < params->count; i++) free(params->items[i]);
    free(params->items);
    free(params->chunks);
    *params = (Params){0};
}
