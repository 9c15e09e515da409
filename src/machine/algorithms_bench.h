// Measures which algorithms of the device's library are fastest for the matrix products of a run, and writes them as a
// table that runs name (device/algorithms.h).
#pragma once
#include "train/train.h"

typedef struct {
    int products; // different ones in a step of the run
    int chosen;   // rows of the table
} AlgorithmsBench;

// Records a step of the run on the null device, as every pipeline rank, and times its products on this rank's device, one
// after another.   ERR_CONFIG for a kind of device without algorithms, ERR_OS without memory, or as device_open.
Status algorithms_bench(const EngineSpec *spec, Text *table, AlgorithmsBench *done);
