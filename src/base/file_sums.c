// Reads a file back from the disk and compares it with the checksums of what was written.
#include "base/file_sums.h"
#include "base/calls.h"
#include "base/hash.h"
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Reads with O_DIRECT need memory on a multiple of the device's block size.
enum { BLOCK = 1 << 20, ALIGNMENT = 4096 };

struct FileSums {
    Hasher hasher;    // of the block that is not full yet
    uint64_t *blocks; // checksums of the full ones
    int64_t count, capacity;
    size_t filled; // bytes of the block that is not full yet
};

static void start_block(FileSums *sums) {
    hasher_start(&sums->hasher);
    sums->filled = 0;
}

FileSums *file_sums_create(void) {
    FileSums *sums = aligned_alloc(_Alignof(FileSums), sizeof *sums);
    if (!sums) return NULL;
    *sums = (FileSums){0};
    start_block(sums);
    return sums;
}

void file_sums_free(FileSums *sums) {
    if (!sums) return;
    free(sums->blocks);
    free(sums);
}

static void end_block(FileSums *sums) {
    if (sums->count == sums->capacity) {
        sums->capacity = sums->capacity ? 2 * sums->capacity : 16;
        sums->blocks = realloc(sums->blocks, (size_t)sums->capacity * sizeof *sums->blocks);
        CHECK(sums->blocks, "no memory for the checksums of %lld blocks", (long long)sums->capacity);
    }
    sums->blocks[sums->count++] = hasher_end64(&sums->hasher);
    start_block(sums);
}

void file_sums_add(FileSums *sums, const void *data, size_t size) {
    for (const char *from = data; size;) {
        size_t some = size < BLOCK - sums->filled ? size : BLOCK - sums->filled;
        hasher_add(&sums->hasher, from, some);
        from += some, size -= some, sums->filled += some;
        if (sums->filled == BLOCK) end_block(sums);
    }
}

// ---- reading back -------------------------------------------------------------------------------

// POSIX_FADV_DONTNEED is advice, O_DIRECT is not known to every file system: each helps where the other is not
// followed.
static int open_past_cache(const char *path) {
    int fd = call_open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return fd;
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    (void)fcntl(fd, F_SETFL, O_RDONLY | O_DIRECT);
    return fd;
}

// Some file systems accept O_DIRECT and then refuse to read so.
static bool leave_direct(int fd) {
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && flags & O_DIRECT && fcntl(fd, F_SETFL, flags & ~O_DIRECT) == 0;
}

static Status read_block(int fd, const char *path, int64_t offset, size_t size, char *buffer) {
    for (size_t done = 0; done < size;) {
        ssize_t n = pread(fd, buffer + done, BLOCK - done, (off_t)offset + (off_t)done);
        if (n < 0 && (errno == EINTR || (errno == EINVAL && leave_direct(fd)))) continue;
        if (n < 0)
            return fail(errno_status(), "%s: cannot read back what was written at byte %lld: %s", path,
                        (long long)offset, strerror(errno));
        if (n == 0)
            return fail(ERR_IO, "%s: ends at byte %lld on the disk; more was written", path,
                        (long long)offset + (long long)done);
        done += (size_t)n;
    }
    return OK;
}

static Status compare_block(int fd, const char *path, int64_t block, size_t size, uint64_t want,
                            char *buffer) {
    int64_t offset = block * BLOCK;
    TRY(read_block(fd, path, offset, size, buffer));
    if (hash64_of(buffer, size) == want) return OK;
    return fail(
        ERR_IO,
        "%s: within bytes %lld to %lld the disk does not have what was written: the disk, the way to it "
        "or the memory is faulty",
        path, (long long)offset, (long long)offset + (long long)size - 1);
}

Status file_sums_compare(FileSums *sums, const char *path) {
    size_t last = sums->filled;
    if (last) end_block(sums);
    char *buffer = aligned_alloc(ALIGNMENT, BLOCK);
    if (!buffer) return fail(ERR_OS, "%s: no memory to read it back", path);
    int fd = open_past_cache(path);
    Status status =
        fd >= 0 ? OK
                : fail(errno_status(), "%s: cannot read back what was written: %s", path, strerror(errno));
    for (int64_t i = 0; i < sums->count && status == OK; i++) {
        size_t size = last && i == sums->count - 1 ? last : BLOCK;
        status = compare_block(fd, path, i, size, sums->blocks[i], buffer);
    }
    if (fd >= 0) call_close(fd);
    free(buffer);
    return status;
}
