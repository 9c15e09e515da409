// What a rank holds: the published formulas and figures, the schedules' own counts, trireme's own arenas.
#include "plan/memory.h"
#include "plan_fixtures.h"
#include <math.h>
#include <string.h>

static const double GIB = 1024.0 * 1024 * 1024;

// ---- what is asked about -------------------------------------------------------------------------

static ModelShape llama(void) {
    ModelShape shape = gpt_of(8, 1024, 16);
    shape.groups = 4, shape.ffn = 3072;
    shape.activation = ACTIVATION_SWIGLU, shape.position = POSITION_ROTARY, shape.rotary_base = 10000;
    shape.rms_norm = shape.no_linear_bias = shape.untied = true;
    shape.hidden_dropout = shape.attention_dropout = 0;
    return shape;
}

static MemoryNeed need(const CostModel *costs, const ModelShape *model, const ParallelConfig *config) {
    MemoryNeed out = {0};
    EXPECT_OK(memory_need(costs, model, config, &out));
    return out;
}

// ---- what it is made of --------------------------------------------------------------------------

static void parameters_as_declared(void) {
    for (int way = 0; way < 20; way++) {
        ModelShape model = way & 1 ? llama() : gpt_of(8, 512, 8);
        if (way & 2) model.untied = true;
        model.qkv_bias = way == 5 || way == 13;
        model.proj_bias = way == 13;
        model.mlp_bias = way == 15;
        ParallelConfig c = grid_of(1 << way / 4 % 3, 1, 1, 1, 1);
        Work work;
        EXPECT_OK(work_record(&work, &model, &c));
        for (ModelPart part = 0; part < PART_DENSE; part++)
            EXPECT(
                part_parameters(&model, grid_along(c.grid, AXIS_TP), part) == (double)work.parameters[part],
                "way %d, part %d: %.0f, not %lld", way, (int)part,
                part_parameters(&model, grid_along(c.grid, AXIS_TP), part), (long long)work.parameters[part]);
        work_free(&work);
    }
}

// Korthikanti 2022, table 2.
static void activations_as_published(void) {
    Planned place;
    open_plan(&place);
    ModelShape model = gpt_of(24, 2048, 32);
    for (int t = 1; t <= 8; t *= 2)
        for (int shared = 0; shared <= (t > 1); shared++)
            for (Recompute again = RECOMPUTE_NOTHING; again <= RECOMPUTE_UNIFORM; again++) {
                ParallelConfig c = grid_of(t, 1, 1, 4, 1);
                c.sequence_parallel = shared, c.recompute = again;
                double sbh = 2048.0 * 4 * 2048, scores = 5.0 * 32 * 2048 / 2048 / t;
                double outside = shared ? 34.0 / t : 10 + 24.0 / t;
                double expected = again == RECOMPUTE_UNIFORM     ? 2.0 / (shared ? t : 1)
                                  : again == RECOMPUTE_SELECTIVE ? outside
                                                                 : outside + scores;
                double found = layer_kept_bytes(&place.costs, &model, &c) / sbh;
                EXPECT(near(found, expected, 1e-9), "t %d shared %d recompute %d: %g sbh, not %g", t, shared,
                       (int)again, found, expected);
                double working = layer_again_bytes(&place.costs, &model, &c) / sbh;
                expected = again == RECOMPUTE_UNIFORM ? outside + scores : again ? scores : 0;
                EXPECT(near(working, expected, 1e-9), "t %d: %g sbh at work, not %g", t, working, expected);
            }
    machine_close(&place.machine);
}

// Without dropout no masks, without the S x S matrix two numbers of each of its rows.
static void activations_of_llama(void) {
    Planned place;
    open_plan(&place);
    ModelShape model = llama();
    ParallelConfig c = grid_of(2, 1, 1, 1, 1);
    c.attention = ATTENTION_FUSED;
    double T = 2048, qkvo = 2 * 1024 + 2 * 256, mlp = 3 * 3072;
    double expected = 8 * T * 1024 + 2 * T * (qkvo + mlp) / 2 + 8 * T * 16 / 2;
    double found = layer_kept_bytes(&place.costs, &model, &c);
    EXPECT(near(found, expected, 1e-9), "%.0f bytes, not %.0f", found, expected);
    place.costs.constants.norm_kept_bytes = 4, place.costs.constants.mlp_kept_bytes = 2;
    expected += 2 * 4 * T * 1024 + 2 * T * 3072 / 2;
    found = layer_kept_bytes(&place.costs, &model, &c);
    EXPECT(near(found, expected, 1e-9), "unfused kernels: %.0f bytes, not %.0f", found, expected);
    c.attention = ATTENTION_UNFUSED;
    place.costs.constants.score_kept_bytes = 6;
    expected += T * 16 / 2 * (6 * T - 8);
    found = layer_kept_bytes(&place.costs, &model, &c);
    EXPECT(near(found, expected, 1e-9), "unfused attention: %.0f bytes, not %.0f", found, expected);
    machine_close(&place.machine);
}

static void check_flight(const char *kind, int p, int v, int m) {
    const ScheduleKind *info = schedule_kind(kind);
    ScheduleSpec spec = {.kind = kind, .ranks = p, .chunks = v, .microbatches = m};
    char why[160];
    if (schedule_kind_refuse(info, &spec, why, sizeof why)) return;
    Schedule order;
    Simulation simulation;
    EXPECT_OK(schedule_order(&order, &spec));
    schedule_replay(&order, (ScheduleCosts){.forward_us = 1, .backward_us = 2, .weight_fraction = 0.5},
                    &simulation);
    for (int rank = 0; rank < p; rank++) {
        int promised = schedule_kind_stash(info, &spec, rank), held = simulation.peak_stash[rank];
        bool exact = !(info->settings & SETTING_STASH_LIMIT);
        EXPECT(exact ? promised == held : promised >= held,
               "%s p %d v %d m %d, rank %d: %d in flight, not %d", kind, p, v, m, rank, promised, held);
        for (int chunk = 0; chunk < v; chunk++)
            EXPECT(schedule_kind_stage(info, &spec, rank, chunk) == schedule_stage(&order, rank, chunk),
                   "%s: chunk %d of rank %d", kind, chunk, rank);
    }
    simulation_destroy(&simulation, NULL);
    schedule_destroy(&order);
}

static void in_flight_as_replayed(void) {
    for (int kind = 0; kind < num_schedule_kinds; kind++)
        for (int p = 1; p <= 6; p++)
            for (int v = 1; v <= 3; v++)
                for (int m = 1; m <= 14; m++) check_flight(schedule_kinds[kind]->name, p, v, m);
}

// ---- published figures ---------------------------------------------------------------------------

// Korthikanti 2022, figures 1 and 7, grids of table 3, t = 8: GiB of a rank's state, and of activations on
// the first rank, with tensor parallelism alone and with sequence parallelism and selective recomputation.
static const struct {
    int layers, hidden, heads, pp, chunks, microbatch;
    double state, baseline, both;
} figures[] = {{48, 6144, 64, 1, 1, 4, 45.56, 59.25, 9.56},
               {96, 12288, 96, 8, 3, 1, 45.56, 66.84, 12.35},
               {105, 20480, 128, 35, 3, 1, 31.64, 114.0, 23.08},
               {128, 25600, 160, 64, 1, 1, 32.96, 131.25, 26.56}};

static void figures_as_published(void) {
    Planned place;
    open_plan(&place);
    place.stack.state_bytes = 6, place.stack.sharded_bytes = 12; // as that paper counts
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        int p = figures[i].pp;
        ModelShape model = gpt_of(figures[i].layers, figures[i].hidden, figures[i].heads);
        ParallelConfig c = grid_of(8, p, 1, figures[i].microbatch, 2 * p);
        MemoryNeed baseline, both;
        c.chunks = figures[i].chunks;
        if (c.chunks > 1) c.schedule = "interleaved";
        EXPECT_OK(memory_of_rank(&place.costs, &model, &c, 0, &baseline));
        c.sequence_parallel = true, c.recompute = RECOMPUTE_SELECTIVE;
        EXPECT_OK(memory_of_rank(&place.costs, &model, &c, 0, &both));
        double state = p > 1 ? 0 : -18 * part_parameters(&model, 8, PART_EMBEDDING);
        MemoryNeed middle;
        EXPECT_OK(memory_of_rank(&place.costs, &model, &c, p / 2, &middle));
        state += middle.parameters + middle.gradients + middle.optimizer;
        EXPECT(near(state / GIB, figures[i].state, 2e-3), "%d: state %g GiB", model.hidden, state / GIB);
        EXPECT(near(baseline.activations / GIB, figures[i].baseline, 1e-3), "%d: baseline %g GiB",
               model.hidden, baseline.activations / GIB);
        EXPECT(near(both.activations / GIB, figures[i].both, 1e-3), "%d: with both %g GiB", model.hidden,
               both.activations / GIB);
    }
    machine_close(&place.machine);
}

// Qi et al. 2023, table 4: peaks of 1F1B, ZB-1p and ZB-2p as PyTorch's allocator counts them, so without driver
// and libraries. Not said there, and what its numbers say: attention keeps its S x S matrices (p stashes more
// take 34 + 5as/h bytes of each element, not 34), and GB are 2^30 bytes.
static const struct {
    int layers, hidden, heads, pp, microbatch;
    double peaks[3];
} zero_bubbles[] = {{22, 2304, 24, 8, 6, {30, 32, 59}},
                    {30, 4096, 32, 8, 3, {39, 42, 70}},
                    {46, 5120, 40, 16, 1, {32, 33, 51}},
                    {62, 6144, 48, 32, 1, {43, 44, 74}}};

static void zero_bubble_peaks_as_published(void) {
    static const char *const kinds[] = {"1f1b", "zb-h1", "zb-h2"};
    enum { ROWS = sizeof zero_bubbles / sizeof *zero_bubbles };
    Planned place;
    open_plan(&place);
    double bias[2] = {0};
    for (int i = 0; i < ROWS * 3 * 2; i++) {
        int row = i / 6, kind = i / 2 % 3, fused = i % 2, p = zero_bubbles[row].pp;
        ModelShape model =
            gpt_of(zero_bubbles[row].layers, zero_bubbles[row].hidden, zero_bubbles[row].heads);
        model.sequence = model.positions = 1024;
        ParallelConfig c = grid_of(1, p, 1, zero_bubbles[row].microbatch, 3 * p);
        c.schedule = kinds[kind];
        if (fused) c.attention = ATTENTION_FUSED;
        double gib = need(&place.costs, &model, &c).total / GIB;
        double error = gib / zero_bubbles[row].peaks[kind] - 1;
        bias[fused] += error / (ROWS * 3);
        EXPECT(fused || fabs(error) < 0.08, "%s, %d layers: %g GiB, published %g", kinds[kind], model.layers,
               gib, zero_bubbles[row].peaks[kind]);
    }
    EXPECT(fabs(bias[0]) < 0.02 && bias[1] < -0.2, "bias %g; %g if attention were fused", bias[0], bias[1]);
    machine_close(&place.machine);
}

// ---- ranks ---------------------------------------------------------------------------------------

static double sum(const MemoryNeed *n) {
    return n->parameters + n->gradients + n->optimizer + n->activations + n->ends + n->buffers + n->reserve;
}

static void fullest_rank(void) {
    Planned place;
    open_plan(&place);
    for (int large = 0; large < 2; large++) {
        ModelShape model = gpt_of(16, 2048, 16);
        ParallelConfig c = grid_of(2, 4, 2, 2, 8);
        if (large) model.vocabulary = 1 << 20, model.untied = true;
        MemoryNeed most = need(&place.costs, &model, &c), one;
        double total = 0;
        for (int rank = 0; rank < 4; rank++) {
            EXPECT_OK(memory_of_rank(&place.costs, &model, &c, rank, &one));
            EXPECT(near(one.total, sum(&one), 1e-12), "rank %d: parts of %g, total %g", rank, sum(&one),
                   one.total);
            total = fmax(total, one.total);
        }
        EXPECT(most.total == total, "the fullest has %g, not %g", most.total, total);
        EXPECT(most.rank == (large ? 3 : 0), "rank %d is the fullest", most.rank);
    }
    machine_close(&place.machine);
}

static void shards_divide(void) {
    Planned place;
    open_plan(&place);
    ModelShape model = gpt_of(16, 2048, 16);
    ParallelConfig c = grid_of(2, 2, 8, 1, 4);
    MemoryNeed whole = need(&place.costs, &model, &c);
    for (int zero = 1; zero <= 3; zero++) {
        c.zero_stage = zero;
        MemoryNeed cut = need(&place.costs, &model, &c);
        EXPECT(near(cut.optimizer, whole.optimizer / 8, 1e-12), "stage %d: optimizer", zero);
        EXPECT(near(cut.gradients, whole.gradients / (zero >= 2 ? 8 : 1), 1e-12), "stage %d: gradients",
               zero);
        EXPECT(near(cut.parameters, whole.parameters / (zero >= 3 ? 8 : 1), 1e-12), "stage %d: weights",
               zero);
        EXPECT(zero < 3 || cut.buffers > whole.buffers, "layers are gathered from nowhere");
    }
    c.zero_stage = 0, c.dtype = F32;
    MemoryNeed wide = need(&place.costs, &model, &c);
    EXPECT(near(wide.parameters, 2 * whole.parameters, 1e-12) &&
               near(wide.optimizer, 2 * wide.parameters, 1e-12),
           "fp32: 4 + 4 + 8 bytes, not of %g and %g", wide.parameters, wide.optimizer);
    machine_close(&place.machine);
}

// Masks of the embedding's dropout for every microbatch in flight; messages each way; a whole input where
// sequence parallelism keeps shares.
static void ends_and_buffers(void) {
    Planned place;
    open_plan(&place);
    ModelShape model = gpt_of(16, 2048, 16);
    ParallelConfig c = grid_of(4, 2, 1, 1, 8);
    double sbh = 2048.0 * 2048;
    MemoryNeed n;
    EXPECT_OK(memory_of_rank(&place.costs, &model, &c, 0, &n));
    EXPECT(near(n.ends, 2 * sbh, 1e-12) && near(n.buffers, 2 * 2 * sbh, 1e-12),
           "%g sbh of ends, %g of buffers", n.ends / sbh, n.buffers / sbh);
    c.sequence_parallel = true;
    EXPECT_OK(memory_of_rank(&place.costs, &model, &c, 0, &n));
    EXPECT(near(n.ends, 2 * sbh / 4, 1e-12) && near(n.buffers, sbh + 2 * sbh, 1e-12),
           "with shares %g sbh of ends, %g of buffers", n.ends / sbh, n.buffers / sbh);
    c.sequence_parallel = false, c.grid.size[AXIS_CP] = 2, c.grid.size[AXIS_PP] = 1;
    model.hidden_dropout = 0;
    n = need(&place.costs, &model, &c);
    EXPECT(near(n.buffers, 8 * sbh / 2 / 4, 1e-12), "keys and values on their way: %g sbh", n.buffers / sbh);
    machine_close(&place.machine);
}

static void gathered_logits(void) {
    Planned place;
    open_plan(&place);
    ModelShape model = gpt_of(16, 2048, 16);
    ParallelConfig c = grid_of(8, 2, 2, 1, 4);
    MemoryNeed share, all;
    EXPECT_OK(memory_of_rank(&place.costs, &model, &c, 1, &share));
    place.stack.gathers_logits = true;
    EXPECT_OK(memory_of_rank(&place.costs, &model, &c, 1, &all));
    double logits = 2048.0 * 51200, expected = 8 * logits * 7 / 8 + 4 * logits / 8;
    EXPECT(near(all.ends - share.ends, expected, 1e-9), "%g bytes more, not %g", all.ends - share.ends,
           expected);
    machine_close(&place.machine);
}

static void check_layers(const Planned *place, int pp, int layers, int vocabulary, const int expected[3]) {
    ModelShape model = gpt_of(layers, 2048, 16);
    ParallelConfig c = grid_of(8, pp, 2, 1, 4);
    int counts[MAX_STAGES];
    model.vocabulary = vocabulary;
    EXPECT_OK(parallel_config_layers(&place->stack, &model, &c, counts));
    EXPECT(counts[0] == expected[0] && counts[1] == expected[1] && counts[pp - 1] == expected[2],
           "%d layers: %d %d .. %d", layers, counts[0], counts[1], counts[pp - 1]);
}

static void layers_are_shared_out(void) {
    Planned place;
    open_plan(&place);
    check_layers(&place, 2, 15, 51200, (int[]){8, 7, 7});
    check_layers(&place, 4, 14, 51200, (int[]){3, 4, 3}); // the ends fill what is missing
    check_layers(&place, 4, 16, 1 << 20, (int[]){4, 4, 4});
    place.stack.balances_stages = true;
    check_layers(&place, 4, 16, 1 << 20, (int[]){0, 8, 0});
    machine_close(&place.machine);
}

static void sums_of_gradients(void) {
    Planned place;
    open_plan(&place);
    ModelShape model = gpt_of(16, 2048, 16);
    ParallelConfig c = grid_of(8, 4, 2, 1, 4);
    c.dtype = BF16, place.costs.constants.bf16_sum_bytes = 4, c.zero_stage = 1;
    MemoryNeed n = need(&place.costs, &model, &c);
    EXPECT(near(n.gradients / n.parameters, 8 / 2.0, 1e-12), "gradients and their sums");
    EXPECT(near(n.optimizer / n.parameters, 10 / 2.0 / 2, 1e-12), "what is left to be cut");
    machine_close(&place.machine);
}

static void too_many_stages(void) {
    Planned place;
    open_plan(&place);
    ModelShape model = gpt_of(2 * MAX_STAGES, 2048, 16);
    ParallelConfig c = grid_of(1, MAX_STAGES + 1, 1, 1, 4);
    MemoryNeed n;
    EXPECT(memory_need(&place.costs, &model, &c, &n) == ERR_CONFIG, "%d stages", grid_along(c.grid, AXIS_PP));
    c.grid.size[AXIS_PP] = MAX_STAGES;
    EXPECT_OK(memory_need(&place.costs, &model, &c, &n));
    machine_close(&place.machine);
}

static void ends_of_a_v(void) {
    Planned place;
    open_plan(&place);
    ModelShape model = gpt_of(12, 2048, 16);
    MemoryNeed before, after, single;
    ParallelConfig turned = grid_of(1, 2, 1, 1, 8);
    EXPECT_OK(memory_of_rank(&place.costs, &model, &turned, 1, &before));
    turned.schedule = "zb-v", turned.chunks = 2;
    EXPECT_OK(memory_of_rank(&place.costs, &model, &turned, 1, &after));
    double ends = part_parameters(&model, 1, PART_HEAD) + 51200.0 * model.hidden;
    EXPECT(near(before.parameters - after.parameters, 2 * ends, 1e-9), "as a V, both ends are on rank 0");
    EXPECT_OK(memory_of_rank(&place.costs, &model, &turned, 0, &after));
    turned.grid.size[AXIS_PP] = 1, turned.schedule = "1f1b", turned.chunks = 1, model.layers = 6;
    EXPECT_OK(memory_of_rank(&place.costs, &model, &turned, 0, &single));
    EXPECT(near(after.parameters, single.parameters, 1e-9), "and one table serves them");
    machine_close(&place.machine);
}

static void verdicts(void) {
    static const struct {
        double total, margin;
        Verdict verdict;
    } cases[] = {{90, 0.1, FITS},
                 {92, 0.1, FITS_PERHAPS},
                 {111, 0.1, FITS_PERHAPS},
                 {112, 0.1, FITS_NOT},
                 {100, 0, FITS}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        MemoryNeed n = {.total = cases[i].total, .capacity = 100, .margin = cases[i].margin};
        EXPECT(memory_verdict(&n) == cases[i].verdict, "%g of 100, margin %g", n.total, n.margin);
    }
}

// ---- trireme itself ------------------------------------------------------------------------------

// A way to run a small model on a CPU.
static ParallelConfig own_way(int way) {
    static const char *const kinds[] = {"1f1b", "interleaved", "gpipe", "zb-h1", "1f1b", "zb-v"};
    ParallelConfig c = grid_of(1 + way % 2, 1 << way % 3, 1 + way / 3, 1 + way % 2, 8);
    c.schedule = kinds[way];
    if (way == 1 || way == 5) c.grid.size[AXIS_PP] = 2, c.chunks = 2;
    c.attention = way % 2 ? ATTENTION_FUSED : ATTENTION_UNFUSED;
    c.recompute = way == 2 ? RECOMPUTE_UNIFORM : way == 4 ? RECOMPUTE_SELECTIVE : RECOMPUTE_NOTHING;
    c.sequence_parallel = way == 3;
    c.zero_stage = way >= 3;
    c.dtype = way == 4 ? BF16 : F32;
    return c;
}

static void own_memory_is_exact(void) {
    Planned place;
    open_plan(&place);
    EXPECT_OK(stack_open(&place.stack, "trireme-cpu"));
    place.machine.is_cpu = true;
    place.costs.constants = constants_of(&place.machine, &place.stack);
    for (int way = 0; way < 6; way++) {
        ModelShape model = way % 2 ? llama() : gpt_of(8, 512, 8);
        ParallelConfig c = own_way(way);
        size_t bytes;
        int rank;
        MemoryNeed exact;
        model.sequence = model.positions = 256, model.vocabulary = 1024;
        EXPECT_OK(trireme_memory(&model, &c, &bytes, &(size_t){0}, &rank));
        EXPECT_OK(memory_exact(&place.costs, &model, &c, &exact));
        EXPECT(exact.total == (double)bytes && exact.rank == rank && exact.margin == 0,
               "way %d: %.0f bytes on rank %d, not %zu on %d", way, exact.total, exact.rank, bytes, rank);
        EXPECT(near(sum(&exact), exact.total, 1e-12) && exact.buffers >= 0, "way %d: parts of %.0f", way,
               sum(&exact));
        MemoryNeed closed = need(&place.costs, &model, &c);
        EXPECT(near(closed.total, exact.total, 0.05), "way %d: %.0f bytes in closed form, not %.0f", way,
               closed.total, exact.total);
        // Units of a small model are a large share of it.
        for (c.zero_stage = 2; c.zero_stage <= 3; c.zero_stage++) {
            EXPECT_OK(trireme_memory(&model, &c, &bytes, &(size_t){0}, &rank));
            EXPECT_OK(memory_exact(&place.costs, &model, &c, &exact));
            closed = need(&place.costs, &model, &c);
            EXPECT(exact.total == (double)bytes && near(closed.total, exact.total, 0.2),
                   "way %d, ZeRO stage %d: %.0f bytes in closed form, %zu and %.0f exactly", way,
                   c.zero_stage, closed.total, bytes, exact.total);
        }
    }
    machine_close(&place.machine);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"parameters_as_declared", parameters_as_declared},
                                      {"activations_as_published", activations_as_published},
                                      {"activations_of_llama", activations_of_llama},
                                      {"in_flight_as_replayed", in_flight_as_replayed},
                                      {"figures_as_published", figures_as_published},
                                      {"zero_bubble_peaks_as_published", zero_bubble_peaks_as_published},
                                      {"fullest_rank", fullest_rank},
                                      {"shards_divide", shards_divide},
                                      {"ends_and_buffers", ends_and_buffers},
                                      {"gathered_logits", gathered_logits},
                                      {"layers_are_shared_out", layers_are_shared_out},
                                      {"too_many_stages", too_many_stages},
                                      {"sums_of_gradients", sums_of_gradients},
                                      {"ends_of_a_v", ends_of_a_v},
                                      {"verdicts", verdicts},
                                      {"own_memory_is_exact", own_memory_is_exact},
                                      {0}},
                       argc, argv);
}
