#include "checkpoint/mapping.h"
#include <errno.h>
#include <string.h>

Status temporary_name(const char *path, char temporary[4096]) {
    if (snprintf(temporary, 4096, "%s.trireme-tmp", path) < 4096) return OK;
    return fail(ERR_CREATE, "%s: the name is too long", path);
}

Status appear(const char *temporary, const char *path) {
    if (rename(temporary, path))
        return fail(create_status(), "%s: cannot be given its name: %s", path, strerror(errno));
    const char *slash = strrchr(path, '/');
    char parent[4096] = ".";
    if (slash) snprintf(parent, sizeof parent, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    return folder_sync(parent);
}
