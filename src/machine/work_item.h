// The description of one device operation or collective by which it is priced: its kind and its sizes.
#pragma once
#include "comm/comm.h"
#include "device/op_table.h"

typedef enum { WORK_OP, WORK_COLLECTIVE } WorkKind;

// A device operation or a collective that the trainer's step executes. Collectives over one rank are left out.
typedef struct {
    uint8_t kind;       // WorkKind
    uint8_t op;         // DeviceOp or CommOp
    uint8_t role;       // collective: the Role of its group
    uint8_t dtype;      // matrix product: of its operands; others: of the first tensor written
    bool dropout;       // it applies dropout
    bool probabilities; // attention: it stores its S x S matrix
    bool low;           // matrix product: of factors in 8 bits, which stand for those of the configuration
    bool of_experts;    // it works on the rows of experts, of which each rank has its own number
    bool of_weight;     // making a factor: of a parameter, which is the same for all microbatches of a step
    bool transpose_a, transpose_b,
        accumulate; // matrix product; accumulate: the product is added to the result
    // Matrix product: [m, k] x [k, n], batch 1; of experts: so many such products. Attention: m = S, n = D, k = S,
    // or the keys of which a part of a sequence sees half, batch = B*N/t. Other operations: m and n are the rows and
    // columns of the first tensor written, the others 0.
    int64_t m, n, k, batch;
    // Operation: of all its tensors, each counted once; a lookup counts the whole table. Collective: of the whole
    // tensor, also where a rank has only a share of it. A ring moves 2(n-1)/n of these bytes in an all-reduce,
    // (n-1)/n in a reduce-scatter or all-gather.
    double bytes;
    double flops; // as in OpCount
} WorkItem;

// Describes an operation with its arguments. `unfused`: describes attention as that of a program that stores its
// S x S matrix, even if trireme does not.
WorkItem work_item(DeviceOp op, const void *args, OpCount one, bool unfused);
// Returns whether it is a matrix product, also one that joins another operation.
bool work_item_is_product(const WorkItem *item);
