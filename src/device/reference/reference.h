// The reference backend's own pieces: what its files share.
#pragma once
#include "device/backend.h"
#include "device/element.h"

// Returns the factor of dropout for element `index` of sample `sample`: 1 / (1 - probability), or 0 when dropped.
double reference_dropout_factor(Dropout dropout, int64_t sample, int64_t index);

// ---- attention.c ------------------------------------------------------------------------------------------

void reference_rotary(const Exec *exec, const Rotary *p);
void reference_attention_forward(const Exec *exec, const AttentionForward *p);
void reference_attention_backward(const Exec *exec, const AttentionBackward *p);
void reference_attention_cached(const Exec *exec, const AttentionCached *p);
// ---- qk_norm.c --------------------------------------------------------------------------------------------

void reference_qk_sums(const Exec *exec, const QkSums *p);
void reference_qk_norm_forward(const Exec *exec, const QkNormForward *p);
void reference_qk_norm_backward_input(const Exec *exec, const QkNormBackwardInput *p);
void reference_qk_norm_backward_weight(const Exec *exec, const QkNormBackwardWeight *p);
// ---- experts.c --------------------------------------------------------------------------------------------

void reference_router_forward(const Exec *exec, const RouterForward *p);
void reference_router_sums(const Exec *exec, const RouterSums *p);
void reference_router_backward(const Exec *exec, const RouterBackward *p);
void reference_router_drop(const Exec *exec, const RouterDrop *p);
void reference_sort_pairs(const Exec *exec, const SortPairs *p);
void reference_gather_rows(const Exec *exec, const GatherRows *p);
void reference_combine_rows(const Exec *exec, const CombineRows *p);
void reference_combine_backward(const Exec *exec, const CombineBackward *p);
void reference_jitter(const Exec *exec, const Jitter *p);

size_t reference_attention_workspace_bytes(DeviceOp op, const void *args);

// ---- blocks.c ---------------------------------------------------------------------------------------------

void reference_quantize_blocks(const Exec *exec, const QuantizeBlocks *p);
void reference_hadamard(const Exec *exec, const Hadamard *p);
void reference_scale_product(const Exec *exec, const ScaleProduct *p);
