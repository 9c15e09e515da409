// Reads the state of a process from /proc.
#include "base/process.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

char process_status(pid_t pid, pid_t *parent) {
    char path[64], text[512], state = PROCESS_UNKNOWN;
    int number = 0;
    if (parent) *parent = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT ? 0 : PROCESS_UNKNOWN;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    if (size <= 0) return 0; // it has just gone
    text[size] = 0;
    const char *end = strrchr(text, ')'); // of the name, which may hold anything
    if (!end || sscanf(end + 1, " %c %d", &state, &number) != 2) return PROCESS_UNKNOWN;
    if (parent) *parent = number;
    return state;
}
