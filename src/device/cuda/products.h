// Matrix products of the CUDA device: by cuBLASLt, with a plan for each kind of product. A plan holds what cuBLASLt
// needs to know and the algorithm it chose. It is made when a run is prepared (device/prepare.h), or when the first
// product of its kind is launched, and kept.
//
// A run never chooses an algorithm by measuring: two runs, or two ranks, would differ in bits. It is a function of the
// key of its plan, the GPU and the version of cuBLASLt, or the choice of a file that all ranks have in common
// (device/algorithms.h). Three rules make that true:
//  - every kind of product may use the same amount of workspace;
//  - a key knows an address by its alignment alone, up to PRODUCT_ALIGNMENT, which every whole tensor has: so where
//    tensors lie in memory, which depends on the grid, chooses nothing;
//  - partial sums are never added in the output, whose order would not be known.
#pragma once
#include "device/cuda/cuda.h"
#include <cublasLt.h>

// The most bytes that cuBLASLt is promised of an address. It is what a GPU loads at once; an algorithm that wants more
// is not found.
enum { PRODUCT_ALIGNMENT = 16 };

// cuBLASLt's matrices lie in memory column by column: its d [m, n] is d of a Matmul transposed, its a is b and its b
// is a. No byte of it is padding: keys are compared as bytes.
typedef struct {
    int64_t m, n, k;       // op(a) [m, k], op(b) [k, n]
    int64_t lda, ldb, ldd; // elements from one column to the next
    int32_t transpose_a, transpose_b;
    int32_t factor_a, factor_b, result; // DType, of a, b and d
    int32_t accumulate, has_bias, fast_sums, join;
    int32_t align_a, align_b, align_d, align_bias, align_extra; // bytes; 0: there is none
} PlanKey;

typedef struct {
    PlanKey key;
    // cuBLASLt has no algorithm: the product is made by cuda_matmul_plain, and what it joins by kernels of its own.
    bool is_plain;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
} ProductPlan;

enum { MAX_ALGORITHMS = 16 }; // that are compared for a product

// Finds cuBLASLt; fails as library_load does (libraries.h).
Status products_available(void);
// Opens it for the device, whose GPU the calling thread has chosen.
Status products_open(CudaDevice *device);
void products_close(CudaDevice *device); // takes what was only zeroed
// The plan for products like this one. It lives as long as the device. Where cuBLASLt fails the job ends, or
// products_prepare does, with ERR_OS.
const ProductPlan *products_plan(CudaDevice *device, const JoinedProduct *product);
Status products_prepare(CudaDevice *device, const JoinedProduct *product, const ProductPlan **plan);
// Puts the product on the stream of `exec`, with its first PRODUCT_WORKSPACE bytes of workspace; sums are written, and
// not added to. False: its plan is plain.
bool products_compute(const Exec *exec, const JoinedProduct *product);

// ---- algorithms that others choose: tables of them (algorithms.c) -----------------------------------------

size_t products_version(
    const CudaDevice *device); // cuBLASLt's: 10000 * major + 100 * minor + patch, as NVIDIA counts
PlanKey products_key(const JoinedProduct *product);
// Asks cuBLASLt what it proposes for products of this kind, the algorithm that it thinks fastest first. Returns how
// many.
int products_candidates(CudaDevice *device, const PlanKey *key,
                        cublasLtMatmulAlgo_t algorithms[MAX_ALGORITHMS]);
// Makes the plan of products of this kind, with this algorithm. Returns NULL, or the reason why there is none: neither
// key nor algorithm need be of cuBLASLt, but the key's sizes and types are checked.
const char *products_take(CudaDevice *device, const PlanKey *key, const cublasLtMatmulAlgo_t *algorithm);
// A plan with an algorithm that products_candidates has found for its key, beside the plans of the device.
ProductPlan *products_trial(CudaDevice *device, const PlanKey *key, const cublasLtMatmulAlgo_t *algorithm);
void products_trial_end(CudaDevice *device, ProductPlan *trial);
// Makes one product by a plan that has an algorithm. The host does nothing but to launch it.
void products_multiply(const Exec *exec, const ProductPlan *plan, const JoinedProduct *product);

// The status of a call of cuBLASLt while a device is opened, for TRY: ERR_OS with the call and the status.
Status products_status(const CudaDevice *device, const char *call, cublasStatus_t status);
