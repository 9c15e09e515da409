// Durable files and folders: every call is checked, no file is replaced by accident, and a finished file is on the
// disk, not only in a cache. Short writes and interrupted calls are continued. A message of failure names the file and
// the reason (create_status, errno_status).
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

// A file that is being written from its start to its end. A zeroed FileWriter has no file.
typedef struct {
    int fd;        // -1: closed
    char *path;    // owned
    int64_t bytes; // written so far
    char *buffer;  // small writes are gathered
    size_t buffered;
    bool read_back; // the caller may set it before file_writer_finish
    bool in_memory; // the caller may set it after file_writer_open: the file need not survive the machine
    struct FileSums *sums; // checksums of all bytes so far
} FileWriter;

// Creates a new file (O_EXCL). Fails with ERR_CREATE when the file exists.
Status file_writer_open(FileWriter *writer, const char *path);
Status file_writer_add(FileWriter *writer, const void *data, size_t size);
// Writes the buffered rest, fsyncs and closes. Fails with ERR_IO when the file's size is not the number of bytes
// written, because another process writes to it; with `read_back` also when the disk returns other bytes than were
// added: they are read past the page cache (file_sums.h). With `in_memory` it neither syncs nor reads back. After a
// failure the file is removed.
Status file_writer_finish(FileWriter *writer);
// Closes and removes an unfinished file. Does nothing to a finished or zeroed FileWriter.
void file_writer_abandon(FileWriter *writer);

// A name for a file or folder while it is written: `path` with an ending that nothing else uses. So what a killed
// process left under it may be removed.
Status file_temporary_name(const char *path, char temporary[4096]);
// Renames a finished file or folder to `path` and makes the new name durable.
Status file_publish(const char *temporary, const char *path);

// Opens those of the descriptors 0 to 2 that the program was started without, so that no file that is opened later
// becomes the standard output or error. They become /dev/null, opened for reading: input is empty, and writing fails as
// on a closed descriptor (/dev/null for writing would hide the loss). Call it before any file is opened.
Status standard_files_open(void);

// Syncs a folder, so that names that were added or removed are durable.
Status folder_sync(const char *path);
// Makes a folder and its missing parents. Returns OK when the folder exists already.
Status folder_make(const char *path);
// Removes a folder with its contents. Links are removed, never followed. Returns OK when there is no such folder.
Status folder_remove(const char *path);
// Says how many bytes this process may still write to the file system of `path`.
Status folder_room(const char *path, int64_t *bytes);
// Lists the names in a folder without "." and "..", sorted, in one block that the caller frees.
Status folder_list(const char *path, char ***names, int *count);

// Reads a whole regular file (at most `max_bytes`) into a NUL-terminated buffer that the caller frees.
// Fails with a message naming the file: missing, a folder, too large, unreadable.
Status file_read(const char *path, size_t max_bytes, char **data, size_t *size);
// Writes a file under a temporary name, PATH.tmp.PID, and renames it, so that the file is whole or absent. What killed
// processes of this machine have left under such names is removed. Fails when `path` is a folder, a device or a pipe.
Status file_write(const char *path, const void *data, size_t size);
bool file_exists(const char *path);

// Opens a regular file for reading and refuses everything else: opening a pipe without a writer would block forever.
// Fails with ERR_NO_INPUT and `path` in the message; with ERR_DATA for a pointer of Git LFS, which lies in the place of
// a file that was not downloaded.
Status file_open_regular(const char *path, int *fd, int64_t *size);
// Reads exactly `size` bytes at `offset` of an open file. Fails with ERR_DATA when the file ends earlier; `path` is for
// messages.
Status file_read_at(int fd, const char *path, int64_t offset, void *data, size_t size);
