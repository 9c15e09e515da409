// The planner's predictions for the grids of a run, with --machine. Internal to supervise/.
#pragma once
#include "config/config.h"

typedef struct Prices Prices;

Status prices_open(Prices **prices, const Options *options); // --machine and --stack
void prices_close(Prices *prices);                           // takes NULL
// Predicts the seconds of a step of the resolved options of train; 0 where the planner cannot.
double prices_step_s(Prices *prices, const Options *train);
