// A model at work gives what the trainer's evaluation gives for the same weights and samples, on any grid.
#include "infer_fixture.h"
#include "runs.h"

enum { SEQUENCES = 3, MAX_TOKENS = 64 * SEQUENCES };

typedef struct {
    EngineSpec spec;
    float loss; // of the trainer
} Evaluated;

static Status evaluate(Comm *world, void *arg) {
    Evaluated *job = arg;
    Engine *engine;
    TRY(engine_open(&engine, &job->spec, world));
    Batch batch = run_batch(&job->spec, engine_context(engine), 0, job->spec.num_microbatches);
    float loss = engine_evaluate(engine, batch);
    if (comm_rank(world) == 0) job->loss = loss;
    run_batch_free(&batch);
    engine_close(engine);
    return OK;
}

// The mean over all labels: microbatches are of one size.
static Status score(Comm *world, void *arg) {
    const FixtureRun *run = arg;
    FixtureWeights weights = {&run->shape, true};
    int n = run->spec.longest;
    int32_t tokens[MAX_TOKENS], labels[MAX_TOKENS];
    float nll[MAX_TOKENS];
    double sum = 0;
    Infer *infer;
    CHECK(n * SEQUENCES <= MAX_TOKENS, "%d positions", n);
    TRY(infer_open_with(&infer, &run->shape, (WeightReader){fixture_read, &weights}, &run->spec, world));
    for (int i = 0; i < n * SEQUENCES; i++) {
        tokens[i] = run_token(i % SEQUENCES, i / SEQUENCES, run->shape.vocabulary);
        labels[i] = run_token(i % SEQUENCES, i / SEQUENCES + 1, run->shape.vocabulary);
    }
    infer_score(infer, tokens, labels, n, nll, NULL);
    for (int i = 0; i < n * SEQUENCES; i++) sum += (double)nll[i];
    if (comm_rank(world) == 0) *(float *)run->result = (float)(sum / (n * SEQUENCES));
    infer_close(infer);
    return OK;
}

static void compare(RunModel model, Grid trained, Grid grid, DType dtype) {
    Evaluated job = {.spec = run_spec(trained, "1f1b", 1, 4, SEQUENCES)};
    run_make_model(&job.spec, model);
    job.spec.mode.dtype = dtype;
    CommOptions options = {.transport = "threads", .ranks = grid_size(trained), .timeout_s = 60};
    EXPECT_OK(comm_launch(options, evaluate, &job));
    float loss = 0;
    FixtureRun run = {.shape = job.spec.shape, .result = &loss};
    run.spec = fixture_spec(grid_along(grid, AXIS_TP), grid_along(grid, AXIS_PP), dtype, false);
    run.spec.batch = SEQUENCES, run.spec.capacity = run.spec.longest = job.spec.shape.sequence;
    EXPECT_OK(fixture_launch(&run, score));
    double tolerance = dtype == F32 ? 1e-6 : 2e-3;
    EXPECT(job.loss > 3 && fabs((double)loss - (double)job.loss) < tolerance, "t %d, p %d: %.8g, not %.8g",
           grid_along(grid, AXIS_TP), grid_along(grid, AXIS_PP), (double)loss, (double)job.loss);
}

static void equals_evaluation(void) {
    static const Grid GRIDS[] = {GRID(1, 1, 1), GRID(2, 1, 2), GRID(1, 1, 3), GRID(4, 1, 1)};
    for (int i = 0; i < 8 * NUM_RUN_MODELS; i++)
        compare((RunModel)(i / 8), i & 1 ? (Grid)GRID(2, 1, 2) : (Grid)GRID(1, 1, 1), GRIDS[i % 4],
                i & 4 ? BF16 : F32);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"equals_evaluation", equals_evaluation}, {0}}, argc, argv);
}
