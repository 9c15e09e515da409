// What the simulated cuBLASLt tells of an algorithm.
#include "device/cuda/sim/cublaslt_algorithm.h"
#include <cstring>

static cublasStatus_t get(uint32_t have, void *value, size_t bytes, size_t *written) {
    if (!value || bytes != sizeof have) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(value, &have, sizeof have);
    if (written) *written = sizeof have;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                                 cublasLtMatmulAlgoCapAttributes_t attribute, void *value,
                                                 size_t bytes, size_t *written) {
    Algorithm chosen;
    memcpy(&chosen, algorithm, sizeof chosen);
    const int which = attribute - CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_A_BYTES;
    if (chosen.magic != MAGIC || which < 0 || which > 3) return CUBLAS_STATUS_INVALID_VALUE;
    return get(chosen.alignment[which], value, bytes, written);
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void *value, size_t bytes, size_t *written) {
    Algorithm chosen;
    memcpy(&chosen, algorithm, sizeof chosen);
    if (chosen.magic != MAGIC) return CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
    case CUBLASLT_ALGO_CONFIG_ID: return get(chosen.number, value, bytes, written);
    case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME: return get(chosen.reduction, value, bytes, written);
    default: return get(0, value, bytes, written);
    }
}
