// Says which libraries this build has and what to do about those that it lacks.
#include "base/libraries.h"
#include <string.h>

static const struct {
    const char *name, *package, *lacks;
} rows[NUM_LIBRARIES] = {
#define LIBRARY(id, name, package, lacks) [LIBRARY_##id] = {name, package, lacks},
#include "base/libraries.def"
#undef LIBRARY
};

// CMake gives this file LIBRARIES_PRESENT, "MPI oneDNN".
bool library_present(ForeignLibrary library) {
    const char *name = rows[library].name;
    size_t length = strlen(name);
    for (const char *at = LIBRARIES_PRESENT; *at;) {
        size_t word = strcspn(at, " ");
        if (word == length && !strncmp(at, name, word)) return true;
        at += word + strspn(at + word, " ");
    }
    return false;
}

Status fail_without(ForeignLibrary library, const char *wish) {
    return fail(ERR_UNAVAILABLE,
                "%s needs %s, which this build of trireme lacks: install it (Debian's package is %s) and "
                "build again",
                wish, rows[library].name, rows[library].package);
}

void libraries_describe(Text *out) {
    text_add(out, "built with %s\n", *LIBRARIES_PRESENT ? LIBRARIES_PRESENT : "no library of others");
    for (ForeignLibrary i = 0; i < NUM_LIBRARIES; i++)
        if (!library_present(i))
            text_add(out, "without %s, so it lacks %s; Debian's package is %s\n", rows[i].name, rows[i].lacks,
                     rows[i].package);
}
