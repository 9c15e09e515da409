// Which experts of a router are chosen, for backends that compute on the host: see RouterRules.
#pragma once
#include "device/ops.h"
#include <math.h>

static inline bool is_chosen_before(double x, double y) { return x > y || (isnan(y) && !isnan(x)); }

// Writes the numbers of the `topk` largest of n values, the lowest number first among equal ones; values that are not
// numbers come last. One pass: a value takes its place among the best so far, which most of them do not reach.
static inline void choose_largest(const double *values, int n, int topk, int32_t *chosen) {
    for (int i = 0, count = 0; i < n; i++) {
        int place = count;
        while (place > 0 && is_chosen_before(values[i], values[chosen[place - 1]])) place--;
        if (place == topk) continue;
        count = count < topk ? count + 1 : topk;
        for (int j = count - 1; j > place; j--) chosen[j] = chosen[j - 1];
        chosen[place] = i;
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
