// The norm and the step: neither sharding, buckets, pipeline nor overlap changes a bit of either; both equal
// plain loops; parameters in 16 bits are always the rounded fp32 ones; and the memory they take is what is
// known of it.
#include "parallel/offload.h"
#include "parallel_trial.h"
#include <float.h>

// The short form takes the cuts of 2 by 2 ranks once: bf16 on the check device, which works as cpu does. fp16 is left to
// other tests.
static void no_cut_changes_a_bit(void) {
    compare_cuts((Setup){.grid = GRID(1, 1, 1), .dtype = F32, .device = "reference"});
    if (!harness_short()) compare_cuts((Setup){.grid = GRID(1, 2, 1), .dtype = BF16, .device = "reference"});
    compare_cuts((Setup){.grid = GRID(1, 3, 1), .dtype = F32, .device = "reference"});
    if (!harness_short()) compare_cuts((Setup){.grid = GRID(2, 2, 1), .dtype = F16, .device = "reference"});
}

static void no_cut_changes_a_bit_on_cpu(void) {
    if (!harness_short()) compare_cuts((Setup){.grid = GRID(1, 2, 1), .dtype = F32, .device = "cpu"});
    compare_cuts((Setup){.grid = GRID(2, 2, 1), .dtype = BF16, .device = "check"});
}

// ---- state on the host --------------------------------------------------------------------------

// State, values and averages are to the bit what the cpu's own step makes of the same gradients, wherever a shard is cut
// and whichever device has the gradients.
static void expect_same_on_host(Setup setup, double fraction, const char *device) {
    setup.device = "cpu";
    Trial *want = trial_run(setup);
    setup.device = device, setup.offload = fraction;
    Trial *got = trial_run(setup);
    expect_same_trial(got, want);
    free(got);
    free(want);
}

static void steps_on_the_host_change_no_bit(void) {
    static const OptimizerOptions averaged = {.adam = {0.9, 0.95, 1e-8, 1.0}, .ema_decay = 0.9};
    static const struct {
        Setup setup;
        double fraction;
        const char *device;
    } rows[] = {
        {{.grid = GRID(1, 2, 1), .dtype = BF16, .bucket_elements = 400, .sharded = true}, 1, "check"},
        {{.grid = GRID(1, 1, 1), .dtype = F32, .bucket_elements = 1000000}, 0.4, "check"},
        {{.grid = GRID(1, 1, 1), .dtype = BF16, .bucket_elements = 1000000, .optimizer = &averaged},
         0.3,
         "cuda-sim"},
        {{.grid = GRID(2, 2, 1),
          .dtype = F16,
          .bucket_elements = 1000,
          .overlap_gather = true,
          .sharded = true},
         1,
         "cuda-sim"},
        {{.grid = GRID(2, 2, 2), .dtype = BF16, .bucket_elements = 300, .sharded = true}, 0.7, "check"},
        {{.grid = GRID(1, 1, 2), .dtype = F32, .bucket_elements = 64, .optimizer = &averaged}, 1, "cuda-sim"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!harness_short() || i % 2 == 0)
            expect_same_on_host(rows[i].setup, rows[i].fraction, rows[i].device);
}

// A power of two in front of the loss changes no bit behind the step.
static void loss_scale_leaves_no_trace(void) {
    Setup setup = {.grid = GRID(2, 2, 1), .bucket_elements = 400, .sharded = true, .dtype = F16};
    Trial *want = trial_run(setup), *got = trial_new(setup);
    got->loss_scale = 65536;
    EXPECT_OK(setup_launch(&setup, trial_on_rank, got));
    expect_same_trial(got, want);
    free(got);
    free(want);
}

// A table and its copy on two ranks stay equal.
static void ends_of_the_model_stay_tied(void) {
    Setup setup = {.grid = GRID(2, 2, 2), .bucket_elements = 300, .sharded = true, .dtype = BF16};
    Trial *t = trial_run(setup);
    EXPECT(!memcmp(t->values.of[0], t->values.of[FIXTURE_PARAMS - 1],
                   sizeof(float) * FIXTURE_ROWS * FIXTURE_HIDDEN),
           "table and head differ");
    EXPECT(!isnan(t->values.of[FIXTURE_PARAMS - 1][0]), "no rank has the head");
    free(t);
}

// ---- against plain loops -----------------------------------------------------------------------------

typedef struct {
    float p[FIXTURE_LARGEST];
    double m[FIXTURE_LARGEST], v[FIXTURE_LARGEST];
} PlainState;

static void add_contribution(const ParamSpec *spec, int step, int tp, float *sum) {
    float one[FIXTURE_LARGEST];
    contribution(spec, step, 0, tp, one);
    for (int64_t k = 0; k < spec->rows * spec->cols; k++) sum[k] += one[k];
}

// The gradient of one parameter over `tp` tensor ranks that hold the whole model.
static void plain_gradient(const ParamSpec *spec, int tp, int step, float *sum) {
    contribution(spec, step, 0, 0, sum);
    for (int rank = 1; spec->reduction == REDUCTION_PARTIAL && rank < tp; rank++)
        add_contribution(spec, step, rank, sum);
    if (strcmp(spec->name, "table")) return;
    ParamSpec head = *spec;
    snprintf(head.name, sizeof head.name, "head");
    add_contribution(&head, step, 0, sum);
}

static double plain_norm(const Params *params, int tp, int step) {
    double sum = 0;
    float g[FIXTURE_LARGEST];
    for (int i = 0; i + 1 < params->count; i++) {
        const ParamSpec *spec = &params->items[i]->spec;
        plain_gradient(spec, tp, step, g);
        for (int64_t k = 0; k < spec->rows * spec->cols; k++) sum += (double)g[k] * (double)g[k];
    }
    return sqrt(sum);
}

static void plain_step(const ParamSpec *spec, PlainState *state, int tp, int step, double norm) {
    float g[FIXTURE_LARGEST];
    plain_gradient(spec, tp, step, g);
    double clip = norm > 1 ? 1 / (norm + 1e-6) : 1, decay = spec->decay ? DECAY : 0;
    for (int64_t k = 0; k < spec->rows * spec->cols; k++) {
        double x = clip * (double)g[k], p = (double)state->p[k];
        state->m[k] = 0.9 * state->m[k] + 0.1 * x;
        state->v[k] = 0.95 * state->v[k] + 0.05 * x * x;
        double m = state->m[k] / (1 - pow(0.9, step + 1)), v = state->v[k] / (1 - pow(0.95, step + 1));
        state->p[k] = (float)(p - RATE * (m / (sqrt(v) + 1e-8) + decay * p));
    }
}

static void plain_init(const ParamSpec *spec, float *p) {
    RngKey key = rng_key(1234, spec->name, 0);
    for (int64_t k = 0; k < spec->rows * spec->cols; k++) {
        p[k] = spec->init == INIT_ONE;
        if (spec->init == INIT_NORMAL && k < spec->real_rows * spec->cols)
            p[k] = spec->stddev * rng_normal(key, (uint64_t)k);
    }
}

// The largest difference over the largest number.
static double difference(const float *got, const double *want, int64_t count) {
    double worst = 0, largest = 0;
    for (int64_t k = 0; k < count; k++) {
        worst = fmax(worst, fabs((double)got[k] - want[k]));
        largest = fmax(largest, fabs(want[k]));
    }
    return worst / largest;
}

static void expect_plain_state(const Trial *t, const ParamSpec *spec, int index) {
    PlainState state = {0};
    plain_init(spec, state.p);
    for (int step = 0; step < STEPS; step++)
        plain_step(spec, &state, grid_along(t->setup.grid, AXIS_TP), step, t->norm[step]);
    double p[FIXTURE_LARGEST];
    int64_t n = spec->rows * spec->cols;
    for (int64_t k = 0; k < n; k++) p[k] = (double)state.p[k];
    double worst = difference(t->values.of[index], p, n);
    EXPECT(worst < 1e-6, "%s is off by %g", spec->name, worst);
    // Parameters hardly depend on the scale of gradients; moments do.
    worst = fmax(difference(t->m.of[index], state.m, n), difference(t->v.of[index], state.v, n));
    EXPECT(worst < 1e-6, "moments of %s are off by %g", spec->name, worst);
}

static void steps_equal_plain_loops(void) {
    for (int tp = 1; tp <= 2; tp++) {
        Trial *t = trial_run((Setup){.grid = GRID(tp, 1, 1), .bucket_elements = 300});
        Params params = {0};
        declare_model(&params, 1);
        for (int step = 0; step < STEPS; step++) {
            double want = plain_norm(&params, tp, step);
            EXPECT(fabs(t->norm[step] / want - 1) < 1e-13, "norm %.17g, not %.17g", t->norm[step], want);
        }
        for (int i = 0; i + 1 < params.count; i++) expect_plain_state(t, &params.items[i]->spec, i);
        params_free(&params);
        free(t);
    }
}

// ---- gradients that are not numbers, or very large, or nothing -----------------------------------------

typedef struct {
    Setup setup;
    float gradient;
    int rank;
    double norm;
} Single;

// One gradient of the last stage on one rank, zeros everywhere else.
static Status single_on_rank(Comm *world, void *arg) {
    Single *job = arg;
    Share s;
    share_open(&s, &job->setup, world);
    params_zero_grads(&s.params, s.runtime.device);
    const Param *p = params_find(&s.params, "layers.3.fc1");
    if (comm_rank(world) == job->rank) {
        CHECK(p->chunk >= 0, "rank %d has no such parameter", job->rank);
        device_upload(s.runtime.device, s.runtime.context.stream, tensor_part(p->grad, 77, 1),
                      &job->gradient);
    }
    for (int c = 0; c < s.params.num_chunks; c++) grad_reducer_start(&s.reducer, c);
    grad_reducer_finish(&s.reducer);
    double norm = optimizer_grad_norm(&s.optimizer, 1);
    if (comm_rank(world) == 0) job->norm = norm;
    for (int exponent = -140; exponent <= 140; exponent += 70) { // whatever the step before had
        s.optimizer.exponent = exponent;
        double again = optimizer_grad_norm(&s.optimizer, 1);
        EXPECT(again == norm, "%.17g with exponent %d, not %.17g", again, exponent, norm);
    }
    share_close(&s);
    return OK;
}

static double single_norm(float gradient, bool sharded) {
    Single job = {.setup = {.grid = GRID(2, 2, 2), .bucket_elements = 300, .sharded = sharded},
                  .gradient = gradient,
                  .rank = 5};
    EXPECT_OK(setup_launch(&job.setup, single_on_rank, &job));
    return job.norm;
}

static void every_rank_hears_of_one_gradient(void) {
    for (int sharded = 0; sharded < 2; sharded++) {
        EXPECT(isinf(single_norm(NAN, sharded)), "NaN, sharded %d", sharded);
        EXPECT(isinf(single_norm(-INFINITY, sharded)), "infinity, sharded %d", sharded);
        static const float ones[] = {3e38f, FLT_MAX, -1, 1e-20f, 1e-30f, 0};
        for (size_t i = 0; i < sizeof ones / sizeof *ones; i++)
            EXPECT(single_norm(ones[i], sharded) == fabs((double)ones[i]), "|%g| is %.17g", (double)ones[i],
                   single_norm(ones[i], sharded));
    }
}

// ---- memory -------------------------------------------------------------------------------------

typedef struct {
    int dp;
    DType dtype;
    bool sharded;
    double bytes;         // of one parameter
    double offload, host; // the share on the host; bytes there of one parameter
} MemoryCase;

static Status measure(Comm *world, void *arg) {
    const MemoryCase *one = arg;
    Grid grid = GRID(1, one->dp, 1);
    RuntimeSpec spec = {.topology = topology_of(grid, 0),
                        .device = "cpu",
                        .threads = 1,
                        .mode.dtype = one->dtype,
                        .on_host = one->offload > 0};
    Runtime runtime;
    Context *c = &runtime.context;
    EXPECT_OK(runtime_open(&runtime, &spec, world)); // measuring: without memory
    Params params = {0};
    params_begin_unit(&params);
    params_declare(&params, (ParamSpec){.name = "a", .rows = 5000, .cols = 1001, .cut = {.dim = -1}});
    params_declare(&params, (ParamSpec){.name = "b", .rows = 777, .cols = 3333, .cut = {.dim = -1}});
    params.sharding = one->sharded ? SHARD_OPTIMIZER : SHARD_NOTHING;
    params_place(&params, &runtime.run, &c->groups.topology, one->dtype, (int[]){0}, 1);
    Buckets buckets;
    Optimizer optimizer;
    EXPECT_OK(buckets_create(&buckets, c, &params, 1000000));
    OptimizerOptions options = {.offload = {one->offload, runtime.host, &runtime.host_run}};
    EXPECT_OK(optimizer_create(&optimizer, c, world, &params, &buckets, &runtime.run, options));
    const double elements = 5000.0 * 1001 + 777.0 * 3333, each = (double)runtime.run.used / elements;
    const double blocks = one->offload > 0 ? 2 * (double)tensor_bytes(optimizer.offload->gradients[0]) : 0;
    const double host = ((double)runtime.host_run.used - blocks) / elements;
    EXPECT(fabs(host - one->host) < 1e-3 * one->host + 1e-9,
           "%.4f bytes of each parameter on the host, not %.4f", host, one->host);
    EXPECT(fabs(each / one->bytes - 1) < 1e-3, "%.4f bytes of each parameter, not %.4f: %s over %d", each,
           one->bytes, dtype_name(one->dtype), one->dp);
    optimizer_destroy(&optimizer);
    buckets_destroy(&buckets);
    params_free(&params);
    runtime_close(&runtime);
    return OK;
}

// Weights, fp32 gradients, what the weights leave out of fp32 parameters (fp16: all of these), two moments.
static void memory_is_what_is_known_of_it(void) {
    static const MemoryCase cases[] = {
        {1, F32, false, 16, 0, 0},
        {4, F32, false, 16, 0, 0},
        {4, F32, true, 8 + 8.0 / 4, 0, 0},
        {8, BF16, true, 6 + 10.0 / 8, 0, 0},
        {3, F16, true, 6 + 12.0 / 3, 0, 0},
        {8, BF16, false, 16, 0, 0},
        {1, BF16, true, 16, 0, 0},
        {1, F16, false, 18, 0, 0},
        // On the host: fp32 parameters, two moments, and in fp16 the values.
        {1, F32, false, 8, 1, 12},
        {1, BF16, false, 6, 1, 12},
        {1, F16, false, 6, 1, 14},
        {4, BF16, true, 6 + 5.0 / 4, 0.5, 6.0 / 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        MemoryCase one = cases[i];
        CommOptions options = {.transport = "null", .ranks = one.dp, .timeout_s = 1};
        EXPECT_OK(comm_launch(options, measure, &one));
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"no_cut_changes_a_bit", no_cut_changes_a_bit},
                                      {"no_cut_changes_a_bit_on_cpu", no_cut_changes_a_bit_on_cpu},
                                      {"steps_on_the_host_change_no_bit", steps_on_the_host_change_no_bit},
                                      {"loss_scale_leaves_no_trace", loss_scale_leaves_no_trace},
                                      {"ends_of_the_model_stay_tied", ends_of_the_model_stay_tied},
                                      {"steps_equal_plain_loops", steps_equal_plain_loops},
                                      {"every_rank_hears_of_one_gradient", every_rank_hears_of_one_gradient},
                                      {"memory_is_what_is_known_of_it", memory_is_what_is_known_of_it},
                                      {0}},
                       argc, argv);
}
