// Measured runs: read from CSV files, and from the metrics of trireme's own runs.
#pragma once
#include "plan/plan.h"

// A measured run: its configuration and the time of a step. Where the source leaves something open, the `has_`
// member is false, and the configuration has what the stack would do or what the rule below says.
typedef struct {
    char id[48], set[40], stack[64], model_name[48];
    char gpu[MAX_NAME], kernel[96]; // kernel: of attention and norms, words with + between; "": unknown
    char machine[MAX_NAME];         // the shipped machine that fits best; "": none has this GPU
    double node_gbs;                // all NICs of a node, one direction; 0: unknown
    int devices_per_node;
    ModelShape model;
    ParallelConfig config;
    double step_s;
    double memory_gb; // 10^9 bytes of a device; 0: unknown
    int line;
    bool guessed; // the rule filled in microbatch, chunks, recomputation or sequence parallelism
    bool suspect; // the source doubts this row
    bool has_attention, has_zero_stage, has_scatter_gather, has_overlap_gradients, has_overlap_tensor;
} PlanRow;

typedef struct {
    PlanRow *items;
    int count, capacity;
} PlanRows;

// Reads a CSV file. Its first line names the columns, in any order; unknown columns are ignored, and optional ones
// may be missing.
//   required  layers hidden heads vocab seq tp pp dp global_batch step_s; ffn_hidden where mlp is swiglu
//   optional  id set stack gpu gpus_per_node inter_node_gbps (of a node) model kv_heads ffn_hidden
//             mlp (gelu, relu2, swiglu) tied_embedding gpus vp cp micro_batch schedule
//             stash_limit (of auto: microbatches that a rank may hold; else as many as 1f1b) recompute
//             sequence_parallel zero_stage precision attention attention_kernel p2p_scatter_gather
//             tp_comm_overlap dp_comm_overlap metric (oom: did not fit, step_s is empty) mem_gb note
// precision: bf16, fp16, fp32; fp8, mxfp8, nvfp4: bf16, but for the factors of the products of linear layers.
// Models: swiglu stands for a Llama, gelu for a GPT with dropout of 0.1, relu2 for a Nemotron (counted like gelu,
// with rotary positions, without biases and dropout).
// note: "MoE: ep=64 E=256 k=8 shared=1, first 3 layers dense with ffn 18432" says that layers have E experts over ep
// ranks, k of them a token's, and how many more all tokens have; ffn_hidden is then that of an expert. It may go on
// with "head size 128", "heads are MLA" (the latents of DeepSeek-V3), "every other layer attends to a window of 128"
// (as GPT-OSS: its experts then have biases) and "with MTP layer". Where it says "dispatcher deepep", "dispatcher
// hybridep", "all-to-all overlapped", "CUDA graph full_iteration", "CUDA graph transformer_engine" or "tokens dropped",
// and where `stack` ends in a release, such as "(26.06)", that is a word of the row's kernel: a variant of the stack
// may have its name. A recipe that names no dispatcher is one word more, "alltoall", and so is "fused" where 26.06, or
// 26.08 in mxfp8 on other GPUs than B200, launches whole steps as graphs; rows of 25.09 and 26.08 have the words of the
// recipes of their time.
// The rule for what a row leaves open: microbatch 1, without a pipeline 4 or 2 where that divides; two layers per
// chunk where that divides, else one, and a single chunk where the microbatches do not divide by p; attention as in the
// stack; no recomputation, with unfused attention of every layer; sequence parallelism where tensor-parallel
// collectives overlap, which needs it.
// ERR_DATA, with line and column, for what is missing, not a number, or contradictory, and for a file without rows.
Status plan_rows_read(PlanRows *rows, const char *path);
// Sets what a note says of experts. Returns false where it begins to and a number is missing or out of range.
bool row_experts_read(const char *note, PlanRow *row);
// Adds a row from the file of `trireme train --metrics FILE.jsonl`, or from a log of Megatron-LM (any other ending):
// the median of its step times without the first tenth.
// The file does not say what was run: `model` and `config` do. Steps of another batch are left out.   ERR_DATA when
// fewer than three steps remain.
Status plan_rows_add_metrics(PlanRows *rows, const char *path, const ModelShape *model,
                             const ParallelConfig *config, const char *machine);
Status plan_rows_add(PlanRows *rows, const PlanRow *row); // ERR_OS
void plan_rows_free(PlanRows *rows);
// Fills in `machine` of every row: the shipped machine with its GPU and as many per node whose network is nearest to
// the row's. Where the row does not say its network: the one with the fastest, since one NIC per GPU is usual. ""
// where no machine has the GPU. Fails as machine_open.
Status rows_find_machines(PlanRows *rows);
