// Moves rows of tokens between the ranks that have the tokens and the ranks that have their experts. Used in nn/ alone.
//
// A token and one of its experts are a pair. A rank has its pairs sorted by expert, those of an expert in the order of
// their numbers; the experts of a rank follow each other, so what goes to one rank is one stretch of the sorted pairs.
// They travel in rounds: in each, every rank sends about `slot` pairs, at most `stride`, to every rank, or as many as
// it has, in one all-to-all of equal slices. So the memory of a round follows from sizes alone: where many tokens
// choose the same expert, there are more rounds. A rank gets the pairs of a round in the order (expert, source rank,
// pair), in which each expert's rows are one stretch. Where sources have consecutive tokens, that is the order of the
// tokens. With `apart` the order is (source rank, expert, pair): then an expert's products are of the tokens of one
// rank at a time, as that rank would compute them itself. A round ends at a multiple of `unit` rows from the first row
// of an expert, so that blocks of so many rows are whole on every grid.
#pragma once
#include "config/defaults.h"
#include "nn/stage.h"

// What a layer wants of its rounds.
typedef struct {
    int64_t slot;     // 0: enough for one round where the largest stretch is a quarter longer than the mean
    bool whole;       // all pairs travel in one round
    bool apart;       // the rows of each source are kept apart
    bool grads_apart; // the gradients of each source are, too (Params.sources); needs `whole`
    bool samples;     // ranks tell each other their first samples
    int unit;         // 0: 1
    int64_t tokens;   // pairs of a rank that may choose the same expert; 0: all
} DispatchRules;

typedef struct {
    int experts, here; // of a layer; of them this rank's
    int ranks;         // with other experts
    int64_t slot;      // pairs from a rank to a rank in a round, before rounds are moved to whole units
    int64_t stride;    // rows that a slot has room for: the rest of a unit may go with the next round
    DispatchRules rules;
} Dispatch;

// What the ranks have for each other in one microbatch.
typedef struct {
    int rounds;
    int32_t mine[MAX_EXPERTS];         // this rank's pairs of each expert
    int32_t come[MAX_EXPERTS];         // [ranks][here] each rank's pairs of each of this rank's experts
    int64_t first_sample[MAX_EXPERTS]; // of each rank's microbatch
} DispatchPlan;

// For layers of `experts` experts and at most `pairs` pairs of a rank.
Dispatch dispatch_of(const Context *context, int experts, int64_t pairs, DispatchRules rules);
int64_t dispatch_rows(const Dispatch *dispatch); // that a rank gets in a round, at most

// Tells the ranks what they have for each other: `counts` I32 [1, experts] are this rank's pairs of each expert. On a
// device that does not compute, every expert has as many of the `pairs`. The host waits for the counts.
//   Collective over the ranks of ROLE_EXPERT.
void dispatch_plan(Context *context, const Dispatch *dispatch, Tensor counts, int64_t pairs,
                   DispatchPlan *plan);
// One of the stretches of rows that a rank gets in a round, in the order of memory: `count` rows from `begin` on of its
// `expert`, which may be none. There are dispatch_stretches of them.
typedef struct {
    int expert, source; // of this rank's experts; the rank that has the tokens, 0 unless gradients are apart
    int64_t
        first_sample; // of that rank's microbatch, where rows are apart and the ranks have told each other
    int64_t begin, count;
} DispatchStretch;
int dispatch_stretches(const Dispatch *dispatch);
DispatchStretch dispatch_stretch(const Dispatch *dispatch, const DispatchPlan *plan, int round, int i);

// Send the sorted rows of a round to their experts: `sorted` [pairs, C] -> `rows` [dispatch_rows, C]; rows behind those
// of the last expert stay as they are. And back: every sorted row of the round gets what its expert's rank has in its
// place. context_meanwhile is called while rows travel whose round gives a turn (layout/rounds.h). Later rounds are
// those of hot experts.
//   Scratch memory: twice `rows`, or once where sources are apart.   Collective over the ranks of ROLE_EXPERT.
void dispatch_send(Context *context, const Dispatch *dispatch, const DispatchPlan *plan, int round,
                   Tensor sorted, Tensor rows);
void dispatch_return(Context *context, const Dispatch *dispatch, const DispatchPlan *plan, int round,
                     Tensor rows, Tensor sorted);
