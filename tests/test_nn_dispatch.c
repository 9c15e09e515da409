// Rows of tokens on their way to the experts of other ranks and back: whatever the ranks have for each other and however
// few rows a round takes, every row comes to its expert, in the order of the ranks and of their pairs, and what the
// expert makes of it comes back to its place.
#include "base/rng.h"
#include "harness.h"
#include "nn/expert_stretches.h"
#include "nn/runtime.h"
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 3, PAIRS = 40 };

typedef enum { DRAWN, ONE_EXPERT, FROM_ONE_RANK, NONE, NUM_KINDS } Kind;
typedef enum { TOGETHER, APART, APART_IN_UNITS, NUM_ORDERS } Order;

typedef struct {
    int ep, etp, experts;
    int64_t slot;
    Kind kind;
    Order order;
    const char *device;
} Setup;

enum { UNIT = 4 };

// The pairs of a rank of the group for each expert: the same on the ranks of etp.
static int64_t count_of(const Setup *s, int rank, int expert) {
    RngKey key = rng_key((uint64_t)((int)s->kind * 100 + rank), "counts", 0);
    if (s->kind == NONE || (s->kind == FROM_ONE_RANK && rank != 1 % s->ep)) return 0;
    if (s->kind == ONE_EXPERT) return expert == s->experts - 1 ? PAIRS : 0;
    return rng_word(key, 0, (uint64_t)expert) % (uint32_t)(PAIRS / s->experts + 1);
}

static float element(int rank, int expert, int64_t i, int64_t col) {
    return (float)(((rank * 64 + expert) * 64 + i) * WIDTH + col);
}

static void upload_sorted(const Context *c, const Setup *s, Tensor sorted) {
    float values[PAIRS * WIDTH] = {0};
    int64_t at = 0;
    int rank = context_rank(c, ROLE_EXPERT);
    for (int e = 0; e < s->experts; e++)
        for (int64_t i = 0; i < count_of(s, rank, e); i++, at++)
            for (int64_t k = 0; k < WIDTH; k++) values[at * WIDTH + k] = element(rank, e, i, k);
    device_upload(c->device, c->stream, sorted, values);
}

// How many pairs of each rank and expert have come so far.
typedef struct {
    int64_t of[8][64];
} Seen;

// The rows of a stretch: those of rank 0, then of rank 1, each rank's next ones; or of one rank alone.
static void expect_rows(const Context *c, const Setup *s, const Dispatch *d, DispatchStretch at, int source,
                        Tensor rows, Seen *seen) {
    float *got = malloc(tensor_bytes(rows) + 1);
    CHECK(got, "no memory");
    int64_t bad = 0, n = 0;
    int expert = context_rank(c, ROLE_EXPERT) * d->here + at.expert;
    if (at.count) device_download(c->device, c->stream, got, tensor_rows(rows, at.begin, at.count));
    for (int rank = 0; rank < d->ranks; rank++) {
        int64_t *first = &seen->of[rank][at.expert], left = count_of(s, rank, expert) - *first;
        if (d->rules.apart && rank != source) continue;
        EXPECT(!at.count || !d->rules.apart || *first % d->rules.unit == 0, "a round begins with row %lld",
               (long long)*first);
        for (; n < at.count && left-- && got[n * WIDTH] == element(rank, expert, *first, 0); n++, ++*first)
            for (int64_t k = 0; k < WIDTH; k++) bad += got[n * WIDTH + k] != element(rank, expert, *first, k);
    }
    EXPECT(n == at.count && !bad, "expert %d: %lld of %lld rows are in their order", expert, (long long)n,
           (long long)at.count);
    free(got);
}

// What an expert makes of its rows: their doubles.
static void work(const Context *c, DispatchStretch at, Tensor rows) {
    if (!at.count) return;
    Tensor x = tensor_rows(rows, at.begin, at.count);
    add(c->device, c->stream, (Add){.x = x, .y = x});
}

static void expect_returned(const Context *c, const Setup *s, Tensor sorted) {
    float values[PAIRS * WIDTH];
    int rank = context_rank(c, ROLE_EXPERT);
    int64_t at = 0, bad = 0;
    device_download(c->device, c->stream, values, sorted);
    for (int e = 0; e < s->experts; e++)
        for (int64_t i = 0; i < count_of(s, rank, e); i++, at++)
            for (int64_t k = 0; k < WIDTH; k++) bad += values[at * WIDTH + k] != 2 * element(rank, e, i, k);
    EXPECT(!bad, "%lld elements of rank %d", (long long)bad, rank);
}

static Tensor upload_counts(const Context *c, Runtime *r, const Setup *s) {
    int32_t counts[64];
    for (int e = 0; e < s->experts; e++) counts[e] = (int32_t)count_of(s, context_rank(c, ROLE_EXPERT), e);
    Tensor x = tensor_take(&r->run, "counts", 1, s->experts, I32);
    device_upload(c->device, c->stream, x, counts);
    return x;
}

static void there_and_back(Runtime *r, const Setup *s) {
    Context *c = &r->context;
    DispatchRules rules = {.slot = s->slot,
                           .whole = s->order == APART,
                           .apart = s->order != TOGETHER,
                           .samples = s->order != TOGETHER};
    if (s->order == APART_IN_UNITS) rules.unit = UNIT;
    rules.grads_apart = s->order == APART;
    Dispatch d = dispatch_of(c, s->experts, PAIRS, rules);
    DispatchPlan plan;
    Tensor sorted = tensor_take(&r->run, "sorted", PAIRS, WIDTH, F32),
           back = tensor_take(&r->run, "back", PAIRS, WIDTH, F32);
    Tensor rows = tensor_take(&r->run, "rows", dispatch_rows(&d), WIDTH, F32);
    Seen seen = {0};
    c->first_sample = 100 + context_rank(c, ROLE_EXPERT);
    upload_sorted(c, s, sorted);
    device_zero(c->device, c->stream, back);
    dispatch_plan(c, &d, upload_counts(c, r, s), PAIRS, &plan);
    for (int round = 0; round < plan.rounds; round++) {
        dispatch_send(c, &d, &plan, round, sorted, rows);
        for (int i = 0; i < dispatch_stretches(&d); i++) {
            DispatchStretch at = dispatch_stretch(&d, &plan, round, i);
            int source = rules.apart ? i / d.here : 0;
            EXPECT(at.source == (rules.grads_apart ? source : 0), "stretch %d has source %d", i, at.source);
            EXPECT(!rules.samples || at.first_sample == 100 + source, "samples from %lld on",
                   (long long)at.first_sample);
            expect_rows(c, s, &d, at, source, rows, &seen);
            work(c, at, rows);
        }
        dispatch_return(c, &d, &plan, round, rows, back);
    }
    EXPECT(s->order != APART || plan.rounds <= 1, "%d rounds", plan.rounds);
    for (int e = 0; e < d.here; e++)
        for (int rank = 0; rank < d.ranks; rank++)
            EXPECT(seen.of[rank][e] == count_of(s, rank, context_rank(c, ROLE_EXPERT) * d.here + e),
                   "expert %d: %lld rows of rank %d", e, (long long)seen.of[rank][e], rank);
    expect_returned(c, s, back);
    EXPECT(r->scratch.used == 0, "scratch memory stays taken");
}

static Status on_rank(Comm *world, void *arg) {
    const Setup *s = arg;
    RuntimeMemory memory = {.run = 1 << 20, .scratch = 1 << 20, .workspace = 1 << 20};
    Grid grid = GRID(s->etp, s->ep, 1);
    grid.size[AXIS_EP] = s->ep;
    RuntimeSpec spec = {.topology = topology_of(grid, comm_rank(world)),
                        .roles = ALL_ROLES,
                        .device = s->device,
                        .threads = 1,
                        .mode = {.dtype = F32},
                        .memory = &memory};
    Runtime runtime;
    Status status = runtime_open(&runtime, &spec, world);
    if (status == OK) there_and_back(&runtime, s);
    runtime_close(&runtime);
    return status;
}

static void rows_come_and_go(const char *device, int first, int step) {
    static const int sizes[][3] = {{2, 1, 4}, {4, 1, 8}, {2, 2, 2}, {3, 1, 6}, {1, 1, 5}};
    static const int64_t slots[] = {0, 1, 7, PAIRS};
    for (int i = first; i < 5 * 4 * NUM_ORDERS * NUM_KINDS; i += step) {
        const int *size = sizes[i % 5];
        Setup s = {
            .ep = size[0], .etp = size[1], .experts = size[2], .slot = slots[i / 5 % 4], .device = device};
        s.kind = (Kind)(i / 20 % NUM_KINDS), s.order = (Order)(i / 20 / NUM_KINDS);
        EXPECT_OK(comm_launch(
            (CommOptions){.transport = "threads", .ranks = s.ep * s.etp, .timeout_s = 60, .check = i % 2},
            on_rank, &s));
    }
}

static void on_the_host(void) { rows_come_and_go("reference", 0, 1); }
static void on_streams(void) { rows_come_and_go("check", 0, harness_short() ? 7 : 3); }

// An expert gets no more rows in a round than there are tokens, nor than the round has: memory follows from that.
static void expect_most(const Context *c, DispatchRules rules, int64_t most) {
    Dispatch d = dispatch_of(c, 8, 1000, rules);
    static _Thread_local DispatchPlan plan;
    static _Thread_local ExpertRows rows;
    expert_rows_of_round(&rows, &d, &plan, 0);
    EXPECT(rows.most == most, "%lld rows of an expert in a round, not %lld", (long long)rows.most,
           (long long)most);
}

// As many pairs as there can be for one rank need more rounds than a balanced load, and no more memory.
static Status rounds_on_rank(Comm *world, void *arg) {
    (void)arg;
    Context c = {0};
    Grid grid = GRID(1, 4, 1);
    grid.size[AXIS_EP] = 4;
    EXPECT_OK(groups_open(&c.groups, world, topology_of(grid, comm_rank(world)), ALL_ROLES));
    Dispatch d = dispatch_of(&c, 8, 1000, (DispatchRules){0});
    EXPECT(d.slot == 313 && dispatch_rows(&d) == 1252, "slots of %lld", (long long)d.slot);
    EXPECT(dispatch_of(&c, 8, 100, (DispatchRules){.slot = 400}).slot == 100,
           "a slot of more pairs than there are");
    expect_most(&c, (DispatchRules){0}, 1252);
    expect_most(&c, (DispatchRules){.tokens = 250}, 1000);
    expect_most(&c, (DispatchRules){.apart = true}, 313);
    expect_most(&c, (DispatchRules){.tokens = 250, .apart = true}, 250);
    expect_most(&c, (DispatchRules){.tokens = 250, .apart = true, .slot = 100}, 100);
    groups_close(&c.groups);
    return OK;
}

static void slots_follow_from_sizes(void) {
    EXPECT_OK(comm_launch((CommOptions){.transport = "threads", .ranks = 4, .timeout_s = 60}, rounds_on_rank,
                          NULL));
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"on_the_host", on_the_host},
                                      {"on_streams", on_streams},
                                      {"slots_follow_from_sizes", slots_follow_from_sizes},
                                      {0}},
                       argc, argv);
}
