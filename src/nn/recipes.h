// Recipes of scales for products of few bits: what each factor of the three products of a linear layer becomes. A
// recipe is a row of a table; the code that makes factors (nn/factors.c) reads it.
#pragma once
#include "base/blocks.h"
#include "nn/shape.h"

// The products of a linear layer, and their factors: y = x W^T, dx = dy W, dW = dy^T x.
typedef enum { PRODUCT_FORWARD, PRODUCT_INPUT, PRODUCT_WEIGHT, NUM_PRODUCTS } LinearProduct;
typedef enum { FACTOR_X, FACTOR_W, FACTOR_DY, NUM_FACTORS } LinearFactor;

// How a factor is quantised.
typedef struct {
    int along,
        across; // elements of a block along the sum of the product, and across it; 0: the tensor is one
    BlockScale scales; // of blocks
    bool random;       // codes are rounded at random
    bool hadamard;     // the random Hadamard transform along the sum comes before
} Quant;

typedef struct {
    const char *name;
    bool delayed;                             // scales of tensors come from earlier steps
    Quant factors[NUM_PRODUCTS][NUM_FACTORS]; // of a product its two factors
} RecipeRow;

extern const RecipeRow recipe_rows[NUM_RECIPES];

// Returns whether a mode's products take numbers of 8 bits, which not every GPU multiplies; else they take bf16.
bool recipe_takes_8_bits(const ModelMode *mode);
// Returns the codes of a factor.
Codes recipe_codes(Float8 format, LinearFactor factor);
// Describes the format and the recipe of a mode: "hybrid", "hybrid, mxfp8", "e2m1, nvfp4"; "" for none.
typedef struct {
    char text[32];
} RecipeName;
RecipeName recipe_describe(const ModelMode *mode, const char *between);
