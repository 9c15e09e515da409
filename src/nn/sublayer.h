// The sublayers of a transformer layer. A layer is LAYER_SUBLAYERS of the kinds in sublayers.def, one after the other,
// each y = x + f(x); in a parallel block all of them read the input of the layer, and what they make of it is added to
// it. A kind is one file with one SublayerKind, and one row of that list; model_sublayer says which ones a layer has,
// and the model and the closed forms of its parameters, FLOPs and stash ask it.
#pragma once
#include "nn/layers.h"

// The arguments of a forward or a backward.
typedef struct {
    Context *context;
    const Microbatch *microbatch;
    const void *self;    // the sublayer's own record: what it declared
    void *stash;         // its record of this microbatch; zero before the forward
    Tensor rotary_table; // F32 [>= S, R]; absent: no rotary positions
    // The forward: y = residual + f(x), all [T', H]. Tensors that the stash keeps are allocated from `arena`.
    Tensor x, residual, y;
    Arena *arena;
    // The backward: dx = dresidual + the gradient of f, all [T', H]; dx may be dy or dresidual. The input half
    // overwrites activations of the stash by the gradients that the weight half needs. One more of these gradients,
    // [T', H], goes to `dlast`; the caller keeps it and passes it to the weight half.
    Halves halves;
    Tensor dy, dresidual, dx, dlast;
} SublayerArgs;

// A kind of sublayer. Forward and backward are collective over tp.
typedef struct {
    size_t self_bytes, stash_bytes; // of the two records
    bool has_weights;               // its backward has a weight half
    void (*declare)(const Builder *builder, int layer, void *self);
    // Allocates the cache of so many positions of `samples` sequences, its contents undefined; after params_place.
    // NULL: the sublayer needs none.
    void (*place_cache)(void *self, Arena *arena, int64_t positions, int64_t samples);
    void (*forward)(const SublayerArgs *args);
    void (*backward)(const SublayerArgs *args);
    ParamCount (*parameters)(const ModelShape *shape);
    double (*flops)(const ModelShape *shape); // of the forward of one token, over all tp ranks
    // Lists what it keeps of one microbatch, its input x included (see model_stash_terms), and returns the number of
    // terms. Terms of the same name add up over the sublayers.
    int (*stash_terms)(const ModelShape *shape, const ModelMode *mode, int tp, StashTerm *terms);
} SublayerKind;

#define SUBLAYER(name) extern const SublayerKind name##_sublayer;
#include "nn/sublayers.def"
#undef SUBLAYER

enum {
#define SUBLAYER(name) SUBLAYER_##name,
#include "nn/sublayers.def"
#undef SUBLAYER
    NUM_SUBLAYERS
};
extern const SublayerKind *const sublayer_kinds[NUM_SUBLAYERS];

enum { LAYER_SUBLAYERS = 2 };
// The kind of the i-th sublayer of a layer: attention, then an mlp or experts.
int model_sublayer(const ModelShape *shape, int layer, int i);

double stash_tokens(const ModelShape *shape, const ModelMode *mode); // of a microbatch that a rank holds
// The rows of its share of them, where sequence parallelism cuts them.
double stash_rows(const ModelShape *shape, const ModelMode *mode, int tp);
