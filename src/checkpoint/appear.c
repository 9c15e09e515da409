#include "checkpoint/mapping.h"
#include <errno.h>
#include <string.h>

Status appear(const char *temporary, const char *path) {
    if (rename(temporary, path))
        return fail(create_status(), "%s: cannot be given its name: %s", path, strerror(errno));
    const char *slash = strrchr(path, '/');
    char parent[4096] = ".";
    if (slash) snprintf(parent, sizeof parent, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    return folder_sync(parent);
}
