// Finds an order of forwards and split backwards by running the pipeline: whenever a rank is free, it chooses the next
// compute by the rules of a GreedyChoice, from what has arrived and what its neighbours compute. auto.c tries all
// choices.
#pragma once
#include "layout/generators.h"

// The time of each operation on each rank, and how many microbatches a rank may hold from F to W.
typedef struct {
    int ranks, microbatches, stash_limit;
    double *forward_us, *input_us, *weight_us; // [ranks]
    double hop_us;
} GreedyTask;

// The rules in which such schedules, drawn by hand, differ.
typedef struct {
    bool wait_for_input; // stay idle rather than begin an F during which the input of the next I would arrive
    bool fill_whole;     // put a W only into a gap that is known to be long enough for it
    bool lead;           // F before I when the next rank has run as many F as this one and would have to wait
    // A straight line falls from stash_limit on the first rank to 1 on the last. A rank may have `slack` more
    // microbatches between F and I than the line allows; the rest of stash_limit is left for W that are put off.
    int slack;
} GreedyChoice;

// Adds the computes to `programs` [ranks], which may be NULL, and returns the time at which the last rank is done.
double greedy_order(const GreedyTask *task, GreedyChoice choice, Program *programs);
