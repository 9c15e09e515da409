// Reads the resident memory of this process, for comparison with the prediction.
#include "train/internal.h"
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

// Uses getrusage only where there is no /proc, since its peak includes that of the program that started this one.
static double resident_kib(const char *which) {
    char line[128];
    long kib = 0;
    struct rusage used;
    size_t length = strlen(which);
    FILE *file = fopen("/proc/self/status", "r");
    while (file && !kib && fgets(line, sizeof line, file))
        if (!strncmp(line, which, length)) sscanf(line + length, ": %ld", &kib);
    if (file) fclose(file);
    if (!kib && getrusage(RUSAGE_SELF, &used) == 0) kib = used.ru_maxrss;
    return (double)kib;
}

double resident_bytes(const Comm *world, bool peak) {
    return launcher_ranks() || comm_rank(world) == 0 ? 1024 * resident_kib(peak ? "VmHWM" : "VmRSS") : 0;
}
