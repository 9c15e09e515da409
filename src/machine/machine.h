// What a run is planned for: a machine (what the hardware does) and a stack (what a training program makes of
// it), both read from YAML files, so that every number of the planner has a place where it is written down
// with its origin. Machines and stacks shipped with the program are part of it; others are given as paths.
//
// A file's name without ".yaml" is the name of the machine or stack; its keys are the members below.
// Whatever is unknown, missing, of the wrong kind or out of range is an error that says file, line, key,
// value, and what is allowed.
#pragma once
#include "base/text.h"
#include "device/ops.h"

enum { MAX_NAME = 64, MAX_ALIASES = 4, MAX_CONSTANTS = 128 };
enum { MAX_POINTS = 64, MAX_CURVES = 16, MAX_TILES = 8, MAX_TERMS = 6 };
enum { MAX_VARIANTS = 8, MAX_FACTORS = 4 };

typedef struct {
    char names[MAX_ALIASES][MAX_NAME];
    int count;
} Aliases;

// ---- constants ----------------------------------------------------------------------------------

// The numbers of the cost model. A machine file gives those that belong to the hardware, a stack file those
// that belong to the software; where both do, the stack's counts; where neither does, it is the usual one.
// The table is constants.def.
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
int constant_find(const char *name);              // its row; -1: there is none

// ---- machines -----------------------------------------------------------------------------------

typedef struct {
    double bytes, gbs; // bus bandwidth as nccl-tests define it: 2(n-1)/n bytes/time of an all-reduce
} CurvePoint;

// Bus bandwidth over message size: of `ranks` ranks inside a node, or of `nodes` > 1 whole nodes. The file
// says either `ranks:` or `nodes:`.
typedef struct {
    int ranks, nodes;
    int count;
    CurvePoint points[MAX_POINTS]; // in rising order of bytes
} Curve;

// How matrix products are cut into tiles.
typedef struct {
    int m, n;    // elements of the result
    double rate; // of a device full of them, of the best tile's
} Tile;

// What a class of operations takes on a CPU, as fitted to training steps on it (cpu.h): the seconds of a unit
// of each of its terms.
typedef struct {
    char op[48]; // "matmul_nt", "attention_forward_dropout", ...
    DType dtype;
    int ranks; // at work at once
    int count; // of the terms
    double seconds[MAX_TERMS];
    double error; // mean of its fit, a share
} Rate;

typedef struct {
    char name[MAX_NAME], description[160];
    char gpu[MAX_NAME]; // "a100-80gb"; of a CPU its name: the file says `gpu:` or `cpu:`
    bool is_cpu;
    Aliases aliases; // other names that machine_open takes
    int devices_per_node;
    double peak_tflops[NUM_DTYPES]; // dense; 0: cannot
    double memory_gb, usable_gb;    // 10^9 bytes of each device; without what the driver keeps
    double memory_gbs;              // bandwidth
    int sms;                        // that a wave of tiles fills
    double link_gbs;                // inside a node, of a device, one direction
    int nics;                       // of a node; 0: the node stands alone
    double nic_gbs;                 // of each, one direction
    Curve curves[MAX_CURVES];
    int num_curves;
    Tile tiles[MAX_TILES]; // of a GPU
    int num_tiles;
    Rate *rates; // of a CPU
    int num_rates;
    Constants constants;
    bool set[MAX_CONSTANTS]; // which rows of the table of constants the file gives
    double price;            // of a device hour, in dollars; 0: not known
} Machine;

// A name of the list, or the path of a file (it has a '/' or ends in .yaml). ERR_USAGE for an unknown name
// (the nearest, and the list), ERR_DATA with file, line and what would be right for a wrong file. After a
// failure there is nothing to close.
Status machine_open(Machine *machine, const char *name);
void machine_close(Machine *machine);
void machine_print(const Machine *machine, Text *out); // the file that machine_open reads back

// ---- stacks -------------------------------------------------------------------------------------

// How well the constants predict what they were not fitted on.
typedef struct {
    char rows[160], method[80], date[16]; // "SC'21 table 1, Korthikanti 2022", "leave one out"
    int count;                            // of rows; 0: nothing was measured
    double mape, median, p90, worst;      // percent
    double naive;                         // of one constant rate for all rows
    // The hull of the rows: outside, a prediction is an extrapolation, and says so.
    double least_gpus, most_gpus, least_hidden, most_hidden, least_tp, most_tp, least_sequence, most_sequence;
} Accuracy;

// A kind of the program's kernels, "flash1" or "fused_rmsnorm", as factors on constants.
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
    char machine[MAX_NAME]; // where it was measured; "cpu" stands for every CPU
    Aliases aliases;        // other names that stack_open takes, such as those of measured rows
    bool preferred;         // over the other stacks of its machine, unless the user names one
    char base[MAX_NAME];    // a stack whose constants are this one's too, and whose accuracy; "": none
    // What the program does.
    // It is this program, whose memory follows from its own step. A file that does not say so of a stack for CPUs
    // says so.
    bool is_trireme;
    double state_bytes;      // of a parameter: that every rank keeps
    double sharded_bytes;    // that a distributed optimizer cuts over dp; kept whole without one
    double gradient_bytes;   // in the reduction over dp
    bool unfused_attention;  // the S x S scores are in memory, unless a row or the user says otherwise
    bool overlaps_gradients; // the reduction hides behind the last backward
    bool overlaps_tensor;    // tensor-parallel collectives hide behind matrix products
    bool overlaps_messages;  // between stages: computes go on meanwhile
    bool scatters_messages;  // each tp rank sends its share, and the receivers gather
    bool overlaps_backward;  // tensor-parallel collectives of a backward hide behind weight gradients
    bool hides_gathers;      // of them sequence parallelism's second gather of inputs alone
    bool gathers_logits;     // every tp rank holds the logits of the whole vocabulary
    bool balances_stages;    // embedding and head count as so many layers as they have parameters
    Constants constants, base_constants;
    bool set[MAX_CONSTANTS], base_set[MAX_CONSTANTS]; // by the file itself; by its base
    bool is_free[MAX_CONSTANTS];                      // which of its own a calibration fits ...
    Constants priors; // ... and where it begins, which no measured row has told
    Variant variants[MAX_VARIANTS];
    int num_variants;
    Accuracy accuracy;
} Stack;

Status stack_open(Stack *stack, const char *name); // as machine_open; owns nothing
// The shipped stack that predicts this machine best: one measured on it, else on the same GPU, else on the
// one whose peak is nearest; of several the preferred one. A GPU never has a CPU's, nor the other way round.
Status stack_for(Stack *stack, const Machine *machine);
// False: it was measured on another machine, and all that it predicts here is an extrapolation.
bool stack_is_of(const Stack *stack, const Machine *machine);
void stack_print(const Stack *stack, Text *out); // the file that stack_open reads back

// The usual constants, the machine's over them, then the base's of the stack, then its own.
Constants constants_of(const Machine *machine, const Stack *stack);
Constants priors_of(const Machine *machine, const Stack *stack);  // those that are free before calibration
void constants_overlay(Constants *constants, const Stack *stack); // the stack's own over what is there
// Multiplies by the factors of every variant that `words`, such as "flash2+fused_rmsnorm", names; other words
// mean the program's usual kernels.
void stack_apply_variant(const Stack *stack, const char *words, Constants *constants);

// ---- the files shipped with the program -----------------------------------------------------------

typedef struct {
    const char *name, *text; // of machines/NAME.yaml, stacks/NAME.yaml
} ShippedFile;

extern const ShippedFile shipped_machines[], shipped_stacks[];
extern const int num_shipped_machines, num_shipped_stacks;
