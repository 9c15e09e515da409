// Finds the tensor of another format that holds an element of one of our weights, for messages.
#include "checkpoint/foreign/mapping.h"

const char *mapping_tensor_at(const Mapping *m, const char *weight, int64_t row, int64_t col) {
    int number = mapping_find(m, weight);
    const WeightSpec *spec = &m->weights[number];
    if (weight_is_vector(spec)) row = row * spec->cols + col;
    for (int i = 0; i < m->num_strips; i++) {
        const WeightStrip *s = &m->strips[i];
        if (s->weight == number && strip_rows_before(s, row + 1) > strip_rows_before(s, row))
            return m->tensors[s->tensor].name;
    }
    CHECK(false, "no tensor has row %lld of %s", (long long)row, weight);
}
