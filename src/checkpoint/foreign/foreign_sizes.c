// The sizes of a model under the names that other programs' files have for them.
#include "checkpoint/fields.h"
#include <string.h>

// Names whose value another name has too.
static const struct {
    const char *name, *same_as;
} copies[] = {{"n_ctx", "n_positions"},
              {"embd_pdrop", "resid_pdrop"},
              {"attention.value_length", "attention.key_length"},
              {"rope.dimension_count", "attention.key_length"}};

const ModelSize *size_of_name(Format format, Architecture architecture, const char *name) {
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++)
        if (!strcmp(name, copies[i].name)) name = copies[i].same_as;
    for (int i = 0; i < num_model_sizes; i++) {
        const char *row = model_sizes[i].names[format][architecture];
        if (row && !strcmp(row, name)) return &model_sizes[i];
    }
    return NULL;
}

ModelShape shape_spelled_out(const ModelShape *shape) {
    ModelShape out = *shape;
    out.groups = model_groups(shape);
    if (shape->position != POSITION_LEARNED && out.positions < out.sequence) out.positions = out.sequence;
    return out;
}

Status shape_check_names(const ModelShape *shape, Format format, Architecture architecture) {
    for (int i = 0; i < num_model_sizes; i++) {
        const ModelSize *size = &model_sizes[i];
        if (size->names[format][architecture] || field_is_zero(&size->field, shape)) continue;
        return fail(ERR_UNAVAILABLE, "%s has no %s, and the model has", architecture_name(architecture),
                    size->field.name);
    }
    return OK;
}
