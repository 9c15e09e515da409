// Where the files are that come with the program: modules, which it loads when it wants them.
#pragma once
#include "base/text.h"
#include <stdbool.h>

// Appends the path of a file in the folder of the program.
void beside_program(const char *file, Text *path);
// Appends the path of a module: in `folder`, or where that is NULL in the folder of the program, in the one above, or
// where both are installed. Returns false where it is in none of them; the path is then the first of these places.
bool beside_find(const char *folder, const char *file, Text *path);
