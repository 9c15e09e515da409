// What the arenas hold is what was predicted and what is published: stashes term by term, bytes per
// parameter, bytes per message.
#include "harness.h"
#include "runs.h"
#include <math.h>
#include <string.h>

// Sizes whose tensors all fill whole blocks of an arena, so that sums are exact.
static EngineSpec even_spec_of(RunModel model, Grid grid, const char *schedule, int chunks) {
    EngineSpec spec = run_spec(grid, schedule, chunks, 8, 8 * grid_along(grid, AXIS_DP));
    run_make_model(&spec, model);
    spec.shape.hidden = 128, spec.shape.heads = 8, spec.shape.head_size = 16, spec.shape.ffn = 512;
    spec.shape.sequence = spec.shape.positions = 64, spec.mode.microbatch = 2;
    spec.mode.dtype = BF16;
    return spec;
}

static EngineSpec even_spec(Grid grid, const char *schedule, int chunks) {
    return even_spec_of(RUN_GPT, grid, schedule, chunks);
}

static EngineMemory measured(const EngineSpec *spec, int rank) {
    EngineMemory memory = {0};
    Status status = engine_measure(spec, rank, &memory, NULL);
    EXPECT(status == OK, "%s", fail_message());
    return memory;
}

static double sum_terms(const EngineSpec *spec, bool published) {
    StashTerm terms[MAX_STASH_TERMS];
    int tp = grid_along(spec->grid, AXIS_TP);
    int count = model_stash_terms(&spec->shape, &spec->mode, tp, terms);
    StashSum all = model_stash_sum(&spec->shape, &spec->mode, tp);
    double sum = 0, whole = published ? all.published : all.kept;
    for (int i = 0; i < count; i++) sum += published ? terms[i].published : terms[i].kept;
    EXPECT(sum == whole, "the terms give %.0f bytes, model_stash_sum %.0f", sum, whole);
    return sum;
}

static double sbh(const EngineSpec *s) {
    return (double)s->shape.sequence * s->mode.microbatch * s->shape.hidden;
}

// The stage input is the first layer's, in the pool of messages; all else is in the stash.
static void stash_is_the_sum_of_its_terms(void) {
    for (int way = 0; way < 32 * NUM_RUN_MODELS; way++) {
        int tp = way & 1 ? 2 : 1;
        EngineSpec spec = even_spec_of((RunModel)(way / 32), (Grid)GRID(tp, 1, 2), "1f1b", 1);
        spec.mode.sequence_parallel = way & 2 && tp > 1;
        spec.mode.recompute = way & 4 ? RECOMPUTE_SELECTIVE : RECOMPUTE_NOTHING;
        spec.mode.keep_probabilities = way & 8;
        spec.mode.dtype = way & 16 ? F32 : BF16;
        double rows = spec.mode.sequence_parallel ? tp : 1, layers = 4;
        double input = sbh(&spec) / rows * (double)dtype_bytes(spec.mode.dtype);
        double stash = (double)measured(&spec, 0).stash + input, terms = layers * sum_terms(&spec, false);
        EXPECT(stash == terms, "way %d: a stash of %.0f bytes, the terms give %.0f", way, stash, terms);
    }
}

static void published_terms_give_the_published_formulas(void) {
    for (int t = 1; t <= 4; t *= 2) {
        EngineSpec spec = even_spec((Grid)GRID(t, 1, 1), "1f1b", 1);
        double core = 5.0 * spec.shape.heads * spec.shape.sequence / spec.shape.hidden;
        struct {
            bool sequence_parallel, selective;
            double published; // bytes over sbh; Korthikanti 2022, table 2
        } rows[] = {{false, false, 10 + 24.0 / t + core / t},
                    {true, false, 34.0 / t + core / t},
                    {false, true, 10 + 24.0 / t},
                    {true, true, 34.0 / t}};
        for (int i = 0; i < 4; i++) {
            spec.mode.sequence_parallel = rows[i].sequence_parallel;
            spec.mode.recompute = rows[i].selective ? RECOMPUTE_SELECTIVE : RECOMPUTE_NOTHING;
            double sum = sum_terms(&spec, true) / sbh(&spec);
            EXPECT(fabs(sum - rows[i].published) < 1e-12, "t%d row %d: %.6f, not %.6f", t, i, sum,
                   rows[i].published);
        }
    }
}

// What selective recomputation saves is what the core kept: of the published 5as^2b the softmax output is
// stored (2), its dropout mask (1) and product (2) never are; the statistics go too.
static void selective_recomputation_saves_the_core(void) {
    EngineSpec spec = even_spec((Grid)GRID(2, 1, 2), "1f1b", 1);
    spec.mode.keep_probabilities = true;
    double all = (double)measured(&spec, 0).stash;
    spec.mode.recompute = RECOMPUTE_SELECTIVE;
    double selective = (double)measured(&spec, 0).stash;
    double heads = spec.shape.heads / 2.0, s = spec.shape.sequence, b = spec.mode.microbatch;
    double saved = 4 * (2 * heads * s * s * b + 4 * heads * s * b);
    EXPECT(all - selective == saved, "it saves %.0f bytes, not %.0f", all - selective, saved);
}

// 2sbh per layer (Korthikanti 2022), all inputs but the stage's own in the stash; or shares of them.
static void full_recomputation_keeps_inputs_alone(void) {
    EngineSpec spec = even_spec((Grid)GRID(2, 1, 2), "1f1b", 1);
    spec.mode.recompute = RECOMPUTE_UNIFORM, spec.mode.recompute_layers = 1;
    double whole = (double)measured(&spec, 0).stash;
    EXPECT(whole == 3 * 2 * sbh(&spec), "%.0f bytes, not %.0f", whole, 3 * 2 * sbh(&spec));
    spec.mode.distribute_saved = true;
    double shares = (double)measured(&spec, 0).stash;
    EXPECT(shares == whole / 2, "shares of %.0f bytes, not %.0f", shares, whole / 2);
    spec.mode.distribute_saved = false;
    spec.mode.recompute_layers = 2;
    double groups = (double)measured(&spec, 0).stash;
    EXPECT(groups == 2 * sbh(&spec), "groups of two keep %.0f bytes, not %.0f", groups, 2 * sbh(&spec));
    spec.mode.recompute = RECOMPUTE_BLOCK, spec.mode.recompute_layers = 1;
    double block = (double)measured(&spec, 0).stash, layer = sum_terms(&spec, false);
    EXPECT(block == 3 * layer, "one layer of four recomputed keeps %.0f bytes, not %.0f", block, 3 * layer);
}

// Stashes in flight by schedule: the split backward keeps no more than the whole one.
static void a_split_backward_takes_no_larger_stash(void) {
    EngineSpec spec = even_spec((Grid)GRID(1, 1, 4), "1f1b", 1);
    EngineMemory whole = measured(&spec, 0);
    spec.schedule = "zb-h1";
    EngineMemory split = measured(&spec, 0);
    EXPECT(split.stash == whole.stash && split.num_stashes == whole.num_stashes,
           "%d stashes of %zu bytes, not %d of %zu", split.num_stashes, split.stash, whole.num_stashes,
           whole.stash);
}

// Weights, gradients and optimizer, per parameter: 16 bytes in bf16, 6 + 10/d when sharded;
// fp32 16 and 8 + 8/d.
static void bytes_per_parameter(void) {
    for (int way = 0; way < 8; way++) {
        int d = way & 1 ? 4 : 2;
        bool sharded = way & 2;
        EngineSpec spec = even_spec((Grid)GRID(1, d, 1), "1f1b", 1), larger;
        spec.sharding = sharded;
        spec.mode.dtype = way & 4 ? F32 : BF16;
        larger = spec;
        larger.shape.layers = larger.split.layers = 16;
        double parameters = (double)(model_parameters(&larger.shape) - model_parameters(&spec.shape));
        double bytes = (double)(measured(&larger, 0).run - measured(&spec, 0).run) / parameters;
        double expected = way & 4 ? sharded ? 8 + 8.0 / d : 16 : sharded ? 6 + 10.0 / d : 16;
        EXPECT(fabs(bytes - expected) < 0.01 * expected, "way %d: %.3f bytes per parameter, not %.3f", way,
               bytes, expected);
    }
}

// ---- all ranks, all threads ------------------------------------------------------------------------------

// Sizes that no rank count divides: what is padded is padded alike.
static EngineSpec odd_spec(int way) {
    static const char *const schedules[] = {"1f1b", "zb-h1", "interleaved"};
    EngineSpec spec = run_spec((Grid)GRID(2, 3, 2), schedules[way % 3], way % 3 == 2 ? 2 : 1, 8, 12);
    spec.shape.hidden = 36, spec.shape.head_size = 9, spec.shape.ffn = 94;
    spec.shape.sequence = spec.shape.positions = 18, spec.mode.microbatch = 3;
    spec.mode.dtype = way & 1 ? BF16 : F32;
    spec.mode.sequence_parallel = way & 2;
    spec.sharding = way & 4;
    spec.scatter_gather = !spec.mode.sequence_parallel;
    spec.overlap_gradients = spec.overlap_weights = spec.sharding;
    spec.bucket_elements = 1237;
    return spec;
}

static void expect_same(const EngineMemory *a, const EngineMemory *b, int way, Place place) {
    EXPECT(a->run == b->run && a->stash == b->stash && a->num_stashes == b->num_stashes &&
               a->recomputed == b->recomputed && a->num_recomputed == b->num_recomputed &&
               a->scratch == b->scratch && a->workspace == b->workspace && a->total == b->total,
           "way %d, tp%d dp%d pp%d: run %zu, stash %zu, scratch %zu, workspace %zu, not %zu, %zu, %zu, %zu",
           way, place.at[AXIS_TP], place.at[AXIS_DP], place.at[AXIS_PP], a->run, a->stash, a->scratch,
           a->workspace, b->run, b->stash, b->scratch, b->workspace);
}

static void ranks_of_a_stage_are_alike(void) {
    for (int way = 0; way < 12; way++) {
        EngineSpec spec = odd_spec(way);
        for (int rank = 0; rank < grid_size(spec.grid); rank++) {
            Place place = grid_place(spec.grid, rank);
            EngineMemory one = measured(&spec, rank);
            EngineMemory first =
                measured(&spec, grid_rank(spec.grid, (Place){.at[AXIS_PP] = place.at[AXIS_PP]}));
            expect_same(&one, &first, way, place);
        }
    }
}

// The addresses of a measurement are counted in each arena alone, so tensors of two arenas can seem to be one. A split
// backward under sequence parallelism has such a pair, where a GPU joins a product with sums.
static void tensors_of_two_arenas_stay_apart(void) {
    EngineSpec spec = run_spec((Grid)GRID(2, 1, 2), "zb-v", 2, 4, 8);
    spec.mode.sequence_parallel = true;
    spec.device = "cuda-sim";
    measured(&spec, 0);
}

static void compare_with_taken(Engine *engine, void *self) {
    const EngineSpec *spec = self;
    const Topology *topology = &engine_context(engine)->groups.topology;
    EngineMemory said = measured(spec, topology->rank), used = engine_memory_used(engine);
    expect_same(&used, &said, spec->threads, topology->place);
}

// Not in the short form: the thread sanitizer sees races in OpenMP's way of handing work over,
// which it cannot read.
static void a_run_of_two_threads_takes_what_was_said(void) {
    for (int way = 0; way < 8 && !harness_short(); way += 5) {
        EngineSpec spec = odd_spec(way);
        spec.grid = (Grid)GRID(1, 1, 2), spec.num_microbatches = 4, spec.threads = 2;
        spec.mode.sequence_parallel = false;
        RunResult result;
        RunPlan plan = {.spec = spec,
                        .steps = 2,
                        .lr = 1e-3,
                        .transport = "threads",
                        .finished = compare_with_taken,
                        .self = &spec};
        EXPECT(run_plan(&plan, &result) == OK, "%s", fail_message());
    }
}

// ---- messages --------------------------------------------------------------------------------------------

static void count_messages(Engine *engine, void *self) {
    const Context *c = engine_context(engine);
    if (context_rank(c, ROLE_PIPELINE) == 0 && context_rank(c, ROLE_TENSOR) == 0)
        *(double *)self = comm_counts(context_group(c, ROLE_PIPELINE))[COMM_SEND].bytes +
                          comm_counts(context_group(c, ROLE_PIPELINE))[COMM_RECV].bytes;
}

static double bytes_on_edge(int tp, bool scatter, RunResult *result) {
    double bytes = 0;
    RunPlan plan = {.spec = even_spec((Grid)GRID(tp, 1, 2), "1f1b", 1),
                    .steps = 1,
                    .lr = 1e-3,
                    .transport = "threads",
                    .finished = count_messages,
                    .self = &bytes};
    plan.spec.scatter_gather = scatter;
    EXPECT(run_plan(&plan, result) == OK, "%s", fail_message());
    return bytes;
}

static void scatter_gather_sends_a_share(void) {
    for (int t = 2; t <= (harness_short() ? 2 : 4); t *= 2) {
        RunResult whole, scattered;
        double all = bytes_on_edge(t, false, &whole), share = bytes_on_edge(t, true, &scattered);
        EXPECT(all > 0 && all == t * share, "t%d: %.0f bytes instead of %.0f", t, share, all);
        EXPECT(!memcmp(whole.loss, scattered.loss, sizeof(float)) && whole.norm[0] == scattered.norm[0],
               "t%d: the loss is another", t);
    }
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){
            {"stash_is_the_sum_of_its_terms", stash_is_the_sum_of_its_terms},
            {"published_terms_give_the_published_formulas", published_terms_give_the_published_formulas},
            {"selective_recomputation_saves_the_core", selective_recomputation_saves_the_core},
            {"full_recomputation_keeps_inputs_alone", full_recomputation_keeps_inputs_alone},
            {"a_split_backward_takes_no_larger_stash", a_split_backward_takes_no_larger_stash},
            {"bytes_per_parameter", bytes_per_parameter},
            {"ranks_of_a_stage_are_alike", ranks_of_a_stage_are_alike},
            {"tensors_of_two_arenas_stay_apart", tensors_of_two_arenas_stay_apart},
            {"a_run_of_two_threads_takes_what_was_said", a_run_of_two_threads_takes_what_was_said},
            {"scatter_gather_sends_a_share", scatter_gather_sends_a_share},
            {0}},
        argc, argv);
}
