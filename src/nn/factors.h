// Factors of products in 8 or 4 bits: makes one of a tensor, as the recipe's row says (nn/recipes.h), and multiplies
// two. Used in nn/ alone, for linear layers (nn/float8.h) and for experts (nn/expert_factors.h).
//
// Factors are made where they are used, in scratch memory. Units for 8 bits and the Hadamard transform work on 16 rows
// at a time. Layers have sizes for that. A tensor of another number of rows, as an expert's tokens are, is copied, with
// rows of zeros behind its own, which change no scale and no sum.
#pragma once
#include "nn/layers.h"
#include "nn/recipes.h"

// Says how a layer of a transformer layer multiplies: `weight` holds so many matrices, each with scales of its own.
// Does nothing for a weight that is NULL.
void few_bits_declare(const Builder *builder, int layer, const Param *weight, int matrices,
                      FewBits *few_bits);

// A factor of a product, with its scale, absent where blocks have all of it: `rows` of numbers along the sum, or
// columns.
typedef struct {
    Tensor q, scale;
    bool rows;
} FewBitsFactor;

// A tensor that becomes a factor: x [T, I], W [O, I] or dy [T, O], or this rank's part of it.
typedef struct {
    const FewBits *few_bits;
    LinearProduct product;
    LinearFactor which;
    Tensor x;
    bool any_rows;         // x may have any number of rows, of which the factor has a multiple of 16
    RandomRounding random; // of dy
} FactorSource;

// Returns whether other ranks that share the weight hold other parts of the tensor.
bool factor_is_cut(const Param *weight, LinearFactor which);
// Returns the random numbers of dy [T, O] or [T, O/t], of which the ranks of a role hold parts where they cut O. The
// caller adds the samples.
RandomRounding factor_random(const Context *context, const FewBits *few_bits, LinearProduct product,
                             const Param *weight, Role role, int64_t cols);

// A factor is made in three steps. Its memory is taken; of more rows it is as large at least.
typedef struct {
    Tensor padded, turned; // absent: it is not copied, not transformed
    FewBitsFactor factor;
} FactorMemory;
FactorMemory factor_take(Context *context, const FactorSource *source);
// The numbers of which it is made are prepared, and returned.
Tensor factor_prepare(Context *context, const FactorSource *source, const FactorMemory *memory);
// Their codes are made. `max` F32 [1, 1] is the largest magnitude of the whole tensor, or absent where no recipe asks
// for it: of what was prepared (factor_needs_largest), or with delayed scaling of earlier steps.
FewBitsFactor factor_make(Context *context, const FactorSource *source, const FactorMemory *memory,
                          Tensor prepared, Tensor max);
bool factor_needs_largest(const FactorSource *source);
// Returns the largest magnitude of earlier steps, which row `row` of the history has, and notes that of now, once in a
// microbatch; absent without delayed scaling.
Tensor factor_earlier_largest(Context *context, const FactorSource *source, int row);

// Computes d = a b (+ bias) (+ d), as `args` has d and the bias, and whether sums may be fast.
void factors_multiply(Context *context, FewBitsFactor a, FewBitsFactor b, Matmul args);
// Reserves memory for such a product, and for those of fewer rows of tokens (matmul_reserve).
void factors_reserve(Context *context, FewBitsFactor a, FewBitsFactor b, Matmul args, bool tokens_are_summed);
