// Sets values that the rules derive, and marks them as derived.
#include "config/rules.h"

void derived(Options *options, int index) { options->store->origins[index] = DERIVED; }

void derive_int(Options *options, int index, int *field, int value) {
    if (*field != INT_UNSET) return;
    *field = value;
    derived(options, index);
}
