// Machines, stacks and models that the tests of plans share.
#pragma once
#include "harness.h"
#include "plan/plan.h"
#include <math.h>

// Round numbers and no curves: what anything takes can be said in a formula.
static inline Machine plain_machine(void) {
    return (Machine){.name = "plain",
                     .gpu = "plain",
                     .devices_per_node = 8,
                     .peak_tflops = {[F32] = 50, [BF16] = 100, [F16] = 100},
                     .memory_gb = 80,
                     .usable_gb = 80,
                     .memory_gbs = 1000,
                     .sms = 100,
                     .link_gbs = 200,
                     .nics = 4,
                     .nic_gbs = 20,
                     .tiles = {{128, 128, 1}, {64, 64, 0.6}},
                     .num_tiles = 2};
}

static inline Stack plain_stack(void) {
    return (Stack){
        .name = "plain", .machine = "plain", .state_bytes = 4, .sharded_bytes = 14, .gradient_bytes = 2};
}

static inline CostModel costs_of(const Machine *machine, const Stack *stack) {
    return (CostModel){.machine = machine, .stack = stack, .constants = constants_of(machine, stack)};
}

// Nothing but what is computed and what the links carry at their rate: no latencies, launches, waits.
static inline CostModel ideal_costs(const Machine *machine, const Stack *stack) {
    CostModel costs = costs_of(machine, stack);
    Constants *c = &costs.constants;
    c->link_latency_us = c->link_latency_rank_us = c->network_latency_us = c->network_half_mb = 0;
    c->tensor_wait_us = c->message_us = c->ring_limit = c->data_growth = c->straggler = 0;
    c->kernel_us = c->matmul_us = c->launch_us = c->microbatch_ms = c->step_ms = 0;
    c->link_efficiency = c->network_efficiency = c->tensor_derate = c->data_derate = c->message_derate = 1;
    c->gather_penalty = c->network_sharing = c->network_mixing = 1;
    return costs;
}

static inline ModelShape gpt_of(int layers, int hidden, int heads) {
    return (ModelShape){.layers = layers,
                        .hidden = hidden,
                        .heads = heads,
                        .head_size = hidden / heads,
                        .ffn = 4 * hidden,
                        .sequence = 2048,
                        .positions = 2048,
                        .vocabulary = 51200,
                        .hidden_dropout = 0.1f,
                        .attention_dropout = 0.1f,
                        .norm_epsilon = 1e-5f,
                        .init_std = 0.02f};
}

// Groups of four heads share their keys and values.
static inline ModelShape llama_of(int layers, int hidden, int heads) {
    ModelShape model = gpt_of(layers, hidden, heads);
    model.groups = heads / 4;
    model.ffn = 3 * hidden;
    model.vocabulary = 32000;
    model.activation = ACTIVATION_SWIGLU, model.position = POSITION_ROTARY, model.rotary_base = 10000;
    model.rms_norm = model.no_linear_bias = model.untied = true;
    model.hidden_dropout = model.attention_dropout = 0;
    return model;
}

static inline ParallelConfig candidate_of(int t, int p, int d, int microbatches) {
    return (ParallelConfig){.grid = GRID(t, d, p),
                            .chunks = 1,
                            .microbatch = 1,
                            .batch = d * microbatches,
                            .schedule = "1f1b",
                            .recompute = RECOMPUTE_UNIFORM,
                            .attention = ATTENTION_UNFUSED,
                            .dtype = F16};
}

// A number below `limit`, the next of a sequence. Source: Marsaglia 2003, xorshift.
static inline int draw(uint64_t *state, int limit) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return (int)(*state >> 33) % limit;
}

static inline bool near(double a, double b, double share) {
    return fabs(a - b) <= share * fmax(fabs(a), fabs(b));
}

// A machine and a stack as shipped.
typedef struct {
    Machine machine;
    Stack stack;
    CostModel costs;
} Planned;

// Megatron-LM of 2022 as published: nothing but what is held.
static inline void open_plan(Planned *place) {
    EXPECT_OK(machine_open(&place->machine, "dgx-a100-80gb"));
    EXPECT_OK(stack_open(&place->stack, "megatron-lm-2022"));
    place->costs = costs_of(&place->machine, &place->stack);
    place->costs.constants.activation_factor = 1;
    place->costs.constants.reserve_gb = 0;
}

// Nothing recomputed.
static inline ParallelConfig grid_of(int tp, int pp, int dp, int microbatch, int microbatches) {
    ParallelConfig config = candidate_of(tp, pp, dp, microbatches);
    config.recompute = RECOMPUTE_NOTHING;
    config.microbatch = microbatch;
    config.batch *= microbatch;
    return config;
}
