// The libraries of others that this build of trireme uses, and those that it lacks. None is needed to build it: where
// one is missing a file named no_*.c takes the place of those that call it, and either does the same by itself or says
// which package to install.
#pragma once
#include "base/error.h"
#include "base/text.h"
#include <stdbool.h>

typedef enum {
#define LIBRARY(id, name, package, lacks) LIBRARY_##id,
#include "base/libraries.def"
#undef LIBRARY
    NUM_LIBRARIES
} ForeignLibrary;

// Returns whether this build has the library.
bool library_present(ForeignLibrary library);
// Fails with ERR_UNAVAILABLE: what `wish`, the subject of the message, needs, and how to get it.
Status fail_without(ForeignLibrary library, const char *wish);
// Adds a line with the libraries of this build, and where it lacks some a line for each, with its package.
void libraries_describe(Text *out);
