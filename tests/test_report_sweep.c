// The front of a sweep: who is on it, whom its members compete with, and how the table says it.
#include "harness.h"
#include "plan_fixtures.h"
#include "report/plan_sweep.h"
#include <stdlib.h>
#include <string.h>

enum { NUM_CELLS = 6 };

typedef struct {
    Machine machine;
    Stack stack;
    CostModel costs;
    ModelShape model, longer;
    SweepCell cells[NUM_CELLS];
    PlanSweep sweep;
} Case;

static void set_cell(Case *c, int i, int devices, double step_s, double price) {
    SweepCell *cell = &c->cells[i];
    *cell = (SweepCell){.machine = "m", .space = {.devices = devices, .batch = 64}};
    cell->best.step_s = step_s, cell->best.config.grid = (Grid)GRID(1, 1, 1);
    cell->best.memory = (MemoryNeed){.total = 1e9, .capacity = 2e9};
    cell->report = (PlanReport){.model = &c->model,
                                .costs = &c->costs,
                                .space = &cell->space,
                                .chosen = &cell->best,
                                .tokens = 1e9,
                                .price = price,
                                .goodput = 1,
                                .pue = 1};
}

// Device hours 8, 10, 12 at falling times; then one that is slower and dearer than the second, and one like the third.
static void case_open(Case *c) {
    *c = (Case){.machine = plain_machine(), .stack = plain_stack(), .model = gpt_of(24, 1024, 16)};
    c->costs = costs_of(&c->machine, &c->stack);
    c->longer = c->model, c->longer.sequence *= 2;
    c->sweep = (PlanSweep){c->cells, NUM_CELLS};
    set_cell(c, 0, 1, 8, 1), set_cell(c, 1, 2, 5, 1), set_cell(c, 2, 4, 3, 1);
    set_cell(c, 3, 2, 5.5, 1), set_cell(c, 4, 4, 3, 1), set_cell(c, 5, 8, 2.9, 1);
}

static void expect_front(Case *c, const char *expected, const char *what) {
    char front[NUM_CELLS + 1] = {0};
    plan_sweep_front(&c->sweep);
    for (int i = 0; i < NUM_CELLS; i++) front[i] = c->cells[i].on_front ? '*' : '-';
    EXPECT(!strcmp(front, expected), "%s: %s, not %s", what, front, expected);
}

static void front_is_of_those_that_none_beats(void) {
    Case c;
    case_open(&c);
    expect_front(&c, "***-**", "as it is");
    c.cells[3].report.price = 0.5;
    expect_front(&c, "-*****", "a cheaper machine");
}

static void others_do_not_compete(void) {
    Case c;
    case_open(&c);
    c.cells[3].space.batch = 128;
    expect_front(&c, "******", "another batch");
    case_open(&c);
    c.cells[3].report.model = &c.longer;
    expect_front(&c, "******", "another sequence");
    case_open(&c);
    c.cells[1].report.chosen = NULL;
    expect_front(&c, "*-****", "what has no answer");
    c.cells[0].report.price = 0;
    expect_front(&c, "--****", "what has no price");
    c.cells[5].best.memory.total = 3e9;
    expect_front(&c, "--***-", "what does not fit");
    for (int i = 0; i < NUM_CELLS; i++) c.cells[i].report.tokens = 0;
    expect_front(&c, "------", "without tokens");
}

static void table_has_the_front(void) {
    Case c;
    Text text = {0};
    case_open(&c);
    c.cells[2].report.chosen = NULL;
    snprintf(c.cells[2].why, sizeof c.cells[2].why, "nothing fits");
    plan_sweep_front(&c.sweep);
    plan_sweep_print(&c.sweep, &text);
    EXPECT(strstr(text_string(&text), "\n* m                      1     64    2048   8.00 s "), "%s",
           text_string(&text));
    EXPECT(strstr(text_string(&text), "\n  m                      2     64    2048   5.50 s "), "%s",
           text_string(&text));
    EXPECT(strstr(text_string(&text), "\n  m                      4     64    2048  nothing fits\n"), "%s",
           text_string(&text));
    text_free(&text);
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"front_is_of_those_that_none_beats", front_is_of_those_that_none_beats},
                       {"others_do_not_compete", others_do_not_compete},
                       {"table_has_the_front", table_has_the_front},
                       {0}},
        argc, argv);
}
