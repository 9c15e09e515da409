// The kinds of schedules. A kind is a file of this folder that defines a ScheduleKind, and one row of kinds.def;
// everything that the rest of the program knows of it stands in its ScheduleKind.
#pragma once
#include "layout/simulate.h"

// The sizes and settings of a schedule to be made.
typedef struct {
    const char *kind; // name of a ScheduleKind
    int ranks, chunks, microbatches;
    int group; // SETTING_GROUP: how many microbatches a chunk takes before the next one's turn; 0: ranks
    int receive_ahead;   // how many computes before its own a RECV is posted: 0 right before it
    ScheduleCosts costs; // SETTING_TIMES: what the computes are ordered by
    int stash_limit;     // SETTING_STASH_LIMIT: how many stashes a rank may hold; 0: as many as ranks
} ScheduleSpec;

// Members of a ScheduleSpec that only some kinds use, as a mask.
typedef enum { SETTING_GROUP = 1, SETTING_TIMES = 2, SETTING_STASH_LIMIT = 4 } ScheduleSetting;

typedef struct ScheduleKind {
    const char *name;           // as `--schedule` takes it
    const char *summary;        // one line for people
    const char *source;         // author and year
    bool is_default;            // Megatron-LM's choice for these chunks, and ours where no kind is named
    int min_chunks, max_chunks; // how many a pipeline rank may have
    int min_ranks;              // how many pipeline ranks it needs; 0: one
    unsigned settings;          // mask of the ScheduleSettings that it uses
    bool splits_backward;       // into BACKWARD_INPUT and BACKWARD_WEIGHT
    bool pairs;                 // forwards run together with backwards (Instr.pairs)
    bool pools_grow;            // with the microbatches: a smaller batch fits into a larger one's pools
    // Optional: checks what the numbers above do not say. Returns NULL, or the rule that is broken and values that
    // would work, written into `why`.
    const char *(*refuse)(const ScheduleSpec *spec, char *why, size_t size);
    // Optional: the stage of the model that a chunk of a rank holds. NULL: stage s is chunk s / p of rank s % p.
    int (*stage)(const ScheduleSpec *spec, int rank, int chunk);
    // Adds the computes of every rank, in order, to the empty programs of `schedule`.
    void (*generate)(const ScheduleSpec *spec, Schedule *schedule);
    // Returns the bubble over the ideal time, for messages that cost nothing, backwards that take twice as long as
    // forwards, and equal halves of them; NAN where there is no formula.
    double (*bubble)(const ScheduleSpec *spec);
    // Optional: returns an upper bound of the activations that a rank holds at once, counted in chunks. NULL: those
    // of all microbatches.
    int (*stash)(const ScheduleSpec *spec, int rank);
    // Optional: returns how many microbatches a rank computes while its gradients are reduced, or its parameters
    // gathered. NULL: one.
    double (*window)(const ScheduleSpec *spec);
} ScheduleKind;

extern const ScheduleKind *const schedule_kinds[];
extern const int num_schedule_kinds;
// Returns the kind of that name, or NULL.
const ScheduleKind *schedule_kind(const char *name);
// Returns the kind that is used where none is named.
const ScheduleKind *schedule_kind_default(int chunks);
const ScheduleKind *schedule_kind_paired(void); // returns the first kind that pairs
// Returns the number of chunks that the kind requires; 0: it takes several numbers of them.
int schedule_kind_chunks(const ScheduleKind *kind);
// Adds the names of all kinds that use one of `settings`, or of all kinds when it is 0, with `separator` between them.
void schedule_kind_names(unsigned settings, const char *separator, Text *out);
// Checks the chunks, ranks and microbatches of `spec`. Returns NULL, or the rule that is broken and values that would
// work, written into `why`.
const char *schedule_kind_refuse(const ScheduleKind *kind, const ScheduleSpec *spec, char *why, size_t size);
// Returns the stage of the model that a chunk of a rank holds.
int schedule_kind_stage(const ScheduleKind *kind, const ScheduleSpec *spec, int rank, int chunk);
// Returns an upper bound of the activations that a rank holds at once, counted in chunks: never more than those of all
// microbatches.
int schedule_kind_stash(const ScheduleKind *kind, const ScheduleSpec *spec, int rank);
// Returns how many microbatches a rank computes while its gradients are reduced, or its parameters gathered.
double schedule_kind_window(const ScheduleKind *kind, const ScheduleSpec *spec);

// Makes a schedule of computes alone, without messages and proof: all that schedule_replay needs. ERR_CONFIG names the
// rule that is broken when the kind refuses the sizes.
Status schedule_order(Schedule *schedule, const ScheduleSpec *spec);
// Generates, lowers and verifies a schedule. A SEND is posted right after its compute. ERR_CONFIG names the rule that
// is broken when the kind refuses the sizes.
Status schedule_create(Schedule *schedule, const ScheduleSpec *spec);
