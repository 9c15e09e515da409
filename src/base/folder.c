// Makes, lists and removes folders, and makes their names durable.
#include "base/calls.h"
#include "base/file.h"
#include "base/text.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { OPEN_FOLDERS = 16 };

Status folder_sync(const char *path) {
    int fd = call_open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0) return fail(errno_status(), "%s: cannot open the folder: %s", path, strerror(errno));
    int result;
    do result = call_fsync(fd);
    while (result < 0 && errno == EINTR);
    int why = result < 0 ? errno : 0;
    call_close(fd);
    if (why == 0 || why == EINVAL) return OK; // EINVAL: this file system needs no sync of names
    errno = why;
    return fail(errno_status(), "%s: cannot sync the folder: %s", path, strerror(errno));
}

static Status make_one(const char *path) {
    struct stat st;
    if (call_mkdir(path, 0777) == 0) return OK;
    int why = errno;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return OK;
    if (why == EEXIST) return fail(ERR_CREATE, "%s: cannot make a folder: it is there, and no folder", path);
    errno = why;
    return fail(create_status(), "%s: cannot make the folder: %s", path, strerror(why));
}

Status folder_make(const char *path) {
    Text prefix = {0};
    Status status = OK;
    for (const char *slash = strchr(path, '/'); status == OK && slash; slash = strchr(slash + 1, '/')) {
        if (slash == path) continue;
        text_free(&prefix);
        text_add_bytes(&prefix, path, (size_t)(slash - path));
        status = make_one(prefix.data);
    }
    text_free(&prefix);
    return status == OK ? make_one(path) : status;
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *at) {
    (void)st, (void)kind, (void)at;
    if (call_remove(path) == 0 || errno == ENOENT) return 0;
    return (int)fail(errno_status(), "%s: cannot remove: %s", path, strerror(errno));
}

Status folder_remove(const char *path) {
    int result = nftw(path, remove_entry, OPEN_FOLDERS, FTW_DEPTH | FTW_PHYS);
    if (result > 0) return (Status)result;
    if (result == 0 || errno == ENOENT) return OK;
    return fail(errno_status(), "%s: cannot remove: %s", path, strerror(errno));
}

Status folder_room(const char *path, int64_t *bytes) {
    struct statvfs st;
    if (statvfs(path, &st))
        return fail(errno_status(), "%s: cannot ask for free space: %s", path, strerror(errno));
    if (__builtin_mul_overflow(st.f_bavail, st.f_frsize, bytes)) *bytes = INT64_MAX;
    return OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

// One block: [count] pointers, then the characters behind them.
static char **pack_names(const Text *names, int count) {
    size_t pointers = (size_t)count * sizeof(char *);
    char **packed = malloc(pointers + names->size + 1);
    if (!packed) return NULL;
    char *at = (char *)packed + pointers;
    if (names->size) memcpy(at, names->data, names->size);
    for (int i = 0; i < count; i++, at += strlen(at) + 1) packed[i] = at;
    qsort(packed, (size_t)count, sizeof *packed, by_name);
    return packed;
}

Status folder_list(const char *path, char ***names, int *count) {
    DIR *folder = opendir(path);
    if (!folder) return fail(errno_status(), "%s: cannot list: %s", path, strerror(errno));
    Text text = {0};
    *count = 0;
    errno = 0;
    for (const struct dirent *entry; (entry = readdir(folder)); errno = 0) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        text_add_bytes(&text, entry->d_name, strlen(entry->d_name) + 1);
        ++*count;
    }
    Status status = errno ? fail(errno_status(), "%s: cannot list: %s", path, strerror(errno)) : OK;
    closedir(folder);
    if (status == OK && !(*names = pack_names(&text, *count)))
        status = fail(ERR_OS, "%s: no memory for %d names", path, *count);
    text_free(&text);
    return status;
}
