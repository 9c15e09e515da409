// Prints a plan for people: the recommendation first, then the numbers it is based on.
#include "report/plan_report.h"
#include "layout/kinds.h"
#include "report/plan_words.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_COLUMNS = 100, BAR_COLUMNS = 32, MAX_TOLD = 8 };
static const double GB = 1e9;

// ---- words and numbers --------------------------------------------------------------------------

bool plan_report_extrapolates(const PlanReport *a, const Prediction *p) {
    return p->extrapolates || !stack_is_of(a->costs->stack, a->costs->machine);
}

const char *device_word(const Machine *machine) { return machine->is_cpu ? "rank" : "GPU"; }

const char *recompute_word(Recompute recompute) {
    static const char *const words[] = {"nothing", "attention", "layers", "layers"};
    return words[recompute];
}

const char *verdict_word(Verdict verdict) {
    static const char *const words[] = {"yes", "perhaps", "no"};
    return words[verdict];
}

const char *flops_formula(Recompute recompute) {
    switch (recompute) {
    case RECOMPUTE_NOTHING: return "72 B S L H^2 (1 + S/6H + V/12LH), Korthikanti 2022, equation 7";
    case RECOMPUTE_SELECTIVE: return "72 B S L H^2 (1 + S/3H + V/12LH), Korthikanti 2022, equation 8";
    default: return "96 B S L H^2 (1 + S/6H + V/16LH), Narayanan 2021, equation 3";
    }
}

static const char *plural(int count) { return count == 1 ? "" : "s"; }

static void add_model_name(const PlanReport *a, Text *out) {
    if (a->model_name)
        text_add(out, "%s (", a->model_name);
    else
        text_add(out, "a model of %d layers of width %d (", a->model->layers, a->model->hidden);
    add_short((double)model_parameters(a->model), out);
    text_add(out, " parameters)");
}

static void add_title(const PlanReport *a, Text *out) {
    const Machine *machine = a->costs->machine;
    add_model_name(a, out);
    text_add(out, " on %d %s%s of %s, batches of %d x %d tokens, %s\n\n", a->space->devices,
             device_word(machine), plural(a->space->devices), machine->name, a->space->batch,
             a->model->sequence, products_word(&a->chosen->config));
}

// ---- the recommendation -------------------------------------------------------------------------

static void add_stages(const ParallelConfig *c, Text *out) {
    if (grid_along(c->grid, AXIS_PP) == 1) {
        text_add(out, "no pipeline");
        return;
    }
    text_add(out, "%d pipeline stages", grid_along(c->grid, AXIS_PP));
    if (c->chunks > 1) text_add(out, " of %d chunks each", c->chunks);
    text_add(out, " (%s)", c->schedule);
}

// What is cut over replicas: in a column, and in sentences.
static const struct {
    const char *word, *what;
} cuts[NUM_SHARDINGS] = {{"none", ""},
                         {"optim", "optimizer state"},
                         {"grads", "gradients and optimizer state"},
                         {"params", "parameters, gradients and optimizer state"}};

const char *cut_what(int stage) { return cuts[stage].what; }

static void add_cut(int stage, Text *out) {
    if (stage == SHARD_OPTIMIZER) text_add(out, " with a distributed optimizer");
    if (stage > SHARD_OPTIMIZER) text_add(out, " with %s cut (%s)", cut_what(stage), sharding_names[stage]);
}

static void add_ways(const ParallelConfig *c, Text *out) {
    int t = grid_along(c->grid, AXIS_TP), cp = grid_along(c->grid, AXIS_CP);
    int ep = grid_along(c->grid, AXIS_EP), d = grid_along(c->grid, AXIS_DP);
    text_add(out, t > 1 ? "%d-way tensor parallelism" : "no tensor parallelism", t);
    text_add(out, c->sequence_parallel ? " with sequence parallelism, " : ", ");
    if (cp > 1) text_add(out, "%d-way context parallelism, ", cp);
    if (ep > 1) text_add(out, "experts over %d ranks, ", ep);
    add_stages(c, out);
    text_add(out, " and %d replica%s", d, plural(d));
    add_cut(c->zero_stage, out);
    text_add(out, "; microbatches of %d sample%s, %d in each step; ", c->microbatch, plural(c->microbatch),
             parallel_config_microbatches(c));
    text_add(out, "%s is computed again.",
             c->recompute < RECOMPUTE_UNIFORM ? recompute_word(c->recompute) : "every layer");
}

static void add_length(const PlanReport *a, Text *out) {
    const Prediction *p = a->chosen;
    if (a->tokens <= 0) return;
    text_add(out, " ");
    add_short(a->tokens, out);
    text_add(out, " tokens take ");
    add_duration(plan_report_seconds(a, p->step_s), out);
    if (a->price > 0) {
        text_add(out, " and cost $");
        add_short(plan_report_dollars(a, p->step_s), out);
        text_add(out, " at $%.2f for a %s hour", a->price, device_word(a->costs->machine));
    }
    text_add(out, ".");
}

static void add_fit(const PlanReport *a, Text *out) {
    const MemoryNeed *m = &a->chosen->memory;
    const char *device = device_word(a->costs->machine);
    Verdict verdict = memory_verdict(m);
    if (verdict == FITS_NOT)
        text_add(out, " It does not fit: the fullest %s needs %.1f GB and has %.1f.", device, m->total / GB,
                 m->capacity / GB);
    else
        text_add(out, " The fullest %s holds %.1f of its %.1f GB%s.", device, m->total / GB, m->capacity / GB,
                 verdict == FITS ? "" : ", too close to be sure that it fits");
}

void plan_report_paragraph(const PlanReport *a, Text *out) {
    const Prediction *p = a->chosen;
    text_add(out, a->given ? "As asked: " : "Use ");
    add_ways(&p->config, out);
    text_add(out, " A step takes ");
    add_step(p->step_s, out);
    text_add(out, " (");
    add_step(p->low_s, out);
    text_add(out, " to ");
    add_step(p->high_s, out);
    text_add(out, "%s), which is ", plan_report_extrapolates(a, p) ? ", extrapolated" : "");
    add_digits(p->tflops, out);
    text_add(out, " TFLOP/s per %s, %.0f %% of its peak.", device_word(a->costs->machine), 100 * p->hfu);
    add_length(a, out);
    add_fit(a, out);
}

// Breaks a paragraph into lines.
static void add_wrapped(const char *text, int columns, Text *out) {
    int column = 0;
    while (*text) {
        int word = (int)strcspn(text, " ");
        if (column && column + 1 + word > columns) {
            text_add(out, "\n");
            column = 0;
        }
        text_add(out, "%s%.*s", column ? " " : "", word, text);
        column += word + (column > 0);
        text += word + (text[word] == ' ');
    }
    text_add(out, "\n");
}

static void print_paragraph(const PlanReport *a, Text *out) {
    Text text = {0};
    plan_report_paragraph(a, &text);
    add_wrapped(text_string(&text), TEXT_COLUMNS, out);
    text_free(&text);
}

static void print_flags(const PlanReport *a, Text *out) {
    const ParallelConfig *c = &a->chosen->config;
    text_add(out, "\nFor trireme (add data, tokenizer, learning rate):\n\n");
    flags_trireme(a->costs, a->model, c, out);
    text_add(out, "\nFor Megatron-LM (likewise):\n\n");
    flags_megatron(a->costs, a->model, c, out);
}

// ---- time ---------------------------------------------------------------------------------------

static void add_bandwidth(const char *name, double rate, Text *out) {
    bool large = rate >= 1e12;
    if (rate > 0)
        text_add(out, "  %-18s %10.3g %cB/s across the middle of the machine\n", name,
                 rate / (large ? 1e12 : 1e9), large ? 'T' : 'G');
}

// Returns the published formula's bubble, for stages of one size and free messages; -1: there is none.
static double ideal_bubble(const ParallelConfig *c) {
    const ScheduleKind *kind = parallel_config_kind(c);
    ScheduleSpec spec = parallel_config_schedule(c);
    if (kind->splits_backward) return -1;
    double bubble = kind->bubble(&spec);
    return isnan(bubble) ? -1 : bubble;
}

static void print_bubble(const Prediction *p, Text *out) {
    double ideal = ideal_bubble(&p->config);
    text_add(out, "  %-18s %10.1f %% of the ideal time", "bubble", 100 * p->bubble);
    if (ideal > 0) text_add(out, "; with stages of one size and free messages %.1f", 100 * ideal);
    text_add(out, "\n");
}

// Says what the interval of the step is based on.
static const char *interval_words(const PlanReport *a) {
    const Stack *stack = a->costs->stack;
    if (*stack->unmeasured) return "a guess: the program's constants are not measured yet";
    if (!stack->accuracy.count) return "a guess: no runs were compared";
    if (!stack_is_of(stack, a->costs->machine)) return "a guess: no runs on this machine were compared";
    return a->chosen->extrapolates ? "extrapolated; all rows left out of the fit lie in this interval"
                                   : "9 of 10 rows left out of the fit lie in this interval";
}

// Names the operations that HFU counts and MFU does not.
static void add_done(const ParallelConfig *c, Text *out) {
    if (c->recompute != RECOMPUTE_NOTHING)
        text_add(out, "; of a GPT about %s", flops_formula(c->recompute));
    else if (c->attention == ATTENTION_FUSED)
        text_add(out, "; fused attention computes its scores again");
}

static void print_rates(const PlanReport *a, Text *out) {
    const Prediction *p = a->chosen;
    const char *device = device_word(a->costs->machine);
    text_add(out, "\nSpeed\n  %-18s %10.4g s, between %.4g and %.4g (%s)\n", "step", p->step_s, p->low_s,
             p->high_s, interval_words(a));
    text_add(out, "  %-18s %10.4g of a %s, %.4g PFLOP/s of all\n", "TFLOP/s", p->tflops, device,
             p->tflops * a->space->devices / 1e3);
    text_add(out, "  %-18s %10.1f %% of %.4g TFLOP/s, counting the model alone; of a GPT %s\n", "MFU",
             100 * p->mfu, parallel_config_peak(a->costs->machine, &p->config),
             flops_formula(RECOMPUTE_NOTHING));
    text_add(out, "  %-18s %10.1f %%, counting every operation that is done", "HFU", 100 * p->hfu);
    add_done(&p->config, out);
    text_add(out, "\n");
    print_bubble(p, out);
    if (grid_along(p->config.grid, AXIS_PP) > 1)
        text_add(out, "  %-18s %10.3g MB between two stages for each microbatch and direction\n", "messages",
                 p->edge_bytes / 1e6);
    add_bandwidth("  of the pipelines", p->edge_bandwidth, out);
    add_bandwidth("  of gradients", p->data_bandwidth, out);
}

static void add_bar(double share, Text *out) {
    for (int i = 0; i < (int)lround(share * BAR_COLUMNS); i++) text_add(out, "#");
    text_add(out, "\n");
}

typedef struct {
    const char *name;
    double value;
} Named;

// Prints values above 0 in `unit`s, with their shares of `whole`.
static void print_shares(const Named *rows, int count, double unit, double whole, Text *out) {
    for (int i = 0; i < count; i++) {
        if (rows[i].value <= 0) continue;
        text_add(out, "  %-26s %10.4g %6.1f %%  ", rows[i].name, rows[i].value / unit,
                 100 * rows[i].value / whole);
        add_bar(rows[i].value / whole, out);
    }
}

static void print_breakdown(const Prediction *p, Text *out) {
    const Breakdown *b = &p->parts;
    Named rows[] = {{"forward and backward", b->compute - b->recompute},
                    {"computing again", b->recompute},
                    {messages_word(&p->config, &p->config), b->tensor},
                    {"tokens to their experts", b->experts},
                    {"messages between stages", b->stages},
                    {"waiting for other stages", b->bubble},
                    {"reducing gradients", b->data},
                    {"optimizer", b->optimizer},
                    {"host and stragglers", b->other}};
    bool brief = p->step_s < 1;
    text_add(out, "\nWhere the time goes, in %sseconds of the busiest pipeline rank\n", brief ? "milli" : "");
    print_shares(rows, sizeof rows / sizeof *rows, brief ? 1e-3 : 1, p->step_s, out);
}

// Says which bytes of trireme on a GPU are exact.
static void print_own_memory(const PlanReport *a, Text *out) {
    const MemoryNeed *m = &a->chosen->memory;
    const char *device = a->chosen->config.device;
    if (!device || m->margin <= 0) return;
    text_add(out,
             "  All but `driver and libraries`, an allowance for CUDA's context and libraries, is what\n"
             "  `trireme memory --device %s` prints.\n",
             device);
    if (m->guessed > 0)
        text_add(
            out,
            "  The module for this device is not on this machine (`trireme devices`): the workspace of its\n"
            "  operations, among the buffers, is taken to be %.0f MiB, and operations are those of the cpu.\n",
            m->guessed / 1048576);
}

// Says what the optimizer's state takes of the hosts' memory.
static void print_host_memory(const PlanReport *a, Text *out) {
    const Prediction *p = a->chosen;
    int devices = parallel_config_devices_in_node(a->costs->machine, &p->config);
    bool small = p->memory.host < GB;
    double host = p->memory.host / (small ? 1e6 : GB);
    const char *unit = small ? "MB" : "GB";
    if (!(host > 0)) return;
    text_add(out, "  Each host also keeps %.4g %s of optimizer state for this GPU", host, unit);
    if (devices > 1)
        text_add(out, "; for %d such GPUs of a node that is %.4g %s", devices, devices * host, unit);
    text_add(out, ".\n");
}

static void print_memory(const PlanReport *a, Text *out) {
    const MemoryNeed *m = &a->chosen->memory;
    Named rows[] = {{"parameters", m->parameters},       {"gradients", m->gradients},
                    {"optimizer", m->optimizer},         {"activations", m->activations},
                    {"embedding, logits", m->ends},      {"buffers", m->buffers},
                    {"driver and libraries", m->reserve}};
    Verdict verdict = memory_verdict(m);
    bool small = m->total < GB;
    double unit = small ? 1e6 : GB;
    text_add(out, "\nMemory, in %s of the fullest %s, at pipeline rank %d\n",
             small ? "MB (10^6)" : "GB (10^9)", device_word(a->costs->machine), m->rank);
    print_shares(rows, sizeof rows / sizeof *rows, unit, m->capacity, out);
    text_add(out, "  %-26s %10.4g %6.1f %%  of %.4g", "total", m->total / unit, 100 * m->total / m->capacity,
             m->capacity / unit);
    if (m->margin > 0) text_add(out, ", give or take %.0f %%", 100 * m->margin);
    text_add(out, ": %s\n", verdict == FITS ? "fits" : verdict == FITS_PERHAPS ? "may fit" : "does not fit");
    print_host_memory(a, out);
    print_own_memory(a, out);
}

// ---- what else there was ------------------------------------------------------------------------

// "t 8 p 16 d 8 v 2 b 1", with c and ep behind d where they are above 1
static void add_sizes(const ParallelConfig *c, Text *out) {
    int cp = grid_along(c->grid, AXIS_CP), ep = grid_along(c->grid, AXIS_EP);
    text_add(out, "t %d p %d d %d", grid_along(c->grid, AXIS_TP), grid_along(c->grid, AXIS_PP),
             grid_along(c->grid, AXIS_DP));
    if (cp > 1) text_add(out, " c %d", cp);
    if (ep > 1) text_add(out, " ep %d", ep);
    text_add(out, " v %d b %d", c->chunks, c->microbatch);
}

// Digits after the point, so that about four are printed in all.
static int decimals(double value) { return value >= 100 ? 1 : value >= 1 ? 2 : 4; }

const RareAxis rare_axes[NUM_RARE_AXES] = {{AXIS_CP, "c", "c: ranks that share a sequence; "},
                                           {AXIS_EP, "ep", "ep: ranks that share the experts of a layer; "}};

static bool has_column(const PlanResult *result, int rare) {
    for (int i = 0; i < result->count; i++)
        if (grid_along(result->best[i].config.grid, rare_axes[rare].axis) > 1) return true;
    return false;
}

static void print_row(const PlanResult *result, int place, Text *out) {
    const Prediction *p = &result->best[place];
    const ParallelConfig *c = &p->config;
    text_add(out, "  %2d %4d %4d %5d", place + 1, grid_along(c->grid, AXIS_TP), grid_along(c->grid, AXIS_PP),
             grid_along(c->grid, AXIS_DP));
    for (int i = 0; i < NUM_RARE_AXES; i++)
        if (has_column(result, i)) text_add(out, " %3d", grid_along(c->grid, rare_axes[i].axis));
    text_add(out, " %3d %3d  %-9s  %-3s %-6s %-11s %9.*f %+7.1f %7.*f %7.1f %6.3g\n", c->chunks,
             c->microbatch, recompute_word(c->recompute), c->sequence_parallel ? "yes" : "no",
             cuts[c->zero_stage].word, c->schedule, decimals(p->step_s), p->step_s,
             100 * (p->step_s / result->best[0].step_s - 1), decimals(p->tflops), p->tflops, 100 * p->bubble,
             p->memory.total / GB);
}

static void print_ranking(const PlanResult *result, Text *out) {
    text_add(out, "\nThe fastest %d\n  %2s %4s %4s %5s", result->count, "", "t", "p", "d");
    for (int i = 0; i < NUM_RARE_AXES; i++)
        if (has_column(result, i)) text_add(out, " %3s", rare_axes[i].name);
    text_add(out, " %3s %3s  %-9s  %-3s %-6s %-11s %9s %7s %7s %7s %6s\n", "v", "b", "again", "seq", "cut",
             "schedule", "step s", "+ %", "TFLOP/s", "bubble", "GB");
    for (int i = 0; i < result->count; i++) print_row(result, i, out);
    text_add(out, "  ");
    for (int i = 0; i < NUM_RARE_AXES; i++)
        if (has_column(result, i)) text_add(out, "%s", rare_axes[i].meaning);
    text_add(
        out,
        "again: computed again in the backward;\n"
        "  seq: sequence parallelism; cut: over replicas, nothing (none), the optimizer's state (optim), "
        "gradients too (grads),\n"
        "  parameters too (params); bubble: %% of the ideal time; GB: of the fullest\n");
}

static int by_step(const void *a, const void *b) {
    double x = ((const Alternative *)a)->prediction.step_s, y = ((const Alternative *)b)->prediction.step_s;
    return (x > y) - (x < y);
}

// Prints the alternatives, the fastest first.
static void print_reasons(const PlanResult *result, Text *out) {
    const Prediction *best = &result->best[0];
    Alternative others[MAX_ALTERNATIVES];
    int count = result->num_alternatives;
    memcpy(others, result->alternatives, sizeof others);
    qsort(others, (size_t)count, sizeof *others, by_step);
    if (count) text_add(out, "\nWhy it wins: extra time of the best configuration with another choice\n");
    for (int i = 0; i < count && i < MAX_TOLD; i++) {
        text_add(out, "  %s", others[i].choice);
        for (; i + 1 < count && others[i + 1].prediction.step_s == others[i].prediction.step_s; i++)
            text_add(out, ", %s", others[i + 1].choice);
        text_add(out, " (");
        add_sizes(&others[i].prediction.config, out);
        text_add(out, ") ");
        plan_compare(best, &others[i].prediction, out);
        text_add(out, "\n");
    }
}

static void print_rejected(const PlanResult *result, Text *out) {
    static const char *const classes[] = {"break a rule", "do not fit", "cannot be faster"};
    text_add(out, "\nOf %" PRId64 " configurations %" PRId64 " were replayed\n", result->tried,
             result->replayed);
    for (int i = 0; i < NUM_REJECTS; i++)
        if (result->rejected[i])
            text_add(out, "  %9" PRId64 " %-17s such as: %s\n", result->rejected[i], classes[i],
                     result->examples[i]);
}

static void print_better(const PlanReport *a, Text *out) {
    bool found = a->result && a->result->count;
    double best_s = found ? a->result->best[0].step_s : 0, given_s = a->chosen->step_s;
    bool fits = memory_verdict(&a->chosen->memory) != FITS_NOT;
    Text text = {0};
    if (!found) {
        text_add(&text, "Nothing that fits was found on these devices.");
    } else if (fits && best_s > 0.995 * given_s) {
        text_add(&text, "Nothing better was found.");
    } else {
        text_add(&text, "%s, %.4g s (%+.1f %%): ", fits ? "Better" : "The fastest that fits", best_s,
                 100 * (best_s / given_s - 1));
        add_ways(&a->result->best[0].config, &text);
    }
    text_add(out, "\n");
    add_wrapped(text_string(&text), TEXT_COLUMNS, out);
    text_free(&text);
}

// ---- how far to trust it ------------------------------------------------------------------------

void accuracy_sentence(const PlanReport *a, Text *out) {
    const Stack *stack = a->costs->stack;
    const Accuracy *accuracy = &stack->accuracy;
    bool same = stack_is_of(stack, a->costs->machine);
    if (*stack->unmeasured) {
        text_add(out, "%s: its constants are not measured yet. They are %s.", stack->name, stack->unmeasured);
        return;
    }
    if (!accuracy->count) {
        text_add(out, "%s: its constants were never compared with measured runs%s%s.", stack->name,
                 same ? "" : ", and it is not for ", same ? "" : a->costs->machine->name);
        return;
    }
    text_add(
        out,
        "%s: over %d measured runs that the constants were not fitted to (%s; %s, %s) the error was %.1f "
        "%% in the mean, %.1f %% at most for nine in ten, %.1f %% at worst; one rate for all would have "
        "erred by %.1f %%.",
        stack->name, accuracy->count, accuracy->rows, accuracy->method, accuracy->date, accuracy->mape,
        accuracy->p90, accuracy->worst, accuracy->naive);
    if (!same)
        text_add(out, " They were measured on %s, not on %s: another machine is an extrapolation.",
                 stack->machine, a->costs->machine->name);
}

static void add_hull(const Accuracy *accuracy, Text *out) {
    text_add(out,
             " This lies outside of what was measured: %.0f to %.0f devices, hidden size %.0f to %.0f, t "
             "%.0f to %.0f, sequences of %.0f to %.0f.",
             accuracy->least_gpus, accuracy->most_gpus, accuracy->least_hidden, accuracy->most_hidden,
             accuracy->least_tp, accuracy->most_tp, accuracy->least_sequence, accuracy->most_sequence);
}

static void print_trust(const PlanReport *a, Text *out) {
    const Stack *stack = a->costs->stack;
    Text text = {0};
    accuracy_sentence(a, &text);
    if (a->chosen->extrapolates && stack->accuracy.count) add_hull(&stack->accuracy, &text);
    text_add(out, "\nHow far to trust it\n");
    add_wrapped(text_string(&text), TEXT_COLUMNS, out);
    text_free(&text);
}

void plan_report_print(const PlanReport *a, Text *out) {
    add_title(a, out);
    print_paragraph(a, out);
    print_flags(a, out);
    print_rates(a, out);
    print_breakdown(a->chosen, out);
    print_memory(a, out);
    plan_report_run(a, out), plan_report_slow_nodes(a, out);
    if (a->given) {
        print_better(a, out);
    } else {
        print_ranking(a->result, out);
        print_reasons(a->result, out);
        print_rejected(a->result, out);
    }
    print_trust(a, out);
}
