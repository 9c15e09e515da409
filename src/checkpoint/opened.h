// A checkpoint that is open for reading, as its readers see it.
#pragma once
#include "checkpoint/manifest.h"

struct Checkpoint {
    Manifest manifest;
    char *folder, *config;
    int *fds; // of the files, -1: closed; few are open at a time
    int num_open;
    float *piece; // what is being read
};
