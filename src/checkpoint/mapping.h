// How our weights lie in other people's tensors: one table of names (mapping.c), from which both directions,
// both formats and both architectures follow. The weights come from the registry; the table translates them.
//
// Ours are Megatron-LM's: queries, keys and values of a group of heads lie together, gate over up. Others
// keep them in tensors of their own or stack all queries, then all keys, then all values; GPT-2's linear
// weights lie transposed; llama.cpp's Llama has the rows of a head paired for another form of the rotation.
#pragma once
#include "checkpoint/checkpoint.h"

typedef enum { ARCHITECTURE_GPT2, ARCHITECTURE_LLAMA, NUM_ARCHITECTURES } Architecture;
typedef enum { FORMAT_HUGGING_FACE, FORMAT_GGUF, NUM_FORMATS } Format;

const char *architecture_name(Architecture architecture); // "GPT2LMHeadModel"
// Which one computes what a model of this shape does. ERR_UNAVAILABLE names what neither has. Dropout is not
// asked for: it takes part in training alone.
Status architecture_of(const ModelShape *shape, Architecture *architecture);

// One of their tensors, turned as ours are: [out, in]; a vector is a column.
typedef struct {
    char name[96];
    int64_t rows, cols;
    bool is_vector;
    bool is_position;  // the table of positions
    bool transposed;   // lies as [cols, rows] in the file; vectors too, so to say
    int64_t permuted;  // rows of a head that are paired anew; 0: none are
    int strip, strips; // what it is made of; no strips:
    float *values;     // [rows] of a vector that no weight of ours gives; NULL: zeros
} TheirTensor;

// Rows of one of our weights that lie one after another in one of their tensors, from row `first` on: of each
// of `groups` blocks of `block` rows, the `per` rows from `at` on.
typedef struct {
    int weight, tensor;
    int64_t first;
    int64_t at, per, block, groups;
} Strip;

typedef struct {
    WeightSpec *weights;
    int num_weights;
    TheirTensor *tensors;
    int num_tensors;
    Strip *strips; // in the order of the weights
    int num_strips;
} Mapping;

Status mapping_create(Mapping *mapping, const ModelShape *shape, Format format);
void mapping_destroy(Mapping *mapping);
bool weight_is_vector(const WeightSpec *weight);
int64_t strip_rows_before(const Strip *strip, int64_t row); // of those, the ones before a row of ours
int64_t strip_row(const Strip *strip, int64_t i);           // ours of the i-th

// Hands out all elements of their tensor in the order of the file, in pieces of whole lines.
typedef Status TakePiece(void *self, const float *elements, int64_t count);
Status mapping_stream(const Mapping *mapping, ModelSource *source, int tensor, TakePiece *take, void *self);
