// Prices: more work never takes less time, a collective takes what is published of it, and ranks that are on
// different nodes are told from those that are not.
#include "harness.h"
#include "plan_fixtures.h"
#include <sys/wait.h>
#include <unistd.h>

enum { SIZES = 12 };

static int64_t size_of(int i) { return (int64_t)64 << i; } // 64 to 131072

// ---- operations -------------------------------------------------------------------------------------------

static WorkItem product(int64_t m, int64_t n, int64_t k) {
    return (WorkItem){.op = OP_MATMUL,
                      .dtype = F16,
                      .batch = 1,
                      .m = m,
                      .n = n,
                      .k = k,
                      .flops = 2.0 * (double)(m * n * k),
                      .bytes = 2.0 * (double)(m * k + k * n + m * n)};
}

static WorkItem attention(DeviceOp op, int64_t s, int64_t d, int64_t batch, bool unfused) {
    double scores = (double)(batch * s * s);
    return (WorkItem){.op = (uint8_t)op,
                      .dtype = F16,
                      .dropout = true,
                      .probabilities = unfused,
                      .batch = batch,
                      .m = s,
                      .n = d,
                      .k = s,
                      .flops = 4 * scores * (double)d,
                      .bytes = 8.0 * (double)(batch * s * d) + (unfused ? 2 * scores : 0)};
}

static double price(const CostModel *costs, WorkItem item) {
    ParallelConfig config = candidate_of(1, 1, 1, 1);
    return price_operation(costs, &config, &item);
}

static void products_never_get_faster(const CostModel *costs) {
    uint64_t random = 7;
    for (int i = 0; i < 3000; i++) {
        int64_t size[3];
        for (int j = 0; j < 3; j++) size[j] = 1 + draw(&random, 20000);
        double before = price(costs, product(size[0], size[1], size[2]));
        size[i % 3] += 1 + draw(&random, 300);
        double after = price(costs, product(size[0], size[1], size[2]));
        EXPECT(before > 0 && after >= before * (1 - 1e-12), "%s: %g, then %g s with size %d up to %lld",
               costs->machine->name, before, after, i % 3, (long long)size[i % 3]);
    }
}

// Head sizes and ranks that the fused kernels take.
static void attention_never_gets_faster(const CostModel *costs) {
    for (int unfused = 0; unfused < 2; unfused++)
        for (DeviceOp op = OP_ATTENTION_FORWARD; op <= OP_ATTENTION_BACKWARD; op++)
            for (int i = 0; i < SIZES; i++) {
                int s = 128 << i % 6;
                double now = price(costs, attention(op, s, 64, 8, unfused));
                EXPECT(price(costs, attention(op, 2 * s, 64, 8, unfused)) > now, "twice the sequence, %d", s);
                EXPECT(price(costs, attention(op, s, 128, 8, unfused)) >= now, "twice the head size, s %d",
                       s);
                EXPECT(price(costs, attention(op, s, 64, 16, unfused)) > now, "twice the batch, s %d", s);
            }
}

static void bytes_never_get_faster(const CostModel *costs) {
    static const DeviceOp ops[] = {OP_NORM_FORWARD, OP_BIAS_GELU_BACKWARD, OP_ADD, OP_LOSS_MAX, OP_ROTARY};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        for (int j = 0; j < SIZES; j++) {
            WorkItem item = {.op = (uint8_t)ops[i], .dtype = F16, .bytes = (double)size_of(j)};
            double now = price(costs, item);
            item.bytes += 1e5;
            EXPECT(now > 0 && price(costs, item) > now, "operation %d of %g bytes", ops[i], item.bytes);
        }
}

// A product with sums is priced as one without, one with a GELU as more; a GPU's file has no rows of them yet.
static void joined_products_cost_like_products(const CostModel *costs) {
    for (int i = 0; i < SIZES && !cost_model_has_rates(costs); i++) {
        WorkItem item = product(1000 + size_of(i) % 5000, 4096, 1024), norm = {.dtype = F16, .bytes = 1e6};
        double plain = price(costs, item);
        item.op = OP_MATMUL_SUMS;
        EXPECT(price(costs, item) == plain, "%s: sums", costs->machine->name);
        item.op = OP_MATMUL_GELU;
        double forward = price(costs, item);
        item.op = OP_MATMUL_GELU_BACKWARD;
        EXPECT(forward > plain && price(costs, item) == forward, "%s: GELU", costs->machine->name);
        norm.op = OP_NORM_FORWARD;
        plain = price(costs, norm);
        norm.op = OP_NORM_BACKWARD;
        EXPECT(price(costs, norm) == plain, "%s: norms", costs->machine->name);
        norm.op = OP_LOSS_FINISH;
        plain = price(costs, norm);
        norm.op = OP_LOSS_WHOLE;
        EXPECT(price(costs, norm) == plain, "%s: losses", costs->machine->name);
    }
}

static void on_shipped_machines(void (*law)(const CostModel *costs)) {
    for (int i = 0; i < num_shipped_machines; i++) {
        Machine machine;
        Stack stack;
        EXPECT_OK(machine_open(&machine, shipped_machines[i].name));
        EXPECT_OK(stack_for(&stack, &machine, (RunKind){0}));
        CostModel costs = costs_of(&machine, &stack);
        law(&costs);
        machine_close(&machine);
    }
}

static void more_work_never_takes_less(void) {
    on_shipped_machines(products_never_get_faster);
    on_shipped_machines(attention_never_gets_faster);
    on_shipped_machines(bytes_never_get_faster);
    on_shipped_machines(joined_products_cost_like_products);
}

// What fused attention takes with heads of this size; so long a sequence that arithmetic is all of it.
static double attention_of_heads(int64_t head, double exponentials) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    CostModel costs = costs_of(&machine, &stack);
    costs.constants.attention_head_size = costs.constants.kernel_us = 0;
    costs.constants.attention_exponentials = exponentials;
    return price(&costs, attention(OP_ATTENTION_FORWARD, 1 << 16, head, 1, false));
}

// A score has one exponential whatever the heads: where these limit attention with heads of 128, shorter ones take as
// long, and longer ones are not limited once their products take longer.
static void exponentials_limit_short_heads(void) {
    double whole = attention_of_heads(128, 1);
    EXPECT(near(attention_of_heads(64, 1), whole / 2, 1e-6), "nothing limits heads of 64");
    EXPECT(near(attention_of_heads(128, 0.8), whole / 0.8, 1e-6), "heads of 128");
    EXPECT(near(attention_of_heads(64, 0.8), whole / 0.8, 1e-6), "heads of 64");
    EXPECT(near(attention_of_heads(192, 0.8), 1.5 * whole, 1e-6), "heads of 192");
}

// Nothing computes faster than its peak, nothing moves faster than memory.
static void no_faster_than_the_machine(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    CostModel costs = costs_of(&machine, &stack);
    costs.constants.tile_depth = 0;
    for (int i = 0; i < SIZES; i++) {
        WorkItem square = product(size_of(i), size_of(i), size_of(i));
        double seconds = price(&costs, square);
        EXPECT(seconds >= square.flops / 100e12, "%lld: %g s", (long long)square.m, seconds);
        WorkItem thin = product(size_of(i), size_of(i), 1);
        EXPECT(price(&costs, thin) >= thin.bytes / 1000e9, "%lld: %g s", (long long)thin.m,
               price(&costs, thin));
    }
}

// One tile more than fills the device begins another wave, which takes a whole one's time or its share of it.
static void tiles_run_in_waves(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    CostModel costs = ideal_costs(&machine, &stack);
    machine.num_tiles = 1;
    costs.constants.matmul_us = 0;
    costs.constants.wave_tail = 1;
    double full = price(&costs, product(100 * 128, 128, 4096));
    EXPECT(near(price(&costs, product(99 * 128 + 1, 128, 4096)), full, 1e-12), "the last tile of a wave");
    EXPECT(near(price(&costs, product(100 * 128 + 1, 128, 4096)), 2 * full, 1e-12), "the first of another");
    costs.constants.wave_tail = 0;
    EXPECT(near(price(&costs, product(150 * 128, 128, 4096)), 1.5 * full, 1e-12), "half a wave more");
    EXPECT(near(price(&costs, product(50 * 128, 128, 4096)), full, 1e-12), "one tile each at least");
}

// ---- collectives ------------------------------------------------------------------------------------------

static double tensor(const CostModel *costs, int t, CommOp op, double bytes) {
    ParallelConfig config = candidate_of(t, 1, 1, 1);
    return price_collective(costs, &config, op, ROLE_TENSOR, bytes);
}

static void collectives_never_get_faster_on(const CostModel *costs) {
    static const ParallelConfig grids[] = {{.grid = GRID(2, 2, 2)},
                                           {.grid = GRID(4, 16, 2)},
                                           {.grid = {.size = {[AXIS_TP] = 8, [AXIS_CP] = 2, [AXIS_DP] = 8}}},
                                           {.grid = GRID(16, 4, 1)}};
    static const CommOp ops[] = {COMM_ALL_REDUCE, COMM_REDUCE_SCATTER, COMM_ALL_GATHER};
    for (int i = 0; i < 4 * 3 * 2; i++) {
        double before = 0;
        for (double bytes = 1000; bytes < 1e10; bytes *= 1.3) {
            double seconds = price_collective(costs, &grids[i % 4], ops[i / 4 % 3],
                                              i / 12 ? ROLE_REPLICAS : ROLE_TENSOR, bytes);
            EXPECT(seconds >= before * (1 - 1e-12), "%s, grid %d, op %d: %g s of %g bytes, %g of fewer",
                   costs->machine->name, i % 4, ops[i / 4 % 3], seconds, bytes, before);
            before = seconds;
        }
    }
}

static void collectives_never_get_faster(void) { on_shipped_machines(collectives_never_get_faster_on); }

// 2(n-1)/n of the bytes pass every link.   Source: Patarasuk and Yuan 2009.
static void rings_are_as_published(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    CostModel costs = ideal_costs(&machine, &stack);
    for (int t = 2; t <= 8; t++) {
        double expected = 2.0 * (t - 1) / t * 1e9 / 200e9;
        EXPECT(near(tensor(&costs, t, COMM_ALL_REDUCE, 1e9), expected, 1e-9), "t %d", t);
        EXPECT(near(tensor(&costs, t, COMM_ALL_GATHER, 1e9), expected / 2, 1e-9), "t %d", t);
        EXPECT(near(tensor(&costs, t, COMM_REDUCE_SCATTER, 1e9), expected / 2, 1e-9), "t %d", t);
    }
    EXPECT(tensor(&costs, 1, COMM_ALL_REDUCE, 1e9) == 0, "one rank alone sends nothing");
}

// Every rank keeps 1/n and sends the rest: to its node over links, to others over its share of the NICs.
static void all_to_all_sends_each_byte_once(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    CostModel costs = ideal_costs(&machine, &stack);
    double nic = machine.nics * machine.nic_gbs * 1e9 / machine.devices_per_node;
    for (int ep = 2; ep <= 32; ep *= 2) {
        ParallelConfig config = {.grid = {.size = {[AXIS_DP] = 32, [AXIS_EP] = ep}}};
        double here = ep < machine.devices_per_node ? ep : machine.devices_per_node;
        double links = (here - 1) / ep * 1e9 / (machine.link_gbs * 1e9),
               network = (ep - here) / ep * 1e9 / nic;
        double seconds = price_collective(&costs, &config, COMM_ALL_TO_ALL, ROLE_EXPERT, 1e9);
        EXPECT(near(seconds, fmax(links, network), 1e-6), "ep %d: %g s, not %g or %g", ep, seconds, links,
               network);
    }
    ParallelConfig apart = {.grid = {.size = {[AXIS_TP] = 8, [AXIS_ETP] = 8, [AXIS_DP] = 4, [AXIS_EP] = 2}}};
    double seconds = price_collective(&costs, &apart, COMM_ALL_TO_ALL, ROLE_EXPERT, 1e9);
    EXPECT(near(seconds, 0.5e9 / nic, 1e-6), "ranks on different nodes: %g s", seconds);
}

static void latencies_are_added(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    CostModel costs = ideal_costs(&machine, &stack);
    costs.constants.link_latency_us = 10;
    costs.constants.link_latency_rank_us = 2;
    EXPECT(near(tensor(&costs, 2, COMM_ALL_REDUCE, 1), 10e-6, 1e-4), "two ranks");
    EXPECT(near(tensor(&costs, 8, COMM_ALL_REDUCE, 1), 22e-6, 1e-4), "eight ranks");
}

// A node's NICs are shared by the groups that leave it: a group with one rank there has a share alone.
static void groups_leave_nodes_through_their_nics(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    CostModel costs = ideal_costs(&machine, &stack);
    double share = 4 * 20e9 / 8;
    ParallelConfig whole = candidate_of(16, 1, 1, 1), alone = candidate_of(8, 1, 4, 1),
                   half = candidate_of(2, 1, 16, 1);
    EXPECT(near(price_collective(&costs, &whole, COMM_ALL_REDUCE, ROLE_TENSOR, 1e9),
                2.0 * 15 / 16 * 1e9 / (8 * share), 1e-6),
           "t over two nodes");
    EXPECT(near(price_collective(&costs, &alone, COMM_ALL_REDUCE, ROLE_REPLICAS, 1e9),
                2.0 * 3 / 4 * 1e9 / share, 1e-6),
           "d with one rank a node");
    EXPECT(near(price_collective(&costs, &half, COMM_ALL_REDUCE, ROLE_REPLICAS, 1e9),
                2.0 * 15 / 16 * 1e9 / (4 * share), 1e-6),
           "d with four ranks a node");
    EXPECT(tensor(&costs, 16, COMM_ALL_REDUCE, 1e9) > tensor(&costs, 8, COMM_ALL_REDUCE, 1e9),
           "nodes are slower");
    ParallelConfig inside = candidate_of(2, 1, 4, 1);
    EXPECT(near(price_collective(&costs, &inside, COMM_ALL_REDUCE, ROLE_REPLICAS, 1e9),
                2.0 * 3 / 4 * 1e9 / 200e9, 1e-6),
           "t * d of a node stay inside");
}

static void small_messages_between_nodes_are_slow(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    CostModel costs = ideal_costs(&machine, &stack), slow = costs;
    slow.constants.network_half_mb = 100;
    EXPECT(near(tensor(&slow, 16, COMM_ALL_REDUCE, 1e8), 2 * tensor(&costs, 16, COMM_ALL_REDUCE, 1e8), 1e-6),
           "half");
    EXPECT(tensor(&slow, 8, COMM_ALL_REDUCE, 1e8) == tensor(&costs, 8, COMM_ALL_REDUCE, 1e8),
           "not within nodes");
}

static void context_counts_as_data(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    CostModel costs = ideal_costs(&machine, &stack);
    ParallelConfig data = candidate_of(2, 1, 8, 1), both = candidate_of(2, 1, 2, 1);
    both.grid.size[AXIS_CP] = 4;
    double a = price_collective(&costs, &data, COMM_ALL_REDUCE, ROLE_REPLICAS, 1e9);
    EXPECT(a > 0 && a == price_collective(&costs, &both, COMM_ALL_REDUCE, ROLE_REPLICAS, 1e9), "%g s", a);
}

// ---- curves -----------------------------------------------------------------------------------------------

static void curves_are_met(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    machine.num_curves = 2;
    machine.curves[0] = (Curve){.ranks = 8, .count = 3, .points = {{1e6, 20}, {1e7, 120}, {1e9, 220}}};
    machine.curves[1] = (Curve){.ranks = 4, .count = 2, .points = {{1e6, 30}, {1e9, 200}}};
    CostModel costs = ideal_costs(&machine, &stack);
    for (int i = 0; i < 3; i++) {
        CurvePoint point = machine.curves[0].points[i];
        double expected = 2.0 * 7 / 8 * point.bytes / (point.gbs * 1e9);
        EXPECT(near(tensor(&costs, 8, COMM_ALL_REDUCE, point.bytes), expected, 1e-9), "point %d", i);
        EXPECT(tensor(&costs, 8, COMM_ALL_REDUCE, 0.99 * point.bytes) <= expected, "before point %d", i);
    }
    EXPECT(near(tensor(&costs, 4, COMM_ALL_REDUCE, 1e9), 2.0 * 3 / 4 / 200, 1e-9), "its own ranks");
    EXPECT(near(tensor(&costs, 2, COMM_ALL_REDUCE, 1e9), 2.0 / 2 / 200, 1e-9), "the next larger number's");
    EXPECT(near(tensor(&costs, 8, COMM_ALL_REDUCE, 4e9), 4 * tensor(&costs, 8, COMM_ALL_REDUCE, 1e9), 1e-9),
           "beyond the last point its bandwidth");
    EXPECT(tensor(&costs, 8, COMM_ALL_REDUCE, 10) == tensor(&costs, 8, COMM_ALL_REDUCE, 1e6),
           "below the first its time");
}

// ---- messages between stages ------------------------------------------------------------------------------

static void edges_are_where_the_ranks_are(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    CostModel costs = ideal_costs(&machine, &stack);
    ParallelConfig inside = candidate_of(2, 8, 1, 8), whole = candidate_of(8, 4, 1, 4),
                   wide = candidate_of(4, 2, 4, 2);
    for (int stage = 0; stage < 7; stage++)
        EXPECT(edge_leaves_node(&costs, &inside, stage) == (stage == 3), "stages of 2 of 8, stage %d", stage);
    EXPECT(edge_leaves_node(&costs, &inside, 7), "from the last rank to the first, as chunks go");
    EXPECT(edge_leaves_node(&costs, &whole, 1) && edge_leaves_node(&costs, &wide, 0),
           "stages of whole nodes");
    inside.grid.size[AXIS_CP] = 4;
    EXPECT(edge_leaves_node(&costs, &inside, 0), "a stage of four pairs that share a sequence");
    inside.grid.size[AXIS_CP] = 1;
    double near_s = price_message(&costs, &inside, false, 1e9),
           far_s = price_message(&costs, &inside, true, 1e9);
    EXPECT(near(near_s, 1e9 / 200e9, 1e-9) && near(far_s, 1e9 / 10e9, 1e-9), "%g and %g s", near_s, far_s);
}

// Each tensor rank sends its share over its own NIC, then the receivers gather.
static void shares_of_messages_are_gathered(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    CostModel costs = ideal_costs(&machine, &stack);
    ParallelConfig c = candidate_of(8, 2, 1, 2);
    double whole = price_message(&costs, &c, true, 1e9);
    c.scatter_gather = true;
    double gathered = whole / 8 + tensor(&costs, 8, COMM_ALL_GATHER, 1e9);
    EXPECT(near(price_message(&costs, &c, true, 1e9), gathered, 1e-9), "scattered and gathered");
    c.sequence_parallel = true;
    EXPECT(near(price_message(&costs, &c, true, 1e9), whole / 8, 1e-9),
           "a share of the sequence is a share already");
}

// A price of 0 for what nobody has measured would be a wrong plan without a word.
static void roles_without_a_price_are_a_bug(void) {
    pid_t child = fork();
    if (child == 0) {
        fclose(stderr);
        Machine machine = plain_machine();
        Stack stack = plain_stack();
        CostModel costs = costs_of(&machine, &stack);
        ParallelConfig config = candidate_of(2, 2, 2, 1);
        price_collective(&costs, &config, COMM_ALL_REDUCE, ROLE_PIPELINE, 1e6);
        _exit(0);
    }
    int state = 0;
    EXPECT(waitpid(child, &state, 0) == child && WIFEXITED(state) && WEXITSTATUS(state) == ERR_BUG,
           "status %#x", (unsigned)state);
}

// ---- measured in trireme's own steps ------------------------------------------------------------------------

// Only trireme's own operations are those that were measured.
static void rates_are_trireme_s(void) {
    Rate rows[] = {{"add", F16, 1, 3, {1, 0, 0}, 0}, {"adamw", F32, 1, 3, {2, 0, 0}, 0}};
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    CostModel costs = ideal_costs(&machine, &stack);
    WorkItem item = {.op = OP_ADD, .dtype = F16, .m = 1, .n = 10, .bytes = 60};
    double priced = price(&costs, item);
    machine.rates = rows, machine.num_rates = 2;
    costs.constants.memory_efficiency = 0.5;
    EXPECT(priced < 1e-6 && price(&costs, item) < 1e-6, "another program pays trireme's price");
    stack.is_trireme = true;
    EXPECT(price(&costs, item) == 2, "one second at half the efficiency takes %g", price(&costs, item));
    machine.num_rates = 0;
    EXPECT(price(&costs, item) < 1e-6, "a machine without rates: %g", price(&costs, item));
}

// A weight gradient is read and written in fp32; other programs say so by a constant.
static void own_sums_are_fp32(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    stack.is_trireme = true;
    CostModel costs = ideal_costs(&machine, &stack);
    costs.constants.memory_efficiency = 1;
    WorkItem item = product(4096, 4096, 1);
    item.bytes = 4.0 * 4096 * 4096;
    double written = price(&costs, item);
    item.accumulate = true;
    EXPECT(fabs(written - item.bytes / 1e12) < 1e-9, "%g s", written);
    EXPECT(fabs(price(&costs, item) - 2 * written) < 1e-9, "%g s, not twice %g", price(&costs, item),
           written);
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"more_work_never_takes_less", more_work_never_takes_less},
                       {"exponentials_limit_short_heads", exponentials_limit_short_heads},
                       {"no_faster_than_the_machine", no_faster_than_the_machine},
                       {"tiles_run_in_waves", tiles_run_in_waves},
                       {"collectives_never_get_faster", collectives_never_get_faster},
                       {"rings_are_as_published", rings_are_as_published},
                       {"all_to_all_sends_each_byte_once", all_to_all_sends_each_byte_once},
                       {"latencies_are_added", latencies_are_added},
                       {"groups_leave_nodes_through_their_nics", groups_leave_nodes_through_their_nics},
                       {"small_messages_between_nodes_are_slow", small_messages_between_nodes_are_slow},
                       {"context_counts_as_data", context_counts_as_data},
                       {"curves_are_met", curves_are_met},
                       {"edges_are_where_the_ranks_are", edges_are_where_the_ranks_are},
                       {"shares_of_messages_are_gathered", shares_of_messages_are_gathered},
                       {"roles_without_a_price_are_a_bug", roles_without_a_price_are_a_bug},
                       {"rates_are_trireme_s", rates_are_trireme_s},
                       {"own_sums_are_fp32", own_sums_are_fp32},
                       {0}},
        argc, argv);
}
