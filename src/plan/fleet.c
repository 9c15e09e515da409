// Factors of slow nodes on the times of the pipeline ranks that they hold. Computing takes as much longer as it does on
// a slow node. What crosses the network takes as long as the slowest NIC, and what crosses the uplink as long as that:
// the steps of a ring wait for its slowest link.
#include "plan/fleet.h"
#include <math.h>

static bool is_slow(const CostModel *costs, const ParallelConfig *config, int rank) {
    const SlowPlace *place = &config->slow;
    return costs->slow.nodes && rank >= place->first && rank < place->first + place->count;
}

static double slow_devices(const CostModel *costs) {
    return (double)costs->slow.nodes * costs->machine->devices_per_node;
}

// Of a collective of ranks that lie among so many neighbouring devices, some of them on slow nodes.
static double over_network(const CostModel *costs, double devices) {
    const SlowNodes *slow = &costs->slow;
    if (devices <= costs->machine->devices_per_node) return 1;
    return devices > slow_devices(costs) ? fmax(slow->nic, slow->uplink) : slow->nic;
}

static double of_role(const CostModel *costs, const ParallelConfig *config, Role role) {
    return over_network(costs, price_reach(config, role));
}

SlowFactors slow_factors(const CostModel *costs, const ParallelConfig *config, int rank) {
    if (!is_slow(costs, config, rank)) return (SlowFactors){1, 1, 1};
    double tensor = of_role(costs, config, ROLE_TENSOR), context = of_role(costs, config, ROLE_CONTEXT);
    return (SlowFactors){
        .compute = costs->slow.compute,
        .tensor = fmax(tensor, context),
        .experts = of_role(costs, config, ROLE_EXPERT),
    };
}

double slow_edge(const CostModel *costs, const ParallelConfig *config, int from, int to) {
    bool a = is_slow(costs, config, from), b = is_slow(costs, config, to);
    if (!a && !b) return 1;
    return a == b ? costs->slow.nic : fmax(costs->slow.nic, costs->slow.uplink);
}

double slow_replicas(const CostModel *costs, const ParallelConfig *config, int rank) {
    if (!is_slow(costs, config, rank)) return 1;
    return of_role(costs, config, ROLE_REPLICAS);
}

int slow_places(const CostModel *costs, const ParallelConfig *config, SlowPlace places[MAX_SLOW_PLACES]) {
    int per_node = costs->machine->devices_per_node, ranks = grid_along(config->grid, AXIS_PP), count = 0;
    int devices = parallel_config_devices(config), block = devices / ranks;
    int nodes = (devices + per_node - 1) / per_node;
    int last = nodes > costs->slow.nodes ? nodes - costs->slow.nodes : 0;
    int step = last / MAX_SLOW_PLACES + 1;
    for (int node = 0; node <= last && count < MAX_SLOW_PLACES; node += step) {
        int64_t end = ((int64_t)node + costs->slow.nodes) * per_node;
        int first = (int)((int64_t)node * per_node / block);
        int after = (int)(((end < devices ? end : devices) + block - 1) / block);
        SlowPlace place = {.first = first, .count = after - first};
        const SlowPlace *before = count ? &places[count - 1] : NULL;
        if (!before || before->first != place.first || before->count != place.count) places[count++] = place;
    }
    return count;
}
