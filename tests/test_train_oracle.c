// The whole model against an independent one: initial values, logits, every gradient and ten AdamW steps of
// tests/golden/oracle_gpt.txt, oracle_llama.txt and variants, experts among them, and 20 steps of Muon in oracle_muon.txt, which
// tests/oracle/oracle.py printed (PyTorch, float64).
// tests/oracle/README.md has the format and the tolerances.
#include "harness.h"
#include "runs.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ELEMENTS = 8, MAX_LOGITS = 8, MAX_VOCABULARY = 128, MAX_PARAMS = 128, MAX_STEPS = 32 };

typedef struct {
    char name[96];
    long count, index[ELEMENTS];
    double sum, squares, value[ELEMENTS];
} TensorGolden;

typedef struct {
    int version, layers, hidden, heads, groups, ffn, sequence, vocabulary, micro_batch, microbatches, llama,
        exact, llama3, limited, muon, experts, topk, shared, num_params, num_steps;
    long seed;
    double perturbation, adamw[6], router[2], momentum, extra_scale, loss, step_loss[MAX_STEPS],
        step_norm[MAX_STEPS];
    struct {
        int sample, position;
        double value[MAX_VOCABULARY];
    } logits[MAX_LOGITS];
    int num_logits;
    TensorGolden initial[MAX_PARAMS], gradient[MAX_PARAMS], final[MAX_PARAMS];
    int num_initial, num_gradient, num_final, num_step_lines;
} Golden;

// ---- reading --------------------------------------------------------------------------------------------

static bool read_tensor(FILE *f, TensorGolden *t) {
    bool ok = fscanf(f, "%95s %ld %lf %lf", t->name, &t->count, &t->sum, &t->squares) == 4;
    for (int i = 0; ok && i < ELEMENTS; i++) ok = fscanf(f, "%ld %lf", &t->index[i], &t->value[i]) == 2;
    return ok;
}

static bool read_logits(FILE *f, Golden *g) {
    int count, n = g->num_logits++;
    bool ok = n < MAX_LOGITS &&
              fscanf(f, "%d %d %d", &g->logits[n].sample, &g->logits[n].position, &count) == 3 &&
              count <= MAX_VOCABULARY;
    for (int i = 0; ok && i < count; i++) ok = fscanf(f, "%lf", &g->logits[n].value[i]) == 1;
    return ok;
}

static bool read_tokens(FILE *f, const Golden *g) {
    int count, token;
    if (fscanf(f, "%d", &count) != 1) return false;
    for (int i = 0; i < count; i++) {
        if (fscanf(f, "%d", &token) != 1) return false;
        EXPECT(token == run_token(0, i, g->vocabulary), "token %d is %d, not %d", i,
               run_token(0, i, g->vocabulary), token);
    }
    return true;
}

static bool read_numbers(FILE *f, Golden *g, const char *key) {
    const struct {
        const char *key;
        int *value;
    } sizes[] = {{"oracle_gpt", &g->version},
                 {"layers", &g->layers},
                 {"hidden", &g->hidden},
                 {"heads", &g->heads},
                 {"groups", &g->groups},
                 {"ffn", &g->ffn},
                 {"llama", &g->llama},
                 {"exact", &g->exact},
                 {"llama3", &g->llama3},
                 {"limited", &g->limited},
                 {"muon", &g->muon},
                 {"experts", &g->experts},
                 {"sequence", &g->sequence},
                 {"vocabulary", &g->vocabulary},
                 {"micro_batch", &g->micro_batch},
                 {"microbatches", &g->microbatches},
                 {"parameters", &g->num_params},
                 {"steps", &g->num_steps}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!strcmp(key, sizes[i].key)) return fscanf(f, "%d", sizes[i].value) == 1;
    if (!strcmp(key, "seed")) return fscanf(f, "%ld", &g->seed) == 1;
    if (!strcmp(key, "perturbation")) return fscanf(f, "%lf", &g->perturbation) == 1;
    if (!strcmp(key, "momentum")) return fscanf(f, "%lf %lf", &g->momentum, &g->extra_scale) == 2;
    if (!strcmp(key, "loss")) return fscanf(f, "%lf", &g->loss) == 1;
    if (!strcmp(key, "router"))
        return fscanf(f, "%d %d %lf %lf", &g->topk, &g->shared, &g->router[0], &g->router[1]) == 4;
    double *a = g->adamw;
    return !strcmp(key, "adamw") &&
           fscanf(f, "%lf %lf %lf %lf %lf %lf", a, a + 1, a + 2, a + 3, a + 4, a + 5) == 6;
}

static bool read_tensors(FILE *f, TensorGolden *tensors, int *count) {
    return *count < MAX_PARAMS && read_tensor(f, &tensors[(*count)++]);
}

static bool read_line(FILE *f, Golden *g, const char *key) {
    int step;
    double loss32;
    if (!strcmp(key, "initial")) return read_tensors(f, g->initial, &g->num_initial);
    if (!strcmp(key, "gradient")) return read_tensors(f, g->gradient, &g->num_gradient);
    if (!strcmp(key, "final")) return read_tensors(f, g->final, &g->num_final);
    if (!strcmp(key, "tokens")) return read_tokens(f, g);
    if (!strcmp(key, "logits")) return read_logits(f, g);
    if (strcmp(key, "step")) return read_numbers(f, g, key);
    return fscanf(f, "%d", &step) == 1 && step == g->num_step_lines++ && step < MAX_STEPS &&
           fscanf(f, "%lf %lf %lf", &g->step_loss[step], &g->step_norm[step], &loss32) == 3;
}

// Of AdamW's steps the short form ends before the golden's last one, and looks at no final value.
static int steps_of(const Golden *g) { return harness_short() && !g->muon ? 2 : g->num_steps; }

static Golden *read_golden(const char *path) {
    Golden *g = calloc(1, sizeof *g);
    FILE *f = fopen(path, "r");
    CHECK(g && f, "no golden file %s", path);
    char key[64];
    while (fscanf(f, "%63s", key) == 1) EXPECT(read_line(f, g, key), "cannot read the line '%s'", key);
    fclose(f);
    int n = g->num_params;
    EXPECT(g->version == 2 && n > 0, "version %d, %d parameters", g->version, n);
    EXPECT(g->num_initial == n && g->num_gradient == n && g->num_final == n, "%d, %d and %d of %d parameters",
           g->num_initial, g->num_gradient, g->num_final, n);
    EXPECT(g->num_logits == 4, "%d lines of logits", g->num_logits);
    EXPECT(g->num_steps == (g->muon ? 20 : 10) && g->num_step_lines == g->num_steps, "%d of %d steps",
           g->num_step_lines, g->num_steps);
    EXPECT(g->loss == g->step_loss[0], "the loss %.12g is not that of step 0", g->loss);
    return g;
}

// ---- running --------------------------------------------------------------------------------------------

typedef struct {
    const Golden *golden;
    EngineSpec spec;
    float **whole; // [params]: whole tensors, put together by the ranks that hold them
} Check;

static EngineSpec golden_spec(const Golden *g, Grid grid, const char *schedule, int chunks) {
    EngineSpec spec = run_spec(grid, schedule, chunks, g->layers, g->micro_batch * g->microbatches);
    ModelShape *s = &spec.shape;
    if (g->llama) run_make_llama(&spec);
    if (g->exact) s->activation = ACTIVATION_GELU_ERF;
    if (g->llama3) {
        s->rope = (Rope){.kind = ROPE_LLAMA3, .factor = 8, .low = 1, .high = 4, .original = 128};
        s->qkv_bias = s->proj_bias = true;
    }
    if (g->limited) {
        run_limit_attention(&spec);
        spec.first_keys = spec.positions = spec.masked = spec.per_token = true;
    }
    s->hidden = g->hidden, s->heads = g->heads, s->head_size = g->hidden / g->heads, s->ffn = g->ffn;
    s->groups = g->groups;
    s->experts = g->experts, s->experts_topk = g->topk, s->shared_ffn = g->shared;
    s->expert_ffn = g->experts ? g->ffn : 0;
    spec.mode.router = (RouterTraining){.balance = (float)g->router[0], .z = (float)g->router[1]};
    s->sequence = s->positions = g->sequence;
    s->vocabulary = g->vocabulary,
    spec.mode.padded_vocabulary = padded_vocabulary(g->vocabulary, 8, grid_along(grid, AXIS_TP));
    spec.mode.microbatch = g->micro_batch;
    s->hidden_dropout = s->attention_dropout = 0;
    spec.num_microbatches = g->microbatches / grid_along(grid, AXIS_DP);
    spec.adam = (AdamOptions){g->adamw[1], g->adamw[2], g->adamw[3], g->adamw[5]};
    if (g->muon)
        spec.muon = (MuonOptions){5, g->momentum, true, true, "quintic", MUON_SPECTRAL, g->extra_scale};
    return spec;
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), k = strlen(end);
    return n >= k && !strcmp(text + n - k, end);
}

static void set_parameters(Engine *engine, const Golden *g) {
    const Context *c = engine_context(engine);
    const Params *params = engine_params(engine);
    for (int i = 0; i < params->count; i++) {
        const Param *p = params->items[i];
        if (p->chunk < 0) continue;
        char key[128];
        snprintf(key, sizeof key, "oracle:%s", p->spec.tied_to ? p->spec.tied_to : p->spec.name);
        int64_t count = p->spec.rows * p->spec.cols, real = p->spec.real_rows * p->spec.cols;
        float *whole = calloc((size_t)count, sizeof *whole),
              *local = calloc((size_t)tensor_count(p->value), sizeof *local);
        float base = ends_with(p->spec.name, "layernorm.weight") ? 1.0f : 0.0f;
        CHECK(whole && local, "no memory for %s", p->spec.name);
        for (int64_t j = 0; j < real; j++)
            whole[j] =
                base + (float)g->perturbation * rng_normal(rng_key((uint64_t)g->seed, key, 0), (uint64_t)j);
        param_slice(p, whole, local);
        device_upload(c->device, c->stream, p->value, local);
        free(whole), free(local);
    }
}

// Every rank writes its own share of the whole tensors: different memory, except among replicas, which write
// the same.
static void gather(Engine *engine, Comm *world, float **whole, bool gradients) {
    const Context *c = engine_context(engine);
    const Params *params = engine_params(engine);
    for (int turn = 0; turn < comm_size(world); turn++) {
        comm_barrier(world);
        if (turn != comm_rank(world)) continue;
        for (int i = 0; i < params->count; i++) {
            const Param *p = params->items[i];
            if (p->chunk < 0 || p->spec.tied_to) continue;
            float *local = calloc((size_t)tensor_count(p->value), sizeof *local);
            CHECK(local, "no memory for %s", p->spec.name);
            device_download(c->device, c->stream, local, gradients ? p->grad : p->value);
            param_unslice(p, local, whole[i]);
            free(local);
        }
    }
    comm_barrier(world);
}

// Errors count relative to the tensor's size, and those of single values at least to 1
// (tests/oracle/README.md says why).
typedef struct {
    const char *what;
    double scale, least_size;
} Tolerance;

static const Tolerance INITIAL = {"initial value", 1e-6, 1}, GRADIENT = {"gradient", 1e-5, 0},
                       FINAL = {"final value", 1e-4, 1};

static void compare_tensor(const TensorGolden *want, const float *have, Tolerance t) {
    double sum = 0, squares = 0, size = sqrt(want->squares / (double)want->count);
    for (long i = 0; i < want->count; i++)
        sum += (double)have[i], squares += (double)have[i] * (double)have[i];
    for (int i = 0; i < ELEMENTS; i++) {
        double value = want->index[i] < want->count ? (double)have[want->index[i]] : NAN;
        EXPECT(fabs(value - want->value[i]) <= t.scale * fmax(size, t.least_size),
               "%s of %s[%ld]: %.9g, not %.9g", t.what, want->name, want->index[i], value, want->value[i]);
    }
    EXPECT(fabs(sum - want->sum) <= t.scale * size * (double)want->count, "%s of %s: sum %.9g, not %.9g",
           t.what, want->name, sum, want->sum);
    double most = t.scale * fmax(size, t.least_size) * sqrt(want->squares * (double)want->count);
    EXPECT(fabs(squares - want->squares) <= most, "%s of %s: squares %.9g, not %.9g", t.what, want->name,
           squares, want->squares);
}

static int own_params(const Params *params) {
    int count = 0;
    for (int i = 0; i < params->count; i++) count += !params->items[i]->spec.tied_to;
    return count;
}

// Each golden tensor is one parameter, and no parameter is left over.
static void compare_all(Engine *engine, const TensorGolden *want, int count, float **whole, Tolerance t) {
    const Params *params = engine_params(engine);
    EXPECT(own_params(params) == count, "%d parameters, not %d", own_params(params), count);
    for (int i = 0; i < count; i++) {
        int matches = 0;
        for (int j = 0; j < params->count; j++) {
            const ParamSpec *spec = &params->items[j]->spec;
            if (spec->tied_to || strcmp(want[i].name, spec->name)) continue;
            bool same_size = want[i].count == spec->real_rows * spec->cols;
            EXPECT(same_size, "%s is %lld x %lld", spec->name, (long long)spec->real_rows,
                   (long long)spec->cols);
            if (same_size) compare_tensor(&want[i], whole[j], t);
            matches++;
        }
        EXPECT(matches == 1, "%d parameters are called %s", matches, want[i].name);
    }
}

// One rank alone: the last microbatch of an evaluation leaves its logits.
static void compare_logits(Engine *engine, const Check *check) {
    const Golden *g = check->golden;
    const EngineSpec *spec = &check->spec;
    Context *c = engine_context(engine);
    int tokens = g->sequence * g->micro_batch, width = spec->mode.padded_vocabulary;
    float *host = calloc((size_t)(tokens * width), sizeof *host);
    Tensor logits = {host, tokens, width, F32};
    CHECK(host, "no memory for logits");
    gpt_keep_logits(engine_model(engine), logits);
    for (int n = 0; n < g->num_logits; n++) {
        int sample = g->logits[n].sample, first = sample / g->micro_batch * g->micro_batch;
        Batch batch = run_batch(spec, c, first - (int64_t)(g->microbatches - 1) * g->micro_batch,
                                spec->num_microbatches);
        engine_evaluate(engine, batch);
        run_batch_free(&batch);
        const float *row = host + (int64_t)(g->logits[n].position * g->micro_batch + sample - first) * width;
        for (int i = 0; i < g->vocabulary; i++)
            EXPECT(fabs((double)row[i] - g->logits[n].value[i]) <= 1e-5,
                   "logit %d of sample %d position %d: %.9g, not %.9g", i, sample, g->logits[n].position,
                   (double)row[i], g->logits[n].value[i]);
    }
    gpt_keep_logits(engine_model(engine), (Tensor){0});
    free(host);
}

static void compare_step(const Golden *g, int step, StepResult r) {
    double scale = step ? 1e-4 : 1e-5;
    EXPECT(fabs((double)r.loss - g->step_loss[step]) <= scale * g->step_loss[step], "loss %d: %.9g, not %.9g",
           step, (double)r.loss, g->step_loss[step]);
    EXPECT(fabs(r.grad_norm - g->step_norm[step]) <= scale * g->step_norm[step], "norm %d: %.9g, not %.9g",
           step, r.grad_norm, g->step_norm[step]);
}

// The loss scale with which the gradients of the first step are those of its loss: per token they have still to be
// divided by the share of its tokens that count.
static double first_scale(const Golden *g) {
    int samples = g->micro_batch * g->microbatches, counted = 0;
    if (!g->limited) return 1;
    for (int i = 0; i < samples * g->sequence; i++)
        counted += run_token(i / g->sequence, i % g->sequence, g->vocabulary) % 5 != 0;
    return (double)samples * g->sequence / counted;
}

static Status rank_main(Comm *world, void *arg) {
    const Check *check = arg;
    const Golden *g = check->golden;
    Engine *engine;
    TRY(engine_open(&engine, &check->spec, world));
    bool judge = comm_rank(world) == 0;
    set_parameters(engine, g);
    gather(engine, world, check->whole, false);
    if (judge) compare_all(engine, g->initial, g->num_initial, check->whole, INITIAL);
    if (comm_size(world) == 1) compare_logits(engine, check);
    for (int step = 0; step < steps_of(g); step++) {
        Batch batch =
            run_batch(&check->spec, engine_context(engine), (int64_t)step * g->microbatches * g->micro_batch,
                      check->spec.num_microbatches);
        if (step == 0) {
            engine_gradients(engine, batch, first_scale(g));
            gather(engine, world, check->whole, true);
            if (judge) compare_all(engine, g->gradient, g->num_gradient, check->whole, GRADIENT);
        }
        StepResult r = engine_train(engine, batch, (StepOptions){g->adamw[0], g->adamw[4], 1});
        run_batch_free(&batch);
        if (judge) compare_step(g, step, r);
    }
    gather(engine, world, check->whole, false);
    if (judge && steps_of(g) == g->num_steps)
        compare_all(engine, g->final, g->num_final, check->whole, FINAL);
    engine_close(engine);
    return OK;
}

static void compare_with(const char *golden, Grid grid, const char *schedule, int chunks,
                         const char *device) {
    Golden *g = read_golden(golden);
    Check check = {.golden = g, .spec = golden_spec(g, grid, schedule, chunks)};
    check.spec.device = device;
    check.whole = calloc(MAX_PARAMS, sizeof *check.whole);
    CHECK(check.whole, "no memory for %d tensors", MAX_PARAMS);
    // Room for the largest tensor, padded.
    for (int i = 0; i < MAX_PARAMS; i++) check.whole[i] = calloc(1 << 14, sizeof(float));
    CommOptions options = {
        .transport = "threads", .ranks = grid_size(grid), .timeout_s = 60, .deterministic = true};
    EXPECT_OK(comm_launch(options, rank_main, &check));
    for (int i = 0; i < MAX_PARAMS; i++) free(check.whole[i]);
    free(check.whole);
    free(g);
}

// Numbers alone: other tests of the short form take more paths, and every operation of the reference.
static void compare_on(Grid grid, const char *schedule, int chunks, const char *device) {
    if (harness_short() && (grid_size(grid) > 1 || !strcmp(device, "reference"))) return;
    compare_with(TEST_FOLDER "/golden/oracle_gpt.txt", grid, schedule, chunks, device);
    compare_with(TEST_FOLDER "/golden/oracle_llama.txt", grid, schedule, chunks, device);
}

// The exact GELU; slowed rotations, biases of the attention alone; documents, windows, sinks, a scale and a cap of
// scores, a loss per token, with learned and with rotary positions.
static void variants_on(Grid grid, const char *schedule, int chunks, const char *device) {
    if (harness_short() && (grid_size(grid) > 1 || !strcmp(device, "reference"))) return;
    compare_with(TEST_FOLDER "/golden/oracle_gelu.txt", grid, schedule, chunks, device);
    compare_with(TEST_FOLDER "/golden/oracle_llama3.txt", grid, schedule, chunks, device);
    compare_with(TEST_FOLDER "/golden/oracle_limited_gpt.txt", grid, schedule, chunks, device);
    compare_with(TEST_FOLDER "/golden/oracle_limited_llama.txt", grid, schedule, chunks, device);
}

// 20 steps of Muon, its matrices divided among the replicas and cut over tp.
static void muon_on(Grid grid, const char *schedule, int chunks, const char *device) {
    compare_with(TEST_FOLDER "/golden/oracle_muon.txt", grid, schedule, chunks, device);
}

// Also where the experts are on several ranks.
static void experts_on(Grid grid, int ep, const char *schedule, int chunks, const char *device) {
    grid.size[AXIS_EP] = ep;
    compare_with(TEST_FOLDER "/golden/oracle_experts.txt", grid, schedule, chunks, device);
}

static void experts(void) { experts_on((Grid)GRID(1, 1, 1), 1, "1f1b", 1, "cpu"); }
static void experts_of_reference(void) { experts_on((Grid)GRID(1, 1, 1), 1, "1f1b", 1, "reference"); }
static void experts_of_eight_ranks(void) { experts_on((Grid)GRID(2, 2, 2), 2, "interleaved", 2, "cpu"); }

static void muon(void) { muon_on((Grid)GRID(1, 1, 1), "1f1b", 1, "cpu"); }
static void muon_of_reference(void) { muon_on((Grid)GRID(1, 1, 1), "1f1b", 1, "reference"); }
static void muon_of_eight_ranks(void) { muon_on((Grid)GRID(2, 2, 2), "interleaved", 2, "cpu"); }
static void variants(void) { variants_on((Grid)GRID(1, 1, 1), "1f1b", 1, "cpu"); }
static void variants_of_reference(void) { variants_on((Grid)GRID(1, 1, 1), "1f1b", 1, "reference"); }
static void variants_of_eight_ranks(void) { variants_on((Grid)GRID(2, 2, 2), "interleaved", 2, "cpu"); }

static void one_rank(void) { compare_on((Grid)GRID(1, 1, 1), "1f1b", 1, "cpu"); }
static void reference(void) { compare_on((Grid)GRID(1, 1, 1), "1f1b", 1, "reference"); }
static void eight_ranks(void) { compare_on((Grid)GRID(2, 2, 2), "interleaved", 2, "cpu"); }
static void four_heads_apart(void) { compare_on((Grid)GRID(4, 1, 2), "gpipe", 1, "cpu"); }
static void zero_bubble(void) { compare_on((Grid)GRID(2, 1, 2), "zb-v", 2, "cpu"); }

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"one_rank", one_rank},
                                      {"reference", reference},
                                      {"eight_ranks", eight_ranks},
                                      {"four_heads_apart", four_heads_apart},
                                      {"zero_bubble", zero_bubble},
                                      {"variants", variants},
                                      {"variants_of_reference", variants_of_reference},
                                      {"variants_of_eight_ranks", variants_of_eight_ranks},
                                      {"experts", experts},
                                      {"experts_of_reference", experts_of_reference},
                                      {"experts_of_eight_ranks", experts_of_eight_ranks},
                                      {"muon", muon},
                                      {"muon_of_reference", muon_of_reference},
                                      {"muon_of_eight_ranks", muon_of_eight_ranks},
                                      {0}},
                       argc, argv);
}
