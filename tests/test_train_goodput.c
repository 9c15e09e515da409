// Sums over made-up ledgers whose parts are known: starts and failures with and without a supervisor, other grids, reboots,
// clocks that go back, damaged and torn lines.
#include "base/text.h"
#include "harness.h"
#include "train/goodput.h"
#include <string.h>

// ---- a ledger that is made up -------------------------------------------------------------------

typedef struct {
    Text text;
    const char *boot;
    double at_s, mono_s; // of the next line; at: within an hour
} Made;

static void at(Made *m, double later_s, const char *members) {
    m->at_s += later_s, m->mono_s += later_s;
    int ms = (int)(m->at_s * 1000 + 0.5);
    text_add(
        &m->text,
        "{\"at\": \"2026-11-24T%02d:%02d:%02d.%03dZ\", \"mono_s\": %.6f, \"boot\": \"%s\", \"pid\": 7, %s}\n",
        ms / 3600000, ms / 60000 % 60, ms / 1000 % 60, ms % 1000, m->mono_s, m->boot ? m->boot : "aaaa",
        members);
}

static Goodput sums(const Made *m) {
    Goodput g;
    EXPECT_OK(goodput_of(&g, text_string(&m->text), m->text.size, "made.jsonl"));
    int64_t all = 0, of_starts = 0;
    for (int i = 0; i < NUM_TIME_PARTS; i++) all += g.us[i];
    for (int s = 0; s < g.num_starts; s++)
        for (int i = 0; i < NUM_TIME_PARTS; i++) of_starts += g.starts[s].us[i];
    EXPECT(all == g.wall_us, "the parts add up to %lld of %lld us", (long long)all, (long long)g.wall_us);
    EXPECT(!g.num_starts || of_starts == all, "the starts add up to %lld of %lld us", (long long)of_starts,
           (long long)all);
    return g;
}

static void expect_ms(const Goodput *g, TimePart part, int64_t ms) {
    EXPECT(g->us[part] == 1000 * ms, "%s: %lld us instead of %lld ms", time_part_name(part),
           (long long)g->us[part], (long long)ms);
}

// Expects each part, in the order of TimePart.
static void expect_parts(const Goodput *g, const int64_t ms[NUM_TIME_PARTS]) {
    for (TimePart part = 0; part < NUM_TIME_PARTS; part++) expect_ms(g, part, ms[part]);
}

static void finish(Made *m, Goodput *g) {
    text_free(&m->text);
    goodput_free(g);
}

// ---- one start ----------------------------------------------------------------------------------

static void one_start_is_divided(void) {
    Made m = {0};
    at(&m, 5, "\"event\": \"opening\", \"seconds\": 0.2, \"ranks\": 8, \"tp\": 2, \"pp\": 2, \"dp\": 2");
    at(&m, 0.3, "\"event\": \"ready\", \"seconds\": 0.5");
    at(&m, 0.1, "\"event\": \"loaded\", \"iteration\": 0, \"from\": \"nothing\"");
    at(&m, 0.5, "\"event\": \"first_step\", \"iteration\": 1, \"seconds\": 0.45, \"waiting_s\": 0.03");
    // 100 steps of 10 ms
    at(&m, 1.4,
       "\"event\": \"steps\", \"from\": 1, \"to\": 101, \"seconds\": 1.0, \"waiting_s\": 0.2, \"checks_s\": "
       "0.05, \"saving_s\": 0.1");
    at(&m, 0.25, "\"event\": \"save\", \"iteration\": 101, \"stall_s\": 0.24, \"to\": \"disk\"");
    at(&m, 0.7, "\"event\": \"evaluation\", \"iteration\": 101, \"seconds\": 0.6, \"saving_s\": 0.08");
    at(&m, 0.05, "\"event\": \"end\", \"iteration\": 101, \"status\": 0");
    Goodput g = sums(&m);
    EXPECT(g.wall_us == 3300000, "%lld us", (long long)g.wall_us);
    // The first step of 450 ms holds a usual one of 10 ms.
    expect_parts(&g, (int64_t[]){1010, 0, 0, 0, 0, 300, 100, 440, 240 + 100 + 80, 600, 230, 50,
                                 20 + 50 + 10 + 20 + 50});
    EXPECT(g.num_starts == 1 && !g.failures && g.starts[0].ended && !g.starts[0].failed,
           "one start that ends well");
    EXPECT(g.starts[0].ranks == 8 && g.starts[0].dp == 2 && g.starts[0].reached == 101, "its grid and end");
    EXPECT(g.saves == 1 && g.save_us == 240000 && g.evaluations == 1 && g.iteration == 101, "its counts");
    finish(&m, &g);
}

static void rewinds_are_loading(void) {
    Made m = {0};
    at(&m, 0, "\"event\": \"opening\"");
    at(&m, 1, "\"event\": \"loaded\", \"iteration\": 0");
    at(&m, 10, "\"event\": \"steps\", \"from\": 0, \"to\": 100, \"seconds\": 10");
    at(&m, 0.5, "\"event\": \"rewind\", \"from\": 100, \"to\": 80, \"seconds\": 0.4");
    Goodput back = sums(&m);
    EXPECT(back.starts[0].reached == 80 && back.iteration == 100, "it is at %lld",
           (long long)back.starts[0].reached);
    goodput_free(&back);
    at(&m, 4, "\"event\": \"steps\", \"from\": 80, \"to\": 120, \"seconds\": 4");
    Goodput g = sums(&m);
    expect_parts(&g, (int64_t[]){10000 + 2000, 2000, 0, 0, 0, 0, 1000 + 400, 0, 0, 0, 0, 0, 100});
    EXPECT(g.rewinds == 1 && g.steps_again == 20 && g.iteration == 120, "%lld rewinds", (long long)g.rewinds);
    finish(&m, &g);
}

// ---- failures -----------------------------------------------------------------------------------

static void killed_without_supervisor(void) {
    Made m = {0};
    at(&m, 0, "\"event\": \"opening\", \"seconds\": 0.1, \"ranks\": 4, \"tp\": 1, \"pp\": 1, \"dp\": 4");
    at(&m, 1, "\"event\": \"ready\"");
    at(&m, 1, "\"event\": \"loaded\", \"iteration\": 0");
    at(&m, 0.1, "\"event\": \"first_step\", \"iteration\": 1, \"seconds\": 0.1");
    at(&m, 10, "\"event\": \"steps\", \"from\": 1, \"to\": 101, \"seconds\": 10");
    // Killed; started again 20 s later, on another grid, from step 50.
    at(&m, 20.4, "\"event\": \"opening\", \"seconds\": 0.4, \"ranks\": 2, \"tp\": 1, \"pp\": 2, \"dp\": 1");
    at(&m, 1, "\"event\": \"ready\"");
    at(&m, 2, "\"event\": \"loaded\", \"iteration\": 50");
    at(&m, 0.3, "\"event\": \"first_step\", \"iteration\": 51, \"seconds\": 0.3");
    at(&m, 20, "\"event\": \"steps\", \"from\": 51, \"to\": 151, \"seconds\": 20");
    Goodput g = sums(&m);
    // Of the second start's 20 s, steps 52 to 101 are half; its first step of 300 ms holds a usual one of 200 ms.
    expect_parts(&g, (int64_t[]){10000 + 100 + 10000, 10000 + 200, 0, 0, 20000, 1000 + 400 + 1000,
                                 1000 + 2000, 100, 0, 0, 0, 0, 0});
    EXPECT(g.num_starts == 2 && g.failures == 1 && g.starts[0].failed && !g.starts[1].ended,
           "%d starts, %lld failures", g.num_starts, (long long)g.failures);
    EXPECT(g.starts[1].pp == 2 && g.starts[1].loaded == 50 && g.starts[1].reached == 151, "the second start");
    EXPECT(g.steps_again == 51 && g.iteration == 151, "%lld steps again", (long long)g.steps_again);
    finish(&m, &g);
}

static void restarts_of_a_supervisor(void) {
    Made m = {0};
    at(&m, 0, "\"event\": \"started\", \"start\": 1, \"ranks\": 4, \"command\": \"train\"");
    at(&m, 0.2, "\"event\": \"opening\", \"seconds\": 0.1, \"ranks\": 4, \"tp\": 2, \"pp\": 2, \"dp\": 1");
    at(&m, 0.1, "\"event\": \"ready\"");
    at(&m, 0.1, "\"event\": \"loaded\", \"iteration\": 0");
    at(&m, 0.1, "\"event\": \"first_step\", \"iteration\": 1, \"seconds\": 0.1");
    at(&m, 1, "\"event\": \"steps\", \"from\": 1, \"to\": 11, \"seconds\": 1");
    at(&m, 0.4,
       "\"event\": \"excluded\", \"host\": \"b\""); // a line of another kind takes no time from the steps
    at(&m, 0.6, "\"event\": \"steps\", \"from\": 11, \"to\": 21, \"seconds\": 1");
    at(&m, 0.05, "\"event\": \"detected\"");
    at(&m, 0.02, "\"event\": \"ended\", \"status\": 137, \"signal\": \"KILL\"");
    at(&m, 0.01, "\"event\": \"decided\", \"action\": \"restart\"");
    at(&m, 0.04, "\"event\": \"started\", \"start\": 2, \"ranks\": 2");
    at(&m, 0.3, "\"event\": \"ended\", \"status\": 71"); // it does not come up
    at(&m, 0.1, "\"event\": \"started\", \"start\": 3, \"ranks\": 2");
    at(&m, 0.2, "\"event\": \"opening\", \"seconds\": 0.1, \"ranks\": 2, \"tp\": 2, \"pp\": 1, \"dp\": 1");
    at(&m, 0.1, "\"event\": \"ready\"");
    at(&m, 0.3, "\"event\": \"loaded\", \"iteration\": 21, \"from\": \"memory\"");
    at(&m, 0.1, "\"event\": \"first_step\", \"iteration\": 22, \"seconds\": 0.1");
    at(&m, 0.5, "\"event\": \"end\", \"iteration\": 22, \"status\": 130, \"signal\": \"TERM\"");
    at(&m, 0.1, "\"event\": \"ended\", \"status\": 130");
    at(&m, 0.1, "\"event\": \"done\"");
    Goodput g = sums(&m);
    expect_parts(&g, (int64_t[]){2100, 0, 50 + 300, 20 + 100, 10 + 40 + 100 + 100, 200 + 100 + 200 + 100,
                                 100 + 300, 100, 0, 0, 0, 0, 500});
    EXPECT(g.num_starts == 3 && g.failures == 2, "%d starts, %lld failures", g.num_starts,
           (long long)g.failures);
    EXPECT(!strcmp(g.starts[0].signal, "KILL") && g.starts[1].status == 71 && !g.starts[2].failed,
           "how they ended");
    EXPECT(g.starts[1].us[TIME_DETECTING] == 50000 && g.starts[1].us[TIME_STOPPING] == 20000 &&
               g.starts[1].us[TIME_DOWN] == 50000,
           "what came before the second start");
    finish(&m, &g);
}

// ---- clocks -------------------------------------------------------------------------------------

static void clocks_that_jump(void) {
    Made m = {0};
    at(&m, 1000, "\"event\": \"opening\"");
    m.at_s -= 500; // the clock is set back within one boot: the monotonic time counts
    at(&m, 2, "\"event\": \"ready\"");
    m.boot = "bbbb", m.mono_s = 3; // another machine: the clocks count
    at(&m, 4, "\"event\": \"loaded\", \"iteration\": 0");
    m.boot = "aaaa", m.at_s -= 100; // a clock that is behind
    at(&m, 1, "\"event\": \"save\", \"stall_s\": 1");
    m.mono_s -= 0.5; // written late by another process
    at(&m, 0, "\"event\": \"save\", \"stall_s\": 1");
    at(&m, 0.5 + 0.25, "\"event\": \"save\", \"stall_s\": 1");
    Goodput g = sums(&m);
    EXPECT(g.wall_us == 2000000 + 4000000 + 250000, "%lld us", (long long)g.wall_us);
    expect_ms(&g, TIME_STARTING, 2000);
    expect_ms(&g, TIME_LOADING, 4000);
    expect_ms(&g, TIME_SAVING, 250);
    finish(&m, &g);
}

// ---- damage -------------------------------------------------------------------------------------

static void damaged_lines_are_left_out_and_named(void) {
    Made m = {0};
    at(&m, 0, "\"event\": \"opening\"");
    text_add(&m.text, "{\"at\": \"2026-11-24T00:00:01.000Z\", \"mono_s\": 1, \"ev\n");
    at(&m, 1, "\"event\": \"ready\"");
    text_add(&m.text, "[1]\n\n{\"event\": \"steps\"}\n");
    at(&m, 1, "\"event\": \"save\", \"stall_s\": 1");
    Goodput whole = sums(&m);
    EXPECT(whole.damaged == 3 && whole.first_damaged == 2 && whole.lines == 3, "%lld damaged, from line %lld",
           (long long)whole.damaged, (long long)whole.first_damaged);
    expect_ms(&whole, TIME_STARTING, 1000);
    expect_ms(&whole, TIME_SAVING, 1000);
    goodput_free(&whole);
    // A last line that is torn anywhere is as if it were not there.
    size_t before = m.text.size;
    at(&m, 1, "\"event\": \"evaluation\", \"seconds\": 1");
    for (size_t size = before; size < m.text.size; size++) {
        Goodput torn;
        EXPECT_OK(goodput_of(&torn, m.text.data, size, "torn.jsonl"));
        EXPECT(torn.wall_us == 2000000 && torn.damaged == 3 && !torn.evaluations, "torn at %zu", size);
        goodput_free(&torn);
    }
    Goodput after = sums(&m);
    expect_ms(&after, TIME_EVALUATING, 1000);
    finish(&m, &after);
}

static void what_is_no_ledger_is_refused(void) {
    Goodput g;
    EXPECT(goodput_of(&g, "", 0, "empty.jsonl") == ERR_DATA && strstr(fail_message(), "empty.jsonl"), "%s",
           fail_message());
    EXPECT(goodput_of(&g, "a\nb\n", 4, "text") == ERR_DATA && strstr(fail_message(), "line 1"), "%s",
           fail_message());
    EXPECT(goodput_read(&g, harness_folder()) == ERR_NO_INPUT && strstr(fail_message(), "ledger.jsonl"), "%s",
           fail_message());
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"one_start_is_divided", one_start_is_divided},
                       {"rewinds_are_loading", rewinds_are_loading},
                       {"killed_without_supervisor", killed_without_supervisor},
                       {"restarts_of_a_supervisor", restarts_of_a_supervisor},
                       {"clocks_that_jump", clocks_that_jump},
                       {"damaged_lines_are_left_out_and_named", damaged_lines_are_left_out_and_named},
                       {"what_is_no_ledger_is_refused", what_is_no_ledger_is_refused},
                       {0}},
        argc, argv);
}
