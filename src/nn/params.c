// The registry of parameters: declares, places, fills and cuts them.
#include "nn/params.h"
#include "base/half.h"
#include "base/rng.h"
#include <stdlib.h>
#include <string.h>

int params_begin_unit(Params *params) {
    params->units = realloc(params->units, (size_t)(params->num_units + 1) * sizeof *params->units);
    CHECK(params->units, "no memory for unit %d", params->num_units);
    params->units[params->num_units] = (ParamUnit){params->count, params->count};
    return params->num_units++;
}

Param *params_declare(Params *params, ParamSpec spec) {
    CHECK(params->num_units, "parameter %s is declared before any unit begins", spec.name);
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
    p->unit = params->num_units - 1;
    p->chunk = -1;
    p->frozen = spec.by_rule || (params->adapters_only && !spec.adapter);
    p->offset = -1;
    params->items[params->count++] = p;
    params->units[p->unit].end = params->count;
    return p;
}

Param *params_find(const Params *params, const char *name) {
    for (int i = 0; i < params->count; i++)
        if (!strcmp(params->items[i]->spec.name, name)) return params->items[i];
    return NULL;
}

int64_t param_local_count(const Param *p) { return placement_count(&p->place); }

Tensor param_value(const Param *p) { return p ? p->value : (Tensor){0}; }

// ---- placing ------------------------------------------------------------------------------------

static int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

static bool has_copy(const Params *params, const Param *p) {
    for (int i = 0; i < params->count; i++) {
        const char *original = params->items[i]->spec.tied_to;
        if (original && !strcmp(original, p->spec.name)) return true;
    }
    return false;
}

static Reduction reduction_of(const Params *params, const Param *p) {
    bool tied = p->spec.tied_to || has_copy(params, p);
    CHECK(!tied || p->spec.reduction == REDUCTION_WHOLE, "parameter %s is tied and has another reduction",
          p->spec.name);
    bool apart = params->matrices_apart && p->spec.matrices[0];
    bool partial = p->spec.reduction == REDUCTION_PARTIAL;
    CHECK(!apart || partial || p->spec.reduction == REDUCTION_WHOLE, "the matrix %s has another reduction",
          p->spec.name);
    if (p->spec.experts) return apart ? REDUCTION_EXPERT_MATRIX : REDUCTION_EXPERT;
    if (apart) return partial ? REDUCTION_PARTIAL_MATRIX : REDUCTION_MATRIX;
    return tied ? REDUCTION_TIED : p->spec.reduction;
}

static void find_shares(Params *params, const Topology *topology) {
    for (int i = 0; i < params->count; i++) {
        Param *p = params->items[i];
        p->place = placement_of(topology, (PlacedTensor){.cut = p->spec.cut,
                                                         .reduction = reduction_of(params, p),
                                                         .rows = p->spec.rows,
                                                         .cols = p->spec.cols,
                                                         .real_rows = p->spec.real_rows,
                                                         .experts = p->spec.experts});
    }
}

// Finds the parameters of this rank, and those of them that use another's value.
static void find_chunks(Params *params, const int *stage_of_chunk) {
    for (int i = 0; i < params->count; i++)
        for (int chunk = 0; chunk < params->num_chunks; chunk++)
            if (params->items[i]->spec.stage == stage_of_chunk[chunk]) params->items[i]->chunk = chunk;
    for (int i = 0; i < params->count; i++) {
        Param *p = params->items[i];
        if (p->chunk < 0 || !p->spec.tied_to) continue;
        Param *original = params_find(params, p->spec.tied_to);
        CHECK(original && original != p, "%s is tied to %s", p->spec.name, p->spec.tied_to);
        if (original->chunk >= 0) p->tied_value = original;
    }
}

bool params_keep_shards(const Params *params) { return params->sharding == SHARD_VALUES && !params->shared; }

bool params_units_apart(const Params *params) { return params->sharding >= SHARD_GRADIENTS; }

static Role replicas_of(int region) { return placement_reductions[region % NUM_REDUCTIONS].replicas; }

static int region_of(const Param *p) { return (int)p->place.reduction + (p->frozen ? NUM_REDUCTIONS : 0); }

static bool is_flat(const Param *p) { return !p->tied_value && !p->spec.by_rule; }

// Sets the offsets of a chunk's parameters of one region from `begin` on; returns where the region ends.
static int64_t lay_out(Params *params, int chunk, int region, Grid grid, int64_t begin) {
    int64_t end = begin, whole = (int64_t)PARAM_ALIGNMENT * grid_count(grid, replicas_of(region));
    bool rounded = region < NUM_REDUCTIONS || params_units_apart(params);
    for (int i = 0, unit = -1; i < params->count; i++) {
        Param *p = params->items[i];
        if (p->chunk != chunk || !is_flat(p) || region_of(p) != region) continue;
        if (params_units_apart(params) && p->unit != unit) end = begin + round_up(end - begin, whole);
        unit = p->unit;
        p->offset = end;
        end += round_up(param_local_count(p), PARAM_ALIGNMENT);
    }
    return rounded ? begin + round_up(end - begin, whole) : end;
}

// Lists the spans of a chunk, or only counts them.
static int list_spans(const Params *params, int chunk, ParamSpan *spans) {
    int count = 0;
    for (int region = 0; region < NUM_REGIONS; region++)
        for (int i = 0, unit = -1; i < params->count; i++) {
            const Param *p = params->items[i];
            if (p->chunk != chunk || !is_flat(p) || region_of(p) != region || p->unit == unit) continue;
            unit = p->unit;
            if (spans) spans[count] = (ParamSpan){.region = region, .unit = unit, .begin = p->offset};
            count++;
        }
    return count;
}

// Finds the spans of a chunk and where this rank's shards of them lie. Returns how many values it keeps.
static int64_t find_spans(Params *params, const Topology *topology, int chunk) {
    ChunkParams *c = &params->chunks[chunk];
    int64_t kept = 0;
    c->num_spans = list_spans(params, chunk, NULL);
    c->spans = calloc((size_t)c->num_spans + 1, sizeof *c->spans);
    CHECK(c->spans, "no memory for %d spans of parameters", c->num_spans);
    list_spans(params, chunk, c->spans);
    for (int i = 0; i < c->num_spans; i++) {
        ParamSpan *s = &c->spans[i];
        bool last = i + 1 == c->num_spans || c->spans[i + 1].region != s->region;
        s->count = (last ? c->region[s->region + 1] : c->spans[i + 1].begin) - s->begin;
        s->kept = kept;
        kept += s->count / topology_size(topology, replicas_of(s->region));
    }
    return kept;
}

// Finds where the gradients of each span lie. Returns how many this rank keeps.
static int64_t find_grads(const Params *params, const Topology *topology, ChunkParams *c) {
    int64_t kept = 0;
    if (!params_units_apart(params)) return c->region[NUM_REDUCTIONS];
    for (int i = 0; i < c->num_spans; i++) {
        ParamSpan *s = &c->spans[i];
        if (s->region >= NUM_REDUCTIONS) continue;
        const ReductionInfo *info = &placement_reductions[s->region];
        int replicas = topology_size(topology, info->replicas);
        s->grads_cut = params->cut_grads && info->first == NO_ROLE && !info->matrices && replicas > 1;
        s->grads = kept;
        kept += s->grads_cut ? s->count / replicas : s->count;
    }
    return kept;
}

Tensor params_region_grads(const Params *params, int chunk, Reduction r) {
    const ChunkParams *c = &params->chunks[chunk];
    int64_t begin = c->region[r], count = c->region[r + 1] - begin;
    for (int i = 0; i < c->num_spans; i++) {
        if (c->spans[i].region != (int)r) continue;
        CHECK(!c->spans[i].grads_cut, "gradients of reduction %d are cut", (int)r);
        begin = c->spans[i].grads;
        break;
    }
    return tensor_part(c->grads, begin, count);
}

static const ParamSpan *span_of(const Params *params, const Param *p) {
    const ChunkParams *c = &params->chunks[p->chunk];
    int i = 0;
    while (c->spans[i].region != region_of(p) || c->spans[i].unit != p->unit) i++;
    return &c->spans[i];
}

static Tensor local_at(const Param *p, Tensor flat, int64_t offset) {
    Tensor x = tensor_part(flat, offset, param_local_count(p));
    x.rows = placement_rows(&p->place);
    x.cols = placement_cols(&p->place);
    return x;
}

static Tensor local_tensor(const Param *p, Tensor flat) { return local_at(p, flat, p->offset); }

static Tensor local_grad(const Params *params, const Param *p) {
    const ChunkParams *c = &params->chunks[p->chunk];
    if (!params_units_apart(params)) return local_tensor(p, c->grads);
    const ParamSpan *s = span_of(params, p);
    if (s->grads_cut) return (Tensor){NULL, placement_rows(&p->place), placement_cols(&p->place), F32};
    return local_at(p, c->grads, p->offset - s->begin + s->grads);
}

// The levels of the tree below its root: so many sums wait for their other halves at most.
static int num_levels(const Params *params) {
    int levels = 0;
    while (1 << levels < params->leaves) levels++;
    CHECK(params->leaves < 2 || (levels <= MAX_LEAF_LEVELS && 1 << levels == params->leaves), "%d leaves",
          params->leaves);
    return levels;
}

// Finds what this rank keeps of a value that is cut into shards.
static void place_shard(const Params *params, const Topology *topology, Param *p) {
    const ChunkParams *c = &params->chunks[p->chunk];
    const ParamSpan *s = span_of(params, p);
    Role role = replicas_of(s->region);
    int64_t local = param_local_count(p), count = s->count / topology_size(topology, role);
    // Positions from the begin of the parameter's share on.
    int64_t shard = s->begin + count * topology_rank(topology, role) - p->offset, end = shard + count;
    int64_t begin = shard > 0 ? shard : 0;
    if (end > local) end = local;
    if (begin >= end) begin = end = shard = 0;
    p->kept_begin = begin;
    p->kept =
        tensor_part(c->values, params->shared ? p->offset + begin : s->kept + begin - shard, end - begin);
}

static void place_value(const Params *params, const Topology *topology, Param *p) {
    const ChunkParams *c = &params->chunks[p->chunk];
    p->value = (Tensor){NULL, placement_rows(&p->place), placement_cols(&p->place), c->values.dtype};
    if (!params_keep_shards(params)) p->value = local_tensor(p, c->values);
    if (params->sharding == SHARD_VALUES)
        place_shard(params, topology, p);
    else
        p->kept = tensor_part(c->values, p->offset, param_local_count(p));
}

// The gradients of experts for the tokens of each other source.
static void place_sources(const Params *params, Arena *arena, Param *p) {
    if (params->sources < 2 || !p->spec.experts || params->values_only) return;
    p->sources = calloc((size_t)params->sources - 1, sizeof *p->sources);
    CHECK(p->sources, "no memory for %d sources of %s", params->sources, p->spec.name);
    for (int s = 1; s < params->sources; s++) {
        Param *q = &p->sources[s - 1];
        *q = *p;
        q->sources = NULL;
        q->grad = tensor_take(arena, "gradients of other ranks' tokens", p->grad.rows, p->grad.cols, F32);
        for (int k = 0; k < num_levels(params); k++)
            q->partial[k] =
                tensor_take(arena, "gradients of other ranks' leaves", p->grad.rows, p->grad.cols, F32);
    }
}

static void place_by_rule(const Params *params, Arena *arena, Param *p) {
    p->offset = params->chunks[p->chunk].count;
    p->value = p->kept = tensor_take(arena, "parameter without a gradient", placement_rows(&p->place),
                                     placement_cols(&p->place), F32);
}

static void place_chunk(Params *params, Arena *arena, const Topology *topology, DType dtype, int chunk) {
    ChunkParams *c = &params->chunks[chunk];
    for (int r = 0; r < NUM_REGIONS; r++)
        c->region[r + 1] = lay_out(params, chunk, r, topology->grid, c->region[r]);
    int64_t trained = c->region[NUM_REDUCTIONS];
    c->count = c->region[NUM_REGIONS];
    int64_t kept = params_units_apart(params) ? find_spans(params, topology, chunk) : 0;
    if (!params_keep_shards(params)) kept = c->count;
    c->values = tensor_take(params->shared ? params->shared : arena, "parameters of a chunk", 1, kept, dtype);
    int levels = params->values_only ? 0 : num_levels(params);
    CHECK(!params->cut_grads || !levels, "gradients of %d leaves are cut", params->leaves);
    int64_t grads = find_grads(params, topology, c);
    if (!params->values_only) c->grads = tensor_take(arena, "gradients of a chunk", 1, grads, F32);
    for (int k = 0; k < levels; k++)
        c->partial[k] = tensor_take(arena, "gradients of leaves", 1, trained, F32);
    for (int i = 0; i < params->count; i++) {
        Param *p = params->items[i];
        if (p->chunk == chunk && p->spec.by_rule) place_by_rule(params, arena, p);
        if (p->chunk != chunk || !is_flat(p)) continue;
        place_value(params, topology, p);
        if (p->frozen) continue;
        if (!params->values_only) p->grad = local_grad(params, p);
        for (int k = 0; k < levels; k++) p->partial[k] = local_tensor(p, c->partial[k]);
        place_sources(params, arena, p);
    }
}

void params_place(Params *params, Arena *arena, const Topology *topology, DType dtype,
                  const int *stage_of_chunk, int num_chunks) {
    params->num_chunks = num_chunks;
    params->chunks = calloc((size_t)num_chunks, sizeof *params->chunks);
    CHECK(params->chunks, "no memory for %d chunks", num_chunks);
    find_shares(params, topology);
    find_chunks(params, stage_of_chunk);
    for (int chunk = 0; chunk < num_chunks; chunk++) place_chunk(params, arena, topology, dtype, chunk);
    for (int i = 0; i < params->count; i++) {
        Param *p = params->items[i];
        if (!p->tied_value) continue;
        p->value = p->tied_value->value;
        if (params->values_only || p->frozen) continue;
        p->grad = tensor_take(arena, "gradient of a tied copy", p->value.rows, p->value.cols, F32);
        for (int k = 0; k < num_levels(params); k++)
            p->partial[k] =
                tensor_take(arena, "gradients of a tied copy's leaves", p->grad.rows, p->grad.cols, F32);
    }
}

// ---- shares of a whole tensor -----------------------------------------------------------------------

void param_slice(const Param *p, const float *whole, float *local) {
    for (int64_t i = 0; i < placement_runs(&p->place); i++) {
        PlacementRun run = placement_run(&p->place, i);
        memcpy(local + run.local, whole + run.row * p->spec.cols + run.col,
               (size_t)run.count * sizeof *local);
    }
}

void param_unslice(const Param *p, const float *local, float *whole) {
    for (int64_t i = 0; i < placement_runs(&p->place); i++) {
        PlacementRun run = placement_run(&p->place, i);
        memcpy(whole + run.row * p->spec.cols + run.col, local + run.local,
               (size_t)run.count * sizeof *local);
    }
}

// ---- initial values -----------------------------------------------------------------------------

static void init_run(const ParamSpec *spec, RngKey key, PlacementRun run, float *out) {
    bool padding = run.row >= spec->real_rows;
    if (spec->init == INIT_UNIFORM) {
        uint64_t first = (uint64_t)(run.row * spec->cols + run.col);
        for (int64_t i = 0; i < run.count; i++)
            out[i] =
                spec->stddev * (float)(((double)rng_word(key, 0, first + (uint64_t)i) + 0.5) * 0x1p-31 - 1);
        return;
    }
    if (spec->init == INIT_NORMAL && !padding) {
        rng_fill_normal(key, (uint64_t)(run.row * spec->cols + run.col), (uint64_t)run.count, 0.0f,
                        spec->stddev, out);
        return;
    }
    for (int64_t i = 0; i < run.count; i++) out[i] = spec->init == INIT_ONE && !padding ? 1.0f : 0.0f;
}

// The number of threads for so many elements: one where they are few, else the device's.
static int team_of(const Device *device, int64_t elements) {
    enum { LEAST_SHARED = 1 << 14 };
    return elements < LEAST_SHARED ? 1 : device_threads(device);
}

// Threads divide the rows; the result does not depend on their number, since an element is a function of its index.
Status param_init(void *self, const Param *p, float *local) {
    const InitialValues *init = self;
    RngKey key = rng_key(init->seed, p->spec.tied_to ? p->spec.tied_to : p->spec.name, 0);
    int64_t count = param_local_count(p), runs = placement_runs(&p->place);
#pragma omp parallel for num_threads(team_of(init->device, count)) schedule(static)
    for (int64_t i = 0; i < runs; i++) {
        PlacementRun run = placement_run(&p->place, i);
        init_run(&p->spec, key, run, local + run.local);
    }
    return OK;
}

// Rounds a share and uploads it; to bf16 as bf16_split does, whose remainder the optimizer keeps. `half` has room for
// as many elements.
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

static int64_t largest_local(const Params *params) {
    int64_t largest = 0;
    for (int i = 0; i < params->count; i++) {
        int64_t n = param_local_count(params->items[i]);
        if (params->items[i]->chunk >= 0 && n > largest) largest = n;
    }
    return largest;
}

// How a value is set: `fill` and where it passes it on.
typedef struct {
    FillParam *fill;
    void *source;
    WriteMaster *write_master;
    void *self;
    bool adapters;    // of adapters alone
    const char *only; // of one parameter and what is tied to it, by name; NULL: of all
} Filling;

static Status fill_values(const Params *params, Device *device, const Filling *how) {
    int64_t largest = largest_local(params);
    float *local = malloc((size_t)largest * (sizeof *local + sizeof(uint16_t)) + 1);
    if (!local) return fail(ERR_OS, "no memory for %lld floats of a parameter", (long long)largest);
    uint16_t *half = (uint16_t *)(local + largest);
    Status status = OK;
    for (int i = 0; i < params->count && status == OK; i++) {
        const Param *p = params->items[i];
        if (p->chunk < 0 || p->tied_value || (how->adapters && !p->spec.adapter)) continue;
        if (how->only && strcmp(how->only, p->spec.tied_to ? p->spec.tied_to : p->spec.name) != 0) continue;
        memset(local, 0, (size_t)param_local_count(p) * sizeof *local);
        status = how->fill(how->source, p, local);
        if (status == OK && how->write_master) how->write_master(how->self, p, local);
        if (status == OK && tensor_count(p->kept))
            upload_rounded(device, p->kept, local + p->kept_begin, half);
    }
    free(local);
    return status;
}

Status params_fill(const Params *params, Device *device, FillParam *fill, void *source,
                   WriteMaster *write_master, void *self) {
    // The elements between parameters are reduced and gathered with them, so they must be zero. Shared memory is.
    for (int c = 0; c < params->num_chunks && !params->shared; c++)
        device_zero(device, device_stream(device), params->chunks[c].values);
    return fill_values(params, device, &(Filling){fill, source, write_master, self, false, NULL});
}

Status params_fill_adapters(const Params *params, Device *device, FillParam *fill, void *source) {
    return fill_values(params, device, &(Filling){.fill = fill, .source = source, .adapters = true});
}

Status params_fill_one(const Params *params, Device *device, const char *name, FillParam *fill, void *source,
                       WriteMaster *write_master, void *self) {
    return fill_values(params, device, &(Filling){fill, source, write_master, self, false, name});
}

Status params_init(const Params *params, Device *device, uint64_t seed, WriteMaster *write_master,
                   void *self) {
    InitialValues init = {device, seed};
    return params_fill(params, device, param_init, &init, write_master, self);
}

void params_free(Params *params) {
    for (int i = 0; i < params->count; i++) {
        free(params->items[i]->sources);
        free(params->items[i]);
    }
    free(params->items);
    free(params->units);
    for (int c = 0; c < params->num_chunks; c++) free(params->chunks[c].spans);
    free(params->chunks);
    *params = (Params){0};
}
