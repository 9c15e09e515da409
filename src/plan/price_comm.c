// Prices of collectives and messages. Neighbouring ranks of a group are `stride` devices apart, node after node,
// which says how many of them share a node and how many of its NICs they use. Inside a node the bandwidth is the
// measured one for the size; between nodes it is that of the members' NICs.
#include "machine/rates.h"
#include "plan/plan.h"
#include <math.h>

typedef struct {
    double ranks, here, nodes; // all; on one node; nodes
} Spread;

static double us(double microseconds) { return microseconds * 1e-6; }

// Returns the distance in devices between neighbours on an axis of a view.
static int axis_stride(Grid grid, View view, Axis axis) {
    int stride = 1;
    for (Axis inner = 0; inner < axis; inner++)
        if (topology_axes[inner].views & view) stride *= grid_along(grid, inner);
    return stride;
}

static Axis first_axis(Role role) {
    Axis axis = 0;
    while (!(topology_roles[role].axes & 1u << axis)) axis++;
    return axis;
}

static bool are_replicas(Role role) {
    bool all = role == ROLE_REPLICAS || role == ROLE_EXPERT_REPLICAS;
    return all || topology_roles[role].part != PART_WHOLE;
}

// Those of each instance are neighbours.
static int role_stride(Grid grid, Role role) {
    const RoleInfo *info = &topology_roles[role];
    int stride = axis_stride(grid, info->view, first_axis(role));
    Role shards = info->view == VIEW_DENSE ? ROLE_REPLICAS_SHARDS : ROLE_EXPERT_REPLICAS_SHARDS;
    return info->part == PART_ACROSS ? stride * grid_count(grid, shards) : stride;
}

double price_reach(const ParallelConfig *config, Role role) {
    return (double)grid_count(config->grid, role) * role_stride(config->grid, role);
}

static Spread group_spread(const Machine *machine, int ranks, int stride) {
    int here = machine->devices_per_node / stride;
    if (here < 1) here = 1;
    if (here > ranks) here = ranks;
    return (Spread){ranks, here, ceil((double)ranks / here)};
}

// ---- inside a node ----------------------------------------------------------------------------------

// Returns the curve measured with as many ranks of a node, or as many nodes; else the next larger number, else the
// largest.
static const Curve *find_curve(const Machine *machine, int ranks, int nodes) {
    const Curve *best = NULL;
    int wanted = nodes > 1 ? nodes : ranks;
    for (int i = 0; i < machine->num_curves; i++) {
        const Curve *curve = &machine->curves[i];
        if ((curve->nodes > 1) != (nodes > 1)) continue;
        int size = nodes > 1 ? curve->nodes : curve->ranks;
        int best_size = !best ? 0 : nodes > 1 ? best->nodes : best->ranks;
        bool nearer = size >= wanted ? best_size < wanted || size < best_size : size > best_size;
        if (nearer) best = curve;
    }
    return best;
}

// Seconds for `bus` bus bytes per byte. Bandwidth is interpolated in logarithms between the points; below the first
// point the time is constant, beyond the last one the bandwidth.
static double curve_seconds(const Curve *curve, double bytes, double bus) {
    const CurvePoint *points = curve->points;
    int last = curve->count - 1, i = 0;
    if (bytes <= points[0].bytes) return points[0].bytes * bus / (points[0].gbs * 1e9);
    if (bytes >= points[last].bytes) return bytes * bus / (points[last].gbs * 1e9);
    while (points[i + 1].bytes < bytes) i++;
    double at = log(bytes / points[i].bytes) / log(points[i + 1].bytes / points[i].bytes);
    double gbs = exp((1 - at) * log(points[i].gbs) + at * log(points[i + 1].gbs));
    // A larger message is never faster than a smaller one: such a measurement is noise.
    return fmax(bytes / gbs, points[i].bytes / points[i].gbs) * bus * 1e-9;
}

// Seconds of an all-reduce inside a node; gathers and scatters take half of it.
static double inside_seconds(const CostModel *costs, double ranks, double bytes) {
    const Machine *machine = costs->machine;
    const Constants *c = &costs->constants;
    double bus = 2 * (ranks - 1) / ranks;
    const Curve *curve = find_curve(machine, (int)ranks, 1);
    if (curve) return curve_seconds(curve, bytes, bus);
    double latency = us(c->link_latency_us + (ranks - 2) * c->link_latency_rank_us);
    return latency + bytes * bus / (machine->link_gbs * 1e9 * c->link_efficiency);
}

// ---- between nodes -------------------------------------------------------------------------------------

static double nic_rate(const Machine *machine) { // bytes/s of the NICs that each device has on average
    return machine->nics * machine->nic_gbs * 1e9 / machine->devices_per_node;
}

// A group with `here` devices of each node uses as large a share of the node's NICs.
static double between_seconds(const CostModel *costs, Spread spread, double bytes) {
    const Machine *machine = costs->machine;
    const Constants *c = &costs->constants;
    double bus = 2 * (spread.ranks - 1) / spread.ranks, share = spread.here / machine->devices_per_node;
    const Curve *curve = find_curve(machine, 0, (int)spread.nodes);
    if (curve) return curve_seconds(curve, bytes, bus) / share;
    double rate = fmin(nic_rate(machine) * spread.here * c->network_efficiency,
                       machine->link_gbs * 1e9 * c->link_efficiency);
    rate *= bytes / (bytes + c->network_half_mb * 1e6 + 1);
    double latency = us(c->network_latency_us) * log2(spread.nodes) + us(c->link_latency_us);
    return latency + bytes * bus / rate;
}

// Of what a device sends to all others the share for those of its own node goes over links, the rest over its NICs, and
// both go at once. Inside a node the bandwidth is that of gathers: every device sends and receives as much in them.
static double swap_seconds(const CostModel *costs, Spread spread, double bytes) {
    const Constants *c = &costs->constants;
    double inside = inside_seconds(costs, fmax(spread.here, 2), bytes * spread.here / spread.ranks) / 2;
    if (spread.nodes <= 1) return inside * c->gather_penalty;
    double sent = bytes * (spread.ranks - spread.here) / spread.ranks;
    double latency = us(c->network_latency_us) * log2(spread.nodes) + us(c->link_latency_us);
    return fmax(inside, latency + sent / (nic_rate(costs->machine) * c->network_efficiency));
}

static double group_seconds(const CostModel *costs, Spread spread, CommOp op, double bytes) {
    if (spread.ranks <= 1) return 0;
    if (op == COMM_ALL_TO_ALL) return swap_seconds(costs, spread, bytes);
    double all_reduce =
        spread.nodes > 1 ? between_seconds(costs, spread, bytes) : inside_seconds(costs, spread.ranks, bytes);
    return op == COMM_ALL_REDUCE ? all_reduce : all_reduce / 2 * costs->constants.gather_penalty;
}

// The factor for several groups of a node that use the network at once.
static double crowding(const CostModel *costs, Spread spread) {
    const Constants *c = &costs->constants;
    if (spread.here >= costs->machine->devices_per_node) return 1;
    return spread.here > 1 ? c->network_mixing : c->network_sharing;
}

// Reductions over replicas. Between nodes many groups share the NICs of a node, one group cannot use all of them,
// and contention grows with the number of devices.
static double data_seconds(const CostModel *costs, const ParallelConfig *config, Spread spread, CommOp op,
                           double bytes) {
    const Constants *c = &costs->constants;
    double alone = group_seconds(costs, spread, op, bytes);
    if (spread.nodes <= 1) return alone / c->data_derate;
    double bus = (op == COMM_ALL_REDUCE ? 2 : 1) * (spread.ranks - 1) / spread.ranks;
    double limit = c->ring_limit * bytes * bus / nic_rate(costs->machine);
    double growth = pow(parallel_config_devices(config) / 64.0, c->data_growth);
    return (alone * crowding(costs, spread) / c->data_derate + limit) * growth;
}

// Of calls within a layer. Ranks never arrive at a collective at exactly the same time: the first ones wait.
static double layer_seconds(const CostModel *costs, Spread spread, CommOp op, double bytes) {
    const Constants *c = &costs->constants;
    double wait = us(c->tensor_wait_us) * sqrt(spread.ranks / 8) * (op == COMM_ALL_REDUCE ? 1 : 0.5);
    return group_seconds(costs, spread, op, bytes) / c->tensor_derate + wait;
}

double price_collective(const CostModel *costs, const ParallelConfig *config, CommOp op, Role role,
                        double bytes) {
    const RoleInfo *info = &topology_roles[role];
    bool layers =
        role == ROLE_TENSOR || role == ROLE_CONTEXT || role == ROLE_EXPERT || role == ROLE_EXPERT_TENSOR;
    CHECK(layers || are_replicas(role), "%s of the group %s has no price", comm_op_name(op), info->name);
    int ranks = grid_count(config->grid, role);
    if (ranks <= 1) return 0;
    double derate = layers ? costs->constants.tensor_derate : costs->constants.data_derate;
    if (costs->machine->is_cpu) return price_collective_by_rates(costs->machine, ranks, op, bytes) / derate;
    Spread spread = group_spread(costs->machine, ranks, role_stride(config->grid, role));
    return layers ? layer_seconds(costs, spread, op, bytes) : data_seconds(costs, config, spread, op, bytes);
}

// ---- tokens to their experts ---------------------------------------------------------------------------

// Whether none of `chosen` of `all` experts is among `here` of them, where each is as likely.
static double none_of(double all, double here, int chosen) {
    double none = 1;
    for (int i = 0; i < chosen; i++) none *= fmax(0, all - here - i) / (all - i);
    return none;
}

static double combinations(int n, int k) {
    double ways = k <= n;
    for (int i = 0; i < k; i++) ways *= (double)(n - i) / (k - i);
    return ways;
}

// How many of so many equal parts of the ranks have any of the experts of a token. Where its experts lie in some open
// groups of neighbours alone, a part has a share of one group, or as many whole ones as it is large.
//   Source: Liu 2024 (DeepSeek-V3), section 2.1.2, node-limited routing
static double parts_of_token(const ModelShape *model, double parts) {
    int groups = model->router_groups ? model->router_groups : 1;
    int open = model->router_groups ? model->router_open_groups : 1, here = (int)fmax(1, groups / parts);
    double candidates = (double)model->experts * open / groups,
           of_group = model->experts / fmax(parts, groups);
    double none = 0;
    for (int k = 0; k <= here && k <= open; k++) { // k of the part's groups are open
        double ways = combinations(here, k) * combinations(groups - here, open - k);
        none += ways / combinations(groups, open) * none_of(candidates, k * of_group, model->experts_topk);
    }
    return parts * (1 - none);
}

// A token crosses the network once for each other node and is spread over links there, while the next ones arrive.
//   Source: Liu 2024 (DeepSeek-V3), section 3.2.2
static double once_seconds(const CostModel *costs, const ModelShape *model, Spread spread, double bytes) {
    const Constants *c = &costs->constants;
    double token = bytes / model->experts_topk;
    double inside = inside_seconds(costs, fmin(spread.ranks, costs->machine->devices_per_node),
                                   token * parts_of_token(model, spread.ranks)) /
                    2;
    if (spread.nodes <= 1) return inside * c->gather_penalty;
    double sent = token * parts_of_token(model, spread.nodes) * (1 - 1 / spread.nodes);
    double latency = us(c->network_latency_us) * log2(spread.nodes) + us(c->link_latency_us);
    return fmax(inside, latency + sent / (nic_rate(costs->machine) * c->network_efficiency));
}

double price_dispatch(const CostModel *costs, const ModelShape *model, const ParallelConfig *config,
                      double bytes) {
    int ranks = grid_along(config->grid, AXIS_EP);
    if (ranks == 1 || costs->machine->is_cpu || !costs->stack->dispatches_once || config->sends_pairs)
        return price_collective(costs, config, COMM_ALL_TO_ALL, ROLE_EXPERT, bytes);
    Spread spread = group_spread(costs->machine, ranks, axis_stride(config->grid, VIEW_EXPERTS, AXIS_EP));
    return once_seconds(costs, model, spread, bytes) / costs->constants.tensor_derate;
}

// ---- messages between stages -----------------------------------------------------------------------------

bool edge_leaves_node(const CostModel *costs, const ParallelConfig *config, int stage) {
    int stride = axis_stride(config->grid, VIEW_DENSE, AXIS_PP), per_node = costs->machine->devices_per_node;
    int ranks = grid_along(config->grid, AXIS_PP);
    int last_of_stage = (stage % ranks + 1) * stride - 1, to = (stage + 1) % ranks * stride;
    return last_of_stage / per_node != to / per_node || stride >= per_node;
}

// Each of the t ranks sends the whole tensor, or its share, which the receivers gather. With sequence parallelism
// each rank has only a share to begin with.
double price_message(const CostModel *costs, const ParallelConfig *config, bool leaves_node, double bytes) {
    const Constants *c = &costs->constants;
    if (costs->machine->is_cpu) return price_message_by_rates(costs->machine, bytes) / c->message_derate;
    int t = grid_along(config->grid, AXIS_TP);
    bool shares = t > 1 && (config->scatter_gather || config->sequence_parallel);
    double rate =
        leaves_node ? nic_rate(costs->machine) : costs->machine->link_gbs * 1e9 * c->link_efficiency;
    double seconds = us(c->message_us) + (shares ? bytes / t : bytes) / (rate * c->message_derate);
    if (shares && !config->sequence_parallel)
        seconds += price_collective(costs, config, COMM_ALL_GATHER, ROLE_TENSOR, bytes);
    return seconds;
}

// The keys and values of the other ranks of a sequence arrive one after another, while attention to those before them
// is computed.
double price_context(const CostModel *costs, const ParallelConfig *config, double bytes) {
    int c = grid_along(config->grid, AXIS_CP), t = grid_along(config->grid, AXIS_TP);
    const Constants *k = &costs->constants;
    if (costs->machine->is_cpu) return price_message_by_rates(costs->machine, bytes) / k->message_derate;
    bool inside = t * c <= costs->machine->devices_per_node;
    double rate = inside ? costs->machine->link_gbs * 1e9 * k->link_efficiency : nic_rate(costs->machine);
    return bytes / rate * k->context_exposed;
}
