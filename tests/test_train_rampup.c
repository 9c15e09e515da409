// The growing batch against Megatron-LM's RampupBatchsizeNumMicroBatchesCalculator.
#include "harness.h"
#include "train/train.h"

typedef struct {
    int64_t iteration;
    int batch, num_microbatches;
    int64_t consumed; // before the iteration
} Level;

// Walks a run and expects each level to begin where the table says; returns how many levels there were.
static int expect_levels(BatchRampup rampup, int samples_per_microbatch, const Level *levels, int num_levels,
                         int64_t iterations) {
    int64_t consumed = 0;
    int batch = 0, seen = 0, next = 0;
    for (int64_t i = 0; i < iterations; i++) {
        int now = batch_rampup(&rampup, consumed);
        seen += now != batch;
        batch = now;
        if (next < num_levels && levels[next].iteration == i) {
            const Level *want = &levels[next++];
            EXPECT(batch == want->batch && batch / samples_per_microbatch == want->num_microbatches &&
                       consumed == want->consumed,
                   "iteration %lld: batch %d after %lld samples, not %d after %lld", (long long)i, batch,
                   (long long)consumed, want->batch, (long long)want->consumed);
        }
        consumed += batch;
    }
    EXPECT(next == num_levels, "%d of %d levels were reached", next, num_levels);
    return seen;
}

static void short_rampup(void) {
    static const Level levels[] = {{0, 16, 2, 0},      {62, 16, 2, 992},   {63, 32, 4, 1008},
                                   {93, 32, 4, 1968},  {94, 48, 6, 2000},  {114, 48, 6, 2960},
                                   {115, 64, 8, 3008}, {999, 64, 8, 59584}};
    BatchRampup rampup = {.start = 16, .increment = 16, .full = 64, .multiple = 8, .samples = 3000};
    EXPECT(expect_levels(rampup, 8, levels, 8, 1000) == 4, "levels");
}

// GPT-3's.
static void long_rampup(void) {
    static const Level levels[] = {{0, 16, 2, 0},
                                   {3855, 32, 4, 61680},
                                   {5783, 48, 6, 123376},
                                   {7068, 64, 8, 185056},
                                   {19721, 1504, 188, 5736960},
                                   {19762, 1520, 190, 5798624},
                                   {19802, 1536, 192, 5859424}};
    BatchRampup rampup = {.start = 16, .increment = 16, .full = 1536, .multiple = 8, .samples = 5859375};
    int seen = expect_levels(rampup, 8, levels, 7, 20000);
    EXPECT(seen == 96, "%d levels", seen);
}

static void no_rampup(void) {
    const BatchRampup none[] = {{.full = 64, .multiple = 8},
                                {.start = 64, .increment = 16, .full = 64, .multiple = 8, .samples = 1000},
                                {.start = 16, .increment = 16, .full = 64, .multiple = 8, .samples = 0}};
    for (int i = 0; i < 3; i++)
        for (int64_t consumed = 0; consumed < 2000; consumed += 64)
            EXPECT(batch_rampup(&none[i], consumed) == 64, "%d after %lld", batch_rampup(&none[i], consumed),
                   (long long)consumed);
}

// Never less than before, never beyond the full batch, always a multiple, also where levels are not.
static void laws(void) {
    BatchRampup rampup = {.start = 9, .increment = 5, .full = 64, .multiple = 3, .samples = 777};
    int before = 0;
    for (int64_t consumed = 0; consumed < 1000; consumed++) {
        int batch = batch_rampup(&rampup, consumed);
        EXPECT(batch >= before && batch <= 64 && batch % 3 == 0, "%d after %lld", batch, (long long)consumed);
        before = batch;
    }
    EXPECT(before == 63, "%d", before);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"short_rampup", short_rampup},
                                      {"long_rampup", long_rampup},
                                      {"no_rampup", no_rampup},
                                      {"laws", laws},
                                      {0}},
                       argc, argv);
}
