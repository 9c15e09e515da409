// Prices of operations and messages, measured in training steps on the machine itself: on every CPU, and on a GPU whose
// file `trireme bench` has written.
//
// Operations form classes: one for each device operation, transposition, with and without dropout. The time of an
// operation is a sum of a few terms with a physical meaning (arithmetic, packing a factor, bytes inside and
// outside of the caches), so measuring a few shapes is enough to predict all others:
//   seconds = sum over terms of Rate.seconds[i] * term[i](item)
// The seconds per unit of each term are fitted to short training steps of a few small reference models. They are
// measured inside steps because an operation that runs alone takes a different time: in a step, its operands may
// still be in a cache, and other ranks use the same memory. They are never negative, so a price never falls when
// a size grows. A machine file has a row (Rate) of them for each class, with one rank computing and with all.
#pragma once
#include "machine/machine.h"
#include "machine/work_item.h"

// ---- classes and terms ---------------------------------------------------------------------------

typedef struct {
    char name[48]; // "matmul_nt", "attention_forward_dropout", "adamw"
    int count;
    double values[MAX_TERMS];
} Terms;

// The terms of an operation. Matrix product: 1, MNK, MN, MK, KN. Attention: 1, and B N/t times SD, SS, SSD. All
// others: those of their bytes; a lookup counts only the rows that it touches.
Terms rate_terms(const WorkItem *item);
// The same on a GPU with so many multiprocessors. Matrix product: 1, waves of tiles, waves times K, and bytes; others
// than attention: 1, bytes, and the bytes beyond its cache. A last wave that is not full counts as a part of one.
Terms rate_terms_gpu(const WorkItem *item, int sms);
// 1, bytes, the bytes beyond a core's own cache, and the bytes beyond the shared cache.
Terms rate_terms_of_bytes(const char *name, double bytes);

// ---- prices, in seconds --------------------------------------------------------------------------

// `ranks` ranks of the machine compute at the same time; between the measured numbers of ranks prices are
// interpolated. A class without a row of the item's type uses its row of fp32; a class without any row is priced
// by the machine's peak and memory bandwidth.
double price_operation_by_rates(const Machine *machine, const WorkItem *item, int ranks);
// `bytes`: of the whole tensor, also for a scatter or gather. `ranks`: in the group.
double price_collective_by_rates(const Machine *machine, int ranks, CommOp op, double bytes);
double price_message_by_rates(const Machine *machine, double bytes);
// Gradient norm and AdamW of a rank that updates `stepped` parameters: all it has, or its shard of the distributed
// optimizer.
double price_step_by_rates(const Machine *machine, double stepped, DType dtype, int ranks);

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
// Adds one row to the machine for each class and type: the non-negative seconds per term with the least squares of
// relative errors. Of equal items the median is used.   ERR_OS without memory.
Status rates_fit(Machine *machine, Samples *samples, int ranks);

typedef struct {
    int ranks, threads;                        // threads: of each rank
    bool bf16;                                 // measure bf16 in addition to fp32
    void (*tell)(const char *what, int ranks); // optional callback on rank 0 before each part
} RatesBench;

// Trains the reference models on CPUs, which takes about a minute, and fills `machine` on rank 0. The ranks are threads
// of this process or, under a launcher, processes.   ERR_OS, or as the transport fails.
Status rates_bench(Machine *machine, const RatesBench *bench);
// Does the same on the GPUs of a kind of device, "cuda", and measures what a program's stack says of the host: `stack`
// is the shipped trireme-cuda with what was measured. On the simulated GPU of "cuda-sim" models are tiny, and no number
// means anything.   ERR_UNAVAILABLE without a GPU, ERR_OS.
Status rates_bench_gpu(Machine *machine, Stack *stack, const char *device,
                       void (*tell)(const char *what, int ranks));

// ---- shared by the files that measure ------------------------------------------------------------

// A model of which a few steps are trained.
typedef struct {
    int hidden, heads, ffn, sequence, microbatch, vocabulary;
    bool llama, dropout, unfused;
} Reference;

// Trains references alone, each for a few steps, and adds the times of their operations. `sms`: of the GPU; 0: on a
// CPU.
Status rates_of_references(Comm *alone, const Reference *references, int count, DType dtype,
                           const char *device, int threads, int sms, Samples *samples);
