// What an audit keeps of a computation: checksums in the order in which an error would spread.
#pragma once
#include "train/engine/engine.h"

// `at` orders the checksums of a rank by the flow of data through a step: what computes give to other ranks, from the
// first stage's forward to its backward, the losses after the last stage's forward; then the gradients of parameters.
// Of all ranks of one copy of the model, the one whose first difference is earliest made it.
typedef struct {
    uint64_t at, hash;
} Checksum;

// The checksums of one computation of the audited part by this rank, sorted by `at`.
typedef struct {
    Checksum *items;
    int count, capacity;
} Evidence;

typedef enum {
    RESULT_AGAIN,   // of the part that differed, computed once more by every data-parallel rank
    RESULT_OWN,     // of this rank's own step
    RESULT_AUDITED, // of the next data-parallel rank's part
    NUM_RESULTS
} Result;

struct Audit {
    AuditPart part;
    double loss_scale;
    bool due; // the next step is audited, or this one
    Evidence results[NUM_RESULTS];
    Evidence *now; // receives checksums; NULL: nothing is noted
    int first;     // index of the first audited one of the microbatches that are computed
    uint64_t at;   // of the next checksum of the compute that runs
    GradWatch watch;
    void *piece; // [TENSOR_PIECE_BYTES]
    int suspect; // the first data-parallel rank whose part has two results
};

// Computes the audited part of data-parallel rank `of`. Its checksums replace those of the result.
void audit_compute(Engine *engine, int of, Batch batch, Result result);
uint64_t evidence_digest(const Evidence *evidence);
bool checksum_param(Checksum sum, int *param); // false: it is not a gradient's
// The world's rank at the same place in the copy of the model of data-parallel rank `data`.
int audit_rank(const Engine *engine, int rank, int data);
int audit_data(const Engine *engine, int rank); // the data-parallel rank of a rank of the world
