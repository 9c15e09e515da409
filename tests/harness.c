// Runs the selected tests of a program and counts their failures.
#include "harness.h"
#include "base/file.h"
#include <ftw.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_int failures;
static char folder[256];

void harness_failure(const char *file, int line, const char *cond, const char *fmt, ...) {
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (atomic_fetch_add(&failures, 1) < 50)
        fprintf(stderr, "%s:%d: expected %s: %s\n", file, line, cond, text);
}

bool harness_failed(void) { return atomic_load(&failures) > 0; }

static bool selected(const char *name, int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strstr(name, argv[i])) return true;
    return argc < 2;
}

int harness_run(const Test *tests, int argc, char **argv) {
    int ran = 0, failed = 0;
    for (; tests->name; tests++) {
        if (!selected(tests->name, argc, argv)) continue;
        int before = atomic_load(&failures);
        tests->run();
        ran++;
        if (atomic_load(&failures) != before) failed++, fprintf(stderr, "FAILED %s\n", tests->name);
    }
    if (!ran) fprintf(stderr, "no test was run\n");
    return failed || !ran;
}

bool harness_short(void) { return getenv("TRIREME_TEST_SHORT") != NULL; }

const char *harness_device_transport(void) { return getenv("TRIREME_TEST_DEVICE_TRANSPORT"); }

const char *harness_device(const char *usual) {
    const char *kind = getenv("TRIREME_TEST_DEVICE");
    return kind ? kind : usual;
}

const char *harness_plain_device(const char *usual) {
    const char *kind = harness_device(usual);
    return strcmp(kind, "check") ? kind : "cpu";
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *at) {
    (void)st, (void)kind, (void)at;
    return remove(path);
}

static void remove_folder(void) { nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS); }

const char *harness_folder(void) {
    if (folder[0]) return folder;
    const char *parent = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/trireme-test-XXXXXX", parent ? parent : "/tmp");
    if (!mkdtemp(folder)) perror(folder), exit(1);
    atexit(remove_folder);
    return folder;
}

const char *harness_path(const char *name) {
    static _Thread_local char paths[8][600];
    static _Thread_local int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", harness_folder(), name);
    return path;
}

void expect_same_file(const char *a, const char *b) {
    char *x = NULL, *y = NULL;
    size_t x_bytes = 0, y_bytes = 0;
    EXPECT_OK(file_read(a, 1 << 26, &x, &x_bytes));
    EXPECT_OK(file_read(b, 1 << 26, &y, &y_bytes));
    EXPECT(x && y && x_bytes == y_bytes && memcmp(x, y, x_bytes) == 0, "%s and %s differ", a, b);
    free(x);
    free(y);
}
