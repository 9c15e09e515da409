// Defaults and limits of options that layers without options need too.
#pragma once

#define VOCABULARY_DIVISOR 128 // of --make-vocab-size-divisible-by

#define MAX_ROPE_FACTORS  128 // pairs of columns that LongRoPE rotates
#define MAX_WINDOW_PERIOD 62  // layers after which a pattern of --window-attn-skip-freq repeats at the latest
// Of layers with experts: experts, those of a token, groups of experts.
#define MAX_EXPERTS       1024
#define MAX_TOPK          32
#define MAX_EXPERT_GROUPS 32

#define TEXT_OF(value)       TEXT_OF_TOKEN(value)
#define TEXT_OF_TOKEN(token) #token
