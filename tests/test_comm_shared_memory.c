// Memory that the ranks of a group share is one copy, zeroed, for each group its own, and is given back by all.
#include "comm/comm.h"
#include "harness.h"
#include <errno.h>
#include <string.h>

enum { RANKS = 4, COUNT = 1 << 16 };

typedef struct {
    Arena arena;
    int *words;
} Region;

static Status open_region(Region *r, Comm *group) {
    TRY(arena_open(&r->arena, "shared", comm_shared_memory(group), COUNT * sizeof *r->words));
    r->words = arena_take(&r->arena, "words", COUNT * sizeof *r->words);
    return OK;
}

// Rank i writes word i of every RANKS; after the barrier each rank sees all.
static Status write_and_read(Comm *world, void *arg) {
    (void)arg;
    Region all = {0}, half = {0};
    Comm *group;
    int rank = comm_rank(world), pair[2] = {rank % 2, rank % 2 + 2};
    EXPECT_OK(comm_split(world, "half", pair, 2, &group));
    EXPECT_OK(open_region(&all, world));
    EXPECT_OK(open_region(&half, group));
    for (int i = rank; i < COUNT; i += RANKS) EXPECT(all.words[i] == 0, "word %d is %d", i, all.words[i]);
    comm_barrier(world);
    for (int i = rank; i < COUNT; i += RANKS) all.words[i] = 1000 + i;
    half.words[comm_rank(group)] = 1 + rank;
    comm_barrier(world);
    for (int i = 0; i < COUNT; i++)
        EXPECT(all.words[i] == 1000 + i, "rank %d: word %d is %d", rank, i, all.words[i]);
    for (int i = 0; i < 2; i++)
        EXPECT(half.words[i] == 1 + pair[i], "rank %d: of its half %d is %d", rank, i, half.words[i]);
    comm_barrier(world);
    // The others still use it when the first one leaves.
    if (rank == 0) arena_close(&all.arena);
    comm_barrier(world);
    if (rank != 0) EXPECT(all.words[COUNT - 1] == 999 + COUNT, "it left with the first rank");
    if (rank != 0) arena_close(&all.arena);
    arena_close(&half.arena);
    comm_close(group);
    return OK;
}

static void ranks_see_one_copy(void) {
    CommOptions options = {.transport = "threads", .ranks = RANKS, .timeout_s = 60};
    EXPECT_OK(comm_launch(options, write_and_read, NULL));
}

// All ranks learn that there is none, and why.
static Status want_too_much(Comm *world, void *arg) {
    (void)arg;
    Arena arena = {0};
    Status status = arena_open(&arena, "shared", comm_shared_memory(world), (size_t)1 << 60);
    EXPECT(status == ERR_OS && strstr(fail_message(), strerror(ENOMEM)), "rank %d: %d, %s", comm_rank(world),
           (int)status, fail_message());
    arena_close(&arena);
    return OK;
}

static void a_refusal_says_why_on_every_rank(void) {
    CommOptions options = {.transport = "threads", .ranks = RANKS, .timeout_s = 60};
    EXPECT_OK(comm_launch(options, want_too_much, NULL));
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"ranks_see_one_copy", ranks_see_one_copy},
                                      {"a_refusal_says_why_on_every_rank", a_refusal_says_why_on_every_rank},
                                      {0}},
                       argc, argv);
}
