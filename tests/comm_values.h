// What the tests of comm/ compare: values that every rank can tell of every other, tensors of any type, and
// the reduction written as a plain loop; and how their jobs are run.
#pragma once
#include "base/cores.h"
#include "base/half.h"
#include "comm/comm.h"
#include "harness.h"
#include <stdlib.h>
#include <string.h>

// Values of many magnitudes: another order of adding gives other bits. The mixer is splitmix64's (2014).
static inline double value(int rank, int64_t i, int salt) {
    uint64_t x = (uint64_t)i * 0x9e3779b97f4a7c15u + (uint64_t)rank * 0xd1b54a32d192ed03u + (uint64_t)salt;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    static const double scales[] = {1, 1e-3, 37, 500, 3000, 0.25, 1e-6, 70};
    return ((double)(x >> 11) / 9007199254740992.0 - 0.5) * scales[x & 7];
}

static inline double get(Tensor x, int64_t i) {
    switch (x.dtype) {
    case F64: return ((double *)x.data)[i];
    case F32: return (double)((float *)x.data)[i];
    case BF16: return (double)bf16_to_f32(((uint16_t *)x.data)[i]);
    case F16: return (double)f16_to_f32(((uint16_t *)x.data)[i]);
    default: return ((int32_t *)x.data)[i];
    }
}

static inline void set(Tensor x, int64_t i, double v) {
    switch (x.dtype) {
    case F64: ((double *)x.data)[i] = v; break;
    case F32: ((float *)x.data)[i] = (float)v; break;
    case BF16: ((uint16_t *)x.data)[i] = bf16_of_f32((float)v); break;
    case F16: ((uint16_t *)x.data)[i] = f16_of_f32((float)v); break;
    default: ((int32_t *)x.data)[i] = (int32_t)v;
    }
}

// Of calls longer than what MPI cuts them into; threads cut nothing, and the short form takes an eighth.
static inline int64_t long_count(int64_t count) {
    return harness_short() && !getenv("TRIREME_TEST_TRANSPORT") ? count / 8 : count;
}

static inline Tensor tensor_new(int64_t count, DType dtype) {
    return (Tensor){calloc((size_t)count + 1, dtype_bytes(dtype)), 1, count, dtype};
}

static inline void fill(Tensor x, int rank, int salt) {
    for (int64_t i = 0; i < x.cols; i++) set(x, i, value(rank, i, salt));
}

// v as a number of this type.
static inline double as_stored(double v, DType dtype) {
    uint64_t bits = 0;
    Tensor one = {&bits, 1, 1, dtype};
    set(one, 0, v);
    return get(one, 0);
}

static inline double added(double a, double b, DType dtype) {
    return dtype == F64 ? a + b : (double)((float)a + (float)b);
}

// The sum of the ranks [first, first + count) as a tree, not rounded to the type.
static inline double tree_sum(int first, int count, int64_t i, int salt, DType dtype) {
    if (count == 1) return as_stored(value(first, i, salt), dtype);
    return added(tree_sum(first, count / 2, i, salt, dtype),
                 tree_sum(first + count / 2, count / 2, i, salt, dtype), dtype);
}

// In rank order or as a tree: F64 in double, all else in float and rounded once.
static inline double reduced(int size, int64_t i, int salt, DType dtype, ReduceOp op) {
    if (op == REDUCE_TREE) return as_stored(tree_sum(0, size, i, salt, dtype), dtype);
    double sum = as_stored(value(0, i, salt), dtype);
    for (int r = 1; r < size; r++) {
        double v = as_stored(value(r, i, salt), dtype);
        if (op == REDUCE_MAX)
            sum = v > sum ? v : sum;
        else
            sum = added(sum, v, dtype);
    }
    return as_stored(sum, dtype);
}

// That x is the reduction of elements first.. of all ranks' data.
static inline void expect_reduced(Comm *comm, Tensor x, int64_t first, int salt, ReduceOp op,
                                  const char *what) {
    int size = comm_size(comm), bad = 0;
    for (int64_t i = 0; i < x.cols; i++) bad += get(x, i) != reduced(size, first + i, salt, x.dtype, op);
    EXPECT(!bad, "%s %d of %lld %s over %d: %d wrong", what, salt, (long long)x.cols, dtype_name(x.dtype),
           size, bad);
}

// Where ranks have a core each, each does its part; where they share one, the last to arrive does all: even
// sizes in the one way, odd ones in the other, checked in the opposite.
static inline CommOptions options_for(const char *transport, int ranks, bool check) {
    return (CommOptions){.transport = transport,
                         .ranks = ranks,
                         .timeout_s = 100,
                         .check = check,
                         .deterministic = true,
                         .cores = (ranks % 2 != 0) != check ? 1 : CORES_MAX};
}
