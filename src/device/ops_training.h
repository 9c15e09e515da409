// The operations at the two ends of a training step: losses and their gradients, and the optimizer. See ops.h, which
// includes this.
#pragma once
#include "device/device.h"

// ---- cross-entropy, cut over the vocabulary, in three local steps around two reductions over tp -----------

// Columns are vocabulary entries first_col...; those >= vocabulary are padding and take no part.
// All is F32 but the labels and, where they are narrower, the gradients of the logits.
// 1. max[i] = the largest local logit (-inf when all local columns are padding).
//    logits [T, V/t], max [1, T]
typedef struct {
    Tensor logits;
    Tensor max;
    int64_t first_col, vocabulary;
} LossMax;
void loss_max(Device *device, Stream *stream, LossMax args);

// (all-reduce MAX of max)
// 2. sum[i] = sum of exp(logit - max[i]), where no local logit exceeds max[i]; target[i] = logit[label] -
//    max[i], or 0 when it is not local.
//    sum and target are [1, T] each: adjacent in memory they make one all-reduce.
typedef struct {
    Tensor logits, labels, max;
    Tensor sum, target;
    int64_t first_col, vocabulary;
} LossSum;
void loss_sum(Device *device, Stream *stream, LossSum args);

// (all-reduce SUM of sum and target)
// 3. loss[i] = mask[i] * (log(sum[i]) - target[i]); dlogits = scale * mask[i] * (softmax - one-hot), zero in
//    padding columns, in any element type; in F32 it may be logits. mask F32 [1, T] or absent (all ones).
typedef struct {
    Tensor labels, max, sum, target, mask, logits;
    Tensor dlogits, loss;
    int64_t first_col, vocabulary;
    float scale;
} LossFinish;
void loss_finish(Device *device, Stream *stream, LossFinish args);

// The three steps at once, where one rank holds all columns.
typedef struct {
    Tensor logits, labels, mask;
    Tensor dlogits, loss, max, sum, target;
    int64_t vocabulary;
    float scale;
} LossWhole;
void loss_whole(Device *device, Stream *stream, LossWhole args);

// ---- optimizer --------------------------------------------------------------------------------------------

// max F32 [1, 1] = the larger of max and all |x|; infinity once any element of x is not finite.   x in E
typedef struct {
    Tensor x;
    Tensor max;
} AbsMax;
void abs_max(Device *device, Stream *stream, AbsMax args);

// A part of the flat tensors of an operation that treats many parameters in one call: elements [begin, begin + count).
typedef struct {
    int64_t begin, count;
    int64_t row; // sum_squares: the row of `sum` to which its squares are added; below 0: they are not added
    bool decays; // adamw: weight decay applies
} OpSegment;

// Adds the squares of x so that neither order nor partition can change a bit: with q = (x / 2^exponent)^2,
// which is at most 1, it adds three multiples of fixed quanta whose sum is q but for less than 2^-60: to
// sum[0] the largest multiple of 2^-20 up to q, to sum[1] that of 2^-40 up to the rest, to sum[2] that of
// 2^-60. Adding such multiples is exact for up to 2^33 elements, over ranks too. The sum of squares is
// (sum[0] + sum[1] + sum[2]) * 4^exponent.
//   x F32, |x| <= 2^exponent (CHECK on the reference device), sum F64 [rows, 3], +=; max F32 [1, 1] or absent
// With max, x may be larger or not finite: max becomes the larger of itself and all |x| that are added, as of abs_max,
// and where that is above 2^exponent the sums mean nothing.
// `segments` stay as they are until the operation is done; without segments all of x is added to row 0.
// Idea: Demmel and Nguyen 2013, reproducible summation
typedef struct {
    Tensor x;
    Tensor sum, max;
    int exponent;
    int num_segments;
    const OpSegment *segments;
} SumSquares;
void sum_squares(Device *device, Stream *stream, SumSquares args);

// AdamW (Loshchilov 2019) with g = grad_scale * gradient:
//   m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;
//   p -= lr (m/correction1 / (sqrt(v/correction2) + epsilon) + weight_decay p)
// gradient, m and v are F32. parameter is p in F32, and value, when present, becomes p in its own element
// type; or parameter is U16 and value BF16: p is then kept as the two parts of bf16_split (half.h).
// `segments` stay as they are until the operation is done, and elements outside of them are left alone; without
// segments weight decay applies to all elements.
typedef struct {
    Tensor gradient;
    Tensor parameter, m, v, value;
    double lr, beta1, beta2, epsilon, weight_decay; // double: 1 - beta2 of a float beta2 is off by 5e-5
    double correction1, correction2;                // 1 - beta^step
    double grad_scale;                              // the clipping coefficient over the loss scale, or 1
    int num_segments;
    const OpSegment *segments;
} AdamW;
void adamw(Device *device, Stream *stream, AdamW args);

// y = keep y + factor (x + own y), where y is not read unless keep or own is other than 0. One operation for what an
// optimizer of whole matrices makes beside its products: momentum (own 0), a moving average (keep 1, own -1), a step
// with weight decay (keep 1, factor -lr), a multiple of x (keep 0).
// x and y are F32, or U16 with a value BF16 beside them: an fp32 number as the two parts of bf16_split (half.h).
// y_value, where y is F32, becomes y in its own element type. x, x_value, y, y_value [R, C]; y may be x.
typedef struct {
    Tensor x, x_value; // values: absent, or of a parameter
    Tensor y, y_value;
    double keep, factor, own;
} Blend;
void blend(Device *device, Stream *stream, Blend args);

// y += x, both of one element type
typedef struct {
    Tensor x;
    Tensor y;
} Add;
void add(Device *device, Stream *stream, Add args);
