// What a plan knows of products whose factors have 8 or 4 bits: which they are, what they take, what makes the
// factors, what is kept.
#include "plan/memory.h"
#include "plan_fixtures.h"
#include <string.h>

static Machine low_machine(void) {
    Machine machine = plain_machine();
    machine.factor_tflops[FACTORS_FP8] = machine.factor_tflops[FACTORS_MXFP8] = 200;
    machine.factor_tflops[FACTORS_NVFP4] = 400;
    return machine;
}

static ParallelConfig config_of(int tp, FactorFormat factors) {
    ParallelConfig config = grid_of(tp, 1, 1, 1, 4);
    config.dtype = BF16;
    config.attention = ATTENTION_FUSED;
    config.factors = factors;
    return config;
}

typedef struct {
    int products, low, casts, of_weights;
} Counts;

static Counts count(const WorkList *list) {
    Counts counts = {0};
    for (int i = 0; i < list->count; i++) {
        const WorkItem *item = &list->items[i];
        if (item->kind != WORK_OP) continue;
        counts.products += work_item_is_product(item);
        counts.low += item->low;
        counts.casts += item->op == OP_QUANTIZE;
        counts.of_weights += item->op == OP_QUANTIZE && item->of_weight;
    }
    return counts;
}

// Four linear layers have three products each, each of two factors: a weight is one of a forward's, and of half of a
// backward's. Embedding and head have none.
static void only_products_of_layers_have_them(void) {
    ModelShape model = llama_of(4, 256, 8);
    model.sequence = model.positions = 64;
    for (int tp = 1; tp <= 2; tp++) {
        ParallelConfig config = config_of(tp, FACTORS_FP8);
        Work work;
        EXPECT_OK(work_record(&work, &model, &config));
        Counts forward = count(&work.forward[PART_LAYER]), backward = count(&work.backward[PART_LAYER]);
        EXPECT(forward.low == 4 && forward.products == 4 && forward.casts == 8 && forward.of_weights == 4,
               "forward: %d of %d products, %d factors, %d of weights", forward.low, forward.products,
               forward.casts, forward.of_weights);
        EXPECT(backward.low == 8 && backward.products == 8 && backward.casts == 16 &&
                   backward.of_weights == 4,
               "backward: %d of %d products, %d factors, %d of weights", backward.low, backward.products,
               backward.casts, backward.of_weights);
        for (ModelPart part = 0; part < NUM_PARTS; part++) {
            Counts end = count(&work.forward[part]);
            EXPECT(part == PART_LAYER || (!end.low && !end.casts), "part %d has %d", part, end.low);
        }
        work_free(&work);
    }
}

static double product_of(const CostModel *costs, FactorFormat factors, int64_t size) {
    ParallelConfig config = config_of(1, factors);
    WorkItem item = {.op = OP_MATMUL, .dtype = BF16, .m = size, .n = size, .k = size, .batch = 1};
    item.low = factors != FACTORS_WHOLE;
    return price_operation(costs, &config, &item);
}

// How many times as fast a product with a sum over K is in a format of so many times the rate and the peak of bf16. To
// fill a tile takes as long in any format.
static double gain(const CostModel *costs, double rate, double peak, double k) {
    double depth = costs->constants.tile_depth;
    return rate * (k + depth) / (k + peak * depth);
}

static void products_follow_their_peaks(void) {
    static const int64_t sizes[] = {128, 1280};
    Machine machine = low_machine();
    Stack stack = plain_stack();
    CostModel costs = ideal_costs(&machine, &stack);
    Constants *c = &costs.constants;
    c->tile_efficiency = c->factor_tile_efficiency = c->matmul_efficiency = c->fp8_efficiency = 1;
    c->mxfp8_efficiency = 0.9, c->nvfp4_efficiency = 0.6;
    for (int i = 0; i < 2; i++) {
        machine.memory_gbs = 1e6;
        double k = (double)sizes[i], whole = product_of(&costs, FACTORS_WHOLE, sizes[i]);
        double fp8 = whole / product_of(&costs, FACTORS_FP8, sizes[i]);
        double mxfp8 = whole / product_of(&costs, FACTORS_MXFP8, sizes[i]);
        double nvfp4 = whole / product_of(&costs, FACTORS_NVFP4, sizes[i]);
        EXPECT(near(fp8, gain(&costs, 2, 2, k), 1e-9), "fp8 of %g gains %g", k, fp8);
        EXPECT(near(mxfp8, gain(&costs, 2 * 0.9, 2, k), 1e-9), "mxfp8 of %g gains %g", k, mxfp8);
        EXPECT(near(nvfp4, gain(&costs, 4 * 0.6, 4, k), 1e-9), "nvfp4 of %g gains %g", k, nvfp4);
        machine.memory_gbs = 1;
        fp8 = product_of(&costs, FACTORS_WHOLE, sizes[i]) / product_of(&costs, FACTORS_FP8, sizes[i]);
        EXPECT(near(fp8, 6.0 / 4, 1e-9), "two factors of a byte, a result of two: %g", fp8);
    }
}

static double step_of(const CostModel *costs, const ModelShape *model, const ParallelConfig *config) {
    PlanCache *cache;
    Prediction out = {0};
    EXPECT_OK(plan_cache_open(&cache));
    EXPECT_OK(predict(cache, costs, model, config, &out));
    plan_cache_close(cache);
    return out.step_s;
}

// The factors of weights are made once in a step, however many microbatches it has.
static void weights_become_factors_once(void) {
    ModelShape model = llama_of(4, 512, 8);
    Machine machine = low_machine();
    Stack stack = plain_stack();
    CostModel costs = ideal_costs(&machine, &stack), free = costs;
    double extra[3];
    free.constants.cast_passes = 0;
    for (int i = 0; i < 3; i++) {
        ParallelConfig config = config_of(1, FACTORS_FP8);
        config.batch = 1 << i;
        extra[i] = step_of(&costs, &model, &config) - step_of(&free, &model, &config);
        ParallelConfig whole = config;
        whole.factors = FACTORS_WHOLE;
        EXPECT(step_of(&free, &model, &config) < step_of(&free, &model, &whole), "fp8 is not faster");
        EXPECT(step_of(&costs, &model, &whole) == step_of(&free, &model, &whole), "bf16 makes factors");
    }
    double microbatch = extra[1] - extra[0], weights = extra[0] - microbatch;
    EXPECT(microbatch > 0 && weights > 0, "%g s each, %g once", microbatch, weights);
    EXPECT(near(extra[2], weights + 4 * microbatch, 1e-6), "%g s, not %g", extra[2],
           weights + 4 * microbatch);
    double layer = 0;
    ParallelConfig config = config_of(1, FACTORS_FP8);
    Work work;
    EXPECT_OK(work_record(&work, &model, &config));
    const WorkList *lists[] = {&work.forward[PART_LAYER], &work.backward[PART_LAYER]};
    for (int l = 0; l < 2; l++)
        for (int i = 0; i < lists[l]->count; i++)
            if (lists[l]->items[i].of_weight) layer += price_operation(&costs, &config, &lists[l]->items[i]);
    EXPECT(near(weights, 4 * layer, 1e-6), "%g s of 4 layers, not %g", weights, 4 * layer);
    work_free(&work);
}

// Inputs of products are gathered over tp as factors, and no largest magnitude is reduced; trireme does both.
static void gathers_are_of_factors(void) {
    ModelShape model = llama_of(4, 512, 8);
    Machine machine = low_machine();
    Stack stack = plain_stack();
    CostModel costs = ideal_costs(&machine, &stack);
    ParallelConfig low = config_of(2, FACTORS_FP8), whole = config_of(2, FACTORS_WHOLE);
    low.sequence_parallel = whole.sequence_parallel = true;
    PlanCache *cache;
    Prediction of_low = {0}, of_whole = {0}, of_trireme = {0};
    EXPECT_OK(plan_cache_open(&cache));
    EXPECT_OK(predict(cache, &costs, &model, &low, &of_low));
    EXPECT_OK(predict(cache, &costs, &model, &whole, &of_whole));
    EXPECT(of_low.parts.tensor < 0.85 * of_whole.parts.tensor &&
               of_low.parts.tensor > 0.6 * of_whole.parts.tensor,
           "%g s of %g", of_low.parts.tensor, of_whole.parts.tensor);
    stack.is_trireme = true;
    CostModel own = costs_of(&machine, &stack);
    EXPECT_OK(predict(cache, &own, &model, &low, &of_trireme));
    CostModel other = own;
    Stack another = stack;
    another.is_trireme = false, other.stack = &another;
    EXPECT_OK(predict(cache, &other, &model, &low, &of_low));
    EXPECT(of_trireme.parts.tensor > of_low.parts.tensor, "trireme gathers %g s, others %g",
           of_trireme.parts.tensor, of_low.parts.tensor);
    plan_cache_close(cache);
}

// In bytes of a layer: inputs of qkv and fc1 (H each) and of fc2 (F) in 1 byte instead of 2, and 1 more of proj's.
static void less_is_kept(void) {
    ModelShape model = llama_of(4, 512, 8);
    Machine machine = low_machine();
    Stack stack = plain_stack();
    CostModel costs = ideal_costs(&machine, &stack);
    ParallelConfig low = config_of(1, FACTORS_FP8), whole = config_of(1, FACTORS_WHOLE);
    double s = model.sequence, h = model.hidden, f = model.ffn;
    double less = layer_kept_bytes(&costs, &model, &whole) - layer_kept_bytes(&costs, &model, &low);
    EXPECT(near(less, s * (2 * h + f - h), 1e-9), "%g bytes less", less);
    MemoryNeed none, copies;
    costs.constants.factor_kept_bytes = 0;
    EXPECT_OK(memory_need(&costs, &model, &low, &none));
    costs.constants.factor_kept_bytes = 2;
    EXPECT_OK(memory_need(&costs, &model, &low, &copies));
    EXPECT(near(copies.total - none.total, 2 * 4 * part_parameters(&model, 1, PART_LAYER), 1e-9),
           "copies of weights take %g bytes", copies.total - none.total);
}

static void expect_refused(const Machine *machine, const ModelShape *model, FactorFormat factors,
                           const char *says) {
    ParallelConfig config = config_of(2, factors);
    char why[200] = "";
    const char *refusal = parallel_config_refuse(model, machine, &config, why, sizeof why);
    EXPECT(says ? refusal && strstr(why, says) : !refusal, "%s: %s", says ? says : "possible", why);
}

static void what_cannot_be_is_refused(void) {
    ModelShape model = llama_of(4, 512, 8);
    Machine machine = low_machine();
    expect_refused(&machine, &model, FACTORS_NVFP4, NULL);
    model.ffn = 1544;
    expect_refused(&machine, &model, FACTORS_FP8, "a rank's columns of the MLP, 772, are no multiple of 16");
    expect_refused(&machine, &model, FACTORS_WHOLE, NULL);
    model.ffn = 1536;
    machine.factor_tflops[FACTORS_MXFP8] = 0;
    expect_refused(&machine, &model, FACTORS_MXFP8,
                   "plain has no rate for products in mxfp8: leave them in bf16");
    expect_refused(&machine, &model, FACTORS_FP8, NULL);
}

// As train does: blocks of 32 ask for other widths than scales of tensors, and experts have widths, too.
static void widths_are_of_whole_blocks(void) {
    ModelShape model = llama_of(4, 512, 8);
    Machine machine = low_machine();
    model.ffn = 2 * 784;
    expect_refused(&machine, &model, FACTORS_NVFP4, NULL);
    expect_refused(&machine, &model, FACTORS_MXFP8,
                   "a rank's columns of the MLP, 784, are no multiple of 32");
    model.ffn = 1536, model.experts = 8, model.experts_topk = 2, model.expert_ffn = 2 * 100;
    expect_refused(&machine, &model, FACTORS_WHOLE, NULL);
    expect_refused(&machine, &model, FACTORS_FP8,
                   "a rank's columns of an expert, 100, are no multiple of 16: leave them in bf16");
    model.expert_ffn = 2 * 112;
    expect_refused(&machine, &model, FACTORS_FP8, NULL);
    expect_refused(&machine, &model, FACTORS_MXFP8,
                   "a rank's columns of an expert, 112, are no multiple of 32");
    model.expert_ffn = 2 * 128, model.shared_ffn = 2 * 72;
    expect_refused(&machine, &model, FACTORS_FP8,
                   "a rank's columns of the shared experts, 72, are no multiple of 16");
}

// The widths of heads are summed as train sums them: 48 + 24 columns are no whole blocks, 32 + 2 * 16 are.
static void heads_are_of_whole_blocks(void) {
    ModelShape model = llama_of(4, 512, 8);
    Machine machine = low_machine();
    model.heads = 4, model.groups = 2, model.head_size = 16;
    expect_refused(&machine, &model, FACTORS_MXFP8, NULL);
    model.heads = 8, model.head_size = 24;
    expect_refused(&machine, &model, FACTORS_FP8, NULL);
    model.groups = 4, model.head_size = 12;
    expect_refused(&machine, &model, FACTORS_FP8, NULL);
    model.groups = 2, model.head_size = 12;
    expect_refused(&machine, &model, FACTORS_FP8,
                   "a rank's columns of queries, keys and values, 72, are no multiple of 16");
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"only products of layers have them", only_products_of_layers_have_them},
                       {"products follow their peaks", products_follow_their_peaks},
                       {"weights become factors once", weights_become_factors_once},
                       {"gathers are of factors", gathers_are_of_factors},
                       {"less is kept", less_is_kept},
                       {"what cannot be is refused", what_cannot_be_is_refused},
                       {"widths are of whole blocks", widths_are_of_whole_blocks},
                       {"heads are of whole blocks", heads_are_of_whole_blocks},
                       {0}},
        argc, argv);
}
