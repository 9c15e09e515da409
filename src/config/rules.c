// Holds what the rules share: whether the user has set an option, and values that the program chooses instead.
#include "config/rules.h"

bool option_given(const Options *options, int index) {
    Origin origin = options->store->origins[index];
    return (origin == FROM_FILE || origin == FROM_COMMAND_LINE) &&
           value_is_set(options, &option_table[index]);
}

void derived(Options *options, int index) { options->store->origins[index] = DERIVED; }

void derive_int(Options *options, int index, int *field, int value) {
    if (*field != INT_UNSET) return;
    *field = value;
    derived(options, index);
}
