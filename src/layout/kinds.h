// The kinds of schedules: one row each, and what makes a schedule from a row.
#pragma once
#include "layout/simulate.h"

// What schedule_create makes a schedule from.
typedef struct {
    const char *kind; // name of a row of schedule_kinds
    int ranks, chunks, microbatches;
    int group; // interleaved: how many microbatches a chunk takes before the next one's turn; 0: ranks
    int receive_ahead; // how many computes before its own a RECV is posted: 0 right before it
    // Of the kind "auto" alone: what it orders by, and how many stashes a rank may hold (0: as many as 1f1b).
    ScheduleCosts costs;
    int stash_limit;
} ScheduleSpec;

// Row order is the order in which `--help` and messages list them.
typedef struct {
    const char *name;     // "gpipe", "1f1b", "interleaved"
    const char *summary;  // one line for people
    const char *source;   // author and year
    bool splits_backward; // into BACKWARD_INPUT and BACKWARD_WEIGHT
    bool pools_grow;      // with the microbatches: a smaller batch fits into a larger one's pools
    // NULL when the shape is allowed, else the rule it breaks and values that would work, written into `why`.
    const char *(*refuse)(const ScheduleSpec *spec, char *why, size_t size);
    // Compute order only, of every rank. `schedule` has its sizes, empty programs, and stage s on chunk s / p
    // of rank s % p; a kind with another placement writes its own into schedule->stage.
    void (*generate)(const ScheduleSpec *spec, Schedule *schedule);
    // Over the ideal time, when messages cost nothing, backward takes twice as long as forward and its halves
    // are equal; NAN where there is no formula.
    double (*bubble)(const ScheduleSpec *spec);
} ScheduleKind;

extern const ScheduleKind schedule_kinds[];
extern const int num_schedule_kinds;
const ScheduleKind *schedule_kind(const char *name); // NULL when unknown

// Compute order only, neither messages nor proof: all that schedule_replay needs. ERR_CONFIG with the broken
// rule when the kind refuses the shape.
Status schedule_order(Schedule *schedule, const ScheduleSpec *spec);
// Generates, lowers and verifies. A SEND is posted right after its compute. ERR_CONFIG with the broken rule
// when the kind refuses the shape.
Status schedule_create(Schedule *schedule, const ScheduleSpec *spec);
