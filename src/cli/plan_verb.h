// The parts of the verb plan: the job that its options describe, and predictions of measured rows.
#pragma once
#include "calibrate/rows.h"
#include "cli/cli.h"
#include "report/plan_sweep.h"

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
    int asked_devices; // of the command line; there it may say d, too
    double tokens, price;
    double goodput; // the share of a run's time that is training, (0, 1]
    double pue;     // energy of the data centre over that of its machines
} PlanJob;

Status plan_job_open(PlanJob *job, Options *options);
void plan_job_close(PlanJob *job);
// Asks for another number of devices, from which d follows, and another batch.   ERR_CONFIG where they cannot be
Status plan_job_ask(PlanJob *job, int devices, int batch);
PlanReport plan_job_report(const PlanJob *job); // without an answer

bool plan_is_given(const Options *options,
                   const char *field); // by the user, on the command line or in a file

// ---- --vary -------------------------------------------------------------------------------------

typedef enum { SWEEP_MACHINE, SWEEP_SEQUENCE, SWEEP_BATCH, SWEEP_DEVICES, NUM_SWEEP_AXES } SweepAxisName;
enum { MAX_SWEEP_VALUES = 16, MAX_SWEEP_WORD = 256, MAX_SWEEP_CELLS = 1024 };

typedef struct {
    char values[MAX_SWEEP_VALUES][MAX_SWEEP_WORD]; // as they are typed; a machine may end in @PRICE
    int numbers[MAX_SWEEP_VALUES];                 // but of machines
    int count;
    bool varies; // the user has given the values
} SweepAxis;

typedef struct {
    SweepAxis of[NUM_SWEEP_AXES];
} PlanAxes;

// Reads --vary.   ERR_USAGE names the value
Status plan_axes_read(PlanAxes *axes, const Options *options);
// Parses the command line again, with the first values of what it does not give itself. The caller destroys `base`.
Status plan_axes_base(const PlanAxes *axes, const Options *options, Options *base);
// Fills what does not vary with the value of the job; `around`: with fewer and more devices and samples, too.
void plan_axes_fill(PlanAxes *axes, const PlanJob *job, bool around);

typedef struct PlanSweepRun PlanSweepRun;
// Asks all questions. The caller closes the run, also after a failure; the cache must be open until then.
Status plan_sweep_open(PlanSweepRun **run, PlanCache *cache, const Options *options, const PlanAxes *axes);
const PlanSweep *plan_sweep_of(const PlanSweepRun *run);
void plan_sweep_close(PlanSweepRun *run); // takes NULL

// Writes the page of --html: the answer, its timeline, and those of the sweep.
Status plan_html(PlanCache *cache, const PlanJob *job, const PlanReport *report, const PlanSweep *sweep);

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
