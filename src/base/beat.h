// The heartbeat page: what each rank of a machine does now, in memory that a supervisor in another process reads.
//
// The supervisor makes the page and gives its path to the ranks in the environment variable TRIREME_BEATS. Each rank
// has a slot, which it alone writes: rank_doing and the waits of comm do, in about a tenth of a microsecond, without a
// system call. Without the variable there is no page, and each of the calls is one comparison. A rank also remembers
// how long each kind of instruction has taken at most, so that the supervisor knows when one takes too long.
//
// A reader never sees a slot half written (a sequence number tells it), and believes nothing of what it reads: numbers
// are in range and texts end, whatever a process has written there.
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BEAT_MAX_WAITS = 8, BEAT_DOING = 48, BEAT_WAIT = 40, BEAT_HOST = 64, BEAT_MAX_SLOTS = 1 << 16 };
#define BEAT_VARIABLE "TRIREME_BEATS"

typedef enum {
    BEAT_CONNECTING, // the process waits until all ranks are connected
    BEAT_STARTING,
    BEAT_LOADING,
    BEAT_TRAINING,
    BEAT_EVALUATING,
    BEAT_SAVING,
    BEAT_ENDING,
    BEAT_DONE, // the rank has left, with `status`
    NUM_BEAT_PHASES
} BeatPhase;

// What a rank does now.
typedef struct {
    int64_t iteration; // the step that it takes, from 1 on; 0: none yet
    int64_t since_ns;  // CLOCK_MONOTONIC: when this instruction or this wait began
    // The longest time so far without a heartbeat in such an instruction (or wait) of this rank, without the waits
    // for other ranks in it; 0: not known, since the rank has taken too few steps.
    int64_t usual_ns;
    int32_t pid, rank, size, status;
    int32_t start; // of the page when the rank joined it
    int32_t phase; // a BeatPhase
    int32_t num_waits;
    int32_t waits[BEAT_MAX_WAITS]; // the first ranks that it waits for
    int32_t blamed;                // 1 + the rank because of which this one ends (rank_blame); 0: not known
    char doing[BEAT_DOING];        // rank_doing
    char wait[BEAT_WAIT];          // the operation that it waits in, "recv of pp"; empty: it does not wait
    char host[BEAT_HOST];
} Beat;

const char *beat_phase_name(int phase);

// ---- the rank's side -------------------------------------------------------------------------------------------

// One rank's slot, with what the rank has measured of itself. Functions that take NULL do nothing.
typedef struct BeatWriter BeatWriter;

// Takes the slot of rank `rank` of `size` on the page of TRIREME_BEATS, in BEAT_CONNECTING. NULL where there is no such
// page, or the process that made it is on another machine: that is no error.
BeatWriter *beat_join(int rank, int size);
// The rank has ended with `status`, or is about to end the job with it.
void beat_end(BeatWriter *writer, int status);
void beat_leave(BeatWriter *writer, int status); // the same, and gives the page back
void beat_blame(BeatWriter *writer, int rank);   // -1: not known
// The rank begins an instruction, as rank_doing says.
void beat_doing(BeatWriter *writer, const char *doing);
// The rank enters a part of its run. BEAT_TRAINING: takes the step `iteration`; -1: as before.
void beat_phase(BeatWriter *writer, BeatPhase phase, int64_t iteration);
// The rank waits in the operation `what` of `group` for the ranks that `ranks` lists, " 1 2"; "": it does not know yet.
void beat_wait(BeatWriter *writer, const char *what, const char *group, const char *ranks);
void beat_turn(BeatWriter *writer);   // it still waits, and looks
void beat_resume(BeatWriter *writer); // it waits no longer
// Whether the supervisor that started this process's job has ended. False where there is none, and on other machines.
bool beat_is_abandoned(void);

// ---- the supervisor's side ----------------------------------------------------------------------------------

// Gives the processes that this one starts its number, for beat_is_abandoned. False: no memory.
bool beat_watch_over(void);

typedef struct {
    struct BeatHeader *header; // NULL: there is no page
    size_t bytes;
    int fd;
    char path[64]; // for TRIREME_BEATS
} BeatPage;

// Makes a page without a name in any folder, which ends with this process.   ERR_OS
Status beat_page_open(BeatPage *page, int slots);
// Opens the page of another process for reading alone. False where there is none, or it is on another machine.
bool beat_page_look(BeatPage *page, const char *path);
void beat_page_close(BeatPage *page);
// Empties all slots: from now on only ranks that join count.
void beat_page_start(BeatPage *page, int start);
// A number that changes with every heartbeat of the rank.
uint64_t beat_signs(const BeatPage *page, int slot);
// Copies a slot. False where no rank has joined, where it is being written or was left half written, and where what it
// says cannot be: then `out` stays as it was.
bool beat_read(const BeatPage *page, int slot, Beat *out);
double beat_since_s(const Beat *beat); // how long it has done what it does
