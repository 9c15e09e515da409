// The processors of this machine: which of them a thread may use, how ranks that share the machine divide
// them, and how long threads spin before they sleep.
//
// Ranks beside each other get processors of their own that lie beside each other: on machines of several
// sockets a rank then keeps to one, and so does the memory that it touches first; the two threads of a core
// stay together. A rank is bound to its share as a whole and the system places its threads within it, so that
// threads started later (a new team, a checkpoint's writer) find room too. What a launcher, taskset or a
// container left this process is respected: only that is divided.
#pragma once
#include "base/text.h"
#include <stdbool.h>

enum { CORES_MAX = 1024 };

typedef struct {
    int count;
    int ids[CORES_MAX]; // as the system numbers them; 0 behind the last
} Cores;

void cores_allowed(Cores *cores); // of the calling thread, ascending
// Orders them by socket, core and number: systems count the second threads of all cores behind the first.
// `folder` says what is where: CORES_FOLDER; what is not said there stays in its order.
void cores_order(Cores *cores, const char *folder);
#define CORES_FOLDER "/sys/devices/system/cpu"
// The share of rank `rank` of `ranks` in `all`, ascending: shares follow each other in the order of `all`, do
// not overlap, cover all and differ by one at most. False, and `mine` is all of them, when a rank would have
// fewer than its `threads`: then binding would only keep a thread that waits from a processor that is idle.
bool cores_share(const Cores *all, int ranks, int threads, int rank, Cores *mine);
// Binds the calling thread and all that it starts from now on. The system may refuse; then nothing changes.
void cores_bind(const Cores *cores);
// "0-3,8"
void cores_print(const Cores *cores, Text *text);

// Makes the threads of OpenMP teams sleep after some tens of microseconds without work; their libraries' own
// choice is milliseconds, in which a thread that waits keeps the one that it waits for from running whenever
// a processor has something else to do. The libraries read this from the environment before main: it is set
// there and the program starts itself again, once, in the same process; without /proc, or under an emulator that a
// new start would leave (valgrind, qemu-user), nothing changes. To be called first in main; what the user has set stays.
void cores_wait_briefly(char **argv);
