// The table of constants, and the constants that a machine and a stack set together.
#include "machine/files.h"
#include <string.h>

const ConstantInfo constant_table[] = {
#define CONSTANT(name, unit, lowest, highest, usual, meaning)                                                \
    {#name, unit, meaning, offsetof(Constants, name), lowest, highest, usual},
#include "machine/constants.def"
#undef CONSTANT
};
const int num_constants = sizeof constant_table / sizeof *constant_table;
_Static_assert(sizeof constant_table / sizeof *constant_table <= MAX_CONSTANTS, "constants.def is too long");

double *constant_at(Constants *constants, int i) {
    CHECK(i >= 0 && i < num_constants, "constant %d of %d", i, num_constants);
    return (double *)(void *)((char *)constants + constant_table[i].offset);
}

static double value_at(const Constants *constants, int i) {
    Constants copy = *constants;
    return *constant_at(&copy, i);
}

int constant_find(const char *name) {
    for (int i = 0; i < num_constants; i++)
        if (!strcmp(constant_table[i].name, name)) return i;
    return -1;
}

// A free constant that was never fitted has its prior.
void constants_overlay(Constants *constants, const Stack *stack) {
    for (int i = 0; i < num_constants; i++) {
        if (stack->is_free[i]) *constant_at(constants, i) = value_at(&stack->priors, i);
        if (stack->set[i]) *constant_at(constants, i) = value_at(&stack->constants, i);
    }
}

Constants constants_of(const Machine *machine, const Stack *stack) {
    Constants constants = {0};
    for (int i = 0; i < num_constants; i++) {
        double *value = constant_at(&constants, i);
        *value = constant_table[i].usual;
        if (machine->set[i]) *value = value_at(&machine->constants, i);
        if (stack->base_set[i]) *value = value_at(&stack->base_constants, i);
    }
    constants_overlay(&constants, stack);
    return constants;
}

void constants_on(Constants *constants, const Machine *machine, const Stack *stack) {
    for (int i = 0; i < num_constants; i++) {
        if (stack->base_set[i] || stack->set[i] || stack->is_free[i]) continue;
        *constant_at(constants, i) =
            machine->set[i] ? value_at(&machine->constants, i) : constant_table[i].usual;
    }
}

Constants priors_of(const Machine *machine, const Stack *stack) {
    Constants constants = constants_of(machine, stack);
    for (int i = 0; i < num_constants; i++)
        if (stack->is_free[i]) *constant_at(&constants, i) = value_at(&stack->priors, i);
    return constants;
}

// ---- in files -----------------------------------------------------------------------------------

static YamlField constant_field(int i) {
    const ConstantInfo *info = &constant_table[i];
    return (YamlField){info->name,     FIELD_NUMBER, false,         info->offset,
                       sizeof(double), info->lowest, info->highest, info->unit};
}

Status constants_read(const char *file, const Json *mapping, Constants *constants, bool set[MAX_CONSTANTS]) {
    YamlField fields[MAX_CONSTANTS];
    if (!mapping) return OK;
    for (int i = 0; i < num_constants; i++) fields[i] = constant_field(i);
    TRY(fields_read(file, mapping, fields, num_constants, constants));
    for (size_t i = 0; i < mapping->count; i++) set[constant_find(mapping->items[i].key)] = true;
    return OK;
}

void constants_print(const char *key, const Constants *constants, const bool set[MAX_CONSTANTS], Text *out) {
    bool any = false;
    for (int i = 0; i < num_constants; i++) {
        if (!set[i]) continue;
        if (!any) text_add(out, "%s:\n", key);
        text_add(out, "  %s: ", constant_table[i].name);
        json_add_double(out, value_at(constants, i));
        text_add(out, "\n");
        any = true;
    }
}
