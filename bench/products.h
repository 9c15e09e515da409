// What matrix products do at the shapes of a GPT, through the device that training uses: what a training
// step, most of which they are, is held against.
#pragma once
#include "nn/shape.h"

// The linear layers of a GPT: y = x W^T, dx = dy W, dW += dy^T x for W [out, in], the last of them the head,
// whose y is F32.
enum { NUM_LINEARS = 5, NUM_PRODUCTS = 3 };

typedef struct {
    const char *name;
    int64_t out, in;
    int times; // in the model
} LinearShape;

typedef struct {
    LinearShape linears[NUM_LINEARS];
    double rates[NUM_LINEARS][NUM_PRODUCTS]; // FLOP/s
    double seconds[NUM_LINEARS][NUM_PRODUCTS];
    double all, best; // FLOP/s of all of one microbatch's; of the fastest shape
} Products;

// Of microbatches of so many samples of `shape`, on the device "cpu" with so many threads.
Products measure_products(const ModelShape *shape, int microbatch, DType dtype, int threads);

ModelShape gpt2_124m(int sequence);      // no dropout
int table_rows(const ModelShape *shape); // of its word table, on one tensor rank
