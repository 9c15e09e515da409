// The rules between options, by subject. A rule check_* fails with the rule, the values, and values that would work; a
// rule resolve_* also sets options that are unset and members of RunShape. Each may rely on all rules before it.
// Internal to config/.
#pragma once
#include "config/table.h"

// OK, or ERR_CONFIG.
typedef Status Rule(Options *options);

// The lists are in the order in which the rules are checked, which is Megatron-LM's. Each ends with NULL.
extern Rule *const batch_rules[];    // rules_batch.c: how many samples a step has
extern Rule *const pipeline_rules[]; // rules_pipeline.c: which layers are where, and the schedule
extern Rule *const length_rules[];   // rules_length.c: steps and samples of the run ...
extern Rule *const rate_rules[];     // ... and learning rate and weight decay along it
extern Rule *const model_rules[];    // rules_model.c: what the model is, sizes that divide over tp, precision
extern Rule *const method_rules[];   // rules_model.c: recomputation, what is shared out
extern Rule *const data_rules[];     // rules_data.c: data sets, tokenizer, evaluation, checkpoints, files
extern Rule *const memory_rules[];   // rules_data.c: the tokenizer of a run without data

Rule
    resolve_latents; // rules_latent.c: the sizes of heads that are made of latents, and what is not with them
Rule resolve_experts;        // rules_experts.c: which layers have experts, and how they are chosen
Rule check_experts_few_bits; // ... sizes of their products with factors of few bits ...
Rule resolve_pairs;          // ... whether their exchange is hidden ...
Rule check_pairs;            // ... and what that needs
Rule resolve_windows;        // rules_attention.c: which layers have a window, and how wide it is
Rule resolve_sharding;       // rules_sharding.c: what replicas cut ...
Rule check_grid;             // ... which ranks share experts, in how many groups shards are ...
Rule check_gathers;          // ... when they gather values ...
Rule check_sums;             // ... and sum gradients
Rule check_offload;          // ... and whose state may lie on the host
Rule check_context_parallel; // rules_context.c: how sequences are cut over ranks
Rule resolve_lora;           // rules_lora.c: which linear layers have an adapter
Rule check_lora_base;        // rules_lora.c: a training run with adapters loads a model
Rule resolve_model;          // presets.c: sets what --model stands for
void note_idle_settings(Options *options); // idle.c: notes options that the kind of --schedule does not use
Rule check_one_data_source;                // rules_data.c: a training run has data, and one option names them
// Returns whether an option names the data of a training run.   rules_data.c
bool names_data(const Options *options);
// Returns whether an option names files of a tokenizer, which then says the size of the vocabulary.   rules_data.c
bool names_tokenizer_files(const Options *options);

// Returns whether the MLP has a gate.   rules_model.c
bool options_have_gate(const Options *options);
// A recipe of scales for products of few bits, and the sizes whose multiples their products have: units for 8 bits work
// on 16 numbers at a time, and blocks are whole.
typedef struct {
    const char *name;
    int unit;
} FewBitsRecipe;
// Returns the recipe of the run, or NULL; and the option that wants its unit.   rules_model.c
const FewBitsRecipe *few_bits_recipe(const Options *options);
void few_bits_option(const Options *options, char option[64]);
int64_t whole_units(int64_t x, int64_t unit); // the least multiple of unit that is x or more
// Reads a list of layers, ones and zeros such as "([1]*5+[0])*2": after how many it repeats, and its bits. Fails with
// ERR_CONFIG, which names the option.   rules_attention.c
Status layer_pattern(const Options *options, const char *option, const char *text, int *period,
                     uint64_t *layers);

// ---- rules.c: what the rules share

// Returns whether the user has set the option, on the command line or in a file.
bool option_given(const Options *options, int index);
// Marks the value of an option as one that the program has chosen.
void derived(Options *options, int index);
// Sets an option that is unset, and marks it as derived.
void derive_int(Options *options, int index, int *field, int value);
// Returns the number of steps until the ramp-up of the batch has ended or --train-samples are used up, and sets
// `*consumed` to the samples of these steps; 0 without a ramp-up.   rules_batch.c
int64_t rampup_steps(const Options *options, int64_t *consumed);
