// What a plan knows of Muon: the products of its iterations, what the replicas share of them, and its one moment.
#include "plan/memory.h"
#include "plan_fixtures.h"
#include <math.h>

static const MuonOptions MUON = {
    .iterations = 3, .momentum = 0.9, .split_qkv = true, .coefficients = "quintic", .extra_scale = 1};

static Work recorded(const ModelShape *model, const ParallelConfig *c) {
    Work work;
    EXPECT_OK(work_record(&work, model, c));
    return work;
}

// 4 s^2 l + 2 s^3 for each iteration of a matrix with sides s <= l: queries, keys, values and projection are H x H, the
// two of the MLP H x 4H. Every tp rank computes whole matrices, of which it gathers the others' parts in fp32.
static void muon_multiplies_whole_matrices(void) {
    ModelShape model = gpt_of(4, 48, 8);
    model.sequence = model.positions = 32, model.vocabulary = 300;
    const double h = model.hidden, square = 6 * h * h * h, mlp = 4 * h * h * 4 * h + 2 * h * h * h;
    for (int tp = 1; tp <= 4; tp *= 2) {
        ParallelConfig c = grid_of(tp, 1, 1, 2, 1);
        Work none = recorded(&model, &c);
        EXPECT(!none.muon.count && !none.matrices, "AdamW has %d products", none.muon.count);
        c.muon = MUON;
        Work work = recorded(&model, &c);
        double flops = work_flops(&work.muon), bytes = 0;
        for (int i = 0; i < work.muon.count; i++)
            if (work.muon.items[i].kind == WORK_COLLECTIVE) bytes += work.muon.items[i].bytes;
        EXPECT(flops == 3 * (4 * square + 2 * mlp), "t %d: %.0f flops, not %.0f", tp, flops,
               3 * (4 * square + 2 * mlp));
        EXPECT(work.matrices == 4, "%d matrices", work.matrices);
        EXPECT((double)work.matrix_parameters == 12 * h * h / tp, "%lld parameters",
               (long long)work.matrix_parameters);
        EXPECT(fabs(bytes - (tp > 1 ? 4 * 12 * h * h : 0)) < 1e-6, "t %d: %.1f bytes are gathered", tp,
               bytes);
        EXPECT(work_flops(&work.backward[PART_LAYER]) == work_flops(&none.backward[PART_LAYER]),
               "Muon changes a layer's work");
        work_free(&work);
        work_free(&none);
    }
}

static MemoryNeed needed(const CostModel *costs, const ModelShape *model, const ParallelConfig *config) {
    MemoryNeed out = {0};
    EXPECT_OK(memory_need(costs, model, config, &out));
    return out;
}

// Muon keeps no second moment of the 12 H^2 parameters of a layer's matrices.
static void muon_keeps_one_moment(void) {
    ModelShape model = gpt_of(8, 512, 8);
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    stack.is_trireme = true;
    CostModel costs = costs_of(&machine, &stack);
    for (int way = 0; way < 4; way++) {
        ParallelConfig c = grid_of(way & 1 ? 2 : 1, 2, 2, 1, 1);
        c.zero_stage = way / 2;
        MemoryNeed adam = needed(&costs, &model, &c);
        c.muon.iterations = 5;
        MemoryNeed muon = needed(&costs, &model, &c);
        double matrices = 12.0 * 512 * 512 * 4 / grid_along(c.grid, AXIS_TP), shares = c.zero_stage ? 2 : 1;
        EXPECT(fabs(adam.optimizer - muon.optimizer - 4 * matrices / shares) < 1,
               "way %d: %.0f bytes less, not %.0f", way, adam.optimizer - muon.optimizer,
               4 * matrices / shares);
        EXPECT(fabs(adam.total - muon.total - 4 * matrices / shares) < 1, "way %d: the total differs", way);
    }
}

// The time of Muon beyond that of AdamW.
static double muon_seconds(PlanCache *cache, const CostModel *costs, ParallelConfig c) {
    ModelShape model = gpt_of(4, 256, 4);
    Prediction adam, muon;
    EXPECT_OK(predict(cache, costs, &model, &c, &adam));
    c.muon = MUON;
    EXPECT_OK(predict(cache, costs, &model, &c, &muon));
    EXPECT(muon.parts.compute == adam.parts.compute, "Muon changes what layers take");
    double exchanged = muon.parts.data - adam.parts.data;
    bool replicas = grid_along(c.grid, AXIS_DP) > 1;
    EXPECT(replicas ? exchanged > 0 : exchanged == 0, "replicas exchange for %g s", exchanged);
    return muon.parts.optimizer - adam.parts.optimizer;
}

// The 16 matrices of four layers are shared out: 3 replicas make 6, 5 and 5 of them orthogonal.
static void replicas_share_muon(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    CostModel costs = ideal_costs(&machine, &stack);
    PlanCache *cache;
    EXPECT_OK(plan_cache_open(&cache));
    double one = muon_seconds(cache, &costs, candidate_of(1, 1, 1, 1)),
           four = muon_seconds(cache, &costs, candidate_of(1, 1, 4, 1));
    double three = muon_seconds(cache, &costs, candidate_of(1, 1, 3, 1)),
           stages = muon_seconds(cache, &costs, candidate_of(1, 2, 1, 1));
    EXPECT(one > 0, "Muon takes %g s", one);
    EXPECT(fabs(one / four - 4) < 1e-9, "of 4 replicas: %g of one", four / one);
    EXPECT(fabs(one / three - 16.0 / 6) < 1e-9, "of 3 replicas: %g of one", three / one);
    EXPECT(fabs(one / stages - 2) < 1e-9, "of 2 stages: %g of one", stages / one);
    plan_cache_close(cache);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"muon_multiplies_whole_matrices", muon_multiplies_whole_matrices},
                                      {"muon_keeps_one_moment", muon_keeps_one_moment},
                                      {"replicas_share_muon", replicas_share_muon},
                                      {0}},
                       argc, argv);
}
