#include "layout/layout.h"

void layer_range(int num_layers, int pp_size, int num_chunks, int pp, int chunk, int *first, int *count) {
    CHECK(num_layers % (pp_size * num_chunks) == 0, "%d layers over %d ranks of %d chunks", num_layers,
          pp_size, num_chunks);
    *count = num_layers / (pp_size * num_chunks);
    *first = *count * (chunk * pp_size + pp);
}
