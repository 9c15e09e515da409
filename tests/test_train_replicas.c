// Replicas of weights, master weights and moments: a bit that is flipped on one rank is found at the next comparison,
// with its rank and tensor; where nothing was flipped nothing is found. And a run ends over it without saving.
#include "base/half.h"
#include "config_words.h"
#include "harness.h"
#include "runs.h"
#include "train/internal.h"
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

// ---- what is trained -------------------------------------------------------------------------------------

typedef struct {
    Grid grid;
    DType dtype;
    bool sharded;
    const char *schedule;
    int num_chunks;
    int flips; // to be planted and found
} Case;

static const Case cases[] = {
    {GRID(1, 2, 1), F32, false, "1f1b", 1, 10},       {GRID(1, 3, 1), BF16, false, "1f1b", 1, 12},
    {GRID(1, 4, 1), F32, true, "1f1b", 1, 8},         {GRID(2, 1, 1), F32, false, "1f1b", 1, 8},
    {GRID(4, 1, 1), BF16, false, "1f1b", 1, 10},      {GRID(2, 2, 1), F32, false, "1f1b", 1, 12},
    {GRID(2, 2, 1), BF16, true, "1f1b", 1, 12},       {GRID(1, 1, 2), F32, false, "1f1b", 1, 6},
    {GRID(1, 2, 2), BF16, false, "zb-h1", 1, 10},     {GRID(2, 1, 2), F32, false, "interleaved", 2, 8},
    {GRID(2, 2, 2), BF16, true, "interleaved", 2, 8}, {GRID(1, 3, 1), F16, false, "1f1b", 1, 6},
};

enum { NUM_CASES = sizeof cases / sizeof *cases, INTERVAL = 3, MAX_MESSAGE = 1024 };

static EngineSpec spec_of(const Case *c) {
    EngineSpec spec = run_spec(c->grid, c->schedule, c->num_chunks, 4,
                               2 * grid_along(c->grid, AXIS_DP) * grid_along(c->grid, AXIS_PP));
    spec.mode.dtype = c->dtype;
    spec.mode.sequence_parallel = grid_along(c->grid, AXIS_TP) > 1 && c->sharded;
    spec.sharding = spec.overlap_gradients = spec.overlap_weights = c->sharded;
    return spec;
}

static void step(Engine *engine, int64_t *consumed) {
    const EngineSpec *spec = engine_spec_of(engine);
    Batch batch = run_batch(spec, engine_context(engine), *consumed, spec->num_microbatches);
    StepResult result = engine_train(engine, batch, (StepOptions){1e-3, 0.1, 1});
    EXPECT(result.finite, "loss %g", (double)result.loss);
    *consumed += spec->num_microbatches * grid_along(spec->grid, AXIS_DP);
    run_batch_free(&batch);
}

// ---- a flip ----------------------------------------------------------------------------------------------

// One bit of one element of what one rank keeps of a parameter.
typedef enum { WEIGHT, MASTER, FIRST, SECOND, NUM_KINDS } Kind;

static const char *const kind_words[NUM_KINDS] = {" weights of ", "master weights", "first moment",
                                                  "second moment"};

typedef struct {
    int rank, param;
    Kind kind;
    uint32_t element, bit;
    int steps; // between the flip and the comparison
} Flip;

// A bit that rounding does not take back within some steps.
static uint32_t lowest_bit(DType dtype, Kind kind) {
    return kind == MASTER && dtype == BF16 ? 8 : dtype == F32 || kind > MASTER ? 12 : 2;
}

static bool is_tied(const Params *params, const Param *p) {
    for (int i = 0; i < params->count; i++)
        if (params->items[i]->spec.tied_to &&
            (params->items[i] == p || !strcmp(params->items[i]->spec.tied_to, p->spec.name)))
            return true;
    return false;
}

// Whether the comparison can know of the flip: another rank holds the same, and no step in between puts it right. A
// step copies weights from their owner (sharded) and, in fp16, from the master weights.
static bool can_be_found(const Case *c, const Params *params, const Flip *f) {
    const Param *p = params->items[f->param];
    bool copied = f->kind == WEIGHT && (c->sharded || c->dtype == F16);
    bool over_dp = grid_along(c->grid, AXIS_DP) > 1 && (f->kind == WEIGHT || !c->sharded);
    bool over_tp = grid_along(c->grid, AXIS_TP) > 1 && p->spec.cut.dim < 0;
    bool over_ends = grid_along(c->grid, AXIS_PP) > 1 && is_tied(params, p);
    if (f->kind == MASTER && c->dtype == F32) return false; // they are the weights
    return (over_dp || over_tp || over_ends) && !(copied && f->steps);
}

// Whether the tensor is certain: over tp and the ends of the model a difference spreads with the next step.
static bool stays_in_tensor(const Case *c, const Flip *f) {
    return f->steps == 0 || (grid_along(c->grid, AXIS_DP) > 1 && !c->sharded);
}

static bool rank_holds(const Case *c, const Engine *engine, const Param *p, int rank) {
    const Schedule *s = engine_schedule(engine);
    return s->stage_place[p->spec.stage] / s->num_chunks == grid_place(c->grid, rank).at[AXIS_PP] &&
           !p->tied_value;
}

// The same on every rank, from its number alone. Without `spreads` its tensor is certain.
static Flip choose(const Case *c, Engine *engine, int number, bool spreads) {
    const Params *params = engine_params(engine);
    RngKey key = rng_key(99, "flips", (uint64_t)(c - cases));
    for (uint64_t attempt = 0;; attempt++) {
        uint32_t word[6];
        for (uint64_t i = 0; i < 6; i++) word[i] = rng_word(key, (uint64_t)number, attempt * 6 + i);
        Flip f = {.rank = (int)(word[0] % (uint32_t)grid_size(c->grid)),
                  .param = (int)(word[1] % (uint32_t)params->count),
                  .kind = (Kind)(word[2] % NUM_KINDS),
                  .element = word[3],
                  .steps = (int)(word[4] % INTERVAL)};
        uint32_t lowest = lowest_bit(c->dtype, f.kind), highest = lowest == 2 ? 9 : lowest == 8 ? 14 : 22;
        f.bit = lowest + word[5] % (highest - lowest + 1);
        if (!spreads && !stays_in_tensor(c, &f)) f.steps = 0;
        if (rank_holds(c, engine, params->items[f.param], f.rank) && can_be_found(c, params, &f)) return f;
    }
}

// A zero's bits would vanish in rounding: the next element that is not.
static void flip_bit(Context *c, Tensor x, const Flip *f, bool *done) {
    int64_t count = tensor_count(x);
    size_t size = dtype_bytes(x.dtype);
    device_sync(c->device, c->stream);
    char *data = device_address(c->device, x);
    for (int64_t i = 0; i < count && !*done; i++) {
        char *at = data + ((int64_t)f->element + i) % count * (int64_t)size;
        uint32_t bits = 0;
        memcpy(&bits, at, size);
        if (!(bits & 0x7FFFFFFF)) continue;
        bits ^= UINT32_C(1) << f->bit;
        memcpy(at, &bits, size);
        *done = true;
    }
}

typedef struct {
    Engine *engine;
    const Flip *flip;
    bool done;
} Planting;

static Status plant_in_part(void *self, const OwnedPart *part) {
    Planting *p = self;
    const Tensor kept[NUM_KINDS] = {{0}, part->main, part->m, part->v};
    if (part->param == engine_params(p->engine)->items[p->flip->param])
        flip_bit(engine_context(p->engine), kept[p->flip->kind], p->flip, &p->done);
    return OK;
}

// On the flip's rank. Whether there was anything but zeros (of what a rank owns, with shards, there may be nothing).
static bool plant(Engine *engine, const Flip *f) {
    Planting planting = {engine, f, false};
    if (f->kind == WEIGHT)
        flip_bit(engine_context(engine), engine_params(engine)->items[f->param]->value, f, &planting.done);
    else
        optimizer_visit(engine_optimizer(engine), plant_in_part, &planting);
    return planting.done;
}

// ---- planted and found -----------------------------------------------------------------------------------

typedef struct {
    const Case *c;
    int number; // of the flip
    bool spreads;
    int planted;
    int rounds; // of comparisons without a flip
} Trial;

// Reads the ranks from `text` to `end`, in a message "rank 1 and ranks 0, 2 hold different ...". Returns whether `rank`
// is one of them, and counts them.
static bool lists(const char *text, const char *end, int rank, int *count) {
    bool is = false;
    *count = 0;
    while (text < end) {
        char *after;
        long number = strtol(text, &after, 10);
        if (after == text) {
            text++;
            continue;
        }
        is |= number == rank;
        ++*count;
        text = after;
    }
    return is;
}

// With a majority the ranks that are wrong come first: the flipped one alone, of three or more.
static void expect_rank_named(const char *message, int rank, bool certain) {
    const char *list = strstr(message, "rank"), *end = strstr(message, " hold ");
    EXPECT(list && end && list < end, "no ranks are named: %s", message);
    if (!list || !end) return;
    int count;
    EXPECT(lists(list, end, rank, &count), "rank %d is not named: %s", rank, message);
    if (!certain || !strstr(message, "majority")) return;
    const char *others = strstr(list, " and ");
    EXPECT(others && others < end && lists(list, others, rank, &count) && count == 1,
           "rank %d is not the one that is wrong: %s", rank, message);
}

static void expect_named(const Case *c, const Flip *f, const Params *params) {
    const char *message = fail_message(), *name = params->items[f->param]->spec.name;
    const char *tied = params->items[f->param]->spec.tied_to;
    expect_rank_named(message, f->rank, stays_in_tensor(c, f));
    if (!stays_in_tensor(c, f)) return;
    EXPECT(strstr(message, name) || (tied && strstr(message, tied)), "%s is not named: %s", name, message);
    // A step makes weights of moments.
    EXPECT(f->steps || strstr(message, kind_words[f->kind]), "'%s' is not named: %s", kind_words[f->kind],
           message);
    bool over_dp_alone =
        grid_along(c->grid, AXIS_TP) == 1 && grid_along(c->grid, AXIS_PP) == 1 && !c->sharded;
    EXPECT(!over_dp_alone || grid_along(c->grid, AXIS_DP) < 3 || strstr(message, "majority"),
           "no majority of %d: %s", grid_along(c->grid, AXIS_DP), message);
}

static Status flip_and_find(Comm *world, void *arg) {
    Trial *trial = arg;
    EngineSpec spec = spec_of(trial->c);
    Engine *engine;
    int64_t consumed = 0;
    TRY(engine_open(&engine, &spec, world));
    for (int i = 0; i < INTERVAL; i++) step(engine, &consumed);
    EXPECT_OK(replicas_compare(engine, world, INTERVAL));
    Flip f = choose(trial->c, engine, trial->number, trial->spreads);
    for (int i = f.steps; i < INTERVAL; i++) step(engine, &consumed);
    double planted = comm_rank(world) == f.rank && plant(engine, &f);
    comm_all_reduce_host(world, &planted, 1, REDUCE_MAX);
    for (int i = 0; i < f.steps; i++) step(engine, &consumed);
    Status status = replicas_compare(engine, world, 2 * INTERVAL);
    EXPECT(status == (planted > 0 ? ERR_REPLICAS : OK),
           "case %d, flip %d (rank %d, %s, kind %d, bit %u, %d steps ago): status %d",
           (int)(trial->c - cases), trial->number, f.rank, engine_params(engine)->items[f.param]->spec.name,
           (int)f.kind, f.bit, f.steps, (int)status);
    if (status == ERR_REPLICAS && !trial->spreads) expect_named(trial->c, &f, engine_params(engine));
    if (comm_rank(world) == 0) trial->planted += planted > 0;
    engine_close(engine);
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

static void planted_flips(void) {
    int planted = 0;
    for (int i = 0; i < NUM_CASES; i++) {
        Trial trial = {.c = &cases[i]};
        int wanted = harness_short() ? 2 : cases[i].flips;
        for (; trial.planted < wanted && !harness_failed(); trial.number++)
            EXPECT_OK(launch(trial.c, flip_and_find, &trial));
        planted += trial.planted;
    }
    EXPECT(harness_failed() || harness_short() || planted >= 100, "only %d flips", planted);
}

// Over tp and the ends of the model alone it is found too, though the tensor may be another by then.
static void flips_that_spread(void) {
    for (int i = 0; i < NUM_CASES; i++) {
        Trial trial = {.c = &cases[i], .spreads = true, .number = 100};
        if (grid_along(cases[i].grid, AXIS_DP) > 1) continue;
        for (; trial.planted < (harness_short() ? 1 : 4) && !harness_failed(); trial.number++)
            EXPECT_OK(launch(trial.c, flip_and_find, &trial));
    }
}

// ---- no false alarm --------------------------------------------------------------------------------------

static Status train_and_compare(Comm *world, void *arg) {
    Trial *trial = arg;
    EngineSpec spec = spec_of(trial->c);
    Engine *engine;
    int64_t consumed = 0;
    TRY(engine_open(&engine, &spec, world));
    for (int i = 0; i < trial->rounds && !harness_failed(); i++) {
        EXPECT_OK(replicas_compare(engine, world, i));
        step(engine, &consumed);
    }
    engine_close(engine);
    return OK;
}

// Without replicas ranks exchange nothing over it.
static Status compare_nothing(Comm *world, void *arg) {
    const Case *c = arg;
    EngineSpec spec = spec_of(c);
    run_make_llama(&spec); // untied
    Engine *engine;
    TRY(engine_open(&engine, &spec, world));
    const CommCount *counts = comm_counts(world);
    int64_t before = counts[COMM_ALL_REDUCE].calls;
    EXPECT_OK(replicas_compare(engine, world, 0));
    int64_t calls = counts[COMM_ALL_REDUCE].calls - before;
    EXPECT(calls == (grid_along(c->grid, AXIS_DP) > 1), "%d x %d x %d: %lld calls",
           grid_along(c->grid, AXIS_TP), grid_along(c->grid, AXIS_DP), grid_along(c->grid, AXIS_PP),
           (long long)calls);
    engine_close(engine);
    return OK;
}

static void nothing_to_compare(void) {
    static Case grids[] = {{GRID(1, 1, 2), F32, false, "1f1b", 1, 0},
                           {GRID(1, 2, 1), F32, true, "1f1b", 1, 0}};
    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++)
        EXPECT_OK(launch(&grids[i], compare_nothing, &grids[i]));
}

// TRIREME_TEST_COMPARISONS: how many there are to be in all.
static void no_false_alarm(void) {
    const char *wanted = getenv("TRIREME_TEST_COMPARISONS");
    int comparisons = wanted ? atoi(wanted) : harness_short() ? 3 * NUM_CASES : 20 * NUM_CASES;
    for (int i = 0; i < NUM_CASES; i++) {
        Trial trial = {.c = &cases[i], .rounds = (comparisons + NUM_CASES - 1) / NUM_CASES};
        EXPECT_OK(launch(trial.c, train_and_compare, &trial));
    }
}

// Sums by the MPI library (--no-deterministic-mode, between machines) come in an order of its own.
static void on_mpi(void) {
    Case c = {GRID(1, launcher_ranks(), 1), F32, false, "1f1b", 1, 0};
    Trial trial = {.c = &c, .rounds = harness_short() ? 5 : 20};
    CommOptions options = {.transport = "mpi-messages", .timeout_s = 120};
    EXPECT_OK(comm_launch(options, train_and_compare, &trial));
}

// Open MPI is not built for the thread sanitizer.
#if defined(__SANITIZE_THREAD__)
static const bool mpi_runs = false;
#else
static const bool mpi_runs = true;
#endif

static void under_mpirun(void) {
    static const char *const ranks[] = {"3", "4"};
    char self[512] = "";
    EXPECT(readlink("/proc/self/exe", self, sizeof self - 1) > 0, "no path of this program");
    for (size_t i = 0; mpi_runs && i < sizeof ranks / sizeof *ranks; i++) {
        pid_t child = fork();
        if (child == 0) {
            setenv("ASAN_OPTIONS", "detect_leaks=0", 1); // Open MPI's
            execl(TEST_FOLDER "/mpirun.sh", "mpirun.sh", ranks[i], self, NULL);
            _exit(127);
        }
        int status = 0;
        EXPECT(waitpid(child, &status, 0) == child && status == 0, "%s ranks end with status %d", ranks[i],
               status);
    }
}

// ---- a run that ends over it -----------------------------------------------------------------------------

// The linker puts this in the place of engine_train: rank 1's copy of the first weight is damaged after a step.
enum { DAMAGED_AFTER = 5 };
StepResult __real_engine_train(Engine *engine, Batch batch, StepOptions options);
StepResult __wrap_engine_train(Engine *engine, Batch batch, StepOptions options);
static bool damages;

StepResult __wrap_engine_train(Engine *engine, Batch batch, StepOptions options) {
    StepResult result = __real_engine_train(engine, batch, options);
    Flip f = {.rank = 1, .kind = WEIGHT, .bit = 20};
    if (damages && engine_optimizer_steps(engine) == DAMAGED_AFTER && rank_current()->rank == f.rank)
        EXPECT(plant(engine, &f), "nothing to damage");
    return result;
}

// The options are as on a command line; what the run prints is of no interest.
static Status train_with(const char *arguments) {
    char line[2048];
    Options options;
    snprintf(
        line, sizeof line,
        "%s--micro-batch-size 1 --train-iters 8 --hidden-size 32 --num-layers 2 --mock-data --vocab-size 64 "
        "--eval-iters 0 --ranks 2 --threads 1 --plain %s",
        strstr(GOOD_RUN, "--num-layers"), arguments);
    Status status = parse_line(&options, FOR_TRAIN, line);
    if (status == OK) status = options_resolve(&options, 2);
    EXPECT(status == OK, "%s: %s", line, fail_message());
    TrainJob job = {.options = &options, .threads = 1, .ranks_here = 2};
    CommOptions comm = {
        .transport = "threads", .ranks = 2, .timeout_s = 60, .cores = 1, .deterministic = true};
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

// Saves after steps 3 and 6, the second time with damage; the interval finds it sooner.
static void damaged_runs(void) {
    static const struct {
        const char *arguments, *words;
        int64_t saved;
    } rows[] = {
        {"--check-weight-hash-across-dp-replicas-interval 0 --save-interval 3",
         "after iteration 6 ranks 0, 1", 3},
        {"--check-weight-hash-across-dp-replicas-interval 5 --save-interval 3",
         "after iteration 5 ranks 0, 1", 3},
        {"--check-weight-hash-across-dp-replicas-interval 0 --save-interval 3 --async-save",
         "after iteration 6", 3},
        {"--check-weight-hash-across-dp-replicas-interval 0", "after iteration 8 ranks 0, 1", -1},
    };
    FILE *out = stdout;
    stdout = fopen("/dev/null", "w");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char arguments[1024], folder[512];
        snprintf(folder, sizeof folder, "%s/run%zu", harness_folder(), i);
        snprintf(arguments, sizeof arguments, "%s --save %s", rows[i].arguments, folder);
        damages = false;
        EXPECT(train_with(arguments) == OK, "%s: %s", arguments, fail_message());
        EXPECT(newest(folder) == 8, "%s: newest checkpoint %d", arguments, (int)newest(folder));
        snprintf(folder, sizeof folder, "%s/damaged%zu", harness_folder(), i);
        snprintf(arguments, sizeof arguments, "%s --save %s", rows[i].arguments, folder);
        damages = true;
        expect_failure(train_with(arguments), ERR_REPLICAS, rows[i].words, arguments);
        EXPECT(newest(folder) == rows[i].saved, "%s: newest checkpoint %d", arguments, (int)newest(folder));
    }
    damages = false;
    fclose(stdout);
    stdout = out;
}

int main(int argc, char **argv) {
    if (launcher_ranks() > 0) return harness_run((const Test[]){{"on mpi", on_mpi}, {0}}, argc, argv);
    return harness_run((const Test[]){{"planted flips", planted_flips},
                                      {"flips that spread", flips_that_spread},
                                      {"no false alarm", no_false_alarm},
                                      {"nothing to compare", nothing_to_compare},
                                      {"under mpirun", under_mpirun},
                                      {"damaged runs", damaged_runs},
                                      {0}},
                       argc, argv);
}
