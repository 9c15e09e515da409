// Orthogonalises matrices by Newton-Schulz iterations, with matrix products alone.
#include "parallel/muon.h"
#include <string.h>

// ---- coefficients -------------------------------------------------------------------------------

typedef struct {
    double a, b, c; // p(x) = a x + b x^3 + c x^5 of every singular value
} Polynomial;

enum { MAX_ROWS = 10 };

// Iteration i takes row i. Behind the last row comes the first one again, or the last one for ever.
typedef struct {
    const char *name;
    int count;
    bool last_repeats;
    Polynomial rows[MAX_ROWS];
} Coefficients;

#define SIMPLE                                                                                               \
    { 3.4445, -4.7750, 2.0315 }

// Sources: Jordan 2024 (simple); Emerging-Optimizers (quintic); Amsel 2025 (polar_express).
static const Coefficients coefficients[] = {
    {"simple", 1, false, {SIMPLE}},
    {"quintic",
     5,
     false,
     {{4.0848, -6.8946, 2.9270},
      {3.9505, -6.3029, 2.6377},
      {3.7418, -5.5913, 2.3037},
      {2.8769, -3.1427, 1.2046},
      {2.8366, -3.0525, 1.2012}}},
    {"polar_express",
     8,
     true,
     {{8.2051, -22.9019, 16.4607},
      {4.0664, -2.8612, 0.5184},
      {3.9096, -2.8234, 0.5250},
      {3.2856, -2.4153, 0.4853},
      {2.2779, -1.6198, 0.3985},
      {1.8726, -1.2307, 0.3585},
      {1.8564, -1.2132, 0.3568},
      {1.875, -1.25, 0.375}}},
    {"deepseekv4",
     10,
     true,
     {SIMPLE, SIMPLE, SIMPLE, SIMPLE, SIMPLE, SIMPLE, SIMPLE, SIMPLE, {2, -1.5, 0.5}, {2, -1.5, 0.5}}},
};

static const Coefficients *coefficients_of(const char *name) {
    for (size_t i = 0; i < sizeof coefficients / sizeof *coefficients; i++)
        if (!strcmp(coefficients[i].name, name)) return &coefficients[i];
    CHECK(false, "no coefficients are named %s", name);
}

static Polynomial polynomial(const Coefficients *all, int iteration) {
    if (iteration < all->count) return all->rows[iteration];
    return all->rows[all->last_repeats ? all->count - 1 : iteration % all->count];
}

// ---- iterations ---------------------------------------------------------------------------------

static Tensor block_of(Tensor x, int blocks, int i) {
    return tensor_rows(x, x.rows / blocks * i, x.rows / blocks);
}

// gram = x x^T, or x^T x of a tall one.
static void make_gram(const Context *c, Tensor x, int blocks, bool tall, Tensor gram) {
    for (int i = 0; i < blocks; i++) {
        Tensor block = block_of(x, blocks, i);
        matmul(c->device, c->stream,
               (Matmul){.a = block,
                        .b = block,
                        .d = gram,
                        .transpose_a = tall,
                        .transpose_b = !tall,
                        .accumulate = i > 0});
    }
}

// y = a x + (b gram + c gram^2) x; `square` is for the polynomial of the gram matrix.
static void iterate(const Context *c, Polynomial p, Tensor x, Tensor y, int blocks, Tensor gram,
                    Tensor square) {
    bool tall = blocks == 1 && x.rows > x.cols;
    make_gram(c, x, blocks, tall, gram);
    matmul(c->device, c->stream, (Matmul){.a = gram, .b = gram, .d = square});
    blend(c->device, c->stream, (Blend){.x = gram, .y = square, .keep = p.c, .factor = p.b});
    for (int i = 0; i < blocks; i++) {
        Tensor from = block_of(x, blocks, i), to = block_of(y, blocks, i);
        matmul(c->device, c->stream, (Matmul){.a = tall ? from : square, .b = tall ? square : from, .d = to});
    }
    blend(c->device, c->stream, (Blend){.x = x, .y = y, .keep = 1, .factor = p.a});
}

Tensor newton_schulz(const Context *c, const MuonOptions *options, Tensor x, Tensor y, int blocks) {
    ArenaMark mark = arena_mark(c->scratch);
    const Coefficients *all = coefficients_of(options->coefficients);
    int64_t rows = x.rows / blocks, side = blocks == 1 && x.cols < rows ? x.cols : rows;
    Tensor gram = tensor_take(c->scratch, "products of a matrix's rows", side, side, F32);
    Tensor square = tensor_take(c->scratch, "polynomial of these products", side, side, F32);
    for (int i = 0; i < options->iterations; i++) {
        Tensor from = x;
        iterate(c, polynomial(all, i), x, y, blocks, gram, square);
        x = y, y = from;
    }
    arena_release(c->scratch, mark);
    return x;
}
