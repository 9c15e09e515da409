// Which layers of the model a pipeline stage holds.
#pragma once
#include "base/error.h"

// How many layers the pipeline ranks hold: `first` and `last` those two, 0 as many as the others, which share
// the rest evenly. Few on the last rank make room for the head and the loss. Every rank's layers are cut
// evenly into its chunks.
typedef struct {
    int layers, first, last;
    const int *counts; // of each stage in the model's order (0 is possible), or NULL: by the rule above
} LayerSplit;

// The layers [first, first + count) of model stage `stage`, for p ranks of v chunks; stage s is chunk s / p
// of rank s % p.
void layer_range(LayerSplit split, int pp_size, int num_chunks, int stage, int *first, int *count);
// Layers per stage such that the most loaded stage has as little as possible, when what the first stage does
// besides its layers costs as much as `embedding` layers and what the last does as `head` layers. Equal loads
// are preferred on earlier stages.   counts [stages]
void layer_balance(int layers, int stages, double embedding, double head, int *counts);
// Reads Megatron-LM's layout text, "Et*3|(tt|)*2,t|L": stages separated by '|', E embedding, t a layer, L
// head and loss, "*n" repeats the letter or the (group) before it, ',' only separates. counts [stages].
// ERR_CONFIG names the place and the rule: as many stages and layers as given, E only at the very start, L
// only at the very end.
Status layer_parse(const char *text, int layers, int stages, int *counts);
