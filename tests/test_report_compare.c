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

// Messages over c are named for what they are, and so are those to experts.
static void messages_have_the_names_of_their_ranks(void) {
    Prediction winner = {.step_s = 10, .parts = {.compute = 8, .tensor = 1, .experts = 1}};
    Prediction other = winner;
    other.step_s = 11, other.parts.tensor = 1.4, other.parts.experts = 1.6;
    other.config.grid.size[AXIS_CP] = 2;
    expect_text(&winner, &other,
                "10.0 % slower: tokens to their experts +6.0 %, context-parallel messages +4.0 %");
    winner.config.grid.size[AXIS_TP] = 2;
    expect_text(&winner, &other,
                "10.0 % slower: tokens to their experts +6.0 %, messages over t and c +4.0 %");
    other.config.grid.size[AXIS_CP] = 1;
    expect_text(&winner, &other,
                "10.0 % slower: tokens to their experts +6.0 %, tensor-parallel messages +4.0 %");
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"the_largest_differences_come_first", the_largest_differences_come_first},
                       {"messages_have_the_names_of_their_ranks", messages_have_the_names_of_their_ranks},
                       {0}},
        argc, argv);
}
