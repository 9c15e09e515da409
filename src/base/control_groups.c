// Finds the control groups of this process, and the quota of processors that they leave to it.
#include "base/control_groups.h"
#include <stdio.h>
#include <string.h>

enum { PATH_SIZE = 1024 };

// In a container the path of the group may be that of another root: then only the root is there.
static void visit_up(const char *base, const char *group, bool second, VisitControlGroup *visit, void *self) {
    char folder[PATH_SIZE];
    size_t root = strlen(base);
    if (snprintf(folder, sizeof folder, "%s%s", base, group) >= (int)sizeof folder) return;
    for (;;) {
        visit(self, folder, second);
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < root) return;
        *slash = 0;
    }
}

// Whether the names that version 1 separates by commas have this one.
static bool has_name(const char *names, const char *name) {
    size_t size = strlen(name);
    for (; *names; names += strspn(names, ",")) {
        size_t length = strcspn(names, ",");
        if (length == size && !strncmp(names, name, size)) return true;
        names += length;
    }
    return false;
}

// Lines of /proc/self/cgroup: "0::/path" of version 2, "5:memory:/path" of version 1.
void control_groups_visit(const char *root, const char *controller, VisitControlGroup *visit, void *self) {
    char path[PATH_SIZE], line[PATH_SIZE];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *names = strchr(line, ':'), *group = names ? strchr(names + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0;
        bool second = !names[1];
        if (!second && !has_name(names + 1, controller)) continue;
        snprintf(path, sizeof path, "%s/sys/fs/cgroup%s%s", root, second ? "" : "/",
                 second ? "" : controller);
        visit_up(path, group, second, visit, self);
    }
    if (file) fclose(file);
}

// ---- processors -------------------------------------------------------------------------------------------

// Reads up to two numbers of a file; returns how many it begins with.
static int read_numbers(const char *folder, const char *name, long long number[2]) {
    char path[PATH_SIZE + 64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    int count = fscanf(file, "%lld %lld", &number[0], &number[1]);
    fclose(file);
    return count;
}

static void look_at_quota(void *self, const char *folder, bool second) {
    long long time[2], period[2];
    int *fewest = self;
    bool limited = second ? read_numbers(folder, "cpu.max", time) == 2
                          : read_numbers(folder, "cpu.cfs_quota_us", time) >= 1 &&
                                read_numbers(folder, "cpu.cfs_period_us", period) >= 1;
    if (limited && !second) time[1] = period[0];
    if (!limited || time[0] <= 0 || time[1] <= 0) return;
    long long processors = time[0] / time[1];
    if (processors < *fewest) *fewest = processors < 1 ? 1 : (int)processors;
}

int control_groups_processors(const char *root) {
    int fewest = INT32_MAX;
    control_groups_visit(root, "cpu", look_at_quota, &fewest);
    return fewest;
}
