// Measures which algorithms of the device's library are fastest for the matrix products of a run, and writes them as a
// table that runs name (device/algorithms.h).
#pragma once
#include "train/train.h"

typedef struct {
    int products; // different ones in a step of the run
    int chosen;   // rows of the table
} AlgorithmsBench;

// Records a step of the run on the null device, as every pipeline rank, and times its products on this rank's device,
// one after another.   ERR_CONFIG for a kind of device without algorithms, ERR_OS without memory, or as device_open.
Status algorithms_bench(const EngineSpec *spec, Text *table, AlgorithmsBench *done);

// Sets *bytes to the workspace that this product, and any other, wants of a device of a kind; addresses say how they
// are aligned, and no more.   Fails as device_open of the null device that stands for the kind.
Status product_workspace(const char *kind, const Matmul *product, size_t *bytes);
