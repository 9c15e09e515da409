// Writes, syncs and reads files with every call checked, so that they survive a crash.
#include "base/file.h"
#include "base/calls.h"
#include "base/file_sums.h"
#include "base/process.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUFFER_BYTES = 64 << 10, SEND_ON_BYTES = 32 << 20 };

// ---- writing a file -----------------------------------------------------------------------------

static void close_quietly(int fd) {
    int why = errno;
    call_close(fd);
    errno = why;
}

static void forget(FileWriter *writer) {
    free(writer->path);
    free(writer->buffer);
    file_sums_free(writer->sums);
    *writer = (FileWriter){.fd = -1, .bytes = writer->bytes};
}

Status file_writer_open(FileWriter *writer, const char *path) {
    *writer = (FileWriter){.fd = -1};
    int fd = call_open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 && errno == EEXIST) return fail(ERR_CREATE, "%s: it is there already", path);
    if (fd < 0) return fail(create_status(), "%s: cannot create: %s", path, strerror(errno));
    *writer = (FileWriter){
        .fd = fd, .path = strdup(path), .buffer = malloc(BUFFER_BYTES), .sums = file_sums_create()};
    if (writer->path && writer->buffer && writer->sums) return OK;
    call_unlink(path);
    call_close(fd);
    forget(writer);
    return fail(ERR_OS, "%s: no memory to write it", path);
}

// Lets the disk begin while there is more to write: the sync at the end then waits for little. Only a hint.
static void send_on(FileWriter *writer, ssize_t written) {
    int64_t before = writer->bytes / SEND_ON_BYTES;
    writer->bytes += written;
    if (!writer->in_memory && writer->bytes / SEND_ON_BYTES > before)
        sync_file_range(writer->fd, before * SEND_ON_BYTES, SEND_ON_BYTES, SYNC_FILE_RANGE_WRITE);
}

static Status write_all(FileWriter *writer, const char *data, size_t size) {
    while (size) {
        ssize_t n = call_write(writer->fd, data, size);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return fail(create_status(), "%s: cannot write at byte %lld: %s", writer->path,
                        (long long)writer->bytes, strerror(errno));
        data += n;
        size -= (size_t)n;
        send_on(writer, n);
    }
    return OK;
}

static Status flush(FileWriter *writer) {
    size_t size = writer->buffered;
    writer->buffered = 0;
    writer->bytes -= (int64_t)size;
    return write_all(writer, writer->buffer, size);
}

Status file_writer_add(FileWriter *writer, const void *data, size_t size) {
    CHECK(writer->path, "adds to a file that is not open");
    if (!writer->in_memory) file_sums_add(writer->sums, data, size);
    if (size > BUFFER_BYTES - writer->buffered) TRY(flush(writer));
    if (size >= BUFFER_BYTES) return write_all(writer, data, size);
    if (size) memcpy(writer->buffer + writer->buffered, data, size);
    writer->buffered += size;
    writer->bytes += (int64_t)size;
    return OK;
}

static int sync_file(int fd) {
    int result;
    do result = call_fsync(fd);
    while (result < 0 && errno == EINTR);
    return result;
}

// A descriptor that two writers share is at two places at once: what lands between or behind is counted here.
static Status check_size(const FileWriter *writer) {
    struct stat st;
    if (fstat(writer->fd, &st))
        return fail(errno_status(), "%s: cannot ask for its size: %s", writer->path, strerror(errno));
    if (st.st_size == writer->bytes) return OK;
    return fail(ERR_IO, "%s: %lld bytes were written, but the file has %lld: something else writes to it",
                writer->path, (long long)writer->bytes, (long long)st.st_size);
}

static Status sync_and_close(FileWriter *writer) {
    TRY(flush(writer));
    if (!writer->in_memory && sync_file(writer->fd))
        return fail(create_status(), "%s: cannot sync: %s", writer->path, strerror(errno));
    TRY(check_size(writer));
    if (writer->read_back && !writer->in_memory) TRY(file_sums_compare(writer->sums, writer->path));
    int fd = writer->fd;
    writer->fd = -1; // closed even where close complains
    if (call_close(fd) && errno != EINTR)
        return fail(create_status(), "%s: cannot close: %s", writer->path, strerror(errno));
    return OK;
}

Status file_writer_finish(FileWriter *writer) {
    CHECK(writer->path, "finishes a file that is not open");
    Status status = sync_and_close(writer);
    if (status != OK)
        file_writer_abandon(writer);
    else
        forget(writer);
    return status;
}

void file_writer_abandon(FileWriter *writer) {
    if (!writer->path) return;
    if (writer->fd >= 0) close_quietly(writer->fd);
    call_unlink(writer->path);
    forget(writer);
}

// ---- the standard files -------------------------------------------------------------------------

Status standard_files_open(void) {
    for (int wanted = STDIN_FILENO; wanted <= STDERR_FILENO; wanted++) {
        if (fcntl(wanted, F_GETFD) >= 0 || errno != EBADF) continue;
        int fd = call_open("/dev/null", O_RDONLY, 0); // the lowest that is free: `wanted`
        if (fd < 0) return fail(ERR_OS, "/dev/null: cannot open: %s", strerror(errno));
        CHECK(fd == wanted, "/dev/null was opened as descriptor %d, not %d", fd, wanted);
    }
    return OK;
}

// ---- reading ------------------------------------------------------------------------------------

// O_NONBLOCK lets the opening of a pipe return, and means nothing to a regular file.
// Git LFS leaves such a file in the place of a large one that was not downloaded.
static bool is_pointer(int fd, int64_t size) {
    static const char START[] = "version https://git-lfs.github.com/spec/";
    enum { LONGEST_POINTER = 1024, START_BYTES = sizeof START - 1 };
    char start[START_BYTES];
    if (size < START_BYTES || size > LONGEST_POINTER) return false;
    return pread(fd, start, START_BYTES, 0) == START_BYTES && !memcmp(start, START, START_BYTES);
}

static Status check_no_pointer(const char *path, int *fd, int64_t size) {
    if (!is_pointer(*fd, size)) return OK;
    call_close(*fd);
    *fd = -1;
    return fail(
        ERR_DATA,
        "%s: a pointer of Git LFS, of %lld bytes: the file itself was not downloaded; get it by `git lfs "
        "pull` in its folder, or download it by another way",
        path, (long long)size);
}

Status file_open_regular(const char *path, int *fd, int64_t *size) {
    struct stat st = {0};
    *fd = call_open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0);
    if (*fd < 0) return fail(errno_status(), "%s: %s", path, strerror(errno));
    if (fstat(*fd, &st) == 0 && S_ISREG(st.st_mode)) {
        *size = st.st_size;
        return check_no_pointer(path, fd, st.st_size);
    }
    call_close(*fd);
    *fd = -1;
    return fail(ERR_NO_INPUT, "%s: not a regular file%s", path,
                S_ISFIFO(st.st_mode)  ? " (a pipe)"
                : S_ISDIR(st.st_mode) ? " (a folder)"
                                      : "");
}

Status file_read_at(int fd, const char *path, int64_t offset, void *data, size_t size) {
    char *to = data;
    while (size) {
        ssize_t n = pread(fd, to, size, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return fail(errno_status(), "%s: cannot read at byte %lld: %s", path, (long long)offset,
                        strerror(errno));
        if (n == 0)
            return fail(ERR_DATA, "%s: ends at byte %lld, %zu bytes too early", path, (long long)offset,
                        size);
        to += n;
        size -= (size_t)n;
        offset += n;
    }
    return OK;
}

static Status read_descriptor(int fd, const char *path, size_t size, char **data) {
    char *buffer = malloc(size + 1);
    if (!buffer) return fail(ERR_OS, "%s: no memory for its %zu bytes", path, size);
    Status status = file_read_at(fd, path, 0, buffer, size);
    buffer[size] = 0;
    if (status == OK)
        *data = buffer;
    else
        free(buffer);
    return status;
}

Status file_read(const char *path, size_t max_bytes, char **data, size_t *size) {
    int fd;
    int64_t bytes = 0;
    TRY(file_open_regular(path, &fd, &bytes));
    Status status;
    if ((uint64_t)bytes > max_bytes)
        status = fail(ERR_DATA, "%s: %lld bytes, at most %zu are expected here", path, (long long)bytes,
                      max_bytes);
    else
        status = read_descriptor(fd, path, *size = (size_t)bytes, data);
    call_close(fd);
    return status;
}

// A process that was killed has left "PATH.tmp.PID".
static void remove_leftovers(const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t length = strlen(name);
    char other[4096];
    DIR *folder = NULL;
    if (!slash)
        folder = opendir(".");
    else if (snprintf(other, sizeof other, "%.*s", (int)(slash - path) + 1, path) < (int)sizeof other)
        folder = opendir(other);
    for (const struct dirent *e; folder && (e = readdir(folder));) {
        if (strncmp(e->d_name, name, length) != 0 || strncmp(e->d_name + length, ".tmp.", 5) != 0) continue;
        const char *pid = e->d_name + length + 5;
        if (!*pid || pid[strspn(pid, "0123456789")] || process_status(atoi(pid), NULL)) continue;
        if (snprintf(other, sizeof other, "%.*s%s", (int)(name - path), path, e->d_name) < (int)sizeof other)
            call_unlink(other);
    }
    if (folder) closedir(folder);
}

Status file_write(const char *path, const void *data, size_t size) {
    char temporary[4096];
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return fail(ERR_CREATE, "%s: cannot create: it is there, and not a regular file", path);
    if (snprintf(temporary, sizeof temporary, "%s.tmp.%ld", path, (long)getpid()) >= (int)sizeof temporary)
        return fail(ERR_CREATE, "%s: the name is too long", path);
    FILE *file = fopen(temporary, "wb");
    if (!file) return fail(create_status(), "%s: cannot create: %s", path, strerror(errno));
    remove_leftovers(path);
    bool written = fwrite(data, 1, size, file) == size;
    written = fclose(file) == 0 && written;
    if (written && call_rename(temporary, path) == 0) return OK;
    Status status = fail(create_status(), "%s: cannot write %zu bytes: %s", path, size, strerror(errno));
    call_unlink(temporary);
    return status;
}

bool file_exists(const char *path) { return access(path, F_OK) == 0; }

Status file_temporary_name(const char *path, char temporary[4096]) {
    if (snprintf(temporary, 4096, "%s.trireme-tmp", path) < 4096) return OK;
    return fail(ERR_CREATE, "%s: the name is too long", path);
}

Status file_publish(const char *temporary, const char *path) {
    if (call_rename(temporary, path))
        return fail(create_status(), "%s: cannot rename the finished file to this: %s", path,
                    strerror(errno));
    const char *slash = strrchr(path, '/');
    char parent[4096] = ".";
    if (slash) snprintf(parent, sizeof parent, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    return folder_sync(parent);
}
