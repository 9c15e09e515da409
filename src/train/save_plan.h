// --save-interval auto and --memory-save-interval auto: how many steps lie between two saves, from what a save costs
// and how often the run fails.
//
// The time between saves is sqrt(2 C M): C is the time that the steps wait for a save, M the mean time between
// failures. It is at most M, at most an hour, and at least C, so that at most half of the time is spent on saves.
// Source: Young 1974, "A first order approximation to the optimum checkpoint interval"; Daly 2006 (for C far below M).
//
// C is the mean of the saves of this start; before the first one, the bytes of the checkpoint at 200 MB/s, in memory at
// 2 GB/s. M is P + T before anything has failed, then (P / 100 + T) / F: T and F are the ledger's time and failures, P
// is what is expected, a failure a day, on many ranks 8,000 hours of a rank (clusters of 1,024 GPUs have one every 7.9
// hours). Failures after which the run went on from memory do not count for the disk.
//
// Rank 0 decides and tells the others at the start of a step (loop.c). When a run saves changes no bit of it.
#pragma once
#include "config/config.h"

typedef enum { TO_DISK, TO_MEMORY, NUM_SAVE_TARGETS } SaveTarget;

typedef struct {
    const char *option;     // with the value auto, and this is rank 0; NULL: nothing is ever due
    double guess_s;         // of a save, before the first
    double prior_s, past_s; // P; T until the run opened
    int64_t failures;
    double opened_s;
    double stall_s, training_s; // of the saves and steps of this start, without its first step
    int64_t saves, steps;
    int64_t saved;    // the iteration of the newest save, or that the run began with
    bool failed;      // that save
    int64_t interval; // steps; 0: not known yet
} SavePlan;

// Opens the plans of rank 0. `ledger` is that of the run, or NULL. `checkpoint_bytes`: of one save. `now_s` is
// clock_s() in all functions. A ledger that cannot be read has no failures.
void save_plans_open(SavePlan plans[NUM_SAVE_TARGETS], const Options *options, const char *ledger,
                     double checkpoint_bytes, double now_s);
void save_plan_begin(SavePlan *plan, int64_t iteration); // the iteration that the run begins with
void save_plan_step(SavePlan *plan, double seconds);
void save_plan_stall(SavePlan *plan, double seconds); // of a part of a save that goes on
void save_plan_saved(SavePlan *plan, int64_t iteration, double stall_s);
// The save has failed. The next try comes half an interval after it: not at once, since two failures in a row end the
// run, and not a whole one, since what would be lost is an interval more already.
void save_plan_failed(SavePlan *plan);
double save_plan_cost_s(const SavePlan *plan);               // C
double save_plan_mtbf_s(const SavePlan *plan, double now_s); // M
// Chooses the interval anew. It keeps one that is right within a fifth, so that it does not change all the time.
// Returns whether it has changed.
bool save_plan_choose(SavePlan *plan, double now_s);
bool save_plan_is_due(const SavePlan *plan, int64_t iteration); // after that iteration
