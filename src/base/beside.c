// Finds the files that come with the program.
#include "base/beside.h"
#include <limits.h>
#include <string.h>
#include <unistd.h>

// Where a module may lie, as seen from the folder of the program: beside it, in the folder above, or where both are
// installed.
static const char *const places[] = {"", "../", MODULE_FOLDER "/"};

static void add_place(Text *path, const char *place, const char *file) {
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0) return;
    program[length] = 0;
    char *slash = strrchr(program, '/');
    if (slash) *slash = 0;
    text_add(path, "%s/%s%s", program, place, file);
}

void beside_program(const char *file, Text *path) { add_place(path, "", file); }

bool beside_find(const char *folder, const char *file, Text *path) {
    enum { COUNT = sizeof places / sizeof *places };
    Text first = {0};
    bool found = false;
    for (int i = 0; i < (folder ? 1 : COUNT) && !found; i++) {
        Text at = {0};
        if (folder)
            text_add(&at, "%s/%s", folder, file);
        else
            add_place(&at, places[i], file);
        found = access(text_string(&at), F_OK) == 0;
        if (found) text_add(path, "%s", text_string(&at));
        if (i == 0) text_add(&first, "%s", text_string(&at));
        text_free(&at);
    }
    if (!found) text_add(path, "%s", text_string(&first));
    text_free(&first);
    return found;
}
