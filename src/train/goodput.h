// Where the time of a run went, over all its starts: the lines of its ledger (docs/goodput.md) added up. Every
// microsecond between the first and the last line belongs to exactly one part.
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    TIME_PRODUCTIVE, // training steps that were trained for the first time
    TIME_RECOMPUTED, // steps that an earlier start had trained already
    TIME_DETECTING,  // from the last line of a run that failed until its end was noticed
    TIME_STOPPING,   // until all its processes had ended
    TIME_DOWN,       // until the next start
    TIME_STARTING,   // until the ranks were connected and had their memory
    TIME_LOADING,    // until the checkpoint was loaded; going back to one
    TIME_FIRST_STEP, // what the first step of a start took longer than those after it
    TIME_SAVING,     // steps waited for a save
    TIME_EVALUATING,
    TIME_WAITING,  // for the data of a step, or for a rank that read them
    TIME_CHECKING, // comparing replicas, audits, checksums of parameters
    TIME_UNKNOWN,
    NUM_TIME_PARTS
} TimePart;
bool time_part_is_restart(TimePart part);   // from TIME_DETECTING to TIME_FIRST_STEP
const char *time_part_name(TimePart part);  // "recomputed": of JSON
const char *time_part_words(TimePart part); // "steps trained again": for people

// One start of the run, until the next one.
typedef struct {
    int64_t at_us;              // since the first line
    int ranks, tp, pp, dp;      // 0: unknown
    int64_t loaded, reached;    // iteration that it went on from, and that its last line names; -1: none
    int64_t us[NUM_TIME_PARTS]; // detecting, stopping, down: before it
    bool ended, failed;
    int status;      // of its end, where it is known; else 0
    char signal[16]; // the one that ended it; "": none
} RunStart;

typedef struct {
    int64_t wall_us; // from the first to the last line; the sum of us
    int64_t us[NUM_TIME_PARTS];
    RunStart *starts;
    int num_starts;
    int64_t failures;                    // starts that ended by themselves with an error, or without a word
    int64_t survived;                    // of these, those after which the run went on from memory
    int64_t iteration;                   // the furthest; 0: none
    int64_t steps_again;                 // steps that were trained again
    int64_t saves, evaluations, rewinds; // lines of them
    int64_t save_us;                     // stalls of the `saves`
    int64_t lines;
    int64_t damaged, first_damaged; // lines that could not be read; the number of the first one
    char first_at[32], last_at[32]; // UTC
} Goodput;

// Reads a ledger: its file, or a --save folder with supervise/ledger.jsonl or ledger.jsonl. A torn last line is left
// out. A damaged line before it is left out and counted. Fails with ERR_NO_INPUT where there is no ledger, and with
// ERR_DATA where no line can be read.
Status goodput_read(Goodput *goodput, const char *path);
// The same of a text; `path` is for messages.
Status goodput_of(Goodput *goodput, const char *text, size_t size, const char *path);
void goodput_free(Goodput *goodput); // also a zeroed one
