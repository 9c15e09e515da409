// The operations of layers with experts (mixture of experts), a part of ops.h: which experts a token goes to and with
// which weights, the order of rows by experts, and the sums of what the experts make of a token. The products of the
// experts themselves are matmuls of ranges of rows.
//
// Letters: T rows, row = s*B + b as everywhere, B samples; E experts; k the experts of a token. A *pair* is a token and
// one of its experts; pair number t*k + j is slot j of row t.
#pragma once
#include "config/defaults.h"
#include "device/device.h"

// How a router makes weights of its logits. Experts are chosen by their logits, or where there are biases or groups by
// their scores; of equal ones the lowest number comes first. Scores: softmax over the experts, or with `sigmoid` each
// expert's sigmoid. Weights: the softmax over the chosen logits; with `pre_softmax` the scores of the chosen; with
// `sigmoid` the scores of the chosen divided by their sum and 1e-20, and of a single one its score. All are multiplied
// by `scale`. A bias is added to the score where experts are chosen, and nowhere else.
// With `groups` the experts are that many equal groups, one after the other. Only those of the `group_topk` groups with
// the largest sums of their best max(1, k / group_topk) scores are chosen from (DeepSeek 2024); without pre_softmax and
// sigmoid logits stand for scores there.
typedef struct {
    int topk;               // k
    int groups, group_topk; // 0: no groups
    bool sigmoid, pre_softmax;
    float scale; // 0: 1
} RouterRules;

//   logits F32 [T, E], bias F32 [1, E] or absent -> weights F32 [T, k], experts I32 [T, k]
typedef struct {
    Tensor logits, bias;
    Tensor weights, experts;
    RouterRules rules;
} RouterForward;
void router_forward(Device *device, Stream *stream, RouterForward args);

// What losses that balance experts are made of, for each sample: how many of its tokens have the expert among the k
// largest logits, without biases and groups, and the sum over its tokens of the expert's probability (its score;
// sigmoids are divided by their sum over all experts); the last column of `sums` adds logsumexp(logits)^2.
//   logits F32 [T, E] -> counts F32 [B, E], sums F32 [B, E + 1]
typedef struct {
    Tensor logits;
    Tensor counts, sums;
    RouterRules rules;
} RouterSums;
void router_sums(Device *device, Stream *stream, RouterSums args);

// The gradient of the logits, of weights that the gradients dweights come for, of balance * sum of counts * sums (see
// router_sums; counts are constants, one row for all samples or a row for each) and of z * sum of logsumexp(logits)^2.
//   logits F32 [T, E], experts I32 [T, k], dweights F32 [T, k], counts F32 [1 or B, E] or absent -> dlogits [T, E]
typedef struct {
    Tensor logits, experts, dweights, counts;
    Tensor dlogits;
    RouterRules rules;
    float balance, z;
} RouterBackward;
void router_backward(Device *device, Stream *stream, RouterBackward args);

// Drops pairs: of each sample an expert keeps `capacity` pairs, those with the largest weights, the first of equal
// ones, or `by_position` the first ones. kept: the experts, or -1 for a pair that is dropped.
//   weights F32 [T, k], experts I32 [T, k] -> kept I32 [T, k]
typedef struct {
    Tensor weights, experts;
    Tensor kept;
    int64_t samples, capacity;
    bool by_position;
} RouterDrop;
void router_drop(Device *device, Stream *stream, RouterDrop args);

// Sorts pairs by their expert, those of an expert by their number; pairs that are dropped come last.
//   experts I32 [T, k], those of [0, E) and -1 -> order I32 [1, T*k], the pairs in their new order; positions I32
//   [T, k], the new place of each pair, or -1; counts I32 [1, E]
typedef struct {
    Tensor experts;
    Tensor order, positions, counts;
} SortPairs;
void sort_pairs(Device *device, Stream *stream, SortPairs args);

// Makes sure that the workspace of the stream holds a product like this one of any number of tokens, from 1 up to those
// of `most`. Tokens are the rows of d; with `summed` the product sums over them. For devices that count, where memory
// is measured: how many rows an expert has is not known before.
void matmul_reserve(Device *device, Stream *stream, Matmul most, bool summed);

// y row i = x row order[i] / divisor, or zeros where order[i] is below 0.   x [T, H], order I32 [1, R], y [R, H]
typedef struct {
    Tensor x, order;
    Tensor y;
    int64_t divisor; // k for pairs, 1 for rows
} GatherRows;
void gather_rows(Device *device, Stream *stream, GatherRows args);

// y row t = the sum over j of weights[t, j] * x row positions[t, j], added in fp32 in the order of j. A position below
// 0 adds nothing. weights absent: 1.   x [R, H], positions I32 [T, k], weights F32 [T, k], y [T, H]
typedef struct {
    Tensor x, positions, weights;
    Tensor y;
} CombineRows;
void combine_rows(Device *device, Stream *stream, CombineRows args);

// dx row positions[t, j] = weights[t, j] * dy row t, and dweights[t, j] = dy row t . x row positions[t, j], 0 for a
// position below 0. Each row of x is that of one pair.   dx may be x.
//   dy [T, H], x, dx [R, H], positions I32 [T, k], weights, dweights F32 [T, k]
typedef struct {
    Tensor dy, x, positions, weights;
    Tensor dx, dweights;
} CombineBackward;
void combine_backward(Device *device, Stream *stream, CombineBackward args);

// y = x * a random factor from 1 - epsilon to 1 + epsilon; its gradient is the same operation. `place` says which
// elements of the whole run x has; its probability is 0.   y may be x.
typedef struct {
    Tensor x;
    Tensor y;
    Dropout place;
    float epsilon;
} Jitter;
void jitter(Device *device, Stream *stream, Jitter args);
