// The losses of routers, and their gradients, have the values of their definition however many ranks share the rows:
// tensor ranks with sequence parallelism, or context ranks. The numbers are of six tokens, four experts, two of a token.
#include "harness.h"
#include "nn/router.h"
#include "nn/runtime.h"
#include <math.h>
#include <string.h>

enum { TOKENS = 6, EXPERTS = 4, TOPK = 2 };

// In the order of the positions of one sequence; as two sequences the first three are one.
static const float logits[TOKENS][EXPERTS] = {{1, 0.5f, -0.5f, 0},   {0.2f, 0.9f, 0.1f, -1},
                                              {2, -1, 0.3f, 0.4f},   {-0.3f, 1.2f, 0.7f, 0.6f},
                                              {0.8f, 0.1f, 0, 1.1f}, {1.5f, 1.4f, -2, 0.3f}};

typedef struct {
    int t, c; // ranks with rows of their own
    int samples;
    float balance, z;
    double balance_loss, z_loss;
    float gradients[2][EXPERTS]; // of tokens 0 and 3
} Case;

#define BALANCE_0                                                                                            \
    { 0.0299417f, 0.0028270f, -0.0158827f, -0.0168859f }
#define BALANCE_3                                                                                            \
    { 0.0111152f, 0.0264571f, -0.0264544f, -0.0111179f }
#define Z_0                                                                                                  \
    { 0.2711120f, 0.1644377f, 0.0604933f, 0.0997365f }

static const Case cases[] = {
    {1, 1, 1, 1, 0, 1.1877787910, 4.1682361324, {BALANCE_0, BALANCE_3}},
    {3, 1, 1, 1, 0, 1.1877787910, 4.1682361324, {BALANCE_0, BALANCE_3}},
    {1, 3, 1, 1, 0, 1.1877787910, 4.1682361324, {BALANCE_0, BALANCE_3}},
    {1, 1, 1, 0, 1, 1.1877787910, 4.1682361324, {Z_0}},
    {3, 1, 1, 0, 1, 1.1877787910, 4.1682361324, {Z_0}},
    {1, 3, 1, 0, 1, 1.1877787910, 4.1682361324, {Z_0}},
    {1, 1, 2, 1, 0, 1.2159073278, 4.1682361324, {{0}}},
    {3, 1, 2, 1, 0, 1.2159073278, 4.1682361324, {{0}}},
    {1, 3, 2, 1, 0, 1.2159073278, 4.1682361324, {{0}}},
};

// The token of row `row` of a rank, whose positions follow those of the rank before.
static int token_of(const Case *of, int rank, int rows, int row) {
    int all = rank * rows + row; // s * B + b
    return all % of->samples * (TOKENS / of->samples) + all / of->samples;
}

typedef struct {
    const Case *of;
    const Context *context;
    int rows;
    Tensor x, dx, dweights;
    Microbatch microbatch;
} Fixture;

static void expect_gradients(const Fixture *f, int rank) {
    float got[TOKENS * EXPERTS];
    device_download(f->context->device, f->context->stream, got, f->dx);
    for (int row = 0; row < f->rows; row++)
        for (int e = 0; e < EXPERTS; e++) {
            int token = token_of(f->of, rank, f->rows, row);
            float want = f->of->gradients[token / 3][e];
            if (token % 3 || f->of->gradients[token / 3][0] == 0) continue;
            EXPECT(fabsf(got[row * EXPERTS + e] - want) < 2e-7f, "t%d c%d token %d, logit %d: %.7g, not %.7g",
                   f->of->t, f->of->c, token, e, (double)got[row * EXPERTS + e], (double)want);
        }
}

static void upload(Fixture *f, const Router *router, int rank) {
    const Context *c = f->context;
    float x[TOKENS * EXPERTS], identity[EXPERTS * EXPERTS] = {0};
    for (int i = 0; i < f->rows * EXPERTS; i++)
        x[i] = logits[token_of(f->of, rank, f->rows, i / EXPERTS)][i % EXPERTS];
    for (int e = 0; e < EXPERTS; e++) identity[e * EXPERTS + e] = 1;
    device_upload(c->device, c->stream, f->x, x);
    device_upload(c->device, c->stream, router->weight->value, identity);
    device_zero(c->device, c->stream, f->dx);
    device_zero(c->device, c->stream, f->dweights);
}

static void take(Fixture *f, Arena *arena) {
    f->x = tensor_take(arena, "x", f->rows, EXPERTS, F32);
    f->dx = tensor_take(arena, "dx", f->rows, EXPERTS, F32);
    f->dweights = tensor_take(arena, "dweights", f->rows, TOPK, F32);
}

// With the unit matrix for weights, x are the logits, and the gradient of x is theirs.
static Status work(Runtime *runtime, const Case *of) {
    Context *c = &runtime->context;
    ModelShape shape = {
        .layers = 1, .hidden = EXPERTS, .experts = EXPERTS, .experts_topk = TOPK, .init_std = 1};
    shape.no_linear_bias = true;
    Params params = {0};
    ExpertLoads loads = {0};
    int stage = 0, rank = of->t > 1 ? context_rank(c, ROLE_TENSOR) : context_rank(c, ROLE_CONTEXT);
    Fixture f = {.of = of, .context = c, .rows = TOKENS / of->t / of->c};
    f.microbatch = (Microbatch){.router_scale = 1,
                                .samples = of->samples,
                                .sequence = TOKENS / of->c / of->samples,
                                .training = true};
    params_begin_unit(&params);
    Builder builder = {&params, &shape, &c->mode, 0};
    Router router = router_declare(&builder, 0);
    params_place(&params, &runtime->run, &c->groups.topology, F32, &stage, 1);
    TRY(expert_loads_open(&loads, &shape, &params));
    c->loads = &loads;
    take(&f, &runtime->run);
    Routing routing = {0};
    routing_take(c, &router, &f.microbatch, &routing, &runtime->run, f.rows);
    upload(&f, &router, rank);
    params_begin_grads(&params);
    router_choose(c, &router, &f.microbatch, f.x, &routing);
    router_gradient(c, &router, &f.microbatch, &routing, f.x, f.dweights, f.dx);
    expert_loads_end(&loads, runtime->world, 1);
    double balance = *expert_load_sum(&loads, 0, LOAD_BALANCE_LOSS),
           z = *expert_load_sum(&loads, 0, LOAD_Z_LOSS);
    EXPECT(fabs(balance - of->balance_loss) < 1e-6 && fabs(z - of->z_loss) < 1e-6,
           "t%d c%d, %d sequences: losses %.10g %.10g, not %.10g %.10g", of->t, of->c, of->samples, balance,
           z, of->balance_loss, of->z_loss);
    expect_gradients(&f, rank);
    expert_loads_close(&loads);
    params_free(&params);
    return OK;
}

static Status run(Comm *world, void *arg) {
    const Case *of = arg;
    Grid grid = GRID(of->t, 1, 1);
    grid.size[AXIS_CP] = of->c;
    RuntimeMemory memory = {.run = 1 << 16, .scratch = 1 << 16, .workspace = 1 << 16};
    RuntimeSpec spec = {.topology = topology_of(grid, comm_rank(world)),
                        .roles = ALL_ROLES,
                        .device = "reference",
                        .threads = 1,
                        .memory = &memory};
    spec.mode.sequence_parallel = of->t > 1;
    spec.mode.router = (RouterTraining){.balance = of->balance, .z = of->z, .by_sequence = of->samples > 1};
    Runtime runtime = {0};
    Status status = runtime_open(&runtime, &spec, world);
    if (status == OK) status = work(&runtime, of);
    runtime_close(&runtime);
    return status;
}

// Biases follow the loads: those of experts with less than the mean grow.
static Status step_biases(Comm *world, void *arg) {
    static const float wanted[EXPERTS] = {-1e-3f, -1e-3f, 1e-3f, 1e-3f};
    static const double counts[EXPERTS] = {5, 4, 1, 2};
    RuntimeMemory memory = {.run = 1 << 16, .scratch = 1 << 16, .workspace = 1 << 16};
    RuntimeSpec spec = {.topology = topology_of((Grid)GRID(1, 1, 1), comm_rank(world)),
                        .roles = ALL_ROLES,
                        .device = "reference",
                        .threads = 1,
                        .memory = &memory,
                        .mode = {.dtype = BF16}};
    Runtime runtime = {0};
    TRY(runtime_open(&runtime, &spec, world));
    Context *c = &runtime.context;
    ModelShape shape = {.layers = 1, .hidden = 8, .experts = EXPERTS, .experts_topk = TOPK};
    shape.router_sigmoid = shape.router_bias = true;
    Params params = {0};
    ExpertLoads loads = {0};
    int stage = 0;
    float got[EXPERTS];
    (void)arg;
    params_begin_unit(&params);
    Router router = router_declare(&(Builder){&params, &shape, &c->mode, 0}, 0);
    params_place(&params, &runtime.run, &c->groups.topology, BF16, &stage, 1);
    TRY(expert_loads_open(&loads, &shape, &params));
    TRY(params_init(&params, c->device, 1, NULL, NULL));
    memcpy(expert_loads_of(&loads, 0), counts, sizeof counts);
    expert_biases_step(&loads, c->device, c->stream, 1e-3f);
    EXPECT(router.choice->value.dtype == F32 && router.choice->frozen && !router.weight->frozen, "the bias");
    device_download(c->device, c->stream, got, router.choice->value);
    for (int e = 0; e < EXPERTS; e++) EXPECT(got[e] == wanted[e], "bias %d is %g", e, (double)got[e]);
    LoadStatistics s = expert_load_statistics(&loads, 0);
    EXPECT(fabs(s.most - 5.0 / 3) < 1e-12 && fabs(s.entropy - 0.892079564) < 1e-8, "%.9g, %.9g", s.most,
           s.entropy);
    expert_loads_close(&loads);
    params_free(&params);
    runtime_close(&runtime);
    return OK;
}

static void biases_follow_loads(void) {
    EXPECT_OK(
        comm_launch((CommOptions){.transport = "threads", .ranks = 1, .timeout_s = 60}, step_biases, NULL));
}

static void losses_are_those_of_their_definition(void) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CommOptions options = {.transport = "threads", .ranks = cases[i].t * cases[i].c, .timeout_s = 60};
        EXPECT_OK(comm_launch(options, run, (void *)(uintptr_t)&cases[i]));
    }
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"losses_are_those_of_their_definition", losses_are_those_of_their_definition},
                       {"biases_follow_loads", biases_follow_loads},
                       {0}},
        argc, argv);
}
