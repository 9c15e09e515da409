// Files that must survive: every call is checked, nothing is replaced by accident, and what has been finished
// is on disk, not in a cache. Short writes and interrupted calls are carried on; whatever fails says which
// file and why (create_status, errno_status).
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

// A file that is being written from its start to its end. Zeroed: none.
typedef struct {
    int fd;        // -1: closed
    char *path;    // owned
    int64_t bytes; // written so far
    char *buffer;  // small writes are gathered
    size_t buffered;
    bool read_back;        // may be set until the end: see file_writer_finish
    struct FileSums *sums; // of all bytes so far
} FileWriter;

// A new file (O_EXCL): ERR_CREATE when there is one.
Status file_writer_open(FileWriter *writer, const char *path);
Status file_writer_add(FileWriter *writer, const void *data, size_t size);
// Writes what is left, fsyncs, closes. ERR_IO when the file then has another size than was written: somebody
// else writes to it. With `read_back` also when the disk does not have the bytes that were added: they are read
// past the page cache (file_sums.h). After a failure the file is removed.
Status file_writer_finish(FileWriter *writer);
// Closes and removes. Nothing happens to a finished one, nor to a zeroed one.
void file_writer_abandon(FileWriter *writer);

// A name for a file or folder while it is written: `path` with an ending that nothing else uses. So what a killed
// process left under it may be removed.
Status file_temporary_name(const char *path, char temporary[4096]);
// Renames a finished file or folder to `path` and makes the new name durable.
Status file_publish(const char *temporary, const char *path);

// Opens those of descriptors 0 to 2 that the program was started without, so that no file that is opened later
// becomes the standard output or error. All three are /dev/null for reading: input is empty, and output that
// cannot arrive fails as on a closed descriptor, where /dev/null for writing would pass as success. To be called
// before anything is opened.
Status standard_files_open(void);

// Makes names that were added to or removed from a folder durable.
Status folder_sync(const char *path);
// mkdir, and its parents where they are missing. OK when it is there.
Status folder_make(const char *path);
// Removes a folder and all that is in it. Links are removed, never followed. OK when it is not there.
Status folder_remove(const char *path);
// Bytes that the file system of `path` has left for us.
Status folder_room(const char *path, int64_t *bytes);
// The names in a folder but "." and "..", sorted, as one block that the caller frees.
Status folder_list(const char *path, char ***names, int *count);

// Opens a regular file for reading, and nothing else: a pipe that nobody writes to would block for ever. Fails
// with ERR_NO_INPUT and `path` in the message.
Status file_open_regular(const char *path, int *fd, int64_t *size);
// Exactly `size` bytes from `offset` of an open file: ERR_DATA where it ends earlier, `path` for messages.
Status file_read_at(int fd, const char *path, int64_t offset, void *data, size_t size);
