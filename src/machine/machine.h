// Descriptions of machines (the hardware) and stacks (training programs), read from YAML files. Every number of
// the planner is written down in such a file, together with its origin.
//
// Machines and stacks in machines/ and stacks/ are built into the program; others are given as paths. A file's
// name without ".yaml" is the name of the machine or stack; its keys are the members of the structs below.
// A key that is unknown, missing, of the wrong type or out of range is an error; the message names file, line,
// key and value, and says what is allowed.
#pragma once
#include "base/text.h"
#include "device/ops.h"

enum { MAX_NAME = 64, MAX_ALIASES = 4, MAX_CONSTANTS = 128 };
enum { MAX_POINTS = 64, MAX_CURVES = 16, MAX_TILES = 8, MAX_TERMS = 6 };
enum { MAX_VARIANTS = 8, MAX_FACTORS = 4 };

// What the products of the linear layers multiply: numbers of the run's type, or factors made from them with 8 or 4
// bits each. fp8: a scale for each tensor; mxfp8: for each 32 numbers; nvfp4: 4 bits, a scale for each 16.
typedef enum { FACTORS_WHOLE, FACTORS_FP8, FACTORS_MXFP8, FACTORS_NVFP4, NUM_FACTOR_FORMATS } FactorFormat;
const char *factor_format_name(FactorFormat format); // "fp8"; "" for FACTORS_WHOLE
const char *
factor_format_recipe(FactorFormat format); // of train's options, "tensorwise"; "" for FACTORS_WHOLE
double
factor_format_bytes(FactorFormat format); // of a number, with its part of the scales; 0 for FACTORS_WHOLE
bool factor_format_find(const char *name, FactorFormat *format); // false for an unknown name

typedef struct {
    char names[MAX_ALIASES][MAX_NAME];
    int count;
} Aliases;

// ---- constants ----------------------------------------------------------------------------------

// The numbers of the cost model, one member for each row of constants.def. A machine file sets those of the
// hardware, a stack file those of the software. The stack's value takes precedence over the machine's; a
// constant that neither sets has its usual value.
typedef struct {
#define CONSTANT(name, ...) double name;
#include "machine/constants.def"
#undef CONSTANT
} Constants;

typedef struct {
    const char *name, *unit, *meaning;
    size_t offset; // in Constants
    double lowest, highest, usual;
} ConstantInfo;

extern const ConstantInfo constant_table[];
extern const int num_constants;                   // at most MAX_CONSTANTS
double *constant_at(Constants *constants, int i); // of row i of the table
int constant_find(const char *name);              // its row, or -1 for an unknown name

// ---- machines -----------------------------------------------------------------------------------

typedef struct {
    double bytes,
        gbs; // message size; bus bandwidth as nccl-tests define it: 2(n-1)/n bytes/time of an all-reduce
} CurvePoint;

// Bus bandwidth over message size, measured with `ranks` ranks inside one node or with `nodes` > 1 whole nodes.
// The file has either the key `ranks` or the key `nodes`.
typedef struct {
    int ranks, nodes;
    int count;
    CurvePoint points[MAX_POINTS]; // in ascending order of bytes
} Curve;

// A tile size of the device's matrix products.
typedef struct {
    int m, n;    // rows and columns of the result that one tile computes
    double rate; // throughput of a device full of such tiles, as a fraction of the best tile's
} Tile;

// The time of a class of operations, fitted to training steps on the machine (rates.h): the seconds that one unit of
// each of its terms takes.
typedef struct {
    char op[48]; // "matmul_nt", "attention_forward_dropout", ...
    DType dtype;
    int ranks; // that computed at the same time
    int count; // terms
    double seconds[MAX_TERMS];
    double error; // mean relative error of the fit
} Rate;

typedef struct {
    char name[MAX_NAME], description[160];
    char gpu[MAX_NAME]; // the GPU, "a100-80gb", or the CPU: the file has the key `gpu` or `cpu`
    bool is_cpu;
    Aliases aliases; // other names that machine_open accepts
    int devices_per_node;
    double peak_tflops[NUM_DTYPES];           // dense; 0: the device does not support the type
    double factor_tflops[NUM_FACTOR_FORMATS]; // of products of such factors; 0: the device does not have them
    double memory_gb, usable_gb;              // 10^9 bytes of each device: all, and without the driver's own
    double memory_gbs;                        // memory bandwidth of a device
    int sms;                                  // streaming multiprocessors: tiles that run at once
    double link_gbs;                          // of a device to the others in its node, one direction
    double host_link_gbs;                     // of a device to its host, one direction; 0: unknown
    double host_memory_gbs;                   // memory bandwidth of a node's processors; 0: unknown
    int nics;                                 // of a node; 0: the node has no network
    double nic_gbs;                           // of each NIC, one direction
    Curve curves[MAX_CURVES];
    int num_curves;
    Tile tiles[MAX_TILES]; // GPUs only
    int num_tiles;
    Rate *rates; // measured by trireme bench
    int num_rates;
    Constants constants;
    bool set[MAX_CONSTANTS]; // [i]: the file sets constant i
    double price;            // of a device hour, in dollars; 0: unknown
    // The most that a device draws, and a whole node with its processors, network and fans; 0: unknown
    double device_watts, node_watts;
    // The stack of trireme that was measured with this machine: its name, or a file beside the machine's; "": none
    char stack[MAX_NAME];
} Machine;

// Opens a machine by its name, an alias, or the path of a file (a path has a '/' or ends in .yaml). ERR_USAGE for
// an unknown name; the message has the nearest one and the list. ERR_DATA for a wrong file; the message has file,
// line and what is expected. After a failure there is nothing to close.
Status machine_open(Machine *machine, const char *name);
void machine_close(Machine *machine);
// Returns the most that a device draws with its share of its node, where the node's power is known, else the device
// alone; 0: neither is known.
double machine_watts(const Machine *machine);
void machine_print(const Machine *machine, Text *out); // writes a file that machine_open reads back

// ---- stacks -------------------------------------------------------------------------------------

// The errors of predictions on rows that the constants were not fitted to.
typedef struct {
    char rows[160], method[80], date[16]; // "SC'21 table 1, Korthikanti 2022", "leave one out"
    int count;                            // rows; 0: the constants were never compared with measurements
    double mape, median, p90, worst;      // percent
    double naive;                         // MAPE of one constant rate for all rows
    // The ranges that the rows cover. A prediction outside of them is marked as an extrapolation.
    double least_gpus, most_gpus, least_hidden, most_hidden, least_tp, most_tp, least_sequence, most_sequence;
} Accuracy;

// A variant of the program's kernels, such as "flash1" or "fused_rmsnorm": factors on constants.
typedef struct {
    char name[32];
    int count;
    struct {
        int constant; // a row of the table
        double factor;
    } items[MAX_FACTORS];
} Variant;

typedef struct {
    char name[MAX_NAME], description[160];
    char machine[MAX_NAME]; // on which it was measured; "cpu" stands for every CPU
    Aliases aliases;        // other names that stack_open accepts, such as those of measured rows
    bool preferred;         // to the other stacks of its machine, unless the user names one
    bool low_factors;       // measured in runs with factors of 8 or 4 bits; chosen for such runs alone
    bool of_experts;     // measured in runs of models with experts; chosen for all such runs, and no others
    char base[MAX_NAME]; // a stack whose constants and accuracy this one inherits; "": none
    // The program is trireme itself: its memory follows from its own step. Default: true for stacks of CPUs.
    bool is_trireme;
    char device[16]; // of a stack that is trireme: the kind of device on which it trains; "": "cpu"
    // How the constants were found, where they were not compared with measured runs: "a model of the kernels". Such a
    // stack is never chosen, only named. "": accuracy says it.
    char unmeasured[160];
    // Bytes of each parameter: kept by every rank; cut over dp by a distributed optimizer, and kept by every rank
    // without one; reduced over dp.
    double state_bytes, sharded_bytes, gradient_bytes;
    bool unfused_attention;  // the S x S scores are stored, unless a row or the user says otherwise
    bool overlaps_gradients; // reductions of gradients overlap with the last backward
    bool overlaps_tensor;    // tensor-parallel collectives overlap with matrix products
    bool overlaps_messages;  // messages between stages overlap with forwards and backwards
    bool scatters_messages;  // each tp rank sends its share of a message, and the receivers gather it
    bool overlaps_backward;  // tensor-parallel collectives of a backward overlap with weight gradients
    bool
        hides_gathers; // of those collectives, only sequence parallelism's second all-gather of a layer's input
    bool gathers_logits;  // every tp rank holds the logits of the whole vocabulary
    bool balances_stages; // when layers are distributed, embedding and head count by their parameters
    // Stages step without waiting for the others, and go back where the norm of all gradients says so: a step takes as
    // long as the stage that is longest at work. Messages of schedules with split backwards overlap with computes, as
    // those schedules count on.   Source: Qi 2023, sections 4 and 5.3
    bool steps_apart;
    // Where layers do not divide, each stage has as many as the longest, and the last stage what is left.
    bool fills_stages;
    bool
        shards_weights; // it can cut gradients and weights over replicas: a search tries that without a pipeline
    // It can keep the optimizer's state on the hosts, which step it; trireme can without this.
    bool offloads_optimizer;
    // A token is sent once to each node, and there once to each rank, that has any of its experts, and comes back
    // summed; else once for each expert.
    bool dispatches_once;
    Constants constants, base_constants;
    bool set[MAX_CONSTANTS], base_set[MAX_CONSTANTS]; // [i]: the file sets constant i; its base does
    bool is_free[MAX_CONSTANTS];                      // [i]: a calibration fits constant i ...
    Constants priors;                                 // ... starting here, chosen without measured rows
    Variant variants[MAX_VARIANTS];
    int num_variants;
    Accuracy accuracy;
    bool inherits_accuracy; // of the base
} Stack;

Status stack_open(Stack *stack, const char *name); // as machine_open; a stack needs no closing
// Chooses the shipped stack that predicts this machine best: one measured on it, else on the same GPU, else on the
// GPU whose peak is nearest; among equals the preferred one. A GPU never gets the stack of a CPU, nor a CPU that of a
// GPU, and neither one whose constants are unmeasured.
typedef struct {
    bool low;     // products of factors of 8 or 4 bits
    bool experts; // a model with experts
} RunKind;
Status stack_for(Stack *stack, const Machine *machine, RunKind run);
// Returns whether the stack was measured on this machine. If not, all its predictions here are extrapolations.
bool stack_is_of(const Stack *stack, const Machine *machine);
void stack_print(const Stack *stack, Text *out); // writes a file that stack_open reads back

// The usual constants, replaced by those that the machine sets, then the stack's base, then the stack itself.
Constants constants_of(const Machine *machine, const Stack *stack);
// Replaces those that the stack does not set by the machine's, or by their usual values.
void constants_on(Constants *constants, const Machine *machine, const Stack *stack);
// Those of constants_of, but with the priors of the free constants, as they are before a calibration.
Constants priors_of(const Machine *machine, const Stack *stack);
void constants_overlay(Constants *constants, const Stack *stack); // replaces those that the stack itself sets
// Multiplies by the factors of every variant that `words`, such as "flash2+fused_rmsnorm", names. Words that name
// no variant stand for the program's usual kernels.
void stack_apply_variant(const Stack *stack, const char *words, Constants *constants);

// ---- files built into the program -----------------------------------------------------------

typedef struct {
    const char *name, *text; // a file such as machines/NAME.yaml, and its content
} ShippedFile;

extern const ShippedFile shipped_machines[], shipped_stacks[];
extern const int num_shipped_machines, num_shipped_stacks;
