// Audits: they change no bit of a run, find nothing where there is nothing, and find a flipped bit of a gradient, an
// activation or a weight in the step in which it was flipped, with the rank. And a run ends over it without saving.
#include "config_words.h"
#include "device/op_table.h"
#include "harness.h"
#include "runs.h"
#include "train/internal.h"
#include <stdlib.h>
#include <string.h>

typedef struct {
    Grid grid;
    DType dtype; // E4M3: BF16, with products of 8 bits and scales of earlier steps
    int sharded; // a Sharding; with SHARD_GRADIENTS, 2, a step is one microbatch
    const char *schedule;
    int num_chunks;
    int leaves; // of a data-parallel rank, with --virtual-data-parallel; 0: without
    int flips;  // to be planted and found
} Case;

static const Case cases[] = {
    {GRID(1, 2, 1), F32, false, "1f1b", 1, 0, 10},       {GRID(1, 4, 1), BF16, true, "1f1b", 1, 0, 10},
    {GRID(1, 2, 1), F32, true, "1f1b", 1, 2, 8},         {GRID(1, 1, 1), F32, false, "1f1b", 1, 4, 6},
    {GRID(1, 2, 2), F32, false, "1f1b", 1, 0, 10},       {GRID(2, 2, 1), BF16, false, "1f1b", 1, 0, 10},
    {GRID(2, 4, 1), F32, true, "gpipe", 1, 2, 8},        {GRID(1, 2, 2), BF16, true, "interleaved", 2, 0, 8},
    {GRID(1, 4, 2), F32, true, "zb-h1", 1, 0, 8},        {GRID(1, 2, 2), F32, false, "zb-h2", 1, 2, 6},
    {GRID(2, 2, 2), F32, true, "zb-v", 2, 0, 8},         {GRID(1, 4, 2), BF16, false, "interleaved", 2, 2, 8},
    {GRID(2, 1, 2), F32, false, "interleaved", 2, 0, 4}, {GRID(1, 3, 1), F16, false, "1f1b", 1, 0, 6},
    {GRID(1, 2, 1), E4M3, false, "1f1b", 1, 0, 6},       {CUT_GRID(2, 2), F32, false, "1f1b", 1, 0, 8},
    {CUT_GRID(2, 2), F32, true, "1f1b", 1, 0, 8},        {CUT_GRID(2, 2), F32, 2, "1f1b", 1, 0, 8},
};

enum { NUM_CASES = sizeof cases / sizeof *cases };

static int step_microbatches(const Case *c) {
    return c->sharded > 1 ? 1 : 4 * grid_along(c->grid, AXIS_PP) * (c->leaves ? c->leaves : 1);
}

static EngineSpec spec_of(const Case *c) {
    int d = grid_along(c->grid, AXIS_DP);
    EngineSpec spec = run_spec(c->grid, c->schedule, c->num_chunks, 4, d * step_microbatches(c));
    spec.mode.dtype = c->dtype, spec.mode.recipe = RECIPE_DELAYED, spec.mode.delayed.history = 2;
    if (c->dtype == E4M3) spec.mode.dtype = BF16, spec.mode.float8 = FLOAT8_HYBRID;
    spec.mode.sequence_parallel = grid_along(c->grid, AXIS_TP) > 1 && c->sharded;
    spec.sharding = (Sharding)c->sharded, spec.overlap_gradients = spec.overlap_weights = c->sharded;
    spec.virtual_data = c->leaves * d;
    spec.mode.context_way = (ContextWay)((c - cases) % NUM_CONTEXT_WAYS); // in turn
    spec.audits = true;
    return spec;
}

// The audited part of a data-parallel rank, as run_batch would give it to that rank.
static Batch audited_batch(const Engine *engine, int64_t consumed, AuditPart part, int data_rank) {
    const EngineSpec *spec = engine_spec_of(engine);
    int64_t each = spec->shape.sequence, m = part.computed;
    int d = grid_along(spec->grid, AXIS_DP), total = spec->virtual_data ? spec->virtual_data : d;
    int32_t *tokens = malloc((size_t)(m * each) * sizeof *tokens),
            *labels = malloc((size_t)(m * each) * sizeof *labels);
    CHECK(tokens && labels && spec->mode.microbatch == 1, "no memory for a batch");
    for (int64_t i = 0; i < m * each; i++) {
        int64_t sample = consumed + i / each % part.count * total + data_rank * (total / d) + part.leaf;
        tokens[i] = run_token(sample, i % each, spec->shape.vocabulary);
        labels[i] = run_token(sample, i % each + 1, spec->shape.vocabulary);
    }
    return (Batch){.num_microbatches = (int)m, .consumed = consumed, .tokens = tokens, .labels = labels};
}

// The batch of read_again stays until the engine has used it.
typedef struct {
    Engine *engine;
    int64_t consumed;
    Batch batch;
} Reader;

static Status read_again(void *self, AuditPart part, int data_rank, Batch *batch) {
    Reader *r = self;
    *batch = r->batch = audited_batch(r->engine, r->consumed, part, data_rank);
    return OK;
}

static void audit(Engine *engine, int num_microbatches, int64_t consumed, int64_t number, double loss_scale) {
    AuditPart part = engine_audit_part(engine, num_microbatches, number);
    Batch batch = audited_batch(engine, consumed, part, engine_audited_rank(engine));
    engine_audit(engine, part, batch, loss_scale);
    run_batch_free(&batch);
}

// The linker puts this in the place of engine_train. With `audits` every step of run_plan is audited. With `damages`
// rank 1's copy of a weight is damaged after a step of a run.
enum { DAMAGED_AFTER = 4 };
StepResult __real_engine_train(Engine *engine, Batch batch, StepOptions options);
StepResult __wrap_engine_train(Engine *engine, Batch batch, StepOptions options);
static bool audits, damages;

// Flips the first bit after the sign and exponent of every element (in fp32 and bf16).
static void damage(Engine *engine) {
    Context *c = engine_context(engine);
    Tensor x = engine_params(engine)->items[1]->value; // the position table, which tp does not cut
    size_t size = dtype_bytes(x.dtype);
    device_sync(c->device, c->stream);
    char *data = device_address(c->device, x);
    for (size_t i = 0; i < tensor_bytes(x); i += size) data[i + size - 2] ^= 1 << 6;
}

StepResult __wrap_engine_train(Engine *engine, Batch batch, StepOptions options) {
    int64_t number = batch.consumed / grid_along(engine_spec_of(engine)->grid, AXIS_DP) / 4;
    bool audited = audits && batch.tokens; // without tokens the engine measures
    if (audited) audit(engine, batch.num_microbatches, batch.consumed, number, options.loss_scale);
    StepResult result = __real_engine_train(engine, batch, options);
    Reader reader = {engine, batch.consumed, {0}};
    EXPECT(!audited || !result.differs || engine_blame(engine, number, read_again, &reader) == OK,
           "a false alarm: %s", fail_message());
    run_batch_free(&reader.batch);
    if (damages && engine_optimizer_steps(engine) == DAMAGED_AFTER && rank_current()->rank == 1)
        damage(engine);
    return result;
}

// ---- no false alarm, and the same bits ---------------------------------------------------------------------

static void complain(const Case *c, int steps) {
    int m = step_microbatches(c), sizes[MAX_RUN_STEPS];
    for (int i = 0; i < MAX_RUN_STEPS; i++) sizes[i] = i % 3 == 1 && m > 1 ? m / 2 : m;
    RunPlan plan = {.spec = spec_of(c),
                    .steps = steps,
                    .lr = 1e-2,
                    .transport = "threads",
                    .check_comm = true,
                    .microbatches = sizes,
                    .finished = run_expect_predicted_memory};
    if (c->dtype == F16) plan.scaler = loss_scaler(65536, 1, 2, 1, true);
    RunResult without, with;
    char name[64];
    snprintf(name, sizeof name, "case %d", (int)(c - cases));
    audits = false;
    plan.spec.audits = false;
    bool ran = run_or_complain(&plan, name, &without);
    audits = plan.spec.audits = true;
    if (ran && run_or_complain(&plan, name, &with)) run_expect_same_bits(&without, &with, name);
    audits = false;
}

static void same_bits(void) {
    for (int i = 0; i < NUM_CASES && !harness_failed(); i++) complain(&cases[i], harness_short() ? 3 : 6);
}

// TRIREME_TEST_AUDITS: how often a data-parallel rank audits another one, in all.
static void no_false_alarm(void) {
    const char *wanted = getenv("TRIREME_TEST_AUDITS");
    int left = wanted ? atoi(wanted) : 0;
    for (int i = 0; left > 0 && !harness_failed(); i = (i + 1) % NUM_CASES) {
        int steps = MAX_RUN_STEPS;
        complain(&cases[i], steps);
        left -= steps * grid_along(cases[i].grid, AXIS_DP);
    }
}

// ---- a flip ----------------------------------------------------------------------------------------------

// A flip happens right before an operation of an audited compute, in the auditor's computation or in the step. It is
// in memory that is used afterwards, and changes what is used by as much as rounding keeps: it doubles or halves an
// element that is at least as large as its tensor's mean magnitude, of what the operation reads (of a weight that stays
// so), or of the gradient to which the operation before has added. The cases have no dropout and no padding of the
// vocabulary, so no element is multiplied by zero; and the largest logit, which cancels out of the loss, is not chosen.
typedef enum { GRADIENT, ACTIVATION, WEIGHT, NUM_KINDS } Kind;
static const char *const kind_names[NUM_KINDS] = {"a gradient", "an activation", "a weight"};

typedef struct {
    Engine *engine;
    Context *context;
    bool in_step; // not in the audit
    bool plants;  // else it counts
    Kind kind;
    int at;         // number of the operation; the first one from there on that has something to flip
    uint32_t word;  // chooses tensor and element
    int count;      // audited operations so far
    Tensor written; // the gradient to which the last operation has added
    char *flipped;  // where a bit was flipped, or NULL
} Planter;

static size_t exponent_bit(DType dtype) { return dtype == F32 ? 23 : dtype == BF16 ? 7 : 10; }

static float magnitude(const char *at, DType dtype) {
    uint32_t bits = 0;
    memcpy(&bits, at, dtype_bytes(dtype));
    if (dtype == F16) return (float)(bits & 0x7FFF); // grows with the magnitude
    bits = dtype == BF16 ? bits << 16 & 0x7FFFFFFF : bits & 0x7FFFFFFF;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void flip_at(Planter *p, char *at, DType dtype) {
    uint32_t bits = 0;
    size_t size = dtype_bytes(dtype);
    memcpy(&bits, at, size);
    bits ^= UINT32_C(1) << exponent_bit(dtype);
    memcpy(at, &bits, size);
    p->flipped = at;
}

static void flip(Planter *p, Tensor x) {
    int64_t count = tensor_count(x);
    size_t size = dtype_bytes(x.dtype);
    device_sync(p->context->device, p->context->stream);
    char *data = device_address(p->context->device, x);
    double mean = 0;
    for (int64_t i = 0; i < count; i++)
        mean += (double)magnitude(data + i * (int64_t)size, x.dtype) / (double)count;
    for (int64_t i = 0; i < count && !p->flipped; i++) {
        char *at = data + (p->word + i) % count * (int64_t)size;
        float value = magnitude(at, x.dtype);
        if (value > 0 && (double)value >= mean) flip_at(p, at, x.dtype);
    }
}

static bool is_within(Tensor x, Tensor all) {
    const char *data = all.data, *at = x.data;
    return data && at >= data && at < data + tensor_bytes(all);
}

// The flat buffers that hold the tensor: of values or of gradients.
static bool is_of(const Engine *engine, Tensor x, bool values) {
    const Params *params = engine_params((Engine *)(uintptr_t)engine);
    for (int i = 0; i < params->count; i++) {
        const Param *p = params->items[i];
        if (p->chunk >= 0 && is_within(x, values ? p->value : p->grad)) return true;
    }
    return false;
}

// A bias of keys changes no probability but by rounding, and of the embeddings only those of a
// microbatch's tokens are used, over tp by the rank that holds them.
static bool can_flip(const Planter *p, DeviceOp op, const Tensor *tensors, int i) {
    Tensor x = tensors[i];
    DType element = engine_spec_of(p->engine)->mode.dtype;
    if (!x.data || x.dtype != element || !strcmp(op_rows[op].tensors[i], "max")) return false;
    if (op == OP_EMBEDDING_FORWARD || op == OP_EMBEDDING_BACKWARD) return false;
    if (!strcmp(op_rows[op].tensors[i], "bias") || is_of(p->engine, x, false)) return false;
    return is_of(p->engine, x, true) == (p->kind == WEIGHT) && tensor_count(x) > 1;
}

// The query of the first position has one key, whose probability is always 1.
static Tensor used_part(DeviceOp op, const Tensor *tensors, int i) {
    Tensor x = tensors[i];
    return strcmp(op_rows[op].tensors[i], "qkv") ? x : tensor_rows(x, 1, (int)x.rows - 1);
}

static void flip_input(Planter *p, DeviceOp op, const Tensor *tensors) {
    int reads = op_rows[op].reads;
    for (int k = 0; k < reads && !p->flipped; k++) {
        int i = (int)((p->word / 7 + (uint32_t)k) % (uint32_t)reads);
        if (can_flip(p, op, tensors, i)) flip(p, used_part(op, tensors, i));
    }
}

// Audited computes are those that are watched.
static void on_operation(void *self, DeviceOp op, const void *args, OpCount one) {
    (void)one;
    Planter *p = self;
    const Tensor *tensors = args;
    if (!p->context->shared.see) {
        p->written = (Tensor){0};
        return;
    }
    bool due = p->plants && !p->flipped && p->count >= p->at;
    if (due && p->kind == GRADIENT && p->written.data) flip(p, p->written);
    if (due && p->kind != GRADIENT) flip_input(p, op, tensors);
    p->written = (Tensor){0};
    // OP_ADD adds leaves before this one, and the operation after it writes the gradient anew.
    for (int i = op_rows[op].reads; i < op_rows[op].reads + op_rows[op].writes && op != OP_ADD; i++)
        if (tensors[i].data && tensors[i].dtype == F32 && is_of(p->engine, tensors[i], false))
            p->written = tensors[i];
    p->count++;
}

static void listen(Planter *p) { device_on_operation(p->context->device, on_operation, p); }

static void stop_listening(Planter *p) { device_on_operation(p->context->device, NULL, NULL); }

// ---- planted and found -----------------------------------------------------------------------------------

typedef struct {
    const Case *c;
    int wanted;
    int planted[NUM_KINDS];
} Trial;

// Returns whether the verdict, or without one the ranks that were compared, name the rank.
static bool names(const char *message, int rank, bool exactly) {
    const char *at = exactly ? strstr(message, "; ") : strstr(message, "step");
    char word[32];
    snprintf(word, sizeof word, "rank %d ", rank);
    return at && strstr(at, word);
}

static void expect_named(const Case *c, Kind kind, int rank, const char *where) {
    const char *message = fail_message();
    int d = grid_along(c->grid, AXIS_DP);
    bool both = kind == WEIGHT && d == 2 && strstr(message, "each of them repeats");
    EXPECT(names(message, rank, !both) && strstr(message, "in step 7 "), "case %d, %s of rank %d, %s: %s",
           (int)(c - cases), kind_names[kind], rank, where, message);
    EXPECT(!both || !strstr(message, "ranks "), "several ranks: %s", message);
}

// In fp16 gradients that are not scaled vanish.
static double loss_scale(const Engine *engine) {
    return engine_spec_of(engine)->mode.dtype == F16 ? 65536 : 1;
}

static void train_step(Engine *engine, int64_t *consumed) {
    const EngineSpec *spec = engine_spec_of(engine);
    Batch batch = run_batch(spec, engine_context(engine), *consumed, spec->num_microbatches);
    StepResult result = __real_engine_train(engine, batch, (StepOptions){1e-2, 0.1, loss_scale(engine)});
    EXPECT(result.finite && !result.differs, "loss %g", (double)result.loss);
    *consumed += spec->num_microbatches * grid_along(spec->grid, AXIS_DP);
    run_batch_free(&batch);
}

// An audited step. Returns whether its audit found a difference. Counts the audited operations of both computations.
static bool audited_step(Engine *engine, int64_t consumed, int64_t number, Planter *p, int counts[2]) {
    const EngineSpec *spec = engine_spec_of(engine);
    bool in_step = p->in_step, plants = p->plants;
    p->count = 0, p->plants = plants && !in_step;
    listen(p);
    audit(engine, spec->num_microbatches, consumed, number, loss_scale(engine));
    counts[0] = p->count;
    p->count = 0, p->plants = plants && in_step;
    p->written = (Tensor){0};
    Batch batch = run_batch(spec, engine_context(engine), consumed, spec->num_microbatches);
    StepResult result = __real_engine_train(engine, batch, (StepOptions){0, 0, loss_scale(engine)});
    counts[1] = p->count;
    p->plants = false;
    stop_listening(p);
    run_batch_free(&batch);
    return result.differs;
}

typedef struct {
    Engine *engine;
    Comm *world;
    int64_t consumed;
    int counts[2];
} Ground;

// A weight that is wrong already in the audit of a single rank is as wrong in its step.
static void plant_one(Trial *trial, Ground *g, int number) {
    RngKey key = rng_key(7, "audits", (uint64_t)(trial->c - cases));
    uint32_t word[6];
    for (uint64_t i = 0; i < 6; i++) word[i] = rng_word(key, (uint64_t)number, i);
    bool alone = grid_along(trial->c->grid, AXIS_DP) == 1;
    Planter p = {.engine = g->engine,
                 .context = engine_context(g->engine),
                 .in_step = word[0] & 1,
                 .kind = (Kind)((uint32_t)number % (alone ? (uint32_t)WEIGHT : (uint32_t)NUM_KINDS)),
                 .word = word[3]};
    int rank = (int)(word[1] % (uint32_t)grid_size(trial->c->grid)), counts[2];
    p.plants = comm_rank(g->world) == rank;
    p.at = (int)(word[2] % (uint32_t)g->counts[p.in_step]);
    bool differs = audited_step(g->engine, g->consumed, number, &p, counts);
    double planted = p.flipped != NULL;
    comm_all_reduce_host(g->world, &planted, 1, REDUCE_MAX);
    const char *where = p.in_step ? "in the step" : "in the audit";
    EXPECT(differs == (planted > 0), "case %d, flip %d, %s of rank %d, operation %d, %s: %s",
           (int)(trial->c - cases), number, kind_names[p.kind], rank, p.at, where,
           differs ? "found" : "not found");
    if (differs) {
        Reader reader = {g->engine, g->consumed, {0}};
        EXPECT(engine_blame(g->engine, 7, read_again, &reader) == ERR_REPLICAS, "%s", fail_message());
        run_batch_free(&reader.batch);
        expect_named(trial->c, p.kind, rank, where);
    }
    if (p.flipped && p.kind == WEIGHT) flip_at(&p, p.flipped, engine_spec_of(g->engine)->mode.dtype);
    if (comm_rank(g->world) == 0) trial->planted[p.kind] += planted > 0;
    comm_barrier(g->world);
}

static int sum_of(const Trial *t) {
    return t->planted[GRADIENT] + t->planted[ACTIVATION] + t->planted[WEIGHT];
}

static Status plant_and_find(Comm *world, void *arg) {
    Trial *trial = arg;
    EngineSpec spec = spec_of(trial->c);
    spec.shape.hidden_dropout = spec.shape.attention_dropout = 0;
    spec.shape.vocabulary = spec.mode.padded_vocabulary = 64;
    Ground ground = {.world = world};
    TRY(engine_open(&ground.engine, &spec, world));
    for (int i = 0; i < 3; i++) train_step(ground.engine, &ground.consumed);
    Planter counter = {.engine = ground.engine, .context = engine_context(ground.engine)};
    EXPECT(!audited_step(ground.engine, ground.consumed, 0, &counter, ground.counts), "a false alarm");
    for (int i = 0, done = 0; !done; i++) {
        plant_one(trial, &ground, i);
        done = sum_of(trial) >= trial->wanted || harness_failed();
        comm_broadcast_host(world, &done, sizeof done, 0);
    }
    engine_close(ground.engine);
    return OK;
}

static Status launch(const Case *c, RankMain *rank_main, void *arg) {
    return comm_launch((CommOptions){.transport = "threads",
                                     .ranks = grid_size(c->grid),
                                     .timeout_s = 120,
                                     .cores = 1,
                                     .deterministic = true},
                       rank_main, arg);
}

// TRIREME_TEST_FLIPS: how many there are to be in each case.
static void planted_flips(void) {
    const char *wanted = getenv("TRIREME_TEST_FLIPS");
    int planted = 0;
    for (int i = 0; i < NUM_CASES && !harness_failed(); i++) {
        Trial trial = {.c = &cases[i],
                       .wanted = wanted            ? atoi(wanted)
                                 : harness_short() ? NUM_KINDS
                                                   : cases[i].flips};
        EXPECT_OK(launch(trial.c, plant_and_find, &trial));
        planted += sum_of(&trial);
    }
    EXPECT(harness_failed() || harness_short() || planted >= 100, "only %d flips", planted);
}

// ---- a run that ends over it -----------------------------------------------------------------------------

// The options are as on a command line; what the run prints is of no interest.
static Status train_with(const char *arguments) {
    char line[2048];
    Options options;
    snprintf(line, sizeof line,
             "%s--micro-batch-size 1 --global-batch-size 8 --train-iters 9 --hidden-size 32 --num-layers 2 "
             "--mock-data --vocab-size 64 --eval-iters 0 --ranks 4 --threads 1 --plain --save-interval 3 %s",
             strstr(GOOD_RUN, "--num-layers"), arguments);
    Status status = parse_line(&options, FOR_TRAIN, line);
    if (status == OK) status = options_resolve(&options, 4);
    EXPECT(status == OK, "%s: %s", line, fail_message());
    TrainJob job = {.options = &options, .threads = 1, .ranks_here = 4};
    CommOptions comm = {
        .transport = "threads", .ranks = 4, .timeout_s = 60, .cores = 1, .deterministic = true};
    if (status == OK) status = comm_launch(comm, train_run, &job);
    options_destroy(&options);
    return status;
}

static int64_t newest(const char *folder) {
    int64_t *steps = NULL, step = -1;
    int count = 0;
    if (checkpoint_steps(folder, &steps, &count) == OK && count) step = steps[0];
    free(steps);
    return step;
}

// A weight is damaged after step 4, before the checkpoint of step 6 compares replicas. With the distributed optimizer the
// damage lasts for one step alone.
static void damaged_runs(void) {
    static const struct {
        const char *arguments, *words;
    } rows[] = {
        {"--audit-interval 2",
         "in step 6 rank 1 computed microbatch 0, and as an audit rank 0 computed it again, with another gradient of "
         "embedding.word_embeddings.weight"},
        {"--audit-interval 3 --virtual-data-parallel 8 --eod-mask-loss", "rank 1 is wrong"},
        {"--audit-interval 2 --pipeline-model-parallel-size 2 --global-batch-size 16",
         "rank 1 computed it again, with another gradient of embedding.word_embeddings.weight and of 13 more "
         "parameters; each of them repeats its own result"},
        {"--audit-interval 1 --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer --bf16",
         "in step 5 rank 1 computed"},
    };
    FILE *out = stdout;
    stdout = fopen("/dev/null", "w");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char arguments[1024], folder[512];
        for (int damaged = 0; damaged < 2; damaged++) {
            snprintf(folder, sizeof folder, "%s/%s%zu", harness_folder(), damaged ? "damaged" : "run", i);
            snprintf(arguments, sizeof arguments,
                     "--check-weight-hash-across-dp-replicas-interval 0 %s --save %s", rows[i].arguments,
                     folder);
            damages = damaged;
            if (damaged)
                expect_failure(train_with(arguments), ERR_REPLICAS, rows[i].words, arguments);
            else
                EXPECT(train_with(arguments) == OK, "%s: %s", arguments, fail_message());
            EXPECT(newest(folder) == (damaged ? 3 : 9), "%s: newest checkpoint %d", arguments,
                   (int)newest(folder));
        }
    }
    damages = false;
    fclose(stdout), stdout = out;
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"same bits", same_bits},
                                      {"no false alarm", no_false_alarm},
                                      {"planted flips", planted_flips},
                                      {"damaged runs", damaged_runs},
                                      {0}},
                       argc, argv);
}
