// Finds how much memory this process may still take, from /proc, control groups and its own limits.
#include "base/room.h"
#include "base/control_groups.h"
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

enum { PATH_SIZE = 1024 };

// Reads the number after `name` at the beginning of a line; with "" that at the beginning of the file. False where
// there is none, or a word such as "max".
static bool read_number(const char *path, const char *name, int64_t *value) {
    char line[256];
    bool found = false;
    size_t size = strlen(name);
    FILE *file = fopen(path, "re");
    while (file && !found && fgets(line, sizeof line, file)) {
        long long number;
        found = !strncmp(line, name, size) && sscanf(line + size, "%lld", &number) == 1;
        if (found) *value = number;
        if (!size) break;
    }
    if (file) fclose(file);
    return found;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// The bytes that a control group may still take. The kernel can drop pages of inactive files: these count as free.
static int64_t room_of_group(const char *folder, const char *limit, const char *usage, const char *cache) {
    char path[PATH_SIZE + 64];
    int64_t most, used = 0, inactive = 0;
    snprintf(path, sizeof path, "%s/%s", folder, limit);
    if (!read_number(path, "", &most)) return INT64_MAX;
    snprintf(path, sizeof path, "%s/%s", folder, usage);
    read_number(path, "", &used);
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    read_number(path, cache, &inactive);
    int64_t room = most - used + smaller(inactive, used);
    return room > 0 ? room : 0;
}

static void look_at_group(void *self, const char *folder, bool second) {
    int64_t *room = self;
    *room = smaller(*room, second ? room_of_group(folder, "memory.max", "memory.current", "inactive_file ")
                                  : room_of_group(folder, "memory.limit_in_bytes", "memory.usage_in_bytes",
                                                  "total_inactive_file "));
}

// ulimit -v counts addresses, of which the process has taken some.
static int64_t room_of_limit(const char *root) {
    char path[PATH_SIZE];
    struct rlimit limit;
    int64_t kilobytes = 0;
    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY) return INT64_MAX;
    snprintf(path, sizeof path, "%s/proc/self/status", root);
    read_number(path, "VmSize:", &kilobytes);
    int64_t room = (int64_t)limit.rlim_cur - 1024 * kilobytes;
    return room > 0 ? room : 0;
}

int64_t memory_room(const char *root) {
    char path[PATH_SIZE];
    int64_t kilobytes, room = INT64_MAX;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (read_number(path, "MemAvailable:", &kilobytes)) room = 1024 * kilobytes;
    control_groups_visit(root, "memory", look_at_group, &room);
    return smaller(room, room_of_limit(root));
}
