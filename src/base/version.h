// The name and version of this program, as printed and as written to files.
#pragma once
#include <stddef.h>

#define TRIREME_VERSION "trireme 0.1.0"

// The hexadecimal build id of this program, which differs wherever sources, compiler or options of a build
// differ; "unknown" where the linker wrote none. Writes at most `size` bytes.
void build_id(char *text, size_t size);
