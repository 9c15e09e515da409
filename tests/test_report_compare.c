// Why one prediction beats another, in words.
#include "harness.h"
#include "report/plan_report.h"
#include <string.h>

static void expect_text(const Prediction *winner, const Prediction *other, const char *expected) {
    Text text = {0};
    plan_compare(winner, other, &text);
    EXPECT(!strcmp(text_string(&text), expected), "\"%s\", not \"%s\"", text_string(&text), expected);
    text_free(&text);
}

static void the_largest_differences_come_first(void) {
    Prediction winner = {.step_s = 10, .parts = {.compute = 8, .recompute = 1, .tensor = 1, .bubble = 1}};
    Prediction other = winner;
    other.step_s = 12;
    other.parts.bubble = 2.5;
    other.parts.compute = 9;
    other.parts.tensor = 0.5;
    other.parts.data = 0.02; // too little to be named
    expect_text(
        &winner, &other,
        "20.0 % slower: waiting for other stages +15.0 %, computing +10.0 %, tensor-parallel messages -5.0 %");
    expect_text(
        &other, &winner,
        "16.7 % faster: waiting for other stages -12.5 %, computing -8.3 %, tensor-parallel messages +4.2 %");
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"the_largest_differences_come_first", the_largest_differences_come_first}, {0}}, argc,
        argv);
}
