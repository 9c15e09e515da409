// Holds what the rules share: whether the user has set an option, and values that the program chooses instead.
#include "config/rules.h"
#include <string.h>

bool option_given(const Options *options, int index) {
    Origin origin = options->store->origins[index];
    return (origin == FROM_FILE || origin == FROM_COMMAND_LINE) &&
           value_is_set(options, &option_table[index]);
}

const char *options_given_beside(const Options *options, const char *const *fields) {
    for (int i = 0; i < NUM_OPTIONS; i++) {
        const char *const *field = fields;
        while (*field && strcmp(*field, option_table[i].field) != 0) field++;
        if (!*field && option_given(options, i)) return option_table[i].field;
    }
    return NULL;
}

int options_ranks_per_gpu(const Options *options) {
    if (options->ranks_per_gpu != INT_UNSET) return options->ranks_per_gpu;
    return !strcmp(options->device, "cuda") || !strcmp(options->device, "cuda-check");
}

void derived(Options *options, int index) { options->store->origins[index] = DERIVED; }

void derive_int(Options *options, int index, int *field, int value) {
    if (*field != INT_UNSET) return;
    *field = value;
    derived(options, index);
}
