// Leaves of a step: on any number of data-parallel ranks they hold every sample once, and each leaf the same samples in the
// same order; with one leaf a rank the samples are in Megatron-LM's order.
#include "harness.h"
#include "layout/leaves.h"
#include <string.h>

enum { LEAVES = 8, MICRO_BATCH = 3, EACH = 2, SAMPLES = LEAVES * MICRO_BATCH * EACH };

static Topology rank_of(int ranks, int rank) {
    Grid grid = GRID(1, ranks, 1);
    return (Topology){.grid = grid, .place = grid_place(grid, rank)};
}

static void leaves_hold_each_sample_once(void) {
    for (int ranks = 1; ranks <= LEAVES; ranks *= 2) {
        int seen[SAMPLES] = {0};
        for (int rank = 0; rank < ranks; rank++) {
            Topology topology = rank_of(ranks, rank);
            Leaves leaves = leaves_of(&topology, LEAVES);
            EXPECT(leaves.tree && leaves.count == LEAVES / ranks, "%d leaves", leaves.count);
            for (int k = 0; k < leaves.count * EACH; k++) {
                LeafPlace place = leaves_place(&leaves, leaves.count * EACH, k);
                int64_t first = leaves_first_sample(&leaves, place, MICRO_BATCH);
                int leaf = leaves.first + place.leaf;
                EXPECT(k == place.leaf * EACH + place.index, "microbatch %d", k);
                EXPECT(first == (place.index * LEAVES + leaf) * MICRO_BATCH, "leaf %d begins with %lld", leaf,
                       (long long)first);
                for (int j = 0; j < MICRO_BATCH; j++) seen[first + j]++;
            }
        }
        for (int i = 0; i < SAMPLES; i++) EXPECT(seen[i] == 1, "sample %d is read %d times", i, seen[i]);
    }
}

static void without_a_number_a_rank_is_a_leaf(void) {
    Topology topology = rank_of(3, 2);
    Leaves leaves = leaves_of(&topology, 0);
    EXPECT(!leaves.tree && leaves.total == 3 && leaves.first == 2 && leaves.count == 1, "%d of %d leaves",
           leaves.count, leaves.total);
    EXPECT(leaves_first_sample(&leaves, leaves_place(&leaves, 4, 1), 5) == (1 * 3 + 2) * 5,
           "Megatron-LM's order");
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"leaves_hold_each_sample_once", leaves_hold_each_sample_once},
                       {"without_a_number_a_rank_is_a_leaf", without_a_number_a_rank_is_a_leaf},
                       {0}},
        argc, argv);
}
