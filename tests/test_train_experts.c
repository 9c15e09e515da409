// Layers with experts: their gradients agree with differences of the loss, memory is what was predicted where all tokens
// go to the same experts, and layers with and without experts may be mixed. The laws of all models are in
// test_train_laws.c and test_train_memory.c.
#include "harness.h"
#include "runs.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static EngineSpec spec_of(Grid grid, int layers) {
    EngineSpec spec = run_spec(grid, "1f1b", 1, layers, 2);
    run_make_model(&spec, RUN_EXPERTS);
    spec.shape.hidden_dropout = spec.shape.attention_dropout = 0;
    return spec;
}

// ---- differences of the loss --------------------------------------------------------------------------------

// What changes in the model of one test.
typedef struct {
    const char *name;
    bool sigmoid, pre_softmax;
    int groups, open_groups, topk, shared;
    RouterTraining router;
    bool gate, biases;
} Form;

static const Form forms[] = {
    {"softmax after the choice", false, false, 0, 0, 2, 8, {.z = 0}, false, false},
    {"softmax before the choice", false, true, 0, 0, 3, 0, {.z = 0}, false, false},
    {"sigmoids in groups", true, false, 2, 1, 2, 8, {.z = 0}, false, false},
    {"a loss of each microbatch", false, false, 0, 0, 2, 8, {.balance = 0.5f}, false, false},
    {"losses of each sequence",
     false,
     true,
     0,
     0,
     3,
     0,
     {.balance = 0.5f, .z = 0.1f, .by_sequence = true},
     false,
     false},
    {.name = "a gate of shared experts",
     .topk = 2,
     .shared = 8,
     .router = {.balance = 0.5f, .jitter = 0.1f, .capacity = 1},
     .gate = true},
    {"a capacity", false, false, 0, 0, 2, 8, {.capacity = 1}, false, false},
    {"a capacity by position, jitter",
     false,
     true,
     0,
     0,
     3,
     0,
     {.balance = 0.5f, .capacity = 1.1f, .by_position = true, .jitter = 0.2f},
     false,
     false},
    {"losses of sigmoids", true, false, 2, 1, 2, 8, {.balance = 0.5f, .z = 0.1f}, false, false},
    {.name = "biases, gates that are cut off",
     .topk = 2,
     .router = {.balance = 0.5f, .capacity = 1},
     .biases = true},
};

static EngineSpec spec_of_form(const Form *form) {
    EngineSpec spec = spec_of((Grid)GRID(1, 1, 1), 2);
    ModelShape *s = &spec.shape;
    s->router_sigmoid = form->sigmoid, s->router_pre_softmax = form->pre_softmax;
    s->router_groups = form->groups, s->router_open_groups = form->open_groups;
    s->experts_topk = form->topk, s->shared_ffn = form->shared;
    s->router_scale = 1.5f, s->init_std = 0.2f, s->seed = 77; // no choice changes within a step
    spec.device = "reference";
    spec.mode.router = form->router;
    s->shared_gate = form->gate;
    if (form->biases) {
        s->no_linear_bias = false;
        s->activation = ACTIVATION_QUICK_GEGLU, s->glu_offset = 1, s->glu_clamp = 0.7f;
    }
    spec.mode.microbatch = 2, spec.num_microbatches = 1;
    return spec;
}

static bool is_of_experts(const Param *p) {
    return strstr(p->spec.name, "router") || strstr(p->spec.name, "experts") ||
           strstr(p->spec.name, "pre_mlp_layernorm");
}

// What training minimizes: the loss, and those of all layers' routers.
static double whole_loss(Engine *engine, Batch batch) {
    const RouterTraining *router = &engine_spec_of(engine)->mode.router;
    const ExpertLoads *loads = engine_expert_loads(engine);
    double loss = (double)engine_gradients(engine, batch, 1).loss;
    for (int layer = 0; layer < loads->layers; layer++)
        loss += (double)router->balance * *expert_load_sum(loads, layer, LOAD_BALANCE_LOSS) +
                (double)router->z * *expert_load_sum(loads, layer, LOAD_Z_LOSS);
    return loss;
}

static double loss_beside(Engine *engine, const Param *p, Batch batch, const float *value,
                          const float *gradient, double step) {
    const Context *c = engine_context(engine);
    int64_t count = param_local_count(p);
    float *moved = malloc((size_t)count * sizeof *moved);
    CHECK(moved, "no memory");
    for (int64_t i = 0; i < count; i++) moved[i] = (float)((double)value[i] + step * (double)gradient[i]);
    device_upload(c->device, c->stream, p->value, moved);
    free(moved);
    return whole_loss(engine, batch);
}

// The slope of the loss along the gradient is the square of its length.
static void check_parameter(Engine *engine, const Param *p, Batch batch, const float *gradient,
                            const char *form) {
    const Context *c = engine_context(engine);
    int64_t count = param_local_count(p);
    float *value = malloc((size_t)count * sizeof *value);
    double square = 0;
    CHECK(value, "no memory");
    device_download(c->device, c->stream, value, p->value);
    for (int64_t i = 0; i < count; i++) square += (double)gradient[i] * (double)gradient[i];
    double step = 5e-4 / sqrt(square); // the loss changes by as many times the length of the gradient
    double up = loss_beside(engine, p, batch, value, gradient, step),
           down = loss_beside(engine, p, batch, value, gradient, -step);
    double slope = (up - down) / (2 * step);
    device_upload(c->device, c->stream, p->value, value);
    free(value);
    double room = 0.01 * square + 2e-6 / step; // fp32 losses of about 4
    EXPECT(square > 0 && fabs(slope - square) < room, "%s, %s: a slope of %g, the gradient's square is %g",
           form, p->spec.name, slope, square);
}

static Status check_form(Comm *world, void *arg) {
    const Form *form = arg;
    EngineSpec spec = spec_of_form(form);
    Engine *engine;
    TRY(engine_open(&engine, &spec, world));
    const Context *c = engine_context(engine);
    const Params *params = engine_params(engine);
    Batch batch = run_batch(&spec, c, 0, spec.num_microbatches);
    engine_gradients(engine, batch, 1);
    float **gradients = calloc((size_t)params->count, sizeof *gradients);
    CHECK(gradients, "no memory");
    for (int i = 0; i < params->count; i++) {
        const Param *p = params->items[i];
        gradients[i] = malloc((size_t)param_local_count(p) * sizeof **gradients);
        CHECK(gradients[i], "no memory");
        device_download(c->device, c->stream, gradients[i], p->grad);
    }
    int checked = 0;
    for (int i = 0; i < params->count; i++) {
        if (is_of_experts(params->items[i])) {
            check_parameter(engine, params->items[i], batch, gradients[i], form->name);
            checked++;
        }
        free(gradients[i]);
    }
    // In each of two layers the router's and the experts' biases are three.
    EXPECT(checked == (form->shared ? 12 : 8) + 2 * form->gate + 6 * form->biases, "%d parameters", checked);
    free(gradients);
    run_batch_free(&batch);
    engine_close(engine);
    return OK;
}

static void gradients_are_slopes(void) {
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        CommOptions options = {.transport = "threads", .ranks = 1, .timeout_s = 60};
        EXPECT_OK(comm_launch(options, check_form, (void *)(uintptr_t)&forms[i]));
    }
}

// ---- the worst routing --------------------------------------------------------------------------------------

// Equal logits: every token goes to the experts with the lowest numbers.
static void make_routers_equal(Engine *engine, void *self) {
    const Context *c = engine_context(engine);
    const Params *params = engine_params(engine);
    int *routers = self;
    for (int i = 0; i < params->count; i++) {
        const Param *p = params->items[i];
        if (p->chunk < 0 || !strstr(p->spec.name, "router")) continue;
        device_zero(c->device, c->stream, p->value);
        *routers += 1;
    }
}

static void worst_routing_fits(void) {
    static const DType types[] = {F32, BF16};
    for (int way = 0; way < 8; way++) {
        int routers = 0;
        RunPlan plan = {.spec = spec_of((Grid)GRID(1, 1, 1), 2), .steps = 2, .transport = "threads"};
        plan.lr = 1e-3;
        plan.spec.mode.dtype = types[way & 1];
        plan.spec.mode.microbatch = way & 2 ? 2 : 1;
        plan.spec.num_microbatches = way & 2 ? 1 : 2;
        if (way & 4) plan.spec.mode.recompute = RECOMPUTE_UNIFORM, plan.spec.mode.recompute_layers = 1;
        plan.opened = make_routers_equal, plan.finished = run_expect_predicted_memory, plan.self = &routers;
        RunResult result;
        run_or_complain(&plan, "all tokens to the same experts", &result);
        EXPECT(routers == 2, "%d routers", routers);
    }
}

// ---- layers with and without experts ------------------------------------------------------------------------

static void layers_may_be_mixed(void) {
    RunResult first;
    for (int way = 0; way < 3; way++) {
        RunPlan plan = {
            .spec = spec_of((Grid)GRID(1, 1, way ? 2 : 1), 4), .steps = 3, .transport = "threads"};
        plan.lr = 1e-3;
        plan.spec.shape.experts_period = 3, plan.spec.shape.experts_layers = 6;
        if (way == 2) plan.spec.schedule = "zb-h1";
        plan.finished = run_expect_predicted_memory;
        RunResult result;
        if (!run_or_complain(&plan, "mixed layers", &result)) return;
        if (way) run_expect_same_bits(&first, &result, "mixed layers on two stages");
        if (!way) first = result;
    }
    ModelShape mixed = spec_of((Grid)GRID(1, 1, 1), 4).shape, none = mixed, all = mixed;
    none.experts = 0;
    mixed.experts_period = 4, mixed.experts_layers = 6;
    EXPECT(2 * model_parameters(&mixed) == model_parameters(&none) + model_parameters(&all),
           "%lld parameters", (long long)model_parameters(&mixed));
    EXPECT(2 * model_flops(&mixed, 67, 1) == model_flops(&none, 67, 1) + model_flops(&all, 67, 1), "%g flops",
           model_flops(&mixed, 67, 1));
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"gradients_are_slopes", gradients_are_slopes},
                                      {"worst_routing_fits", worst_routing_fits},
                                      {"layers_may_be_mixed", layers_may_be_mixed},
                                      {0}},
                       argc, argv);
}
