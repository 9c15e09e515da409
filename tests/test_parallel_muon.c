// Muon: neither sharding, buckets, pipeline nor overlap changes a bit of its steps or of the average of the weights;
// both equal plain loops, on one tensor rank and on two; Newton-Schulz gives published numbers; and the memory is what
// is known of it.
#include "parallel/muon.h"
#include "parallel_trial.h"

static const OptimizerOptions muon = {.adam = {0.9, 0.95, 1e-8, 1.0},
                                      .muon = {5, 0.9, true, true, "quintic", MUON_SPECTRAL, 0.2},
                                      .ema_decay = 0.75};
static const OptimizerOptions whole = {.adam = {0.9, 0.95, 1e-8, 1.0},
                                       .muon = {3, 0.95, false, false, "simple", MUON_SHAPE_SCALING, 1}};
static const OptimizerOptions polar = {.adam = {0.9, 0.95, 1e-8, 1.0},
                                       .muon = {9, 0.8, true, true, "polar_express", MUON_UNIT_RMS_NORM, 0.5},
                                       .ema_decay = 0.9};

// ---- laws ---------------------------------------------------------------------------------------

static void no_cut_changes_a_bit(void) {
    compare_cuts((Setup){.grid = GRID(1, 1, 1), .optimizer = &muon, .dtype = F32});
    compare_cuts((Setup){.grid = GRID(1, 3, 1), .optimizer = &muon, .dtype = F32});
    if (!harness_short())
        compare_cuts((Setup){.grid = GRID(2, 2, 1), .optimizer = &whole, .dtype = F16, .device = "cpu"});
}

// Also: nothing is read before it is written, and no wait is missing.
static void no_cut_changes_a_bit_on_check(void) {
    compare_cuts((Setup){.grid = GRID(2, 2, 1), .optimizer = &muon, .dtype = BF16, .device = "check"});
}

// A step is that of the mean gradient, however many replicas make it: here all of them have the same one.
static void loss_scale_leaves_no_trace(void) {
    Setup setup = {
        .grid = GRID(2, 2, 1), .bucket_elements = 400, .sharded = true, .dtype = F16, .optimizer = &muon};
    Trial *want = trial_run(setup), *got = trial_new(setup);
    got->loss_scale = 65536;
    EXPECT_OK(setup_launch(&setup, trial_on_rank, got));
    expect_same_trial(got, want);
    free(got);
    free(want);
}

// ---- against plain loops -----------------------------------------------------------------------------

enum { LARGEST = FIXTURE_LARGEST };

typedef struct {
    int64_t rows, cols;
    double of[LARGEST];
} Plain;

static void plain_product(const double *a, const double *b, double *d, int64_t rows, int64_t inner,
                          int64_t cols) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            double sum = 0;
            for (int64_t k = 0; k < inner; k++) sum += a[i * inner + k] * b[k * cols + j];
            d[i * cols + j] = sum;
        }
}

// x <- a x + (b A + c A^2) x, A = x x^T, of a matrix with as many columns as rows or more.
static void plain_iteration(Plain *x, const double p[3]) {
    static double turned[LARGEST], gram[LARGEST], square[LARGEST], next[LARGEST];
    int64_t r = x->rows, q = x->cols;
    for (int64_t i = 0; i < r * q; i++) turned[i % q * r + i / q] = x->of[i];
    plain_product(x->of, turned, gram, r, q, r);
    plain_product(gram, gram, square, r, r, r);
    for (int64_t i = 0; i < r * r; i++) square[i] = p[1] * gram[i] + p[2] * square[i];
    plain_product(square, x->of, next, r, r, q);
    for (int64_t i = 0; i < r * q; i++) x->of[i] = p[0] * x->of[i] + next[i];
}

static void plain_turn(Plain *x) {
    Plain turned = {x->cols, x->rows, {0}};
    for (int64_t i = 0; i < x->rows * x->cols; i++) turned.of[i % x->cols * x->rows + i / x->cols] = x->of[i];
    *x = turned;
}

static const double *plain_polynomial(const char *name, int iteration) {
    static const double simple[3] = {3.4445, -4.7750, 2.0315},
                        quintic[5][3] = {{4.0848, -6.8946, 2.9270},
                                         {3.9505, -6.3029, 2.6377},
                                         {3.7418, -5.5913, 2.3037},
                                         {2.8769, -3.1427, 1.2046},
                                         {2.8366, -3.0525, 1.2012}},
                        express[8][3] = {{8.2051, -22.9019, 16.4607}, {4.0664, -2.8612, .5184},
                                         {3.9096, -2.8234, .5250},    {3.2856, -2.4153, .4853},
                                         {2.2779, -1.6198, .3985},    {1.8726, -1.2307, .3585},
                                         {1.8564, -1.2132, .3568},    {1.875, -1.25, .375}};
    if (!strcmp(name, "simple")) return simple;
    if (!strcmp(name, "quintic")) return quintic[iteration % 5];
    return express[iteration < 7 ? iteration : 7];
}

static double plain_scale(const MuonOptions *m, double out, double in) {
    double square = m->scale == MUON_SPECTRAL        ? (out > in ? out : in)
                    : m->scale == MUON_SHAPE_SCALING ? (out > in ? out / in : 1)
                                                     : out / in;
    return m->extra_scale * sqrt(square);
}

// Makes the rows of `u` orthogonal that are of one matrix: of each `period` those from `first` on.
static void plain_muon(const MuonOptions *m, const ParamSpec *spec, int64_t period, int64_t first,
                       int64_t height, double *u) {
    static Plain x;
    int64_t cols = spec->cols, n = 0;
    double sum = 0;
    x = (Plain){spec->rows / period * height, cols, {0}};
    for (int64_t row = 0; row < spec->rows; row++)
        for (int64_t k = 0; row % period >= first && row % period < first + height && k < cols; k++) {
            x.of[n++] = u[row * cols + k];
            sum += u[row * cols + k] * u[row * cols + k];
        }
    for (int64_t k = 0; k < n; k++) x.of[k] /= fmax(sqrt(sum), 1e-7);
    double scale = plain_scale(m, (double)x.rows, (double)cols);
    bool tall = x.rows > cols;
    if (tall) plain_turn(&x);
    for (int i = 0; i < m->iterations; i++) plain_iteration(&x, plain_polynomial(m->coefficients, i));
    if (tall) plain_turn(&x);
    n = 0;
    for (int64_t row = 0; row < spec->rows; row++)
        for (int64_t k = 0; row % period >= first && row % period < first + height && k < cols; k++)
            u[row * cols + k] = scale * x.of[n++];
}

typedef struct {
    double p[LARGEST], m[LARGEST], ema[LARGEST];
} PlainState;

static void plain_step(const OptimizerOptions *o, const ParamSpec *spec, PlainState *state, int step,
                       double norm) {
    static float g[LARGEST];
    static double u[LARGEST];
    const MuonOptions *m = &o->muon;
    contribution(spec, step, 0, 0, g);
    double clip = norm > 1 ? 1 / (norm + 1e-6) : 1;
    for (int64_t k = 0; k < spec->rows * spec->cols; k++) {
        double x = clip * (double)g[k];
        state->m[k] += (1 - m->momentum) * (x - state->m[k]);
        u[k] = m->nesterov ? x + m->momentum * (state->m[k] - x) : state->m[k];
    }
    const int64_t *height = spec->matrices;
    if (m->split_qkv && height[1]) {
        int64_t period = height[0] + height[1] + height[2];
        plain_muon(m, spec, period, 0, height[0], u);
        plain_muon(m, spec, period, height[0], height[1], u);
        plain_muon(m, spec, period, height[0] + height[1], height[2], u);
    } else {
        plain_muon(m, spec, 1, 0, 1, u);
    }
    for (int64_t k = 0; k < spec->rows * spec->cols; k++) {
        state->p[k] = state->p[k] * (1 - RATE * DECAY) - RATE * u[k];
        state->ema[k] = o->ema_decay * state->ema[k] + (1 - o->ema_decay) * state->p[k];
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
    static PlainState state;
    const OptimizerOptions *o = t->setup.optimizer;
    RngKey key = rng_key(1234, spec->name, 0);
    int64_t n = spec->rows * spec->cols;
    memset(&state, 0, sizeof state);
    for (int64_t k = 0; k < n; k++)
        state.ema[k] = state.p[k] = (double)(spec->stddev * rng_normal(key, (uint64_t)k));
    for (int step = 0; step < STEPS; step++) plain_step(o, spec, &state, step, t->norm[step]);
    double worst = difference(t->values.of[index], state.p, n);
    EXPECT(worst < 3e-6, "%s is off by %g: %s", spec->name, worst, setup_name(&t->setup));
    worst = difference(t->m.of[index], state.m, n);
    EXPECT(worst < 1e-6, "the momentum of %s is off by %g", spec->name, worst);
    if (o->ema_decay > 0) worst = difference(t->ema.of[index], state.ema, n);
    EXPECT(worst < 3e-6, "the average of %s is off by %g", spec->name, worst);
    for (int64_t k = 0; k < n; k++) EXPECT(t->v.of[index][k] == 0, "%s has a second moment", spec->name);
}

static void steps_equal_plain_loops(void) {
    const OptimizerOptions *const all[] = {&muon, &whole, &polar};
    for (int way = 0; way < 6; way++) {
        Trial *t = trial_run((Setup){.grid = GRID(1 + way % 2, 1, 1),
                                     .bucket_elements = 300,
                                     .optimizer = all[way / 2],
                                     .device = way < 4 ? "cpu" : "reference"});
        Params params = {0};
        declare_model(&params, 1);
        for (int i = 0; i < params.count; i++)
            if (params.items[i]->spec.matrices[0]) expect_plain_state(t, &params.items[i]->spec, i);
        params_free(&params);
        free(t);
    }
}

// A parameter that Muon does not step is stepped as without it.
static void others_are_stepped_by_adamw(void) {
    Setup setup = {.grid = GRID(1, 2, 1), .bucket_elements = 400, .sharded = true};
    Trial *want = trial_run(setup);
    setup.optimizer = &whole;
    Trial *got = trial_run(setup);
    Params params = {0};
    declare_model(&params, 1);
    int compared = 0, differ = 0;
    for (int i = 0; i + 1 < params.count; i++) {
        const ParamSpec *spec = &params.items[i]->spec;
        size_t bytes = (size_t)(spec->rows * spec->cols) * sizeof(float);
        bool same = !memcmp(got->main.of[i], want->main.of[i], bytes);
        if (spec->matrices[0])
            differ += !same;
        else
            compared += same;
    }
    EXPECT(compared == params.count - 1 - 2 * FIXTURE_LAYERS && differ == 2 * FIXTURE_LAYERS,
           "%d parameters are as with AdamW, %d are not", compared, differ);
    params_free(&params);
    free(got);
    free(want);
}

// ---- published numbers --------------------------------------------------------------------------------

typedef struct {
    const char *name;
    int count;
    float want[6];
} Golden;

// Of G = [1 2 -1; .5 -1 3], five iterations.
static const Golden goldens[] = {
    {"simple", 6, {.609008474f, .813593417f, .098732704f, .360674172f, .087498717f, .748562674f}},
    {"quintic", 3, {.556539442f, .839980729f, -.078617670f}},
    {"polar_express", 6, {.591409172f, .849463161f, -.008037602f, .342003917f, -.017297468f, .885280361f}}};

// way 0: as it is; 1: its transpose; 2: its three columns apart.
static void expect_golden(const Context *c, Arena *arena, const Golden *g, int way) {
    const float numbers[6] = {1, 2, -1, .5f, -1, 3};
    const MuonOptions options = {.iterations = 5, .coefficients = g->name};
    float host[6];
    int blocks = way == 2 ? 3 : 1;
    int64_t rows = way ? 3 * (way == 2 ? 2 : 1) : 2, cols = 6 / rows;
    for (int i = 0; i < 6; i++) host[way ? i % 3 * 2 + i / 3 : i] = numbers[i] / sqrtf(16.25f);
    Tensor x = tensor_take(arena, "x", rows, cols, F32), y = tensor_take(arena, "y", rows, cols, F32);
    device_upload(c->device, c->stream, x, host);
    device_download(c->device, c->stream, host, newton_schulz(c, &options, x, y, blocks));
    for (int i = 0; i < g->count; i++) {
        double got = (double)host[way ? i % 3 * 2 + i / 3 : i];
        EXPECT(fabs(got - (double)g->want[i]) < 4e-6, "%s, way %d: element %d is %.9g, not %.9g", g->name,
               way, i, got, (double)g->want[i]);
    }
}

static Status goldens_on_rank(Comm *world, void *arg) {
    RuntimeMemory memory = {.run = 1 << 16, .scratch = 1 << 16, .workspace = 1 << 20};
    RuntimeSpec spec = {.topology = topology_of((Grid)GRID(1, 1, 1), 0),
                        .roles = ALL_ROLES,
                        .device = harness_device("cpu"),
                        .threads = 1,
                        .memory = &memory};
    Runtime runtime;
    (void)arg;
    EXPECT_OK(runtime_open(&runtime, &spec, world));
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++)
        for (int way = 0; way < 3; way++) expect_golden(&runtime.context, &runtime.run, &goldens[i], way);
    runtime_close(&runtime);
    return OK;
}

static void matrices_become_orthogonal(void) {
    EXPECT_OK(setup_launch(&(Setup){.grid = GRID(1, 1, 1)}, goldens_on_rank, NULL));
}

// ---- memory -------------------------------------------------------------------------------------

typedef struct {
    int dp;
    DType dtype;
    bool sharded;
    double bytes; // of one parameter
    const OptimizerOptions *optimizer;
} MemoryCase;

static Status measure(Comm *world, void *arg) {
    const MemoryCase *one = arg;
    Grid grid = GRID(1, one->dp, 1);
    RuntimeSpec spec = {.topology = topology_of(grid, 0),
                        .roles = ALL_ROLES,
                        .device = "cpu",
                        .threads = 1,
                        .mode.dtype = one->dtype};
    Runtime runtime;
    Context *c = &runtime.context;
    EXPECT_OK(runtime_open(&runtime, &spec, world)); // measuring: without memory
    Params params = {.matrices_apart = true};
    params_begin_unit(&params);
    ParamSpec matrix = {.name = "a", .rows = 5000, .cols = 1001, .cut = {.dim = -1}, .matrices = {1}};
    params_declare(&params, matrix);
    params.sharding = one->sharded ? SHARD_OPTIMIZER : SHARD_NOTHING;
    params_place(&params, &runtime.run, &c->groups.topology, one->dtype, (int[]){0}, 1);
    Buckets buckets;
    Optimizer optimizer;
    EXPECT_OK(buckets_create(&buckets, c, &params, 1000000));
    EXPECT_OK(optimizer_create(&optimizer, c, world, &params, &buckets, &runtime.run, *one->optimizer));
    double each = (double)runtime.run.used / (5000.0 * 1001);
    EXPECT(fabs(each / one->bytes - 1) < 1e-3, "%.4f bytes of each parameter, not %.4f: %s over %d", each,
           one->bytes, dtype_name(one->dtype), one->dp);
    optimizer_destroy(&optimizer);
    buckets_destroy(&buckets);
    params_free(&params);
    runtime_close(&runtime);
    return OK;
}

// Weights, fp32 gradients, what the weights leave out of fp32 parameters, the momentum, the average.
static void memory_is_what_is_known_of_it(void) {
    static const MemoryCase cases[] = {{1, F32, false, 12, &whole},
                                       {4, F32, true, 8 + 4.0 / 4, &whole},
                                       {8, BF16, true, 6 + 6.0 / 8, &whole},
                                       {3, F16, true, 6 + 8.0 / 3, &whole},
                                       {4, BF16, true, 6 + 10.0 / 4, &muon}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        MemoryCase one = cases[i];
        CommOptions options = {.transport = "null", .ranks = one.dp, .timeout_s = 1};
        EXPECT_OK(comm_launch(options, measure, &one));
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"no_cut_changes_a_bit", no_cut_changes_a_bit},
                                      {"no_cut_changes_a_bit_on_check", no_cut_changes_a_bit_on_check},
                                      {"loss_scale_leaves_no_trace", loss_scale_leaves_no_trace},
                                      {"steps_equal_plain_loops", steps_equal_plain_loops},
                                      {"others_are_stepped_by_adamw", others_are_stepped_by_adamw},
                                      {"matrices_become_orthogonal", matrices_become_orthogonal},
                                      {"memory_is_what_is_known_of_it", memory_is_what_is_known_of_it},
                                      {0}},
                       argc, argv);
}
