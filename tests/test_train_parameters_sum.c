// The checksum of the parameters: the same on every grid with the same bits, and another after any flipped bit.
#include "harness.h"
#include "runs.h"
#include "train/internal.h"
#include <string.h>

typedef struct {
    uint64_t first, last, flipped; // before and after the steps, and after a flip
    // A bit that rank `rank` flips after the steps, of its part number `part`.
    int rank, part;
    uint32_t element, bit;
} Sums;

// ---- a flip -------------------------------------------------------------------------------------

typedef struct {
    Engine *engine;
    const Sums *sums;
    int seen;
} Flipping;

static Status flip_part(void *self, const OwnedPart *part) {
    Flipping *f = self;
    if (part->param->spec.tied_to || !part->param->place.first || f->seen++ != f->sums->part) return OK;
    Context *c = engine_context(f->engine);
    device_sync(c->device, c->stream);
    PlacementRects rects = placement_rects(&part->param->place, part->begin, part->count);
    PlacementRect rect; // without padding, which is no part of the model
    CHECK(placement_next_rect(&rects, &rect), "a part of nothing but padding");
    int64_t element = f->sums->element % (rect.rows * rect.cols);
    int64_t place = rect.local - part->begin + element / rect.cols * rect.stride + element % rect.cols;
    size_t size = dtype_bytes(part->main.dtype);
    char *at = (char *)device_address(c->device, part->main) + place * (int64_t)size;
    at[f->sums->bit / 8 % size] = (char)(at[f->sums->bit / 8 % size] ^ (1 << f->sums->bit % 8));
    return OK;
}

// ---- grids --------------------------------------------------------------------------------------

typedef struct {
    Grid grid;
    const char *schedule;
    int chunks, batch;
    bool sharded, sequence_parallel;
} Case;

typedef struct {
    EngineSpec spec;
    int steps;
    Sums sums; // rank 0's
} Job;

static Status rank_main(Comm *world, void *arg) {
    Job *job = arg;
    Sums sums = job->sums;
    Engine *engine;
    int samples = job->spec.num_microbatches * grid_along(job->spec.grid, AXIS_DP);
    TRY(engine_open(&engine, &job->spec, world));
    sums.first = parameters_sum(engine, world);
    for (int i = 0; i < job->steps; i++) {
        Batch batch = run_batch(&job->spec, engine_context(engine), i * samples, job->spec.num_microbatches);
        StepResult result = engine_train(engine, batch, (StepOptions){1e-3, 0.1, 1});
        EXPECT(result.finite, "loss %g", (double)result.loss);
        run_batch_free(&batch);
    }
    sums.last = parameters_sum(engine, world);
    if (comm_rank(world) == sums.rank)
        optimizer_visit(engine_optimizer(engine), flip_part, &(Flipping){engine, &sums, 0});
    sums.flipped = parameters_sum(engine, world);
    if (comm_rank(world) == 0) job->sums = sums;
    engine_close(engine);
    return OK;
}

static Sums sums_of(const Case *c, DType dtype, int steps, Sums sums) {
    Job job = {run_spec(c->grid, c->schedule, c->chunks, 4, c->batch), steps, sums};
    job.spec.mode.dtype = dtype;
    job.spec.mode.sequence_parallel = c->sequence_parallel;
    job.spec.sharding = job.spec.overlap_gradients = job.spec.overlap_weights = c->sharded;
    CommOptions options = {.transport = "threads",
                           .ranks = grid_size(c->grid),
                           .timeout_s = 120,
                           .cores = 1,
                           .deterministic = true};
    EXPECT_OK(comm_launch(options, rank_main, &job));
    return job.sums;
}

static bool same_bits(const Case *a, const Case *b) {
    return grid_along(a->grid, AXIS_TP) == grid_along(b->grid, AXIS_TP) &&
           grid_along(a->grid, AXIS_DP) == grid_along(b->grid, AXIS_DP) &&
           a->sequence_parallel == b->sequence_parallel;
}

// Initial weights have the same bits on every grid, trained ones as long as t and d stay.
static void every_grid_has_the_same_sum(void) {
    static const Case cases[] = {
        {GRID(1, 1, 1), "1f1b", 1, 8, false, false},        {GRID(1, 1, 2), "1f1b", 1, 8, false, false},
        {GRID(1, 1, 2), "interleaved", 2, 8, false, false}, {GRID(1, 1, 4), "zb-h1", 1, 8, false, false},
        {GRID(1, 2, 1), "1f1b", 1, 8, false, false},        {GRID(1, 2, 1), "1f1b", 1, 8, true, false},
        {GRID(1, 2, 2), "interleaved", 2, 8, true, false},  {GRID(2, 1, 1), "1f1b", 1, 8, false, false},
        {GRID(2, 1, 2), "1f1b", 1, 8, false, true},         {GRID(2, 2, 1), "1f1b", 1, 8, true, true},
    };
    static const DType dtypes[] = {F32, BF16, F16};
    enum { NUM_CASES = sizeof cases / sizeof *cases };
    for (int t = 0; t < (harness_short() ? 1 : 3); t++) {
        Sums of[NUM_CASES];
        for (int i = 0; i < NUM_CASES; i++) {
            const Case *c = &cases[i];
            of[i] = sums_of(c, dtypes[t], 2, (Sums){.rank = -1});
            EXPECT(of[i].first == of[0].first && of[i].first, "%s of case %d: %016llx instead of %016llx",
                   dtype_name(dtypes[t]), i, (unsigned long long)of[i].first,
                   (unsigned long long)of[0].first);
            EXPECT(of[i].last != of[i].first, "case %d: two steps change nothing", i);
            EXPECT(of[i].last == of[i].flipped, "case %d: nothing was flipped", i);
            int same = i - 1;
            while (same >= 0 && !same_bits(&cases[same], c)) same--;
            if (same >= 0)
                EXPECT(of[i].last == of[same].last,
                       "%s of cases %d and %d after two steps: %016llx and %016llx", dtype_name(dtypes[t]), i,
                       same, (unsigned long long)of[i].last, (unsigned long long)of[same].last);
        }
    }
}

static void a_flipped_bit_changes_it(void) {
    static const Case cases[] = {{GRID(1, 1, 1), "1f1b", 1, 4, false, false},
                                 {GRID(2, 1, 2), "1f1b", 1, 4, false, false},
                                 {GRID(1, 2, 1), "1f1b", 1, 4, true, false}};
    RngKey key = rng_key(7, "flips", 0);
    for (uint64_t i = 0; i < (harness_short() ? 6 : 60); i++) {
        const Case *c = &cases[i % 3];
        Sums sums = {.rank = (int)(rng_word(key, i, 0) % (uint32_t)grid_size(c->grid)),
                     .part = (int)(rng_word(key, i, 1) % 3),
                     .element = rng_word(key, i, 2),
                     .bit = rng_word(key, i, 3) % 32};
        sums = sums_of(c, i % 2 ? F32 : BF16, 1, sums);
        EXPECT(sums.flipped != sums.last, "flip %d of bit %u of rank %d, part %d", (int)i, sums.bit,
               sums.rank, sums.part);
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"every_grid_has_the_same_sum", every_grid_has_the_same_sum},
                                      {"a_flipped_bit_changes_it", a_flipped_bit_changes_it},
                                      {0}},
                       argc, argv);
}
