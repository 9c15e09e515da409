// Translates between our weights and the tensors of Hugging Face and GGUF. One table of names (tensor_names.def) serves
// both directions, both formats and all families. The weights come from the registry of parameters.
//
// Our layout is Megatron-LM's: the queries, keys and values of a group of heads are in one tensor, next to each other,
// and so are gate and up. Other formats have separate tensors, or stack all queries, then all keys, then all values.
// GPT-2's linear weights are transposed. llama.cpp's Llama orders the rows of a head for another form of the rotation.
#pragma once
#include "checkpoint/foreign/family.h"

// A tensor of the other format, oriented as ours are: [out, in]; a vector is a column, and so are those of all experts
// together.
typedef struct {
    char name[96];
    int64_t rows, cols;
    bool is_vector;
    bool is_fp32;    // in GGUF, whatever the type of the others: the table of positions, routers, gates
    bool is_choice;  // biases by which experts are chosen: fp32 in all files
    bool transposed; // the file stores [cols, rows], of each matrix; true for every vector
    // Experts whose rows it has, one after the other: the file has a dimension for them. 0: it is a matrix or vector.
    int64_t matrices;
    // Rows of a head, of which those from `plain` on are stored in another order: the first of one half of them, the
    // first of the other, the second of both, and so on. 0: none are.
    int64_t permuted, plain;
    int strip, strips; // its first strip and their number; none:
    float *values;     // [rows] of a vector that no weight of ours contains; NULL: zeros
    float plus;        // the file has this added to each element
} TheirTensor;

// Rows of a weight.
typedef enum {
    PART_ALL,
    PART_QUERY,
    PART_KEY,
    PART_VALUE,
    PART_GATE, // the first half of fc1
    PART_UP,
    PART_ROTATED_LAST, // all; the last of each head are rotated
    PART_KEY_LAST,     // all; the last of the weight are rotated
    PART_IN_TURN       // all; the file has those of gate and up in turn
} WeightPart;

// Rows of one of our weights that follow each other in one tensor of the other format, from its row `first` on. They
// are the `per` rows from `at` on of each of `groups` blocks of `block` rows.
typedef struct {
    int weight, tensor;
    WeightPart part;
    int64_t first;
    int64_t at, per, block, groups;
} WeightStrip;

typedef struct {
    WeightSpec *weights;
    int num_weights;
    TheirTensor *tensors;
    int num_tensors;
    WeightStrip *strips; // in the order of the weights
    int num_strips;
} Mapping;

// Whether each expert has tensors of its own in these files; else a tensor has all experts of a layer.
bool mapping_has_experts_apart(const Family *family, Format format);
Status mapping_create(Mapping *mapping, const ModelShape *shape, const Family *family, Format format);
void mapping_destroy(Mapping *mapping);
int mapping_find(const Mapping *mapping, const char *weight); // the number of a weight that it has (CHECK)
// The name of the tensor that has an element of a weight (mapping_rows.c).
const char *mapping_tensor_at(const Mapping *mapping, const char *weight, int64_t row, int64_t col);
int64_t tensor_matrix_rows(const TheirTensor *tensor); // of the matrix or vector of each expert, or of all
// Writes the dimensions of a tensor in files where the slowest one comes first, and returns how many they are.
int tensor_shape(const TheirTensor *tensor, int64_t shape[3]);
bool weight_is_vector(const WeightSpec *weight);
// Row i of a rectangle of a vector, or of the vectors of all experts, in the column that these are in a mapping.
Rect vector_rect(const WeightSpec *weight, Rect rect, int64_t i);
// The rows of a part of a weight of `rows` rows: a strip that is of no tensor yet.
WeightStrip weight_strip(const ModelShape *shape, WeightPart part, int64_t rows);
int64_t strip_rows_before(const WeightStrip *strip,
                          int64_t row); // the rows of the strip before row `row` of our weight
int64_t strip_row(const WeightStrip *strip, int64_t i); // the row of our weight that is the strip's i-th
// Of row `row` of the strips of a tensor, in our order: its place in the file, counted likewise; and the other way.
int64_t tensor_row_stored(const TheirTensor *tensor, int64_t row);
int64_t tensor_row_ours(const TheirTensor *tensor, int64_t row);
