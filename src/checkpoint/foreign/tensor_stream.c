// Reads tensors of Hugging Face and GGUF from our weights, a piece at a time.
#include "checkpoint/foreign/tensor_stream.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// Reads a rectangle of their tensor, oriented as ours.   out [rect.rows, rect.cols]
static Status read_strip(const Mapping *m, ModelSource *source, const WeightStrip *s, Rect rect, float *out) {
    const WeightSpec *weight = &m->weights[s->weight];
    const TheirTensor *t = &m->tensors[s->tensor];
    int64_t begin = rect.row > s->first ? rect.row - s->first : 0, all = s->per * s->groups;
    int64_t end = rect.row + rect.rows - s->first < all ? rect.row + rect.rows - s->first : all;
    for (int64_t i = begin, run; i < end; i += run) {
        run = t->permuted ? 1 : s->per - i % s->per;
        if (run > end - i) run = end - i;
        int64_t ours = strip_row(s, tensor_row_ours(t, i));
        Rect from = {ours, rect.col, run, rect.cols};
        if (weight_is_vector(weight)) from = (Rect){ours / weight->cols, ours % weight->cols, 1, run};
        TRY(model_source_read(source, weight->name, from, out + (s->first + i - rect.row) * rect.cols,
                              from.cols));
    }
    return OK;
}

static Status read_rect(const Mapping *m, ModelSource *source, int tensor, Rect rect, float *out) {
    const TheirTensor *t = &m->tensors[tensor];
    if (t->values)
        memcpy(out, t->values + rect.row, (size_t)rect.rows * sizeof *out);
    else if (!t->strips)
        memset(out, 0, (size_t)(rect.rows * rect.cols) * sizeof *out);
    for (int i = 0; i < t->strips; i++) TRY(read_strip(m, source, &m->strips[t->strip + i], rect, out));
    return OK;
}

enum {
    MAX_READ = 4 << 20, // elements read at a time; a longer line is read whole
    TILE = 16,          // lines transposed together
};

static void transpose(const float *from, int64_t rows, int64_t cols, float *to) {
    for (int64_t row = 0; row < rows; row += TILE)
        for (int64_t col = 0; col < cols; col++)
            for (int64_t r = row; r < row + TILE && r < rows; r++) to[col * rows + r] = from[r * cols + col];
}

// Where the file stores it transposed, its lines are columns: of each matrix those from `row` on.
static Status read_lines(const Mapping *m, ModelSource *source, int tensor, int64_t row, int64_t first,
                         int64_t count, float *scratch, float *out) {
    const TheirTensor *t = &m->tensors[tensor];
    int64_t rows = t->is_vector ? t->rows : tensor_matrix_rows(t);
    if (!t->transposed) return read_rect(m, source, tensor, (Rect){first, 0, count, t->cols}, out);
    TRY(read_rect(m, source, tensor, (Rect){row, first, rows, count}, scratch));
    transpose(scratch, rows, count, out);
    return OK;
}

static Status pass(TakePiece *take, void *self, const float *elements, int64_t count) {
    for (int64_t i = 0; i < count; i += MAX_PIECE)
        TRY(take(self, elements + i, count - i < MAX_PIECE ? count - i : MAX_PIECE));
    return OK;
}

Status tensor_stream(const Mapping *m, ModelSource *source, int tensor, TakePiece *take, void *self) {
    const TheirTensor *t = &m->tensors[tensor];
    int64_t rows = t->transposed && !t->is_vector ? tensor_matrix_rows(t) : t->rows;
    int64_t lines = t->transposed ? t->cols : rows, line = t->transposed ? rows : t->cols;
    int64_t most = line < MAX_READ ? MAX_READ / line : 1;
    if (most > lines) most = lines;
    float *piece = malloc((size_t)(2 * most * line) * sizeof *piece);
    if (!piece) return fail(ERR_OS, "no memory for %" PRId64 " elements of %s", 2 * most * line, t->name);
    Status status = OK;
    for (int64_t row = 0; row < t->rows; row += rows)
        for (int64_t first = 0; status == OK && first < lines; first += most) {
            int64_t count = lines - first < most ? lines - first : most;
            status = read_lines(m, source, tensor, row, first, count, piece + most * line, piece);
            for (int64_t i = 0; status == OK && t->plus != 0 && i < count * line; i++) piece[i] += t->plus;
            if (status == OK) status = pass(take, self, piece, count * line);
        }
    free(piece);
    return status;
}
