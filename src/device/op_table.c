// The table of operations: their names, their tensors, and which tensor says what.
#include "device/op_table.h"
#include <inttypes.h>
#include <math.h>
#include <stddef.h>

//  operation, argument struct, the tensor that gives the element type, the last tensor, the names of its tensors
#define OP_TENSORS(X)                                                                                        \
    X(MATMUL, Matmul, a, d, "a", "b", "bias", "scale_a", "scale_b", "d")                                     \
    X(QUANTIZE, Quantize, x, scale, "x", "max", "q", "scale")                                                \
    X(QUANTIZE_BLOCKS, QuantizeBlocks, x, scale, "x", "max", "q", "scale")                                   \
    X(HADAMARD, Hadamard, x, y, "x", "y")                                                                    \
    X(SCALE_PRODUCT, ScaleProduct, d, d, "x", "scale_a", "scale_b", "bias", "d")                             \
    X(BIAS_GELU_FORWARD, BiasGeluForward, x, y, "x", "bias", "y")                                            \
    X(BIAS_GELU_BACKWARD, BiasGeluBackward, dy, dx, "dy", "x", "bias", "dx")                                 \
    X(SWIGLU_FORWARD, SwigluForward, x, y, "x", "bias", "y")                                                 \
    X(SWIGLU_BACKWARD, SwigluBackward, dy, dx, "dy", "x", "bias", "dx")                                      \
    X(BIAS_DROPOUT_ADD, BiasDropoutAdd, x, y, "x", "bias", "residual", "y")                                  \
    X(DROPOUT_BACKWARD, DropoutBackward, dy, dx, "dy", "dx")                                                 \
    X(SCALE, Scale, x, y, "x", "y")                                                                          \
    X(SOFT_CAP, SoftCap, x, y, "x", "y")                                                                     \
    X(SOFT_CAP_BACKWARD, SoftCapBackward, dy, dx, "dy", "y", "dx")                                           \
    X(COLUMN_SUM, ColumnSum, x, sum, "x", "sum")                                                             \
    X(NORM_FORWARD, NormForward, x, rstd, "x", "gamma", "beta", "y", "mean", "rstd")                         \
    X(NORM_BACKWARD_INPUT, NormBackwardInput, dy, dx, "dy", "x", "gamma", "mean", "rstd", "residual", "dx")  \
    X(NORM_BACKWARD_WEIGHT, NormBackwardWeight, dy, dbeta, "dy", "x", "mean", "rstd", "dgamma", "dbeta")     \
    X(QK_SUMS, QkSums, qkv, sums, "qkv", "dy", "query_gamma", "key_gamma", "rstd", "sums")                   \
    X(QK_NORM_FORWARD, QkNormForward, qkv, rstd, "qkv", "query_gamma", "key_gamma", "sums", "y", "rstd")     \
    X(QK_NORM_BACKWARD_INPUT, QkNormBackwardInput, dy, dx, "dy", "qkv", "query_gamma", "key_gamma", "rstd",  \
      "sums", "dx")                                                                                          \
    X(QK_NORM_BACKWARD_WEIGHT, QkNormBackwardWeight, dy, dkey_gamma, "dy", "qkv", "rstd", "dquery_gamma",    \
      "dkey_gamma")                                                                                          \
    X(ROTARY, Rotary, qkv, qkv, "table", "qkv")                                                              \
    X(ATTENTION_FORWARD, AttentionForward, qkv, probabilities, "qkv", "kv", "first_key", "sinks", "out",     \
      "stats", "probabilities")                                                                              \
    X(ATTENTION_BACKWARD, AttentionBackward, dout, dsinks, "dout", "qkv", "kv", "out", "stats",              \
      "probabilities", "first_key", "sinks", "dqkv", "dkv", "dsinks")                                        \
    X(ATTENTION_CACHED, AttentionCached, qkv, values, "qkv", "sinks", "out", "keys", "values")               \
    X(EMBEDDING_FORWARD, EmbeddingForward, table, y, "tokens", "table", "y")                                 \
    X(EMBEDDING_BACKWARD, EmbeddingBackward, dy, dtable, "tokens", "dy", "dtable")                           \
    X(POSITION_DROPOUT, PositionDropout, x, y, "x", "position", "y")                                         \
    X(POSITION_BACKWARD, PositionBackward, dy, dposition, "dy", "dposition")                                 \
    X(LOSS_MAX, LossMax, logits, max, "logits", "max")                                                       \
    X(LOSS_SUM, LossSum, logits, target, "logits", "labels", "max", "sum", "target")                         \
    X(LOSS_FINISH, LossFinish, dlogits, loss, "labels", "max", "sum", "target", "mask", "logits", "dlogits", \
      "loss")                                                                                                \
    X(ABS_MAX, AbsMax, x, max, "x", "max")                                                                   \
    X(SUM_SQUARES, SumSquares, x, max, "x", "sum", "max")                                                    \
    X(ADAMW, AdamW, value, value, "gradient", "parameter", "m", "v", "value")                                \
    X(BLEND, Blend, y_value, y_value, "x", "x_value", "y", "y_value")                                        \
    X(ADD, Add, x, y, "x", "y")                                                                              \
    X(ARRANGE_COLUMNS, ArrangeColumns, a, y, "a", "b", "c", "y")                                             \
    X(ROUTER_FORWARD, RouterForward, logits, experts, "logits", "bias", "weights", "experts")                \
    X(ROUTER_SUMS, RouterSums, logits, sums, "logits", "counts", "sums")                                     \
    X(ROUTER_BACKWARD, RouterBackward, dlogits, dlogits, "logits", "experts", "dweights", "counts",          \
      "dlogits")                                                                                             \
    X(ROUTER_DROP, RouterDrop, weights, kept, "weights", "experts", "kept")                                  \
    X(SORT_PAIRS, SortPairs, experts, counts, "experts", "order", "positions", "counts")                     \
    X(GATHER_ROWS, GatherRows, x, y, "x", "order", "y")                                                      \
    X(COMBINE_ROWS, CombineRows, x, y, "x", "positions", "weights", "y")                                     \
    X(COMBINE_BACKWARD, CombineBackward, dy, dweights, "dy", "x", "positions", "weights", "dx", "dweights")  \
    X(JITTER, Jitter, x, y, "x", "y")                                                                        \
    X(MATMUL_SUMS, MatmulSums, a, sums, "a", "b", "d", "sums")                                               \
    X(MATMUL_GELU, MatmulGelu, a, aux, "a", "b", "bias", "d", "aux")                                         \
    X(MATMUL_GELU_BACKWARD, MatmulGeluBackward, a, d, "a", "b", "aux", "d")                                  \
    X(NORM_BACKWARD, NormBackward, dy, dbeta, "dy", "x", "gamma", "mean", "rstd", "residual", "dx",          \
      "dgamma", "dbeta")                                                                                     \
    X(LOSS_WHOLE, LossWhole, dlogits, target, "logits", "labels", "mask", "dlogits", "loss", "max", "sum",   \
      "target")

#define X(NAME, function, Args, reads, writes) TENSORS_##NAME = (reads) + (writes),
enum { DEVICE_OPS(X) };
#undef X
// The front walks the tensors of an argument struct as an array.
#define X(NAME, Args, element, last, ...)                                                                    \
    _Static_assert(offsetof(Args, last) == (TENSORS_##NAME - 1) * sizeof(Tensor),                            \
                   #Args " holds its tensors first");
OP_TENSORS(X)
#undef X

const OpRow op_rows[NUM_DEVICE_OPS] = {
#define X(NAME, Args, element_tensor, last, ...)                                                             \
    [OP_##NAME].tensors = {__VA_ARGS__}, [OP_##NAME].args_bytes = sizeof(Args),                              \
    [OP_##NAME].element = offsetof(Args, element_tensor) / sizeof(Tensor),
    OP_TENSORS(X)
#undef X
#define X(NAME, function, Args, num_reads, num_writes)                                                       \
    [OP_##NAME].name = #function, [OP_##NAME].event = #function " [%" PRId64 ", %" PRId64 "]",               \
    [OP_##NAME].reads = num_reads, [OP_##NAME].writes = num_writes,
        DEVICE_OPS(X)
#undef X
};

const char *device_op_name(DeviceOp op) { return op_rows[op].name; }

DType op_element(DeviceOp op, const void *args) {
    Tensor x = ((const Tensor *)args)[op_rows[op].element];
    return x.data && x.dtype != I32 ? x.dtype : F32;
}

// A sum, a state, or a tensor that is written where it was read.
bool op_updates(DeviceOp op, const void *args, int i) {
    const Tensor *tensors = args;
    switch (op) {
    case OP_MATMUL: return ((const Matmul *)args)->accumulate;
    case OP_SCALE_PRODUCT: return ((const ScaleProduct *)args)->accumulate;
    case OP_MATMUL_SUMS: {
        const MatmulSums *both = args;
        return i == 2 ? both->accumulate : both->accumulate_sums;
    }
    case OP_ATTENTION_BACKWARD: return i >= 9; // dkv, dsinks
    case OP_NORM_BACKWARD: return i > 6 && ((const NormBackward *)args)->accumulate;
    case OP_COLUMN_SUM:
    case OP_NORM_BACKWARD_WEIGHT:
    case OP_QK_NORM_BACKWARD_WEIGHT:
    case OP_ROTARY:
    case OP_EMBEDDING_BACKWARD:
    case OP_POSITION_BACKWARD:
    case OP_ABS_MAX:
    case OP_SUM_SQUARES:
    case OP_ADD: return true;
    case OP_BLEND: return blend_reads(args) && (i == 2 || tensors[2].dtype == U16);
    case OP_ADAMW: return i < 4 || tensors[1].dtype == U16; // the value is half of the parameter, or new
    default: return false;
    }
}

int64_t op_kept_rows(DeviceOp op, const void *args, int i) {
    const AttentionCached *cached = args;
    return op == OP_ATTENTION_CACHED && i > 2 ? cached->position * cached->shape.batch : 0;
}

// The sum of min(i, w) for i from 1 to n.
static double visible_pairs(double w, double n) {
    return n <= w ? n * (n + 1) / 2 : w * (w + 1) / 2 + (n - w) * w;
}

double attention_visible_share(int64_t window, int64_t first, int64_t count) {
    double before = (double)first, all = before + (double)count, w = (double)window;
    if (window == 0 || window >= first + count) return 1;
    return (visible_pairs(w, all) - visible_pairs(w, before)) /
           (visible_pairs(all, all) - visible_pairs(all, before));
}

int op_segments(DeviceOp op, const void *args, const OpSegment **segments) {
    const AdamW *step = args;
    const SumSquares *squares = args;
    if (op == OP_ADAMW) return *segments = step->segments, step->num_segments;
    if (op == OP_SUM_SQUARES) return *segments = squares->segments, squares->num_segments;
    return 0;
}

bool blend_reads(const Blend *args) { return fabs(args->keep) + fabs(args->own) > 0; }

int segments_or_one(int num_segments) { return num_segments ? num_segments : 1; }

AdamW adamw_segment(const AdamW *args, int i) {
    AdamW one = *args;
    if (!args->num_segments) return one;
    OpSegment s = args->segments[i];
    one.gradient = tensor_part(args->gradient, s.begin, s.count);
    one.parameter = tensor_part(args->parameter, s.begin, s.count);
    one.m = tensor_part(args->m, s.begin, s.count);
    one.v = tensor_part(args->v, s.begin, s.count);
    if (args->value.data) one.value = tensor_part(args->value, s.begin, s.count);
    if (!s.decays) one.weight_decay = 0;
    one.num_segments = 0;
    return one;
}

SumSquares sum_squares_segment(const SumSquares *args, int i) {
    SumSquares one = *args;
    if (!args->num_segments) return one;
    OpSegment s = args->segments[i];
    one.x = tensor_part(args->x, s.begin, s.row < 0 ? 0 : s.count);
    one.sum = tensor_rows(args->sum, s.row < 0 ? 0 : s.row, 1);
    one.num_segments = 0;
    return one;
}

bool op_product(DeviceOp op, const void *args, JoinedProduct *product) {
    const MatmulSums *sums = args;
    const MatmulGelu *gelu = args;
    const MatmulGeluBackward *slope = args;
    switch (op) {
    case OP_MATMUL: *product = (JoinedProduct){.matmul = *(const Matmul *)args}; return true;
    case OP_MATMUL_SUMS:
        *product = (JoinedProduct){.join = JOINS_SUMS, .extra = sums->sums};
        product->matmul = (Matmul){.a = sums->a, .b = sums->b, .d = sums->d, .transpose_a = true};
        product->matmul.accumulate = sums->accumulate;
        return true;
    case OP_MATMUL_GELU:
        *product = (JoinedProduct){.join = JOINS_GELU, .extra = gelu->aux};
        product->matmul = (Matmul){.a = gelu->a, .b = gelu->b, .bias = gelu->bias, .d = gelu->d};
        product->matmul.transpose_b = true;
        return true;
    case OP_MATMUL_GELU_BACKWARD:
        *product = (JoinedProduct){.join = JOINS_GELU_BACKWARD, .extra = slope->aux};
        product->matmul = (Matmul){.a = slope->a, .b = slope->b, .d = slope->d};
        return true;
    default: return false;
    }
}
