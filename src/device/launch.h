// What the fronts of operations share (launch.c, launch_features.c): the shapes that tensors must have, and the way
// to the backend.
#pragma once
#include "device/front.h"

// The shape and type that a tensor must have; one per tensor of the argument struct, in its order.
typedef struct {
    int64_t rows, cols;
    DType dtype;
    bool optional;
} Shape;

static inline Shape f32(int64_t rows, int64_t cols) { return (Shape){rows, cols, F32, false}; }
static inline Shape f64(int64_t rows, int64_t cols) { return (Shape){rows, cols, F64, false}; }
static inline Shape i32(int64_t rows, int64_t cols) { return (Shape){rows, cols, I32, false}; }
static inline Shape of(DType dtype, int64_t rows, int64_t cols) { return (Shape){rows, cols, dtype, false}; }
static inline Shape optional(Shape shape) { return (Shape){shape.rows, shape.cols, shape.dtype, true}; }

// The element type that this tensor gives its call.
static inline DType element_type(DeviceOp op, Tensor x) {
    CHECK(dtype_is_element(x.dtype), "%s of %s tensors; it works on f32, bf16 and f16", op_rows[op].name,
          dtype_name(x.dtype));
    return x.dtype;
}

static inline Shape like(DeviceOp op, Tensor x) { return of(element_type(op, x), x.rows, x.cols); }
static inline Shape like_f32(Tensor x) { return f32(x.rows, x.cols); }

static inline void check_heads(DeviceOp op, AttentionShape shape) {
    CHECK(shape.batch > 0 && shape.sequence > 0 && shape.heads > 0 && shape.groups > 0 &&
              shape.heads % shape.groups == 0 && shape.head_size > 0 && shape.first_head >= 0,
          "%s: B %lld, S %lld, N/t %lld, G/t %lld, D %lld, first head %lld", op_rows[op].name,
          (long long)shape.batch, (long long)shape.sequence, (long long)shape.heads, (long long)shape.groups,
          (long long)shape.head_size, (long long)shape.first_head);
}

static inline void check_rules(DeviceOp op, AttentionRules rules, Tensor sinks) {
    CHECK(rules.window >= 0 && rules.scale >= 0 && rules.cap >= 0, "%s: window %lld, scale %g, cap %g",
          op_rows[op].name, (long long)rules.window, (double)rules.scale, (double)rules.cap);
    CHECK(!rules.off_by_one || !sinks.data, "%s: a softmax off by one has sinks", op_rows[op].name);
}

static inline Shape qkv_of(DType e, AttentionShape s) {
    return of(e, s.sequence * s.batch, (s.heads + 2 * s.groups) * s.head_size);
}

// Checks the tensors of a call and counts it.
void device_admit(Device *device, Stream *stream, DeviceOp op, const void *args, const Shape *shapes);
// The same, and has the backend make it.
void device_launch(Device *device, Stream *stream, DeviceOp op, const void *args, const Shape *shapes);
