// Some steps of the optimizer on a share of the model in params_fixture.h, what all ranks have in the end, and the cuts
// to which none of it may depend.
#pragma once
#include "parallel_fixture.h"

enum { STEPS = 3 };

static const double RATE = 0.01, DECAY = 0.1;

// What all ranks of a run have in the end, and the norm of every step.
typedef struct {
    Setup setup;
    double loss_scale;
    double norm[STEPS];
    Whole values, main, m, v, ema;
} Trial;

static inline Trial *trial_new(Setup setup) {
    Trial *t = calloc(1, sizeof *t);
    CHECK(t, "no memory");
    *t = (Trial){.setup = setup, .loss_scale = 1};
    whole_open(&t->values);
    whole_open(&t->main);
    whole_open(&t->m);
    whole_open(&t->v);
    whole_open(&t->ema);
    return t;
}

// ---- a run --------------------------------------------------------------------------------------

static inline void scale_gradients(Share *s, double factor) {
    for (int c = 0; c < s->params.num_chunks; c++) {
        const ChunkParams *chunk = &s->params.chunks[c];
        float *grads = malloc(tensor_bytes(chunk->grads) + 1);
        CHECK(grads, "no memory");
        device_download(s->runtime.device, s->runtime.context.stream, grads, chunk->grads);
        for (int64_t k = 0; k < chunk->count; k++) grads[k] *= (float)factor;
        device_upload(s->runtime.device, s->runtime.context.stream, chunk->grads, grads);
        free(grads);
    }
}

// The value of every element this rank owns is its fp32 parameter, rounded.
static inline void expect_rounded(const Share *s) {
    int64_t bad = 0;
    for (int i = 0; i < s->buckets.count; i++) {
        const Bucket *b = &s->buckets.items[i];
        Tensor values = tensor_part(s->params.chunks[b->chunk].values, b->shard_begin, b->shard_count);
        float *mains = downloaded_owned(s, i, MAIN), *rounded = downloaded(s, values);
        for (int64_t k = 0; k < b->shard_count; k++) {
            float main = mains[k];
            uint16_t remainder;
            if (values.dtype == BF16) main = bf16_to_f32(bf16_split(main, &remainder));
            if (values.dtype == F16) main = f16_to_f32(f16_of_f32(main));
            bad += !same_bits(main, rounded[k]);
        }
        free(mains), free(rounded);
    }
    EXPECT(!bad, "%lld values are not their rounded parameters: %s", (long long)bad, setup_name(s->setup));
}

static inline bool in_gap(const Share *s, int chunk, int64_t at) {
    for (int i = 0; i < s->params.count; i++) {
        const Param *p = s->params.items[i];
        if (p->chunk == chunk && !p->tied_value && at >= p->offset && at < p->offset + param_local_count(p))
            return false;
    }
    return true;
}

// Parameters, moments and gradients between parameters are zero.
static inline void expect_gaps_zero(const Share *s) {
    int64_t bad = 0;
    for (int i = 0; i < s->buckets.count; i++) {
        const Bucket *b = &s->buckets.items[i];
        const ChunkParams *c = &s->params.chunks[b->chunk];
        float *all[] = {downloaded(s, tensor_part(c->values, b->shard_begin, b->shard_count)),
                        downloaded_owned(s, i, GRADS),
                        downloaded_owned(s, i, MAIN),
                        downloaded_owned(s, i, FIRST_MOMENT),
                        downloaded_owned(s, i, SECOND_MOMENT),
                        downloaded_owned(s, i, AVERAGE)};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++) {
            for (int64_t k = 0; k < b->shard_count; k++)
                bad += in_gap(s, b->chunk, b->shard_begin + k) && bits_of_float(all[j][k]) != 0;
            free(all[j]);
        }
    }
    EXPECT(!bad, "%lld numbers between parameters are not zero: %s", (long long)bad, setup_name(s->setup));
}

static inline Status trial_on_rank(Comm *world, void *arg) {
    Trial *t = arg;
    Share s;
    share_open(&s, &t->setup, world);
    expect_rounded(&s);
    for (int step = 0; step < STEPS; step++) {
        run_backward(&s, step);
        grad_reducer_finish(&s.reducer);
        if (t->loss_scale != 1) scale_gradients(&s, t->loss_scale);
        double norm = optimizer_grad_norm(&s.optimizer, t->loss_scale);
        if (comm_rank(world) == 0) t->norm[step] = norm;
        optimizer_step(&s.optimizer, norm, t->loss_scale, RATE, DECAY);
        expect_rounded(&s);
        grad_reducer_gather(&s.reducer);
        comm_barrier(world);
        EXPECT(norm == t->norm[step], "ranks have other norms: %s", setup_name(s.setup));
    }
    grad_reducer_gather_wait(&s.reducer);
    expect_gaps_zero(&s);
    collect_values(&t->values, &s);
    collect_owned(&t->main, &s, MAIN);
    collect_owned(&t->m, &s, FIRST_MOMENT);
    collect_owned(&t->v, &s, SECOND_MOMENT);
    collect_owned(&t->ema, &s, AVERAGE);
    share_close(&s);
    return OK;
}

static inline Trial *trial_run(Setup setup) {
    Trial *t = trial_new(setup);
    EXPECT_OK(setup_launch(&t->setup, trial_on_rank, t));
    return t;
}

static inline void expect_same_trial(const Trial *a, const Trial *b) {
    for (int step = 0; step < STEPS; step++)
        EXPECT(a->norm[step] == b->norm[step] && a->norm[step] > 0, "norm %.17g, not %.17g: %s",
               a->norm[step], b->norm[step], setup_name(&a->setup));
    expect_same_whole(&a->values, &b->values, "values", &a->setup);
    expect_same_whole(&a->main, &b->main, "parameters", &a->setup);
    expect_same_whole(&a->m, &b->m, "first moments", &a->setup);
    expect_same_whole(&a->v, &b->v, "second moments", &a->setup);
    expect_same_whole(&a->ema, &b->ema, "averages", &a->setup);
}

// ---- laws ---------------------------------------------------------------------------------------

// Cuts of the same tp and dp that must agree with one pipeline rank, one bucket, nothing sharded.
static const Setup cuts[] = {
    {.bucket_elements = 64},
    {.bucket_elements = 400, .overlap = true},
    {.bucket_elements = 64, .sharded = true},
    {.bucket_elements = 1000, .sharded = true, .overlap = true, .overlap_gather = true},
    {.grid.size[AXIS_PP] = 2, .bucket_elements = 300},
    {.grid.size[AXIS_PP] = 2,
     .num_chunks = 2,
     .bucket_elements = 300,
     .sharded = true,
     .overlap_gather = true},
    {.grid.size[AXIS_PP] = 2,
     .num_chunks = 2,
     .vee = true,
     .bucket_elements = 500,
     .sharded = true,
     .overlap = true},
    {.num_chunks = 4, .bucket_elements = 500, .sharded = true},
    // The third of six stages has no parameter.
    {.grid.size[AXIS_PP] = 6, .bucket_elements = 400, .sharded = true, .overlap = true},
};

// Of the optimizer, grid, type and device of `base`.
static inline void compare_cuts(Setup base) {
    base.bucket_elements = 1000000;
    Trial *want = trial_run(base);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        Setup setup = cuts[i];
        setup.grid.size[AXIS_TP] = base.grid.size[AXIS_TP],
        setup.grid.size[AXIS_DP] = base.grid.size[AXIS_DP];
        setup.grid.size[AXIS_EP] = base.grid.size[AXIS_EP],
        setup.grid.size[AXIS_ETP] = base.grid.size[AXIS_ETP];
        setup.dtype = base.dtype;
        setup.device = base.device;
        setup.optimizer = base.optimizer;
        Trial *got = trial_run(setup);
        expect_same_trial(got, want);
        free(got);
    }
    free(want);
}
