// A table with a row for each operation, for code that treats all alike: the front, and backends that forward.
#pragma once
#include "device/ops.h"

enum { MAX_TENSORS = 11 };

typedef struct {
    const char *name, *event; // the event's format takes the rows and columns of the first tensor written
    size_t args_bytes;        // of the argument struct
    int element;              // the tensor that gives the call its element type
    // The numbers of its tensors, in the order of the argument struct: those read, then those written.
    int reads, writes;
    const char *tensors[MAX_TENSORS];
} OpRow;
extern const OpRow op_rows[NUM_DEVICE_OPS];

// The element type of a call; F32 where the tensor that gives it is absent, or one of I32.
DType op_element(DeviceOp op, const void *args);
// The segments of a call, and how many they are; 0: it has no table of segments.
int op_segments(DeviceOp op, const void *args, const OpSegment **segments);
// The number of parts in which a call is computed: its segments, or the call as a whole.
int segments_or_one(int num_segments);
// The arguments for segment `i` alone, without a table. adamw: its weight decay is 0 where none applies. sum_squares:
// no elements where nothing is added.
AdamW adamw_segment(const AdamW *args, int i);
SumSquares sum_squares_segment(const SumSquares *args, int i);
// Returns whether a blend reads what it writes.
bool blend_reads(const Blend *args);
// The work that a matrix product does beside d; cuBLASLt calls it an epilogue.
typedef enum {
    JOINS_NOTHING,
    JOINS_SUMS,          // of the columns of a, which `transpose_a` has made rows
    JOINS_GELU,          // of d, whose values before it go to aux
    JOINS_GELU_BACKWARD, // d times the slope of GELU at aux
} ProductJoin;

// A matrix product and what it joins: `extra` are the sums, F32 [1, M], or aux, like d.
typedef struct {
    Matmul matmul;
    ProductJoin join;
    Tensor extra;
} JoinedProduct;

// Returns whether the operation is a matrix product, and sets which one.
bool op_product(DeviceOp op, const void *args, JoinedProduct *product);
// Returns whether the call adds to tensor `i`, one that it writes, or changes it in place, and so also reads it.
bool op_updates(DeviceOp op, const void *args, int i);
// Returns how many first rows of tensor `i`, one that it writes, the call only reads: those that a cache holds already.
int64_t op_kept_rows(DeviceOp op, const void *args, int i);
