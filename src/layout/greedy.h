// An order of forwards and split backwards found by running the pipeline: whenever a rank is free it takes
// what its choices say, given what has arrived and what is under way next door. Apart from auto.c, which
// tries all choices, because a clock and a queue of ranks are a subject of their own.
#pragma once
#include "layout/generators.h"

// What each operation takes on each rank, and how many microbatches a rank may hold from F to W.
typedef struct {
    int ranks, microbatches, stash_limit;
    double *forward_us, *input_us, *weight_us; // [ranks]
    double hop_us;
} GreedyTask;

// The ways in which people who draw such schedules by hand differ.
typedef struct {
    bool wait_for_input; // idle rather than begin an F during which the next I would arrive
    bool fill_whole;     // a W goes only into a gap that is known to be long enough for it
    bool lead;           // F before I where the next rank has had as many F: it runs dry otherwise
    // How many microbatches a rank may have between F and I more than a straight line allows that falls from
    // stash_limit on the first rank to 1 on the last: what lies below the line is left for W
    // that are put off.
    int slack;
} GreedyChoice;

// Adds to `programs` (of each rank, may be NULL) and returns when the last rank is done.
double greedy_order(const GreedyTask *task, GreedyChoice choice, Program *programs);
