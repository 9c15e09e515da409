// Describes device operations as work items: shapes and flags from their arguments.
#include "machine/work_item.h"
#include <math.h>

// An argument struct begins with its tensors: first those that are read, then those that are written.
static Tensor first_written(DeviceOp op, const void *args) {
#define X(NAME, function, Args, reads, writes) [OP_##NAME] = (reads),
    static const int num_read[NUM_DEVICE_OPS] = {DEVICE_OPS(X)};
#undef X
    return ((const Tensor *)args)[num_read[op]];
}

static void describe_matmul(const Matmul *args, WorkItem *item) {
    item->dtype = (uint8_t)args->a.dtype;
    item->m = args->d.rows, item->n = args->d.cols;
    item->k = args->transpose_a ? args->a.rows : args->a.cols;
    item->batch = 1;
    item->transpose_a = args->transpose_a;
    item->transpose_b = args->transpose_b;
    item->accumulate = args->accumulate;
}

// Programs without fused attention store the S x S matrix in every forward; trireme only where the mode keeps it.
static void describe_attention(AttentionShape shape, AttentionRules rules, double product_flops,
                               Tensor probabilities, Dropout dropout, bool unfused, WorkItem *item) {
    double share = attention_visible_share(rules.window, shape.first_position, shape.sequence);
    item->m = shape.sequence;
    item->n = shape.head_size;
    item->batch = shape.batch * shape.heads;
    // As many keys as of a whole causal sequence, of whose scores half count; part of a sequence has others.
    item->k = llround(product_flops / share / (double)(2 * item->batch * item->m * item->n));
    item->probabilities = unfused || probabilities.data;
    item->dropout = dropout.probability > 0;
    if (unfused && !probabilities.data)
        item->bytes += (double)(item->batch * item->m * item->k) * (double)dtype_bytes((DType)item->dtype);
}

static bool drops(DeviceOp op, const void *args) {
    switch (op) {
    case OP_BIAS_DROPOUT_ADD: return ((const BiasDropoutAdd *)args)->dropout.probability > 0;
    case OP_DROPOUT_BACKWARD: return ((const DropoutBackward *)args)->dropout.probability > 0;
    case OP_POSITION_DROPOUT: return ((const PositionDropout *)args)->dropout.probability > 0;
    default: return false;
    }
}

WorkItem work_item(DeviceOp op, const void *args, OpCount one, bool unfused) {
    const AttentionForward *forward = args;
    const AttentionBackward *backward = args;
    Tensor written = first_written(op, args);
    JoinedProduct product;
    WorkItem item = {.kind = WORK_OP,
                     .op = (uint8_t)op,
                     .dtype = (uint8_t)written.dtype,
                     .dropout = drops(op, args),
                     .m = written.rows,
                     .n = written.cols,
                     .bytes = one.bytes,
                     .flops = one.flops};
    if (op_product(op, args, &product)) describe_matmul(&product.matmul, &item);
    // Machines say what products of 8-bit factors take beside those of 16 bits.
    if (dtype_is_float8((DType)item.dtype)) item.dtype = BF16, item.low = op_product(op, args, &product);
    if (op == OP_ATTENTION_FORWARD)
        describe_attention(forward->shape, forward->rules, one.flops / 2, forward->probabilities,
                           forward->dropout, unfused, &item);
    if (op == OP_ATTENTION_BACKWARD)
        describe_attention(backward->shape, backward->rules, one.flops / 5, backward->probabilities,
                           backward->dropout, unfused, &item);
    return item;
}

bool work_item_is_product(const WorkItem *item) {
    switch ((DeviceOp)item->op) {
    case OP_MATMUL:
    case OP_MATMUL_SUMS:
    case OP_MATMUL_GELU:
    case OP_MATMUL_GELU_BACKWARD: return item->kind == WORK_OP;
    default: return false;
    }
}
