// Serves all fuzz targets: a scratch folder, a file that holds the input, and a CHECK that crashes.
#include "fuzz.h"
#include "base/file.h"
#include "base/rank.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[256];

static void remove_folder(void) { folder_remove(folder); }

const char *fuzz_folder(void) {
    if (folder[0]) return folder;
    const char *parent = getenv("TMPDIR");
    if (!parent) parent = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(folder, sizeof folder, "%s/trireme-fuzz-XXXXXX", parent);
    CHECK(mkdtemp(folder), "no folder %s", folder);
    atexit(remove_folder);
    return folder;
}

const char *fuzz_file(const char *name, const void *data, size_t size) {
    static char paths[4][320];
    static int turn;
    char *path = paths[turn = (turn + 1) % 4];
    snprintf(path, sizeof paths[0], "%s/%s", fuzz_folder(), name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size && close(fd) == 0, "cannot write %s", path);
    return path;
}

uint64_t fuzz_take(FuzzInput *input, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes && input->size; i++, input->data++, input->size--)
        value |= (uint64_t)*input->data << 8 * i;
    return value;
}

static void crash(Rank *rank, int status) {
    (void)rank, (void)status;
    abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    static Rank rank = {.size = 1, .abort_job = crash};
    (void)argc, (void)argv;
    rank_enter(&rank);
    return 0;
}
