// What slow nodes cost: factors on the times of the pipeline ranks that they hold, and where they are best. Internal to
// plan/.
//
// A replica whose stage is on a slow node is a pipeline with a slow stage; the others wait for it when gradients are
// reduced. So one pipeline, with the factors of its slow ranks, still stands for all.
#pragma once
#include "plan/plan.h"

// On the times of a pipeline rank; 1 where it has no slow nodes.
typedef struct {
    double compute, tensor, experts; // computing; collectives over tp and cp; messages to experts
} SlowFactors;
SlowFactors slow_factors(const CostModel *costs, const ParallelConfig *config, int rank);
// Returns the factor on messages over the network between two ranks, and on collectives over replicas of a rank.
double slow_edge(const CostModel *costs, const ParallelConfig *config, int from, int to);
double slow_replicas(const CostModel *costs, const ParallelConfig *config, int rank);

enum { MAX_SLOW_PLACES = 64 };
// Lists which ranks the slow nodes can hold, in the order of nodes; with very many nodes, evenly chosen ones.
// Returns how many.
int slow_places(const CostModel *costs, const ParallelConfig *config, SlowPlace places[MAX_SLOW_PLACES]);
