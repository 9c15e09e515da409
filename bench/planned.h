// What the planner says of a run on this machine, which `trireme bench --machine FILE` has measured.
#pragma once
#include "plan/plan.h"

typedef struct {
    Machine machine;
    Stack stack;
    CostModel costs;
    PlanCache *cache;
} Planner;

Status planner_open(Planner *planner, const char *machine_file); // borrows nothing; must not be moved
void planner_close(Planner *planner);
// Of `trireme train` with RUN_COMMON and these options; `model` is the one they say.
Status planner_predict(Planner *planner, const char *words, ModelShape *model, Prediction *out);
