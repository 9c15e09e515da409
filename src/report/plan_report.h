// The report of a plan: as text, as JSON, and as command lines. All have the same numbers.
#pragma once
#include "plan/plan.h"

typedef struct {
    const char *model_name; // NULL: the model is described by its sizes
    const ModelShape *model;
    const CostModel *costs;
    const SearchSpace *space;
    const Prediction *chosen; // the recommendation, or the configuration that was asked about
    bool given;               // it is the latter
    // The result of the search; for a given configuration, of a search with nothing chosen. NULL: nothing fits.
    const PlanResult *result;
    const Prediction *spared; // `chosen` with fewer layers on slow nodes; NULL: it would not be faster
    double tokens;            // of the whole run; 0: unknown
    double price;             // of a device hour, in dollars; 0: unknown
    double goodput;           // the share of the run's time that is training, (0, 1]
    double pue;               // the energy of the data centre over that of its machines
} PlanReport;

double plan_report_seconds(const PlanReport *report, double step_s); // for all tokens
double plan_report_dollars(const PlanReport *report, double step_s); // for all tokens
// The most energy that all tokens can take, at full power all the time; 0: the machine's power is unknown.
double plan_report_kwh(const PlanReport *report, double step_s);
// Adds what machine_watts is: "812.5 W for a GPU with its share of a node, times 1.2 for the data centre".
void add_power(const Machine *machine, double pue, Text *out);
// Returns whether a prediction is outside of the ranges that the stack was compared with, or on another machine than
// the stack's.
bool plan_report_extrapolates(const PlanReport *report, const Prediction *prediction);
const char *device_word(const Machine *machine);         // "GPU", "rank"
const char *recompute_word(Recompute recompute);         // "nothing", "attention", "layers"
const char *context_way_word(ContextWay way);            // of --cp-comm-type
const char *products_word(const ParallelConfig *config); // "bf16", "bf16 with products in fp8"
const char *cut_what(int zero_stage);                    // "gradients and optimizer state"
const char *verdict_word(Verdict verdict);               // "yes", "perhaps", "no"
// Returns the name of what Breakdown.tensor is in two configurations: messages over t, over c, or both.
const char *messages_word(const ParallelConfig *a, const ParallelConfig *b);
// Returns the published formula for the FLOPs of such a step, for a GPT with F = 4H.
const char *flops_formula(Recompute recompute);

// The axes that have a column of a table only where a row has several ranks along one of them.
typedef struct {
    Axis axis;
    const char *name, *meaning;
} RareAxis;
enum { NUM_RARE_AXES = 2 };
extern const RareAxis rare_axes[NUM_RARE_AXES];

// Adds the recommendation as one paragraph.
void plan_report_paragraph(const PlanReport *report, Text *out);
// Adds the paragraph, command lines, time, memory, alternatives, and accuracy.
void plan_report_print(const PlanReport *report, Text *out);
// Adds what all tokens take: time, energy, money. Nothing without tokens.
void plan_report_run(const PlanReport *report, Text *out);
// Adds what slow nodes cost, where they are best and what else would help; nothing where all nodes are alike.
void plan_report_slow_nodes(const PlanReport *report, Text *out);
// Adds the layers of the stages as --pipeline-model-parallel-layout takes them.   ERR_CONFIG for too many stages.
Status plan_report_layout(const PlanReport *report, const ParallelConfig *config, Text *out);
// Adds one JSON object; docs/plan.md lists its members.
void plan_report_json(const PlanReport *report, Text *out);
// Adds a sentence about the accuracy of the constants, and another one if the machine is not the stack's.
void accuracy_sentence(const PlanReport *report, Text *out);

// Adds a shell command for a predicted configuration, in lines that end in a backslash. The user adds data,
// tokenizer and learning rate.
void flags_trireme(const CostModel *costs, const ModelShape *model, const ParallelConfig *config, Text *out);
void flags_megatron(const CostModel *costs, const ModelShape *model, const ParallelConfig *config, Text *out);

// Adds why `other` is slower than `winner`: the parts of a step that differ, the largest difference first.
void plan_compare(const Prediction *winner, const Prediction *other, Text *out);
// Adds how often the search agrees with the paper's three takeaways, over published models and cluster sizes, with
// the counterexamples.   ERR_CONFIG on a CPU.   Source: Narayanan 2021, section 3.
Status plan_takeaways(PlanCache *cache, const CostModel *costs, Text *out);
