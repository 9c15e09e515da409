// The functions of device_cases.h for routers, and for rows ordered by experts.
#pragma once
#include "device_fixture.h"

enum { SIGMOID = 1, PRE_SOFTMAX = 2, WITH_EXPERT_BIAS = 4, SCALED = 8, SATURATED = 16 };

// k of n[2]; groups n[4], of which n[5] stay open.
static RouterRules router_rules_of(const int64_t *n) {
    return (RouterRules){.topk = (int)n[2],
                         .groups = (int)n[4],
                         .group_topk = (int)n[5],
                         .sigmoid = n[3] & SIGMOID,
                         .pre_softmax = n[3] & PRE_SOFTMAX,
                         .scale = n[3] & SCALED ? 2.5f : 0};
}

// T, E, k, flags, groups, open groups, B
static void run_router(Fixture *b, const int64_t *n, float p) {
    RouterRules rules = router_rules_of(n);
    Tensor logits = normals_f32(b, n[0], n[1]), bias = {0};
    if (n[3] & WITH_EXPERT_BIAS) bias = normals_f32(b, 1, n[1]);
    if (n[3] & SATURATED) scale(b->device, b->stream, (Scale){logits, logits, 100});
    Tensor weights = output(b, "weights", tensor_f32(b, n[0], n[2])), experts = tensor_of(b, I32, n[0], n[2]);
    router_forward(b->device, b->stream, (RouterForward){logits, bias, weights, experts, rules});
    Tensor counts = output(b, "counts", tensor_f32(b, n[6], n[1])),
           sums = output(b, "sums", tensor_f32(b, n[6], n[1] + 1));
    router_sums(b->device, b->stream, (RouterSums){logits, counts, sums, rules});
    Tensor dweights = normals_f32(b, n[0], n[2]), dlogits = output(b, "dlogits", tensor(b, n[0], n[1]));
    if (p == 0) counts = (Tensor){0};
    router_backward(b->device, b->stream,
                    (RouterBackward){logits, experts, dweights, counts, dlogits, rules, p, p / 2});
}

// Experts that rows could have: T, E, k. Those of a row are not always different, which no operation minds.
static Tensor drawn_experts(Fixture *b, const int64_t *n) {
    Tensor experts = integers(b, n[0] * n[2], (int32_t)n[1]);
    experts.rows = n[0], experts.cols = n[2];
    return experts;
}

// T, E, k, H, capacity, B. p 1: by position.
static void run_pairs(Fixture *b, const int64_t *n, float p) {
    Tensor experts = drawn_experts(b, n), weights = normals_f32(b, n[0], n[2]), kept = experts;
    int64_t pairs = n[0] * n[2], rows = pairs;
    if (n[4]) {
        kept = tensor_of(b, I32, n[0], n[2]);
        router_drop(b->device, b->stream, (RouterDrop){weights, experts, kept, n[5], n[4], p > 0});
    }
    Tensor order = tensor_of(b, I32, 1, pairs), positions = tensor_of(b, I32, n[0], n[2]),
           counts = tensor_of(b, I32, 1, n[1]);
    sort_pairs(b->device, b->stream, (SortPairs){kept, order, positions, counts});
    if (device_computes(b->device)) {
        int32_t *each = values_of(b, counts);
        rows = 0;
        for (int64_t e = 0; e < n[1]; e++) rows += each[e];
        free(each);
    }
    Tensor x = normals(b, n[0], n[3]), gathered = output(b, "gathered", tensor(b, pairs, n[3]));
    gather_rows(b->device, b->stream, (GatherRows){x, order, gathered, n[2]});
    Tensor all = tensor_rows(gathered, 0, rows), y = output(b, "y", tensor(b, n[0], n[3]));
    combine_rows(b->device, b->stream, (CombineRows){all, positions, weights, y});
    Tensor plain = output(b, "plain sum", tensor(b, n[0], n[3]));
    combine_rows(b->device, b->stream, (CombineRows){all, positions, {0}, plain});
    Tensor dy = normals(b, n[0], n[3]), dx = output(b, "dx", tensor_rows(tensor(b, pairs, n[3]), 0, rows));
    Tensor dweights = output(b, "dweights", tensor_f32(b, n[0], n[2]));
    combine_backward(b->device, b->stream, (CombineBackward){dy, all, positions, weights, dx, dweights});
    Tensor again = output(b, "dx over x", copy_of(b, all));
    combine_backward(b->device, b->stream,
                     (CombineBackward){dy, again, positions, weights, again, tensor_f32(b, n[0], n[2])});
}

// T, H, B, first row, in place.
static void run_jitter(Fixture *b, const int64_t *n, float p) {
    Tensor x = normals(b, n[0], n[1]), y = n[4] ? x : tensor(b, n[0], n[1]);
    Dropout place = dropout_of(0, n[2]);
    place.first_row = n[3];
    jitter(b->device, b->stream, (Jitter){x, output(b, "y", y), place, p});
}
