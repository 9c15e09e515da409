#include "base/cores.h"
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

_Static_assert(CORES_MAX <= CPU_SETSIZE, "every core has a place in a set");

void cores_allowed(Cores *cores) {
    cpu_set_t set;
    CPU_ZERO(&set);
    *cores = (Cores){0};
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        for (int id = 0; id < CORES_MAX; id++)
            if (CPU_ISSET((size_t)id, &set)) cores->ids[cores->count++] = id;
    // A machine with more processors than a set has places.
    if (!cores->count) cores->count = 1;
}

bool cores_share(const Cores *all, int ranks, int threads, int rank, Cores *mine) {
    bool fits = all->count / ranks >= threads;
    int first = fits ? all->count * rank / ranks : 0,
        end = fits ? all->count * (rank + 1) / ranks : all->count;
    *mine = (Cores){0};
    for (int i = first; i < end; i++) mine->ids[mine->count++] = all->ids[i];
    return fits;
}

void cores_bind(const Cores *cores) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < cores->count; i++) CPU_SET((size_t)cores->ids[i], &set);
    sched_setaffinity(0, sizeof set, &set);
}

void cores_print(const Cores *cores, Text *text) {
    for (int i = 0, end; i < cores->count; i = end) {
        end = i + 1;
        while (end < cores->count && cores->ids[end] == cores->ids[end - 1] + 1) end++;
        text_add(text, "%s%d", i ? "," : "", cores->ids[i]);
        if (end - i > 1) text_add(text, "-%d", cores->ids[end - 1]);
    }
}

// GNU counts turns of about 25 ns, LLVM milliseconds.
void cores_wait_briefly(char **argv) {
    static const char *const choices[] = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"};
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
        if (getenv(choices[i])) return;
    setenv("GOMP_SPINCOUNT", "1000", 0);
    setenv("KMP_BLOCKTIME", "0", 0);
    execv("/proc/self/exe", argv);
}
