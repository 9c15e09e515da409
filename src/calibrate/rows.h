// Measured runs as rows: read from CSV files and from the metrics of own runs, and held against predictions.
#pragma once
#include "plan/plan.h"

// A measured run: what was run, and how long a step took (0: it did not fit). Where the source leaves
// something open, a `told` is false and the candidate has what its stack would do, or what a rule says.
typedef struct {
    char id[48], set[40], stack[64], model_name[48];
    char gpu[MAX_NAME], kernel[32]; // kernel: of attention and norms; "": not told
    char machine[MAX_NAME];         // the shipped one that fits best; "": there is none with this GPU
    double node_gbs;                // all NICs of a node, one direction; 0: not told
    int devices_per_node;
    ModelShape model;
    ParallelConfig config;
    double step_s;
    double memory_gb; // 10^9 bytes of a device; 0: not told
    int line;
    bool guessed; // microbatch, chunks, recomputation or sequence parallelism are open: filled by the rule
    bool suspect; // its source doubts it
    bool told_zero_stage, told_scatter_gather, told_overlap_gradients, told_overlap_tensor;
} PlanRow;

typedef struct {
    PlanRow *items;
    int count, capacity;
    int refused; // rows of the file in fp8, which is not predicted; they are left out
} PlanRows;

// A CSV file whose first line names its columns, in any order; more may be there, and optional ones may be
// missing.
//   required  layers hidden heads vocab seq tp pp dp global_batch step_s; ffn_hidden where mlp is swiglu
//   optional  id set stack gpu gpus_per_node inter_node_gbps (of a node) model kv_heads ffn_hidden
//             mlp (gelu, relu2, swiglu) tied_embedding gpus vp cp micro_batch schedule recompute
//             sequence_parallel zero_stage precision attention attention_kernel p2p_scatter_gather
//             tp_comm_overlap dp_comm_overlap metric (oom: did not fit, step_s is empty) mem_gb note
// Models: swiglu is a Llama, gelu a GPT with dropout of 0.1, relu2 a Nemotron (counted as gelu, with rotary
// positions and neither biases nor dropout).
// The rule for what is open: microbatch 1, but 4 or 2 without a pipeline, where that divides; two layers in a
// chunk where that divides, else one, and a single chunk where the microbatches do not divide by p; attention
// is fused; no recomputation, but of every layer where attention is not fused; sequence parallelism where
// tensor-parallel messages overlap, which needs it.
// ERR_DATA with line and column for what is missing, no number, or contradicts itself, and for a file without
// rows; one whose rows are all in fp8 has none left.
Status plan_rows_read(PlanRows *rows, const char *path);
// One row more, from what `trireme train --metrics FILE` wrote: the median of its step times without the
// first tenth of them. The file does not say what was run: model and candidate do, and steps of another batch
// are left out.   ERR_DATA when fewer than three steps remain.
Status plan_rows_add_metrics(PlanRows *rows, const char *path, const ModelShape *model,
                             const ParallelConfig *config, const char *machine);
Status plan_rows_add(PlanRows *rows, const PlanRow *row); // ERR_OS
void plan_rows_free(PlanRows *rows);
// Fills `machine` of every row: of the shipped machines with its GPU and as many in a node, the one whose
// network is nearest to the row's; the fastest network where the row does not tell its own, since a NIC per
// GPU is usual. A GPU that no machine has leaves it "". What machine_open returns.
Status rows_find_machines(PlanRows *rows);
