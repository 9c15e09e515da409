// The posts of rounds, and the walk that proves them.
#include "layout/rounds.h"
#include "base/array.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- one layer ----------------------------------------------------------------------------------------------

// The gradients of weights look at nothing: what they need was found with the gradient of the input.
static bool looks_first(const Rounds *r) {
    return r->looks && r->rounds > 1 && r->pass != ROUNDS_WEIGHT_HALF;
}

// Returns whether a pass has this post. Rows of round 0 are sent once: they stay in memory for the backward.
static bool applies(const Rounds *r, RoundPost post) {
    bool forward = r->pass == ROUNDS_FORWARD, sends = post.looks || post.round > 0 || !looks_first(r);
    switch (post.op) {
    case ROUND_MAXIMA: return post.looks && post.round == r->rounds - 1;
    case ROUND_ROWS: return forward ? sends : post.round > 0;
    case ROUND_GRADIENTS: return !forward && sends;
    case ROUND_COMPUTE: return !post.looks;
    case ROUND_RETURN: return !post.looks && r->pass != ROUNDS_WEIGHT_HALF;
    case ROUND_JOIN: return post.looks && post.round == 0;
    default: return false;
    }
}

// Round 0 is the last that looks, as it is the one whose rows stay.
bool rounds_next(Rounds *r, RoundPost *post) {
    int looking = looks_first(r) ? r->rounds : 0;
    for (; r->at < looking + r->rounds; r->at++, r->next = 0)
        while (r->next < NUM_ROUND_OPS) {
            bool looks = r->at < looking;
            *post = (RoundPost){(RoundOp)r->next++, looks ? looking - 1 - r->at : r->at - looking, looks};
            if (applies(r, *post)) return true;
        }
    return false;
}

bool rounds_give_turn(int round) { return round == 0; }

// ---- the steps of a rank ------------------------------------------------------------------------------------

static int most_layers(const RoundsWork *work) {
    const int *layers = work->layers;
    return layers[0] > layers[1] ? layers[0] : layers[1];
}

// What the ranks of the group agree on.
static int rounds_of(const RoundsWork *work, int rank, RoundsCompute compute, int layer) {
    int most = 0;
    for (int i = 0; i < work->ep; i++) {
        int other = rank / work->ep * work->ep + i;
        int wanted = work->wanted[(other * NUM_ROUNDS_COMPUTES + (int)compute) * most_layers(work) + layer];
        most = wanted > most ? wanted : most;
    }
    return most;
}

static void add(RoundSteps *steps, RoundStep step) {
    array_grow(&steps->steps, sizeof step, steps->count + 1, &steps->capacity);
    steps->steps[steps->count++] = step;
}

static bool travels(RoundOp op) { return op == ROUND_ROWS || op == ROUND_GRADIENTS || op == ROUND_RETURN; }

static void post_and_wait(RoundSteps *steps, RoundsCompute compute, int layer, RoundPost post) {
    RoundStep step = {.post = post, .compute = compute, .layer = layer};
    step.gives = travels(post.op) && rounds_give_turn(post.round);
    add(steps, step);
    step.gives = false, step.waits = true;
    add(steps, step);
}

static bool is_posted(const RoundsWork *work, RoundOp op) {
    return work->parts || (op != ROUND_COMPUTE && op != ROUND_JOIN);
}

static void add_layer(const RoundsWork *work, int rank, RoundsCompute compute, int layer, RoundsPass pass,
                      RoundSteps *steps) {
    Rounds rounds = {.pass = pass, .rounds = rounds_of(work, rank, compute, layer), .looks = work->looks};
    static const RoundOp before[] = {ROUND_OTHERS, ROUND_COUNTS, ROUND_AGREE};
    RoundPost post;
    for (int i = 0; i < 3 && pass == ROUNDS_FORWARD; i++)
        post_and_wait(steps, compute, layer, (RoundPost){.op = before[i]});
    while (rounds_next(&rounds, &post))
        if (is_posted(work, post.op)) post_and_wait(steps, compute, layer, post);
    if (pass != ROUNDS_FORWARD) post_and_wait(steps, compute, layer, (RoundPost){.op = ROUND_OTHERS});
}

static void add_forward(const RoundsWork *work, int rank, RoundSteps *steps) {
    for (int layer = 0; layer < work->layers[ROUNDS_OF_FORWARD]; layer++)
        add_layer(work, rank, ROUNDS_OF_FORWARD, layer, ROUNDS_FORWARD, steps);
}

// The last layers that are computed again may be fewer. A weight half computes none again.
static void add_backward(const RoundsWork *work, int rank, RoundSteps *steps) {
    int again = work->backward == ROUNDS_WEIGHT_HALF ? 0 : work->again, group = again ? again : 1;
    for (int end = work->layers[ROUNDS_OF_BACKWARD], first; end > 0; end = first) {
        first = (end - 1) / group * group;
        for (int layer = first; layer < end && again; layer++)
            add_layer(work, rank, ROUNDS_OF_BACKWARD, layer, ROUNDS_FORWARD, steps);
        for (int layer = end - 1; layer >= first; layer--)
            add_layer(work, rank, ROUNDS_OF_BACKWARD, layer, work->backward, steps);
    }
}

void rounds_steps(const RoundsWork *work, int rank, RoundSteps *steps) {
    RoundSteps of[NUM_ROUNDS_COMPUTES] = {{0}};
    size_t at[NUM_ROUNDS_COMPUTES] = {0};
    add_forward(work, rank, &of[ROUNDS_OF_FORWARD]);
    add_backward(work, rank, &of[ROUNDS_OF_BACKWARD]);
    for (int now = ROUNDS_OF_BACKWARD; at[0] < of[0].count || at[1] < of[1].count;) {
        if (at[now] == of[now].count) now = !now;
        RoundStep step = of[now].steps[at[now]++];
        add(steps, step);
        if (step.gives) now = !now;
    }
    for (int i = 0; i < NUM_ROUNDS_COMPUTES; i++) rounds_steps_free(&of[i]);
}

void rounds_steps_free(RoundSteps *steps) {
    free(steps->steps);
    *steps = (RoundSteps){0};
}

void round_step_print(const RoundStep *step, char text[112]) {
    static const char *const names[NUM_ROUND_OPS] = {[ROUND_COUNTS] = "the counts",
                                                     [ROUND_AGREE] = "the agreement",
                                                     [ROUND_MAXIMA] = "the magnitudes",
                                                     [ROUND_ROWS] = "the rows",
                                                     [ROUND_GRADIENTS] = "the gradients",
                                                     [ROUND_COMPUTE] = "the products",
                                                     [ROUND_RETURN] = "the results",
                                                     [ROUND_JOIN] = "the join",
                                                     [ROUND_OTHERS] = "the collective of another group"};
    snprintf(text, 112, "%s %s of %sround %d of layer %d of the %s", step->waits ? "awaits" : "posts",
             names[step->post.op], step->post.looks ? "looking " : "", step->post.round, step->layer,
             step->compute == ROUNDS_OF_FORWARD ? "forward" : "backward");
}

// ---- the walk -----------------------------------------------------------------------------------------------

typedef enum { OF_EXPERTS, OF_OTHERS, NUM_GROUP_KINDS } GroupKind;

// A post of a compute that it has not awaited yet: number `number` of its group.
typedef struct {
    bool open;
    size_t number;
    RoundStep step;
} UnderWay;

typedef struct {
    const RoundSteps *steps;
    size_t at, posted[NUM_GROUP_KINDS];
    UnderWay under_way[NUM_ROUNDS_COMPUTES];
} Walker;

// A post of a group, as the rank that came first made it.
typedef struct {
    RoundStep step;
    int rank;
} FirstPost;

typedef struct {
    FirstPost *posts;
    size_t count, capacity;
} GroupLog;

typedef struct {
    const RoundsWork *work;
    int ranks, num_groups[NUM_GROUP_KINDS];
    Walker *walkers;
    GroupLog *logs[NUM_GROUP_KINDS];
} Walk;

static GroupKind kind_of(const RoundStep *step) {
    RoundOp op = step->post.op;
    return op == ROUND_OTHERS || op == ROUND_COMPUTE || op == ROUND_JOIN ? OF_OTHERS : OF_EXPERTS;
}

static int group_of(const Walk *walk, GroupKind kind, int rank) {
    return kind == OF_EXPERTS ? rank / walk->work->ep : rank % walk->work->ep;
}

static bool same_post(const RoundStep *a, const RoundStep *b) {
    return a->post.op == b->post.op && a->post.round == b->post.round && a->post.looks == b->post.looks &&
           a->compute == b->compute && a->layer == b->layer;
}

static const RoundStep *step_of(const Walker *w) {
    return w->at < w->steps->count ? &w->steps->steps[w->at] : NULL;
}

static Status broken(const Walk *walk, int rank, const RoundStep *step, const char *what) {
    char text[112];
    round_step_print(step, text);
    return fail(ERR_BUG, "experts on %d ranks: rank %d, step %zu, %s: %s", walk->work->ep, rank,
                walk->walkers[rank].at, text, what);
}

static Status post_step(Walk *walk, int rank, const RoundStep *step) {
    Walker *w = &walk->walkers[rank];
    GroupKind kind = kind_of(step);
    GroupLog *log = &walk->logs[kind][group_of(walk, kind, rank)];
    UnderWay *mine = &w->under_way[step->compute];
    size_t number = w->posted[kind]++;
    if (mine->open) return broken(walk, rank, step, "the compute has not awaited its last post");
    *mine = (UnderWay){true, number, *step};
    if (number == log->count) {
        array_grow(&log->posts, sizeof *log->posts, log->count + 1, &log->capacity);
        log->posts[log->count++] = (FirstPost){*step, rank};
    }
    const FirstPost *first = &log->posts[number];
    if (same_post(step, &first->step)) return OK;
    char text[112], what[160];
    round_step_print(&first->step, text);
    snprintf(what, sizeof what, "there rank %d %s", first->rank, text);
    return broken(walk, rank, step, what);
}

// Returns a rank of the group that has not posted what this rank awaits; -1: all have.
static int missing(const Walk *walk, int rank, const RoundStep *step) {
    GroupKind kind = kind_of(step);
    for (int other = 0; other < walk->ranks; other++)
        if (group_of(walk, kind, other) == group_of(walk, kind, rank) &&
            walk->walkers[other].posted[kind] <= walk->walkers[rank].under_way[step->compute].number)
            return other;
    return -1;
}

// Does the rank's next step, unless that waits; `moved` says whether it did.
static Status do_step(Walk *walk, int rank, bool *moved) {
    Walker *w = &walk->walkers[rank];
    const RoundStep *step = step_of(w);
    if (!step) return OK;
    UnderWay *mine = &w->under_way[step->compute];
    if (step->waits && (!mine->open || !same_post(&mine->step, step)))
        return broken(walk, rank, step, "the compute has not posted it");
    if (step->waits && missing(walk, rank, step) >= 0) return OK;
    if (step->waits)
        mine->open = false;
    else
        TRY(post_step(walk, rank, step));
    w->at++;
    *moved = true;
    return OK;
}

static Status check_end(const Walk *walk, int rank) {
    const Walker *w = &walk->walkers[rank];
    const RoundStep *step = step_of(w);
    char what[80];
    if (step) {
        snprintf(what, sizeof what, "it waits for ever: rank %d does not post it", missing(walk, rank, step));
        return broken(walk, rank, step, what);
    }
    for (int compute = 0; compute < NUM_ROUNDS_COMPUTES; compute++)
        if (w->under_way[compute].open)
            return broken(walk, rank, &w->under_way[compute].step, "nobody awaits it");
    return OK;
}

static Status walk_through(Walk *walk) {
    for (bool moved = true; moved;) {
        moved = false;
        for (int rank = 0; rank < walk->ranks; rank++) TRY(do_step(walk, rank, &moved));
    }
    for (int rank = 0; rank < walk->ranks; rank++) TRY(check_end(walk, rank));
    return OK;
}

static void *zeroed(int count, size_t size) {
    void *memory = calloc((size_t)count, size);
    CHECK(memory, "no memory for a walk over %d", count);
    return memory;
}

Status rounds_walk(const RoundsWork *work, const RoundSteps *steps) {
    Walk walk = {.work = work, .ranks = work->ep * work->groups, .num_groups = {work->groups, work->ep}};
    walk.walkers = zeroed(walk.ranks, sizeof *walk.walkers);
    for (int rank = 0; rank < walk.ranks; rank++) walk.walkers[rank].steps = &steps[rank];
    for (int kind = 0; kind < NUM_GROUP_KINDS; kind++)
        walk.logs[kind] = zeroed(walk.num_groups[kind], sizeof **walk.logs);
    Status status = walk_through(&walk);
    for (int kind = 0; kind < NUM_GROUP_KINDS; kind++) {
        for (int i = 0; i < walk.num_groups[kind]; i++) free(walk.logs[kind][i].posts);
        free(walk.logs[kind]);
    }
    free(walk.walkers);
    return status;
}

Status rounds_verify(const RoundsWork *work) {
    int ranks = work->ep * work->groups;
    RoundSteps *steps = zeroed(ranks, sizeof *steps);
    for (int rank = 0; rank < ranks; rank++) rounds_steps(work, rank, &steps[rank]);
    Status status = rounds_walk(work, steps);
    for (int rank = 0; rank < ranks; rank++) rounds_steps_free(&steps[rank]);
    free(steps);
    return status;
}
