#include "layout/layout.h"

static int rank_layers(LayerSplit split, int p, int rank) {
    if (rank == 0 && split.first) return split.first;
    if (rank == p - 1 && split.last) return split.last;
    int others = p - (split.first > 0) - (split.last > 0), rest = split.layers - split.first - split.last;
    CHECK(rest % others == 0, "%d layers over %d ranks", rest, others);
    return rest / others;
}

static int stage_layers(LayerSplit split, int p, int num_chunks, int stage) {
    int layers = rank_layers(split, p, stage % p);
    CHECK(layers % num_chunks == 0, "%d layers of rank %d in %d chunks", layers, stage % p, num_chunks);
    return layers / num_chunks;
}

void layer_range(LayerSplit split, int pp_size, int num_chunks, int stage, int *first, int *count) {
    *first = 0;
    for (int before = 0; before < stage; before++) *first += stage_layers(split, pp_size, num_chunks, before);
    *count = stage_layers(split, pp_size, num_chunks, stage);
}
