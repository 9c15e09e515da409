// Variants of a stack: reading and printing them, and applying their factors to constants.
#include "machine/files.h"
#include <string.h>

static Status read_name(const char *file, const Json *value, Variant *variant) {
    bool valid = value->key_size && value->key_size < sizeof variant->name;
    for (size_t i = 0; i < value->key_size; i++) valid = valid && value->key[i] > ' ' && value->key[i] <= '~';
    if (!valid) return value_wrong(file, value, "a name of 1 to 31 printable characters");
    memcpy(variant->name, value->key, value->key_size + 1);
    return OK;
}

static Status read_variant(const char *file, const Json *value, Variant *variant) {
    static const YamlField FACTOR = {NULL,           FIELD_NUMBER, true, 0,
                                     sizeof(double), 0.01,         100,  "times the constant"};
    TRY(read_name(file, value, variant));
    if (value->type != JSON_OBJECT || !value->count || value->count > MAX_FACTORS)
        return value_wrong(file, value, "a mapping of 1 to 4 constants to factors");
    for (size_t i = 0; i < value->count; i++) {
        const Json *member = &value->items[i];
        variant->items[i].constant = constant_find(member->key);
        if (variant->items[i].constant < 0) return value_wrong(file, member, "the name of a constant");
        TRY(field_read(file, member, &FACTOR, &variant->items[i].factor));
    }
    variant->count = (int)value->count;
    return OK;
}

Status variants_read(const char *file, const Json *mapping, Stack *stack) {
    if (!mapping) return OK;
    if (mapping->type != JSON_OBJECT || mapping->count > MAX_VARIANTS)
        return value_wrong(file, mapping, "a mapping of at most 8 variants");
    for (size_t i = 0; i < mapping->count; i++)
        TRY(read_variant(file, &mapping->items[i], &stack->variants[i]));
    stack->num_variants = (int)mapping->count;
    return OK;
}

void variants_print(const Stack *stack, Text *out) {
    if (stack->num_variants) text_add(out, "variants:\n");
    for (int i = 0; i < stack->num_variants; i++) {
        const Variant *variant = &stack->variants[i];
        text_add(out, "  ");
        json_add_string(out, variant->name, strlen(variant->name));
        for (int k = 0; k < variant->count; k++) {
            text_add(out, "%s%s: ", k ? ", " : ": {", constant_table[variant->items[k].constant].name);
            json_add_double(out, variant->items[k].factor);
        }
        text_add(out, "}\n");
    }
}

static bool names(const char *words, const char *name) {
    size_t size = strlen(name);
    while (*words) {
        size_t word = strcspn(words, "+");
        if (word == size && !strncmp(words, name, size)) return true;
        words += word + (words[word] == '+');
    }
    return false;
}

void stack_apply_variant(const Stack *stack, const char *words, Constants *constants) {
    for (int i = 0; i < stack->num_variants; i++) {
        const Variant *variant = &stack->variants[i];
        if (!names(words, variant->name)) continue;
        for (int k = 0; k < variant->count; k++)
            *constant_at(constants, variant->items[k].constant) *= variant->items[k].factor;
    }
}
