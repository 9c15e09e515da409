// The options on the page of several runs: those of the runs that have them are compared, and the others are named.
#include "harness.h"
#include "report/run_page.h"
#include <stdarg.h>
#include <string.h>

enum { RUNS = 3 };

// A run whose newest checkpoint has these options; "": there is none.
static RunRecord run_with(const char *name, const char *config) {
    RunRecord r = {.name = name, .has_state = true, .state = "running", .ranks = 2, .saved = -1};
    r.end = r.iteration = r.blamed = r.slow = r.memory_bytes = -1;
    if (*config) r.saved = 10;
    if (*config) text_add(&r.config, "%s", config);
    return r;
}

static void free_runs(RunRecord *runs) {
    for (int i = 0; i < RUNS; i++) run_record_free(&runs[i]);
}

// Whether the page has each of the texts, which end with NULL; `is`: that it has them, or that it has none of them.
static void expect_texts(const RunRecord *runs, int count, int is, ...) {
    Text html = {0};
    va_list texts;
    run_page(runs, count, NULL, &html);
    va_start(texts, is);
    for (const char *text; (text = va_arg(texts, const char *));) {
        bool has = strstr(text_string(&html), text) != NULL;
        EXPECT(has == (is != 0), "%s '%s' on the page", is ? "no" : "there is", text);
    }
    va_end(texts);
    text_free(&html);
}

static void runs_with_options_are_compared(void) {
    RunRecord runs[RUNS] = {run_with("one", "hidden_size: 32\nlr: 0.1\n"), run_with("killed", ""),
                            run_with("two", "hidden_size: 64\nlr: 0.1\n")};
    expect_texts(runs, RUNS, true, "<p>Those that differ between the runs:</p>",
                 "<th>option</th><th>one</th><th>two</th></tr>",
                 "<tr><th>hidden_size</th><td>32</td><td>64</td></tr>",
                 "<p>The options of killed are not known: nothing was saved yet.</p>", "All options of one",
                 "All options of two", NULL);
    expect_texts(runs, RUNS, false, "<th>lr</th>", "All options of killed", "options of one are not", NULL);
    free_runs(runs);
}

static void with_one_of_them_nothing_is_compared(void) {
    RunRecord runs[RUNS] = {run_with("killed", ""), run_with("one", "lr: 0.1\n"), run_with("m.jsonl", "")};
    runs[2].has_state = false;
    expect_texts(runs, RUNS, false, "differ between the runs", "<th>option</th>", NULL);
    expect_texts(runs, RUNS, true, "The options of killed are not known: nothing was saved yet.",
                 "The options of m.jsonl are not known: its metrics or ledger does not have them",
                 "All options of one", NULL);
    runs[0].saved = 10;
    expect_texts(runs, RUNS, true,
                 "The options of killed are not known: there is no checkpoint beside its run.json", NULL);
    free_runs(runs);
}

static void options_that_are_the_same_or_damaged_are_said_to_be(void) {
    RunRecord runs[RUNS] = {run_with("one", "lr: 0.1\n"), run_with("two", "lr: 0.1\n"),
                            run_with("damaged", "lr: [0.1\n")};
    expect_texts(runs, RUNS, false, "Those that differ", "<th>option</th>", NULL);
    expect_texts(
        runs, RUNS, true, "<p>No option differs between the runs.</p>",
        "The options of damaged are not known: the config.yaml of its newest checkpoint cannot be read",
        NULL);
    free_runs(runs);
}

static void a_run_alone_is_not_compared(void) {
    RunRecord runs[RUNS] = {run_with("one", "lr: 0.1\n"), run_with("killed", ""), run_with("two", "")};
    expect_texts(runs, 1, false, "differs between", "differ between", "not known", NULL);
    expect_texts(runs, 1, true, "All options of one", NULL);
    expect_texts(runs + 1, 1, true, "The options of killed are not known: nothing was saved yet.", NULL);
    free_runs(runs);
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"runs_with_options_are_compared", runs_with_options_are_compared},
                       {"with_one_of_them_nothing_is_compared", with_one_of_them_nothing_is_compared},
                       {"options_that_are_the_same_or_damaged_are_said_to_be",
                        options_that_are_the_same_or_damaged_are_said_to_be},
                       {"a_run_alone_is_not_compared", a_run_alone_is_not_compared},
                       {0}},
        argc, argv);
}
