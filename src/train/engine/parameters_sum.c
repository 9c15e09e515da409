// Sums up the parameters of the whole model in one number that does not depend on the grid.
#include "base/hash.h"
#include "train/internal.h"
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 1 << 16 }; // elements that are read at once

// The weight of an element: odd, so that a flipped bit always changes the sum, and as good as random, so that others
// do.
static inline uint64_t weight_of(uint64_t tensor, uint64_t index) {
    uint64_t x = tensor + index * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93u;
    return (x ^ (x >> 32)) | 1;
}

static uint64_t sum_of_row(uint64_t tensor, int64_t index, const float *row, int64_t count) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &row[i], sizeof bits);
        sum += bits * weight_of(tensor, (uint64_t)(index + i));
    }
    return sum;
}

// Columns [begin, end) of `rows` rows from `first` on; they fit the buffer.
static uint64_t sum_of_rows(const Slice *s, uint64_t tensor, int64_t first, int64_t rows, int64_t begin,
                            int64_t end, float *buffer) {
    uint64_t sum = 0;
    s->read(s, first * s->stride + begin, (rows - 1) * s->stride + end - begin, buffer);
    for (int64_t r = 0; r < rows; r++)
        sum += sum_of_row(tensor, (s->rect.row + first + r) * s->cols + s->rect.col + begin,
                          buffer + r * s->stride, end - begin);
    return sum;
}

static uint64_t sum_of_slice(const Slice *s, float *buffer) {
    uint64_t tensor = hash64_of(s->tensor, strlen(s->tensor)), sum = 0;
    int64_t together = s->stride < BLOCK ? BLOCK / s->stride : 1;
    for (int64_t row = 0, rows; row < s->rect.rows; row += rows) {
        rows = s->rect.rows - row < together ? s->rect.rows - row : together;
        for (int64_t begin = 0, end; begin < s->rect.cols; begin = end) {
            end = s->rect.cols - begin < BLOCK ? s->rect.cols : begin + BLOCK;
            sum += sum_of_rows(s, tensor, row, rows, begin, end, buffer);
        }
    }
    return sum;
}

// Halves of 32 bits are added as doubles, which hold the sums of two million ranks exactly.
static uint64_t sum_over(Comm *world, uint64_t sum) {
    double halves[2] = {(double)(sum >> 32), (double)(sum & UINT32_MAX)};
    comm_all_reduce_host(world, halves, 2, REDUCE_SUM);
    return ((uint64_t)halves[0] << 32) + (uint64_t)halves[1];
}

uint64_t parameters_sum(Engine *engine, Comm *world) {
    EngineState state = {0};
    uint64_t sum = 0;
    rank_doing("summing up the parameters");
    float *buffer = malloc(BLOCK * sizeof *buffer);
    CHECK(buffer && engine_state(engine, false, false, &state) == OK,
          "no memory for the checksum of the parameters");
    for (int i = 0; i < state.count; i++) sum += sum_of_slice(&state.items[i], buffer);
    engine_state_free(&state);
    free(buffer);
    return sum_over(world, sum);
}
