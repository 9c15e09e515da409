// In place of libFuzzer: calls a target with every file of the folders that are named, and with every
// beginning of the small ones.
#include "base/file.h"
#include "base/text.h"
#include "fuzz.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_BYTES = 1 << 20, SMALL_BYTES = 300 };

// Copies of just the size, for the address sanitizer.
static void replay(const char *data, size_t size) {
    uint8_t *copy = malloc(size ? size : 1);
    CHECK(copy, "no memory for %zu bytes", size);
    memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static Status replay_file(const char *path) {
    char *data;
    size_t size;
    TRY(file_read(path, MAX_BYTES, &data, &size));
    for (size_t cut = 0; size <= SMALL_BYTES && cut < size; cut++) replay(data, cut);
    replay(data, size);
    free(data);
    return OK;
}

static Status replay_folder(const char *folder) {
    char **names;
    int count;
    TRY(folder_list(folder, &names, &count));
    Status status = count ? OK : fail(ERR_NO_INPUT, "%s: no seeds", folder);
    for (int i = 0; status == OK && i < count; i++) {
        Text path = {0};
        text_add(&path, "%s/%s", folder, names[i]);
        status = replay_file(text_string(&path));
        text_free(&path);
    }
    free(names);
    return status;
}

int main(int argc, char **argv) {
    LLVMFuzzerInitialize(&argc, &argv);
    for (int i = 1; i < argc; i++)
        if (replay_folder(argv[i]) != OK) {
            fprintf(stderr, "%s\n", fail_message());
            return 1;
        }
    return argc < 2;
}
