// The rounds in which rows travel to experts on other ranks and back: what each rank of a stage posts within a forward,
// within a backward, and within a pair of the two (Instr.pairs), and in which order.
//
// Facts, and where each is: nn/expert_rounds.c goes through a layer by rounds_next, so it executes this list;
// nn/dispatch.c begins a forward with ROUND_COUNTS and ROUND_AGREE, and gives the turn of a pair away between post and
// wait where rounds_give_turn says so; parallel/pipeline.c lets the backward of a pair begin, and by base/turns.h one
// compute goes on until it gives its turn; model/gpt.c goes through layers, and computes some of them again. A compute
// ends with nothing under way, and all ranks of a stage have the same program: no two computes need be looked at
// together but a pair.
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>

typedef enum {
    ROUND_COUNTS,    // tell each rank how many rows it gets for each of its experts
    ROUND_AGREE,     // all ranks of a group of experts take as many rounds as the one that wants most
    ROUND_MAXIMA,    // tell each rank the largest magnitudes of the rows that it gets
    ROUND_ROWS,      // send what experts read
    ROUND_GRADIENTS, // send the gradients of what they made of it
    ROUND_COMPUTE,   // compute the products of the round
    ROUND_RETURN,    // send the results back
    ROUND_JOIN,      // the largest magnitudes of all rounds are known
    ROUND_OTHERS,    // stands for the collectives of other groups before a layer, or after its backward
    NUM_ROUND_OPS
} RoundOp;

typedef enum { ROUNDS_FORWARD, ROUNDS_BACKWARD, ROUNDS_INPUT_HALF, ROUNDS_WEIGHT_HALF } RoundsPass;

typedef struct {
    RoundOp op;
    int round;
    bool looks; // the round is one of those that find largest magnitudes, before those that count
} RoundPost;

// A rank's way through one layer. Begins as {pass, rounds, looks}.
typedef struct {
    RoundsPass pass;
    int rounds;
    bool looks;   // products need the largest magnitudes of all rounds, if there are several
    int at, next; // how many rounds it has gone through, and the next op to look at
} Rounds;

// Writes what the rank does next, or returns false at the end. The counts and the agreement come before it.
bool rounds_next(Rounds *rounds, RoundPost *post);
// Whether the other compute of a pair goes on while rows of this round travel: whatever number of rounds there is, all
// ranks of a stage take the same turns.
bool rounds_give_turn(int round);

// ---- all ranks of a stage -------------------------------------------------------------------------------------

typedef enum { ROUNDS_OF_FORWARD, ROUNDS_OF_BACKWARD, NUM_ROUNDS_COMPUTES } RoundsCompute;

// What the ranks of a stage compute. Rank r is in group r / ep, which has all experts, and shares another group with
// the ranks of the same r % ep: they have other tokens, or parts of the same experts.
typedef struct {
    int ep, groups;
    bool parts;                      // each has a part of the same experts: products are theirs together
    bool looks;                      // as in Rounds
    int layers[NUM_ROUNDS_COMPUTES]; // of each compute; 0: there is no such compute. Both: they are a pair
    RoundsPass backward;             // what the backward makes: ROUNDS_BACKWARD or a half
    int again;                       // layers that it computes again at a time; 0: none
    // [ranks][NUM_ROUNDS_COMPUTES][most layers]: the rounds that the rank's own rows would take, 1 or more. Ranks that
    // share parts have the same tokens, and so the same numbers.
    const int *wanted;
} RoundsWork;

typedef struct {
    RoundPost post;
    RoundsCompute compute;
    int layer;  // of the compute's
    bool waits; // until what it has posted is over, else posts it
    bool gives; // its turn, where there is a pair
} RoundStep;

// One rank's steps in their order.
typedef struct {
    RoundStep *steps;
    size_t count, capacity;
} RoundSteps;

void rounds_steps(const RoundsWork *work, int rank, RoundSteps *steps);
void rounds_steps_free(RoundSteps *steps);
// Writes the step in words: "posts the rows of round 0 of layer 1 of the backward".
void round_step_print(const RoundStep *step, char text[112]);

// Proves that such steps [ranks], one list a rank, cannot hang, even where a collective is over only when every rank
// of its group has posted it: the ranks of each group post the same collectives in the same order, every post is
// awaited, and no rank waits for ever. ERR_BUG names the rank and the step.
Status rounds_walk(const RoundsWork *work, const RoundSteps *steps);
// The same of the steps that rounds_steps gives. Tests call it for what runs may have: no option changes the steps.
Status rounds_verify(const RoundsWork *work);
