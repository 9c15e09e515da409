// Counter-based random numbers: every number is a pure function of (key, counter), so nothing random is ever
// stored and no grid can change it. Philox4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2,
// 3", SC'11.
//
// A key stands for (seed, purpose): "init of decoder.layers.3.mlp.linear_fc1.weight", "hidden dropout of
// layer 3, site 1". A counter is the global index of an element: its place in the whole tensor, not in some
// rank's share of it.
#pragma once
#include <stdint.h>

typedef struct {
    uint32_t word[2];
} RngKey;

// Ten rounds of Philox4x32. `out` may be `counter`.
void philox4x32(const uint32_t counter[4], RngKey key, uint32_t out[4]);

// The key of a purpose. Different strings or numbers give unrelated keys (64-bit FNV-1a, mixed).
RngKey rng_key(uint64_t seed, const char *purpose, uint64_t number);

// Element `index` of the key's stream of standard normals: Box-Muller on Philox block index/4, in double,
// rounded once.
float rng_normal(RngKey key, uint64_t index);
// Elements [first, first + count) of that stream; the same values as rng_normal, four per block.
void rng_fill_normal(RngKey key, uint64_t first, uint64_t count, float mean, float stddev, float *out);

// Dropout: element `index` of sample `sample` (numbered over the whole run) is kept iff its word is >= the
// threshold. The word is lane index % 4 of Philox block {index / 4 (64 bit), sample (64 bit)}.
uint32_t rng_dropout_threshold(float probability); // round(p * 2^32); 0 keeps everything
uint32_t rng_word(RngKey key, uint64_t sample, uint64_t index);
