// What this machine can do without a program in the way: multiply-adds from registers, and bytes to and from
// memory. Every other number of ./run bench is told as a share of one of these, from the same run.
#pragma once
#include "device/device.h"

typedef struct {
    // Of F32 multiply-adds; of tiles or pairs of BF16 where a unit adds their products to F32, else as F32.
    double flops[NUM_DTYPES];
    // Bytes per second: y = x, z = x + a y, y += x, the sum of x; as many as the loop names, without what the
    // hardware reads in order to write.
    double copy, triad, update, read;
    double memory; // the most of those that write
} Ceilings;

// With so many threads. Takes 384 MiB for a while.
Ceilings measure_ceilings(int threads);
