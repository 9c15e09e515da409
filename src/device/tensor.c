// Tensors: their types, and views of them.
#include "base/error.h"
#include "device/device.h"

//  type, name, bytes, an element type of operations
#define DTYPES(X)                                                                                            \
    X(F32, "f32", 4, true)                                                                                   \
    X(F64, "f64", 8, false)                                                                                  \
    X(I32, "i32", 4, false)                                                                                  \
    X(BF16, "bf16", 2, true)                                                                                 \
    X(F16, "f16", 2, true)                                                                                   \
    X(U16, "u16", 2, false)                                                                                  \
    X(E4M3, "e4m3", 1, false)                                                                                \
    X(E5M2, "e5m2", 1, false)

#define X(dtype, ...) [dtype] = {__VA_ARGS__},
static const struct {
    const char *name;
    size_t bytes;
    bool is_element;
} DTYPE_ROWS[NUM_DTYPES] = {DTYPES(X)};
#undef X

size_t dtype_bytes(DType dtype) { return DTYPE_ROWS[dtype].bytes; }

const char *dtype_name(DType dtype) { return DTYPE_ROWS[dtype].name; }

bool dtype_is_element(DType dtype) { return DTYPE_ROWS[dtype].is_element; }

bool dtype_is_float8(DType dtype) { return dtype == E4M3 || dtype == E5M2; }

int64_t tensor_count(Tensor x) { return x.rows * x.cols; }

size_t tensor_bytes(Tensor x) { return (size_t)tensor_count(x) * dtype_bytes(x.dtype); }

Tensor tensor_rows(Tensor x, int64_t first, int64_t count) {
    CHECK(first >= 0 && count >= 0 && first + count <= x.rows, "rows %lld to %lld of a tensor of %lld",
          (long long)first, (long long)(first + count), (long long)x.rows);
    size_t offset = (size_t)(first * x.cols) * dtype_bytes(x.dtype);
    return (Tensor){(char *)x.data + offset, count, x.cols, x.dtype};
}

Tensor tensor_part(Tensor x, int64_t first, int64_t count) {
    CHECK(first >= 0 && count >= 0 && first + count <= tensor_count(x),
          "elements %lld to %lld of a tensor of %lld", (long long)first, (long long)(first + count),
          (long long)tensor_count(x));
    return (Tensor){(char *)x.data + (size_t)first * dtype_bytes(x.dtype), 1, count, x.dtype};
}

Tensor tensor_take(Arena *arena, const char *name, int64_t rows, int64_t cols, DType dtype) {
    CHECK(rows >= 0 && cols >= 0 && (!cols || rows <= INT64_MAX / 16 / cols), "tensor %s of [%lld, %lld]",
          name, (long long)rows, (long long)cols);
    Tensor x = {NULL, rows, cols, dtype};
    x.data = arena_take(arena, name, tensor_bytes(x));
    return x;
}

bool tensor_same_shape(Tensor a, Tensor b) {
    return a.rows == b.rows && a.cols == b.cols && a.dtype == b.dtype;
}
