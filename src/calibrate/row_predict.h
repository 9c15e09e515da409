// Predicts measured rows with a stack, each on its own machine.
#pragma once
#include "calibrate/rows.h"

enum { MAX_ROW_MACHINES = 8, MAX_ROW_STACKS = 8 };

typedef struct {
    const Stack *stack;           // the one that is asked about
    Stack stacks[MAX_ROW_STACKS]; // those that inherit from it
    int num_stacks;
    PlanCache *cache;
    Machine machines[MAX_ROW_MACHINES];     // opened so far, as rows name them ...
    char names[MAX_ROW_MACHINES][MAX_NAME]; // ... by name, alias, or path
    double node_gbs[MAX_ROW_MACHINES]; // network bandwidth of their nodes, from the row; 0: the machine's own
    int num_machines;
} RowPredictor;

Status row_predictor_open(RowPredictor *predictor, const Stack *stack);
void row_predictor_close(RowPredictor *predictor);
// Returns the row's configuration. Choices that the row does not make are those of the stack.
ParallelConfig row_config(const Stack *stack, const PlanRow *row);
// Predicts a row with the stack that it names if that is the predictor's or inherits from it, else with the
// predictor's.
Status row_predict(RowPredictor *predictor, const Constants *constants, const PlanRow *row, Prediction *out);
Status row_predict_step(void *predictor, const Constants *constants, const PlanRow *row,
                        double *step_s); // a PredictRow
