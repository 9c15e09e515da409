// Predictions of measured rows.
#pragma once
#include "calibrate/rows.h"

enum { MAX_ROW_MACHINES = 8, MAX_ROW_STACKS = 8 };

typedef struct {
    const Stack *stack;           // whose constants are asked about
    Stack stacks[MAX_ROW_STACKS]; // that have it as their base
    int num_stacks;
    PlanCache *cache;
    Machine machines[MAX_ROW_MACHINES];     // that rows have named so far ...
    char names[MAX_ROW_MACHINES][MAX_NAME]; // ... and how: a name, an alias, or a path
    double node_gbs[MAX_ROW_MACHINES];      // of their nodes, as the rows say; 0: the machine's own
    int num_machines;
} RowPredictor;

Status row_predictor_open(RowPredictor *predictor, const Stack *stack);
void row_predictor_close(RowPredictor *predictor);
// Of the stack that the row names, where that is the predictor's or has it as its base; else of the
// predictor's.
Status row_predict(RowPredictor *predictor, const Constants *constants, const PlanRow *row, Prediction *out);
Status row_predict_step(void *predictor, const Constants *constants, const PlanRow *row,
                        double *step_s); // a PredictRow
