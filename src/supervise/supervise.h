// The supervisor: starts a training run, watches it, ends what is left of it, and starts it again.
//
// A run is never repaired from within. A start takes milliseconds, any grid reads any checkpoint and the bits do not
// change, so after every failure all of it is ended and the same command runs again, perhaps on another grid. Four
// parts, each a function of what it is given:
//   watch    what the ranks do now, from the heartbeat page (base/beat.h) and /proc; how long that may take
//   blame    of ranks that wait for each other and one that makes no progress: which one it is
//   decide   after an end: start again, or stop, from all ends so far
//   grid     with fewer cores or hosts than asked for: the best grid for what is left
// and the loop around them. Everything that happens is a line of DIR/ledger.jsonl.
#pragma once
#include "base/beat.h"
#include "base/text.h"
#include "config/config.h"
#include <sys/types.h>

// ---- decide.c ---------------------------------------------------------------------------------------

typedef enum {
    END_DONE,   // all iterations are trained
    END_EARLY,  // in order, before its last iteration: a signal, --exit-interval
    END_STATUS, // an error
    END_SIGNAL, // killed or crashed
    END_HANG    // ended by the supervisor: a rank made no progress
} EndKind;

// How a start of the run ended.
typedef struct {
    EndKind kind;
    int status;           // the exit status; of a hang ERR_HANG
    int signal;           // 0: none, or not known
    int64_t iteration;    // the furthest that a rank has come; 0: no step
    int rank, pid;        // the one that is named; -1: not known
    char host[BEAT_HOST]; // of that rank, as --hosts spells it
    char doing[BEAT_DOING];
    bool blamed;    // it was the cause (rank_blame), and not only the first one that left
    bool unproved;  // the launcher may have killed it because of another host
    bool launcher;  // no rank has said that it failed: the status may be the launcher's own
    bool frozen;    // a hang: the process was stopped by a signal
    bool disk_full; // of the --save folder, when it ended
} StartEnding;

const char *end_kind_name(EndKind kind);

typedef struct {
    bool restart;
    double wait_s; // before the restart
    int status;    // of the supervisor, where it stops
    char why[256];
} NextStep;

// Decides from all endings so far, the last one included, what comes next. `max_restarts` INT_UNSET: any number.
NextStep decide(const StartEnding *endings, int count, int max_restarts);
// Counts the failures that a rank on the host has caused. Wrong arithmetic counts STRIKES_TO_EXCLUDE times.
int host_strikes(const StartEnding *endings, int count, const char *host);
enum { STRIKES_TO_EXCLUDE = 2 };

// ---- watch.c: what a rank does, and for how long ------------------------------------------------------

typedef struct {
    Beat beat; // the last that could be read
    bool joined;
    bool gone;      // its process is no longer there, and it has not said that it ends
    bool stopped;   // by SIGSTOP or a terminal
    bool on_disk;   // waits for a disk or another device of the system
    uint64_t signs; // of the heartbeat
    // Attended seconds: time in which the supervisor itself did not run does not count.
    double quiet_s; // without a heartbeat
    double same_s;  // since it has begun another instruction or wait
} RankView;

typedef struct {
    double factor;  // --hang-factor
    double load;    // machine_load()
    double setup_s; // for what was not measured yet
} HangRule;

// Looks at one slot, `tick_s` after the look before.
void view_look(RankView *view, const BeatPage *page, int slot, double tick_s);
void view_process(RankView *view); // whether its process is stopped or has ended, from /proc
double view_limit(const RankView *view, const HangRule *patience); // of quiet_s
// How many times more threads want to run than there are processors, or than this run has of its own; at least 1.
double machine_load(int own_threads);

// ---- blame.c ------------------------------------------------------------------------------------------

typedef struct {
    int rank;       // -1: everything is as it should be
    int next;       // of a circle: the rank that it waits for; else -1
    int waiters;    // ranks that wait for it, directly or through others
    double quiet_s; // how long it has made no progress
    double limit_s;
} Blame;

// Names the one rank that holds up the others: gone, or beyond its limit while it waits for nobody, or stopped within a
// wait; of several the one that most ranks wait for. Ranks that have waited for each other in a circle for long, too.
Blame blame_find(const RankView *views, int count, const HangRule *patience);

// ---- grid.c -------------------------------------------------------------------------------------------

// c is always the asked one.
typedef struct {
    int t, p, v, d, c;
} GridChoice;

static inline int grid_ranks(GridChoice g) { return g.t * g.p * g.d * g.c; }

typedef enum { ELASTIC_OFF, ELASTIC_EXACT, ELASTIC_ROUNDING } Elastic;

// Returns whether the command would train on this grid.
typedef bool GridIsPossible(void *self, GridChoice grid);
// Predicts the seconds of a step; 0: nothing is known, and the rule orders.
typedef double GridStepTime(void *self, GridChoice grid);

typedef struct {
    GridChoice asked;
    Elastic elastic;
    int virtual_dp; // V: any d that divides it changes no bit; 0: none but the asked d
    GridIsPossible *possible;
    GridStepTime *step_s; // or NULL
    void *self;
} GridRequest;

// Chooses the best grid of at most `most` ranks: the asked one where it fits; else of those that are allowed the one
// with the shortest predicted step, or without predictions the one with most ranks, of these with the largest d, then
// the smallest p, then the asked v. False: none is possible.
bool grid_choose(const GridRequest *request, int most, GridChoice *chosen);

// ---- command.c ------------------------------------------------------------------------------------------

// The command behind `--`, split at the word `train`.
typedef struct {
    char **launcher; // what stands before the program: "mpirun -n 8", "nice", nothing
    int num_launcher;
    bool launches;  // it starts a process for each rank; else the ranks are threads
    int ranks_word; // of its words, the one with the number of ranks; -1: none
    int ranks_at;   // where in that word the number begins: "-n8", "--ntasks=8"
    const char *program;
    char **arguments; // of train
    int num_arguments;
    bool wants_hosts; // a word of the launcher has {hosts}
    const char *save; // of train; NULL: not known yet
    bool resumes;     // a later start: what --load and the like say of the first one is left out
} RunCommand;

Status command_read(RunCommand *command, char **words, int count, const char *self);
int command_ranks(const RunCommand *command); // the number in its word; 0: none
// Builds the arguments of one start, ending with NULL; the caller frees them with command_free. `extra` are further
// options of train, in lines of one word each; NULL grid: as asked.
char **command_build(const RunCommand *command, const GridChoice *grid, const char *hosts, const Text *extra);
void command_free(char **argv);

// ---- first_load.c -------------------------------------------------------------------------------------------

// What the first start of a run loads, where the later ones must not: another folder, weights alone, an older step.
typedef struct {
    Text words;       // "--load other --finetune", for the ledger; empty: every start loads `save`
    bool needs_empty; // the first start does not go on from what is in the --save folder
} FirstLoad;

void first_load_read(FirstLoad *first, const Options *train);
// Decides, before each start, whether the run goes on from its own checkpoints (command->resumes).   ERR_CONFIG where
// the --save folder holds those of another run
Status first_load_choose(const FirstLoad *first, const char *ledger, RunCommand *command);
// Fails where a file of --config says it, which a later start cannot leave out.   ERR_CONFIG
Status first_load_can_be_left(const FirstLoad *first, const RunCommand *command);

// ---- child.c ------------------------------------------------------------------------------------------

// Starts the command in a process group of its own, which ends with this process; 0: it cannot be started.
pid_t child_start(char **argv);
bool is_below(pid_t pid, pid_t ancestor); // one process descends from the other
pid_t find_stopped(pid_t pid);            // this process, or one below it, that a signal has stopped; 0: none
void kill_strays(void);                   // all children that are left, and theirs

// ---- records.c ----------------------------------------------------------------------------------------

// Begins an object {"at", "mono_s", "event", "start"; entry_write closes it, appends it to the ledger and frees it. A
// line that cannot be written ends nothing: one warning says so.
void entry_begin(Text *line, const char *event, int start);
void entry_string(Text *line, const char *name, const char *value); // NULL or "": null
void entry_write(Text *line, const char *path);
typedef struct {
    int last_start; // its number; 0: none
    bool started;   // the last one had the same `first_load`
    bool saved;     // and a checkpoint was saved to disk since the first of these
} Records;

// Reads the supervisor's ledger; without one all is zero.
Records records_read(const char *path, const char *first_load);

// ---- supervise.c ----------------------------------------------------------------------------------------

// Runs the command of the options until it is done or cannot go on. Returns 0 when the run is done; what the run ended
// with where another try makes no sense; 75 after TERM, USR1, HUP from a scheduler, when the run has saved: start the
// same command again; 130 after INT.
Status supervise(const Options *options, const char *self);
enum { STATUS_REQUEUE = 75 };
