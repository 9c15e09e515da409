// Moves rows of tokens between the ranks that have the tokens and the ranks that have their experts. Used in nn/ alone.
//
// A token and one of its experts are a pair. A rank has its pairs sorted by expert, those of an expert in the order of
// their numbers; the experts of a rank follow each other, so what goes to one rank is one stretch of the sorted pairs.
// They travel in rounds: in each, every rank sends `slot` pairs to every rank, or as many as it has, in one all-to-all
// of equal slices. So the memory of a round follows from sizes alone: where many tokens choose the same expert, there
// are more rounds. A rank gets the pairs of a round in the order (expert, source rank, pair), in which each expert's
// rows are one stretch. Where sources have consecutive tokens, that is the order of the tokens.
#pragma once
#include "nn/stage.h"

enum { MOST_EXPERTS = 1024 }; // of a layer

typedef struct {
    int experts, here; // of a layer; of them this rank's
    int ranks;         // with other experts
    int64_t slot;      // pairs from a rank to a rank in a round
} Dispatch;

// What the ranks have for each other in one microbatch.
typedef struct {
    int rounds;
    int32_t mine[MOST_EXPERTS]; // this rank's pairs of each expert
    int32_t come[MOST_EXPERTS]; // [ranks][here] each rank's pairs of each of this rank's experts
} DispatchPlan;

// For layers of `experts` experts and at most `pairs` pairs of a rank. `slot` 0: enough for one round where the largest
// stretch is a quarter longer than the mean.
Dispatch dispatch_of(const Context *context, int experts, int64_t pairs, int64_t slot);
int64_t dispatch_rows(const Dispatch *dispatch); // that a rank gets in a round, at most

// Tells the ranks what they have for each other: `counts` I32 [1, experts] are this rank's pairs of each expert. On a
// device that does not compute, every expert has as many of the `pairs`. The host waits for the counts.
//   Collective over the ranks of ROLE_EXPERT.
void dispatch_plan(Context *context, const Dispatch *dispatch, Tensor counts, int64_t pairs,
                   DispatchPlan *plan);
// The rows of the e-th expert of this rank in a round: `count`, from `begin` on.
typedef struct {
    int64_t begin, count;
} DispatchRows;
DispatchRows dispatch_rows_of(const Dispatch *dispatch, const DispatchPlan *plan, int round, int e);

// Send the sorted rows of a round to their experts: `sorted` [pairs, C] -> `rows` [dispatch_rows, C]; rows behind those
// of the last expert stay as they are. And back: every sorted row of the round gets what its expert's rank has in its
// place.   Scratch memory: twice `rows`.   Collective over the ranks of ROLE_EXPERT.
void dispatch_send(Context *context, const Dispatch *dispatch, const DispatchPlan *plan, int round,
                   Tensor sorted, Tensor rows);
void dispatch_return(Context *context, const Dispatch *dispatch, const DispatchPlan *plan, int round,
                     Tensor rows, Tensor sorted);
