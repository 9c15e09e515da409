// The operations that make factors of products in 8 and 4 bits. See ops.h, which includes this.
#pragma once
#include "base/blocks.h"
#include "base/rng.h"
#include "device/device.h"

// ---- one scale for a tensor -------------------------------------------------------------------------------

// A tensor in 8 bits, with one scale, that of its largest magnitude: x is about scale * q. With f = float8_factor
// (base/float8.h) of `max`, q = round(x * f) and scale = 1 / f, each rounded to fp32 once, so every device computes the
// same bits. max F32 [1, 1] is what abs_max gives, over all ranks that share the tensor; where it is infinite some of q
// is NaN, so products of q are not finite either.
//   x [R, C] -> q in E4M3 or E5M2, [R, C] or with `transpose` [C, R]; scale F32 [1, 1]
typedef struct {
    Tensor x, max;
    Tensor q, scale;
    bool transpose;
} Quantize;
void quantize(Device *device, Stream *stream, Quantize args);

// ---- scales of blocks -------------------------------------------------------------------------------------

// The random numbers of a tensor's elements: of element (row s*B + b, column c) number s*C + c of sample first_sample +
// b (rng_word), so that no grid changes them. C is `cols`; column j of this rank's part is column
// first_col + j / part * stride + j % part of the whole tensor. `samples` (B) 0: elements are rounded to nearest.
typedef struct {
    RngKey key;
    int64_t first_sample, samples, cols;
    int64_t first_col, part, stride;
    bool transposed; // the tensor at hand is the transposed one: its rows are columns
} RandomRounding;

// The numbers that codes of few bits stand for, where a block of block_rows x block_cols elements shares a scale
// (base/blocks.h). E4M3 scales of blocks come beside one of the tensor: `max` is then what abs_max gives, over all
// ranks that share the tensor, and x is about scale * q. Each q is a BF16 number, the product of two is an fp32 number:
// a product of such BF16 tensors is that of the codes with their scales, exact but for the order of its fp32 sums.
//   x [R, C] -> q BF16 [R, C]; max, scale F32 [1, 1] with E4M3 scales, else absent. The last blocks
//   may be smaller.
enum { MAX_BLOCK_COLS = 128 };
typedef struct {
    Tensor x, max;
    Tensor q, scale;
    Codes codes;
    BlockScale scales;
    int64_t block_rows, block_cols;
    RandomRounding random; // for E2M1
} QuantizeBlocks;
void quantize_blocks(Device *device, Stream *stream, QuantizeBlocks args);

// The random Hadamard transform of the columns of x, 16 rows at a time, by HADAMARD_SIGNS (bit i: row i changes its
// sign) and Sylvester's matrix H: y^T = H diag(signs) x / 4. H is its own transpose and 16 times its inverse, so a^T b
// = (H a)^T (H b) for transforms of a and b. Four rounds of fp32 sums and differences of rows 1, 2, 4 and 8 apart.
//   x [R, C], y [C, R]; R is a multiple of 16
enum { HADAMARD_SIZE = 16, HADAMARD_SIGNS = 0xd7e8 };
typedef struct {
    Tensor x;
    Tensor y;
} Hadamard;
void hadamard(Device *device, Stream *stream, Hadamard args);

// d = scale_a * scale_b * x (+ bias) (+ d): a product of tensors whose scales (QuantizeBlocks) it leaves out.
//   x F32 [M, N], scales F32 [1, 1], bias [1, N] or absent, d in E or F32; with `accumulate` F32
typedef struct {
    Tensor x, scale_a, scale_b, bias;
    Tensor d;
    bool accumulate;
} ScaleProduct;
void scale_product(Device *device, Stream *stream, ScaleProduct args);
