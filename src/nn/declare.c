// Names and shapes of parameters, as the layers declare them.
#include "nn/declare.h"
#include <stdio.h>

ParamSpec builder_spec(const Builder *b, const char *prefix, const char *suffix) {
    ParamSpec spec = {.stage = b->stage, .cut = {.dim = -1}};
    int length = snprintf(spec.name, sizeof spec.name, "%s.%s", prefix, suffix);
    CHECK(length < (int)sizeof spec.name, "the parameter name %s.%s is too long", prefix, suffix);
    return spec;
}

PartName part_name(int layer, const char *part) {
    PartName name;
    int length = snprintf(name.text, sizeof name.text, "decoder.layers.%d.%s", layer, part);
    CHECK(length < (int)sizeof name.text, "the name of %s of layer %d is too long", part, layer);
    return name;
}

ParamSpec table_spec(const Builder *b, const char *name, int64_t rows) {
    ParamSpec spec = {.stage = b->stage, .rows = rows, .cols = b->shape->hidden, .cut = {.dim = -1}};
    snprintf(spec.name, sizeof spec.name, "%s", name);
    spec.init = INIT_NORMAL, spec.stddev = b->shape->init_std;
    spec.decay = true;
    return spec;
}

ParamSpec word_table_spec(const Builder *b, const char *name) {
    ParamSpec spec = table_spec(b, name, b->mode->padded_vocabulary);
    spec.cut.dim = 0;
    spec.real_rows = b->shape->vocabulary;
    return spec;
}

Reduction builder_row_reduction(const Builder *b) {
    return b->mode->sequence_parallel ? REDUCTION_PARTIAL : REDUCTION_WHOLE;
}

int64_t word_table_first_row(const Context *c, const Param *word) {
    return word->value.rows * context_rank(c, ROLE_TENSOR);
}
