// Divides the samples of a step into leaves.
#include "layout/leaves.h"
#include "base/error.h"

Leaves leaves_of(const Topology *topology, int virtual_ranks) {
    int ranks = topology_size(topology, ROLE_DATA), total = virtual_ranks ? virtual_ranks : ranks;
    CHECK(total % ranks == 0, "%d leaves over %d ranks", total, ranks);
    int count = total / ranks;
    return (Leaves){total, topology_rank(topology, ROLE_DATA) * count, count, virtual_ranks != 0};
}

LeafPlace leaves_place(const Leaves *leaves, int num_microbatches, int microbatch) {
    CHECK(num_microbatches % leaves->count == 0, "%d microbatches in %d leaves", num_microbatches,
          leaves->count);
    int each = num_microbatches / leaves->count;
    return (LeafPlace){microbatch / each, microbatch % each};
}

int64_t leaves_first_sample(const Leaves *leaves, LeafPlace place, int micro_batch) {
    return ((int64_t)place.index * leaves->total + leaves->first + place.leaf) * micro_batch;
}
