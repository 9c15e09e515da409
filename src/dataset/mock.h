// The lengths of the synthetic dataset (indexed_dataset_open_mock). Source: Megatron-LM, MockGPTLowLevelDataset:
// numpy.random.default_rng(0).integers(1, 4096, 100000, int32).
#pragma once
#include <stdint.h>

enum { MOCK_SEQUENCES = 100000, MOCK_LONGEST = 4095 };

void mock_lengths(int32_t lengths[MOCK_SEQUENCES]);
