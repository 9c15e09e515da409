// The linear layers of a transformer layer that can have an adapter (LoRA), and their names here and in other programs.
#pragma once
#include "base/text.h"
#include <stdbool.h>

//  target, its name, names of others for it, ended by a blank each. Of QKV and FC1 the adapter is of all their rows; of
//  Q, K, V, GATE and UP of their part of them. A name that several targets have stands for all of them.
//  Names are those of Megatron-Bridge (canonical LoRA) and of the modules in Hugging Face's models.
#define LORA_TARGETS(X)                                                                                      \
    X(QKV, "linear_qkv", "c_attn query_key_value qkv_proj ")                                                 \
    X(Q, "linear_q", "q_proj ")                                                                              \
    X(K, "linear_k", "k_proj ")                                                                              \
    X(V, "linear_v", "v_proj ")                                                                              \
    X(PROJ, "linear_proj", "o_proj c_proj dense ")                                                           \
    X(FC1, "linear_fc1", "c_fc gate_up_proj dense_h_to_4h ")                                                 \
    X(GATE, "linear_fc1_gate", "gate_proj ")                                                                 \
    X(UP, "linear_fc1_up", "up_proj ")                                                                       \
    X(FC2, "linear_fc2", "down_proj c_proj dense_4h_to_h ")

#define X(target, ...) LORA_NUMBER_##target,
enum { LORA_TARGETS(X) NUM_LORA_TARGETS };
#undef X
// Sets of targets are sums of these bits.
#define X(target, ...) LORA_##target = 1 << LORA_NUMBER_##target,
typedef enum { LORA_TARGETS(X) LORA_NONE = 0 } LoraTargets;
#undef X

// The targets that latent attention does not have.
enum { LORA_HEADS = LORA_QKV | LORA_Q | LORA_K | LORA_V };

const char *lora_target_name(int number); // "linear_q": of target 0 <= number < NUM_LORA_TARGETS
// The targets of a name, here or in another program's model; 0: it is none.
int lora_targets_of(const char *name, size_t length);
// All linear layers as a family of models has them in its files: queries, keys and values as one matrix or as three,
// likewise gate and up.
int lora_all_targets(bool fused, bool gated);
void lora_targets_print(int targets, Text *out); // "linear_q,linear_k"
