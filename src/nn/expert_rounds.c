// Takes rows through the experts of a layer, here or on other ranks, round by round, in the order of layout/rounds.h.
#include "nn/expert_rounds.h"
#include "layout/rounds.h"
#include "nn/expert_factors.h"

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
    return tensor_take(arena, "fc1 output of experts", rows, w->fc1.weight->value.rows / w->experts,
                       like.dtype);
}

static Tensor take_core(Arena *arena, const ExpertWeights *w, int64_t rows, Tensor like) {
    return tensor_take(arena, "activation output of experts", rows, w->fc2.weight->value.cols, like.dtype);
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

static Tensor take_maxima(Arena *arena, const Dispatch *d) {
    return tensor_take(arena, "largest magnitudes of all rounds", 1, d->experts, F32);
}

void experts_take(const Context *c, const ExpertWeights *w, const Dispatch *d, ExpertsKept *k, Arena *arena,
                  int64_t pairs, int64_t hidden) {
    Tensor like = {.cols = hidden, .dtype = w->fc1.weight->value.dtype};
    int64_t rows = all_here(d) ? pairs : dispatch_rows(d);
    (void)c;
    if (!all_here(d)) k->rows = take_rows(arena, rows, like);
    k->inner = take_inner(arena, w, rows, like);
    k->core = take_core(arena, w, rows, like);
    k->out = tensor_take(arena, "output of experts", pairs, hidden, like.dtype);
    if (!expert_factors_look(&w->fc1.few_bits, d)) return;
    k->own_maxima = take_maxima(arena, d);
    k->maxima = (ExpertMaxima){take_maxima(arena, d), take_maxima(arena, d), take_maxima(arena, d),
                               take_maxima(arena, d)};
}

// ---- largest magnitudes of all rounds ---------------------------------------------------------------------

static bool looks(const ExpertsKept *k) { return k->maxima.x.cols && k->plan.rounds > 1; }

static void rows_of_round(ExpertRows *at, const Dispatch *d, const ExpertsKept *k, int round) {
    expert_rows_of_round(at, d, &k->plan, round);
    if (looks(k)) at->maxima = k->maxima;
}

// Each rank finds those of its own rows of every expert, and tells the expert's rank: there they are in the order of
// stretches.
static void tell_maxima(Context *c, const Dispatch *d, const ExpertsKept *k, Tensor sorted, Tensor max) {
    ExpertRows own;
    expert_rows_of(&own, d, &k->plan);
    device_zero(c->device, c->stream, k->own_maxima);
    expert_factors_note(c, &own, sorted, k->own_maxima);
    comm_all_to_all(context_group(c, ROLE_EXPERT), c->stream, k->own_maxima, max);
}

// ---- forward and backward ---------------------------------------------------------------------------------

void experts_forward(Context *c, const ExpertWeights *w, const Dispatch *d, const ExpertsKept *k,
                     Tensor sorted) {
    ExpertRows at;
    if (all_here(d)) {
        expert_rows_of(&at, d, &k->plan);
        expert_inner_forward(c, w, &at, sorted, k->inner, k->core);
        expert_outer_forward(c, w, &at, k->core, k->out);
        return;
    }
    ArenaMark mark = arena_mark(c->scratch);
    Round first = {k->rows, k->inner, k->core}, later = take_round(c->scratch, w, dispatch_rows(d), sorted);
    Tensor y =
        tensor_take(c->scratch, "output of this rank's experts", dispatch_rows(d), sorted.cols, sorted.dtype);
    Rounds list = {.pass = ROUNDS_FORWARD, .rounds = k->plan.rounds, .looks = looks(k)};
    for (RoundPost post; rounds_next(&list, &post);) {
        const Round *r = post.round ? &later : &first;
        rows_of_round(&at, d, k, post.round);
        switch (post.op) {
        case ROUND_MAXIMA:
            tell_maxima(c, d, k, sorted, k->maxima.x);
            device_zero(c->device, c->stream, k->maxima.core);
            break;
        case ROUND_ROWS:
            start_round(c, w, d, k, post.round, sorted, &at, r);
            if (post.looks) expert_factors_note(c, &at, r->core, k->maxima.core);
            break;
        case ROUND_JOIN: expert_factors_join(c, &w->fc2, FACTOR_X, k->maxima.core); break;
        case ROUND_COMPUTE: expert_outer_forward(c, w, &at, r->core, y); break;
        case ROUND_RETURN: dispatch_return(c, d, &k->plan, post.round, y, k->out); break;
        default: break;
        }
    }
    arena_release(c->scratch, mark);
}

static void backward_here(Context *c, const ExpertWeights *w, const Dispatch *d, const ExpertsKept *k,
                          Halves halves, Tensor sorted, Tensor drows) {
    ExpertRows at;
    expert_rows_of(&at, d, &k->plan);
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

// The gradients of a round's inputs and weights.
static void compute_gradients(WeightGradient *gradient, Halves halves, int round, Tensor dx) {
    Context *c = gradient->context;
    if (halves & INPUT_HALF)
        expert_inner_gradient(c, gradient->weights, gradient->at, gradient->round->inner, dx);
    // The rows of the input's gradient travel meanwhile.
    if (halves & WEIGHT_HALF) context_put_off(c, (ContextCall){make_weight_gradient, gradient});
    if (round || !(halves & INPUT_HALF)) context_catch_up(c);
}

static RoundsPass pass_of(Halves halves) {
    return halves == BOTH_HALVES  ? ROUNDS_BACKWARD
           : halves == INPUT_HALF ? ROUNDS_INPUT_HALF
                                  : ROUNDS_WEIGHT_HALF;
}

// A weight half alone finds the gradient of `inner` of round 0 where the input half has left it.
void experts_backward(Context *c, const ExpertWeights *w, const Dispatch *d, const ExpertsKept *k,
                      Halves halves, Tensor sorted, Tensor drows) {
    if (all_here(d)) {
        backward_here(c, w, d, k, halves, sorted, drows);
        return;
    }
    ExpertRows at;
    ArenaMark mark = arena_mark(c->scratch);
    Round first = {k->rows, k->inner, k->core}, later = take_round(c->scratch, w, dispatch_rows(d), k->out);
    Tensor dy = tensor_take(c->scratch, "gradient of this rank's experts' output", k->rows.rows, k->rows.cols,
                            k->rows.dtype);
    Tensor dx = tensor_take(c->scratch, "gradient of this rank's experts' rows", dy.rows, dy.cols, dy.dtype);
    WeightGradient gradient = {c, w, &at, NULL, dy};
    Rounds list = {.pass = pass_of(halves), .rounds = k->plan.rounds, .looks = looks(k)};
    for (RoundPost post; rounds_next(&list, &post);) {
        const Round *r = gradient.round = post.round ? &later : &first;
        rows_of_round(&at, d, k, post.round);
        switch (post.op) {
        case ROUND_MAXIMA:
            tell_maxima(c, d, k, k->out, k->maxima.dy);
            device_zero(c->device, c->stream, k->maxima.dinner);
            break;
        case ROUND_ROWS: start_round(c, w, d, k, post.round, sorted, &at, r); break;
        case ROUND_GRADIENTS:
            dispatch_send(c, d, &k->plan, post.round, k->out, dy);
            if (post.round || halves & INPUT_HALF) expert_outer_gradient(c, w, &at, dy, r->inner);
            if (post.looks) expert_factors_note(c, &at, r->inner, k->maxima.dinner);
            break;
        case ROUND_JOIN: expert_factors_join(c, &w->fc1, FACTOR_DY, k->maxima.dinner); break;
        case ROUND_COMPUTE: compute_gradients(&gradient, halves, post.round, dx); break;
        case ROUND_RETURN: dispatch_return(c, d, &k->plan, post.round, dx, drows); break;
        default: break;
        }
    }
    arena_release(c->scratch, mark);
}
