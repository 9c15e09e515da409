// What the supervisor decides after each end, how it finds hosts that fail, and which grid it takes for what is left.
#include "harness.h"
#include "supervise/hosts.h"
#include <math.h>
#include <signal.h>
#include <string.h>

static StartEnding killed(int64_t iteration) {
    return (StartEnding){
        .kind = END_SIGNAL, .signal = SIGKILL, .iteration = iteration, .rank = -1, .pid = -1};
}

static StartEnding failed(int status, int64_t iteration) {
    return (StartEnding){.kind = END_STATUS, .status = status, .iteration = iteration, .rank = -1, .pid = -1};
}

static StartEnding crashed(int number, int64_t iteration) {
    return (StartEnding){.kind = END_SIGNAL, .signal = number, .iteration = iteration, .rank = 1, .pid = 9};
}

static StartEnding hung(bool frozen, int64_t iteration) {
    StartEnding e = {
        .kind = END_HANG, .status = ERR_HANG, .iteration = iteration, .rank = 2, .frozen = frozen};
    snprintf(e.doing, sizeof e.doing, "F3.1");
    return e;
}

// One end alone: whether it starts again, and with which status it stops otherwise; and the same end twice.
static void table(void) {
    StartEnding full = failed(ERR_IO, 5);
    full.disk_full = true;
    const struct {
        StartEnding end;
        bool once, twice;
        int status;
        const char *word;
    } rows[] = {
        {{.kind = END_DONE, .iteration = 9}, false, false, 0, "trained"},
        {{.kind = END_EARLY, .iteration = 9}, false, false, 0, "early"},
        {failed(ERR_USAGE, 0), false, false, 64, "command line"},
        {failed(ERR_CONFIG, 0), false, false, 78, "configuration"},
        {failed(ERR_DATA, 3), false, false, 65, "damaged"},
        {failed(ERR_NO_INPUT, 0), false, false, 66, "missing"},
        {failed(ERR_PERMISSION, 3), false, false, 77, "permission"},
        {failed(ERR_CREATE, 3), false, false, 73, "room"},
        {failed(ERR_NUMERIC, 3), false, false, 76, "finite"},
        {failed(127, 0), false, false, 127, "exist"},
        {full, false, false, 74, "disk is full"},
        {failed(ERR_IO, 5), true, false, 74, "second time"},
        {failed(ERR_BUG, 5), true, false, 70, "second time"},
        {failed(ERR_REPLICAS, 5), true, false, 80, "second time"},
        {failed(1, 5), true, false, 1, "second time"},
        {crashed(SIGSEGV, 5), true, false, 128 + SIGSEGV, "second time"},
        {crashed(SIGBUS, 0), true, false, 128 + SIGBUS, "second time"},
        {hung(false, 5), true, false, 79, "second time"},
        {failed(ERR_UNAVAILABLE, 0), true, true, 0, ""},
        {failed(ERR_OS, 0), true, true, 0, ""},
        {failed(ERR_HANG, 5), true, true, 0, ""},
        {killed(5), true, true, 0, ""},
        {hung(true, 5), true, true, 0, ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        StartEnding ends[2] = {rows[i].end, rows[i].end};
        NextStep one = decide(ends, 1, INT_UNSET), two = decide(ends, 2, INT_UNSET);
        EXPECT(one.restart == rows[i].once && two.restart == rows[i].twice, "row %zu: %d %d", i, one.restart,
               two.restart);
        EXPECT(two.restart || two.status == rows[i].status, "row %zu: status %d", i, two.status);
        EXPECT(two.restart || strstr(two.why, rows[i].word), "row %zu: %s", i, two.why);
        EXPECT(!one.restart || one.wait_s == 0, "row %zu: the first restart waits %g s", i, one.wait_s);
    }
}

// A failure at another iteration, of another rank or at another instruction is another failure.
static void the_same_failure(void) {
    StartEnding ends[3] = {crashed(SIGSEGV, 5), killed(7), crashed(SIGSEGV, 6)};
    EXPECT(decide(ends, 3, INT_UNSET).restart, "another iteration");
    ends[2] = crashed(SIGSEGV, 5);
    EXPECT(!decide(ends, 3, INT_UNSET).restart, "the same, with another end in between");
    ends[2].rank = 0;
    EXPECT(decide(ends, 3, INT_UNSET).restart, "another rank");
    ends[2] = crashed(SIGSEGV, 5);
    snprintf(ends[2].doing, sizeof ends[2].doing, "B0.0");
    EXPECT(decide(ends, 3, INT_UNSET).restart, "another instruction");
}

// Kills go on for ever while they come further; without progress they wait longer and longer, and end.
static void progress(void) {
    enum { MANY = 100 };
    StartEnding ends[MANY];
    for (int i = 0; i < MANY; i++) {
        ends[i] = killed(i + 1);
        NextStep next = decide(ends, i + 1, INT_UNSET);
        EXPECT(next.restart && next.wait_s == 0, "end %d", i);
    }
    double before = 0;
    int restarts = 0;
    for (int i = 0; i < MANY; i++) {
        ends[i] = killed(4);
        NextStep next = decide(ends, i + 1, INT_UNSET);
        if (!next.restart) break;
        restarts++;
        EXPECT(next.wait_s >= before && next.wait_s <= 60, "end %d waits %g s", i, next.wait_s);
        before = next.wait_s;
    }
    EXPECT(restarts == 10 && before > 1, "%d restarts, the last after %g s", restarts, before);
    for (int i = 0; i < MANY; i++) ends[i] = killed(i + 1);
    EXPECT(decide(ends, 3, 3).restart && !decide(ends, 4, 3).restart && !decide(ends, 1, 0).restart,
           "--max-restarts");
    EXPECT(decide(ends, 4, 3).status == 128 + SIGKILL, "the last end's status");
}

// Any rank may leave first when all of them fail.
static void the_same_error(void) {
    StartEnding ends[2] = {failed(ERR_BUG, 5), failed(ERR_BUG, 5)};
    ends[1].rank = 3;
    snprintf(ends[1].doing, sizeof ends[1].doing, "B0.0");
    EXPECT(!decide(ends, 2, INT_UNSET).restart, "the same error, told by another rank");
    ends[1].iteration = 6;
    EXPECT(decide(ends, 2, INT_UNSET).restart, "at another iteration");
}

// mpirun ends with 205 where a machine is lost, ssh with 255; before a first step the command may be wrong.
static void launchers_own(void) {
    StartEnding ends[3] = {failed(255, 0), failed(255, 0), failed(255, 0)};
    for (int i = 0; i < 3; i++) ends[i].launcher = true;
    EXPECT(!decide(ends, 2, INT_UNSET).restart, "it has never trained");
    ends[0] = killed(7);
    EXPECT(decide(ends, 3, INT_UNSET).restart, "it has trained");
    ends[2].launcher = false;
    EXPECT(!decide(ends, 3, INT_UNSET).restart, "a rank has said so");
}

// What has failed after the last iteration is told, and the run is over all the same.
static void done_and_failed(void) {
    StartEnding end = {.kind = END_DONE, .status = ERR_IO, .iteration = 9};
    NextStep next = decide(&end, 1, INT_UNSET);
    EXPECT(!next.restart && next.status == ERR_IO && strstr(next.why, "all iterations are trained, but"),
           "%s", next.why);
}

// An error counts against the host of the rank that caused it, wrong arithmetic at once.
static void blamed_strikes(void) {
    StartEnding ends[2] = {failed(ERR_OS, 1), failed(ERR_REPLICAS, 2)};
    for (int i = 0; i < 2; i++) {
        ends[i].rank = i;
        snprintf(ends[i].host, sizeof ends[i].host, "node%d", i);
        EXPECT(!host_strikes(ends, 2, ends[i].host), "rank %d was first, and no more", i);
        ends[i].blamed = true;
    }
    EXPECT(host_strikes(ends, 2, "node0") == 1 && host_strikes(ends, 2, "node1") == STRIKES_TO_EXCLUDE,
           "%d %d", host_strikes(ends, 2, "node0"), host_strikes(ends, 2, "node1"));
}

// A rank that the launcher may have killed, because of another host, counts against none.
static void unproved_strikes(void) {
    StartEnding end = crashed(SIGKILL, 1);
    snprintf(end.host, sizeof end.host, "node0");
    EXPECT(host_strikes(&end, 1, "node0") == 1, "it was killed alone");
    end.unproved = true;
    EXPECT(!host_strikes(&end, 1, "node0"), "all ranks of the host were killed");
}

// Ranks fill the hosts in order; a name that the list has stays.
static void hosts_of_ranks(void) {
    static const char *const hosts[] = {"a", "a", "bb", "c", "c", "c", ""};
    char host[BEAT_HOST];
    for (int rank = 0; rank < 7; rank++) {
        *host = 0;
        host_of_rank("a:2,bb,c:3", rank, host);
        EXPECT(!strcmp(host, hosts[rank]), "rank %d is on '%s'", rank, host);
    }
    snprintf(host, sizeof host, "c");
    host_of_rank("a:2,bb,c:3", 0, host);
    EXPECT(!strcmp(host, "c"), "the rank says that it is on c, not %s", host);
    snprintf(host, sizeof host, "b");
    host_of_rank("a:2,bb,c:3", 0, host);
    EXPECT(!strcmp(host, "a"), "b is not in the list: %s", host);
    host_of_rank("", 0, host);
    EXPECT(!strcmp(host, "a"), "there is no list: %s", host);
}

static void strikes(void) {
    StartEnding ends[4] = {crashed(SIGSEGV, 1), hung(true, 2), failed(ERR_BUG, 3), killed(4)};
    for (int i = 0; i < 4; i++) snprintf(ends[i].host, sizeof ends[i].host, "node%d", i == 1);
    EXPECT(host_strikes(ends, 4, "node0") == 1, "%d", host_strikes(ends, 4, "node0"));
    snprintf(ends[1].host, sizeof ends[1].host, "node0");
    EXPECT(host_strikes(ends, 4, "node0") == STRIKES_TO_EXCLUDE && !host_strikes(ends, 4, "node1"), "two");
}

// ---- grids ----------------------------------------------------------------------------------------

// 8 layers and a batch of 16 microbatches.
static bool possible(void *self, GridChoice g) {
    (void)self;
    return g.t <= 4 && (g.t & (g.t - 1)) == 0 && 8 % (g.p * g.v) == 0 && 16 % g.d == 0 &&
           (g.v == 1 || g.p > 1);
}

static double step_s(void *self, GridChoice g) {
    (void)self;
    return 1.0 / grid_ranks(g) + (g.p > 1 ? 1 : 0); // pipelines are slow here
}

static void expect_grid(const GridRequest *r, int most, GridChoice wanted) {
    GridChoice got;
    bool any = grid_choose(r, most, &got);
    EXPECT(any == (wanted.t > 0), "for %d ranks: %d", most, any);
    if (any && wanted.t)
        EXPECT(!memcmp(&got, &wanted, sizeof got), "for %d ranks: t %d p %d v %d d %d", most, got.t, got.p,
               got.v, got.d);
}

static void grids(void) {
    GridRequest r = {.asked = {2, 4, 2, 2, 1}, .elastic = ELASTIC_EXACT, .possible = possible};
    expect_grid(&r, 16, (GridChoice){2, 4, 2, 2, 1});
    expect_grid(&r, 99, (GridChoice){2, 4, 2, 2, 1});
    expect_grid(&r, 15, (GridChoice){2, 2, 2, 2, 1});
    expect_grid(&r, 7, (GridChoice){2, 1, 1, 2, 1});
    expect_grid(&r, 3, (GridChoice){0});
    r.virtual_dp = 8; // d may be 1, 2, 4, 8
    expect_grid(&r, 8, (GridChoice){2, 1, 1, 4, 1});
    expect_grid(&r, 3, (GridChoice){2, 1, 1, 1, 1});
    r.virtual_dp = 3; // of which the asked d is no divisor
    expect_grid(&r, 3, (GridChoice){0});
    r.virtual_dp = 0;
    r.elastic = ELASTIC_ROUNDING;
    expect_grid(&r, 15,
                (GridChoice){1, 1, 1, 8, 1}); // 8 ranks are the most that any grid has but for t = 2 and 4
    r.elastic = ELASTIC_OFF;
    expect_grid(&r, 15, (GridChoice){0});
    r = (GridRequest){
        .asked = {1, 2, 1, 4, 1}, .elastic = ELASTIC_ROUNDING, .possible = possible, .step_s = step_s};
    expect_grid(&r, 4, (GridChoice){1, 1, 1, 4, 1});
    r = (GridRequest){.asked = {1, 2, 1, 2, 2}, .elastic = ELASTIC_EXACT, .possible = possible};
    expect_grid(&r, 7, (GridChoice){1, 1, 1, 2, 2}); // as many ranks share sequences
    expect_grid(&r, 3, (GridChoice){0});
}

int main(int argc, char **argv) {
    static const Test tests[] = {{"table", table},
                                 {"the same failure", the_same_failure},
                                 {"progress", progress},
                                 {"the same error", the_same_error},
                                 {"launchers' own", launchers_own},
                                 {"done and failed", done_and_failed},
                                 {"strikes", strikes},
                                 {"strikes of blamed ranks", blamed_strikes},
                                 {"strikes without proof", unproved_strikes},
                                 {"hosts of ranks", hosts_of_ranks},
                                 {"grids", grids},
                                 {0}};
    return harness_run(tests, argc, argv);
}
