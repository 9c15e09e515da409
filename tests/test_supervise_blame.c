// Of ranks that wait for each other and one that makes no progress, the one is named, after its limit and not before.
#include "base/rank.h"
#include "harness.h"
#include "supervise/supervise.h"
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const HangRule rule = {.factor = 5, .load = 1, .setup_s = 1800};

static RankView at_work(int rank, double quiet_s) {
    RankView v = {.joined = true, .quiet_s = quiet_s, .same_s = quiet_s};
    v.beat =
        (Beat){.rank = rank, .size = 8, .pid = 1000 + rank, .phase = BEAT_TRAINING, .usual_ns = 10000000};
    snprintf(v.beat.doing, sizeof v.beat.doing, "F0.0");
    return v;
}

// It looks regularly, but has waited for long.
static RankView waits_for(int rank, int other, double same_s) {
    RankView v = at_work(rank, 0.05);
    v.same_s = same_s;
    snprintf(v.beat.wait, sizeof v.beat.wait, "recv of pp");
    v.beat.waits[0] = other;
    v.beat.num_waits = 1;
    return v;
}

static void limits(void) {
    RankView v = at_work(0, 0);
    EXPECT(view_limit(&v, &rule) == 5, "a short instruction: %g s", view_limit(&v, &rule));
    v.beat.usual_ns = 3000000000;
    EXPECT(view_limit(&v, &rule) == 15, "a long one: %g s", view_limit(&v, &rule));
    HangRule busy = rule;
    busy.load = 3;
    EXPECT(view_limit(&v, &busy) == 45, "on a busy machine: %g s", view_limit(&v, &busy));
    v.beat.usual_ns = 0;
    EXPECT(view_limit(&v, &rule) == 1800, "not measured yet: %g s", view_limit(&v, &rule));
    v = at_work(0, 0);
    v.beat.phase = BEAT_SAVING;
    EXPECT(view_limit(&v, &rule) == 60, "a save: %g s", view_limit(&v, &rule));
    v.beat.phase = BEAT_CONNECTING;
    EXPECT(isinf(view_limit(&v, &rule)), "others are missing: %g s", view_limit(&v, &rule));
    v.stopped = true;
    EXPECT(view_limit(&v, &rule) == 5, "stopped before that: %g s", view_limit(&v, &rule));
    v = at_work(0, 0);
    v.on_disk = true;
    EXPECT(view_limit(&v, &rule) == 60, "a page of a file: %g s", view_limit(&v, &rule));
    v.stopped = true;
    EXPECT(view_limit(&v, &busy) == 5, "stopped: %g s", view_limit(&v, &busy));
    v = waits_for(0, 1, 0);
    v.beat.phase = BEAT_LOADING;
    v.beat.usual_ns = 0;
    EXPECT(view_limit(&v, &rule) == 5, "whoever waits looks often: %g s", view_limit(&v, &rule));
    EXPECT(machine_load(1) >= 1 && machine_load(1) <= 8, "%g", machine_load(1));
}

static void expect_blame(const RankView *views, int count, int rank, int waiters, const char *what) {
    Blame b = blame_find(views, count, &rule);
    EXPECT(b.rank == rank && (rank < 0 || b.waiters == waiters), "%s: rank %d with %d waiters", what, b.rank,
           b.waiters);
}

static void one_culprit(void) {
    RankView v[4] = {at_work(0, 4.9), waits_for(1, 0, 100), waits_for(2, 1, 100), waits_for(3, 2, 100)};
    expect_blame(v, 4, -1, 0, "below the limit, however long others wait");
    v[0].quiet_s = 5.1;
    expect_blame(v, 4, 0, 3, "beyond it");
    v[0] = waits_for(0, 3, 5);
    expect_blame(v, 4, -1, 0, "a circle is no hang at once");
    v[2].quiet_s = 6; // stopped within its wait: the others look, it does not
    expect_blame(v, 4, 2, 3, "stopped within a wait");
    v[2].quiet_s = 0;
    for (int i = 0; i < 4; i++) v[i].same_s = 100;
    Blame b = blame_find(v, 4, &rule);
    EXPECT(b.rank == 0 && b.next == 3, "a circle: rank %d waits for %d", b.rank, b.next);
    // A rank that has been there for long but makes progress breaks it.
    v[1] = at_work(1, 0.1);
    expect_blame(v, 4, -1, 0, "one of them works");
    // Of two that are late, the one that others wait for.
    RankView two[4] = {at_work(0, 9), at_work(1, 6), waits_for(2, 1, 5), waits_for(3, 2, 5)};
    expect_blame(two, 4, 1, 2, "two are late");
    two[0].gone = true;
    expect_blame(two, 4, 0, 0, "one is gone");
    two[0].beat.phase = BEAT_DONE;
    two[0].gone = false;
    two[1] = at_work(1, 0);
    expect_blame(two, 4, -1, 0, "one has left in order");
}

// A collective waits for several ranks; some of the list may be on other machines.
static void several(void) {
    RankView v[4] = {at_work(0, 7), waits_for(1, 0, 5), waits_for(2, 0, 5), waits_for(3, 7, 5)};
    v[1].beat.waits[0] = 3, v[1].beat.waits[1] = 0, v[1].beat.num_waits = 2;
    expect_blame(v, 4, 0, 2, "two wait for it");
    v[0] = at_work(0, 0.1);
    v[3].same_s = 1000;
    expect_blame(v, 4, -1, 0, "a rank that is not on this page");
    expect_blame(v, 0, -1, 0, "nobody");
    RankView absent[2] = {{.quiet_s = 100}, {.quiet_s = 100}};
    expect_blame(absent, 2, -1, 0, "nobody has joined");
}

// ---- looks at a real page -------------------------------------------------------------------------

static pid_t start_rank(BeatPage *page) {
    setenv(BEAT_VARIABLE, page->path, 1);
    pid_t child = fork();
    if (child) return child;
    BeatWriter *w = beat_join(0, 1);
    for (int step = 1;; step++) {
        beat_phase(w, BEAT_TRAINING, step);
        beat_doing(w, "F0.0");
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

static void look_for(RankView *v, const BeatPage *page, double seconds, double tick_s) {
    for (double end = clock_s() + seconds; clock_s() < end;) {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        view_look(v, page, 0, tick_s);
    }
}

static void a_process_is_seen(void) {
    BeatPage page;
    RankView v = {0};
    EXPECT_OK(beat_page_open(&page, 1));
    beat_page_start(&page, 1);
    pid_t child = start_rank(&page);
    look_for(&v, &page, 0.3, 0.01);
    EXPECT(v.joined && !v.gone && v.quiet_s < 0.2 && v.beat.pid == child && v.beat.iteration > 3, "it works");
    EXPECT(is_below(child, getpid()) && !is_below(getpid(), child) && !is_below(getpid(), getpid()),
           "whose child it is");
    kill(child, SIGSTOP);
    look_for(&v, &page, 0.3, 0.01);
    view_process(&v);
    EXPECT(v.stopped && !v.gone && v.quiet_s > 0.1, "it is stopped: %g s", v.quiet_s);
    kill(child, SIGCONT);
    look_for(&v, &page, 0.1, 0.01);
    view_process(&v);
    EXPECT(!v.stopped && v.quiet_s < 0.05, "it goes on: %g s", v.quiet_s);
    kill(child, SIGKILL);
    waitid(P_PID, (id_t)child, &(siginfo_t){0}, WEXITED | WNOWAIT);
    RankView ended = v;
    view_process(&ended);
    EXPECT(ended.gone, "it has ended, and nobody has waited for it");
    waitpid(child, NULL, 0);
    look_for(&v, &page, 0.05, 0.01);
    EXPECT(v.gone, "it is gone");
    beat_page_close(&page);
    unsetenv(BEAT_VARIABLE);
}

int main(int argc, char **argv) {
    static const Test tests[] = {{"limits", limits},
                                 {"one culprit", one_culprit},
                                 {"several", several},
                                 {"a process is seen", a_process_is_seen},
                                 {0}};
    return harness_run(tests, argc, argv);
}
