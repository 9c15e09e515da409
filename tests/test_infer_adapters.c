// Adapters at inference: chosen one after the other on one base, each computes what the model does with which it is
// merged, and none what the base does, on any grid, with a cache or without.
#include "adapter_fixture.h"
#include "infer/infer.h"

enum { NUM_ADAPTERS = 3, BATCH = 2, TOKENS = 7, VOCABULARY = 67, LOGITS = BATCH * VOCABULARY };
// Other ranks, scales and modules.
static const AdapterKind kinds[NUM_ADAPTERS] = {{.rank = 3, .alpha = 0.6, .seed = 1},
                                                {.rank = 5, .alpha = 0.5, .rslora = true, .seed = 2},
                                                {.rank = 2, .alpha = 0.4, .seed = 3, .only = "mlp."}};

typedef struct {
    Path base, adapters[NUM_ADAPTERS];
    Grid grid;
    const char *device;
    DType dtype;
    bool cache;
    int chosen;       // of a merged one; -1: the base
    float *logits;    // of rank 0
    const int *order; // of those chosen one after the other
    int num_orders;
} Job;

static InferSpec spec_of(const Job *job) {
    return (InferSpec){.grid = job->grid,
                       .device = job->device,
                       .threads = 1,
                       .dtype = job->dtype,
                       .batch = BATCH,
                       .capacity = TOKENS,
                       .longest = 4,
                       .cache = job->cache};
}

// The logits after a text that is given in two pieces, which a cache joins.
static void say(const Job *job, Infer *infer, float *logits, const Comm *world) {
    int32_t tokens[TOKENS * BATCH];
    float found[LOGITS];
    for (int i = 0; i < TOKENS * BATCH; i++) tokens[i] = (7 * i + i * i) % VOCABULARY;
    infer_rewind(infer, 0);
    infer_next(infer, tokens, 4, found);
    for (int i = 4; i < TOKENS; i++) infer_next(infer, tokens + i * BATCH, 1, found);
    if (comm_rank(world) == 0) memcpy(logits, found, sizeof found);
    (void)job;
}

static Status merged_one(Comm *world, void *arg) {
    const Job *job = arg;
    InferSpec spec = spec_of(job);
    ModelSource *source;
    Infer *infer = NULL;
    TRY(model_source_open(&source, job->base.text, -1));
    Status status =
        job->chosen < 0 ? OK : model_source_adapt(&source, job->adapters[job->chosen].text, false);
    if (status == OK) status = model_source_merge(source);
    if (status == OK) status = infer_open(&infer, source, &spec, world);
    model_source_close(source);
    if (status == OK) say(job, infer, job->logits, world);
    infer_close(infer);
    return status;
}

static Status one_after_the_other(Comm *world, void *arg) {
    const Job *job = arg;
    InferSpec spec = spec_of(job);
    ModelSource *source;
    Infer *infer = NULL;
    TRY(model_source_open(&source, job->base.text, -1));
    Status status = OK;
    for (int i = 0; i < NUM_ADAPTERS && status == OK; i++)
        status = model_source_adapt(&source, job->adapters[i].text, false);
    if (status == OK) model_source_serve(source);
    if (status == OK) status = infer_open(&infer, source, &spec, world);
    for (int i = 0; i < job->num_orders && status == OK; i++) {
        if (i) status = infer_choose(infer, source, job->order[i], world);
        if (status == OK) say(job, infer, job->logits + i * LOGITS, world);
    }
    infer_close(infer);
    model_source_close(source);
    return status;
}

static void launch(Job *job, RankMain *rank_main) {
    CommOptions options = {.transport = "threads",
                           .ranks = grid_size(job->grid),
                           .timeout_s = 60,
                           .check = true,
                           .deterministic = true};
    EXPECT_OK(comm_launch(options, rank_main, job));
}

static void expect_near(const float *found, const float *wanted, double tolerance, int adapter, Grid grid) {
    double size = 0, error = 0;
    for (int i = 0; i < LOGITS; i++) {
        size = fmax(size, fabs((double)wanted[i]));
        double difference = fabs((double)found[i] - (double)wanted[i]);
        error = difference <= error ? error : difference; // a NaN wins
    }
    EXPECT(error <= tolerance * size, "adapter %d on t %d, p %d: logits of %.2g differ by %.2g", adapter,
           grid_along(grid, AXIS_TP), grid_along(grid, AXIS_PP), size, error);
}

static Job job_of(const char *name, ModelShape shape) {
    Job job = {.base = path_of(name), .grid = GRID(1, 1, 1), .device = harness_device("cpu"), .cache = true};
    make_checkpoint(job.base.text, &shape, 1, 5);
    for (int i = 0; i < NUM_ADAPTERS; i++) {
        char folder[64];
        snprintf(folder, sizeof folder, "%s-adapter%d", name, i);
        job.adapters[i] = path_of(folder);
        adapter_write(&kinds[i], &shape, job.adapters[i].text, job.base.text);
    }
    return job;
}

static void chosen_on_grids(Job job) {
    static const int order[] = {0, 1, -1, 2, 2, 0, -1, 1};
    enum { ORDERS = sizeof order / sizeof *order };
    static float wanted[NUM_ADAPTERS + 1][LOGITS], found[ORDERS][LOGITS], base[LOGITS];
    static const Grid grids[] = {GRID(1, 1, 1), GRID(2, 1, 1), GRID(1, 1, 2), GRID(2, 1, 2)};
    for (job.chosen = -1; job.chosen < NUM_ADAPTERS; job.chosen++) {
        job.logits = wanted[job.chosen + 1];
        launch(&job, merged_one);
    }
    EXPECT(memcmp(wanted[0], wanted[1], sizeof wanted[0]) != 0, "the adapter changes nothing");
    for (size_t g = 0; g < sizeof grids / sizeof *grids; g++) {
        job.grid = grids[g], job.chosen = -1, job.logits = base;
        job.cache = g % 2 == 0;
        launch(&job, merged_one);
        job.logits = found[0], job.order = order, job.num_orders = ORDERS;
        launch(&job, one_after_the_other);
        for (int i = 0; i < ORDERS; i++) {
            expect_near(found[i], wanted[order[i] + 1], job.dtype == F32 ? 2e-5 : 0.1, order[i], job.grid);
            EXPECT(order[i] >= 0 || !memcmp(found[i], base, sizeof base), "the base has other bits");
        }
    }
}

static void separate(void) { chosen_on_grids(job_of("llama", llama())); }
static void fused(void) { chosen_on_grids(job_of("gpt2", gpt2())); }
static void a_checking_device(void) {
    Job job = job_of("checked", llama());
    job.device = "check";
    chosen_on_grids(job);
}
static void narrow(void) {
    Job job = job_of("narrow", llama());
    job.dtype = BF16;
    chosen_on_grids(job);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"separate", separate},
                                      {"fused", fused},
                                      {"a_checking_device", a_checking_device},
                                      {"narrow", narrow},
                                      {0}},
                       argc, argv);
}
