// Takes rows through the experts of a layer, here or on other ranks, round by round.
#include "nn/expert_rounds.h"

static bool all_here(const Dispatch *d) { return d->ranks == 1; }

// ---- counts -----------------------------------------------------------------------------------------------

void experts_plan(Context *c, const Dispatch *d, Tensor counts, int64_t pairs, ExpertsKept *k) {
    dispatch_plan(c, d, counts, pairs, &k->plan);
}

int64_t experts_pairs(const Dispatch *d, const ExpertsKept *k) {
    int64_t sum = 0;
    for (int e = 0; e < d->experts; e++) sum += k->plan.mine[e];
    return sum;
}

bool experts_need_rows(const Dispatch *d, const ExpertsKept *k, Halves halves) {
    return all_here(d) ? halves & WEIGHT_HALF : k->plan.rounds > 1;
}

// ---- rounds -----------------------------------------------------------------------------------------------

// The tensors of a round: those that are kept, or those of any later one.
typedef struct {
    Tensor rows, inner, core;
} Round;

static Tensor take_rows(Arena *arena, int64_t rows, Tensor like) {
    return tensor_take(arena, "rows of this rank's experts", rows, like.cols, like.dtype);
}

static Tensor take_inner(Arena *arena, const ExpertWeights *w, int64_t rows, Tensor like) {
    return tensor_take(arena, "fc1 output of experts", rows, w->fc1->value.rows / w->experts, like.dtype);
}

static Tensor take_core(Arena *arena, const ExpertWeights *w, int64_t rows, Tensor like) {
    return tensor_take(arena, "activation output of experts", rows, w->fc2->value.cols, like.dtype);
}

static Round take_round(Arena *arena, const ExpertWeights *w, int64_t rows, Tensor like) {
    Round r = {take_rows(arena, rows, like), take_inner(arena, w, rows, like),
               take_core(arena, w, rows, like)};
    return r;
}

static void start_round(Context *c, const ExpertWeights *w, const Dispatch *d, const ExpertsKept *k,
                        int round, Tensor sorted, ExpertRows *at, const Round *r) {
    dispatch_send(c, d, &k->plan, round, sorted, r->rows);
    expert_inner_forward(c, w, at, r->rows, r->inner, r->core);
}

void experts_take(const Context *c, const ExpertWeights *w, const Dispatch *d, ExpertsKept *k, Arena *arena,
                  int64_t pairs, int64_t hidden) {
    Tensor like = {.cols = hidden, .dtype = w->fc1->value.dtype};
    int64_t rows = all_here(d) ? pairs : dispatch_rows(d);
    (void)c;
    if (!all_here(d)) k->rows = take_rows(arena, rows, like);
    k->inner = take_inner(arena, w, rows, like);
    k->core = take_core(arena, w, rows, like);
    k->out = tensor_take(arena, "output of experts", pairs, hidden, like.dtype);
}

void experts_forward(Context *c, const ExpertWeights *w, const Dispatch *d, const ExpertsKept *k,
                     Tensor sorted) {
    ExpertRows at;
    if (all_here(d)) {
        expert_rows_of(&at, k->plan.mine, w->experts);
        expert_inner_forward(c, w, &at, sorted, k->inner, k->core);
        expert_outer_forward(c, w, &at, k->core, k->out);
        return;
    }
    ArenaMark mark = arena_mark(c->scratch);
    Round first = {k->rows, k->inner, k->core}, later = take_round(c->scratch, w, dispatch_rows(d), sorted);
    Tensor y =
        tensor_take(c->scratch, "output of this rank's experts", dispatch_rows(d), sorted.cols, sorted.dtype);
    for (int round = 0; round < k->plan.rounds; round++) {
        const Round *r = round ? &later : &first;
        expert_rows_of_round(&at, d, &k->plan, round);
        start_round(c, w, d, k, round, sorted, &at, r);
        expert_outer_forward(c, w, &at, r->core, y);
        dispatch_return(c, d, &k->plan, round, y, k->out);
    }
    arena_release(c->scratch, mark);
}

static void backward_here(Context *c, const ExpertWeights *w, const ExpertsKept *k, Halves halves,
                          Tensor sorted, Tensor drows) {
    ExpertRows at;
    expert_rows_of(&at, k->plan.mine, w->experts);
    if (halves & INPUT_HALF) {
        expert_outer_gradient(c, w, &at, k->out, k->inner);
        expert_inner_gradient(c, w, &at, k->inner, drows);
    }
    if (halves & WEIGHT_HALF) expert_weight_gradient(c, w, &at, sorted, k->inner, k->core, k->out);
}

typedef struct {
    Context *context;
    const ExpertWeights *weights;
    const ExpertRows *at;
    const Round *round;
    Tensor dy;
} WeightGradient;

static void make_weight_gradient(void *self) {
    const WeightGradient *g = self;
    expert_weight_gradient(g->context, g->weights, g->at, g->round->rows, g->round->inner, g->round->core,
                           g->dy);
}

// A weight half alone finds the gradient of `inner` of round 0 where the input half has left it.
void experts_backward(Context *c, const ExpertWeights *w, const Dispatch *d, const ExpertsKept *k,
                      Halves halves, Tensor sorted, Tensor drows) {
    if (all_here(d)) {
        backward_here(c, w, k, halves, sorted, drows);
        return;
    }
    ExpertRows at;
    ArenaMark mark = arena_mark(c->scratch);
    Round first = {k->rows, k->inner, k->core}, later = take_round(c->scratch, w, dispatch_rows(d), k->out);
    Tensor dy = tensor_take(c->scratch, "gradient of this rank's experts' output", k->rows.rows, k->rows.cols,
                            k->rows.dtype);
    Tensor dx = tensor_take(c->scratch, "gradient of this rank's experts' rows", dy.rows, dy.cols, dy.dtype);
    for (int round = 0; round < k->plan.rounds; round++) {
        const Round *r = round ? &later : &first;
        expert_rows_of_round(&at, d, &k->plan, round);
        if (round) start_round(c, w, d, k, round, sorted, &at, r);
        dispatch_send(c, d, &k->plan, round, k->out, dy);
        if (round || halves & INPUT_HALF) expert_outer_gradient(c, w, &at, dy, r->inner);
        WeightGradient gradient = {c, w, &at, r, dy};
        if (halves & INPUT_HALF) expert_inner_gradient(c, w, &at, r->inner, dx);
        // The rows of the input's gradient travel meanwhile.
        if (halves & WEIGHT_HALF) context_put_off(c, (ContextCall){make_weight_gradient, &gradient});
        if (round || !(halves & INPUT_HALF)) context_catch_up(c);
        if (halves & INPUT_HALF) dispatch_return(c, d, &k->plan, round, dx, drows);
    }
    arena_release(c->scratch, mark);
}
