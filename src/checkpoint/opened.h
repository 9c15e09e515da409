// The structure behind Checkpoint: one that is open for reading.
#pragma once
#include "checkpoint/manifest.h"

struct Checkpoint {
    Manifest manifest;
    char *folder, *config;
    int *fds; // of the files; -1: closed, since only few are open at a time
    int num_open;
    float *piece;                  // the elements that are being read
    int64_t non_finite;            // values that checkpoint_verify found to be NaN or infinite
    const char *non_finite_tensor; // the tensor of the first one
};
