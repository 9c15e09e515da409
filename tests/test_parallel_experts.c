// Parameters of experts in buckets and the optimizer: however experts and tensors are cut over ranks, their gradients,
// steps and moments are those of as many replicas without such a cut, the norm counts each of them once, and neither
// buckets, shards nor pipelines change a bit.
#include "parallel_trial.h"

enum { EXPERTS = 4 };

// A grid, and the one of as many replicas whose ranks hold all experts.
static const struct {
    int t, d, etp, ep;
    Grid plain;
} grids[] = {{1, 4, 1, 2, GRID(1, 2, 1)}, {1, 4, 1, 4, GRID(1, 1, 1)}, {2, 2, 1, 2, GRID(1, 2, 1)},
             {2, 2, 2, 2, GRID(2, 1, 1)}, {2, 4, 1, 4, GRID(1, 2, 1)}, {1, 4, 2, 2, GRID(2, 1, 1)}};
enum { NUM_GRIDS = sizeof grids / sizeof *grids };

static const OptimizerOptions plain_adamw = {.adam = {0.9, 0.95, 1e-8, 0}},
                              muon = {.adam = {0.9, 0.95, 1e-8, 0},
                                      .muon = {.iterations = 3,
                                               .momentum = 0.9,
                                               .nesterov = true,
                                               .coefficients = "simple",
                                               .scale = MUON_SPECTRAL,
                                               .extra_scale = 1}};

// The short form leaves out grids.
static bool is_left_out(int grid) { return harness_short() && grid % 3; }

static Grid grid_of(int i) {
    Grid grid = GRID(grids[i].t, grids[i].d, 1);
    grid.size[AXIS_ETP] = grids[i].etp, grid.size[AXIS_EP] = grids[i].ep;
    return grid;
}

// Of the experts alone: the other parameters have other replicas.
static void expect_same_experts(const Whole *a, const Whole *b, const char *what, const Setup *setup) {
    Params params = {0};
    int64_t bad = 0, experts = 0;
    declare_model(&params, 1);
    for (int i = 0; i < params.count; i++) {
        const ParamSpec *spec = &params.items[i]->spec;
        for (int64_t k = 0; spec->experts && k < spec->rows * spec->cols; k++, experts++)
            bad += isnan(a->of[i][k]) || !same_bits(a->of[i][k], b->of[i][k]);
    }
    params_free(&params);
    EXPECT(!bad && experts, "%s: %lld of %lld elements differ: %s", what, (long long)bad, (long long)experts,
           setup_name(setup));
}

static void steps_are_those_of_whole_experts(void) {
    for (int i = 0; i < 2 * NUM_GRIDS; i++) {
        if (is_left_out(i / 2)) continue;
        const OptimizerOptions *options = i % 2 ? &muon : &plain_adamw;
        Setup setup = {.grid = grids[i / 2].plain, .bucket_elements = 1000000, .optimizer = options};
        Trial *want = trial_run(setup);
        setup.grid = grid_of(i / 2);
        for (int cut = 0; cut < 3; cut++) {
            setup.sharded = cut > 0, setup.overlap = cut > 1, setup.bucket_elements = cut ? 300 : 1000000;
            setup.grid.size[AXIS_PP] = 1 + cut / 2;
            Trial *got = trial_run(setup);
            expect_same_experts(&got->values, &want->values, "values", &setup);
            expect_same_experts(&got->main, &want->main, "parameters", &setup);
            expect_same_experts(&got->m, &want->m, "first moments", &setup);
            expect_same_experts(&got->v, &want->v, "second moments", &setup);
            free(got);
        }
        free(want);
    }
}

static void no_cut_changes_a_bit(void) {
    for (int i = 0; i < NUM_GRIDS; i++)
        if (!is_left_out(i))
            compare_cuts(
                (Setup){.grid = grid_of(i), .dtype = i % 2 ? F32 : BF16, .optimizer = i % 3 ? NULL : &muon});
}

// ---- the norm -------------------------------------------------------------------------------------------

typedef struct {
    Setup setup;
    Whole grads;
    double norm;
} Job;

static Status norm_on_rank(Comm *world, void *arg) {
    Job *job = arg;
    Share s;
    share_open(&s, &job->setup, world);
    run_backward(&s, 0);
    grad_reducer_finish(&s.reducer);
    collect_owned(&job->grads, &s, GRADS);
    double norm = optimizer_grad_norm(&s.optimizer, 1);
    if (comm_rank(world) == 0) job->norm = norm;
    share_close(&s);
    return OK;
}

static void norm_counts_each_expert_once(void) {
    for (int i = 0; i < 2 * NUM_GRIDS; i++) {
        if (is_left_out(i / 2)) continue;
        Job *job = calloc(1, sizeof *job);
        CHECK(job, "no memory");
        job->setup = (Setup){.grid = grid_of(i / 2), .bucket_elements = 500, .sharded = i % 2};
        whole_open(&job->grads);
        EXPECT_OK(setup_launch(&job->setup, norm_on_rank, job));
        double sum = 0;
        for (int p = 0; p + 1 < fixture_params(); p++)
            for (int64_t k = 0; k < FIXTURE_LARGEST; k++) {
                double g = (double)job->grads.of[p][k];
                sum += isnan(g) ? 0 : g * g;
            }
        EXPECT(fabs(job->norm / sqrt(sum) - 1) < 1e-12, "norm %.17g, not %.17g: %s", job->norm, sqrt(sum),
               setup_name(&job->setup));
        free(job);
    }
}

int main(int argc, char **argv) {
    fixture_experts = EXPERTS;
    return harness_run((const Test[]){{"steps_are_those_of_whole_experts", steps_are_those_of_whole_experts},
                                      {"no_cut_changes_a_bit", no_cut_changes_a_bit},
                                      {"norm_counts_each_expert_once", norm_counts_each_expert_once},
                                      {0}},
                       argc, argv);
}
