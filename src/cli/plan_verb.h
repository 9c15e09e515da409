// The parts of the verb plan: the job that its options describe, and predictions of measured rows.
#pragma once
#include "calibrate/rows.h"
#include "cli/cli.h"
#include "report/plan_report.h"

enum { MAX_DEVICES = 1 << 20 }; // as of --gpus

// The job that resolved options describe. It is not copied once it is open: `costs` points into it.
typedef struct {
    const Options *options;
    Machine machine;
    Stack stack;
    CostModel costs;
    ModelShape model;
    SearchSpace space;
    ParallelConfig config; // what is priced, where `given`
    bool given; // t, p and b are all given: the other options have the defaults that they have in train
    double tokens, price;
    double goodput; // the share of a run's time that is training, (0, 1]
    double pue;     // energy of the data centre over that of its machines
} PlanJob;

Status plan_job_open(PlanJob *job, Options *options);
void plan_job_close(PlanJob *job);

// Writes the page of --html: the answer, its timeline, and the best on fewer and more devices.
Status plan_html(PlanCache *cache, const PlanJob *job, const PlanReport *report);

// --rows and --calibrate. They take no model: the rows say what was run.
Status plan_on_rows(const Options *options);
// Returns whether a file is of a run: FILE.jsonl of --metrics, or a log of Megatron-LM, FILE.log or FILE.txt.
bool plan_names_run(const char *path);
// Adds its row, on the machine of --machine.   ERR_USAGE without one; ERR_NO_INPUT, ERR_DATA, ERR_CONFIG
Status plan_add_run(PlanRows *rows, const Options *options, const char *path);
Status plan_calibration(const Options *options);

// Open the machine and the stack that the options name. Messages begin with the option. Without --stack, the stack is
// the one that was measured on the machine (stack_for).
Status plan_machine(const Options *options, Machine *machine);
Status plan_stack(const Options *options, const Machine *machine, Stack *stack);
