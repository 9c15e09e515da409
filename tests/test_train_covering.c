// Everything composes: a covering set of runs. Each combines a grid, a schedule and the layers of its stages,
// precision, recomputation, sequence parallelism, the distributed optimizer, Muon, overlaps, messages, a tree of
// leaves, a model, its batches and evaluations; together they hold every pair of such choices that is possible at all.
// Each must give the bits of the plain run: one pipeline rank, nothing recomputed, sharded or overlapped, an evaluation
// after every step, on the cpu or the simulated GPU; and one data-parallel rank, where gradients are added in a tree of
// leaves. What changes rounding (t, c, d without a tree, sequence parallelism) is compared in tolerances.
// The set is the smallest that the greedy search finds; the long form (TRIREME_TEST_LONG) has at least 210 combinations.
// The short form runs a few combinations that hold every choice.
// The program is also a worker: `test_train_covering worker TRANSPORT RANKS CHECKED SHARE` prints the bits of those
// runs that a script compares between threads and processes: with that many ranks, checked or not, of share 0 or 1.
#include "harness.h"
#include "runs.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LAYERS = 8,
    GLOBAL_BATCH = 16,
    LEAVES = 4,
    STEPS = 2,
    LONG_CASES = 210,
    MAX_CASES = 400,
    NAME_BYTES = 320
};

// ---- the choices ---------------------------------------------------------------------------------------

typedef enum {
    TENSOR,
    DATA,
    PIPELINE,
    SCHEDULE,
    RECOMPUTATION,
    SEQUENCE_PARALLEL,
    SHARDED,
    OVERLAP,
    MESSAGES,
    PRECISION,
    MODEL,
    DROPOUT,
    PROBABILITIES,
    MICROBATCH_SIZE,
    MASKED,
    LAYERS_OF_STAGES,
    EVALUATIONS,
    CHECKED,
    TREE,
    VISIBLE,
    PER_TOKEN,
    OPTIMIZER,
    CONTEXT,
    CONTEXT_WAYS,
    EXPERT_RANKS,
    STATE_ON_HOST,
    NUM_FACTORS
} Factor;

enum { MAX_LEVELS = 16 };

// The first three without few bits; then a row for each recipe of scales.
enum { FIRST_RECIPE = 3, NUM_PRECISIONS = FIRST_RECIPE + NUM_RECIPES };

static int num_levels(Factor factor) {
    static const int levels[NUM_FACTORS] = {
        3, 3, 3, 0, 6, 2, NUM_SHARDINGS + 1, 3, 3, NUM_PRECISIONS, NUM_RUN_MODELS, 2, 2, 2, 2, 3, 2,
        2, 2, 4, 2, 2, 3, NUM_CONTEXT_WAYS,  2, 2};
    return factor == SCHEDULE ? num_schedule_kinds : levels[factor];
}

// What the function depends on, and how it is rounded; the others are ways of computing it.
static const bool matters[NUM_FACTORS] = {
    [TENSOR] = true,    [DATA] = true,    [SEQUENCE_PARALLEL] = true, [PRECISION] = true,
    [MODEL] = true,     [DROPOUT] = true, [PROBABILITIES] = true,     [MICROBATCH_SIZE] = true,
    [MASKED] = true,    [TREE] = true,    [VISIBLE] = true,           [PER_TOKEN] = true,
    [OPTIMIZER] = true, [CONTEXT] = true, [CONTEXT_WAYS] = true,      [EXPERT_RANKS] = true};

typedef struct {
    int level[NUM_FACTORS];
} Case;

static const int powers[] = {1, 2, 4};

static void set_recomputation(ModelMode *mode, int level) {
    static const struct {
        Recompute recompute;
        int layers;
        bool distribute;
    } ways[] = {{RECOMPUTE_NOTHING, 0, false}, {RECOMPUTE_SELECTIVE, 0, false}, {RECOMPUTE_UNIFORM, 1, false},
                {RECOMPUTE_UNIFORM, 2, false}, {RECOMPUTE_BLOCK, 1, false},     {RECOMPUTE_UNIFORM, 1, true}};
    mode->recompute = ways[level].recompute;
    mode->recompute_layers = ways[level].layers;
    mode->distribute_saved = ways[level].distribute;
}

// How many layers 1, 2, 4 and 8 stages have: as many each; not; some of them none. NULL where there is no
// such way.
static const int *layers_of_stages(int level, int stages) {
    static const int uneven[][4] = {{3, 5}, {1, 3, 2, 2}},
                     none[][8] = {{0, 8}, {3, 0, 5, 0}, {0, 2, 1, 0, 2, 1, 2, 0}};
    int row = stages == 2 ? 0 : stages == 4 ? 1 : 2;
    if (level == 0 || stages == 1 || (level == 1 && row == 2)) return NULL;
    return level == 1 ? uneven[row] : none[row];
}

static void use_recipe(ModelMode *mode, ScalingRecipe recipe) {
    mode->recipe = recipe;
    mode->float8 = recipe == RECIPE_NVFP4 ? FLOAT4_E2M1 : FLOAT8_HYBRID;
    mode->delayed = (DelayedScaling){.history = 2};
    mode->wide_last = 1;
}

static RunPlan plan_of(const Case *c) {
    static const DType types[NUM_PRECISIONS] = {F32, BF16, F16, BF16, BF16, BF16, BF16, BF16};
    const int *l = c->level;
    Grid grid = GRID(powers[l[TENSOR]], powers[l[DATA]], powers[l[PIPELINE]]);
    const ScheduleKind *kind = schedule_kinds[l[SCHEDULE]];
    grid.size[AXIS_CP] = powers[l[CONTEXT]];
    grid.size[AXIS_EP] = powers[l[EXPERT_RANKS]];
    RunPlan plan = {.spec = run_spec(grid, kind->name, kind->min_chunks, LAYERS, GLOBAL_BATCH),
                    .steps = STEPS,
                    .lr = 3e-3,
                    .transport = "threads",
                    .check_comm = l[CHECKED],
                    .evaluates_between = l[EVALUATIONS],
                    .scaler = loss_scaler(l[PRECISION] == 2 ? 256 : 1, 1, 1, 1, false)};
    EngineSpec *spec = &plan.spec;
    spec->split.counts = layers_of_stages(l[LAYERS_OF_STAGES], grid_along(grid, AXIS_PP) * spec->num_chunks);
    spec->mode.microbatch = 1 + l[MICROBATCH_SIZE];
    spec->num_microbatches /= spec->mode.microbatch;
    spec->masked = l[MASKED];
    run_make_model(spec, (RunModel)l[MODEL]);
    if (!l[DROPOUT]) spec->shape.hidden_dropout = spec->shape.attention_dropout = 0;
    if (l[CHECKED]) spec->device = harness_device("check");
    spec->mode.dtype = types[l[PRECISION]];
    if (l[PRECISION] >= FIRST_RECIPE) use_recipe(&spec->mode, (ScalingRecipe)(l[PRECISION] - FIRST_RECIPE));
    spec->mode.sequence_parallel = l[SEQUENCE_PARALLEL];
    spec->mode.keep_probabilities = l[PROBABILITIES];
    spec->mode.context_way = (ContextWay)l[CONTEXT_WAYS];
    spec->first_keys = spec->positions = l[VISIBLE] & 1;
    if (l[VISIBLE] & 2) run_limit_attention(spec);
    spec->per_token = l[PER_TOKEN];
    set_recomputation(&spec->mode, l[RECOMPUTATION]);
    spec->share_values = l[SHARDED] == NUM_SHARDINGS;
    spec->sharding = spec->share_values ? SHARD_VALUES : (Sharding)l[SHARDED];
    if (l[OPTIMIZER]) run_use_muon(spec), spec->ema_decay = 0.9;
    spec->offload = l[STATE_ON_HOST] ? 0.6 : 0;
    spec->virtual_data = l[TREE] ? LEAVES : 0;
    spec->overlap_gradients = l[OVERLAP] > 0;
    spec->overlap_weights = l[OVERLAP] > 1;
    spec->scatter_gather = l[MESSAGES] > 0;
    spec->receive_ahead = l[MESSAGES] > 1;
    return plan;
}

static void name_case(const Case *c, char text[NAME_BYTES]) {
    static const char *const recomputations[] = {"no",        "selective", "uniform-1",
                                                 "uniform-2", "block-1",   "saved-shares"};
    static const char *const shardings[] = {"", ", sharded optimizer", ", sharded gradients",
                                            ", sharded values", ", shared values"};
    static const char *const types[NUM_PRECISIONS] = {"fp32",        "bf16",          "fp16",  "fp8",
                                                      "delayed fp8", "blockwise fp8", "mxfp8", "nvfp4"};
    static const char *const ways[NUM_CONTEXT_WAYS] = {"", " by heads", " in a ring"};
    static const char *const layers[] = {"", ", uneven stages", ", empty stages"};
    const int *l = c->level;
    snprintf(
        text, NAME_BYTES,
        "t%d c%d%s d%d p%d %s, %s recomputation%s%s, overlap %d, messages %d, %s, %s%s%s%s%s%s%s%s%s%s%s%s%s%s%s",
        powers[l[TENSOR]], powers[l[CONTEXT]], ways[l[CONTEXT_WAYS]], powers[l[DATA]], powers[l[PIPELINE]],
        schedule_kinds[l[SCHEDULE]]->name, recomputations[l[RECOMPUTATION]],
        l[SEQUENCE_PARALLEL] ? ", sequence parallel" : "", shardings[l[SHARDED]], l[OVERLAP], l[MESSAGES],
        types[l[PRECISION]], run_model_names[l[MODEL]], l[DROPOUT] ? ", dropout" : "",
        l[PROBABILITIES] ? ", probabilities kept" : "", l[MICROBATCH_SIZE] ? ", microbatches of 2" : "",
        l[MASKED] ? ", masked" : "", layers[l[LAYERS_OF_STAGES]], l[EVALUATIONS] ? ", evaluations" : "",
        l[CHECKED] ? ", checked" : "", l[TREE] ? ", a tree of leaves" : "",
        l[VISIBLE] & 1 ? ", documents" : "", l[VISIBLE] & 2 ? ", limited attention" : "",
        l[PER_TOKEN] ? ", per token" : "", l[OPTIMIZER] ? ", muon" : "",
        l[EXPERT_RANKS] ? ", two expert ranks" : "", l[STATE_ON_HOST] ? ", state on the host" : "");
}

// ---- which combinations are possible -------------------------------------------------------------------

static bool schedule_exists(const EngineSpec *spec) {
    Schedule schedule;
    Status status = schedule_create(&schedule, &(ScheduleSpec){.kind = spec->schedule,
                                                               .ranks = grid_along(spec->grid, AXIS_PP),
                                                               .chunks = spec->num_chunks,
                                                               .microbatches = spec->num_microbatches});
    if (status == OK) schedule_destroy(&schedule);
    return status == OK;
}

// Asked for thousands of candidates, of few different schedules.
static bool schedule_is_known_to_exist(const Case *c, const EngineSpec *spec) {
    static enum { UNKNOWN, EXISTS, DOES_NOT } answers[MAX_LEVELS][MAX_LEVELS][GLOBAL_BATCH + 1];
    const int *l = c->level;
    int m = spec->num_microbatches;
    if (answers[l[SCHEDULE]][l[PIPELINE]][m] == UNKNOWN)
        answers[l[SCHEDULE]][l[PIPELINE]][m] = schedule_exists(spec) ? EXISTS : DOES_NOT;
    return answers[l[SCHEDULE]][l[PIPELINE]][m] == EXISTS;
}

static bool possible(const Case *one) {
    const int *l = one->level;
    int t = powers[l[TENSOR]], c = powers[l[CONTEXT]], d = powers[l[DATA]], p = powers[l[PIPELINE]];
    if (t * c * d * p > 8) return false;
    if (c > 1 && (l[TREE] || l[PRECISION] == FIRST_RECIPE + RECIPE_NVFP4)) return false;
    if (c == 1 && l[CONTEXT_WAYS]) return false;
    if (l[SEQUENCE_PARALLEL] && (t == 1 || l[RECOMPUTATION] == 5)) return false;
    if (t == 1 && l[RECOMPUTATION] == 5) return false;
    if (c * d == 1 && (l[SHARDED] || l[OVERLAP])) return false;
    if (l[OVERLAP] > 1 && !l[SHARDED]) return false;
    if (l[SHARDED] > SHARD_OPTIMIZER && schedule_kinds[l[SCHEDULE]]->pairs) return false;
    if (p == 1 && l[MESSAGES]) return false;
    if (l[STATE_ON_HOST] && l[OPTIMIZER]) return false; // Muon's stays on the device
    bool has_experts = l[MODEL] == RUN_EXPERTS || l[MODEL] == RUN_BIASED_EXPERTS;
    if (l[EXPERT_RANKS] && (!has_experts || c * d == 1)) return false;
    RunPlan plan = plan_of(one);
    const EngineSpec *spec = &plan.spec;
    if (l[LAYERS_OF_STAGES] && !spec->split.counts) return false;
    if (l[CONTEXT_WAYS] == CONTEXT_RING && l[PROBABILITIES]) return false;
    if (l[CONTEXT_WAYS] == CONTEXT_ALL_TO_ALL && model_groups(&spec->shape) / t % c) return false;
    return schedule_is_known_to_exist(one, spec);
}

// ---- the covering set: greedy, from candidates that are the same in every run ----------------------------

typedef bool Pairs[NUM_FACTORS][MAX_LEVELS][NUM_FACTORS][MAX_LEVELS];

static int mark_pairs(Pairs seen, const Case *c, bool mark) {
    int fresh = 0;
    for (int a = 0; a < NUM_FACTORS; a++)
        for (int b = 0; b < a; b++) {
            bool *pair = &seen[a][c->level[a]][b][c->level[b]];
            fresh += !*pair;
            if (mark) *pair = true;
        }
    return fresh;
}

// What a plain run depends on (plain) is drawn from few seeds, so that cases share their plain runs.
enum { SEEDS_OF_PLAIN = 128, PAIRS = 1740 }; // as many pairs as without sharing

static Case candidate(uint64_t number) {
    Case c;
    for (int f = 0; f < NUM_FACTORS; f++) {
        uint64_t seed = matters[f] ? number % SEEDS_OF_PLAIN : number;
        c.level[f] =
            (int)(rng_word(rng_key(7, "candidates", 0), seed, (uint64_t)f) % (unsigned)num_levels((Factor)f));
    }
    return c;
}

typedef struct {
    Case cases[MAX_CASES];
    int count;
    uint64_t tried;
    int pairs, uncovered; // pairs of choices that some candidate held; of them in no case
} CoveringSet;

// The best of `pool` possible candidates.
static int choose(CoveringSet *set, Pairs seen, Pairs known, int pool, Case *best) {
    int most = -1;
    for (int found = 0; found < pool;) {
        Case c = candidate(set->tried++);
        if (!possible(&c)) continue;
        found++;
        set->pairs += mark_pairs(known, &c, true);
        int fresh = mark_pairs(seen, &c, false);
        if (fresh > most) most = fresh, *best = c;
    }
    return mark_pairs(seen, best, true);
}

static void make_set(CoveringSet *set) {
    static Pairs seen, known;
    const int least = getenv("TRIREME_TEST_LONG") ? LONG_CASES : 1;
    memset(seen, 0, sizeof seen), memset(known, 0, sizeof known);
    *set = (CoveringSet){0};
    int covered = 0;
    while (set->count < MAX_CASES && (set->count < least || covered < set->pairs))
        covered += choose(set, seen, known, 20, &set->cases[set->count]), set->count++;
    set->uncovered = set->pairs - covered;
}

// ---- the law ---------------------------------------------------------------------------------------------

// The same function and rounding, run as plainly as can be.
static Case plain(const Case *c) {
    Case result = {.level = {[EVALUATIONS] = 1}};
    for (int f = 0; f < NUM_FACTORS; f++)
        if (matters[f]) result.level[f] = c->level[f];
    if (c->level[TREE]) result.level[DATA] = result.level[EXPERT_RANKS] = 0;
    return result;
}

typedef struct {
    Case of;
    RunResult result;
} Known;

static const RunResult *plain_result(const Case *c) {
    static Known known[MAX_CASES];
    static int count;
    Case key = plain(c);
    for (int i = 0; i < count; i++)
        if (!memcmp(&known[i].of, &key, sizeof key)) return &known[i].result;
    char name[NAME_BYTES];
    name_case(&key, name);
    RunPlan plan = plan_of(&key);
    plan.spec.device = harness_plain_device("cpu");
    if (count == MAX_CASES || !run_or_complain(&plan, name, &known[count].result)) return NULL;
    known[count].of = key;
    return &known[count++].result;
}

typedef bool Held[NUM_FACTORS][MAX_LEVELS];

static int mark_levels(Held held, const Case *c, bool mark) {
    int fresh = 0;
    for (int f = 0; f < NUM_FACTORS; f++) {
        bool *level = &held[f][c->level[f]];
        fresh += !*level;
        if (mark) *level = true;
    }
    return fresh;
}

// The short form: of the cases left, always the one that holds most choices that no case held before it.
static void shorten(CoveringSet *set) {
    Held held = {{0}};
    int count = 0;
    while (count < set->count) {
        int most = 0, best = 0;
        for (int i = count; i < set->count; i++) {
            int fresh = mark_levels(held, &set->cases[i], false);
            if (fresh > most) most = fresh, best = i;
        }
        if (!most) break;
        Case chosen = set->cases[best];
        set->cases[best] = set->cases[count], set->cases[count++] = chosen;
        mark_levels(held, &chosen, true);
    }
    set->count = count;
}

static void every_combination_gives_the_same_bits(void) {
    static CoveringSet set;
    make_set(&set);
    EXPECT(set.pairs >= PAIRS, "candidates hold %d pairs", set.pairs);
    EXPECT(set.uncovered == 0, "%d of %d pairs of choices are in no case", set.uncovered, set.pairs);
    if (harness_short()) shorten(&set);
    for (int i = 0; i < set.count; i++) {
        char name[NAME_BYTES];
        RunResult result;
        name_case(&set.cases[i], name);
        RunPlan plan = plan_of(&set.cases[i]);
        const RunResult *expected = plain_result(&set.cases[i]);
        if (expected && run_or_complain(&plan, name, &result)) run_expect_same_bits(expected, &result, name);
    }
}

// ---- what rounds differently -----------------------------------------------------------------------------

static double worst_difference(const RunResult *a, const RunResult *b) {
    double worst = 0;
    for (int i = 0; i < STEPS; i++) {
        double loss = fabs((double)(a->loss[i] - b->loss[i])) / (double)a->loss[i];
        double norm = fabs(a->norm[i] - b->norm[i]) / a->norm[i];
        worst = fmax(worst, fmax(loss, norm));
    }
    return worst;
}

// Half the distance from 1 to the next number: of fp32 (not asked for), bf16 and fp16.
static const double unit_roundoff[] = {0x1p-24, 0x1p-8, 0x1p-11};

// How many unit roundoffs serial runs in 16 bits are from those in fp32: what rounding does at this size. One
// run is one draw of that error and may be a lucky one; the other type, other microbatches and kept
// probabilities, which add in other orders, are further draws.
static double roundoffs(int model) {
    double worst = 0;
    for (int draw = 0; draw < 8; draw++) {
        Case exact = {
            .level = {[MODEL] = model, [MICROBATCH_SIZE] = draw & 1, [PROBABILITIES] = draw >> 1 & 1}};
        Case rounded = exact;
        rounded.level[PRECISION] = 1 + (draw >> 2);
        const RunResult *a = plain_result(&exact), *b = plain_result(&rounded);
        if (a && b) worst = fmax(worst, worst_difference(a, b) / unit_roundoff[rounded.level[PRECISION]]);
    }
    return worst;
}

static void compare_grids(int precision, int model) {
    Case serial = {{0}};
    serial.level[PRECISION] = precision, serial.level[MODEL] = model;
    const RunResult *one = plain_result(&serial);
    // Two draws apart; and a sum over t ranks is rounded in t + 1 places instead of one.
    double tolerance = precision ? 3 * roundoffs(model) * unit_roundoff[precision] : 1e-5;
    if (getenv("TRIREME_TEST_REPORT"))
        printf("precision %d, model %d: tolerance %.2g\n", precision, model, tolerance);
    for (int t = 0; one && t < 3; t++)
        for (int d = 0; d < 3; d++)
            for (int way = 0; way < 6; way++) {
                Case c = serial;
                c.level[TENSOR] = t, c.level[DATA] = d;
                c.level[SEQUENCE_PARALLEL] = way & 1, c.level[CONTEXT] = way >> 1;
                if (!possible(&c)) continue;
                char name[NAME_BYTES];
                name_case(&c, name);
                const RunResult *result = plain_result(&c);
                if (!result) return;
                double difference = worst_difference(one, result);
                if (getenv("TRIREME_TEST_REPORT")) printf("%s: %.2g\n", name, difference);
                EXPECT(difference < tolerance, "%s: differs by %.2g, more than %.2g", name, difference,
                       tolerance);
            }
}

// Numbers alone: in the short form, the runs above have taken every path of these.
static void grids_are_close(void) {
    for (int model = 0; model < NUM_RUN_MODELS; model++)
        for (int precision = 0; precision < 3 && !harness_short(); precision++)
            compare_grids(precision, model);
}

// ---- worker ------------------------------------------------------------------------------------------

enum { GRIDS = 27, SHARES = 2, EVERY = 6, MAX_SHARED = GRIDS + MAX_CASES / EVERY };

// The runs of threads and of processes: every grid, interleaved where it has pipeline ranks, and a sixth of the
// covering set, another one for each share.
static int shared_cases(int share, Case cases[MAX_SHARED]) {
    static CoveringSet set;
    int count = 0;
    for (int t = 0; t < 3; t++)
        for (int p = 0; p < 3; p++)
            for (int d = 0; d < 3; d++)
                cases[count++] = (Case){
                    .level = {
                        [TENSOR] = t, [PIPELINE] = p, [DATA] = d, [SCHEDULE] = p ? 2 : 0, [DROPOUT] = 1}};
    make_set(&set);
    for (int i = EVERY / SHARES * share; i < set.count; i += EVERY) cases[count++] = set.cases[i];
    return count;
}

// Those of one launch. Processes run them all in it; threads, which others are compared with, each in one of its
// own.
static int worker(const char *transport, int ranks, bool checked, int share) {
    static Case cases[MAX_SHARED];
    static RunPlan plans[MAX_SHARED];
    static RunResult results[MAX_SHARED];
    static char names[MAX_SHARED][NAME_BYTES];
    int all = shared_cases(share, cases), count = 0;
    for (int i = 0; i < all; i++) {
        RunPlan plan = plan_of(&cases[i]);
        if (!possible(&cases[i]) || grid_size(plan.spec.grid) != ranks || plan.check_comm != checked)
            continue;
        plan.transport = transport;
        name_case(&cases[i], names[count]);
        plans[count++] = plan;
    }
    int at_once = strcmp(transport, "threads") ? count : 1;
    for (int i = 0; i < count; i += at_once) {
        Status status = run_plans(&plans[i], at_once, &results[i]);
        if (status != OK) return fprintf(stderr, "%s\n", fail_message()), (int)status;
    }
    for (int i = 0; i < count && results[i].ranks; i++) run_print_bits(&results[i], names[i]); // on rank 0
    return harness_failed();
}

int main(int argc, char **argv) {
    if (argc == 6 && !strcmp(argv[1], "worker"))
        return worker(argv[2], atoi(argv[3]), atoi(argv[4]), atoi(argv[5]) % SHARES);
    return harness_run(
        (const Test[]){{"every_combination_gives_the_same_bits", every_combination_gives_the_same_bits},
                       {"grids_are_close", grids_are_close},
                       {0}},
        argc, argv);
}
