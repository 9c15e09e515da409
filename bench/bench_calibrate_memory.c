// How well memory is predicted: verdicts and bytes of measured rows, by a stack's constants, and held out.
//
//   bench_calibrate_memory STACK ROWS.csv [FOLDS]
#include "calibrate/calibrate.h"
#include <stdio.h>
#include <stdlib.h>

static Status print_scores(const Stack *stack, const PlanRows *rows, int folds) {
    MemoryScore score;
    Text text = {0};
    double fitted[2];
    TRY(memory_score(stack, rows, &score));
    text_add(&text, "by the constants of %s\n", stack->name);
    memory_score_print(&score, &text);
    Status status = memory_cross_validate(stack, rows, folds, &score, fitted);
    if (status == OK) {
        text_add(&text, "held out, %d-fold; of all rows activation_factor %.2f, reserve_gb %.2f\n", folds,
                 fitted[0], fitted[1]);
        memory_score_print(&score, &text);
        fputs(text_string(&text), stdout);
    }
    text_free(&text);
    return status;
}

static Status run(const char *stack_name, const char *path, int folds) {
    Stack stack;
    PlanRows rows;
    TRY(stack_open(&stack, stack_name));
    TRY(plan_rows_read(&rows, path));
    Status status = print_scores(&stack, &rows, folds);
    plan_rows_free(&rows);
    return status;
}

int main(int argc, char **argv) {
    int folds = argc > 3 ? atoi(argv[3]) : 5;
    if (argc < 3 || folds < 2) {
        fprintf(stderr, "bench_calibrate_memory STACK ROWS.csv [FOLDS]\n");
        return 2;
    }
    Status status = run(argv[1], argv[2], folds);
    if (status != OK) fprintf(stderr, "%s\n", fail_message());
    return (int)status;
}
