// One operation of the device, or one collective, as a machine prices it: what kind it is and how large.
#pragma once
#include "comm/comm.h"
#include "device/ops.h"

typedef enum { WORK_OP, WORK_COLLECTIVE } WorkKind;

// One operation of the device, or one collective, as the trainer's step asks for it. Groups of one rank are
// left out.
typedef struct {
    uint8_t kind;       // WorkKind
    uint8_t op;         // DeviceOp or CommOp
    uint8_t axis;       // of a collective: the Axis of its group; NUM_AXES: another group
    uint8_t dtype;      // of a matrix product: of its operands; else of the largest tensor
    bool dropout;       // some of what it writes is dropped at random
    bool probabilities; // of attention: its S x S matrix is in memory
    bool transpose_a, transpose_b, accumulate; // of a matrix product, which is added to what is there
    // Of a matrix product [m, k] x [k, n], batch 1; of attention S, D, S and B*N/t; of other operations rows
    // and columns of the first tensor written, then zeros.
    int64_t m, n, k, batch;
    // Of its tensors, each once; of a lookup the whole table. Of a collective of the tensor as a whole, also
    // where a rank has a share: a ring moves 2(n-1)/n of it in an all-reduce, (n-1)/n in a reduce-scatter or
    // all-gather.
    double bytes;
    double flops; // as the device counts them: OpCount
} WorkItem;

// What an operation is as an item. `unfused`: attention is of a program that has its S x S matrix in memory,
// also where ours has not.
WorkItem work_item(DeviceOp op, const void *args, OpCount one, bool unfused);
