// Says which layers of the model each pipeline stage holds.
#pragma once
#include "base/error.h"

// The number of layers of each pipeline rank. `first` and `last` are the layers of the first and the last rank; the
// other ranks share the rest evenly. 0: that rank is one of the others. Fewer layers on the last rank make room for
// the head and the loss. Every rank cuts its layers evenly into its chunks.
typedef struct {
    int layers, first, last;
    const int *counts; // layers of each stage in the model's order (0 is possible); NULL: the rule above
} LayerSplit;

// Sets the layers [first, first + count) of a stage of the model, for p ranks of v chunks. It counts the layers of
// stage s as those of chunk s / p of rank s % p, whatever the schedule's placement.
void layer_range(LayerSplit split, int pp_size, int num_chunks, int stage, int *first, int *count);
// Sets the layers of each stage so that the largest load is as small as possible. The embedding on the first stage
// costs as much as `embedding` layers, head and loss on the last stage as much as `head` layers. Of stages with equal
// loads the earlier one gets the layer.   counts [stages]
void layer_balance(int layers, int stages, double embedding, double head, int *counts);
// Reads Megatron-LM's layout text, such as "Et*3|(tt|)*2,t|L", into the layers of each stage. '|' separates stages, E
// is the embedding, t a layer, L head and loss, "*n" repeats the letter or the (group) before it, ',' has no meaning.
//   counts [stages]
// ERR_CONFIG names the place and the rule that is broken: the numbers of stages and layers must be those given, E must
// be at the very start and nowhere else, L at the very end and nowhere else.
Status layer_parse(const char *text, int layers, int stages, int *counts);
