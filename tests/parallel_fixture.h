// One rank's share of the model in params_fixture.h with all that data parallelism needs, and its parameters
// put together again from what all ranks hold.
#pragma once
#include "base/half.h"
#include "nn/runtime.h"
#include "parallel/parallel.h"
#include "params_fixture.h"
#include <math.h>
#include <pthread.h>

typedef struct {
    Grid grid;
    int num_chunks; // 0: 1
    bool vee;       // every second chunk in reverse: first and last stage on one rank
    DType dtype;
    int64_t bucket_elements;
    bool sharded, overlap, overlap_gather;
    const char *device;                // NULL: reference
    const OptimizerOptions *optimizer; // NULL: AdamW
    double offload;                    // the share of the state that is on the host
    bool check_comm;
} Setup;

typedef struct {
    const Setup *setup;
    Runtime runtime;
    Params params;
    Buckets buckets;
    GradReducer reducer;
    Optimizer optimizer;
} Share;

static inline const char *setup_device(const Setup *s) {
    return harness_device(s->device ? s->device : "reference");
}

static inline const char *setup_name(const Setup *s) {
    static _Thread_local char text[160];
    snprintf(text, sizeof text,
             "t%d d%d p%d ep%d etp%d v%d%s %s buckets of %lld%s%s%s%s on %s, %g on the host",
             grid_along(s->grid, AXIS_TP), grid_along(s->grid, AXIS_DP), grid_along(s->grid, AXIS_PP),
             grid_along(s->grid, AXIS_EP), grid_along(s->grid, AXIS_ETP), s->num_chunks, s->vee ? " vee" : "",
             dtype_name(s->dtype), (long long)s->bucket_elements,
             s->optimizer && s->optimizer->muon.iterations ? " muon" : "", s->sharded ? " sharded" : "",
             s->overlap ? " overlap" : "", s->overlap_gather ? " overlap_gather" : "", setup_device(s),
             s->offload);
    return text;
}

static inline int setup_chunks(const Setup *s) { return s->num_chunks ? s->num_chunks : 1; }

// ---- life ---------------------------------------------------------------------------------------

static inline void open_bench_runtime(Share *s, Comm *world) {
    const Setup *setup = s->setup;
    RuntimeMemory memory = {.run = 1 << 20, .scratch = 1 << 20, .workspace = 1 << 20, .host = 1 << 20};
    RuntimeSpec spec = {.topology = topology_of(setup->grid, comm_rank(world)),
                        .roles = ALL_ROLES,
                        .device = setup_device(setup),
                        .threads = 1,
                        .mode.dtype = setup->dtype,
                        .on_host = setup->offload > 0,
                        .memory = &memory};
    if (setup->vee && setup_chunks(setup) % 2 == 0) spec.topology.ends[1] = 0;
    EXPECT_OK(runtime_open(&s->runtime, &spec, world));
}

static inline void place_bench(Share *s) {
    const Setup *setup = s->setup;
    int stages[16], chunks = setup_chunks(setup);
    for (int c = 0; c < chunks; c++)
        stages[c] =
            fixture_stage(setup->grid, setup->vee, context_rank(&s->runtime.context, ROLE_PIPELINE), c);
    s->params.matrices_apart = setup->optimizer && setup->optimizer->muon.iterations;
    declare_model(&s->params, grid_along(setup->grid, AXIS_PP) * chunks);
    s->params.sharding = setup->sharded ? SHARD_OPTIMIZER : SHARD_NOTHING;
    params_place(&s->params, &s->runtime.run, &s->runtime.context.groups.topology, setup->dtype, stages,
                 chunks);
    EXPECT_OK(buckets_create(&s->buckets, &s->runtime.context, &s->params, setup->bucket_elements));
    EXPECT_OK(grad_reducer_create(&s->reducer, &s->runtime.context, &s->params, &s->buckets, setup->overlap,
                                  setup->overlap_gather, false));
    OptimizerOptions options = {.adam = {0.9, 0.95, 1e-8, 1.0}};
    if (setup->optimizer) options = *setup->optimizer;
    options.offload = (OffloadOptions){setup->offload, s->runtime.host, &s->runtime.host_run};
    EXPECT_OK(optimizer_create(&s->optimizer, &s->runtime.context, s->runtime.world, &s->params, &s->buckets,
                               &s->runtime.run, options));
}

static inline void share_open(Share *s, const Setup *setup, Comm *world) {
    *s = (Share){.setup = setup};
    open_bench_runtime(s, world);
    place_bench(s);
    EXPECT_OK(params_init(&s->params, s->runtime.device, 1234, optimizer_write_master, &s->optimizer));
}

static inline void share_close(Share *s) {
    grad_reducer_destroy(&s->reducer);
    optimizer_destroy(&s->optimizer);
    buckets_destroy(&s->buckets);
    params_free(&s->params);
    runtime_close(&s->runtime);
}

static inline Status setup_launch(const Setup *setup, RankMain *rank_main, void *arg) {
    CommOptions options = {.transport = "threads",
                           .ranks = grid_size(setup->grid),
                           .timeout_s = 60,
                           .check = setup->check_comm,
                           .device_transport = harness_device_transport(),
                           .deterministic = true};
    return comm_launch(options, rank_main, arg);
}

// ---- gradients ----------------------------------------------------------------------------------

// What data rank `dp`, or with experts the edp-th of their replicas, adds to the gradient of a whole parameter in a step;
// tensor ranks differ where each has seen only its rows.
static inline void contribution(const ParamSpec *spec, int step, int dp, int tp, float *whole) {
    int64_t n = spec->rows * spec->cols;
    uint64_t number = (uint64_t)(dp * 64 + (spec->reduction == REDUCTION_PARTIAL ? tp : 0));
    rng_fill_normal(rng_key((uint64_t)step, spec->name, number), 0, (uint64_t)n, 0, 0.7f, whole);
}

// Leaves this rank's own gradient of a local parameter where a backward would.
static inline void fill_gradient(Share *s, const Param *p, int step) {
    float whole[FIXTURE_LARGEST], local[FIXTURE_LARGEST];
    Place place = s->runtime.context.groups.topology.place;
    Axis replicas = p->spec.experts ? AXIS_EDP : AXIS_DP;
    contribution(&p->spec, step, place.at[replicas], place.at[AXIS_TP], whole);
    param_slice(p, whole, local);
    device_upload(s->runtime.device, s->runtime.context.stream, p->grad, local);
}

// As a model's backward does: units from the end of each chunk to its start, each finished when it is passed.
static inline void run_backward(Share *s, int step) {
    UnitWatch watch = grad_reducer_watch(&s->reducer);
    params_zero_grads(&s->params, s->runtime.device);
    for (int chunk = s->params.num_chunks - 1; chunk >= 0; chunk--) {
        for (int unit = s->params.num_units - 1; unit >= 0; unit--) {
            const ParamUnit *u = &s->params.units[unit];
            if (s->params.items[u->first]->chunk != chunk) continue;
            for (int i = u->end - 1; i >= u->first; i--) fill_gradient(s, s->params.items[i], step);
            watch.finish(watch.self, unit, true);
            comm_poll(s->runtime.world);
        }
        grad_reducer_start(&s->reducer, chunk);
    }
}

// ---- whole parameters, put together from all ranks' shares ------------------------------------------

typedef struct {
    pthread_mutex_t lock;
    float of[FIXTURE_MOST_PARAMS][FIXTURE_LARGEST]; // NaN: no rank has it
} Whole;

static inline void whole_open(Whole *w) {
    pthread_mutex_init(&w->lock, NULL);
    for (int i = 0; i < FIXTURE_MOST_PARAMS; i++)
        for (int64_t k = 0; k < FIXTURE_LARGEST; k++) w->of[i][k] = NAN;
}

static inline bool same_bits(float a, float b) { return bits_of_float(a) == bits_of_float(b); }

// Adds a rank's share, NaN where it has nothing; what two ranks hold must be equal to the bit.
static inline void whole_add(Whole *w, const Share *s, int index, const float *local) {
    const Param *p = s->params.items[index];
    float own[FIXTURE_LARGEST];
    int64_t n = p->spec.rows * p->spec.cols, bad = 0;
    for (int64_t k = 0; k < n; k++) own[k] = NAN;
    param_unslice(p, local, own);
    pthread_mutex_lock(&w->lock);
    for (int64_t k = 0; k < n; k++) {
        if (isnan(own[k])) continue;
        bad += !isnan(w->of[index][k]) && !same_bits(w->of[index][k], own[k]);
        w->of[index][k] = own[k];
    }
    pthread_mutex_unlock(&w->lock);
    EXPECT(!bad, "%lld elements of %s differ between ranks: %s", (long long)bad, p->spec.name,
           setup_name(s->setup));
}

static inline void download_f32(const Share *s, Tensor x, float *out) {
    int64_t n = tensor_count(x);
    uint16_t *half = malloc((size_t)n * sizeof *half + 1);
    CHECK(half, "no memory");
    device_download(s->runtime.device, s->runtime.context.stream, x.dtype == F32 ? (void *)out : half, x);
    for (int64_t i = 0; i < n && x.dtype != F32; i++)
        out[i] = x.dtype == BF16 ? bf16_to_f32(half[i]) : f16_to_f32(half[i]);
    free(half);
}

// A copy of a tensor, which the caller frees.
static inline float *downloaded(const Share *s, Tensor x) {
    float *copy = malloc((size_t)tensor_count(x) * sizeof *copy + 1);
    CHECK(copy, "no memory");
    download_f32(s, x, copy);
    return copy;
}

typedef enum { GRADS, MAIN, FIRST_MOMENT, SECOND_MOMENT, AVERAGE } Owned;

// Adds a part of a shard's state, on the host or on the device, to those fp32 numbers of the shard.
static inline void download_state(const Share *s, int b, bool on_host, Owned what, float *shard) {
    const ShardState *state = &(on_host ? s->optimizer.offloaded : s->optimizer.shards)[b];
    Tensor x = what == MAIN            ? state->main
               : what == FIRST_MOMENT  ? state->m
               : what == SECOND_MOMENT ? state->v
                                       : state->ema;
    int64_t n = state->count;
    if (!n || !x.data) return;
    Device *device = on_host ? s->runtime.host : s->runtime.device;
    Stream *stream = device_stream(device);
    float *to = shard + state->begin;
    if (x.dtype == F32) {
        device_download(device, stream, to, x);
        return;
    }
    uint16_t *halves = malloc((size_t)(2 * n) * sizeof *halves + 1);
    CHECK(halves, "no memory");
    device_download(device, stream, halves, state->value);
    device_download(device, stream, halves + n, x);
    for (int64_t k = 0; k < n; k++) to[k] = bf16_join(halves[k], halves[n + k]);
    free(halves);
}

// The shard of bucket b of one of the things that sharding distributes, zeros where it is not kept; MAIN are the fp32
// numbers that are stepped. The caller frees it.
static inline float *downloaded_owned(const Share *s, int b, Owned what) {
    const Bucket *bucket = &s->buckets.items[b];
    Tensor grads = s->params.chunks[bucket->chunk].grads;
    if (what == GRADS) return downloaded(s, tensor_part(grads, bucket->shard_begin, bucket->shard_count));
    float *shard = calloc((size_t)bucket->shard_count + 1, sizeof *shard);
    CHECK(shard, "no memory");
    download_state(s, b, true, what, shard);
    download_state(s, b, false, what, shard);
    return shard;
}

// What this rank owns of one parameter.
static inline void collect_owned_of(Whole *w, const Share *s, int index, Owned what) {
    const Param *p = s->params.items[index];
    int64_t n = param_local_count(p);
    float local[FIXTURE_LARGEST];
    for (int64_t k = 0; k < n; k++) local[k] = NAN;
    for (int b = 0; b < s->buckets.count; b++) {
        const Bucket *bucket = &s->buckets.items[b];
        int64_t end = bucket->shard_begin + bucket->shard_count;
        if (bucket->chunk != p->chunk || p->offset >= end || p->offset + n <= bucket->shard_begin) continue;
        float *owned = downloaded_owned(s, b, what);
        for (int64_t k = 0; k < n; k++) {
            int64_t at = p->offset + k - bucket->shard_begin;
            if (at < 0 || at >= bucket->shard_count) continue;
            EXPECT(isnan(local[k]), "%s is owned twice", p->spec.name);
            local[k] = owned[at];
        }
        free(owned);
    }
    whole_add(w, s, index, local);
}

static inline void collect_owned(Whole *w, const Share *s, Owned what) {
    for (int i = 0; i < s->params.count; i++)
        if (s->params.items[i]->offset >= 0) collect_owned_of(w, s, i, what);
}

static inline void collect_values(Whole *w, const Share *s) {
    float local[FIXTURE_LARGEST];
    for (int i = 0; i < s->params.count; i++) {
        if (s->params.items[i]->chunk < 0) continue;
        download_f32(s, s->params.items[i]->value, local);
        whole_add(w, s, i, local);
    }
}

// Every element of a that exists equals b's, but for the tied copy, which not every grid has.
static inline void expect_same_whole(const Whole *a, const Whole *b, const char *what, const Setup *setup) {
    int64_t bad = 0, none = 0;
    for (int i = 0; i < fixture_params(); i++)
        for (int64_t k = 0; k < FIXTURE_LARGEST; k++) {
            if (i + 1 == fixture_params() && (isnan(a->of[i][k]) || isnan(b->of[i][k]))) continue;
            none += isnan(a->of[i][k]) != isnan(b->of[i][k]);
            bad += !isnan(a->of[i][k]) && !same_bits(a->of[i][k], b->of[i][k]);
        }
    EXPECT(!bad && !none, "%s: %lld elements differ, %lld are missing: %s", what, (long long)bad,
           (long long)none, setup_name(setup));
}
