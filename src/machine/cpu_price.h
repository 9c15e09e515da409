// A CPU as a machine: its operations are priced by what they took inside training steps on it.
//
// Operations fall into classes (device operation, transposition, with or without dropout). The time of a
// class is a sum of a few terms with a physical meaning (arithmetic, packing a factor, bytes that fit a cache
// or do not), so a handful of shapes is enough to know all others:
//   seconds = sum over terms of Rate.seconds[i] * term[i](item)
// The seconds of a unit of each term are measured in short training steps of a few small reference models,
// because an operation whose operands the one before left in the cache, and whose neighbour rank asks for the
// same memory, takes another time than one that runs alone. They are non-negative, so a price never falls
// when a size grows. A machine file keeps them as a list of rows (Rate), for 1 rank at work and for all.
#pragma once
#include "machine/machine.h"
#include "machine/work_item.h"

// ---- classes and terms ---------------------------------------------------------------------------

typedef struct {
    char name[48]; // "matmul_nt", "attention_forward_dropout", "adamw"
    int count;
    double values[MAX_TERMS];
} Terms;

// Of a matrix product: 1, MNK, MN, MK, KN. Of attention: 1, and B N/t times SD, SS, SSD. Of all else those of
// its bytes; where a table is looked up, of the rows touched.
Terms cpu_terms(const WorkItem *item);
// 1, bytes, and the bytes beyond what fits a core's own cache and the shared one.
Terms cpu_terms_of_bytes(const char *name, double bytes);

// ---- prices, in seconds --------------------------------------------------------------------------

// `ranks` of the machine work at once: what lies between the measured counts is interpolated. An operation
// whose class has no row, in fp32 either, is priced by the machine's peak and memory bandwidth.
double price_operation_cpu(const Machine *machine, const WorkItem *item, int ranks);
// Of a tensor of so many bytes, the whole one where it is scattered or gathered, over `ranks` ranks.
double price_collective_cpu(const Machine *machine, int ranks, CommOp op, double bytes);
double price_message_cpu(const Machine *machine, double bytes);
// What a step does beside its microbatches, for a rank that steps so many parameters (all, or its share of the
// distributed optimizer): the norm of their gradients, AdamW.
double price_step_cpu(const Machine *machine, double stepped, DType dtype, int ranks);

// ---- measuring -----------------------------------------------------------------------------------

// One measurement: a class's terms and the seconds they took.
typedef struct {
    Terms terms;
    DType dtype;
    double seconds;
} Sample;

typedef struct {
    Sample *items;
    int count, capacity;
} Samples;

// ERR_OS without memory.
Status samples_add(Samples *samples, Sample sample);
void samples_free(Samples *samples);
// One row per class and type: the non-negative seconds per term with the least squares of relative errors.
// Where an item was measured several times its median counts.   ERR_OS without memory.
Status cpu_fit(Machine *machine, Samples *samples, int ranks);

typedef struct {
    int ranks, threads;                        // of each rank
    bool bf16;                                 // too, beside fp32
    void (*tell)(const char *what, int ranks); // called on rank 0 before each part; may be NULL
} CpuBench;

// Trains the reference models, which takes about a minute, and fills `machine` on rank 0. The ranks are
// threads of this process or, under a launcher, its processes.
Status cpu_bench(Machine *machine, const CpuBench *bench);
