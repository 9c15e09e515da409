// Tests that files are whole or absent, whatever fails, and that folders are made, listed and removed.
#include "base/file.h"
#include "base/rng.h"
#include "base/text.h"
#include "harness.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

// The same bytes in pieces of any size give the same file, around and beyond the buffer's size.
static void pieces_make_no_difference(void) {
    enum { SIZE = 5 << 20, BUFFER = 64 << 10 };
    char *data = malloc(SIZE), *back = NULL;
    RngKey key = rng_key(1, "file", 0);
    for (uint64_t i = 0; i < SIZE; i++) data[i] = (char)rng_word(key, 0, i);
    for (int round = 0; round < 4; round++) {
        const char *path = harness_path("pieces");
        FileWriter writer;
        EXPECT_OK(file_writer_open(&writer, path));
        for (size_t done = 0, piece, i = 0; done < SIZE; done += piece, i++) {
            piece = rng_word(key, 1 + (uint64_t)round, i) % (1u << (14 + 3 * round));
            if (i % 50 == 7) piece = BUFFER; // as large as the buffer, then two that fill it
            if (i % 50 == 8 || i % 50 == 9) piece = BUFFER / 2;
            if (piece > SIZE - done) piece = SIZE - done;
            EXPECT_OK(file_writer_add(&writer, data + done, piece));
            EXPECT(writer.bytes == (int64_t)(done + piece), "%lld bytes", (long long)writer.bytes);
        }
        EXPECT_OK(file_writer_finish(&writer));
        size_t size = 0;
        EXPECT_OK(file_read(path, SIZE, &back, &size));
        EXPECT(size == SIZE && memcmp(back, data, SIZE) == 0, "%zu bytes", size);
        free(back);
        unlink(path);
    }
    free(data);
}

static void nothing_is_replaced(void) {
    const char *path = harness_path("first");
    char *data = NULL;
    size_t size = 0;
    FileWriter writer;
    EXPECT_OK(file_write(path, "first", 5));
    EXPECT(file_writer_open(&writer, path) == ERR_CREATE && strstr(fail_message(), path), "%s",
           fail_message());
    file_writer_abandon(&writer);
    EXPECT_OK(file_read(path, 5, &data, &size));
    EXPECT(size == 5 && memcmp(data, "first", 5) == 0, "%zu bytes", size);
    free(data);
    EXPECT(file_writer_open(&writer, harness_path("no/such")) == ERR_CREATE, "%s", fail_message());
    file_writer_abandon(&writer);
}

static void abandoned_files_are_gone(void) {
    FileWriter writer = {0};
    file_writer_abandon(&writer);
    EXPECT_OK(file_writer_open(&writer, harness_path("abandoned")));
    EXPECT_OK(file_writer_add(&writer, "x", 1));
    file_writer_abandon(&writer);
    file_writer_abandon(&writer);
    EXPECT(!file_exists(harness_path("abandoned")), "removed");
    EXPECT_OK(file_writer_open(&writer, harness_path("finished")));
    EXPECT_OK(file_writer_finish(&writer));
    file_writer_abandon(&writer);
    EXPECT(file_exists(harness_path("finished")), "what has been finished stays");
}

// ---- what is on the disk -------------------------------------------------------------------------

// Changes a bit of byte `at` of a file while its writer is at work.
static void alter(const char *path, off_t at) {
    char byte = 0;
    int fd = open(path, O_RDWR);
    EXPECT(fd >= 0 && pread(fd, &byte, 1, at) == 1, "cannot read %s", path);
    byte ^= 1;
    EXPECT(pwrite(fd, &byte, 1, at) == 1 && close(fd) == 0, "cannot write %s", path);
}

enum { BLOCK = 1 << 20, BLOCKS = 3 };

// Writes `size` zeros with `read_back`; when all but the last block are in the file, a bit of its byte `at` changes (none
// where `at` is negative). Returns the status of finishing the file.
static Status write_and_alter(const char *path, size_t size, off_t at) {
    static char data[BLOCKS * BLOCK];
    FileWriter writer;
    EXPECT_OK(file_writer_open(&writer, path));
    writer.read_back = true;
    EXPECT_OK(file_writer_add(&writer, data, size));
    if (at >= 0) alter(path, at);
    return file_writer_finish(&writer);
}

static void what_is_read_back_is_compared(void) {
    const char *path = harness_path("back");
    static const size_t sizes[] = {0, 1, BLOCK - 1, BLOCK, BLOCK + 1, BLOCKS * BLOCK - 7, BLOCKS * BLOCK};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        EXPECT_OK(write_and_alter(path, sizes[i], -1));
        unlink(path);
    }
    EXPECT(write_and_alter(path, BLOCKS * BLOCK, BLOCK + 5) == ERR_IO, "one bit of the second block");
    EXPECT(strstr(fail_message(), "within bytes 1048576 to 2097151 the disk"), "%s", fail_message());
    EXPECT(!file_exists(path), "the file is left");
    EXPECT(write_and_alter(path, BLOCKS * BLOCK - 7, BLOCKS * BLOCK - 8) == ERR_IO, "the last byte");
    EXPECT(strstr(fail_message(), "within bytes 2097152 to 3145720 the disk"), "%s", fail_message());
}

static void another_writer_is_found(void) {
    const char *path = harness_path("two");
    FileWriter writer;
    EXPECT_OK(file_writer_open(&writer, path));
    EXPECT_OK(file_writer_add(&writer, "mine", 4));
    EXPECT(write(writer.fd, "a log line", 10) == 10, "cannot write");
    EXPECT(file_writer_finish(&writer) == ERR_IO, "finished");
    EXPECT(strstr(fail_message(), "4 bytes were written, but the file has 14"), "%s", fail_message());
}

// What this process has had from devices; -1: the system does not say.
static long long bytes_from_devices(void) {
    char line[128];
    long long bytes = -1;
    FILE *file = fopen("/proc/self/io", "r");
    while (file && fgets(line, sizeof line, file)) sscanf(line, "read_bytes: %lld", &bytes);
    if (file) fclose(file);
    return bytes;
}

// Where the file system is one that does it: else nothing is promised.
static void it_comes_from_the_device(void) {
    const long ext4 = 0xEF53, xfs = 0x58465342;
    struct statfs fs;
    long long before = bytes_from_devices();
    if (statfs(harness_folder(), &fs) || (fs.f_type != ext4 && fs.f_type != xfs) || before < 0) return;
    EXPECT_OK(write_and_alter(harness_path("device"), BLOCKS * BLOCK, -1));
    long long after = bytes_from_devices();
    EXPECT(after - before >= BLOCKS * BLOCK, "%lld bytes of %d", after - before, BLOCKS * BLOCK);
}

// A limit cuts a write short at byte LIMIT and then refuses; that is found whether the bytes go past the buffer, are
// written at the end, or make room in the buffer for more.
static void failed_writes_are_found_and_removed(void) {
    enum { LIMIT = (64 << 10) + 4096, HALF = 40000 };
    struct rlimit old, low;
    char *data = calloc(2, HALF * 2);
    getrlimit(RLIMIT_FSIZE, &old);
    low = (struct rlimit){LIMIT, old.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &low);
    for (int way = 0; way < 3; way++) {
        FileWriter writer;
        const char *path = harness_path("limited");
        EXPECT_OK(file_writer_open(&writer, path));
        Status status = file_writer_add(&writer, data, way == 0 ? HALF * 4 : HALF);
        for (int i = 0; status == OK && i < way; i++) status = file_writer_add(&writer, data, HALF);
        EXPECT((status == OK) == (way == 1), "way %d: status %d before the end", way, status);
        if (status == OK) status = file_writer_finish(&writer);
        EXPECT(status != OK && strstr(fail_message(), path) && strstr(fail_message(), "byte 69632"), "%s",
               fail_message());
        file_writer_abandon(&writer);
        EXPECT(!file_exists(path), "removed");
    }
    setrlimit(RLIMIT_FSIZE, &old);
    free(data);
}

static void folders_are_made_with_their_parents(void) {
    EXPECT_OK(folder_make(harness_path("a//b/c")));
    EXPECT_OK(folder_make(harness_path("a/b/c/")));
    EXPECT_OK(folder_sync(harness_path("a/b")));
    EXPECT_OK(folder_make("/"));
    EXPECT_OK(file_write(harness_path("a/file"), "x", 1));
    EXPECT(folder_make(harness_path("a/file")) == ERR_CREATE && strstr(fail_message(), "no folder"), "%s",
           fail_message());
    EXPECT(folder_make(harness_path("a/file/below")) == ERR_CREATE, "%s", fail_message());
    EXPECT(folder_sync(harness_path("a/none")) == ERR_NO_INPUT, "%s", fail_message());
    EXPECT(folder_sync(harness_path("a/file")) != OK, "a file is no folder");
}

static void links_are_removed_not_followed(void) {
    EXPECT_OK(folder_make(harness_path("kept")));
    EXPECT_OK(file_write(harness_path("kept/file"), "x", 1));
    EXPECT_OK(folder_make(harness_path("tree/deep/er")));
    EXPECT_OK(file_write(harness_path("tree/deep/file"), "x", 1));
    EXPECT(symlink(harness_path("kept"), harness_path("tree/deep/link")) == 0, "link");
    EXPECT(symlink("nowhere", harness_path("tree/broken")) == 0, "link");
    EXPECT(symlink(harness_path("kept"), harness_path("link")) == 0, "link");
    EXPECT_OK(folder_remove(harness_path("tree")));
    EXPECT_OK(folder_remove(harness_path("link")));
    EXPECT(!file_exists(harness_path("tree")) && !file_exists(harness_path("link")), "gone");
    EXPECT(file_exists(harness_path("kept/file")), "what a link names stays");
    EXPECT_OK(folder_remove(harness_path("tree")));
}

static void lists_are_sorted_and_whole(void) {
    enum { FILES = 200 };
    char **names;
    int count = -1;
    EXPECT_OK(folder_make(harness_path("list")));
    EXPECT_OK(folder_list(harness_path("list"), &names, &count));
    EXPECT(count == 0, "%d names", count);
    free(names);
    for (int i = 0; i < FILES; i++) {
        char name[64];
        snprintf(name, sizeof name, "list/.%d", i * 7919 % FILES);
        EXPECT_OK(file_write(harness_path(name), "", 0));
    }
    EXPECT_OK(folder_list(harness_path("list"), &names, &count));
    EXPECT(count == FILES, "%d names", count);
    for (int i = 1; i < count; i++)
        EXPECT(strcmp(names[i - 1], names[i]) < 0, "%s before %s", names[i - 1], names[i]);
    free(names);
    EXPECT(folder_list(harness_path("none"), &names, &count) == ERR_NO_INPUT, "%s", fail_message());
}

static void room_is_what_the_file_system_has(void) {
    int64_t bytes = -1;
    EXPECT_OK(folder_room(harness_folder(), &bytes));
    EXPECT(bytes > 0, "%lld", (long long)bytes);
    EXPECT(folder_room(harness_path("none"), &bytes) == ERR_NO_INPUT, "%s", fail_message());
}

static void reads_are_exact(void) {
    const char *path = harness_path("read");
    char data[8] = {0};
    EXPECT_OK(file_write(path, "0123456789", 10));
    int fd = open(path, O_RDONLY);
    EXPECT_OK(file_read_at(fd, path, 3, data, 7));
    EXPECT(strcmp(data, "3456789") == 0, "%s", data);
    EXPECT_OK(file_read_at(fd, path, 99, data, 0));
    EXPECT(file_read_at(fd, path, 4, data, 7) == ERR_DATA && strstr(fail_message(), "byte 10, 1 bytes"), "%s",
           fail_message());
    EXPECT(file_read_at(fd, path, 11, data, 1) == ERR_DATA, "%s", fail_message());
    EXPECT(file_read_at(-1, path, 0, data, 1) == ERR_IO && strstr(fail_message(), path), "%s",
           fail_message());
    close(fd);
}

// Opening a pipe without a writer like a file would block forever.
static void only_regular_files_are_opened(void) {
    const char *pipe_path = harness_path("pipe"), *path = harness_path("regular");
    char *data = NULL;
    size_t size = 0;
    int64_t bytes = 0;
    int fd = -1;
    EXPECT(mkfifo(pipe_path, 0600) == 0, "mkfifo: %s", strerror(errno));
    EXPECT(file_open_regular(pipe_path, &fd, &bytes) == ERR_NO_INPUT && strstr(fail_message(), "(a pipe)"),
           "%s", fail_message());
    EXPECT(file_read(pipe_path, 10, &data, &size) == ERR_NO_INPUT, "%s", fail_message());
    EXPECT(file_open_regular("/dev/zero", &fd, &bytes) == ERR_NO_INPUT, "%s", fail_message());
    EXPECT(file_open_regular(harness_folder(), &fd, &bytes) == ERR_NO_INPUT &&
               strstr(fail_message(), "(a folder)"),
           "%s", fail_message());
    EXPECT(fd == -1, "descriptor %d stays", fd);
    EXPECT_OK(file_write(path, "0123456789", 10));
    EXPECT_OK(file_open_regular(path, &fd, &bytes));
    EXPECT(fd >= 0 && bytes == 10, "%lld bytes", (long long)bytes);
    close(fd);
}

// Git LFS leaves a small text in the place of a file that was not downloaded.
static void pointers_are_told(void) {
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n";
    const char *path = harness_path("pointed");
    int64_t bytes = 0;
    int fd = -1;
    EXPECT_OK(file_write(path, pointer, strlen(pointer)));
    EXPECT(
        file_open_regular(path, &fd, &bytes) == ERR_DATA && fd == -1 &&
            strstr(fail_message(), ": a pointer of Git LFS, of 63 bytes: the file itself was not downloaded"),
        "%s", fail_message());
}

// What a killed process has left goes with the next write; what belongs to others stays.
static void leftovers_are_removed(void) {
    char others[3][4096], path[3000];
    snprintf(path, sizeof path, "%s", harness_path("state.json"));
    pid_t dead = fork();
    if (!dead) _exit(0);
    waitpid(dead, NULL, 0);
    snprintf(others[0], sizeof others[0], "%s.tmp.%d", path, (int)dead);
    snprintf(others[1], sizeof others[1], "%s.tmp.%d", path, (int)getppid());
    snprintf(others[2], sizeof others[2], "%s.tmp.%dx", path, (int)dead);
    for (int i = 0; i < 3; i++) {
        FILE *file = fopen(others[i], "w");
        EXPECT(file && !fclose(file), "%s", others[i]);
    }
    EXPECT_OK(file_write(path, "whole", 5));
    EXPECT(!file_exists(others[0]), "%s is left", others[0]);
    for (int i = 1; i < 3; i++) EXPECT(file_exists(others[i]) && !unlink(others[i]), "%s is gone", others[i]);
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"pieces_make_no_difference", pieces_make_no_difference},
                       {"nothing_is_replaced", nothing_is_replaced},
                       {"abandoned_files_are_gone", abandoned_files_are_gone},
                       {"what_is_read_back_is_compared", what_is_read_back_is_compared},
                       {"another_writer_is_found", another_writer_is_found},
                       {"it_comes_from_the_device", it_comes_from_the_device},
                       {"failed_writes_are_found_and_removed", failed_writes_are_found_and_removed},
                       {"folders_are_made_with_their_parents", folders_are_made_with_their_parents},
                       {"links_are_removed_not_followed", links_are_removed_not_followed},
                       {"lists_are_sorted_and_whole", lists_are_sorted_and_whole},
                       {"room_is_what_the_file_system_has", room_is_what_the_file_system_has},
                       {"reads_are_exact", reads_are_exact},
                       {"pointers_are_told", pointers_are_told},
                       {"leftovers_are_removed", leftovers_are_removed},
                       {"only_regular_files_are_opened", only_regular_files_are_opened},
                       {0}},
        argc, argv);
}
