// Which experts of a router are chosen, for backends that compute on the host: see RouterRules.
#pragma once
#include "device/ops.h"
#include <math.h>

// Writes the numbers of the `topk` largest of n values, the lowest number first among equal ones; values that are not
// numbers come last.
static inline void choose_largest(const double *values, int n, int topk, int32_t *chosen) {
    bool taken[MAX_EXPERTS] = {false};
    for (int j = 0; j < topk; j++) {
        int best = -1;
        for (int i = 0; i < n; i++)
            if (!taken[i] &&
                (best < 0 || values[i] > values[best] || (isnan(values[best]) && !isnan(values[i]))))
                best = i;
        taken[best] = true;
        chosen[j] = best;
    }
}

// The sum of the `count` largest of n values.
static inline double sum_of_largest(const double *values, int n, int count) {
    int32_t best[MAX_EXPERTS];
    double sum = 0;
    choose_largest(values, n, count, best);
    for (int i = 0; i < count; i++) sum += values[best[i]];
    return sum;
}

// The experts that are best of a group decide about it: so many.
static inline int experts_of_group_score(const RouterRules *rules, int n) {
    int count = rules->topk / rules->group_topk, size = n / rules->groups;
    return count < 1 ? 1 : count > size ? size : count;
}

// Chooses the experts of a token by `values`, of which those of closed groups become -infinity.
static inline void choose_experts(const RouterRules *rules, int n, double *values, int32_t *chosen) {
    if (rules->groups) {
        double scores[MAX_EXPERT_GROUPS];
        int32_t open[MAX_EXPERT_GROUPS];
        int size = n / rules->groups;
        for (int g = 0; g < rules->groups; g++)
            scores[g] = sum_of_largest(values + g * size, size, experts_of_group_score(rules, n));
        choose_largest(scores, rules->groups, rules->group_topk, open);
        for (int g = 0; g < rules->groups; g++) {
            bool is_open = false;
            for (int i = 0; i < rules->group_topk; i++) is_open |= open[i] == g;
            for (int i = 0; i < size && !is_open; i++) values[g * size + i] = -INFINITY;
        }
    }
    choose_largest(values, n, rules->topk, chosen);
}

static inline float router_scale(const RouterRules *rules) { return rules->scale > 0 ? rules->scale : 1; }
