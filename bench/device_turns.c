// Tensors and times for a bench of a device.
#include "device_turns.h"
#include "base/rng.h"
#include "device/element.h"
#include "median.h"
#include <math.h>
#include <stdlib.h>

// ---- tensors ----------------------------------------------------------------------------------------------

Tensor values_of(Bench *b, DType dtype, int64_t rows, int64_t cols) {
    Tensor x = tensor_take(&b->arena, "values", rows, cols, dtype);
    if (b->arena.measuring) return x;
    int64_t count = tensor_count(x), done = count < PATTERN ? count : PATTERN;
    Tensor host = {b->pattern, 1, done, dtype};
    for (int64_t i = 0; i < done; i++)
        store(host, i, (double)rng_word(rng_key(1, "values", 0), 0, (uint64_t)i) * 0x1p-32 - 0.5);
    device_upload(b->device, b->stream, tensor_part(x, 0, done), b->pattern);
    while (done < count) {
        int64_t more = done < count - done ? done : count - done;
        device_copy(b->device, b->stream, tensor_part(x, done, more), tensor_part(x, 0, more));
        done += more;
    }
    return x;
}

Tensor values(Bench *b, int64_t rows, int64_t cols) { return values_of(b, b->dtype, rows, cols); }
Tensor floats(Bench *b, int64_t rows, int64_t cols) { return values_of(b, F32, rows, cols); }

Tensor zeros(Bench *b, DType dtype, int64_t rows, int64_t cols) {
    Tensor x = tensor_take(&b->arena, "zeros", rows, cols, dtype);
    device_zero(b->device, b->stream, x);
    return x;
}

Tensor tokens(Bench *b, int64_t count) {
    Tensor x = tensor_take(&b->arena, "tokens", 1, count, I32);
    int32_t *ids = malloc((size_t)count * sizeof *ids);
    CHECK(ids, "no memory");
    for (int64_t i = 0; i < count; i++) ids[i] = (int32_t)(i * 7919 % b->model->vocabulary);
    device_upload(b->device, b->stream, x, ids);
    free(ids);
    return x;
}

// ---- times ------------------------------------------------------------------------------------------------

static OpCount counted(const Bench *b) {
    OpCount sum = {0};
    for (int op = 0; op < NUM_DEVICE_OPS; op++) {
        OpCount one = device_counts(b->device)[op];
        sum.calls += one.calls, sum.flops += one.flops, sum.bytes += one.bytes;
    }
    return sum;
}

bool turn(Bench *b, int i) {
    int turns = device_computes(b->device) ? TURNS + 1 : 1;
    if (i == 0) b->before = counted(b);
    b->marks[i] = device_mark(b->device, b->stream);
    return i < turns;
}

double seconds_of(Bench *b) {
    double times[TURNS];
    if (!device_computes(b->device)) {
        for (int i = 0; i < 2; i++) device_mark_read(b->device, &b->marks[i]);
        return NAN;
    }
    for (int i = 0; i < TURNS + 2; i++) device_mark_read(b->device, &b->marks[i]);
    for (int i = 0; i < TURNS; i++) times[i] = b->marks[i + 2].work_s - b->marks[i + 1].work_s;
    return median(times, TURNS);
}

const Column FLOPS_COLUMNS[3] = {
    {"ms", 4, LOWER_IS_BETTER}, {"TFLOP/s", 2, HIGHER_IS_BETTER}, {"% best product", 1, INFORMS}};
const Column BYTES_COLUMNS[3] = {
    {"ms", 4, LOWER_IS_BETTER}, {"GB/s", 1, HIGHER_IS_BETTER}, {"% of copy", 1, INFORMS}};

void flops_row(Bench *b, const char *name) {
    double time = seconds_of(b), flops = (counted(b).flops - b->before.flops) / (TURNS + 1),
           rate = flops / time;
    if (device_computes(b->device))
        table_row(&b->tables, name, (double[]){1e3 * time, rate / 1e12, 100 * rate / b->best_product});
}

void bytes_row(Bench *b, const char *name) {
    double time = seconds_of(b), bytes = (counted(b).bytes - b->before.bytes) / (TURNS + 1),
           rate = bytes / time;
    if (device_computes(b->device))
        table_row(&b->tables, name, (double[]){1e3 * time, rate / 1e9, 100 * rate / b->copy});
}
