// Which share of a tensor a rank holds.
#pragma once

// ---- Shard: how a tensor is cut over tp ----------------------------------------------------------------

// Dimension `dim` is cut into t equal slices, slice i on tp rank i; dim -1: every rank holds the whole
// tensor. A tensor of several equal `blocks` along dim (0 is one: gate and up of a gated MLP are two) is cut
// block by block: a rank holds its slice of each, one after the other.
typedef struct {
    int dim, blocks;
} Shard;
