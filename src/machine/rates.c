// Prices of operations, collectives and messages from the rates in a machine file.
#include "machine/rates.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

// ---- terms ---------------------------------------------------------------------------------------

static const double MIB = 1048576;

// The caches of usual CPUs: 1 MiB for each core and about 16 MiB shared.
Terms rate_terms_of_bytes(const char *name, double bytes) {
    Terms terms = {
        .count = 4,
        .values = {1, bytes, bytes > MIB ? bytes - MIB : 0, bytes > 16 * MIB ? bytes - 16 * MIB : 0}};
    snprintf(terms.name, sizeof terms.name, "%s", name);
    return terms;
}

static Terms product_terms(const WorkItem *item) {
    double m = (double)item->m, n = (double)item->n, k = (double)item->k;
    Terms terms = {.count = 5, .values = {1, m * n * k, m * n, m * k, k * n}};
    snprintf(terms.name, sizeof terms.name, "%s_%c%c", device_op_name(item->op),
             item->transpose_a ? 't' : 'n', item->transpose_b ? 't' : 'n');
    return terms;
}

static Terms attention_terms(const WorkItem *item) {
    double heads = (double)item->batch, s = (double)item->m, d = (double)item->n, k = (double)item->k;
    return (Terms){.count = 4, .values = {1, heads * s * d, heads * s * k, heads * s * k * d}};
}

// Tiles of 128 x 256, which large products take: the last wave has more of the memory's bandwidth to itself.
static Terms product_terms_gpu(const WorkItem *item, int sms) {
    const double tail = 0.2;
    double tiles = ceil((double)item->m / 128) * ceil((double)item->n / 256), waves = tiles / sms;
    double full = fmax(1, waves + tail * (ceil(waves) - waves)), again = item->accumulate ? 4 : 0;
    Terms terms = product_terms(item);
    terms.count = 4;
    terms.values[1] = full, terms.values[2] = full * (double)item->k;
    terms.values[3] = item->bytes + again * (double)(item->m * item->n);
    return terms;
}

// A lookup touches only the table's rows of its tokens: as many bytes as the other large tensor has.
static double bytes_touched(const WorkItem *item) {
    if (item->op != OP_EMBEDDING_FORWARD && item->op != OP_EMBEDDING_BACKWARD) return item->bytes;
    double largest = (double)item->m * (double)item->n * (double)dtype_bytes(item->dtype);
    return 2 * fmin(largest, item->bytes - largest);
}

Terms rate_terms(const WorkItem *item) {
    const char *name = device_op_name(item->op);
    Terms terms;
    if (work_item_is_product(item)) return product_terms(item);
    bool attention = item->op == OP_ATTENTION_FORWARD || item->op == OP_ATTENTION_BACKWARD;
    terms = attention ? attention_terms(item) : rate_terms_of_bytes(name, bytes_touched(item));
    snprintf(terms.name, sizeof terms.name, "%s%s%s", name, item->dropout ? "_dropout" : "",
             item->probabilities ? "_probabilities" : "");
    return terms;
}

Terms rate_terms_gpu(const WorkItem *item, int sms) {
    const double cache = 48 * MIB; // of an A100's 40, an H200's 60
    Terms terms = work_item_is_product(item) ? product_terms_gpu(item, sms) : rate_terms(item);
    if (work_item_is_product(item) || item->op == OP_ATTENTION_FORWARD || item->op == OP_ATTENTION_BACKWARD)
        return terms;
    terms.count = 3;
    terms.values[2] = fmax(0, terms.values[1] - cache);
    return terms;
}

static Terms terms_on(const Machine *machine, const WorkItem *item) {
    return machine->is_cpu ? rate_terms(item) : rate_terms_gpu(item, machine->sms);
}

// ---- rows ----------------------------------------------------------------------------------------

static double row_price(const Rate *row, const Terms *terms) {
    double seconds = 0;
    for (int i = 0; i < row->count && i < terms->count; i++) seconds += row->seconds[i] * terms->values[i];
    return seconds;
}

// The rows of a class with the nearest numbers of ranks, below and above; NULL where there is none.
typedef struct {
    const Rate *below, *above;
} Bracket;

static Bracket rows_around(const Machine *machine, const char *name, DType dtype, int ranks) {
    Bracket found = {0};
    for (int i = 0; i < machine->num_rates; i++) {
        const Rate *row = &machine->rates[i];
        if (row->dtype != dtype || strcmp(row->op, name) != 0) continue;
        if (row->ranks <= ranks && (!found.below || row->ranks > found.below->ranks)) found.below = row;
        if (row->ranks >= ranks && (!found.above || row->ranks < found.above->ranks)) found.above = row;
    }
    return found;
}

// Returns -1 when the machine has no row of the class.
static double class_price(const Machine *machine, const Terms *terms, DType dtype, int ranks) {
    Bracket rows = rows_around(machine, terms->name, dtype, ranks);
    if (!rows.below && !rows.above && dtype != F32) rows = rows_around(machine, terms->name, F32, ranks);
    if (!rows.below && !rows.above) return -1;
    if (!rows.below) return row_price(rows.above, terms);
    if (!rows.above || rows.above == rows.below) return row_price(rows.below, terms);
    double share = (double)(ranks - rows.below->ranks) / (rows.above->ranks - rows.below->ranks);
    return (1 - share) * row_price(rows.below, terms) + share * row_price(rows.above, terms);
}

static double price(const Machine *machine, const Terms *terms, DType dtype, int ranks, double otherwise) {
    double seconds = class_price(machine, terms, dtype, ranks);
    return seconds < 0 ? otherwise : seconds;
}

// ---- prices --------------------------------------------------------------------------------------

static double seconds_of_bytes(const Machine *machine, double bytes) {
    return bytes / (1e9 * machine->memory_gbs);
}

static double roofline(const Machine *machine, const WorkItem *item) {
    double arithmetic = item->flops / (1e12 * machine->peak_tflops[item->dtype]);
    double memory = seconds_of_bytes(machine, item->bytes);
    return arithmetic > memory ? arithmetic : memory;
}

double price_operation_by_rates(const Machine *machine, const WorkItem *item, int ranks) {
    Terms terms = terms_on(machine, item);
    return price(machine, &terms, item->dtype, ranks, roofline(machine, item));
}

// Without a measurement: the first rank copies in and the last one copies out.
double price_collective_by_rates(const Machine *machine, int ranks, CommOp op, double bytes) {
    if (ranks < 2) return 0;
    Terms terms = rate_terms_of_bytes(comm_op_name(op), bytes);
    return price(machine, &terms, F32, ranks, 2 * seconds_of_bytes(machine, bytes));
}

double price_message_by_rates(const Machine *machine, double bytes) {
    Terms terms = rate_terms_of_bytes(comm_op_name(COMM_SEND), bytes);
    return price(machine, &terms, F32, 2, 2 * seconds_of_bytes(machine, bytes));
}

static double price_of_bytes(const Machine *machine, DeviceOp op, double bytes, int ranks) {
    WorkItem item = {.op = (uint8_t)op, .dtype = F32, .bytes = bytes};
    return price_operation_by_rates(machine, &item, ranks);
}

// Gradients are fp32 in every precision. AdamW keeps an fp32 copy beside fp16 weights; bf16 weights are one half of
// their fp32 weights, so AdamW reads and writes no more than with fp32. A second pass over gradients, where the
// largest one changes its exponent, is left out.
double price_step_by_rates(const Machine *machine, double stepped, DType dtype, int ranks) {
    double value = dtype == F16 ? (double)dtype_bytes(dtype) : 0;
    return price_of_bytes(machine, OP_SUM_SQUARES, 4 * stepped, ranks) +
           price_of_bytes(machine, OP_ADAMW, (16 + value) * stepped, ranks);
}
