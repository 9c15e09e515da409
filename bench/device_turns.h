// One bench of a device: tensors of values, and times of operations as rows of tables. It is made twice: on a null
// device, which says what memory it takes, and for its time.
#pragma once
#include "device/ops.h"
#include "table.h"

typedef struct {
    const char *name;
    int64_t hidden, heads, groups, inner, vocabulary; // H, N, G, F, V
    int64_t batch, sequence;                          // B, S of products and attention
    int64_t elements;                                 // of a tensor [T, H] of operations bound by memory
    int64_t loss_rows;                                // of logits
    bool llama;                                       // RMS norms, SwiGLU, rotary embedding
} Model;

enum { TURNS = 15, MAX_ROWS = 64, PATTERN = 1 << 16 };

typedef struct {
    const Model *model;
    DType dtype;
    Device *device;
    Stream *stream;
    Arena arena;
    OpCount before;
    DeviceMark marks[TURNS + 2];
    double copy, best_product; // bytes/s, FLOP/s
    Tables tables;
    void *pattern; // values that are uploaded
} Bench;

// Tensors of the bench's arena. Values are in [-1/2, 1/2), in a pattern that is repeated; of the model's element type,
// of another type, or F32.
Tensor values(Bench *b, int64_t rows, int64_t cols);
Tensor values_of(Bench *b, DType dtype, int64_t rows, int64_t cols);
Tensor floats(Bench *b, int64_t rows, int64_t cols);
Tensor zeros(Bench *b, DType dtype, int64_t rows, int64_t cols);
Tensor tokens(Bench *b, int64_t count); // I32 [1, count], of the model's vocabulary

// for (int i = 0; turn(b, i); i++) call; is what is measured: the first call warms up.
bool turn(Bench *b, int i);
// Returns the seconds of a call, the median of its turns; NAN where nothing is computed.
double seconds_of(Bench *b);

// Columns of the tables, and a row of them after the turns of a call.
extern const Column FLOPS_COLUMNS[3], BYTES_COLUMNS[3];
void flops_row(Bench *b, const char *name);
void bytes_row(Bench *b, const char *name);
