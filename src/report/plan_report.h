// A plan's answer, told: for people, as JSON, and as flags to paste. All say the same numbers.
#pragma once
#include "plan/plan.h"

typedef struct {
    const char *model_name; // NULL: the model is known by its sizes
    const ModelShape *model;
    const CostModel *costs;
    const SearchSpace *space;
    const Prediction *chosen; // what is recommended, or the configuration that was asked about
    bool given;               // it is the latter
    // Of the search; of a given configuration of one that leaves all open. NULL: nothing that fits was found.
    const PlanResult *result;
    double tokens; // of the whole run; 0: not told
    double price;  // of a device hour, in dollars; 0: not told
} PlanReport;

double plan_report_seconds(const PlanReport *report, double step_s); // of all tokens
double plan_report_dollars(const PlanReport *report, double step_s); // of all tokens
// Outside of what the stack's constants were compared with, or on another machine than the stack's.
bool plan_report_extrapolates(const PlanReport *report, const Prediction *prediction);
const char *device_word(const Machine *machine); // "GPU", "rank"
const char *recompute_word(Recompute recompute); // "nothing", "attention", "layers"
const char *verdict_word(Verdict verdict);       // "yes", "perhaps", "no"
// The published formula that the operations of such a step add up to, for a GPT with F = 4H.
const char *flops_formula(Recompute recompute);

// The recommendation as a paragraph that can be read aloud.
void plan_report_paragraph(const PlanReport *report, Text *out);
// The paragraph, flags, time, memory, what else there was, and how far to trust it.
void plan_report_print(const PlanReport *report, Text *out);
// One object; its members are listed in docs/plan.md.
void plan_report_json(const PlanReport *report, Text *out);
// How good the constants are and where they come from: a sentence, and another where the machine is not the stack's.
void accuracy_sentence(const PlanReport *report, Text *out);

// A command as for a shell, in lines that end in a backslash. Data, tokenizer and learning rate are left to
// the user. The candidate is one that was predicted.
void flags_trireme(const CostModel *costs, const ModelShape *model, const ParallelConfig *config, Text *out);
void flags_megatron(const CostModel *costs, const ModelShape *model, const ParallelConfig *config, Text *out);

// Where `other` loses against `winner`: the parts of a step that make the difference, the largest first.
void plan_compare(const Prediction *winner, const Prediction *other, Text *out);
// How often the search agrees with the paper's three takeaways, over published models and cluster sizes, and
// where it does not and why.   ERR_CONFIG on a CPU.   Source: Narayanan 2021, section 3.
Status plan_takeaways(PlanCache *cache, const CostModel *costs, Text *out);
