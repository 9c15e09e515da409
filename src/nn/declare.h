// Functions with which the layers declare their parameters. Used in nn/ alone.
#pragma once
#include "nn/layers.h"

#define WORD_TABLE_NAME "embedding.word_embeddings.weight"

// A parameter "PREFIX.SUFFIX" of the builder's stage that is not cut; the caller sets its shape.
ParamSpec builder_spec(const Builder *builder, const char *prefix, const char *suffix);
// A table of `rows` hidden vectors, initialised from a normal distribution and not cut.
ParamSpec table_spec(const Builder *builder, const char *name, int64_t rows);
// A table with a row for each entry of the padded vocabulary, cut by rows over tp.
ParamSpec word_table_spec(const Builder *builder, const char *name);
// The reduction of a parameter that every tp rank uses on its own rows of the activations alone.
Reduction builder_row_reduction(const Builder *builder);
// The first entry of the vocabulary whose row this rank holds.
int64_t word_table_first_row(const Context *context, const Param *table);
