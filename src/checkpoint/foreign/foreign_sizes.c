// The sizes of a model under the names that other programs' files have for them.
#include "checkpoint/fields.h"
#include <string.h>

// Names whose value another name has too.
static const struct {
    const char *name, *same_as;
} copies[] = {{"n_ctx", "n_positions"},
              {"embd_pdrop", "resid_pdrop"},
              {"attention.value_length", "attention.key_length"}};

const ModelSize *size_named(const char *member) {
    for (int i = 0; i < num_model_sizes; i++)
        if (!strcmp(model_sizes[i].field.name, member)) return &model_sizes[i];
    CHECK(false, "a model has no size %s", member);
}

// Norms of the two kinds have epsilons of different names.
const char *size_name(const ModelSize *size, Format format, const Family *family) {
    bool is_epsilon = !strcmp(size->field.name, "norm_epsilon") && family->dialect == DIALECT_LLAMA;
    if (is_epsilon && format == FORMAT_HUGGING_FACE) return family->epsilon;
    return size->names[format][is_epsilon && !family->is.rms_norm ? DIALECT_GPT2 : family->dialect];
}

const ModelSize *size_of_name(Format format, const Family *family, const char *name) {
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++)
        if (!strcmp(name, copies[i].name)) name = copies[i].same_as;
    for (int i = 0; i < num_model_sizes; i++) {
        const char *row = size_name(&model_sizes[i], format, family);
        if (row && !strcmp(row, name)) return &model_sizes[i];
    }
    return NULL;
}

ModelShape shape_spelled_out(const ModelShape *shape) {
    ModelShape out = *shape;
    out.groups = model_groups(shape);
    if (shape->position == POSITION_ROTARY) out.rotary_columns = model_rotary_columns(shape);
    if (shape->position != POSITION_LEARNED && out.positions < out.sequence) out.positions = out.sequence;
    return out;
}

Status shape_check_names(const ModelShape *shape, Format format, const Family *family) {
    for (int i = 0; i < num_model_sizes; i++) {
        const ModelSize *size = &model_sizes[i];
        if (size->names[format][family->dialect] || field_is_zero(&size->field, shape)) continue;
        return fail(ERR_UNAVAILABLE, "%s has no %s, and the model has", family->architecture,
                    size->field.name);
    }
    return OK;
}
