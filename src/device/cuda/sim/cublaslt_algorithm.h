// What the simulated cuBLASLt keeps in an algorithm.
#pragma once
#include <cstdint>
#include <cublasLt.h>

// The contents of a cublasLtMatmulAlgo_t.
struct Algorithm {
    uint64_t magic, problem, workspace_bytes;
    uint32_t reduction, alignment[4], bias_alignment, number,
        aux_alignment; // number: of the addend with which sums begin
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm fits");
enum { NUM_ALGORITHMS = 3 };
inline constexpr uint64_t MAGIC = 0x53696D4C74416C67;
