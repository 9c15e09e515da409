// The memory that a process may take: of the system, of its control groups and those above them; and command lines.
#include "base/control_groups.h"
#include "base/file.h"
#include "base/room.h"
#include "base/words.h"
#include "harness.h"
#include <stdlib.h>
#include <string.h>

static const char *root(void) { return harness_path("root"); }

// Writes a file of the tree.
static void put(const char *name, const char *text) {
    Text path = {0};
    text_add(&path, "%s%s", root(), name);
    char *slash = strrchr(path.data, '/');
    *slash = 0;
    EXPECT_OK(folder_make(path.data));
    *slash = '/';
    EXPECT_OK(file_write(path.data, text, strlen(text)));
    text_free(&path);
}

static void expect_room(int64_t expected) {
    int64_t room = memory_room(root());
    EXPECT(room == expected, "%lld, not %lld", (long long)room, (long long)expected);
}

static void of_version_2(void) {
    expect_room(INT64_MAX);
    put("/proc/meminfo", "MemTotal:  9000 kB\nMemAvailable:   1000 kB\n");
    expect_room(1024000);
    put("/proc/self/cgroup", "0::/a/b\n");
    put("/sys/fs/cgroup/a/b/memory.max", "max\n");
    expect_room(1024000);
    put("/sys/fs/cgroup/a/memory.max", "700000\n");
    put("/sys/fs/cgroup/a/memory.current", "300000\n");
    put("/sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 50000\n");
    expect_room(450000); // of the group above
    put("/sys/fs/cgroup/a/b/memory.max", "90000\n");
    expect_room(90000);
    put("/sys/fs/cgroup/a/b/memory.current", "95000\n");
    expect_room(0);
}

static void of_version_1(void) {
    put("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/gone\n1:name=systemd:/y\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "50000\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "30000\n");
    expect_room(20000); // the group's own folder is another container's
    put("/sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 60000\n");
    expect_room(50000); // no more than is used can be dropped
}

static void expect_processors(int expected) {
    int processors = control_groups_processors(root());
    EXPECT(processors == expected, "%d processors, not %d", processors, expected);
}

static void processors(void) {
    expect_processors(INT32_MAX);
    put("/proc/self/cgroup", "0::/a/b\n");
    put("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    expect_processors(INT32_MAX);
    put("/sys/fs/cgroup/a/cpu.max", "650000 100000\n");
    expect_processors(6); // of the group above
    put("/sys/fs/cgroup/a/b/cpu.max", "20000 100000\n");
    expect_processors(1);
    put("/proc/self/cgroup", "5:cpuacct,cpu:/x\n4:cpuset:/y\n");
    expect_processors(INT32_MAX);
    put("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "50000\n");
    expect_processors(INT32_MAX);
    put("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "200000\n");
    expect_processors(4);
    put("/proc/self/cgroup", "4:cpuset:/x\n"); // no group of this controller
    expect_processors(INT32_MAX);
}

static void here(void) {
    EXPECT(memory_room("") > 1 << 20, "%lld bytes", (long long)memory_room(""));
    EXPECT(memory_room("") < INT64_MAX, "nothing says anything");
}

static void words(void) {
    CommandWords all = {0}, more = {0};
    Text text = {0};
    words_add(&all, "trireme");
    words_split(&more, " --lr  1e-4 ");
    words_join(&all, &more);
    words_add(&all, "--stop");
    words_add(&all, "it's %d", 1);
    words_add(&all, "%s", "");
    EXPECT(all.count == 6 && !all.items[6] && !strcmp(all.items[2], "1e-4"), "%zu words", all.count);
    words_print(&all, 0, &text);
    EXPECT(!strcmp(text.data, "trireme --lr 1e-4 --stop 'it'\\''s 1' ''"), "%s", text.data);
    text.size = 0;
    words_print(&all, 30, &text);
    EXPECT(!strcmp(text.data, "trireme --lr 1e-4 \\\n    --stop 'it'\\''s 1' ''"), "%s", text.data);
    text_free(&text);
    words_free(&more);
    words_free(&all);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"of version 2", of_version_2},
                                      {"of version 1", of_version_1},
                                      {"processors", processors},
                                      {"here", here},
                                      {"words", words},
                                      {0}},
                       argc, argv);
}
