// A checkpoint that is open for reading, as its readers see it.
#pragma once
#include "checkpoint/manifest.h"

struct Checkpoint {
    Manifest manifest;
    char *folder, *config;
    int *fds; // of the files, -1: closed; few are open at a time
    int num_open;
    float *piece;                  // what is being read
    int64_t non_finite;            // values that checkpoint_verify found to be NaN or infinite
    const char *non_finite_tensor; // that of the first
};
