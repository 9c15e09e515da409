// The processors of this machine: which ones a thread may use, how the ranks on one machine divide them, and how long
// waiting threads spin before they sleep.
//
// Each rank gets its own processors, and they are neighbours: on a machine with several NUMA domains a rank stays in
// one, with the memory that it touches first, and the two hardware threads of a core stay together. A rank that has
// a GPU stays near it. A rank is bound to its whole share, and the system places its threads within the share, so that
// threads that start later (a new team, the writer of a checkpoint) have room too. Only the processors that a launcher,
// taskset or a container has left to this process are divided.
#pragma once
#include "base/text.h"
#include <stdbool.h>
#include <stdint.h>

enum { CORES_MAX = 1024 };

typedef struct {
    int count;
    int ids[CORES_MAX]; // as the system numbers them; 0 behind the last
} Cores;

// Writes the processors that the calling thread may use, ascending. Where the system does not say, or not in a set of
// CORES_MAX: one, number 0.
void cores_allowed(Cores *cores);
// Reads a file such as /sys/devices/system/node/node0/cpulist: "0-3,8". None where there is no such list in it; those
// from CORES_MAX on are left out.
void cores_read(const char *path, Cores *cores);
// The processors' time that this process has, in whole processors: those that it may use, or the quota of its control
// groups where that is less.
int cores_usable(void);
// Orders `cores` by socket, NUMA domain, core and number: systems count the second threads of all cores behind the
// first. `sysfs` is SYSFS, or laid out like it. Never fails: a processor that is not described counts as core 0 of
// socket 0. Returns the number of domains that they are in.
int cores_order(Cores *cores, const char *sysfs);
#define SYSFS "/sys" // where Linux describes the machine
// The share of rank `rank` of `ranks` in `all`, ascending: shares follow each other in the order of `all`, do
// not overlap, cover all and differ by one at most. False, and `mine` is all of them, when a rank would have
// fewer than its `threads`: then binding would only keep a thread that waits from a processor that is idle.
bool cores_share(const Cores *all, int ranks, int threads, int rank, Cores *mine);

// A bit for each processor.
typedef struct {
    uint64_t bits[CORES_MAX / 64];
} CoreSet;

// One rank, as the others of its machine need to know it.
typedef struct {
    CoreSet allowed; // the processors that it may use
    CoreSet near;    // those of them that are near its GPU; none: there is no GPU, or its place is unknown
} RankCores;

// Describes a rank that may use `allowed`. `near` are the processors near its GPU, whether it may use them or not.
RankCores cores_of_rank(const Cores *allowed, const Cores *near);
// The share of rank `rank` in the processors of its machine, on which there are `ranks`. The ranks whose GPUs are near
// the same processors divide these, as cores_share does, if that leaves every rank near its GPU with at least its
// `threads`. Otherwise, or where a rank does not know what is near its GPU, those that may use the same processors
// divide all of them: where the number of ranks is a multiple or a divisor of the number of NUMA domains, each domain
// by itself, or each rank whole domains, if that leaves each its `threads`. False as for cores_share.
bool cores_divide(const RankCores *all, int ranks, int threads, int rank, const char *sysfs, Cores *mine);
// Binds the calling thread, and the threads that it starts later, to `cores`. Does nothing when the system refuses.
void cores_bind(const Cores *cores);
// These `threads`, or cores_usable where that is fewer.
int cores_limit(int threads);
// "0-3,8"
void cores_print(const Cores *cores, Text *text);
// Adds advice for a rank whose `threads` on `cores` need more than one of their NUMA domains: how many ranks would each
// have the memory of one. `sysfs` as for cores_order.
void cores_print_domains(const Cores *cores, int threads, const char *sysfs, Text *text);

// Makes the threads of OpenMP teams sleep after some tens of microseconds without work. The libraries' own choice is
// milliseconds: so long a waiting thread keeps the processor from the thread that it waits for. The libraries read the
// setting from the environment before main, so this function sets it and starts the program again, once, in the same
// process. Without /proc, or under an emulator that a new start would leave (valgrind, qemu-user), nothing changes.
// Call it first in main; a value that the user has set stays.
void cores_wait_briefly(char **argv);
