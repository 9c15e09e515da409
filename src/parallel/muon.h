// The step of whole matrices by Muon. Used in parallel/ alone.
#pragma once
#include "parallel/parallel.h"

// Returns whether Muon steps the bucket: it holds hidden matrices alone.
static inline bool is_stepped_whole(const Bucket *bucket) {
    return placement_reductions[bucket->reduction].matrices;
}

// x, whose largest singular value is at most 1, made orthogonal by Newton-Schulz: x <- a x + (b A + c A^2) x with
// A = x x^T, or the same from the right where x is tall. x and y F32 [blocks * rows, cols]: `blocks` matrices
// [rows, cols] that stand side by side, one after the other in memory. Returns the one of the two that holds the
// result; the other one is overwritten.
Tensor newton_schulz(const Context *context, const MuonOptions *options, Tensor x, Tensor y, int blocks);

// What Muon keeps besides the momentum: who orthogonalises what, and the norms of the matrices.
struct Muon {
    int num_matrices; // of the model
    int *first;       // [params->count] the number of a parameter's first matrix
    int *owner;       // [params->count] the replica that orthogonalises a parameter of this rank
    int *num_rows;    // [buckets->count]
    OpSegment *
        *rows;    // [buckets->count] the rows of matrices that lie in this rank's shard, by positions in it
    Tensor sums;  // F64 [num_matrices, 3]
    double *host; // [num_matrices * 3] the same on the host, then the norms in its place
};

// Takes the norms from `arena`.   ERR_OS without host memory; ERR_CONFIG where the replicas cannot sum in fp32.
Status muon_create(Optimizer *optimizer, Arena *arena);
void muon_destroy(Optimizer *optimizer);
// Steps the matrices of this rank's shards.   Collective over the owners of the norm, the replicas, and tp.
void muon_step(Optimizer *optimizer, double grad_scale, double lr, double weight_decay);
