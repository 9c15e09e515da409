// Divides the cores of a machine among the ranks that run on it.
#include "base/cores.h"
#include "base/control_groups.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

int cores_usable(void) {
    Cores cores;
    cores_allowed(&cores);
    int quota = control_groups_processors("");
    return quota < cores.count ? quota : cores.count;
}

void cores_read(const char *path, Cores *cores) {
    int first, last, next = ',';
    *cores = (Cores){0};
    FILE *file = fopen(path, "r");
    if (!file) return;
    for (; next == ',' && fscanf(file, "%d", &first) == 1; next = fgetc(file)) {
        last = first;
        next = fgetc(file);
        if (next == '-' && fscanf(file, "%d", &last) != 1) break;
        if (next != '-') ungetc(next, file);
        for (int id = first; id >= 0 && id <= last && id < CORES_MAX && cores->count < CORES_MAX; id++)
            cores->ids[cores->count++] = id;
    }
    fclose(file);
    if (next != '\n' && next != EOF) *cores = (Cores){0};
}

typedef struct {
    int package, domain, core, id;
} Place;

// 0 where the system does not say.
static int read_place(const char *sysfs, int id, const char *what) {
    char path[512];
    int value = 0;
    snprintf(path, sizeof path, "%s/devices/system/cpu/cpu%d/topology/%s", sysfs, id, what);
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%d", &value) != 1) value = 0;
    if (file) fclose(file);
    return value;
}

// The NUMA domain of each processor; 0 where the system does not say.
static void read_domains(const char *sysfs, int domain[CORES_MAX]) {
    char path[512];
    Cores domains, its;
    memset(domain, 0, CORES_MAX * sizeof *domain);
    snprintf(path, sizeof path, "%s/devices/system/node/online", sysfs);
    cores_read(path, &domains);
    for (int i = 0; i < domains.count; i++) {
        snprintf(path, sizeof path, "%s/devices/system/node/node%d/cpulist", sysfs, domains.ids[i]);
        cores_read(path, &its);
        for (int k = 0; k < its.count; k++) domain[its.ids[k]] = domains.ids[i];
    }
}

static int compare_places(const void *a, const void *b) {
    const Place *x = a, *y = b;
    if (x->package != y->package) return x->package < y->package ? -1 : 1;
    if (x->domain != y->domain) return x->domain < y->domain ? -1 : 1;
    if (x->core != y->core) return x->core < y->core ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

// As cores_order; also writes where the processors of each domain begin, and where the last one's end.
static int order_by_domain(Cores *cores, const char *sysfs, int begins[CORES_MAX + 1]) {
    Place places[CORES_MAX];
    int domain[CORES_MAX], domains = 0;
    read_domains(sysfs, domain);
    for (int i = 0; i < cores->count; i++) {
        int id = cores->ids[i];
        places[i] = (Place){read_place(sysfs, id, "physical_package_id"), domain[id],
                            read_place(sysfs, id, "core_id"), id};
    }
    qsort(places, (size_t)cores->count, sizeof *places, compare_places);
    for (int i = 0; i < cores->count; i++) {
        cores->ids[i] = places[i].id;
        if (!i || places[i].package != places[i - 1].package || places[i].domain != places[i - 1].domain)
            begins[domains++] = i;
    }
    begins[domains] = cores->count;
    return domains;
}

int cores_order(Cores *cores, const char *sysfs) {
    int begins[CORES_MAX + 1];
    return order_by_domain(cores, sysfs, begins);
}

static int compare_ids(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

bool cores_share(const Cores *all, int ranks, int threads, int rank, Cores *mine) {
    bool fits = all->count / ranks >= threads;
    int first = fits ? all->count * rank / ranks : 0,
        end = fits ? all->count * (rank + 1) / ranks : all->count;
    *mine = (Cores){0};
    for (int i = first; i < end; i++) mine->ids[mine->count++] = all->ids[i];
    qsort(mine->ids, (size_t)mine->count, sizeof *mine->ids, compare_ids);
    return fits;
}

// As cores_share, domain by domain. False where the ranks do not divide the domains, or would have fewer processors
// than threads.
static bool share_domains(const Cores *all, int domains, const int *begins, int ranks, int threads, int rank,
                          Cores *mine) {
    int parts = ranks < domains ? ranks : domains, each = ranks / parts;
    Cores own = {0};
    if (domains < 2 || ranks % parts || domains % parts) return false;
    for (int part = 0; part < parts; part++) {
        int first = begins[domains / parts * part], end = begins[domains / parts * (part + 1)];
        if ((end - first) / each < threads) return false;
        for (int i = first; part == rank / each && i < end; i++) own.ids[own.count++] = all->ids[i];
    }
    return cores_share(&own, each, threads, rank % each, mine);
}

// ---- ranks with GPUs --------------------------------------------------------------------------------------

static CoreSet set_of(const Cores *cores) {
    CoreSet set = {{0}};
    for (int i = 0; i < cores->count; i++) set.bits[cores->ids[i] / 64] |= (uint64_t)1 << cores->ids[i] % 64;
    return set;
}

static Cores list_of(const CoreSet *set) {
    Cores cores = {0};
    for (int id = 0; id < CORES_MAX; id++)
        if (set->bits[id / 64] >> id % 64 & 1) cores.ids[cores.count++] = id;
    return cores;
}

static CoreSet common_to(const CoreSet *a, const CoreSet *b) {
    CoreSet set;
    for (int i = 0; i < CORES_MAX / 64; i++) set.bits[i] = a->bits[i] & b->bits[i];
    return set;
}

static bool is_same(const CoreSet *a, const CoreSet *b) { return !memcmp(a, b, sizeof *a); }

RankCores cores_of_rank(const Cores *allowed, const Cores *near) {
    const CoreSet may = set_of(allowed), is_near = set_of(near);
    return (RankCores){may, common_to(&may, &is_near)};
}

// Counts the ranks before `end` that divide the processors of `rank` with it: all of its set, or those near their GPUs.
static int sharing(const RankCores *all, int end, int rank, bool near) {
    int count = 0;
    for (int r = 0; r < end; r++)
        count +=
            is_same(&all[r].allowed, &all[rank].allowed) && (!near || is_same(&all[r].near, &all[rank].near));
    return count;
}

// Returns whether each of the ranks that may use the same processors as this one can stay near its GPU.
static bool fits_near(const RankCores *all, int ranks, int threads, int rank) {
    for (int r = 0; r < ranks; r++) {
        if (!is_same(&all[r].allowed, &all[rank].allowed)) continue;
        const int near = list_of(&all[r].near).count;
        if (!near || near / sharing(all, ranks, r, true) < threads) return false;
        for (int other = 0; other < r; other++) {
            const CoreSet both = common_to(&all[r].near, &all[other].near);
            const bool divides = is_same(&all[r].allowed, &all[other].allowed);
            if (divides && !is_same(&all[r].near, &all[other].near) && list_of(&both).count) return false;
        }
    }
    return true;
}

bool cores_divide(const RankCores *all, int ranks, int threads, int rank, const char *sysfs, Cores *mine) {
    const bool near = fits_near(all, ranks, threads, rank);
    Cores ordered = list_of(near ? &all[rank].near : &all[rank].allowed);
    int begins[CORES_MAX + 1], domains = order_by_domain(&ordered, sysfs, begins);
    int sharers = sharing(all, ranks, rank, near), number = sharing(all, rank, rank, near);
    return (!near && share_domains(&ordered, domains, begins, sharers, threads, number, mine)) ||
           cores_share(&ordered, sharers, threads, number, mine);
}

void cores_bind(const Cores *cores) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < cores->count; i++) CPU_SET((size_t)cores->ids[i], &set);
    sched_setaffinity(0, sizeof set, &set);
}

int cores_limit(int threads) {
    int usable = cores_usable();
    return threads < usable ? threads : usable;
}

void cores_print(const Cores *cores, Text *text) {
    for (int i = 0, end; i < cores->count; i = end) {
        end = i + 1;
        while (end < cores->count && cores->ids[end] == cores->ids[end - 1] + 1) end++;
        text_add(text, "%s%d", i ? "," : "", cores->ids[i]);
        if (end - i > 1) text_add(text, "-%d", cores->ids[end - 1]);
    }
}

void cores_print_domains(const Cores *cores, int threads, const char *sysfs, Text *text) {
    Cores ordered = *cores;
    int domains = cores_order(&ordered, sysfs);
    if (domains > 1 && threads > cores->count / domains)
        text_add(text, ", in %d NUMA domains: start %d ranks in its place, and each uses the memory of one",
                 domains, domains);
}

// An emulator (valgrind, qemu-user) gives the name of the program that it runs, while the kernel knows only the
// emulator, which a new start would leave.
static bool is_emulated(const char *program) {
    struct stat named, running;
    return stat(program, &named) == 0 && stat("/proc/self/exe", &running) == 0 &&
           (named.st_ino != running.st_ino || named.st_dev != running.st_dev);
}

// GNU counts turns of about 25 ns, LLVM milliseconds. Started by its path: by the link in /proc the process
// would be called "exe" wherever processes are listed.
void cores_wait_briefly(char **argv) {
    static const char *const choices[] = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"};
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
        if (getenv(choices[i])) return;
    char program[4096] = "";
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 1 || is_emulated(program)) return;
    setenv("KMP_BLOCKTIME", "0", 0);
    if (setenv("GOMP_SPINCOUNT", "1000", 0) == 0) execv(program, argv);
}
